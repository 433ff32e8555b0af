//! A store in a local directory.
//!
//! ```text
//! DIR/superblock           the volume, and the slot
//! DIR/incarnation          which manager it has accepted; see kept.rs
//! DIR/INODE-INDEX-COPY...  the two files of each strip; see strip.rs
//! ```
//!
//! Invariant: a directory without the superblock of this volume and slot is a lost store, whatever else is in it. A
//! strip that lacks one of its files is damaged, not absent.
//! Non-goals: where the directory is. Only its owner can write to it, so no other user puts anything into it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use thalweg_io::{Access, File, FileSystem, Space};

use crate::kept::Kept;
use crate::store::{Store, Strip, StripFacts, Write};
use crate::strip::{BLOCK, OpenStrip};
use crate::{Error, Result};

pub(crate) const SUPERBLOCK: &str = "superblock";
/// The digits of the volume's number in a superblock.
const NUMBER_AT: Range<usize> = 23..55;
const DATA: &str = "strip";
const SUMS: &str = "sums";
/// The most unused strips that are kept open; each has two files.
const OPEN_MAX: usize = 128;
/// The most strips that a sync makes durable file by file. For more, it syncs their file system: see
/// docs/decisions/one-syncfs-for-a-tree.md.
const SYNCED_EACH_MAX: usize = 8;

/// A store in a directory.
pub struct LocalStore {
    io: Arc<dyn FileSystem>,
    dir: PathBuf,
    open: Mutex<HashMap<Strip, Shared>>,
    kept: Kept,
}

/// A strip, for any number of readers or one writer.
type Shared = Arc<RwLock<OpenStrip>>;

impl LocalStore {
    /// Turns an empty directory into a store. Durable.
    pub fn create(io: &Arc<dyn FileSystem>, dir: &Path, volume: u128, slot: u32) -> Result<()> {
        let file = File::open(io, &dir.join(SUPERBLOCK), Access::Create)?;
        file.write_at(0, superblock(volume, slot).as_bytes())?;
        file.sync()?;
        Kept::create(io, dir)?;
        Ok(io.sync_directory(dir)?)
    }

    /// Opens the store of this slot of this volume.
    pub fn open(io: &Arc<dyn FileSystem>, dir: &Path, volume: u128, slot: u32) -> Result<LocalStore> {
        LocalStore::check(io, dir, Some(volume), slot)?;
        LocalStore::in_dir(io, dir)
    }

    /// An error unless the directory has the superblock of this slot of this volume; of any volume if the number of
    /// this one is unknown.
    pub(crate) fn check(io: &Arc<dyn FileSystem>, dir: &Path, volume: Option<u128>, slot: u32) -> Result<()> {
        let path = dir.join(SUPERBLOCK);
        let expected = superblock(volume.unwrap_or(0), slot).into_bytes();
        let mut found = vec![0; expected.len() + 1];
        let read = File::open(io, &path, Access::Update)?.read_at(0, &mut found)?;
        found.truncate(read);
        if volume.is_none()
            && let Some(number) = found.get_mut(NUMBER_AT)
        {
            number.fill(b'0');
        }
        if found == expected {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "{} is of another volume, or of another store than number {slot} of this one",
            path.display()
        )))
    }

    /// Opens a store of any volume, for callers that have nothing but the directory.
    pub fn open_any(io: &Arc<dyn FileSystem>, dir: &Path) -> Result<LocalStore> {
        File::open(io, &dir.join(SUPERBLOCK), Access::Update)?;
        LocalStore::in_dir(io, dir)
    }

    fn in_dir(io: &Arc<dyn FileSystem>, dir: &Path) -> Result<LocalStore> {
        let kept = Kept::open(io, dir)?;
        Ok(LocalStore { io: Arc::clone(io), dir: dir.into(), open: Mutex::default(), kept })
    }

    /// The incarnation of the manager that it has accepted, and where that is kept.
    pub(crate) fn kept(&self) -> (&Arc<dyn FileSystem>, &Path, &Kept) {
        (&self.io, &self.dir, &self.kept)
    }

    fn path(&self, strip: Strip, end: &str) -> PathBuf {
        self.dir.join(format!("{:016x}-{:02}-{}.{end}", strip.inode, strip.index, strip.copy))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Strip, Shared>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a strip, and opens it if needed; `None` if it does not exist.
    fn strip(&self, strip: Strip) -> Result<Option<Shared>> {
        self.strip_of(&mut self.lock(), strip)
    }

    /// Returns a strip from the open ones, and opens it if needed; `None` if it does not exist.
    fn strip_of(&self, open: &mut HashMap<Strip, Shared>, strip: Strip) -> Result<Option<Shared>> {
        if let Some(found) = open.get(&strip) {
            return Ok(Some(Arc::clone(found)));
        }
        let Some((data, sums)) = self.files(strip)? else { return Ok(None) };
        Ok(OpenStrip::open(data, sums, strip)?.map(|found| keep(open, strip, found)))
    }

    /// Calls `ask` with a strip of this generation.
    fn ask<T>(&self, strip: Strip, generation: u64, ask: impl FnOnce(&OpenStrip) -> Result<T>) -> Result<T> {
        let shared = self.strip(strip)?.ok_or_else(|| lost(strip))?;
        let open = shared.read().map_err(poisoned)?;
        if open.header().generation != generation {
            return Err(Error::Stale(strip));
        }
        ask(&open)
    }

    /// Changes a strip of this generation.
    fn change<T>(
        &self,
        strip: Strip,
        generation: u64,
        change: impl FnOnce(&mut OpenStrip) -> Result<T>,
    ) -> Result<T> {
        let shared = self.strip(strip)?.ok_or_else(|| lost(strip))?;
        let mut open = shared.write().map_err(poisoned)?;
        if open.header().generation != generation {
            return Err(Error::Stale(strip));
        }
        change(&mut open)
    }

    /// The files of a strip; `None` if it was never whole.
    fn files(&self, strip: Strip) -> Result<Option<(File, File)>> {
        let (data, sums) = (self.file(strip, DATA)?, self.file(strip, SUMS)?);
        match (data, sums) {
            (Some(data), Some(sums)) => Ok(Some((data, sums))),
            (None, None) => Ok(None),
            // The checksums are made first. If the writer came no further, no byte of this strip was ever made durable.
            (None, Some(sums)) if OpenStrip::is_unborn(&sums, strip)? => Ok(None),
            (data, _) => {
                let lost = if data.is_none() { DATA } else { SUMS };
                Err(Error::Missing(strip, format!("{} is gone", self.path(strip, lost).display())))
            }
        }
    }

    fn file(&self, strip: Strip, end: &str) -> Result<Option<File>> {
        match File::open(&self.io, &self.path(strip, end), Access::Update) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns a strip that is open or is made now; `None` if it is not open and a file of that name exists.
    fn new_strip(&self, write: &Write) -> Result<Option<Shared>> {
        let strip = write.strip;
        let mut open = self.lock();
        if let Some(found) = open.get(&strip) {
            return Ok(Some(Arc::clone(found)));
        }
        let create = |end| match File::open(&self.io, &self.path(strip, end), Access::Create) {
            Err(e) if e.source.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
            made => made.map(Some).map_err(Error::from),
        };
        let Some(sums) = create(SUMS)? else { return Ok(None) };
        let Some(data) = create(DATA)? else {
            self.io.remove(&self.path(strip, SUMS))?;
            return Ok(None);
        };
        let made = OpenStrip::create(data, sums, strip, write.generation, write.layout)?;
        Ok(Some(keep(&mut open, strip, made)))
    }

    /// The strip to write to; made if it does not exist and `may_create` allows it.
    fn strip_to_write(&self, write: &Write) -> Result<Shared> {
        let made = if write.may_create { self.new_strip(write)? } else { None };
        let found = if made.is_none() { self.strip(write.strip)? } else { made };
        match found {
            Some(found) => Ok(found),
            None if write.may_create => {
                // These are files of a strip that was still being made.
                self.remove(write.strip, write.generation)?;
                self.new_strip(write)?.ok_or_else(|| lost(write.strip))
            }
            None => Err(lost(write.strip)),
        }
    }
}

/// Keeps a strip open, and closes another one if too many are open.
fn keep(open: &mut HashMap<Strip, Shared>, strip: Strip, found: OpenStrip) -> Shared {
    if open.len() >= OPEN_MAX {
        let unused = open.iter().find(|(_, shared)| Arc::strong_count(shared) == 1).map(|(strip, _)| *strip);
        unused.and_then(|strip| open.remove(&strip));
    }
    let shared = Arc::new(RwLock::new(found));
    open.insert(strip, Arc::clone(&shared));
    shared
}

fn superblock(volume: u128, slot: u32) -> String {
    format!("thalweg store 1\nvolume {volume:032x}\nslot {slot}\n")
}

/// The strip whose name this file has.
fn named(path: &Path) -> Option<Strip> {
    let name = path.file_name()?.to_str()?.strip_suffix(DATA)?.strip_suffix('.')?;
    let mut words = name.split('-');
    let inode = u64::from_str_radix(words.next()?, 16).ok()?;
    let index = words.next()?.parse().ok()?;
    Some(Strip { inode, index, copy: words.next()?.parse().ok()? })
}

fn poisoned<T>(_: PoisonError<T>) -> Error {
    Error::Refused("a strip was left in the middle of a request; open the volume again".into())
}

fn lost(strip: Strip) -> Error {
    Error::Missing(strip, "it is not at its store".into())
}

impl Store for LocalStore {
    fn read(&self, strip: Strip, generation: u64, at: u64, into: &mut [u8]) -> Result<()> {
        self.ask(strip, generation, |open| open.read(at, into))
    }

    fn next_data(&self, strip: Strip, generation: u64, at: u64) -> Result<Option<Range<u64>>> {
        self.ask(strip, generation, |open| open.next_data(at))
    }

    fn write(&self, write: &Write, from: &[u8]) -> Result<()> {
        let shared = self.strip_to_write(write)?;
        let mut open = shared.write().map_err(poisoned)?;
        if open.header().generation != write.generation {
            return Err(Error::Stale(write.strip));
        }
        open.write(write.at, from)
    }

    fn punch(&self, strip: Strip, generation: u64, bytes: Range<u64>) -> Result<()> {
        self.change(strip, generation, |open| open.punch(bytes))
    }

    fn truncate(&self, strip: Strip, generation: u64, len: u64) -> Result<()> {
        let Some(shared) = self.strip(strip)? else { return Ok(()) };
        let mut open = shared.write().map_err(poisoned)?;
        if open.header().generation >= generation {
            return Ok(());
        }
        open.truncate(generation, len)
    }

    fn sync(&self, strips: &[Strip]) -> Result<Vec<u64>> {
        // Otherwise two callers that lock strips could wait for each other.
        if !strips.is_sorted_by(|a, b| a < b) {
            return Err(Error::Refused("the strips of a sync come in ascending order".into()));
        }
        let find = |strip: &Strip| self.strip(*strip)?.ok_or_else(|| lost(*strip));
        let shared = strips.iter().map(find).collect::<Result<Vec<Shared>>>()?;
        let mut open =
            shared.iter().map(|shared| shared.write().map_err(poisoned)).collect::<Result<Vec<_>>>()?;
        let is_many = strips.len() > SYNCED_EACH_MAX;
        if is_many {
            self.io.sync_file_system(&self.dir)?;
        }
        let numbers = open.iter_mut().map(|open| open.sync(is_many)).collect::<Result<Vec<_>>>()?;
        if !is_many && open.iter().any(|open| open.is_new()) {
            self.io.sync_directory(&self.dir)?;
        }
        for (open, number) in open.iter_mut().zip(&numbers) {
            match open.header().layout.copies {
                1 => open.settle(*number)?,
                _ if open.is_new() => open.named()?,
                _ => {}
            }
        }
        Ok(numbers)
    }

    fn settle(&self, strip: Strip, generation: u64, sync: u64) -> Result<()> {
        self.change(strip, generation, |open| open.settle(sync))
    }

    fn changes(&self, strip: Strip, generation: u64) -> Result<Vec<Range<u64>>> {
        self.change(strip, generation, |open| Ok(open.changes()))
    }

    fn mend(&self, strip: Strip, generation: u64, at: u64, block: &[u8]) -> Result<()> {
        let block = <&[u8; BLOCK]>::try_from(block).ok().filter(|_| at.is_multiple_of(BLOCK as u64));
        let block = block.ok_or_else(|| Error::Refused("what is mended is a whole block".into()))?;
        self.change(strip, generation, |open| open.mend(at, block))
    }

    fn remove(&self, strip: Strip, below: u64) -> Result<()> {
        let mut open = self.lock();
        if let Ok(Some(found)) = self.strip_of(&mut open, strip)
            && found.read().is_ok_and(|found| found.header().generation >= below)
        {
            return Ok(());
        }
        open.remove(&strip);
        for end in [DATA, SUMS] {
            match self.io.remove(&self.path(strip, end)) {
                Err(e) if e.source.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn facts(&self, strip: Strip) -> Result<Option<StripFacts>> {
        let Some(shared) = self.strip(strip)? else { return Ok(None) };
        let open = shared.read().map_err(poisoned)?;
        let header = open.header();
        Ok(Some(StripFacts {
            len: open.len(),
            allocated: open.allocated()?,
            generation: header.generation,
            layout: header.layout,
            unsettled: open.unsettled(),
        }))
    }

    fn list(&self) -> Result<Vec<Strip>> {
        let mut strips: Vec<Strip> = self.io.list(&self.dir)?.iter().filter_map(|path| named(path)).collect();
        strips.sort();
        Ok(strips)
    }

    fn space(&self) -> Result<(Space, u64)> {
        let mut number = DefaultHasher::new();
        (thalweg_io::process::boot(), self.io.stat(&self.dir)?.device).hash(&mut number);
        Ok((self.io.space(&self.dir)?, number.finish()))
    }
}
