//! Open files of a volume.
//!
//! Model: all descriptors of a file in this process share a node: its size, its generation, which strips have bytes
//! that are not durable, and unsent writes. The manager gets the size at fsync and when the last descriptor is closed;
//! before the first write since then, it notes that its size may be out of date. If a store has seen a newer
//! generation, because another client truncated the file, the client gets the inode from the manager and repeats the
//! request. A client with a memory reads through its cache, and sends its writes later; see transfer.rs.
//! Invariant: after fsync the bytes and the size are durable on every copy that is still read. With copies, a write is
//! complete when all of them have it, or when the manager has durably noted which one does not.
//! Non-goals: the cache (cache.rs), and the unsent writes (behind.rs).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use thalweg_base::clock;

use crate::ahead::Ahead;
use crate::behind::Behind;
use crate::cache::Stamp;
use crate::hint::Hint;
use crate::layout::Layout;
use crate::manager::{Change, Edit, Inode, Written, cuts};
use crate::memory::Memory;
use crate::store::Strip;
use crate::stores::{Outcome, Target};
use crate::volume::Volume;
use crate::{Error, Result};

/// The most attempts for a request that stores refuse as outdated: each time, the file was truncated in between.
pub(crate) const TRIES: usize = 8;

/// An open file.
pub struct File {
    pub(crate) volume: Arc<Volume>,
    pub(crate) node: Arc<Node>,
    path: PathBuf,
    /// What this descriptor reads, and what is read ahead for it.
    pub(crate) ahead: Arc<Mutex<Ahead>>,
    /// Its reads and writes bypass the memory of this client.
    is_direct: bool,
    wrote: AtomicBool,
    /// How many failures of the node's writes this descriptor has reported.
    failures_seen: AtomicU64,
}

/// The state that all descriptors of a file share.
pub(crate) struct Node {
    /// Shared by readers and writers; exclusive for changing the length, appending and syncing.
    gate: RwLock<()>,
    state: Mutex<State>,
    pub(crate) behind: Behind,
}

pub(crate) struct State {
    pub(crate) target: Target,
    /// The size as far as the stores have the bytes, or the manager says so. Unsent writes may lie beyond it.
    pub(crate) size: u64,
    /// The end of the furthest write that the stores took from this client.
    pub(crate) reached: u64,
    /// The stamp of the manager's last answer about the file.
    known: Stamp,
    /// `None` until it is first requested.
    hint: Option<Hint>,
    pub(crate) modified_ns: i64,
    /// When it was last read, as of the manager's last answer.
    accessed_ns: i64,
    /// The permission bits and the group, as of the manager's last answer.
    mode: u32,
    group: u32,
    /// When it was read, if the manager is to note that when the file is closed.
    read_ns: Option<i64>,
    /// The manager said that it has no attribute [`crate::attributes::CAPABILITY`], and nobody has changed its attributes since.
    pub(crate) lacks_capability: bool,
    /// Strips with bytes that are not durable.
    pub(crate) unsynced: u64,
    /// The manager has noted that its size may be out of date.
    pub(crate) is_noted: bool,
    /// The manager has this size and time.
    pub(crate) is_told: bool,
    /// A write failed that one copy may have received and the other not.
    pub(crate) is_doubtful: bool,
    /// Strips with bytes that are not durable, whose copies may have been made equal since: if the store of one copy has
    /// lost these bytes, the other may lack them too.
    pub(crate) equalised: u64,
    /// A copy whose store has lost bytes that no other copy is known to have, and how: the next sync or flush returns
    /// that error.
    pub(crate) forgotten: Option<(Strip, String)>,
}

impl State {
    /// Notes bytes that a store has lost, unless another copy has them.
    pub(crate) fn forget(&mut self, outcome: &mut Outcome) {
        if (outcome.lost() | self.equalised & outcome.forgot) != 0 {
            self.forgotten = outcome.forgotten.take().or(self.forgotten.take());
        }
    }

    /// The report of this state to the manager, with these strips.
    fn written(&self, strips: u64) -> Written {
        let (inode, generation) = (self.target.inode, self.target.generation);
        Written { inode, generation, size: self.size, modified_ns: self.modified_ns, strips }
    }
}

/// The strips that a sync has to make durable: any strip, if another client left the file unsettled.
fn unsynced(inode: &Inode) -> u64 {
    inode.unsynced | if inode.unsettled { inode.strips } else { 0 }
}

impl Node {
    pub(crate) fn new(inode: &Inode) -> Node {
        let state = State {
            target: Target::of(inode).expect("a file has a layout"),
            size: inode.size,
            reached: 0,
            known: Stamp::of(inode),
            hint: None,
            modified_ns: inode.modified_ns,
            accessed_ns: inode.accessed_ns,
            mode: inode.mode,
            group: inode.group,
            read_ns: None,
            lacks_capability: false,
            unsynced: unsynced(inode),
            is_noted: false,
            is_told: true,
            is_doubtful: false,
            equalised: 0,
            forgotten: None,
        };
        Node { gate: RwLock::default(), state: Mutex::new(state), behind: Behind::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> u64 {
        self.state().target.inode
    }

    /// The size, with unsent writes.
    fn size(&self) -> u64 {
        // In this order: a run that is sent meanwhile has raised the other size.
        let unsent_end = self.behind.end();
        self.state().size.max(unsent_end)
    }

    /// Updates the state from an inode. If another client changed the file, its cached bytes are dropped.
    pub(crate) fn refresh(&self, memory: Option<&Memory>, inode: &Inode) {
        let mut state = self.state();
        if inode.generation < state.target.generation {
            return;
        }
        (state.accessed_ns, state.mode, state.group) = (inode.accessed_ns, inode.mode, inode.group);
        let known = std::mem::replace(&mut state.known, Stamp::of(inode));
        if known != state.known {
            state.lacks_capability = false;
            memory.iter().for_each(|memory| memory.cache.forget_all(inode.id));
        }
        let is_same = cuts(inode.generation) == cuts(state.target.generation);
        state.size = if is_same { state.size.max(inode.size) } else { inode.size };
        if state.is_told {
            state.modified_ns = inode.modified_ns;
        }
        let Target { strips, settled, generation, stale, .. } = state.target;
        // Only a mark of a stale copy leaves the other copies as they are.
        let is_marked = |copy: usize| stale[copy] & !inode.stale[copy] == 0;
        if inode.generation != generation
            && !(inode.generation == generation + 1 && inode.stale != stale && (0..2).all(is_marked))
        {
            state.equalised |= state.unsynced;
        }
        state.target = Target::of(inode).expect("a file keeps its layout");
        state.target.strips |= strips;
        state.target.settled |= settled;
        state.unsynced |= if state.is_noted { inode.unsynced } else { unsynced(inode) };
    }

    /// Puts newer values of this node into an inode from the manager.
    pub(crate) fn overlay(&self, inode: &mut Inode) {
        let size = self.size();
        let state = self.state();
        if cuts(inode.generation) == cuts(state.target.generation) {
            inode.size = inode.size.max(size);
        }
        if !state.is_told {
            inode.set_modified(state.modified_ns);
        }
        inode.accessed_ns = state.read_ns.unwrap_or(inode.accessed_ns);
    }

    /// Follows a change of the times, which then stay as they were set.
    pub(crate) fn follow(&self, edit: &Edit) {
        let mut state = self.state();
        state.modified_ns = edit.modified_ns.unwrap_or(state.modified_ns);
        state.read_ns = state.read_ns.filter(|_| edit.accessed_ns.is_none());
    }

    /// When it was read, if the manager is to note that.
    pub(crate) fn read_ns(&self) -> Option<i64> {
        self.state().read_ns
    }

    /// The stamp that the manager will give the file, as far as this client knows.
    pub(crate) fn stamp(&self) -> Stamp {
        let state = self.state();
        match state.is_told {
            true => state.known,
            false => Stamp {
                generation: state.target.generation,
                size: state.size,
                modified_ns: state.modified_ns,
                changed_ns: state.known.changed_ns.max(state.modified_ns),
            },
        }
    }

    pub(crate) fn hint(&self) -> Option<Hint> {
        self.state().hint
    }

    pub(crate) fn set_hint(&self, hint: Option<Hint>) {
        self.state().hint = hint;
    }

    /// What the manager has not been told yet.
    pub(crate) fn untold(&self) -> Option<Written> {
        let state = self.state();
        (!state.is_told).then(|| state.written(state.unsynced))
    }

    /// Reports the size to the manager, if it has another one.
    fn tell_size(&self, volume: &Volume) -> Result<()> {
        let mut state = self.state();
        if !state.is_told {
            let told = volume.manager.change(&Change::Grow(state.written(state.unsynced)))?;
            (state.is_told, state.known) = (true, Stamp::of(&told));
        }
        Ok(())
    }

    /// Sends everything to the stores, and reports the size and the time of the last write to the manager: who sees that
    /// time finds those bytes.
    pub(crate) fn report(&self, volume: &Volume) -> Result<()> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.send_all(volume);
        self.tell_size(volume)
    }

    /// Gets the inode from the manager, after a store refused a request of this generation.
    pub(crate) fn catch_up(&self, volume: &Volume, generation: u64) -> Result<()> {
        let mut found = volume.manager.inode(self.id())?;
        if found.generation == generation {
            // The store's generation is the outdated one.
            found = volume.manager.change(&Change::Cut(found.id, generation))?;
        }
        self.refresh(volume.memory(), &found);
        Ok(())
    }

    /// Begins a new generation if the file is still in this one, so that no store carries out one of its writes later.
    pub(crate) fn raise(&self, volume: &Volume, generation: u64, strips: u64) -> Result<()> {
        if self.state().target.generation == generation {
            let raised = volume.manager.change(&Change::Raise(self.id(), strips))?;
            self.refresh(volume.memory(), &raised);
        }
        Ok(())
    }

    /// Makes the bytes durable, and with `names` also the manager's state.
    pub(crate) fn sync(&self, volume: &Volume, names: bool) -> Result<()> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.send_all(volume);
        let (target, unsynced, is_noted, is_doubtful) = {
            let state = self.state();
            (state.target, state.unsynced, state.is_noted, state.is_doubtful)
        };
        // What this client wrote before it closed the file may be lost, although another client has synced it since.
        let unsynced = unsynced | volume.stores.unsynced(&target);
        if is_noted || unsynced != 0 {
            let (mut outcome, synced) = volume.stores.sync(&target, unsynced);
            if outcome.lost() == 0 {
                self.state().forget(&mut outcome);
            }
            self.settle_copies(volume, outcome)?;
            let mut state = self.state();
            let settled = state.target.settled | unsynced;
            let told = volume.manager.change(&Change::Settle(state.written(settled), is_doubtful))?;
            state.target.settled = settled;
            state.known = Stamp::of(&told);
            (state.unsynced, state.is_noted, state.is_told) = (0, false, true);
            (state.is_doubtful, state.equalised) = (false, 0);
            drop(state);
            if !told.unsettled {
                // Otherwise the copies may still differ, in bytes of another writer or of a write that failed.
                volume.stores.settle(&target, &synced);
            }
        } else {
            self.tell_size(volume)?;
        }
        if names {
            volume.manager.sync()?;
        }
        self.report_forgotten()
    }

    /// Reports once that a store has lost bytes that were not durable.
    fn report_forgotten(&self) -> Result<()> {
        let forgotten = self.state().forgotten.take();
        forgotten.map_or(Ok(()), |(strip, how)| Err(Error::Missing(strip, how)))
    }

    /// Lets the manager make copies equal that may differ after a failed write. If that fails, the next opening of the
    /// volume does it.
    pub(crate) fn end_doubts(&self, volume: &Volume) -> Result<()> {
        let is_doubtful = self.state().is_doubtful;
        if is_doubtful { self.sync(volume, false) } else { Ok(()) }
    }

    /// Marks copies stale that failed where the other copy did not. An error if no copy of a strip is left.
    pub(crate) fn settle_copies(&self, volume: &Volume, outcome: Outcome) -> Result<()> {
        for change in outcome.stale(self.id()) {
            let changed = volume.manager.change(&change)?;
            self.refresh(volume.memory(), &changed);
        }
        outcome.into_result()
    }
}

impl File {
    pub(crate) fn new(volume: Arc<Volume>, node: Arc<Node>, path: PathBuf) -> File {
        let (ahead, wrote) = (Arc::default(), AtomicBool::new(false));
        let failures_seen = AtomicU64::new(node.behind.failures());
        File { volume, node, path, ahead, is_direct: false, wrote, failures_seen }
    }

    /// This file, past the memory of this client: each read and write goes to the stores.
    pub fn direct(self) -> File {
        let mut file = self;
        file.is_direct = true;
        file
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of its inode.
    pub fn inode(&self) -> u64 {
        self.node.id()
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.node.size()
    }

    /// When the file was last read, and when anything about it last changed, as far as this client knows: both in
    /// nanoseconds since 1970.
    pub fn accessed_and_changed_ns(&self) -> (i64, i64) {
        let state = self.node.state();
        (state.accessed_ns, state.modified_ns.max(state.known.changed_ns))
    }

    /// The permission bits and the group, as far as this client knows.
    pub fn mode_and_group(&self) -> (u32, u32) {
        let state = self.node.state();
        (state.mode, state.group)
    }

    /// Notes that the file was read at this time; the manager learns of it when this client closes the file.
    pub fn note_read(&self, read_ns: i64) {
        let mut state = self.node.state();
        (state.accessed_ns, state.read_ns) = (read_ns, Some(read_ns));
    }

    /// The layout of the file.
    pub fn layout(&self) -> Layout {
        self.node.state().target.layout
    }

    /// The manager's inode of the file, with the current size.
    pub fn stat(&self) -> Result<Inode> {
        let mut inode = self.volume.manager.inode(self.inode())?;
        self.node.refresh(self.volume.memory(), &inode);
        self.node.overlay(&mut inode);
        Ok(inode)
    }

    /// Fills `into` with the bytes from `at` on; returns fewer only at the end of the file.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let _shared = self.node.gate.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = self.memory() {
            return self.read_remembered(memory, at, into);
        }
        self.node.send_all(&self.volume);
        self.ask(at, |target, size| {
            let n = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
            self.volume.stores.read(target, at, &mut into[..n]).map(|()| n)
        })
    }

    /// The memory that this descriptor uses.
    fn memory(&self) -> Option<&Arc<Memory>> {
        self.volume.memory.get().filter(|_| !self.is_direct)
    }

    /// Sends a request to stores, and repeats it if the file was truncated in the meantime.
    pub(crate) fn ask<T>(&self, at: u64, mut ask: impl FnMut(&Target, u64) -> Result<T>) -> Result<T> {
        let mut tries = TRIES;
        loop {
            let (target, size) = {
                let state = self.node.state();
                (state.target, state.size)
            };
            tries -= 1;
            match ask(&target, size) {
                Err(Error::Stale(_)) if tries > 0 => self.node.catch_up(&self.volume, target.generation),
                answer => return answer.map_err(|why| self.failed(at, why)),
            }
            .map_err(|why| self.failed(at, why))?;
        }
    }

    /// Writes all of `from` at offset `at`.
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<()> {
        let _shared = self.node.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.write(at, from)
    }

    /// Appends all of `from`, and returns its offset.
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        // Exclusive, so that no other write of this process goes there; the manager keeps other clients away.
        let _alone = self.node.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.report()?;
        self.node.send_all(&self.volume);
        let (inode, bytes, manager) = (self.inode(), from.len() as u64, &self.volume.manager);
        // The manager also refuses a generation that it has ended.
        let reserve = |target: &Target, size| manager.append(inode, target.generation, size, bytes);
        let end = self.node.state().size;
        let at = self.ask(end, reserve)?;
        // At once: what follows must not lie behind an append that fails later.
        self.write_by(at, from, File::write_at_once).inspect_err(|_| {
            // If this cannot be done either, the next append lies behind a hole.
            let undone = manager.undo_append(inode, at, bytes);
            undone.iter().for_each(|found| self.node.refresh(self.volume.memory(), found));
        })?;
        Ok(at)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        self.report()?;
        self.write_by(at, from, |file, at, from| match file.memory() {
            Some(memory) => file.write_later(memory, at, from),
            None => file.write_at_once(at, from),
        })
    }

    fn write_by(&self, at: u64, from: &[u8], by: impl Fn(&File, u64, &[u8]) -> Result<()>) -> Result<()> {
        if at.checked_add(from.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(self.failed(at, Error::system(libc::EFBIG, "write")));
        }
        if from.is_empty() {
            return Ok(());
        }
        self.wrote.store(true, Ordering::Relaxed);
        by(self, at, from).map_err(|why| {
            // The caller gets an error now, which stands for all before it.
            self.failures_seen.store(self.node.behind.failures(), Ordering::Relaxed);
            self.failed(at, why)
        })
    }

    /// Lets the stores copy bytes of another file of this volume, which must have them. Returns false if they cannot, or
    /// failed to: then whoever asks has to read and write these bytes.
    pub fn copy_from(&self, at: u64, from: &File, from_at: u64, len: u64) -> Result<bool> {
        let _alone = self.node.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.report()?;
        from.node.send_all(&self.volume);
        self.node.send_all(&self.volume);
        self.wrote.store(true, Ordering::Relaxed);
        let source = from.node.state().target;
        self.node.copy(&self.volume, (&source, from_at), at, len).map_err(|why| self.failed(at, why))
    }

    /// Makes `len` bytes from `at` on a hole, as far as they lie within the file: they read as zeros and take no space.
    pub fn punch(&self, at: u64, len: u64) -> Result<()> {
        let _alone = self.node.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.report()?;
        self.node.send_all(&self.volume);
        let bytes = at..at.saturating_add(len).min(self.node.state().size);
        if bytes.is_empty() {
            return Ok(());
        }
        self.wrote.store(true, Ordering::Relaxed);
        self.node.punch(&self.volume, &bytes).map_err(|why| self.failed(at, why))
    }

    /// Sets the size; added bytes are a hole.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let failed = |why| self.failed(size, why);
        if i64::try_from(size).is_err() {
            return Err(failed(Error::system(libc::EFBIG, "truncate")));
        }
        let _alone = self.node.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.node.send_all(&self.volume);
        self.node.tell_size(&self.volume)?;
        let now = clock::wall_ns();
        let changed = self.volume.manager.change(&Change::Resize(self.inode(), size, now)).map_err(failed)?;
        self.node.refresh(self.volume.memory(), &changed);
        Ok(())
    }

    /// Makes the bytes, the size and the name durable. Also fails if a write since this descriptor's last report could
    /// not be sent to the stores.
    pub fn sync(&self) -> Result<()> {
        let synced = self.node.sync(&self.volume, true).map_err(|why| self.failed(0, why));
        synced.and(self.report())
    }

    /// Sends writes to the stores, and the size to the manager, as closing the file does, so that a later open finds
    /// both. Reports what could not be sent, and what a store has lost.
    pub fn flush(&self) -> Result<()> {
        if !self.wrote.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.node.send_all(&self.volume);
        let ended = self.node.end_doubts(&self.volume);
        let told = self.node.report(&self.volume).and_then(|()| self.node.report_forgotten());
        ended.and(told).map_err(|why| self.failed(0, why)).and(self.report())
    }

    /// The stamp of the file, which changes when another client changes the file, as of the manager's last answer.
    pub fn stamp(&self) -> Stamp {
        self.node.stamp()
    }

    /// Reports writes that could not be sent to the stores, once for each descriptor that wrote.
    fn report(&self) -> Result<()> {
        if !self.wrote.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.node.behind.failure_since(self.failures_seen.load(Ordering::Relaxed)) {
            Some((seen, at, why)) => {
                self.failures_seen.store(seen, Ordering::Relaxed);
                Err(self.failed(at, why))
            }
            None => Ok(()),
        }
    }

    /// The next range at or after `at` that is not a hole: its first byte, and the one after its last.
    pub fn next_data(&self, at: u64) -> Result<Option<(u64, u64)>> {
        let _shared = self.node.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.node.send_all(&self.volume);
        self.ask(at, |target, size| {
            let layout = target.layout;
            // The first byte of a strip at or after `at` has the number of the strip's bytes before `at` as its offset.
            let next = |index| self.volume.stores.next_data(target, index, layout.strip_len(index, at));
            let strips = (0..layout.width).map(next).collect::<Result<Vec<_>>>()?;
            let begins = (0..).zip(&strips);
            let begins = begins.filter_map(|(index, data)| Some(layout.file_at(index, data.as_ref()?.start)));
            let Some(begin) = begins.min().filter(|begin| *begin < size) else { return Ok(None) };
            let ends = (0..).zip(&strips).map(|(index, data)| {
                let first = layout.strip_len(index, begin);
                let hole = data.as_ref().filter(|data| data.start == first).map_or(first, |data| data.end);
                layout.file_at(index, hole)
            });
            Ok(Some((begin, ends.min().map_or(size, |end| end.min(size)))))
        })
    }

    pub(crate) fn failed(&self, at: u64, why: Error) -> Error {
        Error::At { file: self.path.clone(), at, why: Box::new(why) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).stop();
        if self.wrote.load(Ordering::Relaxed) {
            self.node.send_all(&self.volume);
        }
        // The manager gets the size at the next fsync, or when the volume is opened again.
        let _ = self.volume.close(&self.node);
    }
}
