//! Rebuilds files from the directories of stores, even without the manager.
//!
//! Model: each strip has the number and the layout of its file, so files can be put together without the manager. Only
//! the manager knows names and sizes; without it, a file is named by its number, and ends where its last strip does.
//! Invariant: unreadable bytes are holes in the rebuilt file, and each file with such holes is reported, with their
//! ranges. A file of which nothing can be read is not written.
//! Non-goals: directories, links and attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::{VolumeEntry, VolumeSalvage};
use thalweg_io::threads::Threads;
use thalweg_io::tree::Dir;
use thalweg_io::{File, FileSystem, local, small};

use crate::layout::Piece;
use crate::manager::Kind;
use crate::registry::Registry;
use crate::store::{Store, Strip, StripFacts};
use crate::stores::{Slot, bit};
use crate::strip::BLOCK;
use crate::{Error, Result, check, volumes};

const PIECE: usize = 1 << 20;
/// The permissions of the files that are written.
const FILE_MODE: u32 = 0o600;
/// The most lost ranges of a file that are listed one by one; the rest is summed up.
const LISTED_MAX: usize = 16;

/// The copies of a strip, with their stores.
type Copies<'a> = Vec<(&'a dyn Store, Strip, StripFacts)>;

/// The manager's record of a file.
struct Known {
    name: PathBuf,
    size: u64,
    strips: u64,
    stale: [u64; 2],
}

/// The manager's records of all files, by their inodes.
type AllKnown = BTreeMap<u64, Known>;

/// Ranges of a file that cannot be read, in order.
#[derive(Default)]
struct Lost {
    /// The first ranges, each with the reason.
    listed: Vec<(Range<u64>, String)>,
    /// The number of further ranges.
    more: u64,
    /// The end of the last range.
    end: u64,
    /// The number of bytes in all ranges.
    bytes: u64,
}

impl Lost {
    fn add(&mut self, range: Range<u64>, why: &str) {
        let is_next = self.bytes > 0 && range.start == self.end;
        self.bytes += range.end - range.start;
        self.end = range.end;
        if !is_next && self.listed.len() < LISTED_MAX {
            self.listed.push((range, why.into()));
        } else if !is_next {
            self.more += 1;
        } else if let (0, Some((last, _))) = (self.more, self.listed.last_mut()) {
            last.end = range.end;
        }
    }

    /// Adds a line for each range, or, if there are many, for the first ones and for the rest together.
    fn report(&self, name: &Path, problems: &mut Vec<String>) {
        let name = name.display();
        problems.extend(self.listed.iter().map(|(range, why)| {
            let last = range.end - 1;
            format!("{name}: bytes {} to {last} are lost: {why}", range.start)
        }));
        if self.more > 0 {
            problems.push(format!("{name}: {} bytes are lost, {} more ranges", self.bytes, self.more));
        }
    }
}

/// Rebuilds the files of a volume in a new directory.
pub fn salvage(registry: &Registry, name: &str, into: &Path) -> Result<VolumeSalvage> {
    let entry = registry.find(name)?;
    let mut salvaged = VolumeSalvage { name: name.into(), ..VolumeSalvage::default() };
    let (known, lost) = match known(entry.clone()) {
        Ok((known, lost)) => (Some(known), lost),
        Err(why) => {
            salvaged.problems.push(format!("files are called after their numbers: {why}"));
            (None, Vec::new())
        }
    };
    let stores = volumes::stores_alone(&entry)?;
    let mut slots: Vec<_> = (0..).zip(entry.stores.iter().zip(&stores)).collect();
    let doubt = |slot: u32| lost.get(slot as usize)?.as_ref().filter(|_| stores[slot as usize].is_ok());
    // What another store has is better than what is in one that the volume does not use.
    slots.sort_by_key(|(slot, _)| doubt(*slot).is_some());
    let doubts = slots.iter().filter_map(|(slot, _)| doubt(*slot));
    salvaged.problems.extend(doubts.map(|why| format!("{why}; bytes that are saved from it may be old")));
    let (mut files, lost_slots) = files(slots.into_iter(), &mut salvaged.problems);
    small::make_new_directory(into)?;
    let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
    let root = local::tree(&io).open_dir(into)?;
    if let Some(known) = &known {
        // Files without names were removed; only their strips are not gone yet.
        files.retain(|inode, _| known.contains_key(inode));
        known.keys().for_each(|inode| _ = files.entry(*inode).or_default());
    }
    for (inode, mut strips) in files {
        let told = known.as_ref().and_then(|known| known.get(&inode));
        if let Some(known) = told {
            let is_current = |strip: &Strip| known.stale[strip.copy as usize] & bit(strip.index) == 0;
            strips.values_mut().for_each(|copies| copies.retain(|(_, strip, _)| is_current(strip)));
            strips.retain(|_, copies| !copies.is_empty());
        }
        let name = told.map_or_else(|| PathBuf::from(format!("inode-{inode}")), |known| known.name.clone());
        match rebuild(&root, &name, (&strips, &lost_slots), told) {
            Ok((bytes, lost)) => {
                lost.report(&name, &mut salvaged.problems);
                salvaged.files += u64::from(lost.bytes == 0);
                salvaged.partial_files += u64::from(bytes > 0 && lost.bytes > 0);
                salvaged.bytes += bytes;
            }
            Err(why) => salvaged.problems.push(format!("{}: {why}", name.display())),
        }
    }
    io.sync_directory(into)?;
    Ok(salvaged)
}

/// Names and sizes, from the manager; and for each slot, why its store is lost, if it is.
fn known(entry: VolumeEntry) -> Result<(AllKnown, Vec<Option<String>>)> {
    let open = volumes::open_known(entry)?;
    let mut known = BTreeMap::new();
    check::walk(&open.volume, |path, inode| {
        if inode.kind != Kind::File {
            return;
        }
        let name = path.strip_prefix("/").unwrap_or(path).to_path_buf();
        known.entry(inode.id).or_insert(Known {
            name,
            size: inode.size,
            strips: inode.strips,
            stale: inode.stale,
        });
    })?;
    Ok((known, open.volume.stores.lost()))
}

/// The strips of each file, by their index; and the slots whose stores are lost.
fn files<'a>(
    stores: impl Iterator<Item = (u32, (&'a String, &'a Slot))>,
    problems: &mut Vec<String>,
) -> (BTreeMap<u64, BTreeMap<u32, Copies<'a>>>, BTreeSet<u32>) {
    let mut files: BTreeMap<u64, BTreeMap<u32, Copies<'_>>> = BTreeMap::new();
    let mut lost_slots = BTreeSet::new();
    for (slot, (directory, store)) in stores {
        let listed = check::asked(store, |store| Ok((store.list()?, store)));
        let (strips, store) = match listed {
            Ok(listed) => listed,
            Err(why) => {
                problems.push(format!("the store in {directory} is lost: {why}"));
                lost_slots.insert(slot);
                continue;
            }
        };
        for strip in strips {
            match facts(store, strip) {
                Ok(Some(facts)) => {
                    let of_file = files.entry(strip.inode).or_default();
                    of_file.entry(strip.index).or_default().push((store, strip, facts));
                }
                Ok(None) => {}
                Err(why) => problems.push(why.to_string()),
            }
        }
    }
    (files, lost_slots)
}

/// The facts of a strip. Its length includes what was cut off its end.
fn facts(store: &dyn Store, strip: Strip) -> Result<Option<StripFacts>> {
    let Some(mut facts) = store.facts(strip)? else { return Ok(None) };
    while let Some(cut_off) = store.next_data(strip, facts.generation, facts.len)? {
        facts.len = cut_off.end;
    }
    Ok(Some(facts))
}

/// Writes what can be read of a file. Returns how many bytes that are, and which are lost.
fn rebuild(
    root: &Arc<dyn Dir>,
    path: &Path,
    (strips, lost_slots): (&BTreeMap<u32, Copies<'_>>, &BTreeSet<u32>),
    known: Option<&Known>,
) -> Result<(u64, Lost)> {
    let newest = strips.values().flatten().max_by_key(|(_, _, facts)| facts.generation);
    let ends = strips.iter().flat_map(|(index, copies)| {
        copies.iter().map(|(_, _, facts)| facts.layout.file_len(*index, facts.len))
    });
    let written = ends.max().unwrap_or(0);
    let size = known.map_or(written, |known| known.size);
    let mut lost = Lost::default();
    let Some((_, _, StripFacts { layout, generation, .. })) = newest else {
        if known.is_some_and(|known| known.strips != 0) && size > 0 {
            lost.add(0..size, "no store that can be read has any of it");
            return Ok((0, lost));
        }
        return write(root, path, size, |_| Ok(())).map(|_| (size, lost));
    };
    // Without the manager, a strip may have existed if all of its copies would be at lost stores.
    let should_be = |index: u32| match known {
        Some(known) => known.strips & bit(index) != 0,
        None => (0..layout.copies).all(|copy| lost_slots.contains(&layout.slot(index, copy))),
    };
    let (dir, name) = write(root, path, size, |file| {
        for part in layout.pieces(0, size.min(written)) {
            match strips.get(&part.strip) {
                Some(copies) => copy(file, copies, &part, *generation, &mut lost)?,
                None if should_be(part.strip) => {
                    let why = format!("no store has strip {} of it", part.strip);
                    lost.add(part.at..part.at + part.len, &why);
                }
                None => {}
            }
        }
        // What follows is a hole, unless a strip of which nothing is left had some of it.
        let missing = (0..layout.width).find(|index| !strips.contains_key(index) && should_be(*index));
        if let (Some(index), true) = (missing, written < size) {
            lost.add(written..size, &format!("no store has strip {index} of it"));
        }
        Ok(())
    })?;
    let bytes = size - lost.bytes;
    if bytes == 0 && size > 0 {
        dir.remove(name)?;
    }
    Ok((bytes, lost))
}

/// Makes a file of this size, whose contents `fill` writes. If that fails, the file is removed. Returns its directory
/// and name. The path may be longer than one that a system call takes.
fn write<'a>(
    root: &Arc<dyn Dir>,
    path: &'a Path,
    size: u64,
    fill: impl FnOnce(&File) -> Result<()>,
) -> Result<(Arc<dyn Dir>, &'a OsStr)> {
    let mut dir = Arc::clone(root);
    for above in path.parent().into_iter().flat_map(Path::iter) {
        dir.make_dir(above)?;
        dir = dir.open_dir(above)?;
    }
    let name = path.file_name().expect("a file has a name");
    let file = dir.create_file(name, FILE_MODE, false)?;
    let written = file.set_len(size).map_err(Error::from).and_then(|()| fill(&file));
    written.and_then(|()| Ok(file.sync()?)).inspect_err(|_| _ = dir.remove(name))?;
    Ok((dir, name))
}

/// Copies a run of a file from the first readable copy, without holes. If there is none, tries each block by itself.
fn copy(file: &File, copies: &Copies<'_>, part: &Piece, generation: u64, lost: &mut Lost) -> Result<()> {
    let mut piece = vec![0; PIECE.min(part.len as usize)];
    let end = part.strip_at + part.len;
    // From an offset in the strip to that in the file.
    let in_file = |strip_at: u64| part.at + (strip_at - part.strip_at);
    // Returns whether the run was read or is lost; if not, some of its blocks may be readable.
    let mut is_done = |from: Range<u64>, lost: &mut Lost| -> Result<bool> {
        let bytes = &mut piece[..(from.end - from.start) as usize];
        let mut failed = None;
        for (store, strip, _) in copies {
            match store.read(*strip, generation, from.start, bytes) {
                Ok(()) => {
                    file.write_at(in_file(from.start), bytes)?;
                    return Ok(true);
                }
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        let why = failed.expect("a strip has a copy");
        if bytes.len() > BLOCK && why.is_damage() {
            return Ok(false);
        }
        lost.add(in_file(from.start)..in_file(from.end), &why.to_string());
        Ok(true)
    };
    let mut at = part.strip_at;
    while let Some(data) = next_data(copies, generation, at).filter(|data| data.start < end) {
        at = data.start;
        let to = data.end.min(end).min(at + PIECE as u64);
        if is_done(at..to, lost)? {
            at = to;
            continue;
        }
        while at < to {
            let next = (at / BLOCK as u64 + 1) * BLOCK as u64;
            is_done(at..next.min(to), lost)?;
            at = next.min(to);
        }
    }
    Ok(())
}

/// The first range at or after `at` that is not a hole, from the first copy that answers; if none does, all of it.
fn next_data(copies: &Copies<'_>, generation: u64, at: u64) -> Option<Range<u64>> {
    let mut asked = copies.iter().map(|(store, strip, _)| store.next_data(*strip, generation, at));
    asked.find_map(Result::ok).unwrap_or(Some(at..u64::MAX))
}
