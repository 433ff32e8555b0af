//! Scratch files: space for pages that do not fit in memory, one file in each scratch directory.
//!
//! Model: pages get extents in the directories in turn; a full directory is skipped. Space is reserved ahead in
//! steps, because writes into reserved space run in parallel and writes that extend a file do not. Files are created
//! when they are first needed, so a sort that fits in memory creates none. The partial output may itself be a scratch
//! file (`output_scratch.rs`): then there is no space to free at the end. On a disk with discard, freeing takes as long
//! as writing.
//! Invariant: usage never exceeds the limit. Every extent is checked by its hash when it is read, and its records
//! again by the proof of the output.
//! Non-goals: the contents of pages.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use thalweg_block::Block;
use thalweg_io::{ALIGN, Access, Action, Backends, File, Kind, Location, Op, Queue};

use xxhash_rust::xxh3::xxh3_64;

use crate::options::SCRATCH_FILES_MAX;
use crate::output_scratch::OutputScratch;
use crate::{Error, Result};

/// Extents are aligned for direct I/O.
const EXTENT_ALIGN: u64 = ALIGN as u64;

/// The location of a page in scratch, and its hash. It is small because there is one for each spilled page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The number of the scratch file in the top byte, the offset in the file below.
    pub(crate) place: u64,
    /// Bytes of the page. The extent is rounded up to 4096.
    pub(crate) len: u32,
    /// The low half of the XXH3-64 of the page.
    pub(crate) hash: u32,
}

const OFFSET_BITS: u32 = 56;
const _: () =
    assert!(SCRATCH_FILES_MAX == 1 << (u64::BITS - OFFSET_BITS), "each file has a number in an extent");

impl Extent {
    /// The number of the scratch file.
    pub(crate) fn directory(&self) -> u32 {
        (self.place >> OFFSET_BITS) as u32
    }

    /// The offset in the scratch file.
    pub(crate) fn offset(&self) -> u64 {
        self.place & ((1 << OFFSET_BITS) - 1)
    }

    /// Bytes that the extent takes in the file.
    pub(crate) fn room(&self) -> u64 {
        u64::from(self.len).next_multiple_of(EXTENT_ALIGN)
    }
}

/// The hash of a page in its extent.
pub(crate) fn page_hash(payload: &[u8]) -> u32 {
    xxh3_64(payload) as u32
}

/// The scratch files of one sort.
pub(crate) struct Scratch {
    directories: Vec<Directory>,
    next: AtomicUsize,
    limit: u64,
    step: u64,
    used: AtomicU64,
    peak: AtomicU64,
    /// How many of the first files are from earlier runs.
    adopted: usize,
    /// How many of the first files stay when this is dropped.
    kept: AtomicUsize,
    /// Whether files are unlinked as soon as they are open, so that even a killed process leaves none.
    nameless: bool,
}

struct Directory {
    /// The location of its file.
    location: Location,
    file: OnceLock<File>,
    /// The regions for pages, if the file is the partial output.
    within: Option<OutputScratch>,
    state: Mutex<Room>,
}

#[derive(Default)]
struct Room {
    end: u64,
    reserved: u64,
    full: bool,
    /// Whether it is full because of a limit on the size of one file.
    is_limited: bool,
    /// The end of the used part of each region.
    regions: Vec<u64>,
    /// Freed extents by size.
    free: BTreeMap<u64, Vec<u64>>,
}

impl Scratch {
    /// Scratch files named `name` in `directories`, for about `expected` bytes and at most `limit`.
    pub(crate) fn new(
        directories: &[Location],
        name: impl AsRef<Path>,
        expected: u64,
        limit: u64,
    ) -> Scratch {
        assert!((1..=SCRATCH_FILES_MAX).contains(&directories.len()));
        let directory = |d: &Location| Directory::new(d.at(d.path.join(&name)), None);
        let share = expected / directories.len() as u64;
        Scratch {
            directories: directories.iter().map(directory).collect(),
            next: AtomicUsize::new(0),
            limit,
            step: (share / 16).clamp(1 << 20, 256 << 20).next_multiple_of(EXTENT_ALIGN),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            adopted: 0,
            kept: AtomicUsize::new(0),
            nameless: false,
        }
    }

    /// Unlinks the files as soon as they are open if `nameless` is set. A later run cannot resume from them.
    pub(crate) fn nameless(mut self, nameless: bool) -> Scratch {
        self.nameless = nameless;
        self
    }

    /// Uses the partial output instead of the directories.
    pub(crate) fn within(mut self, partial: &Location, within: OutputScratch) -> Scratch {
        self.directories = vec![Directory::new(partial.clone(), Some(within))];
        self
    }

    /// Whether the output is one of the scratch files.
    pub(crate) fn is_within(&self) -> bool {
        self.directories.iter().any(|d| d.within.is_some())
    }

    /// The size of the output file with its regions, if it is a scratch file.
    pub(crate) fn room_within(&self) -> Option<u64> {
        self.directories.iter().find_map(|d| d.within).map(|within| within.room())
    }

    /// Whether an extent lies in the first `end` bytes of the output.
    pub(crate) fn is_overtaken(&self, extent: &Extent, end: u64) -> bool {
        self.directories[extent.directory() as usize].within.is_some() && extent.offset() < end
    }

    /// Sets the open output file, unless it was adopted.
    pub(crate) fn settle(&self, output: &File) {
        for directory in self.directories.iter().filter(|d| d.within.is_some()) {
            directory.file.get_or_init(|| output.clone());
        }
    }

    /// Puts the files of earlier runs, with these extents, before the directories of this run. If a directory of this
    /// run has one of these files, new pages follow its extents. If a file is the output, `within` returns its regions.
    pub(crate) fn adopt<'e>(
        &mut self,
        files: &[Location],
        extents: impl Iterator<Item = &'e Extent>,
        within: impl Fn(&Path) -> Option<OutputScratch>,
    ) -> Result<()> {
        let mut adopted: Vec<Directory> =
            files.iter().map(|file| Directory::new(file.clone(), within(&file.path))).collect();
        for directory in &adopted {
            let file = directory.location.open(Access::UpdateDirect)?;
            assert!(directory.file.set(file).is_ok(), "it was made just now");
        }
        for extent in extents {
            adopted[extent.directory() as usize].take(extent);
            self.used.fetch_add(extent.room(), Ordering::Relaxed);
        }
        self.peak.fetch_max(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
        let new = std::mem::take(&mut self.directories);
        // The run that made them may have used another path.
        let is_new = |d: &Directory| !files.iter().any(|file| file.is_same_file(&d.location));
        self.adopted = adopted.len();
        adopted.extend(new.into_iter().filter(is_new));
        if adopted.len() > SCRATCH_FILES_MAX {
            return Err(Error::TooManyScratch { count: adopted.len() });
        }
        self.directories = adopted;
        Ok(())
    }

    /// The scratch files in the order of their numbers in extents.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|d| d.location.path.clone()).collect()
    }

    /// The scratch file of a directory in which space was allocated.
    pub(crate) fn file(&self, directory: u32) -> &File {
        self.directories[directory as usize].file.get().expect("extents lie in open files")
    }

    /// The maximum bytes in use at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The scratch directories.
    pub(crate) fn directories(&self) -> Vec<Location> {
        self.directories.iter().map(|d| d.location.directory()).collect()
    }

    /// A queue for all scratch files.
    pub(crate) fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        let backends: Backends = self.directories.iter().map(|d| Arc::clone(&d.location.fs) as _).collect();
        Ok(backends.queue(depth)?)
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Keeps files when this is dropped: all of them if a manifest lists them, otherwise only those of earlier runs.
    /// A later run could not find, or remove, a file that is not listed.
    pub(crate) fn keep(&self, are_listed: bool) {
        self.kept.store(if are_listed { usize::MAX } else { self.adopted }, Ordering::Relaxed);
    }

    /// The write of a full page to a new extent; see [`Scratch::allocate`].
    pub(crate) fn write(&self, mut block: Block, range: Option<usize>, tag: u64) -> Result<(Extent, Op)> {
        let extent = self.allocate(block.len(), page_hash(&block), range)?;
        block.set_len(extent.room() as usize);
        let file = self.file(extent.directory()).handle().clone();
        Ok((extent, Op { kind: Kind::Write, file, at: extent.offset(), block, tag }))
    }

    /// The read of a page; [`Scratch::verify`] checks the result.
    pub(crate) fn read(&self, extent: &Extent, mut block: Block, tag: u64) -> Op {
        block.set_len(extent.room() as usize);
        let file = self.file(extent.directory()).handle().clone();
        Op { kind: Kind::Read, file, at: extent.offset(), block, tag }
    }

    /// Returns the page if its contents are those that were written.
    pub(crate) fn verify(&self, mut block: Block, extent: &Extent) -> Result<Block> {
        if block.len() < extent.len as usize {
            return Err(self.damaged(extent));
        }
        block.set_len(extent.len as usize);
        if page_hash(&block) != extent.hash {
            return Err(self.damaged(extent));
        }
        Ok(block)
    }

    /// Allocates space for a page of `len` bytes. `range` is its range in the first pass, if it has one.
    fn allocate(&self, len: usize, hash: u32, range: Option<usize>) -> Result<Extent> {
        let room = (len as u64).next_multiple_of(EXTENT_ALIGN);
        let used = self.used.fetch_add(room, Ordering::Relaxed) + room;
        if used <= self.limit {
            // One number for each page. If every attempt took one, a lane could try the same full directory
            // twice.
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            for further in 0..self.directories.len() {
                let index = first.wrapping_add(further) % self.directories.len();
                let directory = &self.directories[index];
                let in_region = range.and_then(|range| directory.allocate_in_region(room, range));
                let offset = match in_region {
                    None => directory.allocate(room, self.step, self.nameless)?,
                    found => found,
                };
                if let Some(offset) = offset {
                    self.peak.fetch_max(used, Ordering::Relaxed);
                    let place = (index as u64) << OFFSET_BITS | offset;
                    return Ok(Extent { place, len: len as u32, hash });
                }
            }
        }
        self.used.fetch_sub(room, Ordering::Relaxed);
        Err(if used <= self.limit { self.full(room) } else { self.at_limit(room) })
    }

    /// Frees an extent.
    pub(crate) fn release(&self, extent: &Extent) {
        let directory = &self.directories[extent.directory() as usize];
        self.used.fetch_sub(extent.room(), Ordering::Relaxed);
        // Inside the regions, not every page may be written to the freed space.
        if directory.within.is_none_or(|within| extent.offset() >= within.room()) {
            let mut state = directory.state.lock().expect("no lane panics");
            state.free.entry(extent.room()).or_default().push(extent.offset());
        }
    }

    /// The error for exceeding the limit.
    fn at_limit(&self, needed: u64) -> Error {
        let available = self.limit.saturating_sub(self.used());
        let (limit, directories) = (Some(self.limit), Vec::new());
        Error::ScratchFull { needed, available, beside: 0, limit, directories, resumable: false }
    }

    fn full(&self, needed: u64) -> Error {
        let limited = self.directories.iter().find(|d| d.state.lock().expect("no lane panics").is_limited);
        if let Some(directory) = limited {
            let source = ErrorKind::FileTooLarge.into();
            return thalweg_io::Error::new(Action::Allocate, &directory.location.path, source).into();
        }
        let directories = self.directories();
        let space = |d: &Location| d.space().map_or(0, |s| s.available);
        let available = directories.iter().map(space).sum::<u64>();
        let directories = directories.into_iter().map(|d| d.path).collect();
        Error::ScratchFull { needed, available, beside: 0, limit: None, directories, resumable: false }
    }

    /// The error for a damaged page.
    fn damaged(&self, extent: &Extent) -> Error {
        let path = self.directories[extent.directory() as usize].location.path.clone();
        Error::Damaged { path, offset: extent.offset(), len: u64::from(extent.len) }
    }
}

impl Directory {
    fn new(location: Location, within: Option<OutputScratch>) -> Directory {
        let room = within.map_or(0, |within| within.room());
        let regions = within.iter().flat_map(|w| (0..w.regions()).map(|region| w.start(region))).collect();
        let state = Room { end: room, reserved: room, regions, ..Room::default() };
        Directory { location, file: OnceLock::new(), within, state: Mutex::new(state) }
    }

    /// Marks an existing extent as used.
    fn take(&mut self, extent: &Extent) {
        let state = self.state.get_mut().expect("no lane panics");
        let end = extent.offset() + extent.room();
        match self.within.and_then(|within| within.region_at(extent.offset())) {
            Some(region) => state.regions[region] = state.regions[region].max(end),
            None => (state.end, state.reserved) = (state.end.max(end), state.reserved.max(end)),
        }
    }

    /// Allocates `room` bytes in the region of a range or in a later one, if this is the output. Returns the offset.
    fn allocate_in_region(&self, room: u64, range: usize) -> Option<u64> {
        let within = self.within?;
        let mut state = self.state.lock().expect("no lane panics");
        let first = within.region_of(range);
        let taken = state.regions[first..].iter_mut().zip(first..);
        let (taken, _) = taken.into_iter().find(|(taken, region)| **taken + room <= within.end(*region))?;
        *taken += room;
        Some(*taken - room)
    }

    /// Allocates `room` bytes and returns the offset, or `None` if the directory is full.
    fn allocate(&self, room: u64, step: u64, nameless: bool) -> Result<Option<u64>> {
        let mut state = self.state.lock().expect("no lane panics");
        if let Some(offset) = state.free.get_mut(&room).and_then(Vec::pop) {
            return Ok(Some(offset));
        }
        if state.full {
            return Ok(None);
        }
        if state.end + room > state.reserved {
            if self.file.get().is_none() {
                let file = self.location.open(Access::CreateDirect)?;
                if nameless {
                    self.location.remove()?;
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
        let is_ours = |d: &&Directory| d.file.get().is_some() && d.within.is_none() && !self.nameless;
        for directory in self.directories.iter().skip(*self.kept.get_mut()).filter(is_ours) {
            // If the name cannot be removed, the next run tries again.
            let _ = directory.location.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_io::sim::Sim;

    /// Two lanes shared the numbers that select directories, so one of them tried the full directory twice and never
    /// the one with space: a sort failed although scratch was far from full. Now an allocation tries every directory.
    #[test]
    fn concurrent_lanes_all_find_the_directory_with_space() {
        let sim = Sim::new(1);
        sim.set_capacity("/full", 1 << 20);
        sim.make_dir("/free");
        let io = sim.io();
        let directories = ["/full", "/free"].map(|path| Location::new(&io, path));
        let scratch = Scratch::new(&directories, "scratch", 1 << 24, u64::MAX);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..200_000 {
                        scratch.allocate(16 << 10, 0, None).unwrap_or_else(|e| panic!("{e}"));
                    }
                });
            }
        });
        assert!(scratch.peak() >= 1_600_000 * (16 << 10));
    }
}
