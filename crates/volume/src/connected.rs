//! Stores of this process, as managers ask them: the one that serves a volume of this machine, or managers on nodes.
//!
//! Invariant: a store of a node accepts no manager while another one that it has accepted is connected.
//! Non-goals: whether a peer may be a manager; see service.rs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::incarnation::{Held, Holder, Incarnation};
use crate::keeper::Keeper;
use crate::request::{StoreAnswer, StoreRequest};
use crate::{Error, LocalStore, Result, session};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper for LocalStore {
    fn held(&self, _place: &str) -> Result<Held> {
        let kept = self.kept().2;
        // A manager in the same place has ended: its directory is locked too.
        Ok(Held { holder: kept.holder(), is_served: kept.is_served_elsewhere() })
    }

    fn claim(&self, before: Incarnation, next: &Holder) -> Result<Holder> {
        let (io, dir, kept) = self.kept();
        kept.claim((io, dir), before, next)
    }

    fn ask(
        &self,
        by: Option<Incarnation>,
        request: &StoreRequest,
        sent: &[u8],
        into: &mut [u8],
    ) -> Result<StoreAnswer> {
        let holder = self.kept().2.read();
        match (by, request) {
            (Some(by), _) if by != holder.incarnation => Ok(StoreAnswer::Holder(holder.clone())),
            (_, StoreRequest::Held { .. }) => {
                Ok(StoreAnswer::Held(Held { holder: holder.clone(), is_served: false }))
            }
            _ => session::ask_store(self, request, sent, into),
        }
    }
}

/// The managers that are connected with a store of a node, each with the holder that it is.
#[derive(Default)]
pub(crate) struct Connected(Mutex<BTreeMap<u64, Holder>>);

/// A manager's connection with a store of its own or another node.
pub(crate) struct Connection {
    store: Arc<LocalStore>,
    connected: Arc<Connected>,
    number: u64,
}

impl Connection {
    pub(crate) fn new(store: &Arc<LocalStore>, connected: &Arc<Connected>) -> Connection {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Connection { store: Arc::clone(store), connected: Arc::clone(connected), number }
    }

    /// The holder, and whether its manager is connected and is not in this place.
    fn holder(&self, connected: &BTreeMap<u64, Holder>, place: &str) -> (Holder, bool) {
        let holder = self.store.kept().2.holder();
        let is_served = holder.place != place && connected.values().any(|other| *other == holder);
        (holder, is_served)
    }
}

impl Keeper for Connection {
    fn held(&self, place: &str) -> Result<Held> {
        let (holder, is_served) = self.holder(&locked(&self.connected.0), place);
        Ok(Held { holder, is_served })
    }

    fn claim(&self, before: Incarnation, next: &Holder) -> Result<Holder> {
        let mut connected = locked(&self.connected.0);
        if let (holder, true) = self.holder(&connected, &next.place) {
            return Err(Error::Refused(format!("the manager in {} is connected", holder.place)));
        }
        let holder = self.store.claim(before, next)?;
        if holder == *next {
            connected.insert(self.number, holder.clone());
        }
        Ok(holder)
    }

    fn ask(
        &self,
        by: Option<Incarnation>,
        request: &StoreRequest,
        sent: &[u8],
        into: &mut [u8],
    ) -> Result<StoreAnswer> {
        if let Some(by) = by {
            let mut connected = locked(&self.connected.0);
            let holder = self.store.kept().2.holder();
            if by == holder.incarnation && connected.get(&self.number) != Some(&holder) {
                connected.insert(self.number, holder);
            }
        }
        self.store.ask(by, request, sent, into)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        locked(&self.connected.0).remove(&self.number);
    }
}
