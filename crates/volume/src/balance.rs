//! Chooses which of two copies to read, by how fast their stores have answered.
//!
//! Model: for each store, the usual time of a request and the number of unanswered requests are known. A read goes to
//! the store that should answer first, so the stores of a chain share the load of a lost one. If the answer takes
//! several times as long as usual, the other copy is read too (a hedged request; Dean and Barroso, "The Tail at Scale",
//! 2013), and if that is faster, the slow store is avoided. Now and then an avoided store is read in addition to the
//! other copy, without waiting for it, until it is as fast as others again.
//! Invariant: at most [`THREADS`] reads of a client have a thread of their own, [`WAITING_MAX`] of them at one store;
//! the others read one copy after the other. After the first few, at most one read of [`READS_PER_HEDGE`] is hedged, and
//! those that have waited [`LONG_NS`] though the other copy should be there sooner. No read waits for a store that has
//! [`WAITING_MAX`] requests while the other copy is being read. A read fails only if both copies do.
//! Non-goals: copies that may not be read; the caller has chosen two that may.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rayon_core::{ThreadPool, ThreadPoolBuilder};
use thalweg_base::clock::{Stopwatch, now_ns};

use crate::Result;
use crate::store::Store;

/// The most reads that have a thread of their own, so that they can be hedged.
const THREADS: usize = 32;
/// The most of them at one store, so that reads of a slow one do not take all threads.
const WAITING_MAX: u64 = 8;
const STACK_BYTES: usize = 256 << 10;
/// A store is slow if it takes this many times as long as the median store, within these limits.
const SLOW_FACTOR: u64 = 3;
const SLOW_NS_MIN: u64 = 50_000_000;
const SLOW_NS_MAX: u64 = 500_000_000;
/// The time after which a store is slow, before any has answered.
const SLOW_NS_FIRST: u64 = 200_000_000;
/// A read that has waited this long is hedged if the other copy should take less than half as long.
const LONG_NS: u64 = 1_000_000_000;
/// How long a store that was found slow is avoided.
const AVOIDED_NS: u64 = 5_000_000_000;
/// How long a store that failed is avoided.
const FAILED_NS: u64 = 1_000_000_000;
/// One of this many reads may be hedged; this many hedges are saved up for a store that becomes slow.
const READS_PER_HEDGE: u64 = 20;
const HEDGES_SAVED_MAX: u64 = 16;
/// The unit in which requests are measured; smaller ones count as one.
const UNIT_BYTES: u64 = 64 << 10;
/// A new measurement counts as one part in this many.
const WEIGHT: u64 = 8;

/// The speeds of the stores of a volume.
pub(crate) struct Balance {
    paces: Vec<Pace>,
    pool: ThreadPool,
    /// The number of threads of the pool that are in use.
    busy: AtomicUsize,
    /// Credit for hedges: each read adds one, and a hedge costs [`READS_PER_HEDGE`].
    saved: AtomicU64,
}

/// The speed of a store.
#[derive(Default)]
struct Pace {
    /// The usual time for a unit; 0 before the first answer.
    usual_ns: AtomicU64,
    /// The number of its unanswered requests.
    waiting: AtomicU64,
    /// When it is tried again; 0 if it is not avoided.
    avoided_until_ns: AtomicU64,
}

impl Pace {
    /// Prefers the other copy until a request shows that this store is as fast as others.
    fn avoid(&self, ns: u64) {
        self.avoided_until_ns.store(now_ns() + ns, Ordering::Relaxed);
    }

    /// The same for a store that took this long, or longer, for a unit.
    fn avoid_slow(&self, unit_ns: u64) {
        self.usual_ns.fetch_max(unit_ns, Ordering::Relaxed);
        self.avoid(AVOIDED_NS);
    }

    fn is_avoided(&self) -> bool {
        self.avoided_until_ns.load(Ordering::Relaxed) != 0
    }

    /// Whether it has as many requests as it may.
    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= WAITING_MAX
    }
}

/// Whether a thread was found that reads a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Yes,
    /// Too many threads read this store.
    Full,
    /// Too many threads are in use.
    NoThread,
}

/// A readable copy: the number of its slot, and its store.
pub(crate) type Candidate = (usize, Arc<dyn Store>);

/// Reads some bytes of a copy, the first (0) or the second (1).
pub(crate) type Read = dyn Fn(usize, &dyn Store, &mut [u8]) -> Result<()> + Send + Sync;

fn smoothed(average: &AtomicU64, ns: u64) {
    let before = average.load(Ordering::Relaxed);
    let after = if before == 0 { ns } else { before - before / WEIGHT + ns / WEIGHT };
    average.store(after.max(1), Ordering::Relaxed);
}

fn units(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(UNIT_BYTES).max(1)
}

impl Balance {
    /// For this many slots; `None` if the system has no threads for it.
    pub(crate) fn new(slots: usize) -> Option<Arc<Balance>> {
        let pool = ThreadPoolBuilder::new().num_threads(THREADS).stack_size(STACK_BYTES);
        let pool = pool.thread_name(|n| format!("copies-{n}")).build().ok()?;
        let paces = (0..slots).map(|_| Pace::default()).collect();
        let saved = AtomicU64::new(READS_PER_HEDGE * HEDGES_SAVED_MAX);
        Some(Arc::new(Balance { paces, pool, busy: AtomicUsize::new(0), saved }))
    }

    /// The time of the median store for a unit, of those that are not avoided; 0 if none has answered. The mean would
    /// follow a slow store.
    fn usual_ns(&self) -> u64 {
        let measured = self.paces.iter().filter(|pace| !pace.is_avoided());
        let known = measured.map(|pace| pace.usual_ns.load(Ordering::Relaxed));
        let mut known: Vec<u64> = known.filter(|ns| *ns != 0).collect();
        known.sort_unstable();
        known.get(known.len() / 2).copied().unwrap_or(0)
    }

    /// After how long a request for this many bytes counts as slow.
    fn slow_ns(&self, bytes: usize) -> u64 {
        match self.usual_ns() {
            0 => SLOW_NS_FIRST,
            usual_ns => (SLOW_FACTOR * units(bytes) * usual_ns).clamp(SLOW_NS_MIN, SLOW_NS_MAX),
        }
    }

    /// Whether a store that took this long is slower than others.
    fn is_slow(&self, ns: u64, bytes: usize) -> bool {
        let usual_ns = self.usual_ns();
        usual_ns != 0 && ns > (SLOW_FACTOR * units(bytes) * usual_ns).max(SLOW_NS_MIN)
    }

    /// After how long a store would answer one more request for a unit. An unmeasured store counts as average.
    fn expected_ns(&self, slot: usize) -> u64 {
        let pace = &self.paces[slot];
        let usual_ns = match pace.usual_ns.load(Ordering::Relaxed) {
            0 => self.usual_ns(),
            usual_ns => usual_ns,
        };
        usual_ns.saturating_mul(pace.waiting.load(Ordering::Relaxed) + 1)
    }

    /// Whether a store is asked only if there is no better one: it is avoided, or has as many requests as it may, or is
    /// unmeasured and has an unanswered request.
    fn is_last(&self, slot: usize) -> bool {
        let pace = &self.paces[slot];
        let usual_ns = pace.usual_ns.load(Ordering::Relaxed);
        let is_tried = usual_ns == 0 && pace.waiting.load(Ordering::Relaxed) > 0;
        is_tried || pace.is_avoided() || pace.is_full()
    }

    /// Whether to read from the second of two slots. If both are about equal, they take turns.
    pub(crate) fn prefers_second(&self, slots: [usize; 2], turn: u64) -> bool {
        let [first_is_last, second_is_last] = slots.map(|slot| self.is_last(slot));
        let [first, second] = slots.map(|slot| self.expected_ns(slot));
        match first_is_last == second_is_last {
            // About equal means that they differ by at most half.
            true if first.abs_diff(second) <= first.min(second) / 2 => turn % 2 == 1,
            true => second < first,
            false => first_is_last,
        }
    }

    /// Sends a request to a store, and records how long it took.
    fn timed(&self, slot: usize, bytes: usize, ask: impl FnOnce() -> Result<()>) -> Result<()> {
        let pace = &self.paces[slot];
        pace.waiting.fetch_add(1, Ordering::Relaxed);
        let watch = Stopwatch::start();
        let answer = ask();
        pace.waiting.fetch_sub(1, Ordering::Relaxed);
        let (ns, unit_ns) = (watch.ns(), watch.ns() / units(bytes));
        match &answer {
            Ok(()) if !pace.is_avoided() => {
                smoothed(&pace.usual_ns, unit_ns);
                if self.is_slow(pace.usual_ns.load(Ordering::Relaxed), 0) {
                    pace.avoid(AVOIDED_NS);
                }
            }
            Ok(()) if self.is_slow(ns, bytes) => pace.avoid_slow(unit_ns),
            Ok(()) => {
                // One request may be fast where many are not, so it gets few at first.
                pace.usual_ns.store(unit_ns.max(2 * self.usual_ns()), Ordering::Relaxed);
                pace.avoided_until_ns.store(0, Ordering::Relaxed);
            }
            Err(crate::Error::Stale(_)) => {}
            Err(_) => {
                pace.usual_ns.fetch_max(unit_ns, Ordering::Relaxed);
                pace.avoid(FAILED_NS);
            }
        }
        answer
    }

    /// Whether to read the other copy too, after a read of the first one has taken this long.
    fn should_hedge(&self, [first, other]: [usize; 2], bytes: usize, waited_ns: u64) -> bool {
        if self.paces[other].is_full() {
            return false;
        }
        let is_long =
            waited_ns >= LONG_NS && units(bytes).saturating_mul(self.expected_ns(other)) < waited_ns / 2;
        // A slow store is no help for one that is not avoided; if all are slow, more requests make it worse.
        is_long
            || match [first, other].map(|slot| self.paces[slot].is_avoided()) {
                [true, false] => true,
                [false, true] => false,
                _ => self.may_hedge(),
            }
    }

    /// Whether one more read may be hedged; if so, counts it.
    fn may_hedge(&self) -> bool {
        let spend = |saved: u64| saved.checked_sub(READS_PER_HEDGE);
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
    }

    /// Whether an avoided store is due for a new try, which the first caller makes.
    fn is_due(&self, slot: usize) -> bool {
        let (pace, now) = (&self.paces[slot], now_ns());
        let until_ns = pace.avoided_until_ns.load(Ordering::Relaxed);
        let due = until_ns != 0 && until_ns <= now && pace.waiting.load(Ordering::Relaxed) == 0;
        let next = now + AVOIDED_NS;
        let order = Ordering::Relaxed;
        due && pace.avoided_until_ns.compare_exchange(until_ns, next, order, order).is_ok()
    }

    /// Reads the first copy; if that fails or is slow, also the second. Uses the first answer.
    pub(crate) fn read(
        self: &Arc<Balance>,
        copies: &[Candidate; 2],
        into: &mut [u8],
        read: &Arc<Read>,
    ) -> Result<()> {
        let save = |saved: u64| Some((saved + 1).min(READS_PER_HEDGE * HEDGES_SAVED_MAX));
        let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, save);
        let (send, answers) = channel();
        let here = |which: usize, into: &mut [u8]| {
            let (slot, store) = &copies[which];
            self.timed(*slot, into.len(), || read(which, &**store, into))
        };
        if self.is_due(copies[1].0) {
            self.ask(1, copies, into.len(), read, &channel().0);
        }
        let watch = Stopwatch::start();
        let ask = |which: usize, bytes: usize| self.ask(which, copies, bytes, read, &send);
        let first = match ask(0, into.len()) {
            Asked::Yes => 0,
            Asked::Full if ask(1, into.len()) == Asked::Yes => 1,
            _ => return here(0, into).or_else(|why| here(1, into).map_err(|_| why)),
        };
        let other = 1 - first;
        let slots = [first, other].map(|which| copies[which].0);
        let slow = Duration::from_nanos(self.slow_ns(into.len()));
        let (mut waiting, mut failure, mut asked_both) = (1, None, false);
        while waiting > 0 {
            let answer = match asked_both {
                false => answers.recv_timeout(slow).ok(),
                // Each thread answers, since a store has a limited time.
                true => Some(answers.recv().expect("a thread answers")),
            };
            match answer {
                Some((which, Ok(bytes))) => {
                    if asked_both && failure.is_none() && which == other {
                        self.paces[slots[0]].avoid_slow(watch.ns() / units(bytes.len()));
                    }
                    into.copy_from_slice(&bytes);
                    return Ok(());
                }
                Some((_, Err(why))) => {
                    failure.get_or_insert(why);
                    waiting -= 1;
                }
                None if self.should_hedge(slots, into.len(), watch.ns()) => {}
                None => continue,
            }
            if !std::mem::replace(&mut asked_both, true) {
                if ask(other, into.len()) == Asked::Yes {
                    waiting += 1;
                } else if here(other, into).is_ok() {
                    if failure.is_none() {
                        self.paces[slots[0]].avoid_slow(watch.ns() / units(into.len()));
                    }
                    return Ok(());
                }
            }
        }
        Err(failure.expect("all that were asked failed"))
    }

    /// Lets a thread read a copy, if there is one for it.
    fn ask(
        self: &Arc<Balance>,
        which: usize,
        copies: &[Candidate; 2],
        bytes: usize,
        read: &Arc<Read>,
        answer: &Sender<(usize, Result<Vec<u8>>)>,
    ) -> Asked {
        let (slot, store) = copies[which].clone();
        if self.paces[slot].is_full() {
            return Asked::Full;
        }
        if self.busy.fetch_add(1, Ordering::Relaxed) >= THREADS {
            self.busy.fetch_sub(1, Ordering::Relaxed);
            return Asked::NoThread;
        }
        let (own, read, answer) = (Arc::clone(self), Arc::clone(read), answer.clone());
        self.pool.spawn(move || {
            let mut into = vec![0; bytes];
            let asked = own.timed(slot, bytes, || read(which, &*store, &mut into));
            own.busy.fetch_sub(1, Ordering::Relaxed);
            // The caller may have the other copy by now.
            let _ = answer.send((which, asked.map(|()| into)));
        });
        Asked::Yes
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use thalweg_io::sim::Sim;

    use super::*;
    use crate::{Error, LocalStore};

    fn copies(sim: &Sim) -> [Candidate; 2] {
        [0, 1].map(|slot| {
            let dir = format!("/s{slot}");
            sim.make_dir(&dir);
            LocalStore::create(&sim.io(), Path::new(&dir), 7, slot).unwrap();
            let store = LocalStore::open(&sim.io(), Path::new(&dir), 7, slot).unwrap();
            (slot as usize, Arc::new(store) as Arc<dyn Store>)
        })
    }

    /// Reads copies as ones and twos, but waits with this copy until something is sent, or the sender is dropped.
    fn held(copy: usize) -> (Sender<()>, Arc<Read>) {
        let (release, held) = channel();
        let held = Mutex::new(held);
        let read = move |which: usize, _: &dyn Store, into: &mut [u8]| {
            if which == copy {
                let _ = held.lock().unwrap().recv();
            }
            into.fill(which as u8 + 1);
            Ok(())
        };
        (release, Arc::new(read))
    }

    /// Reads copies as ones and twos; the first takes this long.
    fn slow_first(takes: Duration) -> Arc<Read> {
        let (never, held) = channel::<()>();
        let held = Mutex::new((never, held));
        Arc::new(move |which, _, into| {
            if which == 0 {
                let _ = held.lock().unwrap().1.recv_timeout(takes);
            }
            into.fill(which as u8 + 1);
            Ok(())
        })
    }

    /// Also if only one thread is left, so that the caller has to read the other copy itself.
    #[test]
    fn a_copy_that_does_not_answer_is_read_from_the_other_and_avoided() {
        for busy in [0, THREADS - 1] {
            let (sim, balance) = (Sim::new(1), Balance::new(2).unwrap());
            balance.busy.store(busy, Ordering::Relaxed);
            let (release, read) = held(0);
            assert!(!balance.prefers_second([0, 1], 0));
            let mut into = [0; 100];
            balance.read(&copies(&sim), &mut into, &read).unwrap();
            assert_eq!(into, [2; 100]);
            assert!(balance.prefers_second([0, 1], 0));
            drop(release);
        }
    }

    #[test]
    fn a_copy_that_fails_is_read_from_the_other_and_an_error_is_the_first() {
        let (sim, balance) = (Sim::new(1), Balance::new(2).unwrap());
        let copies = copies(&sim);
        let read: Arc<Read> = Arc::new(|which, _, into| match which {
            0 => Err(Error::system(libc::EIO, "the first")),
            _ => {
                into.fill(2);
                Ok(())
            }
        });
        let mut into = [0; 10];
        balance.read(&copies, &mut into, &read).unwrap();
        assert_eq!(into, [2; 10]);
        let read: Arc<Read> = Arc::new(|which, _, _| Err(Error::system(libc::EIO, format!("copy {which}"))));
        let why = balance.read(&copies, &mut into, &read).unwrap_err().to_string();
        assert!(why.contains("copy 0"), "{why}");
    }

    #[test]
    fn reads_are_spread_and_the_one_that_should_answer_first_is_asked() {
        let balance = Balance::new(3).unwrap();
        let turns = [0, 1, 2, 3].map(|turn| balance.prefers_second([0, 1], turn));
        assert_eq!(turns, [false, true, false, true]);
        for _ in 0..20 {
            smoothed(&balance.paces[0].usual_ns, 1_000);
            smoothed(&balance.paces[1].usual_ns, 3_000);
        }
        assert_eq!([0, 1].map(|turn| balance.prefers_second([0, 1], turn)), [false, false]);
        // It has more requests now.
        balance.paces[0].waiting.store(9, Ordering::Relaxed);
        assert_eq!([0, 1].map(|turn| balance.prefers_second([0, 1], turn)), [true, true]);
    }

    #[test]
    fn a_store_that_was_slow_is_tried_and_nobody_waits_for_it() {
        let (sim, balance) = (Sim::new(1), Balance::new(2).unwrap());
        let (release, read) = held(1);
        balance.paces[1].avoid(0);
        let mut into = [0; 100];
        balance.read(&copies(&sim), &mut into, &read).unwrap();
        assert_eq!(into, [1; 100]);
        assert!(balance.paces[1].is_avoided());
        release.send(()).unwrap();
        let watch = Stopwatch::start();
        while balance.paces[1].is_avoided() {
            assert!(watch.ns() < 10 * AVOIDED_NS, "it answered, and is avoided");
            std::thread::yield_now();
        }
    }

    /// Otherwise a program that reads one part after the other would wait for it, and never read enough to hedge.
    #[test]
    fn a_read_that_waits_long_is_hedged_if_the_other_copy_should_be_there_sooner() {
        for (usual_ns, copy) in [(1_000, 2), (10 * LONG_NS, 1)] {
            let (copies, balance) = (copies(&Sim::new(1)), Balance::new(2).unwrap());
            balance.saved.store(0, Ordering::Relaxed);
            smoothed(&balance.paces[1].usual_ns, usual_ns);
            let mut into = [0; 100];
            balance.read(&copies, &mut into, &slow_first(Duration::from_nanos(3 * LONG_NS))).unwrap();
            assert_eq!(into, [copy; 100]);
        }
    }

    /// Regression: a reader waited for a store behind a slow link until that failed, 10 s later, though the other copy
    /// was there long before. Both stores were slow, so the read was hedged, without a thread for the full store.
    #[test]
    fn a_read_is_not_hedged_at_a_store_that_is_full() {
        let (copies, balance) = (copies(&Sim::new(1)), Balance::new(2).unwrap());
        balance.paces[0].avoid(AVOIDED_NS);
        balance.paces[1].waiting.store(WAITING_MAX, Ordering::Relaxed);
        let mut into = [0; 100];
        balance.read(&copies, &mut into, &slow_first(Duration::from_nanos(3 * SLOW_NS_FIRST))).unwrap();
        assert_eq!(into, [1; 100]);
        balance.paces[0].waiting.store(WAITING_MAX, Ordering::Relaxed);
        balance.paces[1].waiting.store(0, Ordering::Relaxed);
        balance.read(&copies, &mut into, &held(0).1).unwrap();
        assert_eq!(into, [2; 100], "it is not asked first either");
    }

    #[test]
    fn of_two_slow_stores_the_less_slow_one_is_asked() {
        let balance = Balance::new(2).unwrap();
        balance.paces[0].avoid_slow(100 * SLOW_NS_MIN);
        balance.paces[1].avoid_slow(SLOW_NS_MIN);
        balance.paces.iter().for_each(|pace| pace.waiting.store(WAITING_MAX, Ordering::Relaxed));
        assert_eq!([0, 1].map(|turn| balance.prefers_second([0, 1], turn)), [true, true]);
    }

    #[test]
    fn where_all_stores_are_slow_few_reads_are_made_twice() {
        let (copies, balance) = (copies(&Sim::new(1)), Balance::new(2).unwrap());
        balance.saved.store(READS_PER_HEDGE - 2, Ordering::Relaxed);
        let second = Arc::new(AtomicU64::new(0));
        let asked = Arc::clone(&second);
        let (never, held) = channel::<()>();
        let held = Mutex::new(held);
        let read: Arc<Read> = Arc::new(move |which, _, into| {
            if which == 0 {
                // Slow, and longer than a read of the other copy takes.
                let _ = held.lock().unwrap().recv_timeout(Duration::from_nanos(3 * SLOW_NS_FIRST));
            }
            asked.fetch_add(which as u64, Ordering::Relaxed);
            into.fill(which as u8 + 1);
            Ok(())
        });
        let mut into = [0; 100];
        let mut twice = || {
            balance.read(&copies, &mut into, &read).unwrap();
            balance.paces.iter().for_each(|pace| pace.usual_ns.store(0, Ordering::Relaxed));
            second.load(Ordering::Relaxed)
        };
        assert_eq!([twice(), twice()], [0, 1]);
        drop(never);
    }
}
