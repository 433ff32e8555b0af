//! A served volume of three stores on a simulated disk, for unit tests with several clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::sim::Sim;

use crate::client::Client;
use crate::hint::Hint;
use crate::layout::Policy;
use crate::manager::{Change, Entry, Facts, Inode, Manager, Place};
use crate::memory::Memory;
use crate::server::Server;
use crate::session::OwnSession;
use crate::stores::Stores;
use crate::{File, LocalStore, Result, SqliteManager, Store, Volume};

pub(crate) const STORES: u32 = 3;
const VOLUME: u128 = 7;

/// The volume. The directory of its manager is removed at the end.
pub(crate) struct Bed {
    pub(crate) sim: Sim,
    place: PathBuf,
    pub(crate) server: Arc<Server>,
}

impl Bed {
    /// A new volume. `name` is a test's own.
    pub(crate) fn new(name: &str, policy: &Policy) -> Bed {
        Bed::of_stores(name, policy, (None, None))
    }

    /// A new volume whose stores have room for `room` bytes. The store of the slot `away` cannot be reached.
    pub(crate) fn of_stores(name: &str, policy: &Policy, limits: (Option<u64>, Option<u32>)) -> Bed {
        Bed::hooked(name, policy, limits, Box::new(|| ()))
    }

    /// A new volume. `hook` is called before and after each request to its manager.
    pub(crate) fn hooked(
        name: &str,
        policy: &Policy,
        (room, away): (Option<u64>, Option<u32>),
        hook: Hook,
    ) -> Bed {
        let place = std::env::temp_dir().join(format!("thalweg-bed-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let sim = Sim::new(1);
        let dirs: Vec<PathBuf> = (0..STORES).map(|slot| format!("/s{slot}").into()).collect();
        let store = |(slot, dir): (u32, &PathBuf)| {
            sim.make_dir(dir);
            room.iter().for_each(|room| sim.set_capacity(dir, *room));
            LocalStore::create(&sim.io(), dir, VOLUME, slot).unwrap();
            match away == Some(slot) {
                true => Err("it is away".into()),
                false => {
                    Ok(Arc::new(LocalStore::open(&sim.io(), dir, VOLUME, slot).unwrap()) as Arc<dyn Store>)
                }
            }
        };
        let stores = Arc::new(Stores::new((0..).zip(&dirs).map(store).collect()));
        SqliteManager::create(&place, VOLUME, &dirs, policy, (0, 0)).unwrap();
        let manager = Hooked { manager: SqliteManager::open(&place).unwrap(), hook };
        Bed { server: Server::start(Box::new(manager), stores, true, None).unwrap(), sim, place }
    }

    pub(crate) fn client(&self) -> Arc<Volume> {
        self.client_of(Arc::clone(&self.server.stores))
    }

    /// A client that cannot reach the store of a slot.
    pub(crate) fn client_without(&self, slot: u32) -> Arc<Volume> {
        let mut slots: Vec<_> = self.server.stores.slots().to_vec();
        slots[slot as usize] = Err("it is away".into());
        self.client_of(Arc::new(Stores::new(slots)))
    }

    /// A client with a cache.
    pub(crate) fn client_with_cache(&self, cache_bytes: u64) -> Arc<Volume> {
        let volume = self.client();
        assert!(volume.memory.set(Arc::new(Memory::new(cache_bytes, Hint::Normal).unwrap())).is_ok());
        volume
    }

    fn client_of(&self, stores: Arc<Stores>) -> Arc<Volume> {
        Volume::of(Client::by(OwnSession::begin(&self.server)), stores)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// The file `f`, which is created if needed.
pub(crate) fn file(volume: &Arc<Volume>) -> File {
    volume.create(Path::new("f"), 0o644, false).unwrap()
}

/// What a test does in the middle of a request.
pub(crate) type Hook = Box<dyn Fn() + Send + Sync>;

/// A manager that calls the hook before and after each request.
pub(crate) struct Hooked {
    pub(crate) manager: SqliteManager,
    pub(crate) hook: Hook,
}

impl Hooked {
    fn ask<T>(&self, ask: impl FnOnce(&SqliteManager) -> T) -> T {
        (self.hook)();
        let answer = ask(&self.manager);
        (self.hook)();
        answer
    }
}

impl Manager for Hooked {
    fn facts(&self) -> Result<Facts> {
        self.ask(|manager| manager.facts())
    }

    fn lookup(&self, place: &Place) -> Result<Option<Inode>> {
        self.ask(|manager| manager.lookup(place))
    }

    fn inode(&self, inode: u64) -> Result<Inode> {
        self.ask(|manager| manager.inode(inode))
    }

    fn count(&self) -> Result<u64> {
        self.ask(|manager| manager.count())
    }

    fn names(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.ask(|manager| manager.names(directory, after, most))
    }

    fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.ask(|manager| manager.attributes(inode))
    }

    fn change(&self, change: &Change) -> Result<Inode> {
        self.ask(|manager| manager.change(change))
    }

    fn changes(&self, changes: &[Change]) -> Result<()> {
        self.ask(|manager| manager.changes(changes))
    }

    fn sync(&self) -> Result<()> {
        self.ask(|manager| manager.sync())
    }

    fn unfinished(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.ask(|manager| manager.unfinished(after, most))
    }

    fn stale(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.ask(|manager| manager.stale(after, most))
    }

    fn behind(&self) -> Result<Vec<(u32, i64)>> {
        self.ask(|manager| manager.behind())
    }

    fn lockers(&self) -> Result<Vec<[u64; 2]>> {
        self.ask(|manager| manager.lockers())
    }

    fn set_locker(&self, client: [u64; 2], may_have: bool) -> Result<()> {
        self.ask(|manager| manager.set_locker(client, may_have))
    }

    fn set_run(&self, slot: u32, run: u64) -> Result<()> {
        self.ask(|manager| manager.set_run(slot, run))
    }
}
