//! A simulated disk, with faults and crashes from a seed.
//!
//! Model: one [`Sim`] is a disk and the process that uses it. It counts every call that reads or changes something; at
//! a chosen count the process dies, and every later call fails. The next process, [`Sim::restart`], finds what a
//! [`Sim::kill`] or a [`Sim::power_loss`] leaves.
//! Invariant: the same seed and the same calls give the same faults and the same bytes. (With several threads the order
//! of calls depends on them.)
//! Invariant: synced data is never lost; a name is lost only if its directory was not synced.
//! Non-goals: speed, permissions, streams (a file opened as one is written by offset).
//!
//! Short transfers and interruptions happen below the loop that continues them, so that tests exercise the real loop.
//! ```
//! use std::{path::Path, sync::Arc};
//! use thalweg_io::{Access, File, FileSystem, sim::Sim};
//!
//! let sim = Sim::new(1);
//! let file = File::open(&sim.io(), Path::new("/new"), Access::Create).unwrap();
//! file.write_at(0, b"hello").unwrap();
//! sim.kill();
//! assert!(Sim::is_crash(&file.sync().unwrap_err()));
//! assert_eq!(sim.restart().get(Path::new("/new")).unwrap(), b"hello");
//! ```

mod content;
mod directories;
mod disk;
mod names;
mod queue;
mod tree;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::transfer::{Progress, Step};
use crate::{
    Access, Action, Backend, Caching, FileId, FileSystem, Kind, Metadata, Queue, ReadFiles, Result, Space,
};
use disk::{Course, Disk, of, of_transfer};

/// Faults and their frequencies. Zero and `None` mean never.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// One in this many attempts moves less than it could.
    pub short_one_in: u64,
    /// One in this many attempts is interrupted by a signal.
    pub eintr_one_in: u64,
    /// One in this many attempts, syncs or changes of length fails with EIO.
    pub eio_one_in: u64,
    /// The space in bytes of each file system without a [`Sim::set_capacity`].
    pub enospc_after_bytes: Option<u64>,
    /// The call (counted from 0, see [`Sim::boundaries`]) before which the process dies.
    pub crash_at: Option<u64>,
    /// Operations complete in any order, and later.
    pub reorder: bool,
    /// No file can bypass the page cache.
    pub refuse_direct: bool,
    /// Syncs succeed and do nothing, as on a disk that lies about its cache.
    pub ignore_syncs: bool,
    /// How long a sync of a file takes.
    pub sync_takes: Duration,
}

/// The error of every call after the process has died.
#[derive(Debug)]
struct Crash;

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated crash")
    }
}

impl StdError for Crash {}

/// A simulated disk. Cheap to clone; clones share the disk.
#[derive(Debug, Clone)]
pub struct Sim(Arc<Mutex<Disk>>);

impl Sim {
    /// An empty disk without faults.
    pub fn new(seed: u64) -> Sim {
        Sim(Arc::new(Mutex::new(Disk::new(seed))))
    }

    /// The disk as a file system.
    pub fn io(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.clone())
    }

    /// Replaces the faults.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Makes a directory a file system of its own, with this space; renames out of it and into it fail from then on, as
    /// between real ones. Another call changes the space.
    pub fn set_capacity(&self, directory: impl AsRef<Path>, bytes: u64) {
        self.lock().set_capacity(directory.as_ref(), bytes);
    }

    /// Sets the fraction of a file that the page cache holds, for [`ReadFiles::cached_share`]; 0 by default.
    pub fn set_cached(&self, path: impl AsRef<Path>, share: f64) {
        self.lock().cached.insert(path.as_ref().to_path_buf(), share);
    }

    /// The number of calls so far that read or changed something; the submission and the completion of an operation
    /// count separately. Crashes at all numbers up to this visit every state that a process can leave.
    pub fn boundaries(&self) -> u64 {
        self.lock().boundaries
    }

    /// Whether this error, or its cause, is the process's death.
    pub fn is_crash(error: &(dyn StdError + 'static)) -> bool {
        let mut next = Some(error);
        while let Some(error) = next {
            let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if inner.is_some_and(|inner| inner.is::<Crash>()) {
                return true;
            }
            next = error.source();
        }
        false
    }

    /// Kills the process: completed operations stay; those in flight stay, vanish, or stay in part, page by page.
    pub fn kill(&self) {
        self.lock().die();
    }

    /// Cuts the power: unsynced data may also vanish or tear, and unsynced name changes are lost from a random one on.
    pub fn power_loss(&self) {
        self.lock().lose_power();
    }

    /// The disk as the next process finds it, without faults. The old process dies, and its calls keep failing.
    pub fn restart(&self) -> Sim {
        Sim(Arc::new(Mutex::new(self.lock().survivor())))
    }

    /// Creates a durable file, and its directory.
    pub fn put(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = path.as_ref();
        let mut disk = self.lock();
        let directory = disk.make_dirs(path.parent().unwrap_or(Path::new("")));
        let inode = disk.find(path).or_else(|_| disk.create(path)).expect("a file can be there");
        let content = &mut disk.inode(inode).content;
        content.set_len(0);
        assert_eq!(content.write(0, bytes, u64::MAX), bytes.len());
        content.sync();
        disk.touch(inode);
        disk.settle_names(directory);
    }

    /// A file's bytes as a reader would see them now, whether the process lives or not.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let mut disk = self.lock();
        let inode = disk.find(path.as_ref()).ok()?;
        let content = &disk.inode(inode).content;
        let mut bytes = vec![0; content.len() as usize];
        assert_eq!(content.read(0, &mut bytes), bytes.len());
        Some(bytes)
    }

    /// The paths of all files and links, sorted.
    pub fn names(&self) -> Vec<PathBuf> {
        self.lock().paths()
    }

    /// Creates a durable directory and its parents.
    pub fn make_dir(&self, path: impl AsRef<Path>) {
        self.lock().make_dirs(path.as_ref());
    }

    /// Flips one bit of a file.
    pub fn flip_bit(&self, path: impl AsRef<Path>, bit: u64) {
        self.with_content(path.as_ref(), |content| content.flip_bit(bit));
    }

    /// Changes a file's length durably, without its user's knowledge.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) {
        self.with_content(path.as_ref(), |content| {
            content.set_len(len);
            content.sync();
        });
    }

    /// The number of open files.
    pub fn open_files(&self) -> usize {
        self.lock().open_files()
    }

    /// Bytes read so far from files whose name began with `prefix` when they were opened.
    pub fn bytes_read(&self, prefix: impl AsRef<Path>) -> u64 {
        let disk = self.lock();
        disk.traffic.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(_, t)| t.read).sum()
    }

    /// Bytes written so far to files whose name began with `prefix` when they were opened.
    pub fn bytes_written(&self, prefix: impl AsRef<Path>) -> u64 {
        let disk = self.lock();
        disk.traffic.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(_, t)| t.written).sum()
    }

    fn with_content(&self, path: &Path, change: impl FnOnce(&mut content::Content)) {
        let mut disk = self.lock();
        let inode = disk.find(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        change(&mut disk.inode(inode).content);
    }

    /// The state, also after a panic in another thread, so that a failing test shows its own message.
    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self, id: FileId) -> io::Result<u64> {
        let mut disk = self.lock();
        let inode = disk.inode_of(id);
        Ok(disk.inode(inode).content.len())
    }

    /// Counts a call and executes it.
    fn at_boundary<T>(&self, does: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.lock();
        disk.step()?;
        does(&mut disk)
    }

    /// Executes a query, which is not counted.
    fn ask<T>(&self, asks: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.lock();
        disk.alive()?;
        asks(&mut disk)
    }

    /// A blocking transfer: one counted call, with the common loop.
    fn transfer(&self, id: FileId, kind: Kind, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut disk = self.lock();
        disk.step()?;
        // The back end handles alignment, so that an end inside a page is never in doubt.
        let mut progress = Progress::new(kind, false, bytes.len());
        let mut course = Course::default();
        while !progress.is_complete() {
            let done = progress.done();
            let outcome = disk.attempt(id, kind, at + done as u64, &mut bytes[done..], &mut course);
            match progress.apply(outcome, |_| unreachable!("asked of direct transfers only")) {
                Step::Again => {}
                Step::Blocked => unreachable!("no simulated file is ever busy"),
                Step::Complete => break,
                Step::Failed(e) => return Err(e),
            }
        }
        Ok(progress.done())
    }
}

impl Backend for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        of(Action::Setup, Path::new("sim"), self.ask(|_| Ok(())))?;
        Ok(Box::new(queue::SimQueue::new(self.clone(), depth)))
    }

    fn close(&self, id: FileId) {
        self.lock().close(id);
    }
}

impl ReadFiles for Sim {
    fn open_to_read(&self, path: &Path, caching: Caching) -> Result<(FileId, bool)> {
        of(Action::Open, path, self.at_boundary(|disk| disk.open_to_read(path, caching)))
    }

    fn metadata(&self, id: FileId, path: &Path) -> Result<Metadata> {
        of(Action::Stat, path, self.ask(|disk| disk.metadata(disk.inode_of(id))))
    }

    fn allocated(&self, id: FileId, path: &Path) -> Result<u64> {
        of(Action::Stat, path, self.ask(|disk| Ok(disk.inode(disk.inode_of(id)).content.allocated_bytes())))
    }

    fn stat(&self, path: &Path) -> Result<Metadata> {
        of(Action::Stat, path, self.ask(|disk| disk.metadata(disk.walk(path)?.0)))
    }

    fn cached_share(&self, id: FileId, len: u64) -> f64 {
        let disk = self.lock();
        let share = disk.cached.get(disk.path_of(id)).copied().unwrap_or(0.0);
        if len == 0 { 0.0 } else { share }
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> Result<usize> {
        of_transfer(Kind::Read, path, at, self.transfer(id, Kind::Read, at, into))
    }

    fn next_data(&self, id: FileId, path: &Path, at: u64, len: u64) -> Result<Option<(u64, u64)>> {
        let next = |disk: &mut Disk| {
            let inode = disk.inode_of(id);
            Ok(disk.inode(inode).content.next_data(at, len))
        };
        of(Action::Stat, path, self.ask(next))
    }
}

impl FileSystem for Sim {
    fn write_at(&self, id: FileId, path: &Path, at: u64, from: &[u8]) -> Result<()> {
        of_transfer(Kind::Write, path, at, self.transfer(id, Kind::Write, at, &mut from.to_vec())).map(drop)
    }

    fn open(&self, path: &Path, access: Access) -> Result<(FileId, bool)> {
        let action = if access.creates() { Action::Create } else { Action::Open };
        of(action, path, self.at_boundary(|disk| disk.open(path, access)))
    }

    fn set_len(&self, id: FileId, path: &Path, len: u64) -> Result<()> {
        of(Action::Allocate, path, self.at_boundary(|disk| disk.set_len(id, len)))
    }

    fn punch(&self, id: FileId, path: &Path, at: u64, len: u64) -> Result<()> {
        of(Action::Allocate, path, self.at_boundary(|disk| disk.punch(id, at, len)))
    }

    fn allocate(&self, id: FileId, path: &Path, len: u64) -> Result<()> {
        of(Action::Allocate, path, self.at_boundary(|disk| disk.allocate(id, len)))
    }

    fn sync(&self, id: FileId, path: &Path) -> Result<()> {
        let takes = self.lock().faults.sync_takes;
        if !takes.is_zero() {
            // The duration is the fault: nothing could end it earlier.
            std::thread::sleep(takes);
        }
        of(Action::Sync, path, self.at_boundary(|disk| disk.sync(id)))
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        of(Action::Sync, path, self.at_boundary(|disk| disk.sync_directory(path)))
    }

    fn sync_file_system(&self, path: &Path) -> Result<()> {
        let sync = |disk: &mut Disk| disk.walk(path).and_then(|(number, _)| disk.sync_volume(number));
        of(Action::Sync, path, self.at_boundary(sync))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        of(Action::Rename, from, self.at_boundary(|disk| disk.rename(from, to)))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        of(Action::Remove, path, self.at_boundary(|disk| disk.remove(path)))
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        of(Action::Stat, path, self.ask(|disk| disk.list(path)))
    }

    fn space(&self, path: &Path) -> Result<Space> {
        of(Action::Stat, path, self.ask(|disk| disk.space(path)))
    }
}
