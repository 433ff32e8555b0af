//! Several copies of a manager, of which the stores accept one.
#![allow(clippy::disallowed_methods)] // The managers' databases are on a real disk.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use thalweg_api::{VolumeEntry, VolumeList, to_json};
use thalweg_base::rng::{Rng, seeds};
use thalweg_io::sim::{Faults, Sim};

use super::*;
use crate::connected::{Connected, Connection};
use crate::layout::Policy;
use crate::registry::Registry;
use crate::{LocalStore, SqliteManager};

const STORES: usize = 3;
const COPIES: usize = 3;
const VOLUME: u128 = 7;

fn slot_dir() -> &'static Path {
    Path::new("/s")
}

/// A store on its host.
struct Host {
    slot: u32,
    state: Mutex<(Sim, Arc<LocalStore>, Arc<Connected>)>,
}

impl Host {
    fn new(seed: u64, slot: u32) -> Arc<Host> {
        let sim = Sim::new(seed * 31 + u64::from(slot));
        sim.make_dir(slot_dir());
        LocalStore::create(&sim.io(), slot_dir(), VOLUME, slot).unwrap();
        let store = Arc::new(LocalStore::open(&sim.io(), slot_dir(), VOLUME, slot).unwrap());
        Arc::new(Host { slot, state: Mutex::new((sim, store, Arc::default())) })
    }

    fn store(&self) -> Arc<LocalStore> {
        Arc::clone(&self.state.lock().unwrap().1)
    }

    /// Ends it without power, and starts it again.
    fn restart(&self) {
        let mut state = self.state.lock().unwrap();
        state.0.power_loss();
        let sim = state.0.restart();
        let store = LocalStore::open(&sim.io(), slot_dir(), VOLUME, self.slot).unwrap();
        *state = (sim, Arc::new(store), Arc::default());
    }
}

/// A manager's way to a store. A claim, or its answer, may be lost; or the store loses power while it answers.
struct Wire {
    host: Arc<Host>,
    /// Without it, nothing is lost.
    rng: Option<Arc<Mutex<Rng>>>,
    connection: Mutex<Option<(Arc<LocalStore>, Arc<Connection>)>>,
}

impl Wire {
    fn connection(&self) -> Arc<Connection> {
        let state = self.host.state.lock().unwrap();
        let mut connection = self.connection.lock().unwrap();
        match &*connection {
            Some((store, connection)) if Arc::ptr_eq(store, &state.1) => Arc::clone(connection),
            _ => {
                let made = Arc::new(Connection::new(&state.1, &state.2));
                *connection = Some((Arc::clone(&state.1), Arc::clone(&made)));
                made
            }
        }
    }
}

impl Keeper for Wire {
    fn held(&self, place: &str) -> Result<Held> {
        self.connection().held(place)
    }

    fn claim(&self, before: Incarnation, next: &Holder) -> Result<Holder> {
        let (fate, boundary) = self.rng.as_ref().map_or((9, 0), |rng| {
            let mut rng = rng.lock().unwrap();
            (rng.below(6), rng.below(4))
        });
        let lost = || Err(Error::Refused("a message is lost".into()));
        match fate {
            0 => return lost(),
            1 => {
                let sim = self.host.state.lock().unwrap().0.clone();
                sim.set_faults(Faults { crash_at: Some(sim.boundaries() + boundary), ..Faults::default() });
                let claimed = self.connection().claim(before, next);
                sim.set_faults(Faults::default());
                self.host.restart();
                return claimed.and_then(|_| lost());
            }
            _ => {}
        }
        let claimed = self.connection().claim(before, next);
        if fate == 2 { lost() } else { claimed }
    }

    fn ask(
        &self,
        by: Option<Incarnation>,
        request: &StoreRequest,
        sent: &[u8],
        into: &mut [u8],
    ) -> Result<StoreAnswer> {
        self.connection().ask(by, request, sent, into)
    }
}

/// A manager's directory, and its process if it runs.
struct Copy {
    dir: PathBuf,
    running: Option<(SqliteManager, Arc<Hold>)>,
}

impl Copy {
    fn start(&mut self, hosts: &[Arc<Host>], rng: Option<&Arc<Mutex<Rng>>>) {
        let manager = SqliteManager::open(&self.dir).unwrap();
        let wire = |host: &Arc<Host>| {
            let (host, rng) = (Arc::clone(host), rng.cloned());
            Ok(Arc::new(Wire { host, rng, connection: Mutex::default() }) as Arc<dyn Keeper>)
        };
        let place = self.dir.to_str().unwrap();
        let slots = hosts.iter().map(wire).collect();
        let (hold, _) = Hold::new(("v", place), Box::new(manager.ledger()), slots, false).unwrap();
        self.running = Some((manager, hold));
    }

    /// Whether it believes that it may change the volume, and a majority of stores agrees.
    fn has_majority(&self, hosts: &[Arc<Host>]) -> Option<Incarnation> {
        let mine = self.running.as_ref()?.1.mine().ok()??;
        let agrees = |host: &Arc<Host>| {
            let answer = host.store().ask(Some(mine), &StoreRequest::Space, &[], &mut []).unwrap();
            !matches!(answer, StoreAnswer::Holder(_))
        };
        (hosts.iter().filter(|host| agrees(host)).count() * 2 > hosts.len()).then_some(mine)
    }
}

fn place(name: &str, seed: u64) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let above = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    above.join(format!("thalweg-hold-{name}-{seed}-{}", std::process::id()))
}

/// Stores, and copies of a new manager.
fn copies_of(place: &Path, seed: u64) -> (Vec<Arc<Host>>, Vec<Copy>) {
    let hosts = (0..STORES as u32).map(|slot| Host::new(seed, slot)).collect();
    let copies: Vec<Copy> =
        (0..COPIES).map(|n| Copy { dir: place.join(format!("m{n}")), running: None }).collect();
    copies.iter().for_each(|copy| fs::create_dir_all(&copy.dir).unwrap());
    let slots = vec![PathBuf::from("/s"); STORES];
    SqliteManager::create(&copies[0].dir, VOLUME, &slots, &Policy::default(), (0, 0)).unwrap();
    (1..COPIES).for_each(|to| copy_files(&copies, 0, to));
    (hosts, copies)
}

/// Managers are copied, restored from copies, started, killed and adopted, while claims and their answers are lost and
/// stores lose power.
fn run(seed: u64) -> usize {
    let place = place("copies", seed);
    let (hosts, mut copies) = copies_of(&place, seed);
    let mut rng = Rng::new(seed);
    let fates = Arc::new(Mutex::new(Rng::new(!seed)));
    let (mut accepted, mut successes) = (BTreeSet::new(), 0);
    for _ in 0..60 {
        let n = rng.below(COPIES as u64) as usize;
        match (rng.below(6), copies[n].running.is_some()) {
            (0, true) => copies[n].running = None,
            (1, false) => copy_files(&copies, rng.below(COPIES as u64) as usize, n),
            (2, _) => hosts[rng.below(STORES as u64) as usize].restart(),
            (_, false) => copies[n].start(&hosts, Some(&fates)),
            (what, true) => {
                let hold = &copies[n].running.as_ref().unwrap().1;
                let had = hold.mine().ok().flatten();
                let done = if what == 3 { hold.adopt() } else { hold.claim() };
                let has = hold.mine().ok().flatten();
                successes += usize::from(done.is_ok());
                // No incarnation has the number of another one that changed something.
                if let Some(has) = has.filter(|has| Some(*has) != had) {
                    assert!(accepted.insert(has.number), "seed {seed}: {has:?} twice");
                }
            }
        }
        let holders: Vec<_> = copies.iter().filter_map(|copy| copy.has_majority(&hosts)).collect();
        assert!(holders.len() <= 1, "seed {seed}: {holders:?}");
    }
    drop(copies);
    fs::remove_dir_all(&place).unwrap();
    successes
}

/// Copies the database of one manager to another's directory, unless that one is the same.
fn copy_files(copies: &[Copy], from: usize, to: usize) {
    if from == to {
        return;
    }
    for entry in fs::read_dir(&copies[to].dir).unwrap().map(std::result::Result::unwrap) {
        fs::remove_file(entry.path()).unwrap();
    }
    for entry in fs::read_dir(&copies[from].dir).unwrap().map(std::result::Result::unwrap) {
        let name = entry.file_name();
        if name != "reserve" {
            fs::copy(entry.path(), copies[to].dir.join(name)).unwrap();
        }
    }
}

#[test]
fn of_copies_of_a_manager_never_two_change_a_volume() {
    let successes: usize = seeds(100).map(run).sum();
    assert!(successes > 100, "{successes}");
}

#[test]
fn a_manager_whose_stores_have_accepted_another_one_ends_with_one_line() {
    let place = place("ends", 0);
    let (hosts, mut copies) = copies_of(&place, 0);
    copies.iter_mut().for_each(|copy| copy.start(&hosts, None));
    let hold = |n: usize| &copies[n].running.as_ref().unwrap().1;
    hold(0).claim().unwrap();
    let no = |done: Result<()>, words: &str| {
        let why = done.unwrap_err().to_string();
        assert!(why.contains(words) && why.lines().count() == 1, "{why}");
    };
    no(hold(1).claim(), "know a later history (incarnation 1, of the manager in ");
    no(hold(1).adopt(), "is served by its manager in ");
    // The first one is cut off, and does not know what happens in the meantime.
    hosts.iter().for_each(|host| host.restart());
    hold(1).adopt().unwrap();
    hold(0).stands().unwrap();
    hold(0).tell();
    for done in [hold(0).stands(), hold(0).claim()] {
        no(done, "know a later history (incarnation 1001, of the manager in ");
    }
    no(hold(0).adopt(), "is served by its manager in ");
    hold(1).claim().unwrap();
    // One store that has accepted another manager is not a majority.
    let found = hosts[2].store().held("").unwrap().holder;
    let stray = Holder { incarnation: Incarnation::new(5000).unwrap(), place: "elsewhere".into() };
    hosts[2].store().claim(found.incarnation, &stray).unwrap();
    hold(1).tell();
    hold(1).stands().unwrap();
    hold(1).adopt().unwrap();
    assert_eq!(hosts[2].store().held("").unwrap().holder.incarnation.number, 6000);
    drop(copies);
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn a_store_accepts_one_successor_and_nothing_that_comes_late() {
    let host = Host::new(1, 0);
    let holder = |number| Holder { incarnation: Incarnation::new(number).unwrap(), place: "n1:/m".into() };
    let (none, first, other, second) = (Incarnation::default(), holder(1), holder(1), holder(2));
    let claim = |before, next: &Holder| host.store().claim(before, next).unwrap();
    assert_eq!(claim(none, &first), first);
    assert_eq!(claim(none, &first), first, "its answer was lost");
    assert_eq!(claim(none, &other), first);
    assert_eq!(claim(first.incarnation, &second), second);
    assert_eq!(claim(none, &first), second);
    host.restart();
    assert_eq!(claim(first.incarnation, &other), second);
    let ask =
        |by: &Holder| host.store().ask(Some(by.incarnation), &StoreRequest::List, &[], &mut []).unwrap();
    assert_eq!(ask(&first), StoreAnswer::Holder(second.clone()));
    assert_eq!(ask(&second), StoreAnswer::Strips(Vec::new()));
    // A file that cannot be understood is no manager's.
    let sim = host.state.lock().unwrap().0.clone();
    sim.flip_bit(slot_dir().join("incarnation"), 8);
    host.restart();
    assert_ne!(claim(second.incarnation, &holder(3)).incarnation.number, 3);
}

#[test]
fn two_majorities_have_a_store_in_common() {
    for stores in 1..=5_u32 {
        let set = |bits: u32| (0..stores).map(|n| bits >> n & 1 == 1).collect::<Vec<_>>();
        let majorities: Vec<u32> = (0..1 << stores).filter(|bits| is_majority(&set(*bits), &[])).collect();
        assert!(majorities.contains(&((1 << stores) - 1)));
        assert!(majorities.iter().all(|one| majorities.iter().all(|other| one & other != 0)), "{stores}");
    }
    assert!(is_majority(&[false, true, false], &[1]) && !is_majority(&[true, false, true], &[1]));
    assert!(is_majority(&[true, false], &[]) && !is_majority(&[false, true], &[]));
}

/// What the version before incarnations left of a volume: two files, each in a strip of 17 bytes.
#[test]
fn a_volume_of_an_older_version_is_opened_and_then_known_by_its_stores() {
    let place = place("older", 0);
    let make = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).unwrap();
    let put = |path: PathBuf, bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let meta = place.join("v.thalweg-manager");
    let stores = [0, 1].map(|slot| place.join(format!("d{slot}/v.thalweg-store")));
    make(&meta);
    let database = rusqlite::Connection::open(meta.join("manager.db")).unwrap();
    database.execute_batch(include_str!("older/manager.sql")).unwrap();
    for (slot, dir) in stores.iter().enumerate() {
        make(dir);
        let text = format!("thalweg store 1\nvolume f73d1f63a777d310a002f3207d5d450f\nslot {slot}\n");
        put(dir.join("superblock"), text.as_bytes());
        put(dir.join("run"), b"run 4\n");
        let row = rusqlite::params![dir.to_str().unwrap().as_bytes(), slot as i64];
        database.execute("UPDATE slots SET directory = ? WHERE slot = ?", row).unwrap();
    }
    drop(database);
    put(meta.join("lock"), b"");
    let sums = [(3, include_bytes!("older/hello.sums")), (131_075, include_bytes!("older/second.sums"))];
    for (inode, sums) in sums {
        put(stores[1].join(format!("{inode:016x}-00-0.strip")), b"hello from before");
        put(stores[1].join(format!("{inode:016x}-00-0.sums")), sums);
    }
    let entry = VolumeEntry {
        name: "v".into(),
        cluster: None,
        manager: meta.to_str().unwrap().into(),
        stores: stores.iter().map(|dir| dir.to_str().unwrap().into()).collect(),
        clients: Vec::new(),
    };
    fs::write(place.join("volumes.json"), to_json(&VolumeList { volumes: vec![entry] })).unwrap();
    let registry = Registry::at(place.join("volumes.json"));
    let read = |name: &str| {
        let open = crate::open(&registry, "v").unwrap();
        let mut found = [0; 17];
        assert_eq!(open.volume.open(Path::new(name)).unwrap().read_at(0, &mut found).unwrap(), 17);
        found
    };
    for name in ["hello", "dir/second"] {
        assert_eq!(&read(name), b"hello from before");
        assert!(!stores[0].join("incarnation").exists(), "nothing was changed");
    }
    let open = crate::open(&registry, "v").unwrap();
    let file = open.volume.create(Path::new("new"), 0o644, true).unwrap();
    file.write_at(0, b"hello since then.").unwrap();
    file.sync().unwrap();
    assert!(file.inode() >> 36 == 1, "inode {:x}", file.inode());
    drop((file, open));
    assert_eq!((&read("new"), &read("hello")), (b"hello since then.", b"hello from before"));
    assert!(stores.iter().all(|dir| dir.join("incarnation").exists()));
    assert_eq!(crate::check(&crate::open(&registry, "v").unwrap()).unwrap().problems, [""; 0]);
    fs::remove_dir_all(&place).unwrap();
}
