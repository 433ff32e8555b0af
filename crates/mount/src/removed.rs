//! Directories that were removed while programs have them open.
//!
//! Model: the manager forgets a directory when it is removed, by this mount or another one. The kernel goes on asking for
//! the attributes of one that is open, so the last ones of each directory are kept until the kernel forgets it too.
//! Non-goals: files, which the manager keeps until they are closed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use thalweg_volume::{Edit, Error, Inode, Kind};

/// The last attributes of directories.
#[derive(Default)]
pub(crate) struct Removed(Mutex<HashMap<u64, Inode>>);

impl Removed {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Inode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an inode that the kernel learns of, or that has lost its name, if it is a directory.
    pub(crate) fn note(&self, known: &Inode) {
        if known.kind == Kind::Directory {
            self.lock().insert(known.id, known.clone());
        }
    }

    /// The attributes of a directory that is not found because it was removed, or the error.
    pub(crate) fn get(&self, inode: u64, why: Error) -> Result<Inode, Error> {
        self.set(inode, Edit::default(), why)
    }

    /// Changes the attributes of one.
    pub(crate) fn set(&self, inode: u64, edit: Edit, why: Error) -> Result<Inode, Error> {
        let mut all = self.lock();
        let Some(known) = all.get_mut(&inode).filter(|_| why.errno() == libc::ENOENT) else {
            return Err(why);
        };
        known.links = 0;
        known.mode = edit.mode.unwrap_or(known.mode) & 0o7777;
        (known.user, known.group) = (edit.user.unwrap_or(known.user), edit.group.unwrap_or(known.group));
        known.accessed_ns = edit.accessed_ns.unwrap_or(known.accessed_ns);
        known.modified_ns = edit.modified_ns.unwrap_or(known.modified_ns);
        Ok(known.clone())
    }

    pub(crate) fn forget(&self, inode: u64) {
        self.lock().remove(&inode);
    }
}
