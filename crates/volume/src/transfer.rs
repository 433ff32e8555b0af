//! Moves the bytes of an open file between this client's memory and the stores.
//!
//! Model: a read takes what the cache has, waits for bytes that other threads read, and reads the rest; unsent writes
//! lie over that. A write goes into runs, which threads send. A sent run updates the cache before it is removed.
//! Invariant: a read sees every write that returned before the read began, through any descriptor of this client.
//! Non-goals: what is durable; see file.rs.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thalweg_base::clock;

use crate::ahead::{Ahead, OVERTAKEN_BYTES_MAX, Piece};
use crate::behind::{Gathered, LINGER_NS, RUN_BYTES_MAX, Sending, unit_end};
use crate::cache::{BLOCK_BYTES, Claim, Found};
use crate::file::{File, Node, TRIES};
use crate::hint::Hint;
use crate::layout::Layout;
use crate::manager::Change;
use crate::memory::Memory;
use crate::stores::{Outcome, Stores, Target};
use crate::volume::Volume;
use crate::{Error, Result};

/// A write that begins this far behind all that were sent is sent at once: it may be too far for the stores, which have
/// limits of their own.
const FAR_BYTES: u64 = 1 << 40;

impl Memory {
    /// Updates the cache after these bytes were sent, or could not be.
    pub(crate) fn written(&self, inode: u64, at: u64, bytes: &[u8], is_sent: bool) {
        match is_sent {
            true => self.cache.put(inode, at, bytes),
            false => self.cache.forget(inode, at..at + bytes.len() as u64),
        }
    }
}

impl Node {
    /// Notes at the manager that stores may get bytes, unless that is already noted.
    fn begin_write(&self, volume: &Volume) -> Result<Target> {
        let inode = match self.state() {
            state if state.is_noted => return Ok(state.target),
            state => state.target.inode,
        };
        let changed = volume.manager.change(&Change::Unsettle(inode))?;
        // New strips get the generation that the manager has.
        self.refresh(volume.memory(), &changed);
        let mut state = self.state();
        state.is_noted = true;
        Ok(state.target)
    }

    /// Notes that the file was written now.
    pub(crate) fn note_write(&self) {
        let mut state = self.state();
        state.modified_ns = clock::wall_ns();
        state.is_told = false;
    }

    /// Sends bytes to the stores of a file. After an error, only one copy may have them.
    pub(crate) fn send(&self, volume: &Volume, at: u64, from: &[u8]) -> Result<()> {
        self.send_to_all(volume, at, from).inspect_err(|_| self.state().is_doubtful = true)
    }

    /// Makes bytes that lie within the file a hole in all copies.
    pub(crate) fn punch(&self, volume: &Volume, bytes: &Range<u64>) -> Result<()> {
        // Another client may have made strips.
        let found = volume.manager.inode(self.id())?;
        self.refresh(volume.memory(), &found);
        let punch = |target: &Target| volume.stores.punch(target, bytes, !found.unsettled);
        let punched = self.change_all(volume, 0, punch);
        volume.memory().iter().for_each(|memory| memory.cache.forget(self.id(), bytes.clone()));
        punched.inspect_err(|_| self.state().is_doubtful = true).map(|()| self.note_write())
    }

    /// Lets stores copy bytes of another file to this one. Returns whether all of them did; if not, the copies of these
    /// bytes may differ until they are written.
    pub(crate) fn copy(&self, volume: &Volume, from: (&Target, u64), at: u64, len: u64) -> Result<bool> {
        let own = self.state().target;
        if !Stores::may_copy(from, (&own, at), len) {
            return Ok(false);
        }
        let target = self.begin_write(volume)?;
        let outcome = volume.stores.copy(from, (&target, at), len);
        let is_done = outcome.failed == [0, 0] && !outcome.is_outdated;
        let mut state = self.state();
        state.unsynced |= outcome.done;
        state.target.strips |= outcome.done;
        let end = if is_done { at + len } else { 0 };
        (state.size, state.reached) = (state.size.max(end), state.reached.max(end));
        drop(state);
        volume.memory().iter().for_each(|memory| memory.cache.forget(self.id(), at..at + len));
        self.note_write();
        Ok(is_done)
    }

    fn send_to_all(&self, volume: &Volume, at: u64, from: &[u8]) -> Result<()> {
        let write = |target: &Target| volume.stores.write(target, at, from);
        self.change_all(volume, at + from.len() as u64, write)
    }

    /// Changes bytes up to `end` at all copies.
    fn change_all(&self, volume: &Volume, end: u64, change: impl Fn(&Target) -> Outcome) -> Result<()> {
        for _ in 0..TRIES {
            let target = self.begin_write(volume)?;
            let mut outcome = change(&target);
            let mut state = self.state();
            state.unsynced |= outcome.done;
            state.target.strips |= outcome.done;
            state.is_told = false;
            if outcome.is_outdated || outcome.unsure != 0 {
                drop(state);
                match outcome.unsure {
                    0 => self.catch_up(volume, target.generation)?,
                    strips => self.raise(volume, target.generation, strips)?,
                }
                continue;
            }
            // Not before: of a strip that is tried again, one copy may be lost, and the other in a later generation.
            state.forget(&mut outcome);
            if outcome.lost() == 0 {
                (state.size, state.reached) = (state.size.max(end), state.reached.max(end));
            }
            drop(state);
            let is_alone = outcome.failed != [0, 0] && outcome.lost() == 0;
            self.settle_copies(volume, outcome)?;
            if !is_alone {
                return Ok(());
            }
            // Again, to the remaining copies: another client may have assumed that both copies have these bytes.
        }
        Err(Error::system(libc::EIO, "the file is truncated, or its copies fail, again and again"))
    }

    /// Sends all writes that have returned.
    pub(crate) fn send_all(&self, volume: &Volume) {
        self.send_until(volume, self.behind.last());
    }

    fn send_until(&self, volume: &Volume, last: u64) {
        let Some(memory) = volume.memory() else { return };
        while let Some(sending) = self.behind.take_or_wait(last) {
            let sent = self.send(volume, sending.at, &sending.bytes);
            self.sent(memory, sending, sent);
        }
    }

    fn sent(&self, memory: &Memory, sending: Sending, sent: Result<()>) {
        // First the cache: a reader that does not find the run finds its bytes there.
        memory.written(self.id(), sending.at, &sending.bytes, sent.is_ok());
        self.behind.sent(sending, sent, &memory.room);
    }
}

/// Lets threads send these runs.
fn send_soon(memory: &Arc<Memory>, node: &Arc<Node>, volume: &Weak<Volume>, ready: Vec<u64>) {
    for _ in ready {
        let (own, node, volume) = (Arc::clone(memory), Arc::clone(node), Weak::clone(volume));
        memory.senders.spawn(move || {
            let layout = node.state().target.layout;
            let Some(sending) = node.behind.take(&layout) else { return };
            let sent = match volume.upgrade() {
                Some(volume) => node.send(&volume, sending.at, &sending.bytes),
                None => Err(Error::system(libc::EIO, "the volume was closed")),
            };
            // The volume is dropped before the end is announced, so that this thread is not the last one to hold it.
            node.sent(&own, sending, sent);
        });
    }
}

/// Lets a thread wait until the gathered runs are old enough.
fn send_later(memory: &Arc<Memory>, node: &Arc<Node>, volume: &Weak<Volume>) {
    if memory.look_later((Arc::clone(node), Weak::clone(volume)), LINGER_NS) {
        let own = Arc::clone(memory);
        memory.waiting.spawn(move || {
            own.linger(|(node, volume)| {
                let (ready, next_ns) = node.behind.old_enough();
                send_soon(&own, node, volume, ready);
                next_ns
            });
        });
    }
}

impl File {
    pub(crate) fn write_later(&self, memory: &Arc<Memory>, at: u64, from: &[u8]) -> Result<()> {
        let layout = self.node.begin_write(&self.volume)?.layout;
        if at > self.node.state().reached.saturating_add(FAR_BYTES) {
            return self.write_at_once(at, from);
        }
        let weak = Arc::downgrade(&self.volume);
        let (mut at, mut rest) = (at, from);
        while !rest.is_empty() {
            let (some, after) = rest.split_at(((unit_end(&layout, at) - at) as usize).min(rest.len()));
            assert!(some.len() as u64 <= RUN_BYTES_MAX, "a run is no longer than a unit");
            if !memory.room.take(some.len() as u64) {
                return self.write_at_once(at, rest);
            }
            loop {
                match self.node.behind.gather(&layout, at, some, &memory.room) {
                    Gathered::In { ready, lingers } => {
                        send_soon(memory, &self.node, &weak, ready);
                        if lingers {
                            send_later(memory, &self.node, &weak);
                        }
                        break;
                    }
                    Gathered::Behind(last) => self.node.send_until(&self.volume, last),
                }
            }
            at += some.len() as u64;
            self.node.note_write();
            rest = after;
        }
        Ok(())
    }

    /// Writes bytes to the stores, after everything that was written before.
    pub(crate) fn write_at_once(&self, at: u64, from: &[u8]) -> Result<()> {
        self.node.send_all(&self.volume);
        let sent = self.node.send(&self.volume, at, from);
        if let Some(memory) = self.volume.memory() {
            memory.written(self.inode(), at, from, sent.is_ok());
            if !sent.as_ref().is_err_and(|why| why.errno() == libc::EFBIG) {
                memory.room.note(from.len() as u64, sent.is_ok());
            }
        }
        sent.map(|()| self.node.note_write())
    }

    pub(crate) fn read_remembered(&self, memory: &Arc<Memory>, at: u64, into: &mut [u8]) -> Result<usize> {
        let range = at..at.saturating_add(into.len() as u64);
        let unsent_end = self.node.behind.end();
        // Before the read: bytes that are sent in the meantime are then either here or in the bytes read.
        let unsent = self.node.behind.overlapping(&range);
        let hint = self.hinted();
        let n = self.ask(at, |target, stored| {
            let size = stored.max(unsent_end);
            let n = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
            let range = at..at + n as u64;
            if n > 0 && self.ahead().read(&range, size, &target.layout, hint, memory.ahead_bytes_max()) {
                self.read_ahead(memory);
            }
            read_through((memory, &self.volume.stores), (&self.node, target), at, &mut into[..n], hint)
                .map(|()| n)
        })?;
        for (start, bytes) in unsent {
            let first = start.max(at);
            let last = (start + bytes.len() as u64).min(at + n as u64);
            if first < last {
                let new = &bytes[(first - start) as usize..(last - start) as usize];
                into[(first - at) as usize..(last - at) as usize].copy_from_slice(new);
            }
        }
        if hint == Hint::Once {
            memory.cache.forget_before(self.inode(), (at + n as u64).saturating_sub(OVERTAKEN_BYTES_MAX));
        }
        Ok(n)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts jobs that read ahead.
    fn read_ahead(&self, memory: &Arc<Memory>) {
        let wanted = {
            let mut ahead = self.ahead();
            let wanted = ahead.jobs_wanted();
            ahead.jobs += wanted;
            wanted
        };
        for _ in 0..wanted {
            let (ahead, node) = (Arc::clone(&self.ahead), Arc::clone(&self.node));
            let (own, stores) = (Arc::clone(memory), Arc::clone(&self.volume.stores));
            memory.readers.spawn(move || {
                let mut read: Option<Piece> = None;
                loop {
                    let target = node.state().target;
                    let Some(piece) = next_piece(&ahead, &target.layout, read.take()) else { return };
                    // An error will be returned to the reader of these bytes.
                    let _ = fetch((&own, &stores), (&node, &target), piece.range.clone());
                    read = Some(piece);
                }
            });
        }
    }

    /// Drops its bytes from the cache: other clients may have changed them.
    pub fn forget(&self) {
        self.volume.memory().iter().for_each(|memory| memory.cache.forget_all(self.inode()));
    }

    /// How the file will be used, as far as a hint says so.
    pub fn hinted(&self) -> Hint {
        self.volume.hint_of(&self.node)
    }

    /// Sets how this file will be used: here, and, if the hint lasts, by all later opens too. For [`Hint::WillNeed`],
    /// returns when as much of the file as there is room for is being read.
    pub fn hint(&self, hint: Hint) -> Result<()> {
        self.volume.set_hint(self.inode(), hint)?;
        match (hint, self.volume.memory.get()) {
            (Hint::WillNeed, Some(memory)) => self.ask(0, |target, size| {
                let wanted = 0..size.min(memory.cache.bytes_max() / 2);
                self.ahead().want(wanted.clone(), &target.layout);
                self.read_ahead(memory);
                fetch((memory, &self.volume.stores), (&self.node, target), wanted)
            }),
            _ => Ok(()),
        }
    }
}

/// The next piece for a job that has read `read`. If there is none, the job ends.
fn next_piece(ahead: &Mutex<Ahead>, layout: &Layout, read: Option<Piece>) -> Option<Piece> {
    let mut ahead = ahead.lock().unwrap_or_else(PoisonError::into_inner);
    read.iter().for_each(|piece| ahead.done(piece));
    let piece = ahead.next(layout);
    if piece.is_none() {
        ahead.jobs -= 1;
    }
    piece
}

/// Fills `into`, which lies within the file, from the cache and the stores.
fn read_through(
    (memory, stores): (&Memory, &Stores),
    (node, target): (&Node, &Target),
    at: u64,
    into: &mut [u8],
    hint: Hint,
) -> Result<()> {
    let unit = if hint == Hint::Random { 1 } else { BLOCK_BYTES };
    let end = at + into.len() as u64;
    let mut next = at;
    while next < end {
        let (bytes, place) = match memory.cache.find(target.inode, next..end, unit) {
            Found::Here(bytes, place) => (bytes, place),
            Found::Loading(_) => {
                memory.cache.wait(target.inode, next);
                continue;
            }
            Found::Claimed(claim) => {
                let place = (next - claim.range.start) as usize;
                (load(stores, node, target, claim)?, place)
            }
        };
        let n = (bytes.len() - place).min((end - next) as usize);
        let into = &mut into[(next - at) as usize..];
        into[..n].copy_from_slice(&bytes[place..place + n]);
        next += n as u64;
    }
    Ok(())
}

/// Reads those bytes of a range that the cache does not have.
fn fetch(
    (memory, stores): (&Memory, &Stores),
    (node, target): (&Node, &Target),
    range: Range<u64>,
) -> Result<()> {
    let mut next = range.start;
    while next < range.end {
        next = match memory.cache.find(target.inode, next..range.end, BLOCK_BYTES) {
            Found::Here(bytes, place) => next + (bytes.len() - place) as u64,
            Found::Loading(end) => end,
            Found::Claimed(claim) => {
                let end = claim.range.end;
                load(stores, node, target, claim)?;
                end
            }
        };
    }
    Ok(())
}

/// Reads claimed bytes. They are cached only if no strip was made and no copy became stale in the meantime: otherwise
/// they may be older than writes that the cache already has.
fn load(stores: &Stores, node: &Node, target: &Target, claim: Claim<'_>) -> Result<Arc<Vec<u8>>> {
    let Range { start, end } = claim.range;
    let mut bytes = vec![0; (end - start) as usize];
    stores.read(target, start, &mut bytes)?;
    let now = node.state().target;
    let of = |target: &Target| (target.generation, target.strips, target.stale);
    if of(&now) == of(target) { Ok(claim.fill(bytes)) } else { Ok(Arc::new(bytes)) }
}

#[cfg(test)]
#[path = "transfer_test.rs"]
mod tests;
