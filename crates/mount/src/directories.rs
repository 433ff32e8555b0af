//! Locks that order changes of names in a directory and reports of its attributes to the kernel.
//!
//! Model: a thread that changes a name holds the lock of the directory until the kernel has the answer, and drops the
//! directory's attributes. A thread that sends the kernel attributes with a lifetime holds it shared.
//! Invariant: attributes from before a change never reach the kernel after the answer to the change.
//! Non-goals: changes by other mounts, which show when the kernel asks again.

use std::array;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The number of locks. Directories whose numbers have the same remainder share one.
const LOCKS: usize = 64;

/// The locks of all directories.
pub(crate) struct Directories([RwLock<()>; LOCKS]);

type Changes<'a> = RwLockWriteGuard<'a, ()>;

impl Default for Directories {
    fn default() -> Directories {
        Directories(array::from_fn(|_| RwLock::default()))
    }
}

impl Directories {
    fn number(inode: u64) -> usize {
        (inode % LOCKS as u64) as usize
    }

    fn write(&self, number: usize) -> Changes<'_> {
        self.0[number].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this is held, no name in the directory changes.
    pub(crate) fn read(&self, inode: u64) -> RwLockReadGuard<'_, ()> {
        self.0[Directories::number(inode)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while names in a directory change.
    pub(crate) fn change(&self, inode: u64) -> Changes<'_> {
        self.write(Directories::number(inode))
    }

    /// Held while names in two directories change; always locked in the same order.
    pub(crate) fn change_both(&self, one: u64, other: u64) -> (Changes<'_>, Option<Changes<'_>>) {
        let (one, other) = (Directories::number(one), Directories::number(other));
        let first = self.write(one.min(other));
        (first, (one != other).then(|| self.write(one.max(other))))
    }
}
