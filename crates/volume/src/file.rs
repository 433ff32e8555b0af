//! Files of a volume that are open.
//!
//! Model: all who have a file open in this process share a node: its size, its generation, and which strips have bytes
//! that are not durable. The manager hears of the size at fsync and when the last of them closes the file; before the first
//! write since then it notes that stores may know better.
//! Invariant: after fsync the bytes and the size are durable on every copy that is still read. With copies, a write is
//! acknowledged when all of them have it, or when the manager has durably noted that one has not.
//! Non-goals: a cache; each request goes to the stores.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use thalweg_base::clock;

use crate::layout::Layout;
use crate::manager::{Change, Inode};
use crate::stores::{Outcome, Target, bit};
use crate::volume::Volume;
use crate::{Error, Result};

/// An open file.
pub struct File {
    volume: Arc<Volume>,
    node: Arc<Node>,
    path: PathBuf,
}

/// What those share who have a file open.
pub(crate) struct Node {
    /// Held by many who read and write, or by one who changes the length or makes it durable.
    gate: RwLock<()>,
    state: Mutex<State>,
}

struct State {
    target: Target,
    size: u64,
    modified_ns: i64,
    /// Strips with bytes that are not durable.
    unsynced: u64,
    /// The manager has noted that stores may know better.
    is_noted: bool,
    /// The manager knows this size and time.
    is_told: bool,
    is_doomed: bool,
}

impl Node {
    pub(crate) fn new(inode: &Inode, layout: Layout) -> Node {
        let target = Target { layout, ..Target::of(inode).expect("a file has a layout") };
        let state = State {
            target,
            size: inode.size,
            modified_ns: inode.modified_ns,
            unsynced: inode.unsynced,
            is_noted: inode.unsettled,
            is_told: true,
            is_doomed: false,
        };
        Node { gate: RwLock::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> u64 {
        self.state().target.inode
    }

    pub(crate) fn size_and_time(&self) -> (u64, i64) {
        let state = self.state();
        (state.size, state.modified_ns)
    }

    pub(crate) fn set_modified(&self, modified_ns: i64) {
        self.state().modified_ns = modified_ns;
    }

    /// It has no names any more.
    pub(crate) fn doom(&self) {
        self.state().is_doomed = true;
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.state().is_doomed
    }

    /// Tells the manager the size, if it has another one.
    pub(crate) fn tell_size(&self, volume: &Volume) -> Result<()> {
        let mut state = self.state();
        if !state.is_told {
            volume.manager.change(&Change::Grow(
                state.target.inode,
                state.size,
                state.modified_ns,
                state.unsynced,
            ))?;
            state.is_told = true;
        }
        Ok(())
    }

    /// Makes the bytes durable, and with `names` also what the manager knows.
    pub(crate) fn sync(&self, volume: &Volume, names: bool) -> Result<()> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let (target, unsynced, is_noted) = {
            let state = self.state();
            (state.target, state.unsynced, state.is_noted)
        };
        if is_noted {
            let outcome = volume.stores.each(&target, unsynced, |store, strip| store.sync(strip));
            self.settle_copies(volume, outcome)?;
            let mut state = self.state();
            let settled = state.target.settled | unsynced;
            volume.manager.change(&Change::Settle(target.inode, state.size, state.modified_ns, settled))?;
            state.target.settled = settled;
            (state.unsynced, state.is_noted, state.is_told) = (0, false, true);
        } else {
            self.tell_size(volume)?;
        }
        if names { volume.manager.sync() } else { Ok(()) }
    }

    /// Copies that failed where the other one did not are read no more; where none is left, that is an error.
    fn settle_copies(&self, volume: &Volume, outcome: Outcome) -> Result<()> {
        let lost = outcome.lost();
        for (copy, failed) in (0..).zip(outcome.failed) {
            if failed & !lost != 0 {
                let changed = volume.manager.change(&Change::Stale(self.id(), copy, failed & !lost))?;
                self.state().target.stale = changed.stale;
            }
        }
        match outcome.why {
            Some(why) if lost != 0 => Err(why),
            _ => Ok(()),
        }
    }
}

impl File {
    pub(crate) fn new(volume: Arc<Volume>, node: Arc<Node>, path: PathBuf) -> File {
        File { volume, node, path }
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of its inode.
    pub fn inode(&self) -> u64 {
        self.node.id()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.node.state().size
    }

    /// How it is laid out.
    pub fn layout(&self) -> Layout {
        self.node.state().target.layout
    }

    /// What the manager knows of it, with the size of this moment.
    pub fn stat(&self) -> Result<Inode> {
        let mut inode = self.volume.manager.inode(self.inode())?;
        let (size, modified_ns) = self.node.size_and_time();
        inode.set_modified(modified_ns);
        inode.size = size;
        Ok(inode)
    }

    /// Reads from a byte on; less than `into` holds only at the end of the file.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let _shared = self.node.gate.read().unwrap_or_else(PoisonError::into_inner);
        let (target, size) = {
            let state = self.node.state();
            (state.target, state.size)
        };
        let n = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
        self.volume.stores.read(&target, at, &mut into[..n]).map_err(|why| self.failed(at, why))?;
        Ok(n)
    }

    /// Writes all of `from` at a byte.
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<()> {
        let _shared = self.node.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.write_through(at, from)
    }

    /// Writes all of `from` behind the end, and tells where that was.
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        // Alone, so that nobody else's bytes come to lie there.
        let _alone = self.node.gate.write().unwrap_or_else(PoisonError::into_inner);
        let at = self.size();
        self.write_through(at, from)?;
        Ok(at)
    }

    fn write_through(&self, at: u64, from: &[u8]) -> Result<()> {
        let end = at.checked_add(from.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let Some(end) = end else { return Err(self.failed(at, Error::system(libc::EFBIG, "write"))) };
        if from.is_empty() {
            return Ok(());
        }
        let target = self.begin_write()?;
        let outcome = self.volume.stores.write(&target, at, from);
        let mut state = self.node.state();
        state.unsynced |= outcome.done;
        state.target.strips |= outcome.done;
        state.is_told = false;
        state.modified_ns = clock::wall_ns();
        if outcome.lost() == 0 {
            state.size = state.size.max(end);
        }
        drop(state);
        self.node.settle_copies(&self.volume, outcome).map_err(|why| self.failed(at, why))
    }

    /// Notes at the manager that stores may get bytes, if that is not noted.
    fn begin_write(&self) -> Result<Target> {
        let mut state = self.node.state();
        if !state.is_noted {
            self.volume.manager.change(&Change::Unsettle(state.target.inode))?;
            if state.target.layout.copies > 1 {
                // A crash may leave copies that differ, and somebody has to know.
                self.volume.manager.sync()?;
            }
            state.is_noted = true;
        }
        Ok(state.target)
    }

    /// Sets the size; what is added is a hole.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let failed = |why| self.failed(size, why);
        if i64::try_from(size).is_err() {
            return Err(failed(Error::system(libc::EFBIG, "truncate")));
        }
        let _alone = self.node.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.node.tell_size(&self.volume)?;
        let now = clock::wall_ns();
        let (inode, before) = (self.inode(), self.size());
        let changed = self.volume.manager.change(&Change::Resize(inode, size, now))?;
        let target = {
            let mut state = self.node.state();
            (state.size, state.modified_ns) = (size, now);
            state.target.generation = changed.generation;
            state.target
        };
        if size < before {
            // Stores must not be ahead of what is durable at the manager.
            self.volume.manager.sync()?;
            self.cut(&target, size).map_err(failed)?;
        }
        Ok(())
    }

    fn cut(&self, target: &Target, size: u64) -> Result<()> {
        let outcome = self.volume.stores.cut(target, size);
        self.node.settle_copies(&self.volume, outcome)?;
        self.volume.manager.change(&Change::Cut(target.inode, target.generation)).map(drop)
    }

    /// Makes the bytes, the size and the name durable.
    pub fn sync(&self) -> Result<()> {
        self.node.sync(&self.volume, true).map_err(|why| self.failed(0, why))
    }

    /// Whether no bytes were ever written to this strip, so that all of it is a hole.
    pub fn is_hole(&self, strip: u32) -> bool {
        self.node.state().target.strips & bit(strip) == 0
    }

    fn failed(&self, at: u64, why: Error) -> Error {
        Error::At { file: self.path.clone(), at, why: Box::new(why) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // The manager hears of the size at the next fsync or when the volume is opened again.
        let _ = self.volume.close(&self.node);
    }
}
