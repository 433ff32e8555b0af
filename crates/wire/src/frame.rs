//! Frames: the units that a link sends one after the other.
//!
//! Model: a header of 32 bytes, then `len` bytes of payload. [`Head::decode`] needs only the header, so a reader knows
//! the kind and length of a frame before it allocates memory for it.
//! Invariant: a header that decodes encodes to the same bytes; one with any changed bit does not decode (except for one
//! in 65,536). A length is 32 bits wide and at most what its kind allows. A request or a result that is longer than a
//! frame is sent in several ([`MORE`]), up to [`PAYLOAD_BYTES_MAX`]. `docs/formats/frame.md` describes every byte.
//! Non-goals: whether a frame may come now ([`crate::core`]); reading and writing.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a header.
pub const HEAD_BYTES: usize = 32;
/// The most payload of a frame other than data.
pub const CONTROL_BYTES_MAX: u32 = 64 << 10;
/// The most bytes of a request or a result, over several frames.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 20;
/// The flag of an open or end frame whose payload continues in the next frame of its side.
pub const MORE: u8 = 2;
/// The most payload of a data frame.
pub const DATA_BYTES_MAX: u32 = 4 << 20;
/// The flag of a data frame whose payload has a checksum.
pub const CHECKED: u8 = 1;
/// The position of the channel in the flags of a data frame.
const CHANNEL_SHIFT: u32 = 4;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of each side: its identity and versions.
    Hello = 1,
    /// Opens a stream; the payload is the request.
    Open = 2,
    /// A block of a stream; `value` is its offset.
    Data = 3,
    /// `value` more blocks of a stream may be sent.
    Credit = 4,
    /// Completes the sender's direction of a stream; the payload is its result.
    End = 5,
    /// Aborts a stream; the payload is the reason.
    Abort = 6,
    /// A sign of life.
    Ping = 7,
    /// The sender closes the link; the payload is the violation that it found, if any.
    Bye = 8,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Hello, Open, Data, Credit, End, Abort, Ping, Bye].into_iter().find(|kind| *kind as u8 == byte)
    }

    fn bytes_max(self) -> u32 {
        match self {
            Kind::Data => DATA_BYTES_MAX,
            Kind::Hello | Kind::Open | Kind::End | Kind::Abort | Kind::Bye => CONTROL_BYTES_MAX,
            Kind::Credit | Kind::Ping => 0,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The kind.
    pub kind: Kind,
    /// For data: [`CHECKED`], and the channel in the upper four bits. For an open or an end: [`MORE`].
    pub flags: u8,
    /// The stream; 0 for the link itself.
    pub stream: u32,
    /// Bytes of payload.
    pub len: u32,
    /// The number of frames that the sender sent before, modulo 2^32.
    pub sequence: u32,
    /// Data: the offset of the payload in its stream. Credit: the number of blocks.
    pub value: u64,
    /// XXH3-64 of the payload with the offset as seed; 0 for data without [`CHECKED`].
    pub checksum: u64,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The header is damaged.
    #[error("bytes that are no frame (the check of the head does not fit)")]
    Garbage,
    /// A kind of frame that this version does not know.
    #[error("a frame of kind {0}, which this version does not know")]
    Kind(u8),
    /// More payload than this kind allows.
    #[error("a {0:?} frame of {1} bytes, where {2} is the most")]
    Long(Kind, u32, u32),
    /// An offset so large that the payload would end past 2^63.
    #[error("a Data frame at offset {0}, beyond any stream")]
    Offset(u64),
    /// The payload is damaged.
    #[error("a {0:?} frame of stream {1} at {2} that was damaged on the way")]
    Payload(Kind, u32, u64),
}

impl Head {
    /// A header of a frame that is not data.
    pub fn control(kind: Kind, stream: u32, value: u64, payload: &[u8]) -> Head {
        assert!(
            kind != Kind::Data && payload.len() <= kind.bytes_max() as usize,
            "{kind:?} {}",
            payload.len()
        );
        let mut head =
            Head { kind, flags: 0, stream, len: payload.len() as u32, sequence: 0, value, checksum: 0 };
        head.checksum = head.sum(payload);
        head
    }

    /// A header of a block of a stream. `channel` is below 16.
    pub fn data(stream: u32, channel: u8, offset: u64, payload: &[u8], checked: bool) -> Head {
        assert!(channel < 16 && payload.len() <= DATA_BYTES_MAX as usize, "{channel} {}", payload.len());
        let flags = channel << CHANNEL_SHIFT | if checked { CHECKED } else { 0 };
        let mut head = Head {
            kind: Kind::Data,
            flags,
            stream,
            len: payload.len() as u32,
            sequence: 0,
            value: offset,
            checksum: 0,
        };
        if checked {
            head.checksum = head.sum(payload);
        }
        head
    }

    /// The channel of a block, one of 16 of its stream.
    pub fn channel(&self) -> u8 {
        self.flags >> CHANNEL_SHIFT
    }

    /// The encoded header.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.stream.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.checksum.to_le_bytes());
        let check = xxh3_64(&bytes) as u16;
        bytes[2..4].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Head, FrameError> {
        let mut plain = *bytes;
        plain[2..4].fill(0);
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let whole = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if u16::from_le_bytes([bytes[2], bytes[3]]) != xxh3_64(&plain) as u16 {
            return Err(FrameError::Garbage);
        }
        let kind = Kind::of(bytes[0]).ok_or(FrameError::Kind(bytes[0]))?;
        let head = Head {
            kind,
            flags: bytes[1],
            stream: half(4),
            len: half(8),
            sequence: half(12),
            value: whole(16),
            checksum: whole(24),
        };
        if head.len > kind.bytes_max() {
            return Err(FrameError::Long(kind, head.len, kind.bytes_max()));
        }
        if head.value > i64::MAX as u64 - u64::from(head.len) {
            return Err(FrameError::Offset(head.value));
        }
        Ok(head)
    }

    /// Whether this payload matches the header's checksum, if it has one.
    pub fn verify(&self, payload: &[u8]) -> Result<(), FrameError> {
        assert_eq!(payload.len(), self.len as usize, "the payload of another frame");
        let is_checked = self.kind != Kind::Data || self.flags & CHECKED != 0;
        if is_checked && self.checksum != self.sum(payload) {
            return Err(FrameError::Payload(self.kind, self.stream, self.value));
        }
        Ok(())
    }

    fn sum(&self, payload: &[u8]) -> u64 {
        xxh3_64_with_seed(payload, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Head {
        Head { sequence: 7, ..Head::data(3, 2, 1 << 20, b"payload", true) }
    }

    #[test]
    fn a_head_comes_back_as_it_went() {
        let heads = [
            block(),
            Head::control(Kind::Hello, 0, 0, b"hello"),
            Head::control(Kind::Credit, u32::MAX, 16, b""),
            Head::data(1, 15, 0, b"", false),
        ];
        for head in heads {
            assert_eq!(Head::decode(&head.encode()), Ok(head));
        }
        assert_eq!((block().channel(), block().flags & CHECKED), (2, CHECKED));
    }

    #[test]
    fn no_bit_of_a_head_can_change_unseen() {
        let bytes = block().encode();
        for bit in 0..HEAD_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&changed), Err(FrameError::Garbage), "bit {bit}");
        }
    }

    #[test]
    fn lengths_and_offsets_end_where_they_must() {
        let said = |head: Head| Head::decode(&head.encode());
        let long = Head { len: DATA_BYTES_MAX + 1, ..block() };
        assert_eq!(said(long), Err(FrameError::Long(Kind::Data, DATA_BYTES_MAX + 1, DATA_BYTES_MAX)));
        let longest = Head { len: u32::MAX, ..block() };
        assert_eq!(said(longest), Err(FrameError::Long(Kind::Data, u32::MAX, DATA_BYTES_MAX)));
        let ping = Head { len: 1, ..Head::control(Kind::Ping, 0, 0, b"") };
        assert_eq!(said(ping), Err(FrameError::Long(Kind::Ping, 1, 0)));
        assert_eq!(said(Head { value: 1 << 63, ..block() }), Err(FrameError::Offset(1 << 63)));
        let last = Head { value: i64::MAX as u64 - 7, ..block() };
        assert_eq!(said(last), Ok(last));
    }

    #[test]
    fn a_payload_belongs_to_its_offset() {
        let head = block();
        assert_eq!(head.verify(b"payload"), Ok(()));
        assert_eq!(head.verify(b"paylaod"), Err(FrameError::Payload(Kind::Data, 3, 1 << 20)));
        let moved = Head { value: 0, ..head };
        assert!(moved.verify(b"payload").is_err(), "two swapped blocks are found out");
        assert_eq!(Head::data(3, 0, 0, b"payload", false).verify(b"paylaod"), Ok(()), "unless nobody asked");
    }
}
