//! Forwarded writes: three nodes in this process, each with a store, and a client on TCP links.
#![allow(clippy::disallowed_methods)] // The test listens itself, and looks at files from outside.

use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Condvar;

use thalweg_base::clock::Stopwatch;
use thalweg_wire::{Client, Id, Terms, cluster};

use super::*;
use crate::callers::Turns;
use crate::cluster::{OfCluster, create_on_nodes, open_by};
use crate::message::{Head, VERSION, send};
use crate::registry::Registry;
use crate::remote::Links;
use crate::store::Strip;
use crate::{File, Volume};

const STRIPE_BYTES: u64 = 1 << 20;
/// The longest pause of writes that issue 21 allows.
const WRITES_CONTINUE_NS: u64 = 8_000_000_000;

/// Stops what goes through it, so that the other side seems to be frozen.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn set(&self, is_closed: bool) {
        *self.0.lock().unwrap() = is_closed;
        self.1.notify_all();
    }

    /// A listener whose connections lead to this one, through the gate.
    fn before(self: &Arc<Gate>, inner: &TcpListener) -> TcpListener {
        let (outer, to) = (TcpListener::bind("127.0.0.1:0").unwrap(), inner.local_addr().unwrap());
        let (listener, gate) = (outer.try_clone().unwrap(), Arc::clone(self));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, node) = (client.unwrap(), TcpStream::connect(to).unwrap());
                for (from, to) in [(&client, &node), (&node, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let gate = Arc::clone(&gate);
                    std::thread::spawn(move || gate.relay(from, to));
                }
            }
        });
        outer
    }

    fn relay(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            drop(self.1.wait_while(self.0.lock().unwrap(), |is_closed| *is_closed).unwrap());
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// Nodes n1 to n3 with a volume `films` of two copies, and a client that has it open.
struct Bed {
    dir: PathBuf,
    gates: [Arc<Gate>; 3],
    services: Vec<Arc<VolumeService>>,
    dial: Arc<dyn Dial>,
    volume: Arc<Volume>,
    stores: Vec<Location>,
    number: u128,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let dir = std::env::temp_dir().join(format!("thalweg-forward-{name}-{}", std::process::id()));
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let gates = [(); 3].map(|()| Arc::new(Gate::default()));
        let outer = gates.iter().zip(&listeners).map(|(gate, inner)| gate.before(inner));
        let hosts = (1..).zip(outer).map(|(i, outer)| format!("n{i}={}", outer.local_addr().unwrap()));
        cluster::init(&dir, "river", &hosts.collect::<Vec<_>>(), None).unwrap();
        let services = (1..).zip(listeners).map(|(i, listener)| {
            let identity = cluster::host_directory(&dir, &format!("n{i}"));
            let host = Arc::new(Host::load(Some(&identity), Terms::default()).unwrap());
            let service = Arc::new(VolumeService::new(&host));
            host.offer(vec![Arc::clone(&service) as Arc<dyn Service>]);
            std::thread::spawn(move || {
                for socket in listener.incoming() {
                    let link = host.credentials().unwrap().accept(socket.unwrap(), host.terms()).unwrap();
                    let host = Arc::clone(&host);
                    std::thread::spawn(move || host.serve(&Arc::new(link)));
                }
            });
            service
        });
        let services = services.collect();
        let place = |i| {
            let directory = dir.join(format!("d{i}"));
            std::fs::create_dir(&directory).unwrap();
            Location { node: format!("n{i}"), directory }
        };
        let places: Vec<Location> = (1..=3).map(place).collect();
        let registry = Registry::at(dir.join("volumes.json"));
        let policy = Policy { copies: 2, stripe_bytes: STRIPE_BYTES, ..Policy::default() };
        let of = OfCluster { identity: &dir, name: None, clients: &[] };
        create_on_nodes(&registry, of, "films", (&places, None), &policy).unwrap();
        let mut entry = registry.find("films").unwrap();
        let volume_number = number(&entry.cluster.as_ref().unwrap().volume).unwrap();
        let dial: Arc<dyn Dial> = Arc::new(Links::new(Client::load(&dir).unwrap()));
        let volume = open_by(&dial, &mut entry, (None, false), &Watch::default()).unwrap();
        let stores = entry.stores.iter().map(|place| Location::needed(place).unwrap()).collect();
        Bed { dir, gates, services, dial, volume, stores, number: volume_number }
    }

    /// A file, with the client connected to every store.
    fn file(&self) -> File {
        let file = self.volume.create(Path::new("/f"), 0o644, false).unwrap();
        file.write_at(0, &vec![1; 3 * STRIPE_BYTES as usize]).unwrap();
        file
    }

    fn sent_bytes(&self) -> u64 {
        ["n1", "n2", "n3"].iter().map(|node| self.dial.link(node).unwrap().bytes().0).sum()
    }

    /// A store that its node has open.
    fn store(&self, slot: u32) -> KeptStore {
        let place = &self.stores[slot as usize];
        let node = place.node[1..].parse::<usize>().unwrap() - 1;
        self.services[node].store(&place.directory, self.number, slot, None).unwrap()
    }

    /// Whether both copies of a strip are current, and have these bytes.
    fn both_have(&self, file: &File, strip: u32, bytes: &[u8]) -> bool {
        let inode = file.stat().unwrap();
        (0..2).all(|copy| {
            let store = self.store(file.layout().slot(strip, copy));
            let strip_of = Strip { inode: inode.id, index: strip, copy };
            let mut found = vec![0; bytes.len()];
            let generation = store.store.facts(strip_of).unwrap().unwrap().generation;
            store.store.read(strip_of, generation, 0, &mut found).unwrap();
            inode.stale[copy as usize] == 0 && found == bytes
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_write_of_two_copies_leaves_the_client_once() {
    let bed = Bed::new("once");
    let file = bed.file();
    let (bytes, before) = (vec![7; 3 * STRIPE_BYTES as usize], bed.sent_bytes());
    file.write_at(0, &bytes).unwrap();
    file.sync().unwrap();
    let sent = bed.sent_bytes() - before;
    assert!(sent < 3 * STRIPE_BYTES + STRIPE_BYTES / 8, "{sent} bytes were sent");
    for strip in 0..3 {
        assert!(bed.both_have(&file, strip, &bytes[..STRIPE_BYTES as usize]), "strip {strip}");
    }
}

/// A store might carry out a write that was given up later, on one copy alone and over a newer write.
#[test]
fn a_forwarded_write_that_comes_late_is_refused() {
    let bed = Bed::new("late");
    let file = bed.file();
    let mirror = bed.store(file.layout().slot(0, 1));
    let held = mirror.peers.held();
    let watch = Stopwatch::start();
    file.write_at(0, &[2; 5000]).unwrap();
    assert!(watch.ns() < WRITES_CONTINUE_NS, "{} ns", watch.ns());
    file.write_at(0, &[3; 5000]).unwrap();
    file.sync().unwrap();
    assert!(bed.both_have(&file, 0, &[3; 5000]));
    let (sessions, watch) = (Arc::strong_count(&mirror.peers), Stopwatch::start());
    drop(held);
    // The stream with the late write was given up, so its session ends when the write is carried out or refused.
    while Arc::strong_count(&mirror.peers) >= sessions {
        assert!(watch.ns() < WRITES_CONTINUE_NS, "the session does not end");
        std::thread::yield_now();
    }
    assert!(bed.both_have(&file, 0, &[3; 5000]), "the late write is over the newer one");
}

#[test]
fn a_store_that_cannot_reach_the_mirror_leaves_it_to_the_client() {
    let bed = Bed::new("apart");
    let file = bed.file();
    // The mirror refuses its forwarded writes.
    bed.store(file.layout().slot(0, 1)).peers.held().clear();
    let watch = Stopwatch::start();
    file.write_at(0, &[2; 5000]).unwrap();
    assert!(watch.ns() < WRITES_CONTINUE_NS, "{} ns", watch.ns());
    assert!(bed.both_have(&file, 0, &[2; 5000]));
}

/// A write waited for a silent mirror, and the sync after it for another link with that node: 10.2 s together.
#[test]
fn a_sync_does_not_wait_for_a_silent_store_again() {
    let bed = Bed::new("silent");
    let file = bed.file();
    // The third node, which has no manager, has the second copy of this strip, and other strips that are not synced.
    let strip = (0..3).find(|strip| file.layout().slot(*strip, 1) == 2).unwrap();
    bed.gates[2].set(true);
    let watch = Stopwatch::start();
    file.write_at(u64::from(strip) * STRIPE_BYTES, &[2; 5000]).unwrap();
    file.sync().unwrap();
    assert!(watch.ns() < WRITES_CONTINUE_NS, "{} ns", watch.ns());
    bed.gates[2].set(false);
}

#[test]
fn only_the_nodes_that_a_client_named_may_forward() {
    let bed = Bed::new("forged");
    let file = bed.file();
    let slot = file.layout().slot(0, 1);
    let place = &bed.stores[slot as usize];
    let strip = Strip { inode: file.inode(), index: 0, copy: 1 };
    let generation = file.stat().unwrap().generation;
    let write = Write { strip, generation, layout: file.layout(), at: 0, may_create: false };
    let forward = |dial: &dyn Dial, request: StoreRequest| {
        let (directory, volume) =
            (place.directory.display().to_string(), thalweg_wire::Id(bed.number).to_string());
        let asked = VolumeRequest::Forward { directory, volume, slot };
        let (connection, _) = dial.connect("a mirror", &place.node, &asked, Turns::new().next()).unwrap();
        let answer = connection.ask(&Ask::Store(slot, request), &[9; 100], &mut []);
        answer.map(drop).map_err(|why| format!("{why:?}"))
    };
    let node = bed.services.iter().find(|service| service.host.name() != place.node).unwrap();
    let forged = forward(&*bed.dial, StoreRequest::Write(write)).unwrap_err();
    assert!(forged.contains("may only look"), "{forged}");
    let other = forward(&node.host, StoreRequest::Remove { strip, below: u64::MAX }).unwrap_err();
    assert!(other.contains("for writes"), "{other}");
    forward(&node.host, StoreRequest::Write(write)).unwrap();
    bed.store(slot).peers.held().clear();
    let unnamed = forward(&node.host, StoreRequest::Write(write)).unwrap_err();
    assert!(unnamed.contains("no client said that"), "{unnamed}");
}

#[test]
fn requests_that_arrive_together_are_all_answered() {
    let bed = Bed::new("together");
    let Location { node, directory } = &bed.stores[0];
    let request = VolumeRequest::Store {
        directory: directory.display().to_string(),
        volume: Id(bed.number).to_string(),
        slot: 0,
        peers: Vec::new(),
    };
    let link = bed.dial.link(node).unwrap();
    let streams = link.open(request.text().as_bytes()).unwrap();
    let Ends { mut from, mut to, .. } = stream::ends(&link, streams).unwrap();
    let mut together = Vec::new();
    send(&mut to, 1, &Ask::Attach(VERSION, Turns::new().next()), &[]).unwrap();
    (2..=4).for_each(|n| send(&mut together, n, &Ask::Store(0, StoreRequest::Space), &[]).unwrap());
    to.write_all(&together).unwrap();
    let mut numbers = [(); 4].map(|()| Head::read(&mut from).unwrap().unwrap().number);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4]);
}
