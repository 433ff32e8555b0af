//! Writes that the store of one node forwards to the store of the strip's other copy, on another node.
//!
//! ```text
//! client --write--> store --the same, while it writes itself--> mirror
//!        <--both?--       <--done--
//! ```
//!
//! Model: a node has one stream to each store that it forwards to, which all its clients share. A thread opens it; a
//! write waits for that only a moment. If the store did not forward a write, the client sends it to the mirror itself.
//! Invariant: a write is answered within [`CONNECTING`] + [`PATIENCE`]: the mirror has it, will never have it, or may
//! still get it. A store takes forwarded writes only from nodes that a client with the right to change it has named.
//! Non-goals: which copy is current; the client decides that, as for its own writes.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_api::VolumeRequest;
use thalweg_base::clock::{Stopwatch, now_ns};
use thalweg_wire::Id;
use thalweg_wire::threads::spawn;

use crate::callers::Turns;
use crate::connection::{Connection, Failure};
use crate::location::Location;
use crate::message::{Ask, Reply};
use crate::remote::Dial;
use crate::request::{Forwarded, StoreAnswer, StoreRequest};
use crate::store::Write;
use crate::{Error, Result};

/// The longest time that the mirror has for a write: less than the client waits for the forwarding store.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a write waits for a stream that is being opened.
const CONNECTING: Duration = Duration::from_secs(1);
/// The most stores that a node forwards to.
const MIRRORS_MAX: usize = 256;
/// The most nodes that a client can name.
const PEERS_MAX: usize = 256;

/// The stores that a node forwards to.
pub(crate) struct Mirrors {
    dial: Arc<dyn Dial>,
    known: Mutex<HashMap<(Location, u128, u32), Arc<Mirror>>>,
}

impl Mirrors {
    pub(crate) fn new(dial: Arc<dyn Dial>) -> Mirrors {
        Mirrors { dial, known: Mutex::default() }
    }

    /// The store of this slot of a volume.
    pub(crate) fn get(&self, place: &str, volume: u128, slot: u32) -> Result<Arc<Mirror>> {
        let place = Location::needed(place)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MIRRORS_MAX {
            known.retain(|_, mirror| matches!(*mirror.state(), State::Open(..)));
        }
        let is_full = known.len() >= MIRRORS_MAX;
        match known.entry((place.clone(), volume, slot)) {
            std::collections::hash_map::Entry::Occupied(mirror) => Ok(Arc::clone(mirror.get())),
            _ if is_full => Err(Error::Refused(format!("this node forwards to {MIRRORS_MAX} stores"))),
            std::collections::hash_map::Entry::Vacant(free) => {
                let mirror = Mirror::new(&self.dial, place, (volume, slot));
                Ok(Arc::clone(free.insert(Arc::new(mirror))))
            }
        }
    }
}

/// A store on another node, for the node that forwards writes to it.
pub(crate) struct Mirror {
    dial: Arc<dyn Dial>,
    place: Location,
    slot: u32,
    request: VolumeRequest,
    turns: Turns,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    /// Closed until this time, for this reason.
    Closed(u64, String),
    Opening,
    /// Open, with the boot of the mirror's machine.
    Open(Arc<Connection>, String),
}

impl Mirror {
    fn new(dial: &Arc<dyn Dial>, place: Location, (volume, slot): (u128, u32)) -> Mirror {
        let directory = place.directory.display().to_string();
        Mirror {
            dial: Arc::clone(dial),
            place,
            slot,
            request: VolumeRequest::Forward { directory, volume: Id(volume).to_string(), slot },
            turns: Turns::new(),
            state: Mutex::new(State::Closed(0, String::new())),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the mirror write while `here` writes. Returns the results of both.
    pub(crate) fn write<T>(
        self: &Arc<Mirror>,
        write: Write,
        from: &[u8],
        here: impl FnOnce() -> T,
    ) -> (Forwarded, T) {
        let (connection, boot) = match self.open() {
            Ok(open) => open,
            Err(why) => return (Forwarded::Unsent(why), here()),
        };
        let sent = connection.send(&Ask::Store(self.slot, StoreRequest::Write(write)), from);
        let written = here();
        let failure = match sent.and_then(|number| connection.answer(number, &mut [], PATIENCE)) {
            Ok(Reply::Store(StoreAnswer::Done)) => return (Forwarded::Written(boot), written),
            Ok(_) => Failure::Unanswered,
            Err(failure) => failure,
        };
        let is_over = connection.is_broken();
        let forwarded = match failure {
            Failure::Told(why) if !is_over => Forwarded::Unsent(why.to_string()),
            Failure::Told(why) => Forwarded::Unsure(why.to_string()),
            Failure::Unsent => Forwarded::Unsent(format!("the stream to {} ended", self.place)),
            Failure::Unanswered => Forwarded::Unsure(format!("{} did not answer", self.place)),
        };
        (forwarded, written)
    }

    /// The stream, opened if needed and allowed.
    fn open(self: &Arc<Mirror>) -> std::result::Result<(Arc<Connection>, String), String> {
        let watch = Stopwatch::start();
        let mut state = self.state();
        loop {
            match &*state {
                State::Open(connection, boot) if connection.is_open() => {
                    return Ok((Arc::clone(connection), boot.clone()));
                }
                State::Closed(until_ns, why) if now_ns() < *until_ns => return Err(why.clone()),
                State::Opening => {
                    let left = CONNECTING.saturating_sub(Duration::from_nanos(watch.ns()));
                    if left.is_zero() {
                        return Err(format!("the stream to {} is not open yet", self.place));
                    }
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                _ => {
                    *state = State::Opening;
                    let own = Arc::clone(self);
                    if !spawn("mirror", move || own.connect()) {
                        *state = State::Closed(0, String::new());
                        return Err("the system has no thread left".into());
                    }
                }
            }
        }
    }

    fn connect(&self) {
        let watch = Stopwatch::start();
        let connected = self.dial.connect("a mirror", &self.place.node, &self.request, self.turns.next());
        *self.state() = match connected {
            Ok((connection, attached)) => State::Open(Arc::new(connection), attached.boot),
            Err(why) => State::Closed(now_ns() + self.dial.pause_ns(watch.ns()), why.to_string()),
        };
        self.changed.notify_all();
    }
}

/// The nodes that may forward writes to a store, and how many clients named each.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<String, usize>>);

/// The nodes that a client named, for the duration of its session.
pub(crate) struct Named {
    peers: Arc<Peers>,
    nodes: Vec<String>,
}

impl Peers {
    /// Takes writes from these nodes too.
    pub(crate) fn name(self: &Arc<Peers>, mut nodes: Vec<String>) -> Named {
        nodes.truncate(PEERS_MAX);
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().for_each(|node| *named.entry(node.clone()).or_default() += 1);
        Named { peers: Arc::clone(self), nodes }
    }

    /// Blocks forwarded writes while this is held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error if a node may not forward.
    pub(crate) fn check(&self, node: &str) -> Result<()> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(node) {
            true => Ok(()),
            false => Err(Error::system(libc::EACCES, format!("no client said that {node} has a store"))),
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut named = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        for node in &self.nodes {
            let left = named.get_mut(node).map_or(0, |count| {
                *count -= 1;
                *count
            });
            if left == 0 {
                named.remove(node);
            }
        }
    }
}
