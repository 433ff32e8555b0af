//! Heads: what is said of a batch on its way, and everything else that inlets and outlets say to each other.
//!
//! Model: every message is one head of 80 bytes; a batch's head is followed by its records. `docs/formats/batch.md`
//! draws every byte.
//! Invariant: a head that decodes encodes to the same bytes; one with any bit changed does not decode.
//! Non-goals: whether a message may come now; that is [`crate::core`]'s.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 80;
/// The version of this format.
const VERSION: u8 = 5;
/// Bytes of a head that its own checksum covers.
const COVERED_BYTES: usize = 72;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// To an outlet: records of one lane.
    Batch = 1,
    /// To an outlet: all there is of one lane in this split; `sequence` is how many batches, the sums are of all.
    End = 2,
    /// To an outlet: the split is over; `sequence` is how many lanes ended, the sums are of all of them.
    Close = 3,
    /// To an outlet: this source sends nothing more; `split` is one past the last split that it knows of.
    Finish = 4,
    /// To an outlet: this source has gone before its end.
    Lost = 5,
    /// To an inlet: `sequence` batches may be sent, those that were sent and those that every source has for itself
    /// included.
    Credit = 6,
    /// To an inlet: this outlet has gone.
    Gone = 7,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Batch, End, Close, Finish, Lost, Credit, Gone].into_iter().find(|k| *k as u8 == byte)
    }
}

/// The head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Of a batch: its last record goes on in the next batch of the lane.
    pub more: bool,
    /// Which river it is about.
    pub river: u64,
    /// Which part of the input.
    pub split: u64,
    /// Which lane.
    pub lane: u32,
    /// The number of the batch in its lane, from 0; or how many.
    pub sequence: u64,
    /// Records that begin here.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// XXH3-128 of the bytes with the sequence as seed, or 0 if nobody took it; of an end the sum, modulo 2^128.
    pub checksum: u128,
    /// Where in the input the first record began.
    pub origin: u64,
}

impl Head {
    /// A message that is about nothing yet.
    pub fn new(kind: Kind, river: u64) -> Head {
        Head {
            kind,
            more: false,
            river,
            split: 0,
            lane: 0,
            sequence: 0,
            records: 0,
            bytes: 0,
            checksum: 0,
            origin: 0,
        }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&self.river.to_le_bytes());
        put(&self.lane.to_le_bytes());
        put(&[self.kind as u8, VERSION, self.more.into(), 0]);
        put(&self.split.to_le_bytes());
        put(&self.sequence.to_le_bytes());
        put(&self.records.to_le_bytes());
        put(&self.bytes.to_le_bytes());
        put(&self.checksum.to_le_bytes());
        put(&self.origin.to_le_bytes());
        let check = xxh3_64(&bytes[..COVERED_BYTES]);
        bytes[COVERED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// From bytes; `None` if they are no head.
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let bytes: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let long = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside the head"));
        let short = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside the head"));
        let is_whole = long(COVERED_BYTES) == xxh3_64(&bytes[..COVERED_BYTES]);
        if !is_whole || bytes[13] != VERSION || bytes[14] > 1 || bytes[15] != 0 {
            return None;
        }
        Some(Head {
            river: long(0),
            lane: short(8),
            kind: Kind::of(bytes[12])?,
            more: bytes[14] == 1,
            split: long(16),
            sequence: long(24),
            records: long(32),
            bytes: long(40),
            checksum: u128::from(long(48)) | u128::from(long(56)) << 64,
            origin: long(64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_comes_back_and_a_changed_one_does_not(
            kind in 1u8..8, more in any::<bool>(), words in prop::array::uniform8(any::<u64>()), bit in 0usize..HEAD_BYTES * 8,
        ) {
            let head = Head {
                kind: Kind::of(kind).unwrap(),
                more,
                river: words[0],
                split: words[2],
                lane: words[7] as u32,
                sequence: words[3],
                records: words[4],
                bytes: words[5],
                checksum: u128::from(words[6]) << 64 | u128::from(words[7]),
                origin: words[1],
            };
            let mut bytes = head.encode();
            prop_assert_eq!(Head::decode(&bytes), Some(head));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Head::decode(&bytes), None);
            prop_assert_eq!(Head::decode(&bytes[..HEAD_BYTES - 1]), None);
        }
    }
}
