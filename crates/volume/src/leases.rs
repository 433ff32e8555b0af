//! The locks of a volume at the server.
//!
//! Model: locks.rs decides; the clock and the waiting are here. A client that has locks or waits for some asks for news
//! all the time, and thereby renews its lease. Only requests for news take long: each occupies one thread of its
//! client's session, however many locks the client waits for.
//! Invariant: the next server has a table with another number, in which clients have to claim their locks.
//! Non-goals: what a client does when its lease has ended; see locker.rs.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_base::clock::now_ns;
use thalweg_io::hidden;

use crate::locks::{ClientId, How, Locks, Verdict};
use crate::opened::SessionId;
use crate::request::{ChangeNumber, LockAnswer, LockRequest};
use crate::{Manager, Result};

/// The longest time that a request for news waits.
const NEWS: Duration = Duration::from_secs(2);
/// How often the leases of other clients are checked.
const LOOK: Duration = Duration::from_millis(250);

pub(crate) struct Leases {
    /// The number of the table.
    number: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    locks: Locks,
    /// The client of each session that has asked about locks.
    clients: HashMap<SessionId, ClientId>,
    /// Requests for news are answered at once.
    is_closing: bool,
}

impl Leases {
    /// An empty table. If clients of a previous server may come, those that had locks can reclaim them for a while.
    pub(crate) fn new(manager: &dyn Manager, may_come: bool) -> Result<Leases> {
        let mut expected = manager.lockers()?;
        if !may_come {
            expected.drain(..).try_for_each(|client| manager.set_locker(client, false))?;
        }
        let locks = Locks::new(now_ns(), expected);
        let state = Mutex::new(State { locks, clients: HashMap::new(), is_closing: false });
        Ok(Leases { number: hidden::random(), state, changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all waiting for news.
    pub(crate) fn close(&self) {
        self.state().is_closing = true;
        self.changed.notify_all();
    }

    /// Ends a session whose client cannot come back.
    pub(crate) fn end(&self, manager: &dyn Manager, session: SessionId) {
        let mut state = self.state();
        let Some(client) = state.clients.remove(&session) else { return };
        // The client may have come back already, in another session.
        if !state.clients.values().any(|known| *known == client) {
            state.locks.end(client);
            forget(manager, &[client]);
            self.changed.notify_all();
        }
    }

    /// Answers a client. `last_change` is called for each file in which it gets a lock.
    pub(crate) fn answer(
        &self,
        manager: &dyn Manager,
        (session, client): (SessionId, ClientId),
        table: u64,
        ask: &LockRequest,
        last_change: impl Fn(u64) -> ChangeNumber,
    ) -> LockAnswer {
        let mut state = self.state();
        let now = now_ns();
        state.tick(manager, now);
        let is_known = match ask {
            // Even if it has not claimed its locks here: then nobody has to wait for that.
            LockRequest::Leave => {
                state.locks.end(client);
                forget(manager, &[client]);
                true
            }
            // Before it has a lock, so that the next server waits for this client.
            LockRequest::Claim(locks) => {
                manager.set_locker(client, true).is_ok() && state.locks.claim(client, locks, now)
            }
            _ => table == self.number && state.locks.hear(client, now),
        };
        if !is_known {
            return LockAnswer::Unknown(self.number);
        }
        let answer = match ask {
            LockRequest::Claim(_) => {
                state.clients.insert(session, client);
                LockAnswer::Claimed(self.number)
            }
            LockRequest::Ask(ticket, lock, how) => {
                let verdict = state.locks.ask(client, *ticket, *lock, *how);
                let is_granted = verdict == Some(Verdict::Free) && *how != How::Test;
                LockAnswer::Verdict(verdict, if is_granted { last_change(lock.inode) } else { 0 })
            }
            LockRequest::Unlock(range) => match state.locks.unlock(client, *range) {
                true => LockAnswer::Done,
                false => LockAnswer::Verdict(Some(Verdict::Full), 0),
            },
            LockRequest::Cancel(inode, ticket) => {
                LockAnswer::Cancelled(state.locks.cancel(client, *inode, *ticket))
            }
            LockRequest::Leave => LockAnswer::Done,
            LockRequest::News => return self.news(manager, client, state, last_change),
        };
        // Other clients may have got locks by this.
        self.changed.notify_all();
        answer
    }

    fn news(
        &self,
        manager: &dyn Manager,
        client: ClientId,
        mut state: MutexGuard<'_, State>,
        last_change: impl Fn(u64) -> ChangeNumber,
    ) -> LockAnswer {
        let until = now_ns() + NEWS.as_nanos() as u64;
        loop {
            let Some(news) = state.locks.news(client) else { return LockAnswer::Unknown(self.number) };
            let now = now_ns();
            if !news.is_empty() || now >= until || state.is_closing {
                let change = |inode, verdict| if verdict == Verdict::Free { last_change(inode) } else { 0 };
                let told = |(ticket, inode, verdict)| (ticket, (verdict, change(inode, verdict)));
                return LockAnswer::News(news.into_iter().map(told).collect());
            }
            let patience = LOOK.min(Duration::from_nanos(until - now));
            state = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
            state.tick(manager, now_ns());
        }
    }
}

impl State {
    fn tick(&mut self, manager: &dyn Manager, now_ns: u64) {
        let gone = self.locks.tick(now_ns);
        self.clients.retain(|_, client| !gone.contains(client));
        forget(manager, &gone);
    }
}

/// Notes that no server has to wait for the locks of these clients.
fn forget(manager: &dyn Manager, clients: &[ClientId]) {
    for client in clients {
        // If this fails, the next server waits for them in vain.
        let _ = manager.set_locker(*client, false);
    }
}
