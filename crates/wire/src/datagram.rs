//! Datagrams beside a link, encrypted with keys that its two ends export from it (RFC 8446, 7.5), and datagrams to many
//! receivers, encrypted with a key from a secret that the sender has given to each of them over a link.
//!
//! ```text
//! [session: u64][number: u64][payload, encrypted][tag: 16 bytes]       little-endian
//!
//! secret --"datagram upd"--> next secret ...       the key of each is "datagram key"; one for 2^20 datagrams
//! ```
//!
//! Model: a session has one sender and one receiver in each direction, each direction with its own secret; a session of
//! many receivers has one direction, and its number is derived from the secret ("datagram id"), so that nobody can give
//! a secret of his own that number. The number of a datagram is its nonce, and with the session it is authenticated, but
//! not encrypted. A receiver remembers which of the last [`WINDOW`] numbers have arrived, as in RFC 6479.
//! Invariant: no number is encrypted twice with a key. A receiver accepts each number at most once, and nothing that the
//! sender of the session has not encrypted. Nobody can make it derive a key, except by an authentic datagram.
//! Non-goals: sockets; datagrams that are lost or arrive very late.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};

use crate::export::EXPORTED_KEY_BYTES;
use crate::link::Link;
use crate::renew::expand;

/// Bytes of a datagram before its payload.
pub const DATAGRAM_HEAD_BYTES: usize = 16;
/// Bytes of a datagram around its payload.
pub const DATAGRAM_EXTRA_BYTES: usize = DATAGRAM_HEAD_BYTES + 16;
/// The numbers that may arrive out of order: a number that is this much lower than the highest one is too late.
const WINDOW: u64 = 1024;
/// Datagrams with one key: 64 GiB of the longest ones, as for a link.
const PER_KEY: u64 = 1 << 20;
const LABEL: &str = "EXPORTER-thalweg-datagrams";
/// Bytes of the secret of a sender with many receivers.
pub const DATAGRAM_SECRET_BYTES: usize = EXPORTED_KEY_BYTES;

/// Why a datagram is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It is too short.
    Short,
    /// It has arrived before, or is too late for that to be known.
    Replayed,
    /// The sender of the session did not encrypt it.
    Forged,
}

/// The secret of one direction, and its key.
struct Secret {
    secret: Prk,
    key: LessSafeKey,
}

impl Secret {
    fn new(secret: [u8; EXPORTED_KEY_BYTES]) -> Secret {
        let secret = Prk::new_less_safe(HKDF_SHA256, &secret);
        let mut key = [0; EXPORTED_KEY_BYTES];
        expand(&secret, "datagram key", &[], &mut key);
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("as long as the cipher says");
        Secret { secret, key: LessSafeKey::new(key) }
    }

    fn next(&self) -> Secret {
        let mut next = [0; EXPORTED_KEY_BYTES];
        expand(&self.secret, "datagram upd", &[], &mut next);
        Secret::new(next)
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// The session that a datagram names. Anybody can name any session.
pub fn datagram_session(datagram: &[u8]) -> Option<u64> {
    datagram.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The sending direction of a session.
pub struct DatagramSealing {
    session: u64,
    secret: Secret,
    next: u64,
}

/// The receiving direction of a session.
pub struct DatagramOpening {
    secrets: [Secret; 2],
    /// Which key the first secret has: the number of a datagram divided by [`PER_KEY`].
    at: u64,
    /// A number above all that have arrived.
    top: u64,
    /// A bit for each of the last numbers.
    arrived: [u64; (WINDOW / 64) as usize],
}

impl Link {
    /// Both directions of a session of datagrams beside the link. The two ends name the same session, and one of them is
    /// the `client`. No other session of the link may ever have had this number. `None` if the link has no TLS session.
    pub fn datagrams(&self, session: u64, client: bool) -> Option<(DatagramSealing, DatagramOpening)> {
        let secret = |of_client: bool| {
            let mut context = [0; 9];
            context[..8].copy_from_slice(&session.to_le_bytes());
            context[8] = u8::from(of_client);
            self.export_key(LABEL, &context)
        };
        Some((DatagramSealing::new(session, secret(client)?), DatagramOpening::new(secret(!client)?)))
    }
}

/// Both ends of a session with many receivers, and its number. The sender chooses the secret at random and gives it to
/// each receiver once, over a link; whoever has it twice would accept all datagrams again. All receivers could send
/// in the name of the sender.
pub fn multicast_datagrams(secret: &[u8; DATAGRAM_SECRET_BYTES]) -> (u64, DatagramSealing, DatagramOpening) {
    let mut session = [0; 8];
    expand(&Prk::new_less_safe(HKDF_SHA256, secret), "datagram id", &[], &mut session);
    let session = u64::from_le_bytes(session);
    (session, DatagramSealing::new(session, *secret), DatagramOpening::new(*secret))
}

impl DatagramSealing {
    fn new(session: u64, secret: [u8; EXPORTED_KEY_BYTES]) -> DatagramSealing {
        DatagramSealing { session, secret: Secret::new(secret), next: 0 }
    }

    /// Makes a datagram of bytes that begin with [`DATAGRAM_HEAD_BYTES`] unused ones.
    pub fn seal(&mut self, bytes: &mut Vec<u8>) {
        let number = self.next;
        self.next += 1;
        if number > 0 && number.is_multiple_of(PER_KEY) {
            self.secret = self.secret.next();
        }
        let (head, payload) = bytes.split_at_mut(DATAGRAM_HEAD_BYTES);
        head[..8].copy_from_slice(&self.session.to_le_bytes());
        head[8..].copy_from_slice(&number.to_le_bytes());
        let sealed = self.secret.key.seal_in_place_separate_tag(nonce(number), Aad::from(&*head), payload);
        bytes.extend_from_slice(sealed.expect("a datagram is short").as_ref());
    }
}

impl DatagramOpening {
    fn new(secret: [u8; EXPORTED_KEY_BYTES]) -> DatagramOpening {
        let first = Secret::new(secret);
        let second = first.next();
        DatagramOpening { secrets: [first, second], at: 0, top: 0, arrived: [0; (WINDOW / 64) as usize] }
    }

    /// Decrypts a datagram in place, and returns its payload.
    ///
    /// # Errors
    /// If it must be dropped; nothing has changed then.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Dropped> {
        if datagram.len() < DATAGRAM_EXTRA_BYTES {
            return Err(Dropped::Short);
        }
        let (head, sealed) = datagram.split_at_mut(DATAGRAM_HEAD_BYTES);
        let number = u64::from_le_bytes(head[8..].try_into().expect("8 bytes"));
        if self.has_arrived(number) {
            return Err(Dropped::Replayed);
        }
        let of_key = (number / PER_KEY).checked_sub(self.at).ok_or(Dropped::Replayed)?;
        let secret = usize::try_from(of_key).ok().and_then(|of_key| self.secrets.get(of_key));
        let secret = secret.ok_or(Dropped::Forged)?;
        let opened = secret.key.open_in_place(nonce(number), Aad::from(&*head), sealed);
        let opened = opened.map_err(|_| Dropped::Forged)?;
        if of_key == 1 {
            let next = self.secrets[1].next();
            self.secrets.swap(0, 1);
            self.secrets[1] = next;
            self.at += 1;
        }
        self.arrives(number);
        Ok(opened)
    }

    fn has_arrived(&self, number: u64) -> bool {
        let bit = self.arrived[(number % WINDOW / 64) as usize] >> (number % 64) & 1 == 1;
        number < self.top && (self.top - number > WINDOW || bit)
    }

    fn arrives(&mut self, number: u64) {
        // The bits of the numbers that have been skipped are those of much lower ones.
        for skipped in (self.top..=number).take(WINDOW as usize) {
            self.arrived[(skipped % WINDOW / 64) as usize] &= !(1 << (skipped % 64));
        }
        self.top = self.top.max(number + 1);
        self.arrived[(number % WINDOW / 64) as usize] |= 1 << (number % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; EXPORTED_KEY_BYTES] = [7; EXPORTED_KEY_BYTES];

    fn ends() -> (DatagramSealing, DatagramOpening) {
        (DatagramSealing::new(5, SECRET), DatagramOpening::new(SECRET))
    }

    fn sealed(sealing: &mut DatagramSealing, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [&[0; DATAGRAM_HEAD_BYTES], payload].concat();
        sealing.seal(&mut bytes);
        bytes
    }

    fn opened(opening: &mut DatagramOpening, datagram: &[u8]) -> Result<Vec<u8>, Dropped> {
        opening.open(&mut datagram.to_vec()).map(Vec::from)
    }

    #[test]
    fn each_datagram_is_accepted_once_in_any_order() {
        let (mut sealing, mut opening) = ends();
        let mut datagrams: Vec<Vec<u8>> =
            (0..WINDOW).map(|i| sealed(&mut sealing, &i.to_le_bytes())).collect();
        assert_eq!(datagram_session(&datagrams[0]), Some(5));
        datagrams.reverse();
        for (i, datagram) in (0..WINDOW).rev().zip(&datagrams) {
            assert_eq!(opened(&mut opening, datagram), Ok(i.to_le_bytes().to_vec()));
            assert_eq!(opened(&mut opening, datagram), Err(Dropped::Replayed));
        }
        let new = sealed(&mut sealing, b"new");
        assert_eq!(opened(&mut opening, &new), Ok(b"new".to_vec()));
        assert!(datagrams.iter().all(|old| opened(&mut opening, old) == Err(Dropped::Replayed)));
    }

    #[test]
    fn the_skipped_numbers_may_still_arrive() {
        let (mut sealing, mut opening) = ends();
        let first = sealed(&mut sealing, b"first");
        sealing.next = WINDOW;
        let next = sealed(&mut sealing, b"next");
        assert_eq!(opened(&mut opening, &next), Ok(b"next".to_vec()));
        assert_eq!(opened(&mut opening, &first), Err(Dropped::Replayed), "one beyond the window");
        sealing.next = WINDOW - 1;
        let before = sealed(&mut sealing, b"before");
        assert_eq!(opened(&mut opening, &before), Ok(b"before".to_vec()));
        assert_eq!(opened(&mut opening, &before), Err(Dropped::Replayed));
        sealing.next = 1 << 19;
        let far = sealed(&mut sealing, b"far");
        assert_eq!(opened(&mut opening, &far), Ok(b"far".to_vec()));
        assert_eq!(opened(&mut opening, &next), Err(Dropped::Replayed));
    }

    #[test]
    fn what_is_changed_cut_or_of_another_session_is_dropped_and_changes_nothing() {
        let (mut sealing, mut opening) = ends();
        let datagram = sealed(&mut sealing, b"payload");
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert_eq!(opened(&mut opening, &changed), Err(Dropped::Forged), "byte {at}");
            let expected = if at < DATAGRAM_EXTRA_BYTES { Dropped::Short } else { Dropped::Forged };
            assert_eq!(opened(&mut opening, &datagram[..at]), Err(expected), "{at} bytes");
        }
        let other = sealed(&mut DatagramSealing::new(5, [8; EXPORTED_KEY_BYTES]), b"payload");
        assert_eq!(opened(&mut opening, &other), Err(Dropped::Forged));
        let mut far = datagram.clone();
        far[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(opened(&mut opening, &far), Err(Dropped::Forged));
        assert_eq!(opened(&mut opening, &datagram), Ok(b"payload".to_vec()));
    }

    #[test]
    fn each_receiver_of_a_secret_accepts_each_datagram_once() {
        let (session, mut sealing, mut first) = multicast_datagrams(&SECRET);
        let (same, _, mut second) = multicast_datagrams(&SECRET);
        let (foreign, mut stranger, _) = multicast_datagrams(&[8; DATAGRAM_SECRET_BYTES]);
        assert!(same == session && foreign != session);
        let datagram = sealed(&mut sealing, b"payload");
        assert_eq!(datagram_session(&datagram), Some(session));
        for opening in [&mut first, &mut second] {
            assert_eq!(opened(opening, &datagram), Ok(b"payload".to_vec()));
            assert_eq!(opened(opening, &datagram), Err(Dropped::Replayed));
            stranger.next = sealing.next;
            assert_eq!(opened(opening, &sealed(&mut stranger, b"payload")), Err(Dropped::Forged));
        }
    }

    #[test]
    fn a_key_is_used_for_a_limited_number_of_datagrams() {
        let (mut sealing, mut opening) = ends();
        sealing.next = PER_KEY - 1;
        let [last, first] = [b"last", b"frst"].map(|payload| sealed(&mut sealing, payload));
        let mut old = DatagramSealing::new(5, SECRET);
        (old.next, old.secret) = (PER_KEY + 1, Secret::new(SECRET));
        assert_eq!(opened(&mut opening, &first), Ok(b"frst".to_vec()));
        assert_eq!(opened(&mut opening, &last), Err(Dropped::Replayed), "its key is gone");
        assert_eq!(opened(&mut opening, &sealed(&mut old, b"old key")), Err(Dropped::Forged));
        let next = sealed(&mut sealing, b"next");
        assert_eq!(opened(&mut opening, &next), Ok(b"next".to_vec()));
    }
}
