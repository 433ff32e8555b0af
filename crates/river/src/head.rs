//! Heads: the header of a batch, and every other message between inlets and outlets.
//!
//! Model: every message is a head of 80 bytes. After the head of a batch come its records. `docs/formats/batch.md`
//! specifies every byte.
//! Invariant: a head that decodes encodes to the same bytes. A head with any changed bit does not decode.
//! Non-goals: whether a message is allowed now, which [`crate::core`] decides.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 80;
/// The version of this format.
const VERSION: u8 = 5;
/// Bytes that the checksum of the head covers.
const COVERED_BYTES: usize = 72;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// To an outlet: records of one lane.
    Batch = 1,
    /// To an outlet: the end of one lane of this split; `sequence` is the number of batches, and the sums cover all
    /// of them.
    End = 2,
    /// To an outlet: the end of the split; `sequence` is the number of lanes, and the sums cover all of them.
    Close = 3,
    /// To an outlet: this source has finished; `split` is one past its last split.
    Finish = 4,
    /// To an outlet: this source disconnected before it finished.
    Lost = 5,
    /// To an inlet: `sequence` batches may be sent in all, including those already sent and the initial credits.
    Credit = 6,
    /// To an inlet: this outlet disconnected.
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
    /// The kind of the message.
    pub kind: Kind,
    /// For a batch: whether its last record continues in the next batch of the lane.
    pub more: bool,
    /// The river.
    pub river: u64,
    /// The split.
    pub split: u64,
    /// The lane.
    pub lane: u32,
    /// The number of the batch in its lane, from 0; or a count.
    pub sequence: u64,
    /// Records that begin in the batch.
    pub records: u64,
    /// Bytes of records.
    pub bytes: u64,
    /// XXH3-128 of the bytes with the sequence as seed, or 0 if checksums are off. In an end message, the sum modulo
    /// 2^128.
    pub checksum: u128,
    /// Where the first record begins in the input.
    pub origin: u64,
}

impl Head {
    /// A message with all other fields 0.
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

    /// Encodes it.
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

    /// Decodes it; `None` if it is invalid.
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
        fn a_head_round_trips_and_a_changed_one_is_rejected(
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
