//! What the kernel has of files, and what makes it drop that.
//!
//! Invariant: a program that gets a lock reads the file up to the size that it has then. The kernel asks for the size at
//! the first read, and ignores the answer if it was told to drop anything of the file in between: the read then ends at
//! the old size. So for changes before the grant it is told nothing after the grant: news are asked for and passed on
//! while no lock is granted ([`Kernel::no_grant`]), and an open that finds the file as the last grant found it has
//! nothing dropped.
//! Non-goals: other locks in the same file that are granted during such a read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fuser::{INodeNo, Notifier};
use thalweg_volume::Stamp;

/// The kernel, as far as it has files of this mount.
#[derive(Default)]
pub(crate) struct Kernel {
    /// Set once the volume is mounted.
    notifier: OnceLock<Notifier>,
    /// For each file, a stamp: the kernel has nothing that is older. It is that of the last close or grant of a lock.
    seen: Mutex<HashMap<u64, Stamp>>,
    /// Locked while news are passed on, and while a lock is granted that needs new pages.
    granting: Mutex<()>,
}

impl Kernel {
    /// The volume is mounted, and this tells the kernel.
    pub(crate) fn is_there(&self, notifier: Notifier) {
        self.notifier.get_or_init(|| notifier);
    }

    /// The stamps. An open keeps them locked until the kernel has dropped what it has to, so no lock is granted meanwhile.
    pub(crate) fn seen(&self) -> MutexGuard<'_, HashMap<u64, Stamp>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until it is dropped, no lock is granted that needs new pages.
    pub(crate) fn no_grant(&self) -> MutexGuard<'_, ()> {
        self.granting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops pages and attributes of a file. Pages that are being read are waited for, so inside a request this can
    /// deadlock.
    pub(crate) fn drop_file(&self, inode: u64) {
        self.drop_range(inode, 0, 0);
    }

    /// Drops attributes. This waits for no page.
    pub(crate) fn drop_attributes(&self, inode: u64) {
        self.drop_range(inode, -1, 0);
    }

    /// Drops the pages of a range, and attributes.
    pub(crate) fn drop_range(&self, inode: u64, at: i64, len: i64) {
        if let Some(notifier) = self.notifier.get() {
            // The kernel may not know the file any longer.
            let _ = notifier.inval_inode(INodeNo(inode), at, len);
        }
    }
}
