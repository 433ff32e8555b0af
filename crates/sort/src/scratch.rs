//! Scratch: where what does not fit waits, one file in each scratch directory.
//!
//! Model: pages are given extents in turn over the directories; a full directory is passed over.
//! Room is reserved ahead in steps, because writes into reserved room run in parallel and writes that
//! lengthen a file do not.
//! Law: no more than the limit is ever reserved; every extent is checked by a 64-bit hash when it
//! comes back.
//! Non-goals: what pages mean.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_io::{Access, File, Io};

use crate::{Error, Result};

/// Extents begin and end at multiples of this.
const SECTOR: u64 = 4096;

/// Where a page lies in scratch, and how it is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Index of the directory.
    pub(crate) directory: u32,
    /// Payload bytes; the extent itself is rounded up to 4096.
    pub(crate) len: u32,
    /// Byte of the scratch file.
    pub(crate) offset: u64,
    /// XXH3-64 of the payload.
    pub(crate) hash: u64,
}

/// The scratch files of one job.
pub(crate) struct Scratch {
    directories: Vec<Directory>,
    next: AtomicUsize,
    limit: u64,
    step: u64,
    used: AtomicU64,
    keep: Mutex<bool>,
    io: Arc<dyn Io>,
}

struct Directory {
    path: PathBuf,
    file: File,
    state: Mutex<Room>,
}

#[derive(Default)]
struct Room {
    end: u64,
    reserved: u64,
    full: bool,
}

impl Scratch {
    /// Makes or takes up the scratch files `name` in `directories`; `ends` says how much of each is in use.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        directories: &[PathBuf],
        name: &str,
        expected: u64,
        limit: u64,
        ends: &[u64],
    ) -> Result<Scratch> {
        let mut opened = Vec::with_capacity(directories.len());
        for (i, directory) in directories.iter().enumerate() {
            let path = directory.join(name);
            let end = ends.get(i).copied().unwrap_or(0);
            let access = if end > 0 { Access::UpdateDirect } else { Access::CreateDirect };
            let file = File::open(io, &path, access)?;
            let state = Mutex::new(Room { end, reserved: end, full: false });
            opened.push(Directory { path, file, state });
        }
        let step = (expected / opened.len() as u64 / 16).clamp(1 << 20, 256 << 20).next_multiple_of(SECTOR);
        Ok(Scratch {
            directories: opened,
            next: AtomicUsize::new(0),
            limit,
            step,
            used: AtomicU64::new(ends.iter().sum()),
            keep: Mutex::new(false),
            io: Arc::clone(io),
        })
    }

    /// The scratch file of a directory.
    pub(crate) fn file(&self, directory: u32) -> &File {
        &self.directories[directory as usize].file
    }

    /// Bytes given out so far, which is the most that was ever in use: nothing is given back.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Leaves the files where they are when dropped.
    pub(crate) fn keep(&self) {
        *self.keep.lock().expect("no lane panics") = true;
    }

    /// Room for a page of `len` bytes.
    pub(crate) fn allocate(&self, len: usize, hash: u64) -> Result<Extent> {
        let room = (len as u64).next_multiple_of(SECTOR);
        let used = self.used.fetch_add(room, Ordering::Relaxed);
        if used + room > self.limit {
            self.used.fetch_sub(room, Ordering::Relaxed);
            return Err(self.full(room));
        }
        for _ in 0..self.directories.len() {
            let index = self.next.fetch_add(1, Ordering::Relaxed) % self.directories.len();
            if let Some(offset) = self.directories[index].allocate(room, self.step)? {
                return Ok(Extent { directory: index as u32, len: len as u32, offset, hash });
            }
        }
        self.used.fetch_sub(room, Ordering::Relaxed);
        Err(self.full(room))
    }

    fn full(&self, needed: u64) -> Error {
        let directories: Vec<PathBuf> = self.directories.iter().map(|d| parent(&d.path)).collect();
        let space = |d: &PathBuf| self.io.space(d).map_or(0, |s| s.available);
        let available = directories.iter().map(space).sum::<u64>();
        let left = self.limit.saturating_sub(self.used());
        Error::ScratchFull {
            needed,
            available: available.min(left),
            directories,
            resumable: *self.keep.lock().expect("no lane panics"),
        }
    }

    /// The error for a page that came back wrong.
    pub(crate) fn damaged(&self, extent: &Extent) -> Error {
        let path = self.directories[extent.directory as usize].path.clone();
        Error::Damaged { path, offset: extent.offset, len: u64::from(extent.len) }
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

impl Directory {
    /// The byte where `room` bytes are now ours, or `None` if the directory is full.
    fn allocate(&self, room: u64, step: u64) -> Result<Option<u64>> {
        let mut state = self.state.lock().expect("no lane panics");
        if state.full {
            return Ok(None);
        }
        if state.end + room > state.reserved {
            for grow in [step.max(room), room] {
                match self.file.allocate(state.end + grow) {
                    Ok(()) => {
                        state.reserved = state.end + grow;
                        break;
                    }
                    Err(e) if e.is_full() => {}
                    Err(e) => return Err(e.into()),
                }
            }
            if state.end + room > state.reserved {
                state.full = true;
                return Ok(None);
            }
        }
        let offset = state.end;
        state.end += room;
        Ok(Some(offset))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !*self.keep.lock().expect("no lane panics") {
            for directory in &self.directories {
                // Nothing can be done about a name that cannot be removed; the next run tries again.
                let _ = self.io.remove(&directory.path);
            }
        }
    }
}
