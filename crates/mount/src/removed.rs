//! Directories that were removed through this mount, which programs may still have open.
//!
//! Model: the manager forgets a directory when it is removed. The kernel asks for the attributes of one that is open, so
//! these are kept until it forgets the directory too.
//! Non-goals: directories that another mount removed: what asks for them gets ESTALE.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use thalweg_volume::{Edit, Inode, Kind};

/// The last attributes of removed directories.
#[derive(Default)]
pub(crate) struct Removed(Mutex<HashMap<u64, Inode>>);

impl Removed {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Inode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an inode that lost a name, if it is a directory, which then has none.
    pub(crate) fn note(&self, lost: Inode) {
        if lost.kind == Kind::Directory && lost.links == 0 {
            self.lock().insert(lost.id, lost);
        }
    }

    pub(crate) fn get(&self, inode: u64) -> Option<Inode> {
        self.lock().get(&inode).cloned()
    }

    /// Changes the attributes of one.
    pub(crate) fn set(&self, inode: u64, edit: Edit) -> Option<Inode> {
        let mut all = self.lock();
        let known = all.get_mut(&inode)?;
        known.mode = edit.mode.unwrap_or(known.mode) & 0o7777;
        (known.user, known.group) = (edit.user.unwrap_or(known.user), edit.group.unwrap_or(known.group));
        known.accessed_ns = edit.accessed_ns.unwrap_or(known.accessed_ns);
        known.modified_ns = edit.modified_ns.unwrap_or(known.modified_ns);
        Some(known.clone())
    }

    pub(crate) fn forget(&self, inode: u64) {
        self.lock().remove(&inode);
    }
}
