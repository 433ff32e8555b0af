//! What the server knows of a file while a session has it open.
//!
//! Non-goals: what the manager keeps of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::appends::Appends;
use crate::request::ChangeNumber;

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
