//! A small cluster with an authority, and sockets between its hosts that can be looked at and cut.
#![allow(dead_code, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_api::{ClusterFile, Links, to_json};
use thalweg_wire::{
    AUTHORITY_FILE, Authority, CERTIFICATE_DAYS, CERTIFICATE_FILE, CLUSTER_FILE, Hands, Id, Identity,
    KEY_FILE, Link, LinkError, Named, Patience, Role, Terms, new_id,
};

/// A cluster of whatever hosts are asked for.
pub(crate) struct City {
    cluster: Id,
    authority: Authority,
    place: PathBuf,
    made: AtomicUsize,
    /// The host that accepts.
    pub(crate) second: Hands,
}

/// Waits so long for a peer.
pub(crate) fn patience(dead_ms: u64) -> Patience {
    Patience { ping_ms: dead_ms / 4, dead_ms }
}

impl City {
    pub(crate) fn new() -> City {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("wire-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let cluster = new_id();
        let authority = Authority::new(cluster).unwrap();
        let made = AtomicUsize::new(0);
        let second = hands(&authority, cluster, &place.join("second"), "n2", CERTIFICATE_DAYS);
        City { cluster, authority, place, made, second }
    }

    fn directory(&self) -> PathBuf {
        self.place.join(self.made.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// A host of the city.
    pub(crate) fn hands(&self, name: &str) -> Hands {
        hands(&self.authority, self.cluster, &self.directory(), name, CERTIFICATE_DAYS)
    }

    pub(crate) fn expired_hands(&self) -> Hands {
        hands(&self.authority, self.cluster, &self.directory(), "n1", -1)
    }

    pub(crate) fn dropped_hands(&self) -> Hands {
        let hands = self.hands("n1");
        self.second.identity().dropped.add([hands.identity().node]);
        hands
    }

    /// Host n2 accepts one connection.
    pub(crate) fn accept_one(&self) -> (SocketAddr, JoinHandle<Result<Link, LinkError>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hands = self.second.clone();
        (address, std::thread::spawn(move || hands.accept(listener.accept().unwrap().0, Terms::default())))
    }

    fn connect(&self, terms: Terms, through: impl FnOnce(SocketAddr) -> SocketAddr) -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = through(listener.local_addr().unwrap());
        let hands = self.second.clone();
        let accepted = std::thread::spawn(move || hands.accept(listener.accept().unwrap().0, terms).unwrap());
        let near = self.hands("n1").connect("n2", address, terms).unwrap();
        // Named as the other side sees them.
        (accepted.join().unwrap(), near)
    }

    /// A link from n1 to n2, as n2 and as n1 see it.
    pub(crate) fn link(&self, terms: Terms) -> (Link, Link) {
        self.connect(terms, |address| address)
    }

    /// The same, with all that went from n1 to n2 and back.
    pub(crate) fn tapped_link(&self, terms: Terms) -> (Arc<Mutex<Vec<u8>>>, (Link, Link)) {
        let (tap, links) = self.cuttable_link(terms);
        (tap.seen, links)
    }

    /// The same, through something that can be cut.
    pub(crate) fn cuttable_link(&self, terms: Terms) -> (Tap, (Link, Link)) {
        let mut tap = None;
        let links = self.connect(terms, |address| {
            let (made, through) = Tap::new(address);
            tap = Some(made);
            through
        });
        (tap.unwrap(), links)
    }
}

impl Drop for City {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn hands(authority: &Authority, cluster: Id, directory: &std::path::Path, name: &str, days: i64) -> Hands {
    let named = Named { host: name.into(), node: new_id(), cluster, role: Role::Node };
    let issued = authority.issue(&named, days).unwrap();
    let file = ClusterFile {
        format: 1,
        name: "city".into(),
        id: cluster.to_string(),
        epoch: 1,
        links: Links::Sealed,
        hosts: Vec::new(),
        dropped: Vec::new(),
    };
    thalweg_io::small::make_directory(directory).unwrap();
    let write =
        |file: &str, text: &str| thalweg_io::small::write(&directory.join(file), text.as_bytes()).unwrap();
    write(CLUSTER_FILE, &to_json(&file));
    write(AUTHORITY_FILE, &authority.kept().certificate);
    write(CERTIFICATE_FILE, &issued.certificate);
    write(KEY_FILE, &issued.key);
    let (identity, read) = Identity::load(directory).unwrap();
    assert_eq!((&identity.name[..], read), (name, file));
    Hands::of(identity).unwrap()
}

/// Something in the middle that sees all bytes.
pub(crate) struct Tap {
    pub(crate) seen: Arc<Mutex<Vec<u8>>>,
    /// Milliseconds before each piece of at most 64 KiB goes on.
    pub(crate) slow_ms: Arc<AtomicU64>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Tap {
    fn new(to: SocketAddr) -> (Tap, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tap = Tap { seen: Arc::default(), slow_ms: Arc::default(), sockets: Arc::default() };
        let (seen, slow_ms, sockets) = (tap.seen.clone(), tap.slow_ms.clone(), tap.sockets.clone());
        std::thread::spawn(move || {
            let near = listener.accept().unwrap().0;
            let far = TcpStream::connect(to).unwrap();
            for (mut from, mut to) in
                [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())]
                    .map(|(from, to)| (from.unwrap(), to.unwrap()))
            {
                let (seen, slow_ms) = (seen.clone(), slow_ms.clone());
                std::thread::spawn(move || {
                    let mut bytes = [0; 65536];
                    while let Ok(n @ 1..) = from.read(&mut bytes) {
                        std::thread::sleep(Duration::from_millis(slow_ms.load(Ordering::Relaxed)));
                        seen.lock().unwrap().extend_from_slice(&bytes[..n]);
                        if to.write_all(&bytes[..n]).is_err() {
                            break;
                        }
                    }
                });
            }
            sockets.lock().unwrap().extend([near, far]);
        });
        (tap, address)
    }

    /// Cuts both directions.
    pub(crate) fn cut(&self) {
        for socket in self.sockets.lock().unwrap().iter() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
