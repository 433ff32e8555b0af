//! All stores of a volume, and requests to several of them at once.
//!
//! Model: a run of bytes of a file is cut into pieces; the pieces of one strip form a task, and tasks run in parallel.
//! With copies, a write is one task for each copy. A read asks the first usable copy, then the other; or first the copy
//! that should answer sooner (balance.rs).
//! Invariant: a lost store is never mistaken for a store without strips.
//! Non-goals: what a failed copy means for the file, which the client decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::balance::{Balance, Read};
use crate::forward::{Forward, Forwards};
use crate::hold::Hold;
use crate::layout::{Layout, Piece};
use crate::manager::{Change, Inode, cuts};
use crate::message::{DATA_BYTES_MAX, Told};
use crate::request::Forwarded;
use crate::runs::Runs;
use crate::store::{SYNCED_MAX, Source, Store, Strip, Write};
use crate::strip::BLOCK;
use crate::{Error, Result};

/// Shorter runs are not worth a thread.
const SPREAD_BYTES: usize = 64 << 10;
/// The most threads that send requests to stores. Each store has two, so that two requests do not wait for each other.
const THREADS_MAX: usize = 16;
const STACK_BYTES: usize = 256 << 10;

/// Pieces of one strip, each with the bytes that it is read into.
type Pieces<'a> = Vec<(Piece, &'a mut [u8])>;

/// The bytes to write to one strip, each piece with its offset in the strip.
type Parts<'a> = Vec<(u64, &'a [u8])>;

/// Bytes of a copy of a strip that its store copies from another strip.
struct Within {
    index: u32,
    copy: u32,
    source: Source,
    at: u64,
    len: u64,
}

/// How a strip is written: one copy, or the first, whose store forwards to the second.
enum To<'a> {
    Copy(u32),
    Both(&'a Forwards),
}

/// The stores of a volume, each in its slot.
pub(crate) struct Stores {
    slots: Vec<Slot>,
    /// Threads for requests to several stores; without them, requests are sent one after the other.
    pool: Option<ThreadPool>,
    /// Without it, a read asks the first copy.
    balance: Option<Arc<Balance>>,
    /// Without it, this client sends a write to both copies.
    forwards: Option<Forwards>,
    /// Without it, the runs of the stores are not counted.
    runs: Option<Runs>,
    /// The manager's hold on them; a client has none.
    hold: Option<Arc<Hold>>,
}

/// The store of a slot, or why there is none.
pub type Slot = std::result::Result<Arc<dyn Store>, String>;

/// A file as it is described in requests to stores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) inode: u64,
    pub(crate) generation: u64,
    pub(crate) layout: Layout,
    /// The strips that exist, one bit for each; the others are holes.
    pub(crate) strips: u64,
    /// The durable strips: one that is missing is lost.
    pub(crate) settled: u64,
    /// For each copy, the strips that must not be read.
    pub(crate) stale: [u64; 2],
}

/// The current copies of strips of files, by the slots of their stores.
fn of_slots(files: &[(Target, u64)]) -> Vec<(u32, Vec<Strip>)> {
    let mut of_slots: BTreeMap<u32, Vec<Strip>> = BTreeMap::new();
    for (target, strips) in files {
        for index in (0..target.layout.width).filter(|index| strips & bit(*index) != 0) {
            for copy in target.copies(index) {
                let of_slot = of_slots.entry(target.layout.slot(index, copy)).or_default();
                of_slot.push(target.strip(index, copy));
            }
        }
    }
    of_slots.into_iter().collect()
}

/// The bit of a strip.
pub(crate) fn bit(index: u32) -> u64 {
    1 << index
}

impl Target {
    /// A file as the manager knows it; `None` if it has no layout.
    pub(crate) fn of(inode: &Inode) -> Option<Target> {
        let Inode { id, generation, layout, strips, unsynced, stale, .. } = inode;
        Some(Target {
            inode: *id,
            generation: *generation,
            layout: (*layout)?,
            strips: strips | unsynced,
            settled: *strips,
            stale: *stale,
        })
    }

    fn strip(&self, index: u32, copy: u32) -> Strip {
        Strip { inode: self.inode, index, copy }
    }

    fn write(&self, index: u32, copy: u32, at: u64) -> Write {
        let Target { generation, layout, .. } = *self;
        let may_create = self.settled & bit(index) == 0;
        Write { strip: self.strip(index, copy), generation, layout, at, may_create }
    }

    /// The copies of a strip that are current: they are written and may be read.
    fn copies(&self, index: u32) -> impl Iterator<Item = u32> + Clone + use<> {
        let stale = self.stale;
        (0..self.layout.copies).filter(move |copy| stale[*copy as usize] & bit(index) == 0)
    }
}

/// Strips that were made durable, and for each copy the number of its sync.
pub(crate) struct Synced {
    strips: u64,
    numbers: HashMap<Strip, u64>,
}

/// The outcome of a request to all copies of some strips.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Strips for which at least one copy succeeded.
    pub(crate) done: u64,
    /// For each copy, strips for which it failed.
    pub(crate) failed: [u64; 2],
    /// The first failure.
    pub(crate) why: Option<Error>,
    /// A copy whose store has lost bytes of it, and how; and all strips with such a copy.
    pub(crate) forgotten: Option<(Strip, String)>,
    pub(crate) forgot: u64,
    /// A store has seen a newer generation of the file.
    pub(crate) is_outdated: bool,
    /// Strips whose second copy may still carry out the write later.
    pub(crate) unsure: u64,
}

impl Outcome {
    fn add(&mut self, index: u32, copy: u32, result: Result<()>) {
        match result {
            Ok(()) => self.done |= bit(index),
            Err(Error::Stale(_)) => self.is_outdated = true,
            Err(why) => {
                if let Error::Missing(strip, how) = &why {
                    self.forgotten = Some((*strip, how.clone()));
                    self.forgot |= bit(index);
                }
                self.failed[copy as usize] |= bit(index);
                self.why.get_or_insert(why);
            }
        }
    }

    fn join(&mut self, other: Outcome) {
        self.done |= other.done;
        self.failed.iter_mut().zip(other.failed).for_each(|(failed, more)| *failed |= more);
        self.why = self.why.take().or(other.why);
        self.forgotten = self.forgotten.take().or(other.forgotten);
        self.forgot |= other.forgot;
        self.is_outdated |= other.is_outdated;
        self.unsure |= other.unsure;
    }

    /// Strips for which no copy succeeded.
    pub(crate) fn lost(&self) -> u64 {
        (self.failed[0] | self.failed[1]) & !self.done
    }

    /// The changes that mark copies stale that failed where the other copy did not.
    pub(crate) fn stale(&self, inode: u64) -> impl Iterator<Item = Change> {
        let lost = self.lost();
        let failed = (0..).zip(self.failed).map(move |(copy, failed)| (copy, failed & !lost));
        failed
            .filter(|(_, strips)| *strips != 0)
            .map(move |(copy, strips)| Change::Stale(inode, copy, strips))
    }

    /// An error if all copies of a strip failed.
    pub(crate) fn into_result(self) -> Result<()> {
        match (self.lost(), self.why) {
            (1.., Some(why)) => Err(why),
            _ => Ok(()),
        }
    }
}

impl Stores {
    pub(crate) fn new(slots: Vec<Slot>) -> Stores {
        let threads = (2 * slots.len()).clamp(1, THREADS_MAX);
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("stores-{n}"));
        Stores {
            slots,
            pool: pool.stack_size(STACK_BYTES).build().ok(),
            balance: None,
            forwards: None,
            runs: None,
            hold: None,
        }
    }

    /// Spreads reads over both copies by how fast their stores answer: for stores that other clients and links share.
    pub(crate) fn balanced(self) -> Stores {
        Stores { balance: Balance::new(self.slots.len()), ..self }
    }

    /// Sends writes to both copies through the store of the first, where these stores on nodes are those of the slots.
    pub(crate) fn forwarding(self, stores: Vec<Arc<dyn Forward>>) -> Stores {
        assert_eq!(stores.len(), self.slots.len(), "each slot has its store");
        Stores { forwards: Some(Forwards::new(stores)), ..self }
    }

    /// Counts the runs of stores on this machine.
    pub(crate) fn counting(self, runs: Runs) -> Stores {
        Stores { runs: Some(runs), ..self }
    }

    /// The stores of a manager, which has this hold on them.
    pub(crate) fn held(self, hold: Arc<Hold>) -> Stores {
        Stores { hold: Some(hold), ..self }
    }

    /// The manager's hold on them, if they are a manager's.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        self.hold.as_ref()
    }

    /// The runs of the stores, if they are counted.
    pub(crate) fn runs(&self) -> Option<&Runs> {
        self.runs.as_ref()
    }

    /// Stores that are asked one after the other, in the order that a simulation's seed determines.
    #[cfg(test)]
    pub(crate) fn in_turn(slots: Vec<Slot>) -> Stores {
        Stores { slots, pool: None, balance: None, forwards: None, runs: None, hold: None }
    }

    /// The slots, in order.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// For each slot, why its store is lost, if it is.
    pub(crate) fn lost(&self) -> Vec<Option<String>> {
        self.slots.iter().map(|slot| slot.as_ref().err().cloned()).collect()
    }

    /// The store to which a strip belongs.
    pub(crate) fn of(&self, layout: &Layout, strip: Strip) -> Result<&dyn Store> {
        match &self.slots[layout.slot(strip.index, strip.copy) as usize] {
            Ok(store) => Ok(&**store),
            Err(why) => Err(Error::Missing(strip, why.clone())),
        }
    }

    /// Fills `into` with the bytes of the file from `at` on.
    pub(crate) fn read(&self, target: &Target, at: u64, into: &mut [u8]) -> Result<()> {
        let large = into.len() >= SPREAD_BYTES;
        let mut tasks: Vec<(u32, Pieces<'_>)> = Vec::new();
        let mut rest = into;
        for piece in target.layout.pieces(at, rest.len() as u64) {
            let (here, after) = rest.split_at_mut(piece.len as usize);
            rest = after;
            match tasks.iter_mut().find(|(strip, _)| *strip == piece.strip) {
                Some((_, pieces)) => pieces.push((piece, here)),
                None => tasks.push((piece.strip, vec![(piece, here)])),
            }
        }
        let read = |(index, pieces): (u32, Pieces<'_>)| {
            pieces.into_iter().try_for_each(|(piece, into)| self.read_piece(target, index, &piece, into))
        };
        self.side_by_side(tasks, large, read).into_iter().collect()
    }

    fn read_piece(&self, target: &Target, index: u32, piece: &Piece, into: &mut [u8]) -> Result<()> {
        if target.strips & bit(index) == 0 {
            into.fill(0);
            return Ok(());
        }
        if let Some(read) = self.read_balanced(target, index, piece, into) {
            return read;
        }
        self.first_copy(target, index, |store, strip| {
            store.read(strip, target.generation, piece.strip_at, into)
        })
    }

    /// Reads the copy that should answer sooner, if there are two to choose from.
    fn read_balanced(
        &self,
        target: &Target,
        index: u32,
        piece: &Piece,
        into: &mut [u8],
    ) -> Option<Result<()>> {
        let balance = self.balance.as_ref()?;
        let copies: Vec<u32> = target.copies(index).collect();
        let mut strips = copies.into_iter().map(|copy| target.strip(index, copy));
        let mut strips = [strips.next()?, strips.next()?];
        let slot = |strip: Strip| target.layout.slot(strip.index, strip.copy) as usize;
        if balance.prefers_second(strips.map(slot), piece.strip_at / target.layout.stripe_bytes) {
            strips.swap(0, 1);
        }
        let store = |strip| Some((slot(strip), Arc::clone(self.slots[slot(strip)].as_ref().ok()?)));
        let copies = [store(strips[0])?, store(strips[1])?];
        let (generation, at) = (target.generation, piece.strip_at);
        let damaged = Arc::new(Mutex::new(None));
        let found = Arc::clone(&damaged);
        let read: Arc<Read> = Arc::new(move |which, store, into| {
            store.read(strips[which], generation, at, into).inspect_err(|why| {
                if let Error::Damaged { at, .. } = why {
                    *found.lock().unwrap_or_else(PoisonError::into_inner) = Some((which, *at));
                }
            })
        });
        let answer = balance.read(&copies, into, &read);
        let damaged = damaged.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Ok(()), Some((which, at))) = (&answer, damaged) {
            self.mend(target, strips[which], strips[1 - which], at);
        }
        Some(answer)
    }

    /// The first written range of a strip at or after `at`, up to a hole or the strip's end.
    pub(crate) fn next_data(&self, target: &Target, index: u32, at: u64) -> Result<Option<Range<u64>>> {
        if target.strips & bit(index) == 0 {
            return Ok(None);
        }
        self.first_copy(target, index, |store, strip| store.next_data(strip, target.generation, at))
    }

    /// The answer of the first copy of a strip that can give one.
    fn first_copy<T>(
        &self,
        target: &Target,
        index: u32,
        mut ask: impl FnMut(&dyn Store, Strip) -> Result<T>,
    ) -> Result<T> {
        let mut failure = None;
        for copy in target.copies(index) {
            let strip = target.strip(index, copy);
            match self.of(&target.layout, strip).and_then(|store| ask(store, strip)) {
                Ok(answer) => {
                    if let Some(Error::Damaged { at, .. }) = failure {
                        self.mend(target, target.strip(index, 1 - copy), strip, at);
                    }
                    return Ok(answer);
                }
                Err(why) => _ = failure.get_or_insert(why),
            }
        }
        Err(failure
            .unwrap_or_else(|| Error::Missing(target.strip(index, 0), "no copy of it is up to date".into())))
    }

    /// Rewrites a damaged block from the other copy: one block for each read that found damage. The next read, or a
    /// check, finds what could not be repaired.
    fn mend(&self, target: &Target, damaged: Strip, other: Strip, at: u64) {
        let store = |strip| self.of(&target.layout, strip);
        let mut block = [0; BLOCK];
        let read = store(other).and_then(|from| from.read(other, target.generation, at, &mut block));
        let _ = read.and_then(|()| store(damaged)?.mend(damaged, target.generation, at, &block));
    }

    /// Writes `from` to all copies at offset `at` of the file.
    pub(crate) fn write(&self, target: &Target, at: u64, from: &[u8]) -> Outcome {
        let mut tasks: Vec<(u32, To, Parts<'_>)> = Vec::new();
        for piece in target.layout.pieces(at, from.len() as u64) {
            let begin = (piece.at - at) as usize;
            let part = (piece.strip_at, &from[begin..begin + piece.len as usize]);
            if !tasks.iter().any(|(index, ..)| *index == piece.strip) {
                tasks.extend(self.ways(target, piece.strip).map(|to| (piece.strip, to, Vec::new())));
            }
            let of_strip = tasks.iter_mut().filter(|(index, ..)| *index == piece.strip);
            of_strip.for_each(|(.., parts)| parts.push(part));
        }
        let write = |(index, to, parts): (u32, To, Parts<'_>)| match to {
            To::Copy(copy) => {
                let mut outcome = Outcome::default();
                outcome.add(index, copy, self.write_copy(target, index, copy, &parts));
                outcome
            }
            To::Both(forwards) => self.write_both(forwards, target, index, &parts),
        };
        let mut outcome = Outcome::default();
        for written in self.side_by_side(tasks, from.len() >= SPREAD_BYTES, write) {
            outcome.join(written);
        }
        outcome
    }

    /// Makes bytes of the file a hole in all copies. If the manager may not know all strips, the other ones are asked for
    /// too: a copy that cannot be asked may have bytes there.
    pub(crate) fn punch(&self, target: &Target, bytes: &Range<u64>, knows_all: bool) -> Outcome {
        let Target { layout, generation, settled, .. } = *target;
        let of_strip = |index| layout.strip_len(index, bytes.start)..layout.strip_len(index, bytes.end);
        let strips = (0..layout.width).filter(|index| !of_strip(*index).is_empty());
        let strips = strips.fold(0, |strips, index| strips | bit(index));
        let known = if knows_all { target.strips } else { u64::MAX };
        let mut outcome = self.each(target, strips & known, |store, strip| {
            match store.punch(strip, generation, of_strip(strip.index)) {
                Err(Error::Missing(..)) if settled & bit(strip.index) == 0 => Ok(()),
                punched => punched,
            }
        });
        outcome.done &= target.strips;
        outcome
    }

    /// The copies of strips within stores that copy bytes from one file to another: `None` if that
    /// takes bytes from one store to another.
    fn copies_within(
        (from, from_at): (&Target, u64),
        (to, to_at): (&Target, u64),
        len: u64,
    ) -> Option<Vec<Within>> {
        let mut found = Vec::new();
        for read in from.layout.pieces(from_at, len) {
            let at = read.at - from_at + to_at;
            for written in to.layout.pieces(at, read.len) {
                for copy in to.copies(written.strip) {
                    let slot = to.layout.slot(written.strip, copy);
                    let mut copies = from.copies(read.strip).filter(|_| from.strips & bit(read.strip) != 0);
                    let source = copies.find(|copy| from.layout.slot(read.strip, *copy) == slot)?;
                    let source = Source {
                        strip: from.strip(read.strip, source),
                        generation: from.generation,
                        at: read.strip_at + (written.at - at),
                    };
                    let (index, at, len) = (written.strip, written.strip_at, written.len);
                    found.push(Within { index, copy, source, at, len });
                }
            }
        }
        Some(found)
    }

    /// Whether stores have these bytes of one file and their place in another, so that they can copy them.
    pub(crate) fn may_copy(from: (&Target, u64), to: (&Target, u64), len: u64) -> bool {
        Stores::copies_within(from, to, len).is_some()
    }

    /// Lets stores copy bytes from one file to another.
    pub(crate) fn copy(&self, from: (&Target, u64), (to, to_at): (&Target, u64), len: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(copies) = Stores::copies_within(from, (to, to_at), len) else {
            outcome.is_outdated = true;
            return outcome;
        };
        let copy = |within: Within| {
            let Within { index, copy, source, at, len } = within;
            let store = self.of(&to.layout, to.strip(index, copy));
            (index, copy, store.and_then(|store| store.copy(source, &to.write(index, copy, at), len)))
        };
        for (index, copy, done) in self.side_by_side(copies, true, copy) {
            outcome.add(index, copy, done);
        }
        outcome
    }

    /// The space that one copy of the file takes.
    pub(crate) fn allocated(&self, target: &Target) -> Result<u64> {
        let strips = (0..target.layout.width).filter(|index| target.strips & bit(*index) != 0);
        let of = |index| self.first_copy(target, index, |store, strip| store.facts(strip));
        let found = self.side_by_side(strips.collect(), true, of);
        found.into_iter().map(|facts| Ok(facts?.map_or(0, |facts| facts.allocated))).sum()
    }

    /// How to write the copies of a strip: through one store, or each by itself.
    fn ways(&self, target: &Target, index: u32) -> impl Iterator<Item = To<'_>> {
        let copies = target.copies(index);
        let slot = |copy| target.layout.slot(index, copy);
        let both = self.forwards.as_ref().filter(|_| target.layout.copies == 2);
        let both = both.filter(|forwards| copies.clone().count() == 2 && forwards.may(slot(0), slot(1)));
        let single = if both.is_none() { Some(copies.map(To::Copy)) } else { None };
        both.map(To::Both).into_iter().chain(single.into_iter().flatten())
    }

    fn write_copy(&self, target: &Target, index: u32, copy: u32, parts: &[(u64, &[u8])]) -> Result<()> {
        let store = self.of(&target.layout, target.strip(index, copy))?;
        parts.iter().try_for_each(|(at, from)| store.write(&target.write(index, copy, *at), from))
    }

    /// Writes both copies of a strip through the store of the first; sends what that did not forward to the second.
    fn write_both(
        &self,
        forwards: &Forwards,
        target: &Target,
        index: u32,
        parts: &[(u64, &[u8])],
    ) -> Outcome {
        let messages = parts.iter().flat_map(|(at, from)| {
            let ats = (*at..).step_by(DATA_BYTES_MAX);
            ats.zip(from.chunks(DATA_BYTES_MAX))
        });
        let messages: Parts<'_> = messages.collect();
        let slots = (target.layout.slot(index, 0), target.layout.slot(index, 1));
        let mut outcome = Outcome::default();
        for (n, (at, from)) in messages.iter().enumerate() {
            match forwards.write(slots, &target.write(index, 0, *at), from) {
                Ok(Forwarded::Written(_)) => {}
                Ok(Forwarded::Unsent(_)) => {
                    outcome.add(index, 0, self.write_copy(target, index, 0, &messages[n + 1..]));
                    outcome.add(index, 1, self.write_copy(target, index, 1, &messages[n..]));
                    return outcome;
                }
                Ok(Forwarded::Unsure(_)) => {
                    outcome.unsure |= bit(index);
                    break;
                }
                Err(why @ Error::Stale(_)) => {
                    outcome.add(index, 0, Err(why));
                    return outcome;
                }
                Err(why) => {
                    outcome.add(index, 0, Err(why));
                    outcome.add(index, 1, self.write_copy(target, index, 1, &messages[n..]));
                    return outcome;
                }
            }
        }
        outcome.add(index, 0, Ok(()));
        outcome
    }

    /// The size of a file according to its strips, and the strips that exist. An error if no copy of a strip answers:
    /// it may exist, and must not be taken for a hole.
    pub(crate) fn extent(&self, target: &Target) -> Result<(u64, u64)> {
        let (mut size, mut strips) = (0, 0);
        for index in 0..target.layout.width {
            let mut failure =
                Some(Error::Missing(target.strip(index, 0), "no copy of it is up to date".into()));
            for copy in target.copies(index) {
                let strip = target.strip(index, copy);
                match self.of(&target.layout, strip).and_then(|store| store.facts(strip)) {
                    Ok(Some(facts)) if cuts(facts.generation) == cuts(target.generation) => {
                        size = size.max(target.layout.file_len(index, facts.len));
                        strips |= bit(index);
                        failure = None;
                    }
                    Ok(_) => failure = None,
                    Err(why) => failure = failure.and(Some(why)),
                }
            }
            if let Some(why) = failure {
                return Err(why);
            }
        }
        Ok((size, strips))
    }

    /// Makes stores refuse older generations, and cut these strips to a file of `size` bytes if the file was cut.
    /// `strips` may include strips that only the store knows, for example of a write that failed.
    pub(crate) fn raise(&self, target: &Target, strips: u64, size: u64) -> Outcome {
        let Target { layout, generation, .. } = *target;
        self.each(target, strips, |store, strip| {
            store.truncate(strip, generation, layout.strip_len(strip.index, size))
        })
    }

    /// The strips of a file of which this client wrote a current copy that it did not sync.
    pub(crate) fn unsynced(&self, target: &Target) -> u64 {
        let own = self.slots.iter().flatten().flat_map(|store| store.unsynced(target.inode));
        let own = own.filter(|strip| target.copies(strip.index).any(|copy| copy == strip.copy));
        own.fold(0, |strips, strip| strips | bit(strip.index))
    }

    /// Makes these strips durable. Also returns the sync numbers of the strips of which both copies are durable.
    pub(crate) fn sync(&self, target: &Target, strips: u64) -> (Outcome, Synced) {
        let (mut outcome, mut numbers) = (Outcome::default(), HashMap::new());
        for (strip, synced) in self.sync_files(&[(*target, strips)]) {
            let synced = synced.map(|number| _ = numbers.insert(strip, number));
            outcome.add(strip.index, strip.copy, synced);
        }
        let [first, second] = target.stale;
        let strips = match target.layout.copies {
            1 => 0,
            _ => outcome.done & !(first | second | outcome.failed[0] | outcome.failed[1]),
        };
        (outcome, Synced { strips, numbers })
    }

    /// Makes strips of files durable, which are in the order of their numbers. Each store gets all of its strips at
    /// once. Returns the number of each strip's sync.
    pub(crate) fn sync_files(&self, files: &[(Target, u64)]) -> Vec<(Strip, Result<u64>)> {
        let sync = |(slot, strips): (u32, Vec<Strip>)| -> Vec<_> {
            strips.chunks(SYNCED_MAX).flat_map(|some| self.sync_at(slot, some)).collect()
        };
        self.side_by_side(of_slots(files), true, sync).into_iter().flatten().collect()
    }

    /// Removes strips of files. Each store gets all of its strips at once. Returns the files of which strips may be left.
    pub(crate) fn remove_files(&self, files: &[(Target, u64)]) -> BTreeSet<u64> {
        let remove = |(slot, strips): (u32, Vec<Strip>)| {
            let left = |some: &&[Strip]| match &self.slots[slot as usize] {
                Ok(store) => store.remove_all(some).is_err(),
                Err(_) => true,
            };
            strips.chunks(SYNCED_MAX).filter(left).flatten().map(|strip| strip.inode).collect::<Vec<_>>()
        };
        self.side_by_side(of_slots(files), true, remove).into_iter().flatten().collect()
    }

    /// Makes strips of one store durable. A strip that is not there does not affect the others.
    fn sync_at(&self, slot: u32, strips: &[Strip]) -> Vec<(Strip, Result<u64>)> {
        let store = match &self.slots[slot as usize] {
            Ok(store) => store,
            Err(why) => return strips.iter().map(|s| (*s, Err(Error::Missing(*s, why.clone())))).collect(),
        };
        match store.sync(strips) {
            Ok(numbers) => strips.iter().copied().zip(numbers.into_iter().map(Ok)).collect(),
            Err(why) if strips.len() == 1 => vec![(strips[0], Err(why))],
            Err(Error::Missing(..) | Error::Damaged { .. }) => {
                strips.iter().flat_map(|strip| self.sync_at(slot, &[*strip])).collect()
            }
            Err(why) => {
                let told = Told::from(why);
                strips.iter().map(|strip| (*strip, Err(told.clone().into()))).collect()
            }
        }
    }

    /// Tells both stores of these strips that both copies are durable.
    pub(crate) fn settle(&self, target: &Target, synced: &Synced) {
        // A store that misses this has more to copy after a crash.
        let _ = self.each(target, synced.strips, |store, strip| {
            let number = synced.numbers.get(&strip);
            number.map_or(Ok(()), |number| store.settle(strip, target.generation, *number))
        });
    }

    /// Sends a request to the stores of all copies of these strips.
    pub(crate) fn each(
        &self,
        target: &Target,
        strips: u64,
        ask: impl Fn(&dyn Store, Strip) -> Result<()> + Sync,
    ) -> Outcome {
        let of_index = |index| target.copies(index).map(move |copy| (index, copy));
        let tasks: Vec<_> =
            (0..target.layout.width).filter(|index| strips & bit(*index) != 0).flat_map(of_index).collect();
        let ask = &|(index, copy): (u32, u32)| {
            let strip = target.strip(index, copy);
            (index, copy, self.of(&target.layout, strip).and_then(|store| ask(store, strip)))
        };
        // Requests to stores that are lost would keep the threads of the pool for seconds from requests to the others.
        let is_ready = |(index, copy): &(u32, u32)| {
            let store = self.of(&target.layout, target.strip(*index, *copy));
            self.pool.is_none() || store.map_or(true, |store| store.is_ready())
        };
        let (ready, slow): (Vec<_>, Vec<_>) = tasks.into_iter().partition(is_ready);
        let mut outcome = Outcome::default();
        std::thread::scope(|scope| {
            let aside = |task| (task, Builder::new().spawn_scoped(scope, move || ask(task)));
            let slow: Vec<_> = slow.into_iter().map(aside).collect();
            let ready = self.side_by_side(ready, true, ask);
            let slow = slow.into_iter().map(|(task, thread)| match thread {
                Ok(thread) => thread.join().expect("a request does not panic"),
                // The system has no thread left.
                Err(_) => ask(task),
            });
            for (index, copy, asked) in ready.into_iter().chain(slow) {
                outcome.add(index, copy, asked);
            }
        });
        outcome
    }

    /// Runs tasks in parallel if they are worth it, the first on this thread.
    fn side_by_side<T: Send, R: Send>(
        &self,
        tasks: Vec<T>,
        worth: bool,
        run: impl Fn(T) -> R + Sync,
    ) -> Vec<R> {
        let pool = match &self.pool {
            Some(pool) if worth && tasks.len() > 1 => pool,
            _ => return tasks.into_iter().map(run).collect(),
        };
        let mut results: Vec<Option<R>> = tasks.iter().map(|_| None).collect();
        pool.in_place_scope(|scope| {
            let run = &run;
            let mut tasks = tasks.into_iter().zip(&mut results);
            let first = tasks.next();
            for (task, result) in tasks {
                scope.spawn(move |_| *result = Some(run(task)));
            }
            if let Some((task, result)) = first {
                *result = Some(run(task));
            }
        });
        results.into_iter().map(|result| result.expect("the scope ends with its tasks")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use thalweg_io::sim::Sim;

    use super::*;
    use crate::LocalStore;
    use crate::layout::Policy;

    fn target(inode: u64) -> Target {
        let layout = Layout::of(&Policy::default(), 1, 0);
        Target { inode, generation: 0, layout, strips: 0, settled: 0, stale: [0; 2] }
    }

    #[test]
    fn a_strip_that_is_missing_does_not_keep_others_from_being_synced() {
        let sim = Sim::new(1);
        sim.make_dir("/s");
        LocalStore::create(&sim.io(), Path::new("/s"), 7, 0).unwrap();
        let store = Arc::new(LocalStore::open(&sim.io(), Path::new("/s"), 7, 0).unwrap());
        let stores = Stores::in_turn(vec![Ok(Arc::clone(&store) as Arc<dyn Store>)]);
        let inodes: Vec<u64> = (1..=20).collect();
        for inode in inodes.iter().filter(|inode| **inode != 9) {
            assert_eq!(stores.write(&target(*inode), 0, &[*inode as u8; 5000]).lost(), 0);
        }
        let files: Vec<_> = inodes.iter().map(|inode| (target(*inode), 1)).collect();
        for (strip, synced) in stores.sync_files(&files) {
            assert_eq!(synced.is_ok(), strip.inode != 9, "{strip}: {synced:?}");
        }
        let [first, second] = [2, 1].map(|inode| target(inode).strip(0, 0));
        let why = store.sync(&[first, second]).unwrap_err().to_string();
        assert!(why.contains("ascending"), "{why}");
        drop(store);
        sim.power_loss();
        let sim = sim.restart();
        let store = LocalStore::open(&sim.io(), Path::new("/s"), 7, 0).unwrap();
        assert_eq!(store.list().unwrap().len(), 19);
        for inode in inodes.into_iter().filter(|inode| *inode != 9) {
            let mut found = [0; 5000];
            store.read(target(inode).strip(0, 0), 0, 0, &mut found).unwrap();
            assert_eq!(found, [inode as u8; 5000]);
        }
    }
}
