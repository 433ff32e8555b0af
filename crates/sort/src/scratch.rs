//! Scratch: where what does not fit waits, one file in each scratch directory.
//!
//! Model: pages are given extents in turn over the directories; a full directory is passed over.
//! Room is reserved ahead in steps, because writes into reserved room run in parallel and writes that
//! lengthen a file do not.
//! Files are made when they are first needed, so a sort that fits in memory touches no scratch.
//! Law: no more than the limit is ever in use; every extent is checked by a hash when it comes
//! back, and the records in it once more by the proof of the output.
//! Non-goals: what pages mean.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use thalweg_io::{ALIGN, Access, Action, File, Io, directory_of};

use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Result};

/// Extents begin and end at multiples of what direct transfers want.
const EXTENT_ALIGN: u64 = ALIGN as u64;

/// Where a page lies in scratch, and how it is known again. Kept small: there is one for every page
/// that was spilled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Index of the scratch file in the top byte, byte of the file below.
    pub(crate) place: u64,
    /// Payload bytes; the extent itself is rounded up to 4096.
    pub(crate) len: u32,
    /// The low half of XXH3-64 of the payload.
    pub(crate) hash: u32,
}

const OFFSET_BITS: u32 = 56;

impl Extent {
    /// Index of the scratch file.
    pub(crate) fn directory(&self) -> u32 {
        (self.place >> OFFSET_BITS) as u32
    }

    /// Byte of the scratch file.
    pub(crate) fn offset(&self) -> u64 {
        self.place & ((1 << OFFSET_BITS) - 1)
    }

    /// Bytes taken up in the file.
    pub(crate) fn room(&self) -> u64 {
        u64::from(self.len).next_multiple_of(EXTENT_ALIGN)
    }
}

/// What an extent remembers of its payload.
pub(crate) fn page_hash(payload: &[u8]) -> u32 {
    xxh3_64(payload) as u32
}

/// The scratch files of one job.
pub(crate) struct Scratch {
    directories: Vec<Directory>,
    next: AtomicUsize,
    limit: u64,
    step: u64,
    used: AtomicU64,
    peak: AtomicU64,
    keep: AtomicBool,
    /// Files lose their names as soon as they are open, so that even a killed process leaves none.
    nameless: bool,
    io: Arc<dyn Io>,
}

struct Directory {
    path: PathBuf,
    file: OnceLock<File>,
    state: Mutex<Room>,
}

#[derive(Default)]
struct Room {
    end: u64,
    reserved: u64,
    full: bool,
    /// What filled it was a limit on the size of one file.
    is_limited: bool,
    /// Extents given back, by their size.
    free: BTreeMap<u64, Vec<u64>>,
}

impl Scratch {
    /// Scratch files `name` in `directories`, for about `expected` bytes and at most `limit`. What an
    /// earlier run left under that name is overwritten.
    pub(crate) fn new(
        io: &Arc<dyn Io>,
        directories: &[PathBuf],
        name: &str,
        expected: u64,
        limit: u64,
    ) -> Scratch {
        assert!(!directories.is_empty());
        let directory = |d: &PathBuf| Directory {
            path: d.join(name),
            file: OnceLock::new(),
            state: Mutex::new(Room::default()),
        };
        let share = expected / directories.len() as u64;
        Scratch {
            directories: directories.iter().map(directory).collect(),
            next: AtomicUsize::new(0),
            limit,
            step: (share / 16).clamp(1 << 20, 256 << 20).next_multiple_of(EXTENT_ALIGN),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            keep: AtomicBool::new(false),
            nameless: false,
            io: Arc::clone(io),
        }
    }

    /// The same without names: nothing can be gone on from, and nothing is left.
    pub(crate) fn nameless(mut self, nameless: bool) -> Scratch {
        self.nameless = nameless;
        self
    }

    /// Puts `files` with their extents' ends before the directories of this run: those of the same name go on where they
    /// ended.
    pub(crate) fn adopt(&mut self, files: &[(PathBuf, u64)]) -> Result<()> {
        let mut adopted = Vec::with_capacity(files.len());
        for (path, end) in files {
            let file = File::open(&self.io, path, Access::UpdateDirect)?;
            let room = Room { end: *end, reserved: *end, ..Room::default() };
            adopted.push(Directory {
                path: path.clone(),
                file: OnceLock::from(file),
                state: Mutex::new(room),
            });
            self.used.fetch_add(*end, Ordering::Relaxed);
        }
        self.peak.fetch_max(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
        let new = std::mem::take(&mut self.directories);
        let is_new = |d: &Directory| !files.iter().any(|(path, _)| *path == d.path);
        adopted.extend(new.into_iter().filter(is_new));
        self.directories = adopted;
        Ok(())
    }

    /// The scratch files, in the order of their numbers in extents.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|d| d.path.clone()).collect()
    }

    /// The scratch file of a directory in which something was allocated.
    pub(crate) fn file(&self, directory: u32) -> &File {
        self.directories[directory as usize].file.get().expect("extents lie in open files")
    }

    /// The most bytes that were in use at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The scratch directories.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|d| directory_of(&d.path).to_path_buf()).collect()
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Leaves the files where they are when dropped.
    pub(crate) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Room for a page of `len` bytes.
    pub(crate) fn allocate(&self, len: usize, hash: u32) -> Result<Extent> {
        let room = (len as u64).next_multiple_of(EXTENT_ALIGN);
        let used = self.used.fetch_add(room, Ordering::Relaxed) + room;
        if used <= self.limit {
            // One number for each page: lanes that take turns at numbers could each meet the full directory twice.
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            for further in 0..self.directories.len() {
                let index = first.wrapping_add(further) % self.directories.len();
                if let Some(offset) =
                    self.directories[index].allocate(&self.io, room, self.step, self.nameless)?
                {
                    self.peak.fetch_max(used, Ordering::Relaxed);
                    let place = (index as u64) << OFFSET_BITS | offset;
                    return Ok(Extent { place, len: len as u32, hash });
                }
            }
        }
        self.used.fetch_sub(room, Ordering::Relaxed);
        Err(if used <= self.limit { self.full(room) } else { self.at_limit(room) })
    }

    /// Gives an extent back.
    pub(crate) fn release(&self, extent: &Extent) {
        let mut state = self.directories[extent.directory() as usize].state.lock().expect("no lane panics");
        state.free.entry(extent.room()).or_default().push(extent.offset());
        self.used.fetch_sub(extent.room(), Ordering::Relaxed);
    }

    /// The error for what would be more than the limit.
    fn at_limit(&self, needed: u64) -> Error {
        let available = self.limit.saturating_sub(self.used());
        let (limit, directories) = (Some(self.limit), Vec::new());
        Error::ScratchFull { needed, available, beside: 0, limit, directories, resumable: false }
    }

    fn full(&self, needed: u64) -> Error {
        let limited = self.directories.iter().find(|d| d.state.lock().expect("no lane panics").is_limited);
        if let Some(directory) = limited {
            let source = ErrorKind::FileTooLarge.into();
            return thalweg_io::Error::new(Action::Allocate, &directory.path, source).into();
        }
        let directories = self.directories();
        let space = |d: &PathBuf| self.io.space(d).map_or(0, |s| s.available);
        let available = directories.iter().map(space).sum::<u64>();
        Error::ScratchFull { needed, available, beside: 0, limit: None, directories, resumable: false }
    }

    /// The error for a page that came back wrong.
    pub(crate) fn damaged(&self, extent: &Extent) -> Error {
        let path = self.directories[extent.directory() as usize].path.clone();
        Error::Damaged { path, offset: extent.offset(), len: u64::from(extent.len) }
    }
}

impl Directory {
    /// The byte where `room` bytes are now ours, or `None` if the directory is full.
    fn allocate(&self, io: &Arc<dyn Io>, room: u64, step: u64, nameless: bool) -> Result<Option<u64>> {
        let mut state = self.state.lock().expect("no lane panics");
        if let Some(offset) = state.free.get_mut(&room).and_then(Vec::pop) {
            return Ok(Some(offset));
        }
        if state.full {
            return Ok(None);
        }
        if state.end + room > state.reserved {
            if self.file.get().is_none() {
                let file = File::open(io, &self.path, Access::CreateScratch)?;
                if nameless {
                    io.remove(&self.path)?;
                }
                assert!(self.file.set(file).is_ok(), "the lock lets one lane through");
            }
            let file = self.file.get().expect("just made sure");
            for grow in [step.max(room), room] {
                match file.allocate(state.end + grow) {
                    Ok(()) => {
                        state.reserved = state.end + grow;
                        break;
                    }
                    Err(e) if e.is_full() => state.is_limited = e.source.kind() == ErrorKind::FileTooLarge,
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
        if !self.keep.load(Ordering::Relaxed) {
            for directory in self.directories.iter().filter(|d| d.file.get().is_some() && !self.nameless) {
                // Nothing can be done about a name that cannot be removed; the next run tries again.
                let _ = self.io.remove(&directory.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_io::sim::Sim;

    /// Two lanes took turns at the numbers by which directories are tried, so that one of them met the full
    /// directory twice and never the one with room: a sort failed whose scratch was far from full. Whoever looks
    /// for room looks in every directory.
    #[test]
    fn lanes_at_once_all_find_the_directory_that_has_room() {
        let sim = Sim::new(1);
        sim.set_capacity("/full", 1 << 20);
        sim.make_dir("/free");
        let directories = ["/full", "/free"].map(PathBuf::from);
        let scratch = Scratch::new(&sim.io(), &directories, "scratch", 1 << 24, u64::MAX);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..200_000 {
                        scratch.allocate(16 << 10, 0).unwrap_or_else(|e| panic!("{e}"));
                    }
                });
            }
        });
        assert!(scratch.peak() >= 1_600_000 * (16 << 10));
    }
}
