//! Files that have lost their last name, and what becomes of their strips.
//!
//! Model: if a session has such a file open, it is removed when the last one closes it, else with others, or now if it
//! is large. In a volume that several clients use, it stays for a moment: one of them may have looked its name up
//! before, and open it next.
//! Invariant: strips are removed only once it is durable that the file has no names. Whatever fails is tried again
//! later; the change of the names has succeeded all the same.
//! Non-goals: what a crash leaves; see recover.rs.

use std::sync::Weak;
use std::time::Duration;

use crate::manager::{Change, Inode, Kind};
use crate::server::{Doomed, Server, State};
use crate::{Result, recover};

/// Files are removed when there are this many of them, or one of them is large.
const MANY: usize = 256;
const LARGE: u64 = 1 << 20;
/// When a thread removes them and there are this many, callers do it too.
const BACKLOG_MAX: usize = 8 * MANY;
/// How long files of a volume that several clients use stay.
const STAYS: Duration = Duration::from_millis(50);

impl State {
    /// Lets a file be opened that has no name any more. Returns false if it is being removed.
    pub(crate) fn spare(&mut self, inode: u64) -> bool {
        if self.removing.contains(&inode) {
            return false;
        }
        // It is not there yet if it has lost its name just now.
        let at = self.doomed.iter().position(|doomed| doomed.inode.id == inode);
        let strips = at.map_or(0, |at| self.doomed.swap_remove(at).strips);
        let file = self.files.entry(inode).or_default();
        file.is_doomed = true;
        file.is_orphaned |= strips == u64::MAX;
        true
    }

    fn has_many(&self) -> bool {
        self.doomed.len() >= MANY || self.doomed.iter().any(|doomed| doomed.inode.size >= LARGE)
    }
}

impl Server {
    /// If `left` has lost its last name: removes it now, or, if a session has it open, when the last session closes it.
    pub(crate) fn let_go(&self, left: &Inode) {
        if left.links > 0 {
            return;
        }
        if let Some(file) = self.state().files.get_mut(&left.id) {
            file.is_doomed = true;
            return;
        }
        self.doom(left.clone(), false);
    }

    /// Takes an inode without names that no session has open. If a writer ended without reporting what it wrote, it may
    /// have any strips.
    pub(crate) fn doom(&self, inode: Inode, is_orphaned: bool) {
        if inode.kind != Kind::File {
            match self.manager.change(&Change::Forget(inode.id)) {
                Err(why) if !why.is_not_found() => self.finish_later(),
                _ => {}
            }
            return;
        }
        let (is_large, since_ns) = (inode.size >= LARGE, self.now_ns());
        let strips = if is_orphaned { u64::MAX } else { inode.strips | inode.unsynced };
        let stays = self.simulated.is_none() && self.cached_names.are_shared();
        let mut state = self.state();
        state.doomed.push(Doomed { inode, strips, since_ns });
        let count = state.doomed.len();
        if is_large && !stays || count >= BACKLOG_MAX {
            drop(state);
            self.try_to_reap(u64::MAX);
        } else if (is_large || count >= MANY) && !std::mem::replace(&mut state.reaps, true) {
            drop(state);
            let (me, pause) = (Weak::clone(&self.me), if stays { STAYS } else { Duration::ZERO });
            self.aside(move || {
                loop {
                    std::thread::park_timeout(pause);
                    let Some(server) = me.upgrade() else { return };
                    server.try_to_reap(server.now_ns().saturating_sub(pause.as_nanos() as u64));
                    let mut state = server.state();
                    if !state.has_many() {
                        state.reaps = false;
                        return;
                    }
                }
            });
        }
    }

    fn try_to_reap(&self, until_ns: u64) {
        if self.reap(until_ns).is_err() {
            self.finish_later();
        }
    }

    /// Removes the strips of files that have had no name since `until_ns`, once that is durable. Returns whether all
    /// are gone.
    pub(crate) fn reap(&self, until_ns: u64) -> Result<bool> {
        let doomed: Vec<(Inode, u64)> = {
            let mut state = self.state();
            let (due, stay) =
                std::mem::take(&mut state.doomed).into_iter().partition(|doomed| doomed.since_ns <= until_ns);
            state.doomed = stay;
            let due: Vec<Doomed> = due;
            state.removing.extend(due.iter().map(|doomed| doomed.inode.id));
            due.into_iter().map(|doomed| (doomed.inode, doomed.strips)).collect()
        };
        if doomed.is_empty() {
            return Ok(true);
        }
        self.may_change()?;
        self.manager.sync()?;
        let are_gone = self.forget(&doomed)?;
        if !are_gone {
            self.finish_later();
        }
        Ok(are_gone)
    }

    /// Removes the strips of files that were noted as [`State::removing`], and the files. Returns whether all are gone.
    pub(crate) fn forget(&self, files: &[(Inode, u64)]) -> Result<bool> {
        let are_gone = recover::forget(self, files)?;
        if are_gone {
            let mut state = self.state();
            files.iter().for_each(|(inode, _)| _ = state.removing.remove(&inode.id));
        }
        Ok(are_gone)
    }
}
