//! A served volume of three stores on a simulated disk, for unit tests with several clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::sim::Sim;

use crate::client::Client;
use crate::hint::Hint;
use crate::layout::Policy;
use crate::memory::Memory;
use crate::server::Server;
use crate::session::OwnSession;
use crate::stores::Stores;
use crate::{File, LocalStore, SqliteManager, Store, Volume};

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
    pub(crate) fn of_stores(name: &str, policy: &Policy, (room, away): (Option<u64>, Option<u32>)) -> Bed {
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
        let manager = SqliteManager::open(&place).unwrap();
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
