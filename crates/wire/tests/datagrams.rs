//! Datagrams encrypted with a key that two peers export from their link: each can decrypt the other's, but not those of
//! a third peer of the cluster, or damaged ones.
#![allow(clippy::disallowed_methods)] // Tests open sockets themselves.

mod support;

use std::net::UdpSocket;
use std::time::Duration;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use support::City;
use thalweg_wire::{Link, Terms, pair};

const LABEL: &str = "EXPORTER-thalweg-datagrams";
const NONCE_BYTES: usize = 12;

/// An end that encrypts what it sends and decrypts what it receives. A datagram begins with its number, which is the
/// nonce; each direction has its own key.
struct Datagrams {
    socket: UdpSocket,
    seals: LessSafeKey,
    opens: LessSafeKey,
    next: u64,
}

impl Datagrams {
    fn new(link: &Link, [sends, receives]: [&[u8]; 2]) -> Datagrams {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let key = |context| {
            let key = link.export_key(LABEL, context).expect("the link has a TLS session");
            LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap())
        };
        Datagrams { socket, seals: key(sends), opens: key(receives), next: 0 }
    }

    fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        let mut sealed = bytes.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.seals.seal_in_place_append_tag(unique, Aad::empty(), &mut sealed).unwrap();
        [&nonce[..], &sealed].concat()
    }

    fn send(&self, to: &Datagrams, datagram: &[u8]) {
        self.socket.send_to(datagram, to.socket.local_addr().unwrap()).unwrap();
    }

    /// The next datagram, if it can be decrypted.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 2048];
        let (len, _) = self.socket.recv_from(&mut bytes).unwrap();
        let (nonce, sealed) = bytes[..len].split_at_mut_checked(NONCE_BYTES)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).unwrap();
        self.opens.open_in_place(nonce, Aad::empty(), sealed).ok().map(|plain| plain.to_vec())
    }
}

#[test]
fn datagrams_of_a_peer_open_and_those_of_a_third_one_do_not() {
    let city = City::new();
    let (near, far) = city.link(Terms::default());
    let (third, _its_far) = city.link(Terms::default());
    let ends: [&[u8]; 2] = [b"from n1", b"from n2"];
    let others = [ends[1], ends[0]];
    let mut near = Datagrams::new(&near, ends);
    let mut far = Datagrams::new(&far, others);
    let mut third = Datagrams::new(&third, ends);
    for text in [&b"strip 7"[..], b"", &[9; 1400]] {
        let there = near.seal(text);
        near.send(&far, &there);
        assert_eq!(far.receive().as_deref(), Some(text));
        let back = far.seal(text);
        far.send(&near, &back);
        assert_eq!(near.receive().as_deref(), Some(text));
        let strange = third.seal(text);
        third.send(&far, &strange);
        assert_eq!(far.receive(), None, "it has a link with the same host, and another key");
        near.send(&near, &there);
        assert_eq!(near.receive(), None, "what was sent does not open where it came from");
        let mut changed = there;
        changed[NONCE_BYTES] ^= 1;
        near.send(&far, &changed);
        assert_eq!(far.receive(), None);
    }
}

#[test]
fn a_key_is_that_of_its_link_label_and_context() {
    let city = City::new();
    let links = [city.link(Terms::default()), city.link(Terms::default())];
    let uses = [(LABEL, &b"a"[..]), (LABEL, b"b"), (LABEL, b""), ("EXPORTER-thalweg-other", b"a")];
    let mut keys = Vec::new();
    for (near, far) in &links {
        for (label, context) in uses {
            let key = near.export_key(label, context).unwrap();
            assert_eq!(far.export_key(label, context), Some(key));
            keys.push(key);
        }
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), links.len() * uses.len());
    let (near, _far) = pair(Terms::default()).unwrap();
    assert_eq!(near.export_key(LABEL, b"a"), None, "there is no session in memory");
}
