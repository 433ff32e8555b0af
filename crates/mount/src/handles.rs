//! The files and directory listings that programs have open, by the kernel's handles.
//!
//! Invariant: a listing is read once, when it begins, so that it is not disturbed by changes of the directory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::FileHandle;
use thalweg_volume::{File, Kind};

use crate::locks::OfFile;

/// A file that was opened.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// The kernel reads and writes it without its pages, whatever the flags say.
    pub(crate) is_direct: bool,
    pub(crate) locks: OfFile,
    was_read: AtomicBool,
}

impl OpenFile {
    pub(crate) fn new(file: File, is_direct: bool) -> OpenFile {
        OpenFile { file, is_direct, locks: OfFile::default(), was_read: AtomicBool::new(false) }
    }

    /// Returns whether this is the first read.
    pub(crate) fn is_first_read(&self) -> bool {
        !self.was_read.swap(true, Ordering::Relaxed)
    }
}

/// A name in a listing.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone)]
enum Handle {
    File(Arc<OpenFile>),
    Listing(Arc<Vec<Name>>),
}

/// All open files and listings.
#[derive(Default)]
pub(crate) struct Handles(Mutex<(u64, HashMap<u64, Handle>)>);

impl Handles {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Handle>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, handle: Handle) -> FileHandle {
        let mut all = self.lock();
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, handle);
        FileHandle(number)
    }

    pub(crate) fn keep_file(&self, file: OpenFile) -> FileHandle {
        self.keep(Handle::File(Arc::new(file)))
    }

    pub(crate) fn keep_listing(&self) -> FileHandle {
        self.keep(Handle::Listing(Arc::default()))
    }

    pub(crate) fn file(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        match self.lock().1.get(&handle.0) {
            Some(Handle::File(open)) => Some(Arc::clone(open)),
            _ => None,
        }
    }

    pub(crate) fn listing(&self, handle: FileHandle) -> Option<Arc<Vec<Name>>> {
        match self.lock().1.get(&handle.0) {
            Some(Handle::Listing(names)) => Some(Arc::clone(names)),
            _ => None,
        }
    }

    /// Restarts a listing with these names.
    pub(crate) fn list(&self, handle: FileHandle, names: Vec<Name>) -> Arc<Vec<Name>> {
        let names = Arc::new(names);
        self.lock().1.insert(handle.0, Handle::Listing(Arc::clone(&names)));
        names
    }

    /// Removes a handle. The file is closed when the last user drops the returned `Arc`.
    pub(crate) fn release(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        // Not in the `match` itself, which would hold the lock while a file is closed.
        let released = self.lock().1.remove(&handle.0);
        match released {
            Some(Handle::File(open)) => Some(open),
            _ => None,
        }
    }
}
