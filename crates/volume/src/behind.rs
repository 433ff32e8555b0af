//! Write-behind: the bytes written to a file that its stores do not have yet.
//!
//! ```text
//! write --> gathering, up to the end of a unit --> ready --> being sent --> removed, and in the cache what it changed
//! ```
//!
//! Model: writes are gathered in runs, which jobs send. A run is ready when it reaches the end of its unit, when it is
//! [`LINGER_NS`] old, or when a caller needs it to be at the stores.
//! Invariant: runs do not overlap, so their order does not matter. All runs of a volume together have at most
//! [`UNSENT_BYTES_MAX`]. A run that could not be sent is counted, so that each descriptor that wrote reports it once. From
//! then on nothing is gathered, until writes that were sent at once have succeeded for a while: on a full volume, no
//! more than is unsent at that moment was accepted in vain.
//! Non-goals: sending; see file.rs.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use thalweg_base::clock::Stopwatch;

use crate::layout::Layout;
use crate::message::Told;
use crate::{Error, Result};

/// The most unsent bytes of all files together.
const UNSENT_BYTES_MAX: u64 = 16 << 20;
/// After a failure, this many bytes have to be sent without another one before writes are gathered again.
const CAUTIOUS_BYTES: u64 = 64 << 20;
/// The most bytes of a run, which is sent as a whole.
pub(crate) const RUN_BYTES_MAX: u64 = 256 << 10;
/// The most runs of a file that are gathered at a time.
const GATHERING_MAX: usize = 32;
/// The longest time that a run is gathered.
pub(crate) const LINGER_NS: u64 = 100_000_000;

/// The unsent writes of a file.
#[derive(Default)]
pub(crate) struct Behind {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    runs: Vec<Run>,
    /// The number of the last run.
    last: u64,
    /// A job is waiting until runs are old enough.
    lingers: bool,
    /// The number of runs that could not be sent; the offset of the last one, and the error.
    failures: u64,
    failure: Option<(u64, Told)>,
}

struct Run {
    number: u64,
    at: u64,
    bytes: Arc<Vec<u8>>,
    phase: Phase,
    age: Stopwatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Gathering,
    Ready,
    Sending,
}

impl Run {
    fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    fn range(&self) -> Range<u64> {
        self.at..self.end()
    }
}

/// A run that the caller has to send.
pub(crate) struct Sending {
    number: u64,
    pub(crate) at: u64,
    pub(crate) bytes: Arc<Vec<u8>>,
}

/// The result of a write.
pub(crate) enum Gathered {
    /// The bytes are in a run. `ready` must be sent; if `lingers`, a job must wait until other runs are old enough.
    In { ready: Vec<u64>, lingers: bool },
    /// Runs that overlap the bytes have to be sent first: all up to this number.
    Behind(u64),
}

/// The room for unsent bytes, shared by all files.
#[derive(Default)]
pub(crate) struct Room {
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Default)]
struct Taken {
    bytes: u64,
    /// The bytes that have to be sent at once before there is room again: something could not be sent.
    cautious: u64,
}

impl Room {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for this many bytes, and takes it. Returns false if they have to be sent at once.
    #[must_use]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let mut taken = self.taken();
        while taken.cautious == 0 && taken.bytes + bytes > UNSENT_BYTES_MAX {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        let has_room = taken.cautious == 0;
        taken.bytes += if has_room { bytes } else { 0 };
        has_room
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.taken().bytes -= bytes;
        self.freed.notify_all();
    }

    /// Notes that this many bytes were sent at once, or that bytes could not be sent.
    pub(crate) fn note(&self, bytes: u64, is_sent: bool) {
        let mut taken = self.taken();
        taken.cautious = if is_sent { taken.cautious.saturating_sub(bytes) } else { CAUTIOUS_BYTES };
        drop(taken);
        self.freed.notify_all();
    }
}

/// The end of the unit that a byte is in: no run extends beyond it.
pub(crate) fn unit_end(layout: &Layout, at: u64) -> u64 {
    let end = |unit| (at / unit + 1) * unit;
    match layout.stripe_bytes {
        stripe if stripe >= RUN_BYTES_MAX => end(stripe).min(end(RUN_BYTES_MAX)),
        _ => end(RUN_BYTES_MAX),
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Behind {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts bytes into a run. They must lie within one unit, and room must have been taken for them.
    pub(crate) fn gather(&self, layout: &Layout, at: u64, from: &[u8], room: &Room) -> Gathered {
        let range = at..at + from.len() as u64;
        let unit = unit_end(layout, at);
        assert!(range.end <= unit, "{range:?} goes beyond {unit}");
        let mut state = self.state();
        let joins = |run: &Run| {
            let is_same_unit = unit_end(layout, run.at) == unit;
            run.phase == Phase::Gathering && is_same_unit && (run.at..=run.end()).contains(&at)
        };
        let joined = state.runs.iter().position(joins);
        let others = |(n, run): (usize, &Run)| Some(n) != joined && overlap(&run.range(), &range);
        if state.runs.iter().enumerate().any(others) {
            return Gathered::Behind(state.last);
        }
        match joined.map(|n| &mut state.runs[n]) {
            Some(run) => {
                let place = (at - run.at) as usize;
                let new = run.bytes.len().max(place + from.len()) - run.bytes.len();
                let bytes = Arc::make_mut(&mut run.bytes);
                bytes.resize(bytes.len() + new, 0);
                bytes[place..place + from.len()].copy_from_slice(from);
                room.give_back((from.len() - new) as u64);
            }
            None => {
                state.last += 1;
                let mut bytes = Vec::with_capacity((unit - at).min(RUN_BYTES_MAX) as usize);
                bytes.extend_from_slice(from);
                let (number, bytes) = (state.last, Arc::new(bytes));
                state.runs.push(Run { number, at, bytes, phase: Phase::Gathering, age: Stopwatch::start() });
            }
        }
        let is_full = state.runs.iter().filter(|run| run.phase == Phase::Gathering).count() > GATHERING_MAX;
        let ready = state.make_ready(|run| is_full || run.end() == unit_end(layout, run.at));
        let gathers = state.runs.iter().any(|run| run.phase == Phase::Gathering);
        let lingers = gathers && !std::mem::replace(&mut state.lingers, gathers);
        Gathered::In { ready, lingers }
    }

    /// Makes the runs ready that are old enough. Returns them, and the nanoseconds until the next one is; `None` if no
    /// run is being gathered.
    pub(crate) fn old_enough(&self) -> (Vec<u64>, Option<u64>) {
        let mut state = self.state();
        let ready = state.make_ready(|run| run.age.ns() >= LINGER_NS);
        let gathering = state.runs.iter().filter(|run| run.phase == Phase::Gathering);
        let oldest_ns = gathering.map(|run| run.age.ns()).max();
        state.lingers = oldest_ns.is_some();
        (ready, oldest_ns.map(|ns| LINGER_NS.saturating_sub(ns)))
    }

    /// Takes a run that is ready to be sent, of the strip with the fewest runs being sent, so that writers that began
    /// together do not queue at one store.
    pub(crate) fn take(&self, layout: &Layout) -> Option<Sending> {
        let strip = |run: &Run| run.at / layout.stripe_bytes % u64::from(layout.width);
        let mut state = self.state();
        let sending =
            |of| state.runs.iter().filter(|run| run.phase == Phase::Sending && strip(run) == of).count();
        let ready = state.runs.iter().filter(|run| run.phase == Phase::Ready);
        let number = ready.min_by_key(|run| (sending(strip(run)), run.number))?.number;
        state.take(|run| run.number == number)
    }

    /// Takes an unsent run up to this number. Waits while other threads send the last of them; `None` if none is left.
    pub(crate) fn take_or_wait(&self, until: u64) -> Option<Sending> {
        let mut state = self.state();
        loop {
            if let Some(sending) = state.take(|run| run.number <= until) {
                return Some(sending);
            }
            if !state.runs.iter().any(|run| run.number <= until) {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The end of the last byte that is not sent; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        self.state().runs.iter().map(Run::end).max().unwrap_or(0)
    }

    /// The number of the last run.
    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    /// Removes a run that was sent, or that could not be.
    pub(crate) fn sent(&self, sending: Sending, result: Result<()>, room: &Room) {
        let mut state = self.state();
        state.runs.retain(|run| run.number != sending.number);
        if let Err(why) = result {
            state.failures += 1;
            state.failure = Some((sending.at, why.into()));
            // Before this run is out of the way: whoever waits for its room must not take it.
            room.note(0, false);
        }
        drop(state);
        self.changed.notify_all();
        room.give_back(sending.bytes.len() as u64);
    }

    /// The runs that overlap a range.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Vec<(u64, Arc<Vec<u8>>)> {
        let state = self.state();
        let found = state.runs.iter().filter(|run| overlap(&run.range(), range));
        found.map(|run| (run.at, Arc::clone(&run.bytes))).collect()
    }

    /// How many runs could not be sent.
    pub(crate) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// If more than `seen` runs could not be sent: their number, the offset of the last one, and the error.
    pub(crate) fn failure_since(&self, seen: u64) -> Option<(u64, u64, Error)> {
        let state = self.state();
        let (at, why) = state.failure.clone().filter(|_| state.failures > seen)?;
        Some((state.failures, at, why.into()))
    }
}

impl State {
    /// Ends the gathering of some runs, which have to be sent.
    fn make_ready(&mut self, which: impl Fn(&Run) -> bool) -> Vec<u64> {
        let found = self.runs.iter_mut().filter(|run| run.phase == Phase::Gathering && which(run));
        found
            .map(|run| {
                run.phase = Phase::Ready;
                run.number
            })
            .collect()
    }

    fn take(&mut self, which: impl Fn(&Run) -> bool) -> Option<Sending> {
        let run = self.runs.iter_mut().find(|run| run.phase != Phase::Sending && which(run))?;
        run.phase = Phase::Sending;
        Some(Sending { number: run.number, at: run.at, bytes: Arc::clone(&run.bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Policy;

    fn gather(behind: &Behind, room: &Room, at: u64, len: u64) -> Option<(Vec<u64>, bool)> {
        let layout = Layout::of(&Policy::default(), 1, 0);
        assert!(room.take(len));
        match behind.gather(&layout, at, &vec![at as u8; len as usize], room) {
            Gathered::In { ready, lingers } => Some((ready, lingers)),
            Gathered::Behind(_) => {
                room.give_back(len);
                None
            }
        }
    }

    fn taken(room: &Room) -> u64 {
        room.taken().bytes
    }

    #[test]
    fn writes_that_follow_each_other_are_one_run_up_to_the_end_of_a_unit() {
        let (behind, room) = (Behind::default(), Room::default());
        assert_eq!(gather(&behind, &room, 0, 100), Some((vec![], true)));
        assert_eq!(gather(&behind, &room, 100, 100), Some((vec![], false)));
        assert_eq!(gather(&behind, &room, 50, 100), Some((vec![], false)), "in its place");
        assert_eq!(taken(&room), 200);
        assert_eq!(gather(&behind, &room, 200, RUN_BYTES_MAX - 200), Some((vec![1], false)));
        assert_eq!(gather(&behind, &room, 10, 10), None, "it is not gathered any more");
        let layout = Layout::of(&Policy::default(), 1, 0);
        let sending = behind.take(&layout).unwrap();
        assert_eq!((sending.at, sending.bytes.len() as u64), (0, RUN_BYTES_MAX));
        assert_eq!((sending.bytes[49], sending.bytes[50], sending.bytes[150]), (0, 50, 100));
        assert!(behind.take(&layout).is_none(), "it is being sent");
        behind.sent(sending, Ok(()), &room);
        assert_eq!((taken(&room), behind.overlapping(&(0..u64::MAX)).len()), (0, 0));
        assert_eq!(gather(&behind, &room, 10, 10), Some((vec![], false)));
    }

    #[test]
    fn what_is_gathered_is_ready_after_a_while() {
        let (behind, room) = (Behind::default(), Room::default());
        gather(&behind, &room, 0, 10).unwrap();
        let watch = Stopwatch::start();
        let ready = loop {
            match behind.old_enough() {
                (ready, Some(left_ns)) if ready.is_empty() => {
                    std::thread::park_timeout(std::time::Duration::from_nanos(left_ns));
                }
                old => break old,
            }
        };
        assert_eq!(ready, (vec![1], None));
        assert!(watch.ns() > LINGER_NS / 2);
        assert_eq!(behind.old_enough(), (vec![], None), "nothing is gathered");
    }

    #[test]
    fn a_run_that_fails_is_known_to_who_has_not_heard_of_it() {
        let (behind, room) = (Behind::default(), Room::default());
        gather(&behind, &room, 0, 10).unwrap();
        let sending = behind.take_or_wait(behind.last()).unwrap();
        behind.sent(sending, Err(Error::system(libc::ENOSPC, "a store")), &room);
        let (seen, at, why) = behind.failure_since(0).unwrap();
        assert_eq!((seen, at, why.errno()), (1, 0, libc::ENOSPC));
        assert!(behind.failure_since(seen).is_none());
        assert!(!room.take(1), "what follows is sent at once");
        room.note(CAUTIOUS_BYTES - 1, true);
        assert!(!room.take(1));
        room.note(1, true);
        assert!(room.take(1));
        assert!(behind.take_or_wait(behind.last()).is_none());
    }

    #[test]
    fn a_file_does_not_gather_any_number_of_runs() {
        let (behind, room) = (Behind::default(), Room::default());
        let ready: Vec<_> = (0..=GATHERING_MAX as u64)
            .map(|n| gather(&behind, &room, n * 1000, 10).unwrap().0.len())
            .collect();
        assert_eq!(ready.last(), Some(&(GATHERING_MAX + 1)));
        assert!(ready[..GATHERING_MAX].iter().all(|ready| *ready == 0));
    }

    #[test]
    fn runs_of_all_strips_are_on_their_way_at_once() {
        let (behind, room) = (Behind::default(), Room::default());
        let layout = Layout::of(&Policy::default(), 4, 0);
        for unit in 0..16 {
            assert!(room.take(RUN_BYTES_MAX));
            behind.gather(&layout, unit * RUN_BYTES_MAX, &vec![1; RUN_BYTES_MAX as usize], &room);
        }
        let taken = [(); 5].map(|()| behind.take(&layout).unwrap().at / RUN_BYTES_MAX);
        assert_eq!(taken, [0, 4, 8, 12, 1]);
    }
}
