//! What the server knows of a file while a session has it open.
//!
//! Non-goals: what the manager keeps of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::appends::Appends;
use crate::manager::Written;
use crate::request::ChangeNumber;
use crate::server::Server;
use crate::stores::Target;
use crate::{Error, Result};

/// The number of a session.
pub(crate) type SessionId = u64;

/// A file that a session has open, or that one left unsettled.
#[derive(Default)]
pub(crate) struct Opened {
    /// For each session, the last change by others.
    pub(crate) holders: BTreeMap<SessionId, ChangeNumber>,
    /// The same, only for changes that were made while the session had it open.
    pub(crate) news: BTreeMap<SessionId, ChangeNumber>,
    pub(crate) writers: BTreeSet<SessionId>,
    /// A writer ended without reporting what it wrote.
    pub(crate) is_orphaned: bool,
    /// Its copies are being made equal, so no session may begin to write.
    pub(crate) is_settling: bool,
    /// The manager's note that it may be unsettled is durable, or as old as the file.
    pub(crate) is_noted: bool,
    /// How often that note was removed.
    pub(crate) settlings: u64,
    /// It has no names any longer.
    pub(crate) is_doomed: bool,
    pub(crate) appends: Appends,
}

impl Opened {
    /// The manager has removed its note that the file may be unsettled.
    pub(crate) fn is_settled(&mut self) {
        self.is_noted = false;
        self.settlings += 1;
    }

    /// Notes that all other sessions may find other bytes in it.
    pub(crate) fn changes(&mut self, session: SessionId, number: ChangeNumber) {
        let others = self.holders.iter_mut().filter(|(holder, _)| **holder != session);
        others.for_each(|(holder, change)| {
            *change = number;
            self.news.insert(*holder, number);
        });
    }
}

impl Server {
    pub(crate) fn may_write(&self, session: SessionId, inode: u64) -> bool {
        self.state().files.get(&inode).is_some_and(|file| file.writers.contains(&session))
    }

    /// An error if a session that is no writer of a file reports strips of it which are nowhere. It could not join this
    /// server as a writer, and the file was settled without what it had written. Who only syncs what others have written
    /// reports strips, too.
    pub(crate) fn may_report(&self, session: SessionId, written: &Written) -> Result<()> {
        if written.strips == 0 || self.may_write(session, written.inode) {
            return Ok(());
        }
        let inode = self.manager.inode(written.inode)?;
        let unknown = written.strips & !(inode.strips | inode.unsynced);
        let Some(target) = Target::of(&inode).filter(|_| unknown != 0) else { return Ok(()) };
        let (_, found) = self.stores.extent(&target)?;
        if unknown & !found == 0 {
            return Ok(());
        }
        let why =
            format!("what was written to inode {} before its manager was restarted is lost", written.inode);
        Err(Error::system(libc::EIO, why))
    }
}
