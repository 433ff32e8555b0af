//! The manager as a client sees it: requests, wherever they are answered.
//!
//! Non-goals: what the client itself knows of files that it has open.

use std::path::PathBuf;
use std::sync::Arc;

use crate::locks::ClientId;
use crate::manager::{Change, Entry, Inode, Place, Written};
use crate::request::{Answer, LockAnswer, LockRequest, Request};
use crate::{Error, Result};

/// Answers the requests of one client.
pub(crate) trait Answers: Send + Sync {
    /// The answer to one request.
    fn answer(&self, request: &Request) -> Result<Answer>;
}

/// The manager of a volume.
#[derive(Clone)]
pub(crate) struct Client(Arc<dyn Answers>);

/// An answer to another question than was asked.
fn wrong<T>(answer: Answer) -> Result<T> {
    Err(Error::Refused(format!("the manager answered another question: {answer:.100?}")))
}

impl Client {
    /// Of whoever answers.
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

    /// What a name leads to, if there is one.
    pub(crate) fn lookup(&self, place: &Place) -> Result<Option<Inode>> {
        match self.0.answer(&Request::Lookup(place.clone()))? {
            Answer::Found(found) => Ok(found),
            other => wrong(other),
        }
    }

    /// An inode by its number, with the size that its file has now.
    pub(crate) fn inode(&self, inode: u64) -> Result<Inode> {
        self.inode_of(&Request::Inode(inode))
    }

    /// The names in a directory, in the order of their bytes.
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

    /// Makes everything durable that the manager acknowledged.
    pub(crate) fn sync(&self) -> Result<()> {
        self.done(&Request::Sync)
    }

    /// Makes also the bytes of all files durable that nobody writes.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.done(&Request::SyncAll)
    }

    /// Inodes with work that is to be finished.
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

    /// Where the store of each slot is.
    pub(crate) fn slots(&self) -> Result<Vec<PathBuf>> {
        match self.0.answer(&Request::Slots)? {
            Answer::Slots(places) => Ok(places),
            other => wrong(other),
        }
    }

    /// Makes copies current from now on, and no other client does.
    pub(crate) fn repair(&self) -> Result<()> {
        self.done(&Request::Repair)
    }

    /// Begins a new generation of a file, which no other client hears of until it is lifted.
    pub(crate) fn fence(&self, inode: u64) -> Result<Inode> {
        self.inode_of(&Request::Fence(inode))
    }

    /// Lets other clients hear of a file's generation again.
    pub(crate) fn lift(&self, inode: u64) -> Result<()> {
        self.done(&Request::Lift(inode))
    }

    /// Has a file open from now on.
    pub(crate) fn open(&self, inode: u64) -> Result<Inode> {
        self.inode_of(&Request::Open(inode))
    }

    /// Has a file open no more, after this was written to it.
    pub(crate) fn close(&self, inode: u64, written: Option<Written>) -> Result<()> {
        self.done(&Request::Close(inode, written))
    }

    /// Reserves bytes behind the end of a file that has, in this generation, at least this size; tells where they begin.
    pub(crate) fn append(&self, inode: u64, generation: u64, size: u64, bytes: u64) -> Result<u64> {
        match self.0.answer(&Request::Append { inode, generation, size, bytes })? {
            Answer::At(at) => Ok(at),
            other => wrong(other),
        }
    }

    /// Asks about locks, as the client of this number whose locks are in the table of that number.
    pub(crate) fn lock(&self, client: ClientId, table: u64, ask: LockRequest) -> Result<LockAnswer> {
        match self.0.answer(&Request::Lock { client, table, ask })? {
            Answer::Lock(answer) => Ok(answer),
            other => wrong(other),
        }
    }
}
