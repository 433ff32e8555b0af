//! A command that is carried out: its arguments, its reply, its client, and what all clients share.
//!
//! Invariant: transactions, keys that are watched, and cursors that are remembered have bounds.
//! Non-goals: what commands do.

use std::collections::VecDeque;

use crate::error::Refusal;
use crate::keyspace::{Keyspace, Scanned};
use crate::resp::{Reply, integer};

/// The most commands of one transaction, and the most keys that it watches.
pub(crate) const TRANSACTION_MAX: usize = 1 << 16;
/// Cursors of scans that are remembered, and for how long.
const CURSORS_MAX: usize = 1 << 16;
const CURSOR_LIVES_MS: i64 = 10 * 60 * 1000;

/// Arguments of a command, its name first.
pub(crate) type Arguments<'a> = [&'a [u8]];
/// What is refused has changed nothing.
pub(crate) type Outcome = Result<(), Refusal>;

/// What the server knows beside keys.
pub(crate) struct Shared {
    pub(crate) keyspace: Keyspace,
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) clients: usize,
    pub(crate) commands: u64,
    pub(crate) started_ms: i64,
    pub(crate) cursors: Cursors,
}

impl Shared {
    pub(crate) fn new(keyspace: Keyspace, password: Option<Vec<u8>>, started_ms: i64) -> Shared {
        Shared { keyspace, password, clients: 0, commands: 0, started_ms, cursors: Cursors::default() }
    }
}

/// What the server knows of one client.
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) version: u8,
    pub(crate) may: bool,
    pub(crate) ends: bool,
    pub(crate) transaction: Option<Transaction>,
    /// Keys that are watched, with the changes they had then.
    pub(crate) watched: Vec<(Vec<u8>, u64)>,
}

/// What came since `MULTI`.
#[derive(Default)]
pub(crate) struct Transaction {
    pub(crate) requests: Vec<Vec<Vec<u8>>>,
    pub(crate) was_refused: bool,
}

impl Session {
    pub(crate) fn new(number: u64, shared: &Shared) -> Session {
        let may = shared.password.is_none();
        let name = Vec::new();
        Session { number, name, version: 2, may, ends: false, transaction: None, watched: Vec::new() }
    }

    /// Forgets the keys that are watched; whether one of them was changed.
    pub(crate) fn unwatch(&mut self, keyspace: &mut Keyspace) -> bool {
        self.watched
            .drain(..)
            .fold(false, |changed, (key, changes)| keyspace.unwatch(&key, changes) | changed)
    }
}

/// A command that is carried out.
pub(crate) struct Call<'a, 'b> {
    pub(crate) shared: &'a mut Shared,
    pub(crate) session: &'a mut Session,
    pub(crate) reply: Reply<'b>,
}

impl Call<'_, '_> {
    pub(crate) fn keys(&mut self) -> &mut Keyspace {
        &mut self.shared.keyspace
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

/// Where scans go on, by the numbers that clients give back.
#[derive(Default)]
pub(crate) struct Cursors {
    last: u64,
    /// Numbers ascend, and so do the times when they were given out.
    given: VecDeque<(u64, i64, Scanned)>,
}

impl Cursors {
    /// A number for a place; 0 for the end.
    pub(crate) fn give(&mut self, place: Option<Scanned>, now_ms: i64) -> u64 {
        let Some(place) = place else { return 0 };
        let is_old = |given: &(u64, i64, Scanned)| given.1 + CURSOR_LIVES_MS < now_ms;
        while self.given.len() >= CURSORS_MAX || self.given.front().is_some_and(is_old) {
            self.given.pop_front();
        }
        self.last += 1;
        self.given.push_back((self.last, now_ms, place));
        self.last
    }

    /// The place of a number; `None` for 0, the beginning.
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

/// An argument that is a number of 64 bits.
pub(crate) fn number(argument: &[u8]) -> Result<i64, Refusal> {
    integer(argument).ok_or(Refusal::NoInteger)
}
