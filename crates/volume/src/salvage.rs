//! Files rebuilt from the directories of stores, also where the manager is gone.
//!
//! Model: each strip says which file it is of and how that is laid out, so files can be put together without the manager.
//! It alone knows their names and sizes; without it a file is called after its number, and ends where its last strip does.
//! Invariant: a file is written only if every byte of it that some strip should have can be read.
//! Non-goals: directories, links and attributes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::{VolumeEntry, VolumeSalvage};
use thalweg_io::threads::Threads;
use thalweg_io::{Access, File, FileSystem, small};

use crate::layout::Layout;
use crate::manager::Kind;
use crate::registry::Registry;
use crate::store::{Store, Strip, StripFacts};
use crate::stores::{Slot, bit};
use crate::{Error, Result, check, volumes};

const PIECE: usize = 1 << 20;

/// Where the copies of a strip are.
type Copies<'a> = Vec<(&'a dyn Store, Strip, StripFacts)>;

/// What is known of a file.
struct Known {
    name: PathBuf,
    size: u64,
    strips: u64,
    stale: [u64; 2],
}

/// Rebuilds the files of a volume in a directory that is not there yet.
pub fn salvage(registry: &Registry, name: &str, into: &Path) -> Result<VolumeSalvage> {
    let entry = registry.find(name)?;
    let mut salvaged = VolumeSalvage { name: name.into(), ..VolumeSalvage::default() };
    let known = match known(entry.clone()) {
        Ok(known) => Some(known),
        Err(why) => {
            salvaged.problems.push(format!("files are called after their numbers: {why}"));
            None
        }
    };
    let stores = volumes::stores_alone(&entry)?;
    let mut files = files(entry.stores.iter().zip(&stores), &mut salvaged.problems);
    small::make_new_directory(into)?;
    let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
    if let Some(known) = &known {
        // What no name leads to was removed, and its strips are not gone yet.
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
        match rebuild(&io, &into.join(&name), &strips, told) {
            Ok(bytes) => {
                salvaged.files += 1;
                salvaged.bytes += bytes;
            }
            Err(why) => salvaged.problems.push(format!("{}: {why}", name.display())),
        }
    }
    io.sync_directory(into)?;
    Ok(salvaged)
}

/// Names and sizes, if the manager knows them.
fn known(entry: VolumeEntry) -> Result<BTreeMap<u64, Known>> {
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
    Ok(known)
}

/// The strips of each file, by their index.
fn files<'a>(
    stores: impl Iterator<Item = (&'a String, &'a Slot)>,
    problems: &mut Vec<String>,
) -> BTreeMap<u64, BTreeMap<u32, Copies<'a>>> {
    let mut files: BTreeMap<u64, BTreeMap<u32, Copies<'_>>> = BTreeMap::new();
    for (directory, store) in stores {
        let listed = check::asked(store, |store| Ok((store.list()?, store)));
        let (strips, store) = match listed {
            Ok(listed) => listed,
            Err(why) => {
                problems.push(format!("the store in {directory} is lost: {why}"));
                continue;
            }
        };
        for strip in strips {
            match store.facts(strip) {
                Ok(Some(facts)) => {
                    let of_file = files.entry(strip.inode).or_default();
                    of_file.entry(strip.index).or_default().push((store, strip, facts));
                }
                Ok(None) => {}
                Err(why) => problems.push(why.to_string()),
            }
        }
    }
    files
}

fn rebuild(
    io: &Arc<dyn FileSystem>,
    path: &Path,
    strips: &BTreeMap<u32, Copies<'_>>,
    known: Option<&Known>,
) -> Result<u64> {
    let listed = known.map_or(0, |known| known.strips);
    if let Some(index) = (0..u64::BITS).find(|index| listed & bit(*index) != 0 && !strips.contains_key(index))
    {
        return Err(Error::Refused(format!("strip {index} is at no store")));
    }
    let newest = strips.values().flatten().max_by_key(|(_, _, facts)| facts.generation);
    let laid_out = newest.map(|(_, _, facts)| (facts.layout, facts.generation));
    let ends = strips.iter().flat_map(|(index, copies)| {
        copies.iter().map(|(_, _, facts)| facts.layout.file_len(*index, facts.len))
    });
    let size = known.map_or_else(|| ends.max().unwrap_or(0), |known| known.size);
    small::make_directory(thalweg_io::directory_of(path))?;
    let file = File::open(io, path, Access::Create)?;
    let written = file.set_len(size).map_err(Error::from).and_then(|()| match laid_out {
        Some(laid_out) => fill(&file, strips, size, laid_out),
        None => Ok(()),
    });
    if written.is_err() {
        io.remove(path)?;
    }
    written.map(|()| size)
}

fn fill(
    file: &File,
    strips: &BTreeMap<u32, Copies<'_>>,
    size: u64,
    (layout, generation): (Layout, u64),
) -> Result<()> {
    let mut piece = vec![0; PIECE];
    for part in layout.pieces(0, size) {
        let Some(copies) = strips.get(&part.strip) else { continue };
        let mut done = 0;
        while done < part.len {
            let n = (part.len - done).min(PIECE as u64) as usize;
            let read = |(store, strip, _): &(&dyn Store, Strip, StripFacts)| {
                store.read(*strip, generation, part.strip_at + done, &mut piece[..n])
            };
            let mut tried = copies.iter().map(read);
            let first = tried.next().expect("a strip has a copy");
            first.or_else(|why| if tried.any(|read| read.is_ok()) { Ok(()) } else { Err(why) })?;
            file.write_at(part.at + done, &piece[..n])?;
            done += n as u64;
        }
    }
    Ok(file.sync()?)
}
