//! One command in execution: its arguments, its reply, its client, and the state that all clients share.
//!
//! Invariant: transactions, watched keys, and stored cursors have bounds.
//! Non-goals: what each command does.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cluster::Front;
use crate::error::Refusal;
use crate::keyspace::{Keyspace, Scanned};
use crate::resp::{REQUEST_BYTES_MAX, Reply, integer};

/// The most bytes of the requests of one transaction and of the keys that it watches.
const TRANSACTION_BYTES_MAX: usize = REQUEST_BYTES_MAX;
/// The memory of a stored request or watched key beyond its bytes.
const HELD_BYTES: usize = 128;
/// The limits of stored scan cursors: their number, their bytes, and their lifetime.
const CURSORS_MAX: usize = 1 << 16;
const CURSORS_BYTES_MAX: usize = 16 << 20;
const CURSOR_LIVES_MS: i64 = 10 * 60 * 1000;

/// The arguments of a command; the first is its name.
pub(crate) type Arguments<'a> = [&'a [u8]];
/// A refused command has changed nothing.
pub(crate) type Outcome = Result<(), Refusal>;

/// The state of the server that all clients share.
pub(crate) struct Shared {
    pub(crate) keyspace: Keyspace,
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) clients: usize,
    pub(crate) commands: u64,
    pub(crate) started_ms: i64,
    pub(crate) cursors: Cursors,
    /// The tables of the cluster that commands work on instead of the keyspace, on a node.
    pub(crate) front: Option<Arc<Front>>,
}

impl Shared {
    pub(crate) fn new(
        keyspace: Keyspace,
        password: Option<Vec<u8>>,
        started_ms: i64,
        front: Option<Arc<Front>>,
    ) -> Shared {
        Shared { keyspace, password, clients: 0, commands: 0, started_ms, cursors: Cursors::default(), front }
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

/// Where scans continue, by the cursor numbers that clients send back.
#[derive(Default)]
pub(crate) struct Cursors {
    last: u64,
    /// Ascending both by number and by the time when the number was issued.
    given: VecDeque<(u64, i64, Scanned)>,
    bytes: usize,
}

impl Cursors {
    /// Issues a number for a place; 0 for the end.
    pub(crate) fn give(&mut self, place: Option<Scanned>, now_ms: i64) -> u64 {
        let Some(place) = place else { return 0 };
        let is_old = |given: &(u64, i64, Scanned)| given.1 + CURSOR_LIVES_MS < now_ms;
        self.bytes += place.key().len();
        let is_full = |given: &VecDeque<_>, bytes| given.len() >= CURSORS_MAX || bytes > CURSORS_BYTES_MAX;
        while is_full(&self.given, self.bytes) || self.given.front().is_some_and(is_old) {
            let Some((_, _, oldest)) = self.given.pop_front() else { break };
            self.bytes -= oldest.key().len();
        }
        self.last += 1;
        self.given.push_back((self.last, now_ms, place));
        self.last
    }

    /// The place with this number; `None` for 0, the beginning.
    pub(crate) fn place(&self, argument: &[u8]) -> Result<Option<Scanned>, Refusal> {
        let number =
            integer(argument).and_then(|number| u64::try_from(number).ok()).ok_or(Refusal::Cursor)?;
        if number == 0 {
            return Ok(None);
        }
        let at = self.given.binary_search_by_key(&number, |given| given.0).map_err(|_| Refusal::Cursor)?;
        Ok(Some(self.given[at].2.clone()))
    }
}

/// Parses an argument as a signed 64-bit integer.
pub(crate) fn number(argument: &[u8]) -> Result<i64, Refusal> {
    integer(argument).ok_or(Refusal::NoInteger)
}
