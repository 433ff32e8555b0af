//! Key updates within a TLS 1.3 connection (RFC 8446, 4.6.3 and 7.2).
//!
//! Model: each direction has a secret, from which the key and the next secret are derived. The sender announces the
//! change of its direction in a last record under the old key; the other direction is not affected.
//!
//! ```text
//! secret 0 --"traffic upd"--> secret 1 --"traffic upd"--> secret 2 ...
//!     |                           |                           |
//! "key", "iv"                 "key", "iv"                 "key", "iv"
//! ```
//!
//! rustls hands out the first keys, but the secrets only to a key log for debuggers. So each handshake gets its own key
//! log ([`Agreed`]), which only this module reads.
//! Invariant: the secrets are those of the handshake; a secret that does not lead to the handshake's key is refused.
//! Non-goals: records; when to update.

use std::fmt;
use std::sync::{Arc, Mutex};

use ring::aead::{AES_128_GCM, AES_256_GCM, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::{ConnectionTrafficSecrets, KeyLog};

/// The message that announces a new key: a handshake message of type 24 with one byte, which requests nothing.
pub(crate) const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// The message that announces a new key, and requests a new key from the receiver too.
pub(crate) const KEY_UPDATE_BOTH: [u8; 5] = [24, 0, 0, 1, 1];

const IV_BYTES: usize = 12;
/// Bytes of SHA-384.
pub(crate) const SECRET_BYTES_MAX: usize = 48;
/// The labels of rustls for the first secrets of the two directions, and for the exporter secret.
const LABELS: [&str; 3] = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0", "EXPORTER_SECRET"];

/// The secrets of one handshake: client, server and exporter.
#[derive(Clone, Default)]
pub struct Agreed(Arc<Mutex<[Vec<u8>; LABELS.len()]>>);

impl Agreed {
    /// The secret of the client's direction, or the server's; empty before the handshake.
    pub(crate) fn secret(&self, of_client: bool) -> Vec<u8> {
        self.0.lock().expect("no holder panics")[usize::from(!of_client)].clone()
    }

    /// The exporter secret; empty before the handshake.
    pub(crate) fn exporter_secret(&self) -> Vec<u8> {
        self.0.lock().expect("no holder panics")[2].clone()
    }
}

impl fmt::Debug for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Agreed(..)")
    }
}

impl KeyLog for Agreed {
    fn log(&self, label: &str, _random: &[u8], secret: &[u8]) {
        if let Some(i) = LABELS.iter().position(|known| *known == label) {
            self.0.lock().expect("no holder panics")[i] = secret.to_vec();
        }
    }

    fn will_log(&self, label: &str) -> bool {
        LABELS.contains(&label)
    }
}

/// The secret of one direction.
pub(crate) struct Traffic {
    aead: &'static Algorithm,
    hash: hkdf::Algorithm,
    secret: Prk,
}

impl Traffic {
    /// This secret, if the handshake's key was derived from it.
    pub(crate) fn new(first: &ConnectionTrafficSecrets, secret: &[u8]) -> Option<Traffic> {
        let (aead, hash, iv) = match first {
            ConnectionTrafficSecrets::Aes128Gcm { iv, .. } => (&AES_128_GCM, HKDF_SHA256, iv),
            ConnectionTrafficSecrets::Aes256Gcm { iv, .. } => (&AES_256_GCM, HKDF_SHA384, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { iv, .. } => (&CHACHA20_POLY1305, HKDF_SHA256, iv),
            _ => return None,
        };
        let traffic = Traffic { aead, hash, secret: Prk::new_less_safe(hash, secret) };
        (secret.len() == traffic.secret_bytes() && traffic.iv() == iv.as_ref()).then_some(traffic)
    }

    /// The key, and the base of the nonces.
    pub(crate) fn key(&self) -> (LessSafeKey, [u8; IV_BYTES]) {
        let mut key = [0; 32];
        let key = &mut key[..self.aead.key_len()];
        expand(&self.secret, "key", &[], key);
        let key = UnboundKey::new(self.aead, key).expect("as long as the cipher says");
        (LessSafeKey::new(key), self.iv())
    }

    fn iv(&self) -> [u8; IV_BYTES] {
        let mut iv = [0; IV_BYTES];
        expand(&self.secret, "iv", &[], &mut iv);
        iv
    }

    /// Advances to the next secret.
    pub(crate) fn update(&mut self) {
        let mut next = [0; SECRET_BYTES_MAX];
        let next = &mut next[..self.secret_bytes()];
        expand(&self.secret, "traffic upd", &[], next);
        self.secret = Prk::new_less_safe(self.hash, next);
    }

    fn secret_bytes(&self) -> usize {
        KeyType::len(&self.hash)
    }
}

/// HKDF-Expand-Label (RFC 8446, 7.1).
pub(crate) fn expand(secret: &Prk, label: &str, context: &[u8], into: &mut [u8]) {
    struct Bytes(usize);
    impl KeyType for Bytes {
        fn len(&self) -> usize {
            self.0
        }
    }
    let long = (into.len() as u16).to_be_bytes();
    let short = |len: usize| [u8::try_from(len).expect("labels and contexts have at most 255 bytes")];
    let (label_len, context_len) = (short("tls13 ".len() + label.len()), short(context.len()));
    let info = [&long[..], &label_len, b"tls13 ", label.as_bytes(), &context_len, context];
    let okm = secret.expand(&info, Bytes(into.len())).expect("no cipher has keys that long");
    okm.fill(into).expect("as long as was asked");
}

/// The first key of a secret, as in a handshake.
#[cfg(test)]
pub(crate) fn first_of(secret: &[u8; 48]) -> ConnectionTrafficSecrets {
    let secret = Prk::new_less_safe(HKDF_SHA384, secret);
    let (mut key, mut iv) = ([0; 32], [0; IV_BYTES]);
    expand(&secret, "key", &[], &mut key);
    expand(&secret, "iv", &[], &mut iv);
    ConnectionTrafficSecrets::Aes256Gcm { key: key.into(), iv: iv.into() }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // Tests open sockets themselves.
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use rustls::{ClientConnection, Connection, ExtractedSecrets, ServerConnection};
    use thalweg_block::Pool;
    use thalweg_pump::Source;

    use super::*;
    use crate::export::Exporter;
    use crate::seal::{Opening, RECORD_EXTRA_BYTES, RECORD_HEAD_BYTES, Sealing};
    use crate::{Credentials, Role, TemporaryIdentity, Terms, new_id};

    /// The credentials of two sides, which update their keys after `records` records.
    fn credentials(records: u64) -> [Credentials; 2] {
        let meeting = new_id();
        let sides = [Role::Client, Role::Node].map(|role| TemporaryIdentity::new(meeting, role).unwrap());
        let meets = |i: usize, name: &str| sides[i].meets(name, &sides[1 - i].authority()).unwrap();
        [meets(0, "near").renewing_after(records), meets(1, "far").renewing_after(records)]
    }

    /// A handshake in memory: the client's secrets, and both sides.
    fn handshake(records: u64) -> (Agreed, ClientConnection, Connection) {
        let [near, far] = credentials(records);
        let (config, agreed) = near.client();
        let client = ClientConnection::new(config, "far".try_into().unwrap()).unwrap();
        let mut client = Connection::from(client);
        let mut server = Connection::from(ServerConnection::new(far.server().0).unwrap());
        while client.is_handshaking() || server.is_handshaking() {
            feed(&mut server, &said(&mut client));
            feed(&mut client, &said(&mut server));
        }
        let Connection::Client(client) = client else { unreachable!("it is one") };
        (agreed, client, server)
    }

    /// After a handshake in memory: the client in this crate, and the server in rustls.
    fn shaken(records: u64) -> (Sealing, Opening, Connection) {
        let (agreed, client, server) = handshake(records);
        let ExtractedSecrets { tx, rx } = client.dangerous_extract_secrets().unwrap();
        let sealing = Sealing::new(tx, &agreed.secret(true), records).unwrap();
        let opening = Opening::new(rx, &agreed.secret(false), sealing.asked()).unwrap();
        (sealing, opening, server)
    }

    fn said(by: &mut Connection) -> Vec<u8> {
        let mut bytes = Vec::new();
        while by.wants_write() {
            by.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    fn feed(to: &mut Connection, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            to.read_tls(&mut bytes).unwrap();
            to.process_new_packets().unwrap();
        }
    }

    /// The payload of records.
    fn opened(opening: &mut Opening, mut bytes: &mut [u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        while let Some(&head) = bytes.first_chunk() {
            let (record, rest) = bytes.split_at_mut(RECORD_HEAD_BYTES + Opening::follows(head).unwrap());
            let len = opening.open(record).unwrap();
            plain.extend_from_slice(&record[RECORD_HEAD_BYTES..][..len]);
            bytes = rest;
        }
        plain
    }

    #[test]
    fn rustls_goes_on_with_the_keys_that_are_made_here_and_the_other_way_round() {
        let (mut sealing, mut opening, mut far) = shaken(3);
        let mut updates = Vec::new();
        for round in 0..20_u8 {
            let mut out = Vec::new();
            sealing.renew_if_due(&mut out).unwrap();
            sealing.copy(&[&[round; 9]], &mut out).unwrap();
            if out.len() > 9 + RECORD_EXTRA_BYTES {
                updates.push(round);
            }
            feed(&mut far, &out);
            let mut came = [0; 9];
            far.reader().read_exact(&mut came).unwrap();
            assert_eq!(came, [round; 9]);
            if round % 4 == 0 {
                // Requests an update of this side too.
                far.refresh_traffic_keys().unwrap();
            }
            far.writer().write_all(&[round; 7]).unwrap();
            assert_eq!(opened(&mut opening, &mut said(&mut far)), [round; 7]);
        }
        assert_eq!(updates, [1, 4, 5, 8, 9, 12, 13, 16, 17], "when asked, and after three records");
    }

    #[test]
    fn exported_keys_are_those_that_rustls_exports() {
        let (agreed, _, server) = handshake(3);
        let exporter = Exporter::new(&agreed.exporter_secret()).unwrap();
        for (label, context) in [("EXPORTER-a", &b"one"[..]), ("EXPORTER-a", b""), ("b", &[7; 1000])] {
            let theirs = server.export_keying_material([0; 32], label.as_bytes(), Some(context)).unwrap();
            assert_eq!(exporter.key(label, context), theirs, "{label}");
        }
        assert!(Exporter::new(&Agreed::default().exporter_secret()).is_none());
    }

    #[test]
    fn a_secret_of_another_handshake_is_refused() {
        let (first, other) = ([1; 48], [2; 48]);
        assert!(Traffic::new(&first_of(&first), &first).is_some());
        assert!(Traffic::new(&first_of(&first), &other).is_none());
        assert!(Traffic::new(&first_of(&first), &first[..32]).is_none(), "none was told");
    }

    /// A link over TCP whose sides update keys every few records, while both send.
    #[test]
    fn a_link_goes_on_through_many_keys_while_both_sides_send() {
        const BLOCK: usize = 100_000;
        const BLOCKS: u64 = 300;
        let [near, far] = credentials(16);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted =
            std::thread::spawn(move || far.accept(listener.accept().unwrap().0, Terms::default()).unwrap());
        let near = near.connect("far", address, Terms::default()).unwrap();
        let far = accepted.join().unwrap();
        let (out, inc) = near.open(b"both ways").unwrap();
        let (_, back, there) = far.accept().unwrap().unwrap();
        let (tell, came) = std::sync::mpsc::channel();
        for (mut out, inc) in [(out, inc), (back, there)] {
            let tell = tell.clone();
            std::thread::spawn(move || {
                for i in 0..BLOCKS {
                    out.send(0, &mut vec![i as u8; BLOCK]).unwrap();
                }
                out.end(b"").unwrap();
            });
            std::thread::spawn(move || {
                let pool = Pool::new(1 << 20, 8).unwrap();
                let mut inc = inc.takes(&pool, 8);
                let mut bytes = 0;
                let mut sum = 0_u64;
                while let Some(block) = inc.next().unwrap() {
                    bytes += block.len();
                    sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                }
                tell.send((bytes, sum)).unwrap();
            });
        }
        let sum = (0..BLOCKS).map(|i| u64::from(i as u8) * BLOCK as u64).sum();
        for _ in 0..2 {
            let told = came.recv_timeout(Duration::from_secs(30)).expect("both sides go on");
            assert_eq!(told, (BLOCKS as usize * BLOCK, sum));
        }
        assert!(near.bytes().0 > 16 * 16_384 * 100, "a hundred keys and more, {:?}", near.bytes());
    }
}
