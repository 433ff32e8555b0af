//! The connections of each caller: a new one ends the previous one.
//!
//! Model: a caller that gets no answer in time gives up its connection and makes another one. Requests that it had sent
//! may still be in buffers, or wait for a slow disk. So each caller has a number, and so has each of its connections,
//! in ascending order; before a server serves a later connection, it ends the previous one.
//! Invariant: once a connection is let in, no request of an earlier one of this caller is under way or will be carried
//! out. So a failed request can be repeated, and its first attempt cannot undo anything that is done afterwards.
//! Non-goals: requests of a caller that does not come back; stores refuse those by the generation of the file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_base::clock::wall_ns;
use thalweg_io::hidden;

use crate::codec::record;
use crate::{Error, Result};

/// How long a connection waits for the running requests of an earlier one: less than its client waits for it.
const EARLIER: Duration = Duration::from_secs(5);

/// A caller, and the number of its connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) number: [u64; 2],
    pub(crate) turn: u64,
}

record!(Caller { number, turn });

/// Numbers the connections of one caller.
pub(crate) struct Turns {
    number: [u64; 2],
    last: AtomicU64,
}

impl Turns {
    /// For a new caller, whose number is random.
    pub(crate) fn new() -> Turns {
        Turns { number: [hidden::random(), hidden::random()], last: AtomicU64::new(0) }
    }

    /// For a volume's manager as a caller of a slot's store: the next process with the manager in this place is the same
    /// caller.
    pub(crate) fn of_manager(volume: u128, slot: u32, place: &str) -> Turns {
        let place = u64::from(crc32c::crc32c(place.as_bytes()));
        let number = [(volume >> 64) as u64 ^ place, (volume as u64).wrapping_add(u64::from(slot))];
        Turns { number, last: AtomicU64::new(wall_ns() as u64) }
    }

    /// The number of the next connection.
    pub(crate) fn next(&self) -> Caller {
        Caller { number: self.number, turn: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

/// The name in a caller's certificate, and its number, so that no caller can end another's connections.
type Key = (String, [u64; 2]);

/// The callers of a server, each with its last connection.
#[derive(Default)]
pub(crate) struct Callers(Mutex<HashMap<Key, Arc<Served>>>);

/// A connection that is served.
struct Served {
    turn: u64,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    under_way: usize,
    is_over: bool,
}

impl Served {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses further requests, and waits for those under way. Returns whether they ended in time.
    fn ends(&self) -> bool {
        let mut state = self.state();
        state.is_over = true;
        let waited = self.idle.wait_timeout_while(state, EARLIER, |state| state.under_way > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.under_way == 0
    }
}

impl Callers {
    fn table(&self) -> MutexGuard<'_, HashMap<Key, Arc<Served>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a caller's connection in after the previous one has ended. `name` is the name in its certificate.
    pub(crate) fn enter(self: &Arc<Callers>, name: &str, caller: Caller) -> Result<Entered> {
        let key = (name.to_string(), caller.number);
        loop {
            let before = self.table().get(&key).cloned();
            if let Some(before) = &before {
                if before.turn >= caller.turn {
                    return Err(Error::Refused("this client has made another connection since".into()));
                }
                if !before.ends() {
                    let seconds = EARLIER.as_secs();
                    return Err(Error::Refused(format!(
                        "requests of an earlier connection are still carried out after {seconds} seconds; try again later"
                    )));
                }
            }
            let mut table = self.table();
            // Otherwise another connection came first, and this one tries again.
            if table.get(&key).map(Arc::as_ptr) == before.as_ref().map(Arc::as_ptr) {
                let served = Served { turn: caller.turn, state: Mutex::default(), idle: Condvar::new() };
                let served = Arc::new(served);
                table.insert(key.clone(), Arc::clone(&served));
                return Ok(Entered { callers: Arc::clone(self), key, served });
            }
        }
    }
}

/// A connection that was let in, until it has ended.
pub(crate) struct Entered {
    callers: Arc<Callers>,
    key: Key,
    served: Arc<Served>,
}

/// A request that is under way; it is also counted as ended if it panics.
struct UnderWay<'a>(&'a Served);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way -= 1;
        if state.is_over {
            self.0.idle.notify_all();
        }
    }
}

impl Entered {
    /// Carries out a request, unless a later connection has been made.
    pub(crate) fn carry_out<T>(&self, request: impl FnOnce() -> T) -> Option<T> {
        {
            let mut state = self.served.state();
            if state.is_over {
                return None;
            }
            state.under_way += 1;
        }
        let _under_way = UnderWay(&self.served);
        Some(request())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut table = self.callers.table();
        if table.get(&self.key).is_some_and(|last| Arc::ptr_eq(last, &self.served)) {
            table.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_later_connection_waits_for_what_is_under_way_and_nothing_follows_it() {
        let (callers, turns) = (Arc::<Callers>::default(), Turns::new());
        let (first, second) = (turns.next(), turns.next());
        let before = callers.enter("ann", first).unwrap();
        let order = Mutex::new(Vec::new());
        let note = |what| order.lock().unwrap().push(what);
        let ((begins, under_way), (finish, finished)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            let (before, note, callers) = (&before, &note, &callers);
            scope.spawn(move || {
                let request = || {
                    begins.send(()).unwrap();
                    finished.recv().unwrap();
                    note("the first request is carried out");
                };
                before.carry_out(request).unwrap();
            });
            under_way.recv().unwrap();
            scope.spawn(move || {
                let after = callers.enter("ann", second).unwrap();
                note("the second connection is let in");
                assert_eq!(before.carry_out(|| ()), None, "what comes late is not carried out");
                assert_eq!(after.carry_out(|| ()), Some(()));
            });
            // The connection is over now, and the later one waits.
            while before.carry_out(|| ()).is_some() {
                std::thread::yield_now();
            }
            finish.send(()).unwrap();
        });
        assert_eq!(
            *order.lock().unwrap(),
            ["the first request is carried out", "the second connection is let in"]
        );
    }

    #[test]
    fn an_earlier_connection_that_comes_late_is_refused_and_others_are_left_alone() {
        let (callers, turns) = (Arc::<Callers>::default(), Turns::new());
        let (first, second) = (turns.next(), turns.next());
        let after = callers.enter("ann", second).unwrap();
        assert!(callers.enter("ann", first).is_err());
        assert!(callers.enter("eve", Caller { turn: 9, ..second }).is_ok(), "who has another name");
        assert!(callers.enter("ann", Turns::new().next()).is_ok(), "who has another number");
        assert_eq!(after.carry_out(|| ()), Some(()));
        drop(after);
        assert_eq!(callers.table().len(), 0, "nothing is left of those that ended");
    }

    #[test]
    fn the_manager_that_comes_next_is_the_same_caller_later() {
        let [before, after] = [(); 2].map(|()| Turns::of_manager(5 << 64 | 7, 3, "n1:/m"));
        let (before, after) = (before.next(), after.next());
        assert_eq!(before.number, after.number);
        assert!(before.turn < after.turn);
        assert_ne!(Turns::of_manager(5 << 64 | 7, 2, "n1:/m").next().number, before.number);
        assert_ne!(Turns::of_manager(5 << 64 | 7, 3, "n1:/copy").next().number, before.number);
    }
}
