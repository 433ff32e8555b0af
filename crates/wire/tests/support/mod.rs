//! A small cluster with an authority, and sockets between its hosts that can be observed and cut.
#![allow(dead_code, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_api::{ClusterFile, ClusterHost, DroppedHost, Links};
use thalweg_wire::{
    AUTHORITY_FILE, Authority, CERTIFICATE_DAYS, CERTIFICATE_FILE, CLUSTER_FILE, Credentials, Id, Identity,
    KEY_FILE, Link, LinkError, Named, Role, Terms, Timeouts, key_of, new_id, sign,
};

/// A cluster of the hosts that a test needs.
pub(crate) struct City {
    cluster: Id,
    authority: Authority,
    place: PathBuf,
    made: AtomicUsize,
    /// The members.
    pub(crate) file: Mutex<ClusterFile>,
    /// The host that accepts.
    pub(crate) second: Credentials,
}

/// The timeouts towards a peer.
pub(crate) fn patience(dead_ms: u64) -> Timeouts {
    Timeouts { ping_ms: dead_ms / 4, dead_ms }
}

impl City {
    pub(crate) fn new() -> City {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("wire-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let cluster = new_id();
        let authority = Authority::new(cluster).unwrap();
        let made = AtomicUsize::new(0);
        let mut file = ClusterFile {
            format: 2,
            name: "city".into(),
            id: cluster.to_string(),
            epoch: 1,
            links: Links::Sealed,
            hosts: Vec::new(),
            clients: Vec::new(),
            dead_ms: None,
            dropped: Vec::new(),
        };
        let second = credentials(&authority, &mut file, &place.join("second"), "n2", CERTIFICATE_DAYS);
        City { cluster, authority, place, made, file: Mutex::new(file), second }
    }

    fn directory(&self) -> PathBuf {
        self.place.join(self.made.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// A host of the cluster.
    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        self.credentials_for(name, CERTIFICATE_DAYS)
    }

    pub(crate) fn expired_credentials(&self) -> Credentials {
        self.credentials_for("n1", -1)
    }

    fn credentials_for(&self, name: &str, days: i64) -> Credentials {
        let mut file = self.file.lock().unwrap();
        file.epoch += 1;
        let credentials = credentials(&self.authority, &mut file, &self.directory(), name, days);
        self.second.identity().members.set(&file);
        credentials
    }

    /// The credentials of a host that the authority has signed and the cluster file does not list.
    pub(crate) fn unlisted_credentials(&self) -> Credentials {
        let credentials = self.credentials("n1");
        let mut file = self.file.lock().unwrap();
        file.hosts.pop();
        file.epoch += 1;
        self.second.identity().members.set(&file);
        credentials
    }

    /// The owner's next cluster file, signed by this cluster's authority.
    pub(crate) fn signed(&self, change: impl FnOnce(&mut ClusterFile)) -> (ClusterFile, String) {
        let mut file = self.file.lock().unwrap().clone();
        change(&mut file);
        let text = sign(&file, &self.authority).unwrap();
        (file, text)
    }

    /// The authority's certificate.
    pub(crate) fn authority(&self) -> String {
        self.authority.kept().certificate
    }

    pub(crate) fn dropped_credentials(&self) -> Credentials {
        let credentials = self.credentials("n1");
        self.drop_last();
        credentials
    }

    /// Drops the member that was added last.
    pub(crate) fn drop_last(&self) {
        let mut file = self.file.lock().unwrap();
        let gone = file.hosts.pop().unwrap();
        file.epoch += 1;
        let epoch = file.epoch;
        file.dropped.push(DroppedHost { name: gone.name, id: gone.id, epoch });
        self.second.identity().members.set(&file);
    }

    /// Host n2 accepts one connection.
    pub(crate) fn accept_one(&self) -> (SocketAddr, JoinHandle<Result<Link, LinkError>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let credentials = self.second.clone();
        (
            address,
            std::thread::spawn(move || credentials.accept(listener.accept().unwrap().0, Terms::default())),
        )
    }

    fn connect(&self, terms: Terms, through: impl FnOnce(SocketAddr) -> SocketAddr) -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = through(listener.local_addr().unwrap());
        let credentials = self.second.clone();
        let accepted =
            std::thread::spawn(move || credentials.accept(listener.accept().unwrap().0, terms).unwrap());
        let near = self.credentials("n1").connect("n2", address, terms).unwrap();
        // Named as the other side sees them.
        (accepted.join().unwrap(), near)
    }

    /// A link from n1 to n2, as n2 and as n1 see it.
    pub(crate) fn link(&self, terms: Terms) -> (Link, Link) {
        self.connect(terms, |address| address)
    }

    /// The same, with all bytes between them.
    pub(crate) fn tapped_link(&self, terms: Terms) -> (Arc<Mutex<Vec<u8>>>, (Link, Link)) {
        let (tap, links) = self.cuttable_link(terms);
        (tap.seen, links)
    }

    /// The same, through a connection that can be cut.
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

fn credentials(
    authority: &Authority,
    file: &mut ClusterFile,
    directory: &std::path::Path,
    name: &str,
    days: i64,
) -> Credentials {
    let cluster: Id = file.id.parse().unwrap();
    let named = Named { host: name.into(), node: new_id(), cluster, role: Role::Node };
    let issued = authority.issue(&named, days).unwrap();
    file.hosts.push(ClusterHost {
        name: name.into(),
        address: "here".into(),
        id: named.node.to_string(),
        key: key_of(&issued.certificate).unwrap(),
        roles: Vec::new(),
        data: Vec::new(),
        memory_bytes: None,
        resp: None,
    });
    thalweg_io::small::make_directory(directory).unwrap();
    let write =
        |file: &str, text: &str| thalweg_io::small::write(&directory.join(file), text.as_bytes()).unwrap();
    write(CLUSTER_FILE, &sign(file, authority).unwrap());
    write(AUTHORITY_FILE, &authority.kept().certificate);
    write(CERTIFICATE_FILE, &issued.certificate);
    write(KEY_FILE, &issued.key);
    let (identity, read) = Identity::load(directory).unwrap();
    assert_eq!((&identity.name[..], &read), (name, &*file));
    Credentials::of(identity).unwrap()
}

/// A proxy that sees all bytes.
pub(crate) struct Tap {
    pub(crate) seen: Arc<Mutex<Vec<u8>>>,
    /// Milliseconds before each piece of at most 64 KiB is forwarded.
    pub(crate) slow_ms: Arc<AtomicU64>,
    /// Whether a bit of each piece is changed.
    pub(crate) flip: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Tap {
    fn new(to: SocketAddr) -> (Tap, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tap = Tap::of_nothing();
        let (seen, slow_ms, sockets) = (tap.seen.clone(), tap.slow_ms.clone(), tap.sockets.clone());
        let flip = tap.flip.clone();
        std::thread::spawn(move || {
            let near = listener.accept().unwrap().0;
            let far = TcpStream::connect(to).unwrap();
            for (mut from, mut to) in
                [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())]
                    .map(|(from, to)| (from.unwrap(), to.unwrap()))
            {
                let (seen, slow_ms, flip) = (seen.clone(), slow_ms.clone(), flip.clone());
                std::thread::spawn(move || {
                    let mut bytes = [0; 65536];
                    while let Ok(n @ 1..) = from.read(&mut bytes) {
                        std::thread::sleep(Duration::from_millis(slow_ms.load(Ordering::Relaxed)));
                        seen.lock().unwrap().extend_from_slice(&bytes[..n]);
                        bytes[n - 1] ^= u8::from(flip.load(Ordering::Relaxed));
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

    fn of_nothing() -> Tap {
        Tap { seen: Arc::default(), slow_ms: Arc::default(), flip: Arc::default(), sockets: Arc::default() }
    }

    /// Sends bytes to the side that accepted, as if they came from the other.
    pub(crate) fn inject(&self, bytes: &[u8]) {
        self.sockets.lock().unwrap()[1].write_all(bytes).unwrap();
    }

    /// Cuts both directions.
    pub(crate) fn cut(&self) {
        for socket in self.sockets.lock().unwrap().iter() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
