//! One command in execution: its arguments, its reply, its client, and the state that all clients share.
//!
//! Invariant: transactions and watched keys have bounds.
//! Non-goals: what each command does.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cluster::Front;
use crate::cursors::Cursors;
use crate::error::Refusal;
use crate::keyspace::Keyspace;
use crate::resp::{REQUEST_BYTES_MAX, Reply, integer};

/// The most bytes of the requests of one transaction and of the keys that it watches.
const TRANSACTION_BYTES_MAX: usize = REQUEST_BYTES_MAX;
/// The memory of a stored request or watched key beyond its bytes.
const HELD_BYTES: usize = 128;

/// The arguments of a command; the first is its name.
pub(crate) type Arguments<'a> = [&'a [u8]];
/// A refused command has changed nothing.
pub(crate) type Outcome = Result<(), Refusal>;

/// What the servers of a node share, each of which has some of the clients.
#[derive(Clone, Default)]
pub(crate) struct Common {
    /// The clients of all servers.
    pub(crate) clients: Arc<AtomicUsize>,
    /// Bytes of the buffers of all clients.
    pub(crate) buffered: Arc<AtomicUsize>,
    cursors: Arc<Mutex<Cursors>>,
}

impl Common {
    /// The cursors of all clients.
    pub(crate) fn cursors(&self) -> MutexGuard<'_, Cursors> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the server that all its clients share.
pub(crate) struct Shared {
    pub(crate) keyspace: Keyspace,
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) commands: u64,
    pub(crate) started_ms: i64,
    pub(crate) common: Common,
    /// The tables of the cluster that commands work on instead of the keyspace, on a node.
    pub(crate) front: Option<Arc<Front>>,
}

impl Shared {
    pub(crate) fn new(
        keyspace: Keyspace,
        password: Option<Vec<u8>>,
        started_ms: i64,
        common: Common,
        front: Option<Arc<Front>>,
    ) -> Shared {
        Shared { keyspace, password, commands: 0, started_ms, common, front }
    }
}

/// The server's state for one client.
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) version: u8,
    pub(crate) may: bool,
    pub(crate) wrong_passwords: usize,
    pub(crate) ends: bool,
    pub(crate) transaction: Option<Transaction>,
    /// Watched keys, each with its number of changes when the watch began.
    pub(crate) watched: Vec<(Vec<u8>, u64)>,
    /// The memory of the transaction and of the watched keys.
    held_bytes: usize,
}

/// The requests since `MULTI`.
#[derive(Default)]
pub(crate) struct Transaction {
    pub(crate) requests: Vec<Vec<Vec<u8>>>,
    pub(crate) was_refused: bool,
}

impl Session {
    pub(crate) fn new(number: u64, shared: &Shared) -> Session {
        let may = shared.password.is_none();
        Session {
            number,
            name: Vec::new(),
            version: 2,
            may,
            wrong_passwords: 0,
            ends: false,
            transaction: None,
            watched: Vec::new(),
            held_bytes: 0,
        }
    }

    /// The memory of the client's transaction and of its watched keys.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Reserves memory for arguments that are stored until the transaction ends.
    pub(crate) fn hold(&mut self, arguments: &Arguments<'_>) -> Outcome {
        let bytes: usize = arguments.iter().map(|one| one.len() + HELD_BYTES).sum();
        if self.held_bytes + bytes > TRANSACTION_BYTES_MAX {
            return Err(Refusal::LongTransaction);
        }
        self.held_bytes += bytes;
        Ok(())
    }

    /// Stops watching all keys. Returns whether one of them was changed.
    pub(crate) fn unwatch(&mut self, keyspace: &mut Keyspace) -> bool {
        if self.transaction.is_none() {
            self.held_bytes = 0;
        }
        self.watched
            .drain(..)
            .fold(false, |changed, (key, changes)| keyspace.unwatch(&key, changes) | changed)
    }
}

/// A command in execution.
pub(crate) struct Call<'a, 'b> {
    pub(crate) shared: &'a mut Shared,
    pub(crate) session: &'a mut Session,
    pub(crate) reply: Reply<'b>,
}

impl Call<'_, '_> {
    pub(crate) fn keys(&mut self) -> &mut Keyspace {
        &mut self.shared.keyspace
    }

    /// The memory that records use, and the most that they may use.
    pub(crate) fn memory(&self) -> (usize, usize) {
        self.shared.front.as_ref().map_or_else(|| self.shared.keyspace.memory(), |front| front.memory())
    }

    pub(crate) fn count(&mut self, count: usize) -> Outcome {
        self.reply.count(count);
        Ok(())
    }

    pub(crate) fn done(&mut self) -> Outcome {
        self.reply.simple("OK");
        Ok(())
    }
}

/// Parses an argument as a signed 64-bit integer.
pub(crate) fn number(argument: &[u8]) -> Result<i64, Refusal> {
    integer(argument).ok_or(Refusal::NoInteger)
}
