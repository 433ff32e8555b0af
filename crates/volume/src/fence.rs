//! Which session of a server repairs, and which file it fences.
//!
//! Non-goals: what that means for the other sessions; see fences.rs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The session that repairs, and its fence.
#[derive(Default)]
pub(crate) struct Fences {
    state: Mutex<Fencing>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Fencing {
    /// The session that repairs, and whether it gives way to another one.
    pub(crate) repairs: Option<(u64, bool)>,
    pub(crate) fence: Option<Fence>,
    /// How many fences have begun.
    pub(crate) begun: u64,
}

/// A fenced file.
pub(crate) struct Fence {
    pub(crate) session: u64,
    pub(crate) inode: u64,
    pub(crate) until_ns: u64,
}

impl Fences {
    pub(crate) fn state(&self) -> MutexGuard<'_, Fencing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many fences there have been; `None` while there is one.
    pub(crate) fn past(&self) -> Option<u64> {
        let state = self.state();
        state.fence.is_none().then_some(state.begun)
    }

    #[cfg(test)]
    pub(crate) fn are_busy(&self) -> bool {
        self.state.try_lock().is_err()
    }

    /// Ends the repair of a session that has ended. If it leaves a fence, the next request for that file ends it.
    pub(crate) fn end(&self, session: u64) {
        let mut state = self.state();
        state.repairs.take_if(|(repairs, _)| *repairs == session);
        state.fence.iter_mut().filter(|fence| fence.session == session).for_each(|fence| fence.until_ns = 0);
        self.changed.notify_all();
    }
}
