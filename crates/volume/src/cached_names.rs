//! Which clients may have names cached, and until when.
//!
//! Model: a client that uses a volume alone may keep what names mean for a moment, a lease. It asks before it reads a
//! name. Nobody gets a lease while there are two sessions, so only the first removal or renaming after another client
//! has come waits: until the lease of the first has ended.
//! Invariant: a client that acts on a name which it has cached acts on the inode that has the name then.
//! Non-goals: attributes, which may be older; names that do not exist, which no client caches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_base::clock::now_ns;

/// How long a lease lasts, from when the server grants it.
const LEASE: Duration = Duration::from_millis(500);
/// How long the client uses it, from when it asks: an answer to the kernel may take a while to get there.
const USED: Duration = Duration::from_millis(350);
/// How long the client does not ask again.
const PAUSE: Duration = Duration::from_millis(100);

fn after(now_ns: u64, time: Duration) -> u64 {
    now_ns + time.as_nanos() as u64
}

/// The leases that a server has granted.
#[derive(Default)]
pub(crate) struct CachedNames {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: BTreeSet<u64>,
    /// Until when each session may have names cached, also one that has ended.
    until_ns: BTreeMap<u64, u64>,
}

impl CachedNames {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begins(&self, session: u64) {
        self.state().sessions.insert(session);
    }

    pub(crate) fn ends(&self, session: u64) {
        self.state().sessions.remove(&session);
    }

    /// Whether several sessions use the volume.
    pub(crate) fn are_shared(&self) -> bool {
        self.state().sessions.len() > 1
    }

    /// Grants a lease if no other session uses the volume.
    pub(crate) fn may_cache(&self, session: u64, now_ns: u64) -> bool {
        let mut state = self.state();
        state.until_ns.retain(|_, until_ns| *until_ns > now_ns);
        let is_alone = state.sessions.iter().all(|other| *other == session);
        if is_alone {
            state.until_ns.insert(session, after(now_ns, LEASE));
        }
        is_alone
    }

    /// Until when sessions other than this one may have names cached.
    pub(crate) fn others_until_ns(&self, session: u64) -> u64 {
        let state = self.state();
        let others = state.until_ns.iter().filter(|(other, _)| **other != session);
        others.map(|(_, until_ns)| *until_ns).max().unwrap_or(0)
    }

    /// Notes that this session may have a lease, of this server or an earlier one.
    pub(crate) fn note(&self, session: u64, now_ns: u64) {
        self.state().until_ns.insert(session, after(now_ns, LEASE));
    }
}

/// The lease of a client.
#[derive(Default)]
pub(crate) struct Lease {
    until_ns: AtomicU64,
    /// When to ask again.
    next_ns: AtomicU64,
}

/// How long names may be cached that were read after this was made.
#[derive(Debug, Clone, Copy)]
pub struct Cacheable(u64);

impl Cacheable {
    /// How long from now on.
    pub fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now_ns()))
    }
}

impl Lease {
    /// How long names that are read from now on may be cached. `ask` asks the server for a lease.
    pub(crate) fn cacheable(&self, ask: impl FnOnce() -> bool) -> Cacheable {
        let now_ns = now_ns();
        let (next_ns, later_ns) = (self.next_ns.load(Ordering::Acquire), after(now_ns, PAUSE));
        // One thread asks, and the others use what is left.
        if now_ns >= next_ns
            && self.next_ns.compare_exchange(next_ns, later_ns, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.until_ns.store(if ask() { after(now_ns, USED) } else { 0 }, Ordering::Release);
        }
        Cacheable(self.until_ns.load(Ordering::Acquire))
    }
}
