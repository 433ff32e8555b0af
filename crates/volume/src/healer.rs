//! The thread with which a server repairs by itself: what it found and does, and how it ends.
//!
//! Non-goals: what it does; see heal.rs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::request::Healing;

/// What a server knows about its own repairs.
#[derive(Default)]
pub(crate) struct Healer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) is_running: bool,
    should_end: bool,
    /// The files that miss copies, and their bytes, as of the last look.
    pub(crate) short: (u64, u64),
    pub(crate) healing: Option<Healing>,
    pub(crate) repaired_bytes: u64,
}

impl Healer {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that miss copies and their bytes, as of the last look; and how many bytes were copied.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let state = self.state();
        [state.short.0, state.short.1, state.repaired_bytes]
    }

    /// Notes that the thread has ended.
    pub(crate) fn has_ended(&self) {
        self.state().is_running = false;
        self.changed.notify_all();
    }

    /// Lets the thread end, without waiting for it.
    pub(crate) fn ends(&self) {
        self.state().should_end = true;
        self.changed.notify_all();
    }

    /// Ends the thread. It may first wait for the answer of a store.
    pub(crate) fn end(&self) {
        self.ends();
        let ended = self.changed.wait_while(self.state(), |state| state.is_running);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits, unless the thread should end. Returns whether it should.
    pub(crate) fn waits(&self, most: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), most, |state| !state.should_end);
        waited.unwrap_or_else(PoisonError::into_inner).0.should_end
    }
}
