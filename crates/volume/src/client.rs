//! The client side of the manager: sends requests, whether a thread, a process or a node answers them.
//!
//! Non-goals: the client's own state of its open files.

use std::path::PathBuf;
use std::sync::Arc;

use crate::locks::ClientId;
use crate::manager::{Change, Entry, Inode, New, Place, Written};
use crate::request::{Answer, ChangeNumber, Health, LockAnswer, LockRequest, Request};
use crate::{Error, Result};

/// Answers the requests of one client.
pub(crate) trait Answers: Send + Sync {
    /// The answer to one request.
    fn answer(&self, request: &Request) -> Result<Answer>;
}

/// A client's handle to the manager of a volume.
#[derive(Clone)]
pub(crate) struct Client(Arc<dyn Answers>);

/// The error for an answer that does not fit its request.
fn wrong<T>(answer: Answer) -> Result<T> {
    Err(Error::Refused(format!("the manager sent an unexpected answer: {answer:.100?}")))
}

impl Client {
    /// A client whose requests go to `answers`.
    pub(crate) fn by(answers: impl Answers + 'static) -> Client {
        Client(Arc::new(answers))
    }

    fn inode_of(&self, request: &Request) -> Result<Inode> {
        match self.0.answer(request)? {
            Answer::Inode(inode) => Ok(inode),
            other => wrong(other),
        }
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.0.answer(request)? {
            Answer::Done => Ok(()),
            other => wrong(other),
        }
    }

    /// The inode of a name, if there is one.
    pub(crate) fn lookup(&self, place: &Place) -> Result<Option<Inode>> {
        match self.0.answer(&Request::Lookup(place.clone()))? {
            Answer::Found(found) => Ok(found),
            other => wrong(other),
        }
    }

    /// The inode with this number, with the current size of its file.
    pub(crate) fn inode(&self, inode: u64) -> Result<Inode> {
        self.inode_of(&Request::Inode(inode))
    }

    /// The number of inodes.
    pub(crate) fn count(&self) -> Result<u64> {
        match self.0.answer(&Request::Count)? {
            Answer::At(count) => Ok(count),
            other => wrong(other),
        }
    }

    /// The names in a directory, in byte order.
    pub(crate) fn names(&self, directory: u64) -> Result<Vec<Entry>> {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let after = all.last().map_or_else(Vec::new, |entry| entry.name.clone());
            match self.0.answer(&Request::Names(directory, after))? {
                Answer::Entries(more) if more.is_empty() => return Ok(all),
                Answer::Entries(more) => all.extend(more),
                other => return wrong(other),
            }
        }
    }

    /// The extended attributes of an inode.
    pub(crate) fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match self.0.answer(&Request::Attributes(inode))? {
            Answer::Attributes(attributes) => Ok(attributes),
            other => wrong(other),
        }
    }

    /// Carries out a change, all of it or nothing.
    pub(crate) fn change(&self, change: &Change) -> Result<Inode> {
        self.inode_of(&Request::Change(change.clone()))
    }

    /// Makes all changes durable that the manager has acknowledged.
    pub(crate) fn sync(&self) -> Result<()> {
        self.done(&Request::Sync)
    }

    /// Does what `sync` does, and also makes the bytes of all files durable that no client is writing.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.done(&Request::SyncAll)
    }

    /// Inodes with unfinished work.
    pub(crate) fn unfinished(&self) -> Result<Vec<Inode>> {
        let mut all: Vec<Inode> = Vec::new();
        loop {
            let after = all.last().map_or(0, |inode| inode.id);
            match self.0.answer(&Request::Unfinished(after))? {
                Answer::Inodes(more) if more.is_empty() => return Ok(all),
                Answer::Inodes(more) => all.extend(more),
                other => return wrong(other),
            }
        }
    }

    /// The directory of the store of each slot.
    pub(crate) fn slots(&self) -> Result<Vec<PathBuf>> {
        match self.0.answer(&Request::Slots)? {
            Answer::Slots(places) => Ok(places),
            other => wrong(other),
        }
    }

    /// Begins a repair of the volume. Until this session ends, no other client can begin one.
    pub(crate) fn repair(&self) -> Result<()> {
        self.done(&Request::Repair)
    }

    /// Fences a file: begins a new generation of it, which is kept from other clients until `lift` or a timeout.
    pub(crate) fn fence(&self, inode: u64) -> Result<Inode> {
        self.inode_of(&Request::Fence(inode))
    }

    /// Lifts the fence of a file: other clients can learn its generation again.
    pub(crate) fn lift(&self, inode: u64) -> Result<()> {
        self.done(&Request::Lift(inode))
    }

    /// What the server repairs by itself, and why.
    pub(crate) fn health(&self) -> Result<Health> {
        match self.0.answer(&Request::Health)? {
            Answer::Health(health) => Ok(health),
            other => wrong(other),
        }
    }

    /// Makes a file, and opens it, to write it at once if it `may_write`.
    pub(crate) fn make(&self, place: Place, new: New, may_write: bool) -> Result<Inode> {
        self.inode_of(&Request::Make(place, new, may_write))
    }

    /// Opens a file.
    pub(crate) fn open(&self, inode: u64) -> Result<Inode> {
        self.inode_of(&Request::Open(inode))
    }

    /// Closes a file, and reports what was written to it, and when it was read, if that is to be noted.
    pub(crate) fn close(&self, inode: u64, written: Option<Written>, read_ns: Option<i64>) -> Result<()> {
        self.done(&Request::Close(inode, written, read_ns))
    }

    /// Reserves bytes after the end of a file and returns their offset. In `generation` the file has at least `size`
    /// bytes.
    pub(crate) fn append(&self, inode: u64, generation: u64, size: u64, bytes: u64) -> Result<u64> {
        match self.0.answer(&Request::Append { inode, generation, size, bytes })? {
            Answer::At(at) => Ok(at),
            other => wrong(other),
        }
    }

    /// Gives back what `append` reserved, after a failure, and cuts off what is there. Returns the file.
    pub(crate) fn undo_append(&self, inode: u64, at: u64, bytes: u64) -> Result<Inode> {
        self.inode_of(&Request::Undo { inode, at, bytes })
    }

    /// The files of this client that others have changed since `since`, and those that others have open. Also returns
    /// the number for the next call.
    pub(crate) fn news(&self, since: ChangeNumber) -> Result<(ChangeNumber, Vec<u64>, Vec<u64>)> {
        match self.0.answer(&Request::News(since))? {
            Answer::News(number, changed, shared) => Ok((number, changed, shared)),
            other => wrong(other),
        }
    }

    /// Whether names that are read from now on may be cached for a moment.
    pub(crate) fn may_cache_names(&self) -> Result<bool> {
        match self.0.answer(&Request::CacheNames)? {
            Answer::MayCache(may_cache) => Ok(may_cache),
            other => wrong(other),
        }
    }

    /// Sends a request about locks. `table` is the number of the lock table that has this client's locks, as far as it
    /// knows.
    pub(crate) fn lock(&self, client: ClientId, table: u64, ask: LockRequest) -> Result<LockAnswer> {
        match self.0.answer(&Request::Lock { client, table, ask })? {
            Answer::Lock(answer) => Ok(answer),
            other => wrong(other),
        }
    }
}
