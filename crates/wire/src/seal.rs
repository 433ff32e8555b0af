//! Sealed records: TLS 1.3's own, made in place with the keys that its handshake agreed on.
//!
//! Model: [`Sealing`] and [`Opening`] are the two directions of a connection after its handshake, each with its key,
//! so that one thread may send while another receives. A record is five bytes of header, up to 16 KiB of payload, one
//! byte of type, a tag of 16 bytes (RFC 8446, 5.2).
//! Law: what comes out is what any implementation of TLS would have sent; no number is used twice with a key.
//! Non-goals: handshakes, tickets, new keys within a connection: a link that has sealed [`RECORDS_MAX`] records in one
//! direction has to be opened anew.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

/// The most payload of a record.
pub(crate) const RECORD_BYTES: usize = 16 << 10;
/// Bytes of a record's header.
pub(crate) const RECORD_HEAD_BYTES: usize = 5;
/// Bytes behind the payload: the type, and the tag.
pub(crate) const RECORD_TAIL_BYTES: usize = 17;
/// Bytes that a record is longer than its payload.
pub(crate) const RECORD_EXTRA_BYTES: usize = RECORD_HEAD_BYTES + RECORD_TAIL_BYTES;
/// The most records that one key may seal: 2^24 of AES-GCM (RFC 8446, 5.5), 256 GiB of full ones.
pub(crate) const RECORDS_MAX: u64 = 1 << 24;

const TYPE_ALERT: u8 = 21;
const TYPE_DATA: u8 = 23;

/// Why records cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SealError {
    /// Changed on the way, or sealed by somebody else.
    Damaged,
    /// Not a record that may come here.
    Record(u8, usize),
    /// The peer's TLS has given up, for the reason of this number.
    Alert(u8),
    /// The peer has closed the connection properly.
    Closed,
    /// The key has sealed all that it may.
    UsedUp,
    /// A cipher that was not offered.
    Cipher,
}

impl std::fmt::Display for SealError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SealError::Damaged => f.write_str("a sealed record that was changed on the way"),
            SealError::Record(kind, len) => {
                write!(f, "a record of type {kind} and {len} bytes, which is not TLS")
            }
            SealError::Alert(number) => f.write_str(alert(*number)),
            SealError::Closed => f.write_str("the end of the connection"),
            SealError::UsedUp => f.write_str("256 GiB, all that one key may seal; open the link again"),
            SealError::Cipher => f.write_str("a cipher that was not offered"),
        }
    }
}

/// What a peer's TLS means by its alert.
fn alert(number: u8) -> &'static str {
    match number {
        42 | 46 => "an alert: it does not take our certificate",
        44 => "an alert: our certificate was dropped from its cluster",
        45 => "an alert: our certificate is expired, or not valid yet; see the clocks, or renew it",
        48 => "an alert: our certificate is of another cluster; see that --identity is of its cluster",
        116 => "an alert: it wants a certificate of its cluster, and we showed none",
        120 => "an alert: it speaks another protocol; bring both sides to one version of thalweg",
        _ => "an alert: its TLS has given up",
    }
}

/// One direction's key and the number of its next record.
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    next: u64,
    first: u64,
}

impl Key {
    fn new(next: u64, secrets: ConnectionTrafficSecrets) -> Result<Key, SealError> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(SealError::Cipher),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| SealError::Cipher)?;
        let iv = iv.as_ref().try_into().map_err(|_| SealError::Cipher)?;
        Ok(Key { key: LessSafeKey::new(key), iv, next, first: next })
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> Result<Nonce, SealError> {
        if self.next - self.first >= RECORDS_MAX {
            return Err(SealError::UsedUp);
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= number;
        }
        self.next += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// The header of a record with so much behind it.
fn header(sealed_bytes: usize) -> [u8; RECORD_HEAD_BYTES] {
    let [high, low] = (sealed_bytes as u16).to_be_bytes();
    [TYPE_DATA, 3, 3, high, low]
}

/// Seals what is sent.
pub(crate) struct Sealing(Key);

impl Sealing {
    /// Goes on behind a handshake that has used `next` numbers.
    pub(crate) fn new(next: u64, secrets: ConnectionTrafficSecrets) -> Result<Sealing, SealError> {
        Key::new(next, secrets).map(Sealing)
    }

    /// Appends a record with these bytes, at most [`RECORD_BYTES`], to `out`.
    pub(crate) fn copy(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), SealError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(len <= RECORD_BYTES, "a record of {len} bytes");
        let nonce = self.0.nonce()?;
        let head = header(len + RECORD_TAIL_BYTES);
        out.extend_from_slice(&head);
        let at = out.len();
        for part in parts {
            out.extend_from_slice(part);
        }
        out.push(TYPE_DATA);
        let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut out[at..]);
        out.extend_from_slice(tag.map_err(|_| SealError::Cipher)?.as_ref());
        Ok(())
    }

    /// Seals the first [`RECORD_BYTES`] of `bytes`, which hold at least one more, where they lie. Returns what goes
    /// before them and what goes behind.
    pub(crate) fn in_place(
        &mut self,
        bytes: &mut [u8],
    ) -> Result<([u8; RECORD_HEAD_BYTES], [u8; RECORD_TAIL_BYTES]), SealError> {
        let nonce = self.0.nonce()?;
        let head = header(RECORD_BYTES + RECORD_TAIL_BYTES);
        // The type is sealed with the payload, so for that moment it takes the place of the next byte.
        let next = std::mem::replace(&mut bytes[RECORD_BYTES], TYPE_DATA);
        let tag =
            self.0.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut bytes[..RECORD_BYTES + 1]);
        let sealed_type = std::mem::replace(&mut bytes[RECORD_BYTES], next);
        let mut tail = [sealed_type; RECORD_TAIL_BYTES];
        tail[1..].copy_from_slice(tag.map_err(|_| SealError::Cipher)?.as_ref());
        Ok((head, tail))
    }
}

/// Opens what is received.
pub(crate) struct Opening(Key);

impl Opening {
    /// Goes on behind a handshake that has used `next` numbers.
    pub(crate) fn new(next: u64, secrets: ConnectionTrafficSecrets) -> Result<Opening, SealError> {
        Key::new(next, secrets).map(Opening)
    }

    /// How many bytes follow this header.
    pub(crate) fn follows(head: [u8; RECORD_HEAD_BYTES]) -> Result<usize, SealError> {
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        // Other implementations may pad; more than 256 bytes beyond the payload is none.
        let sound = head[0] == TYPE_DATA && (RECORD_TAIL_BYTES..=RECORD_BYTES + 256).contains(&len);
        if sound { Ok(len) } else { Err(SealError::Record(head[0], len)) }
    }

    /// Opens a record, header and all, where it lies; returns how many bytes of payload now follow the header.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<usize, SealError> {
        let head: [u8; RECORD_HEAD_BYTES] = record[..RECORD_HEAD_BYTES].try_into().expect("a header");
        let nonce = self.0.nonce()?;
        let opened = self.0.key.open_in_place(nonce, Aad::from(head), &mut record[RECORD_HEAD_BYTES..]);
        let opened = opened.map_err(|_| SealError::Damaged)?;
        let end = opened.iter().rposition(|&b| b != 0).ok_or(SealError::Damaged)?;
        match (opened[end], &opened[..end]) {
            (TYPE_DATA, payload) => Ok(payload.len()),
            (TYPE_ALERT, [_, 0]) => Err(SealError::Closed),
            (TYPE_ALERT, [_, number]) => Err(SealError::Alert(*number)),
            (kind, payload) => Err(SealError::Record(kind, payload.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealing, Opening) {
        let secrets = || ConnectionTrafficSecrets::Aes256Gcm { key: [7; 32].into(), iv: [9; 12].into() };
        (Sealing::new(3, secrets()).unwrap(), Opening::new(3, secrets()).unwrap())
    }

    #[test]
    fn what_is_sealed_in_place_or_copied_opens_in_order() {
        let (mut sealing, mut opening) = pair();
        let mut out = Vec::new();
        sealing.copy(&[b"he", b"llo"], &mut out).unwrap();
        assert_eq!(opening.open(&mut out), Ok(5));
        assert_eq!(&out[5..10], b"hello");

        let plain: Vec<u8> = (0..RECORD_BYTES + 9).map(|i| i as u8).collect();
        let mut bytes = plain.clone();
        let (head, tail) = sealing.in_place(&mut bytes).unwrap();
        assert_eq!(bytes[RECORD_BYTES..], plain[RECORD_BYTES..], "the next record is untouched");
        let mut record = [&head[..], &bytes[..RECORD_BYTES], &tail[..]].concat();
        assert_eq!(Opening::follows(head), Ok(record.len() - RECORD_HEAD_BYTES));
        assert_eq!(opening.open(&mut record), Ok(RECORD_BYTES));
        assert_eq!(record[5..5 + RECORD_BYTES], plain[..RECORD_BYTES]);
    }

    #[test]
    fn a_record_that_is_changed_lost_or_doubled_does_not_open() {
        let (mut sealing, mut opening) = pair();
        let mut first = Vec::new();
        sealing.copy(&[b"first"], &mut first).unwrap();
        let mut second = Vec::new();
        sealing.copy(&[b"second"], &mut second).unwrap();
        let mut changed = first.clone();
        changed[7] ^= 1;
        assert_eq!(pair().1.open(&mut changed), Err(SealError::Damaged));
        assert_eq!(pair().1.open(&mut second), Err(SealError::Damaged), "the first was lost");
        assert_eq!(opening.open(&mut first.clone()), Ok(5));
        assert_eq!(opening.open(&mut first), Err(SealError::Damaged), "it came twice");
    }

    #[test]
    fn a_key_ends_where_its_cipher_says() {
        let (mut sealing, _) = pair();
        sealing.0.next = sealing.0.first + RECORDS_MAX - 1;
        assert_eq!(sealing.copy(&[b"last"], &mut Vec::new()), Ok(()));
        assert_eq!(sealing.copy(&[b"more"], &mut Vec::new()), Err(SealError::UsedUp));
    }

    #[test]
    fn what_is_no_record_is_told_apart() {
        assert_eq!(Opening::follows(*b"GET /"), Err(SealError::Record(b'G', 0x202f)));
        assert_eq!(Opening::follows([23, 3, 3, 255, 255]), Err(SealError::Record(23, 65535)));
        assert_eq!(Opening::follows([23, 3, 3, 0, 16]), Err(SealError::Record(23, 16)));
    }
}
