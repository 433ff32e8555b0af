//! Appends at the server: reserves the bytes of each, and undoes those that failed.
//!
//! Invariant: a failed append that is carried out late does not overwrite another: a new generation begins before bytes are
//! given back, and only clients that know it get them. While bytes are cut off, none are reserved.
//! Non-goals: a failed append behind which another client has appended leaves a hole.

use std::sync::PoisonError;

use thalweg_base::clock::wall_ns;

use crate::manager::Change;
use crate::opened::{Opened, SessionId};
use crate::server::{GONE, Server};
use crate::store::Strip;
use crate::stores::Target;
use crate::{Error, Result};

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
