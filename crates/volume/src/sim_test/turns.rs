//! Lets a repair go on while clients act: two threads, one of which runs at a time.
//!
//! Model: where one of them may be interrupted, the seed decides whether the other goes on. Both have the same clock,
//! which does not move unless a request waits.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use thalweg_base::rng::Rng;

use crate::server::Simulated;

/// How many points a thread passes before it is interrupted: fewer than one of these, chosen each time. Some faults
/// appear only if one side does a lot while the other is in the middle of something.
const RUNS: [u64; 3] = [2, 12, 100];
/// Whoever waits for a fence waits until it is over by itself this often.
const LATE_ONE_IN: u64 = 30;

thread_local! {
    static REPAIRS: Cell<bool> = const { Cell::new(false) };
}

pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    rng: Rng,
    now_ns: u64,
    /// A repair is under way.
    has_repair: bool,
    /// It runs now.
    repairs: bool,
    /// The other thread may be interrupted.
    may_pause: bool,
    /// How many more points the thread that runs passes.
    left: u64,
}

impl Turns {
    pub(super) fn new(seed: u64) -> Arc<Turns> {
        let rng = Rng::new(seed ^ 1 << 40);
        let state = State { rng, now_ns: 0, has_repair: false, repairs: false, may_pause: false, left: 0 };
        Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    pub(super) fn has_repair(&self) -> bool {
        self.state().has_repair
    }

    /// Whether clients may be interrupted in what they do from now on.
    pub(super) fn may_pause(&self, may_pause: bool) {
        self.state().may_pause = may_pause;
    }

    /// Here the other thread may go on.
    pub(super) fn pause(&self) {
        let mut state = self.state();
        if !state.has_repair || !(REPAIRS.get() || state.may_pause) {
            return;
        }
        if state.left > 0 {
            state.left -= 1;
            return;
        }
        drop(state);
        self.pass();
    }

    /// Lets the other thread go on until it is interrupted. Returns whether there is one.
    pub(super) fn pass(&self) -> bool {
        let mut state = self.state();
        if !state.has_repair {
            return false;
        }
        state.repairs = !REPAIRS.get();
        let most = RUNS[state.rng.below(RUNS.len() as u64) as usize];
        state.left = state.rng.below(most);
        self.changed.notify_all();
        drop(
            self.changed.wait_while(state, |state| state.repairs != REPAIRS.get()).expect("no holder panics"),
        );
        true
    }

    /// Begins a repair, which goes on when this thread lets it.
    pub(super) fn begin(self: &Arc<Turns>, repair: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        self.state().has_repair = true;
        let own = Arc::clone(self);
        std::thread::spawn(move || {
            REPAIRS.set(true);
            let _ending = Ending(&own);
            drop(own.changed.wait_while(own.state(), |state| !state.repairs).expect("no holder panics"));
            repair();
        })
    }
}

/// Ends the repair, also if it panics.
struct Ending<'a>(&'a Turns);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.has_repair, state.repairs) = (false, false);
        self.0.changed.notify_all();
    }
}

impl Simulated for Turns {
    fn now_ns(&self) -> u64 {
        self.state().now_ns
    }

    fn wait(&self, until_ns: u64) {
        let is_late = until_ns != u64::MAX && self.state().rng.one_in(LATE_ONE_IN);
        if is_late || !self.pass() {
            assert_ne!(until_ns, u64::MAX, "nobody would end the wait");
            let mut state = self.state();
            state.now_ns = state.now_ns.max(until_ns);
        }
    }
}
