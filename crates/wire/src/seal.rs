//! Encryption of TLS 1.3 records in place, with the keys of the handshake.
//!
//! Model: [`Sealing`] and [`Opening`] are the two directions of a connection after its handshake, each with its own
//! key, so that one thread may send while another receives. A record is a header of five bytes, up to 16 KiB of
//! payload, one byte of type, and a tag of 16 bytes (RFC 8446, 5.2). Each direction gets a new key after
//! [`RECORDS_PER_KEY`] records, or when the peer requests it.
//! Invariant: the output is that of any implementation of TLS. No record number is used twice with a key, and no key
//! for more than [`RECORDS_MAX`] records.
//! Non-goals: handshakes, tickets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::aead::{Aad, LessSafeKey, Nonce};
use rustls::ConnectionTrafficSecrets;

use crate::renew::{KEY_UPDATE, KEY_UPDATE_BOTH, Traffic};

/// The most payload of a record.
pub(crate) const RECORD_BYTES: usize = 16 << 10;
/// Bytes of a record's header.
pub(crate) const RECORD_HEAD_BYTES: usize = 5;
/// Bytes after the payload: the type, and the tag.
pub(crate) const RECORD_TAIL_BYTES: usize = 17;
/// The overhead of a record.
pub(crate) const RECORD_EXTRA_BYTES: usize = RECORD_HEAD_BYTES + RECORD_TAIL_BYTES;
/// The most records under one key: 2^24 for AES-GCM (RFC 8446, 5.5), 256 GiB of full ones.
pub(crate) const RECORDS_MAX: u64 = 1 << 24;
/// The records after which the sender takes a new key: 64 GiB of full ones.
pub(crate) const RECORDS_PER_KEY: u64 = 1 << 22;
// A frame of any size begins and ends under one key.
const _: () = assert!(RECORDS_PER_KEY + (crate::frame::DATA_BYTES_MAX as u64 >> 14) + 3 < RECORDS_MAX);

const TYPE_ALERT: u8 = 21;
const TYPE_HANDSHAKE: u8 = 22;
const TYPE_DATA: u8 = 23;

/// Why no more records can be sent or received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SealError {
    /// Damaged, or encrypted with another key.
    Damaged,
    /// A record that is not allowed here.
    Record(u8, usize),
    /// The peer's TLS sent the alert of this number.
    Alert(u8),
    /// The peer has closed the connection properly.
    Closed,
    /// The key has encrypted the maximum of records.
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
            SealError::UsedUp => {
                f.write_str("256 GiB under one key, which is all that it may seal; open the link again")
            }
            SealError::Cipher => f.write_str("a cipher that was not offered"),
        }
    }
}

/// The meaning of a TLS alert.
pub(crate) fn alert(number: u8) -> &'static str {
    match number {
        42 | 46 => "an alert: it does not take our certificate",
        44 => "an alert: our certificate was dropped from its cluster",
        49 => {
            "an alert: our certificate is not in its cluster file; check that our identity is not an old copy"
        }
        45 => "an alert: our certificate is expired, or not valid yet; see the clocks, or renew it",
        48 => "an alert: our certificate is of another cluster; check that our identity is of its cluster",
        116 => "an alert: it wants a certificate of its cluster, and we showed none",
        120 => "an alert: it speaks another protocol; bring both sides to one version of thalweg",
        _ => "an alert: its TLS has given up",
    }
}

/// One direction after the handshake: the number of the next record, and the key.
type First = (u64, ConnectionTrafficSecrets);

/// One direction's key and the number of its next record.
struct Key {
    traffic: Traffic,
    key: LessSafeKey,
    iv: [u8; 12],
    next: u64,
}

impl Key {
    fn new((next, first): First, secret: &[u8]) -> Result<Key, SealError> {
        let traffic = Traffic::new(&first, secret).ok_or(SealError::Cipher)?;
        let (key, iv) = traffic.key();
        Ok(Key { traffic, key, iv, next })
    }

    /// Advances to the next key.
    fn renew(&mut self) {
        self.traffic.update();
        (self.key, self.iv) = self.traffic.key();
        self.next = 0;
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> Result<Nonce, SealError> {
        if self.next >= RECORDS_MAX {
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

/// The header of a record with a body of this length.
fn header(sealed_bytes: usize) -> [u8; RECORD_HEAD_BYTES] {
    let [high, low] = (sealed_bytes as u16).to_be_bytes();
    [TYPE_DATA, 3, 3, high, low]
}

/// The sending direction.
pub(crate) struct Sealing {
    key: Key,
    records_per_key: u64,
    asked: Arc<AtomicBool>,
}

impl Sealing {
    /// Continues after a handshake with this secret. Takes a new key after `records_per_key` records.
    pub(crate) fn new(first: First, secret: &[u8], records_per_key: u64) -> Result<Sealing, SealError> {
        Ok(Sealing { key: Key::new(first, secret)?, records_per_key, asked: Arc::default() })
    }

    /// A flag that the receiving direction sets when the peer requests a new key.
    pub(crate) fn asked(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }

    /// Takes a new key if it is time, and appends the announcement to `out`. Call it before bytes that must stay
    /// together.
    pub(crate) fn renew_if_due(&mut self, out: &mut Vec<u8>) -> Result<(), SealError> {
        if self.key.next >= self.records_per_key || self.asked.load(Ordering::Relaxed) {
            self.asked.store(false, Ordering::Relaxed);
            self.record(TYPE_HANDSHAKE, &[&KEY_UPDATE], out)?;
            self.key.renew();
        }
        Ok(())
    }

    /// Appends a record with these bytes, at most [`RECORD_BYTES`], to `out`.
    pub(crate) fn copy(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), SealError> {
        self.record(TYPE_DATA, parts, out)
    }

    fn record(&mut self, kind: u8, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), SealError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(len <= RECORD_BYTES, "a record of {len} bytes");
        let nonce = self.key.nonce()?;
        let head = header(len + RECORD_TAIL_BYTES);
        out.extend_from_slice(&head);
        let at = out.len();
        for part in parts {
            out.extend_from_slice(part);
        }
        out.push(kind);
        let tag = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut out[at..]);
        out.extend_from_slice(tag.map_err(|_| SealError::Cipher)?.as_ref());
        Ok(())
    }

    /// Encrypts the first [`RECORD_BYTES`] of `bytes`, which holds at least one more, in place. Returns the bytes to
    /// send before and after them.
    pub(crate) fn in_place(
        &mut self,
        bytes: &mut [u8],
    ) -> Result<([u8; RECORD_HEAD_BYTES], [u8; RECORD_TAIL_BYTES]), SealError> {
        let nonce = self.key.nonce()?;
        let head = header(RECORD_BYTES + RECORD_TAIL_BYTES);
        // The type is encrypted with the payload, so it replaces the next byte for a moment.
        let next = std::mem::replace(&mut bytes[RECORD_BYTES], TYPE_DATA);
        let tag =
            self.key.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut bytes[..RECORD_BYTES + 1]);
        let sealed_type = std::mem::replace(&mut bytes[RECORD_BYTES], next);
        let mut tail = [sealed_type; RECORD_TAIL_BYTES];
        tail[1..].copy_from_slice(tag.map_err(|_| SealError::Cipher)?.as_ref());
        Ok((head, tail))
    }
}

/// The receiving direction.
pub(crate) struct Opening {
    key: Key,
    asked: Arc<AtomicBool>,
}

impl Opening {
    /// Continues after a handshake with this secret. The flag is set when the peer requests a new key for the other
    /// direction.
    pub(crate) fn new(first: First, secret: &[u8], asked: Arc<AtomicBool>) -> Result<Opening, SealError> {
        Ok(Opening { key: Key::new(first, secret)?, asked })
    }

    /// The length of the record with this header.
    pub(crate) fn follows(head: [u8; RECORD_HEAD_BYTES]) -> Result<usize, SealError> {
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        // Other implementations may pad, but a record is at most 256 bytes longer than its payload.
        let sound = head[0] == TYPE_DATA && (RECORD_TAIL_BYTES..=RECORD_BYTES + 256).contains(&len);
        if sound { Ok(len) } else { Err(SealError::Record(head[0], len)) }
    }

    /// Decrypts a record in place; returns the length of the payload after the header. A key update has no payload.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<usize, SealError> {
        let head: [u8; RECORD_HEAD_BYTES] = record[..RECORD_HEAD_BYTES].try_into().expect("a header");
        let nonce = self.key.nonce()?;
        let opened = self.key.key.open_in_place(nonce, Aad::from(head), &mut record[RECORD_HEAD_BYTES..]);
        let opened = opened.map_err(|_| SealError::Damaged)?;
        let end = opened.iter().rposition(|&b| b != 0).ok_or(SealError::Damaged)?;
        match (opened[end], &opened[..end]) {
            (TYPE_DATA, payload) => Ok(payload.len()),
            (TYPE_HANDSHAKE, message) if *message == KEY_UPDATE || *message == KEY_UPDATE_BOTH => {
                if *message == KEY_UPDATE_BOTH {
                    self.asked.store(true, Ordering::Relaxed);
                }
                self.key.renew();
                Ok(0)
            }
            (TYPE_ALERT, [_, 0]) => Err(SealError::Closed),
            (TYPE_ALERT, [_, number]) => Err(SealError::Alert(*number)),
            (kind, payload) => Err(SealError::Record(kind, payload.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::renew::first_of;

    fn pair() -> (Sealing, Opening) {
        let secret = [7; 48];
        let sealing = Sealing::new((3, first_of(&secret)), &secret, RECORDS_PER_KEY).unwrap();
        let opening = Opening::new((3, first_of(&secret)), &secret, sealing.asked()).unwrap();
        (sealing, opening)
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
        sealing.key.next = RECORDS_MAX - 1;
        assert_eq!(sealing.copy(&[b"last"], &mut Vec::new()), Ok(()));
        assert_eq!(sealing.copy(&[b"more"], &mut Vec::new()), Err(SealError::UsedUp));
    }

    #[test]
    fn a_new_key_is_taken_long_before_that_and_the_old_one_opens_nothing_more() {
        let (mut sealing, mut opening) = pair();
        (sealing.key.next, opening.key.next) = (RECORDS_PER_KEY - 1, RECORDS_PER_KEY - 1);
        let mut last = Vec::new();
        sealing.renew_if_due(&mut last).unwrap();
        sealing.copy(&[b"last"], &mut last).unwrap();
        let mut update = Vec::new();
        sealing.renew_if_due(&mut update).unwrap();
        let mut first = Vec::new();
        sealing.renew_if_due(&mut first).unwrap();
        sealing.copy(&[b"first"], &mut first).unwrap();
        assert_eq!(opening.open(&mut last.clone()), Ok(4));
        assert_eq!(pair().1.open(&mut first.clone()), Err(SealError::Damaged), "the key is another");
        assert_eq!(opening.open(&mut update), Ok(0));
        assert_eq!(opening.open(&mut first), Ok(5));
        let mut old = Vec::new();
        pair().0.copy(&[b"old"], &mut old).unwrap();
        opening.key.next = 3;
        assert_eq!(opening.open(&mut old), Err(SealError::Damaged));
    }

    #[test]
    fn other_messages_of_handshakes_are_refused() {
        for message in [&[24, 0, 0, 1, 2][..], &[24, 0, 0, 1], &[4, 0, 0, 1, 0], &[]] {
            let (mut sealing, mut opening) = pair();
            let mut out = Vec::new();
            sealing.record(TYPE_HANDSHAKE, &[message], &mut out).unwrap();
            let told = opening.open(&mut out);
            assert!(matches!(told, Err(SealError::Record(TYPE_HANDSHAKE, _))), "{message:?}: {told:?}");
        }
    }

    #[test]
    fn what_is_no_record_is_told_apart() {
        assert_eq!(Opening::follows(*b"GET /"), Err(SealError::Record(b'G', 0x202f)));
        assert_eq!(Opening::follows([23, 3, 3, 255, 255]), Err(SealError::Record(23, 65535)));
        assert_eq!(Opening::follows([23, 3, 3, 0, 16]), Err(SealError::Record(23, 16)));
    }
}
