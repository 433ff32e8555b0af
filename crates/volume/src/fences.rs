//! Fences: while a client repairs a file, no other client learns the generation in which it does that.
//!
//! Model: one session at a time may repair; the server's own gives way to that of a client. It fences one file, which
//! begins a generation of that file: the stores that it tells refuse all other clients, and their requests to the
//! manager are answered when the fence has ended.
//! Invariant: a session other than the one that repairs gets no generation that began with a fence before that fence is
//! lifted. A fence that ends in another way is followed by one more generation, so that stores refuse what the client
//! that repaired still sends.
//! Non-goals: what is done during a fence; see repair.rs.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fence::{Fence, Fencing};
use crate::manager::{Change, Inode};
use crate::opened::SessionId;
use crate::server::Server;
use crate::{Error, Result};

/// The longest time that a file is fenced, in nanoseconds: clients that wait must be answered within
/// [`crate::connection::PATIENCE`].
const FENCE_NS: u64 = 5_000_000_000;
/// How long a repair waits for the end of another one: that of a client that has just ended.
const ENDING_NS: u64 = 2_000_000_000;

impl Server {
    /// Begins a repair. The session that `gives_way` cannot go on once another one has begun.
    pub(crate) fn begin_repair(&self, session: SessionId, gives_way: bool) -> Result<()> {
        let until_ns = self.now_ns() + ENDING_NS;
        loop {
            let mut state = self.fences.state();
            if state.repairs.is_none_or(|(repairs, gives)| repairs == session || (gives && !gives_way)) {
                state.repairs = Some((session, gives_way));
                return Ok(());
            }
            if gives_way || self.now_ns() >= until_ns {
                return Err(Error::Refused("another client repairs this volume; wait for its end".into()));
            }
            self.wait(&self.fences.changed, state, until_ns);
        }
    }

    /// Whether this session repairs.
    pub(crate) fn repairs(&self, session: SessionId) -> bool {
        self.fences.state().repairs.is_some_and(|(repairs, _)| repairs == session)
    }

    /// Begins a new generation of a file, which is kept from other sessions until it is lifted.
    pub(crate) fn fence(&self, session: SessionId, inode: u64) -> Result<Inode> {
        let mut state = self.fences.state();
        if state.repairs.is_none_or(|(repairs, _)| repairs != session) {
            let why = "this client does not repair the volume any more; begin again";
            return Err(Error::Refused(why.into()));
        }
        self.end_fence(&mut state)?;
        let until_ns = self.now_ns() + FENCE_NS;
        state.fence = Some(Fence { session, inode, until_ns });
        state.begun += 1;
        drop(state);
        let raised =
            self.manager.change(&Change::Raise(inode, 0)).and_then(|raised| self.live(session, raised));
        raised.inspect_err(|_| self.lift(session, inode))
    }

    /// Ends a fence whose client has done all that it wants to do in the file's generation.
    pub(crate) fn lift(&self, session: SessionId, inode: u64) {
        let mut state = self.fences.state();
        state.fence.take_if(|fence| (fence.session, fence.inode) == (session, inode));
        self.fences.changed.notify_all();
    }

    /// Marks a copy as current, for the session that has fenced the file.
    pub(crate) fn make_current(&self, session: SessionId, inode: u64, change: &Change) -> Result<Inode> {
        let state = self.fences.state();
        match &state.fence {
            Some(fence)
                if (fence.session, fence.inode) == (session, inode) && self.now_ns() < fence.until_ns =>
            {
                self.manager.change(change)
            }
            _ => Err(Error::system(
                libc::ETIMEDOUT,
                format!("copies of inode {inode} were not made equal in time"),
            )),
        }
    }

    /// Before a session gets an inode: waits while another session fences the file, and gets the inode anew if its
    /// generation may be that of a fence. With `is_exact`, an error if the stores do not answer.
    pub(crate) fn wait_for_fence(&self, session: SessionId, inode: &mut Inode, is_exact: bool) -> Result<()> {
        loop {
            let mut state = self.fences.state();
            match &state.fence {
                Some(fence) if fence.session == session => return Ok(()),
                Some(fence) if fence.inode == inode.id => {
                    let until_ns = fence.until_ns;
                    if self.now_ns() < until_ns {
                        self.wait(&self.fences.changed, state, until_ns);
                        continue;
                    }
                    self.end_fence(&mut state)?;
                }
                _ => {}
            }
            // No fence can begin here, so the file is in a generation that all may know.
            let found = self.manager.inode(inode.id);
            drop(state);
            match found {
                Ok(found) if found.generation == inode.generation => return Ok(()),
                Ok(found) if is_exact => *inode = self.live(session, found)?,
                Ok(found) => *inode = self.live_if_known(session, found),
                Err(why) if why.is_not_found() => return Ok(()),
                Err(why) => return Err(why),
            }
        }
    }

    /// Ends a fence that was not lifted.
    fn end_fence(&self, state: &mut Fencing) -> Result<()> {
        let Some(fence) = &state.fence else { return Ok(()) };
        match self.manager.change(&Change::Raise(fence.inode, 0)) {
            Err(why) if !why.is_not_found() => return Err(why),
            _ => state.fence = None,
        }
        self.fences.changed.notify_all();
        Ok(())
    }

    /// Returns when no session but this one has names cached.
    pub(crate) fn wait_for_cached_names(&self, session: SessionId) {
        loop {
            let until_ns = self.cached_names.others_until_ns(session);
            if until_ns <= self.now_ns() {
                return;
            }
            // Leases end with time: nothing else is waited for.
            self.wait(&self.fences.changed, self.fences.state(), until_ns);
        }
    }

    /// Waits for a change, or until this time. The caller locks its state again.
    pub(crate) fn wait<T>(&self, changed: &Condvar, state: MutexGuard<'_, T>, until_ns: u64) {
        match &self.simulated {
            Some(simulated) => {
                drop(state);
                simulated.wait(until_ns);
            }
            None => {
                let left = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
                drop(changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

#[cfg(test)]
#[path = "fences_test.rs"]
mod tests;
