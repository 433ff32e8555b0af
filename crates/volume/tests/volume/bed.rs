//! A volume whose stores are directories of a simulated disk, and whose manager's database is a real one.
//!
//! Invariant: when the simulated process dies, the manager dies with it: what it acknowledged until then is there, and nothing
//! that follows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_io::sim::Sim;
use thalweg_volume::layout::Policy;
use thalweg_volume::{
    Change, Entry, Error, Facts, Inode, LocalStore, Manager, Place, Result, SqliteManager, Store, Volume,
};

const VOLUME: u128 = 0x7468_616c;

/// Where the test's databases are; removed at the end.
pub(crate) struct Bed {
    pub(crate) sim: Sim,
    place: PathBuf,
    meta: PathBuf,
    slots: u32,
}

impl Bed {
    /// A new volume of so many stores.
    pub(crate) fn new(slots: u32, policy: &Policy, seed: u64) -> Bed {
        static BEDS: AtomicU64 = AtomicU64::new(0);
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("thalweg-volume-{}-{number}", std::process::id()));
        let meta = place.join("meta");
        std::fs::create_dir_all(&meta).unwrap();
        let sim = Sim::new(seed);
        let dirs: Vec<PathBuf> = (0..slots).map(dir).collect();
        for (slot, dir) in (0..).zip(&dirs) {
            sim.make_dir(dir);
            LocalStore::create(&sim.io(), dir, VOLUME, slot).unwrap();
        }
        SqliteManager::create(&meta, VOLUME, &dirs, policy, (0, 0)).unwrap();
        Bed { sim, place, meta, slots }
    }

    /// Opens the volume. A store whose directory is not that of its slot is lost.
    pub(crate) fn open(&self) -> Result<Arc<Volume>> {
        let manager = Mortal(SqliteManager::open(&self.meta)?, self.sim.clone());
        let slots = manager.facts()?.slots;
        assert_eq!(slots, (0..self.slots).map(dir).collect::<Vec<_>>());
        let open = |(slot, dir): (u32, &PathBuf)| {
            let store = LocalStore::open(&self.sim.io(), dir, VOLUME, slot);
            store.map(|store| Arc::new(store) as Arc<dyn Store>).map_err(|e| e.to_string())
        };
        Volume::assemble(Box::new(manager), (0..).zip(&slots).map(open).collect())
    }

    /// Ends the process that has the volume open, and gives what the next one finds.
    pub(crate) fn killed(&mut self, volume: Option<Arc<Volume>>) {
        self.end(volume, Sim::kill);
    }

    /// Ends the machine; of the manager nothing is lost, and of stores what was not synced may be.
    pub(crate) fn without_power(&mut self, volume: Option<Arc<Volume>>) {
        self.end(volume, Sim::power_loss);
    }

    fn end(&mut self, volume: Option<Arc<Volume>>, end: fn(&Sim)) {
        end(&self.sim);
        let left = self.meta.with_extension("left");
        copy(&self.meta, &left);
        drop(volume);
        std::fs::remove_dir_all(&self.meta).unwrap();
        std::fs::rename(&left, &self.meta).unwrap();
        self.sim = self.sim.restart();
    }

    /// The files of all strips, without their checksums.
    pub(crate) fn strips(&self) -> Vec<PathBuf> {
        let is_strip = |path: &PathBuf| path.extension().is_some_and(|end| end == "strip");
        self.sim.names().into_iter().filter(is_strip).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

pub(crate) fn dir(slot: u32) -> PathBuf {
    PathBuf::from(format!("/s{slot}"))
}

/// The files of a directory, copied.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A manager that lives as long as the simulated process.
struct Mortal(SqliteManager, Sim);

impl Mortal {
    fn alive(&self) -> Result<&SqliteManager> {
        self.1.io().list(Path::new("/")).map_err(Error::from).map(|_| &self.0)
    }
}

impl Manager for Mortal {
    fn facts(&self) -> Result<Facts> {
        self.alive()?.facts()
    }

    fn lookup(&self, place: &Place) -> Result<Option<Inode>> {
        self.alive()?.lookup(place)
    }

    fn inode(&self, inode: u64) -> Result<Inode> {
        self.alive()?.inode(inode)
    }

    fn count(&self) -> Result<u64> {
        self.alive()?.count()
    }

    fn names(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.alive()?.names(directory, after, most)
    }

    fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.alive()?.attributes(inode)
    }

    fn change(&self, change: &Change) -> Result<Inode> {
        self.alive()?.change(change)
    }

    fn changes(&self, changes: &[Change]) -> Result<()> {
        self.alive()?.changes(changes)
    }

    fn sync(&self) -> Result<()> {
        self.alive()?.sync()
    }

    fn unfinished(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.alive()?.unfinished(after, most)
    }

    fn stale(&self, after: u64, most: usize) -> Result<Vec<Inode>> {
        self.alive()?.stale(after, most)
    }

    fn behind(&self) -> Result<Vec<(u32, i64)>> {
        self.alive()?.behind()
    }

    fn lockers(&self) -> Result<Vec<[u64; 2]>> {
        self.alive()?.lockers()
    }

    fn set_locker(&self, client: [u64; 2], may_have: bool) -> Result<()> {
        self.alive()?.set_locker(client, may_have)
    }
}
