//! Which directories' names change while the kernel is told about their attributes.
//!
//! Model: whoever changes a name holds the lock of the directory until the kernel has the answer, after which it forgets the
//! directory's attributes. Whoever tells the kernel attributes that it may believe for a while holds the same lock, shared.
//! Invariant: attributes from before a change never reach the kernel after the answer to the change.
//! Non-goals: changes of other mounts, which show when the kernel asks again.

use std::array;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks, each of all directories whose numbers have the same remainder.
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

    /// No name in a directory changes while this is held.
    pub(crate) fn read(&self, inode: u64) -> RwLockReadGuard<'_, ()> {
        self.0[Directories::number(inode)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names in a directory change while this is held.
    pub(crate) fn change(&self, inode: u64) -> Changes<'_> {
        self.write(Directories::number(inode))
    }

    /// The same of two directories, in an order that all keep.
    pub(crate) fn change_both(&self, one: u64, other: u64) -> (Changes<'_>, Option<Changes<'_>>) {
        let (one, other) = (Directories::number(one), Directories::number(other));
        let first = self.write(one.min(other));
        (first, (one != other).then(|| self.write(one.max(other))))
    }
}
