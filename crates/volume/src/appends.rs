//! Appends of several clients to one file: each gets bytes of its own after the end.
//!
//! Model: the server reserves the bytes before a client writes them. A client whose append failed gives them back. If they
//! are the last ones that are reserved, the next append lies there, and what the failed one left is cut off.
//! Invariant: a failed append that is carried out late does not overwrite another: a new generation begins before bytes are
//! given back, and only clients that know it get them. While bytes are cut off, none are reserved.
//! Non-goals: a failed append behind which another client has appended leaves a hole.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use thalweg_base::clock::wall_ns;

use crate::manager::Change;
use crate::server::{GONE, Opened, Server, SessionId};
use crate::store::Strip;
use crate::stores::Target;
use crate::{Error, Result};

/// The most failed appends of a file that others lie behind.
const FAILED_MAX: usize = 1000;

/// The appends to a file that several sessions have open.
#[derive(Default)]
pub(crate) struct Appends {
    /// The end of the bytes that are reserved.
    reserved: u64,
    /// Failed appends that are not given back: where each ends, and where it begins.
    failed: BTreeMap<u64, u64>,
    /// What a failed append left is being cut off.
    is_cutting: bool,
    /// How often the file was resized.
    resizes: u64,
}

impl Appends {
    /// Notes the size that the file was given.
    pub(crate) fn resized(&mut self, size: u64) {
        (self.reserved, self.failed) = (size, BTreeMap::new());
        self.resizes += 1;
    }

    fn reserve(&mut self, at: u64, bytes: u64) {
        self.reserved = at.saturating_add(bytes);
        // These are reserved again.
        self.failed.split_off(&at.saturating_add(1));
    }

    /// Notes a failed append. Returns whether nothing is reserved behind it.
    fn fails(&mut self, at: u64, end: u64) -> bool {
        if self.failed.len() < FAILED_MAX && end <= self.reserved {
            self.failed.insert(end, at);
        }
        end == self.reserved
    }

    /// Gives back what was reserved for the last appends, if they failed.
    fn give_back(&mut self) {
        while let Some(at) = self.failed.remove(&self.reserved) {
            self.reserved = at;
        }
    }
}

impl Server {
    /// Changes the appends of a file; an error if no session has it open.
    fn with_appends<T>(&self, inode: u64, change: impl FnOnce(&mut Opened) -> T) -> Result<T> {
        let mut state = self.state();
        let file = state.files.get_mut(&inode);
        file.map(change).ok_or_else(|| Error::system(libc::EBADF, format!("inode {inode}")))
    }

    /// Reserves bytes after the end of a file, which has at least `size` bytes in `generation`. An error if this is not
    /// its current generation.
    pub(crate) fn append(
        &self,
        session: SessionId,
        inode: u64,
        (generation, size): (u64, u64),
        bytes: u64,
    ) -> Result<u64> {
        loop {
            let resizes = self.with_appends(inode, |file| file.appends.resizes)?;
            let found = self.live(session, self.manager.inode(inode)?)?;
            if found.generation != generation {
                return Err(Error::Stale(Strip { inode, index: 0, copy: 0 }));
            }
            let reserved = self.with_appends(inode, |file| {
                let appends = &mut file.appends;
                if appends.is_cutting || appends.resizes != resizes {
                    return None;
                }
                // If only one session has the file open, its size is right, and bytes of failed appends are no longer
                // reserved.
                let reserved = if file.holders.len() > 1 { appends.reserved } else { 0 };
                let at = found.size.max(size).max(reserved);
                appends.reserve(at, bytes);
                Some(at)
            })?;
            if let Some(at) = reserved {
                return Ok(at);
            }
            let is_cutting = |file: &Opened| file.appends.is_cutting;
            let mut state = self.state();
            while state.files.get(&inode).is_some_and(is_cutting) {
                state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Undoes an append that failed, unless others lie behind it.
    pub(crate) fn undo_append(&self, session: SessionId, inode: u64, at: u64, bytes: u64) -> Result<()> {
        let end = at.saturating_add(bytes);
        if !self.with_appends(inode, |file| file.appends.fails(at, end))? {
            return Ok(());
        }
        let found = self.begin_generation(session, &Change::Raise(inode, 0), 0)?;
        self.with_appends(inode, |file| file.appends.give_back())?;
        let Some(target) = Target::of(&found) else { return Ok(()) };
        let size = self.stores.extent(&target)?.0.max(found.size);
        let begins = |file: &mut Opened| {
            let may = !file.appends.is_cutting && file.appends.reserved <= at;
            file.appends.is_cutting |= may;
            may
        };
        if !(at + 1..=end).contains(&size) || !self.with_appends(inode, begins)? {
            return Ok(());
        }
        let cut = self.resize(GONE, inode, at, wall_ns());
        let ended = self.with_appends(inode, |file| file.appends.is_cutting = false);
        self.settled.notify_all();
        cut.and(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_appends_give_back_what_they_reserved_in_any_order() {
        let mut appends = Appends::default();
        appends.reserve(10, 30);
        assert!(!appends.fails(10, 20) && !appends.fails(20, 30));
        appends.give_back();
        assert_eq!(appends.reserved, 40, "another append lies behind them");
        assert!(appends.fails(30, 40));
        appends.give_back();
        assert_eq!((appends.reserved, appends.failed.len()), (10, 0));
        // A repeated request does not give back what is reserved again.
        assert!(!appends.fails(30, 40));
        appends.reserve(10, 30);
        assert!(!appends.fails(20, 30));
        appends.give_back();
        assert_eq!(appends.reserved, 40);
    }
}
