//! The files that an earlier run of the same sort left: finds and validates them, and resumes from or removes them.
//!
//! Invariant: names depend on the output's path alone, so a run finds only its own files. A file that this user did
//! not create is an error and stays untouched. A sort resumes only if the identity is the same and every scratch file
//! is long enough for its extents. The end of the partial output is checked first; pages are checked when they are
//! read.

use std::io::ErrorKind;
use std::time::Duration;

use thalweg_base::sabotage;
use thalweg_base::units::KIB;
use thalweg_io::{Access, Action, Error as IoError, File, Location, look_until};
use thalweg_pump::Inputs;
use thalweg_record::record_hash;

use crate::distribute::Resumed;
use crate::geometry::{Geometry, PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::manifest::{Checkpoint, Contents, Layout, Manifest};
use crate::names::Names;
use crate::options::{CannotResume, Sort};
use crate::output_notes::ResumePoint;
use crate::range::{RangeStore, Stored};
use crate::scratch::{Extent, page_hash};
use crate::validate::Validator;
use crate::{Error, Result};

/// How long to wait for another sort of the same output.
const PATIENCE: Duration = Duration::from_secs(2);
/// The maximum size of a manifest: the memory divided by `MANIFEST_SHARE`, plus `LISTED_BYTES_MAX` for each page of the
/// inputs, at the smallest page size. An extent has 16 bytes, a page up to two extents, a checkpoint 20 bytes a range.
const MANIFEST_SHARE: u64 = 4;
const LISTED_BYTES_MAX: u64 = 64;
/// The low bits of an identity that are a hash. The bits above are the memory in KiB, for messages.
const HASH_BITS: u32 = 88;

/// The exclusive right to the partial output, while this exists. A run without it does not touch any hidden name.
pub(crate) struct Claim {
    file: File,
    /// Whether this run created the file, which is then empty.
    is_new: bool,
}

impl Claim {
    /// Opens or creates the partial output. Fails if a running process has claimed it. The files of a killed process
    /// can stay open until io_uring has ended its requests, so this waits up to `PATIENCE`.
    pub(crate) fn take(sort: &Sort, names: &Names) -> Result<Claim> {
        let taken = look_until(PATIENCE, || Claim::try_take(names).transpose());
        match taken {
            // The user knows only the name of the output.
            Some(Err(e)) if e.action == Action::Create => {
                Err(IoError { path: sort.output.path.clone(), ..e }.into())
            }
            Some(claim) => Ok(claim?),
            None => Err(Error::Busy { partial: names.partial.path.clone() }),
        }
    }

    fn try_take(names: &Names) -> thalweg_io::Result<Option<Claim>> {
        let partial = &names.partial;
        let (file, is_new) = match partial.open(Access::CreateDirect) {
            Ok(file) => (file, true),
            Err(e) if e.source.kind() == ErrorKind::AlreadyExists => {
                match partial.open(Access::UpdateDirect) {
                    Ok(file) => (file, false),
                    Err(e) if e.source.kind() == ErrorKind::NotFound => return Ok(None),
                    Err(e) => return Err(e),
                }
            }
            Err(e) => return Err(e),
        };
        // On a file system without locks, other processes cannot be detected.
        if !file.mark() && file.is_marked_by_another() {
            return Ok(None);
        }
        let claim = Claim { file, is_new };
        // Its owner may have renamed or removed the file in the meantime.
        Ok(claim.is_there().then_some(claim))
    }

    /// Whether the name still belongs to this file.
    fn is_there(&self) -> bool {
        let there = self.file.location().stat();
        self.file.metadata().is_ok_and(|own| there.is_ok_and(|m| m.is_same(&own)))
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

/// Removes the files of an earlier run. Afterwards the claim is to an empty partial output.
pub(crate) fn start_over(claim: Option<Claim>, sort: &Sort, names: &Names) -> Result<Option<Claim>> {
    let is_new = |claim: &&Claim| claim.is_new;
    let stays: Vec<Location> = claim.iter().filter(is_new).map(|claim| claim.file.location()).collect();
    clear_but(candidates(&sort.scratch, names), &stays)?;
    match claim {
        // Its file was removed with all others.
        Some(claim) if !claim.is_new => {
            drop(claim);
            Claim::take(sort, names).map(Some)
        }
        other => Ok(other),
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.file.metadata().is_ok_and(|own| own.len == 0) && self.is_there() {
            // The file is still empty, so it is removed.
            let _ = self.file.location().remove();
        }
    }
}

/// A state from which a sort can resume.
pub(crate) struct Leftover {
    pub(crate) manifest: Manifest,
    pub(crate) geometry: Geometry,
    pub(crate) split_points: Vec<thalweg_record::SplitPoint>,
    /// Scratch files in the order of their numbers in extents.
    pub(crate) files: Vec<Location>,
    pub(crate) resumed: Resumed,
    /// The part of the output that is already durable.
    pub(crate) start: ResumePoint,
}

/// The memory limit, and a hash of everything else that must be equal for a later run to resume.
pub(crate) fn identity(sort: &Sort, inputs: &Inputs) -> u128 {
    let mut text = format!("{:?} {:?} {}", sort.layout, sort.keys, sort.hashing);
    for input in inputs.files() {
        let m = input.metadata;
        text += &format!(" {:?} {} {} {}", input.path(), m.len, m.device, m.inode);
        // A program can set a file's modification time back, but not its change time.
        text += &format!(" {} {}", m.modified_ns, m.changed_ns);
    }
    hash_of(record_hash(text.as_bytes())) | u128::from(sort.memory_bytes / KIB) << HASH_BITS
}

fn hash_of(identity: u128) -> u128 {
    identity & ((1 << HASH_BITS) - 1)
}

/// Finds the state that an earlier run left, if it is valid and has a checkpoint or an output note.
pub(crate) fn find(
    by: &Validator<'_>,
    identity: u128,
) -> Result<std::result::Result<Leftover, CannotResume>> {
    if sabotage::breaks("ignore-manifest") {
        return Ok(Err(CannotResume::Other));
    }
    let bytes_max =
        by.sort.memory_bytes / MANIFEST_SHARE + by.inputs.bytes() / PAGE_BYTES_MIN * LISTED_BYTES_MAX;
    let (manifest, contents) = match Manifest::reopen(&by.names.manifest, identity, bytes_max) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Err(CannotResume::Damaged)),
        Err(e) if e.source.kind() == ErrorKind::NotFound => return Ok(Err(CannotResume::Early)),
        Err(e) => return Err(e.into()),
    };
    let Some(((files, resumed), start)) = usable_state(by, &contents, identity) else {
        return Ok(Err(why_not(&contents, identity, by.sort.unique)));
    };
    // Pages in other files are no longer needed.
    let mut others = candidates(&by.sort.scratch, by.names);
    others.retain(|file| by.names.is_scratch(&file.path));
    clear_but(others, &files)?;
    manifest.continue_after(&contents, start.is_some())?;
    if start.is_none() && !files.iter().any(|file| file.path == by.names.partial.path) {
        // The output starts from the beginning, so the space of its old contents can be freed now.
        let _ = by.names.partial.open(Access::Update).and_then(|partial| partial.set_len(0));
    }
    Ok(Ok(Leftover {
        manifest,
        geometry: contents.layout.geometry,
        split_points: contents.layout.split_points,
        files,
        resumed,
        start: start.unwrap_or_default(),
    }))
}

/// Why a run cannot resume from this manifest.
fn why_not(contents: &Contents, identity: u128, unique: bool) -> CannotResume {
    let theirs = contents.layout.identity;
    if hash_of(theirs) != hash_of(identity) {
        CannotResume::Other
    } else if theirs != identity {
        CannotResume::Memory((theirs >> HASH_BITS) as u64 * KIB)
    } else if contents.checkpoints.is_empty() && contents.note.is_none() {
        CannotResume::Early
    } else if contents.note.as_ref().is_some_and(|note| note.unique != unique) {
        CannotResume::Unique
    } else {
        CannotResume::Damaged
    }
}

/// The valid part of the files that are left, and the point at which the output continues. Does not change them.
fn usable_state(
    by: &Validator<'_>,
    contents: &Contents,
    identity: u128,
) -> Option<(Found, Option<ResumePoint>)> {
    let Layout { geometry, split_points, .. } = &contents.layout;
    let (files, mut resumed) = judge(by, &contents.layout, &contents.checkpoints, identity)?;
    let resume_point = contents.note.clone().and_then(|note| {
        let start = ResumePoint::of_note(&by.names.partial, note, geometry.transfer_bytes)?;
        let is_ours = start.note.unique == by.sort.unique;
        let fits = start.unseen_bytes(by.sort.layout, &resumed.stores).is_some();
        (is_ours && fits && start.ranges() <= split_points.len() / geometry.buckets_per_range + 1)
            .then_some(start)
    });
    if resume_point.is_none() && contents.checkpoints.is_empty() {
        return None;
    }
    resumed.done_ranges = resume_point.as_ref().map_or(0, ResumePoint::ranges);
    Some(((files, resumed), resume_point))
}

type Found = (Vec<Location>, Resumed);

fn judge(by: &Validator<'_>, layout: &Layout, checkpoints: &[Checkpoint], identity: u128) -> Option<Found> {
    if layout.identity != identity || !by.is_layout(layout) {
        return None;
    }
    let Some(last) = checkpoints.last() else { return Some(Found::default()) };
    let mut stores: Vec<RangeStore> = Vec::new();
    let mut ends = vec![0; last.files.len()];
    for checkpoint in checkpoints {
        // Later runs append scratch files to the list.
        if !last.files.starts_with(&checkpoint.files) {
            return None;
        }
        stores.resize_with(checkpoint.ranges.len().max(stores.len()), RangeStore::default);
        for (store, gain) in stores.iter_mut().zip(&checkpoint.ranges) {
            (store.records, store.bytes) = (gain.records, gain.bytes);
            for extent in &gain.extents {
                let end: &mut u64 = ends.get_mut(extent.directory() as usize)?;
                *end = (*end).max(extent.offset().checked_add(extent.room())?);
                store.pages.push(Stored::Spilled(*extent));
            }
        }
    }
    let bytes_of = |s: &RangeStore| s.pages.iter().map(|p| p.len() as u64).sum::<u64>();
    if !by.is_state(layout, last, &stores) || stores.iter().any(|s| bytes_of(s) != s.bytes) {
        return None;
    }
    let located = last.files.iter().map(|path| by.names.locate(path, &by.sort.scratch));
    let mut files: Vec<(Location, u64)> = located.zip(ends).collect();
    if files.iter().any(|(file, end)| file.stat().map_or(*end > 0, |m| m.len < *end)) {
        return None;
    }
    // Extents refer to files by number, so only the last files may be missing.
    let there = files.iter().take_while(|(file, _)| file.stat().is_ok()).count();
    if files[there..].iter().any(|(_, end)| *end > 0) {
        return None;
    }
    files.truncate(there);
    let files = files.into_iter().map(|(file, _)| file).collect();
    let resumed = Resumed {
        next_page: last.next_page,
        carry: last.carry.clone(),
        carry_place: last.carry_place,
        proof: last.proof,
        stores,
        done_ranges: 0,
    };
    Some((files, resumed))
}

/// Files that an earlier run may have left: under the known names, and where its manifest says.
fn candidates(scratch: &[Location], names: &Names) -> Vec<Location> {
    let listed = Manifest::look(&names.manifest).map(|last| listed(scratch, names, &last));
    let beside = scratch.iter().map(|d| d.at(d.path.join(&names.scratch)));
    let all = beside.chain(listed.into_iter().flatten());
    let mut all: Vec<Location> = all.chain([names.partial.clone(), names.manifest.clone()]).collect();
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all.dedup_by(|a, b| a.path == b.path && a.is_beside(b));
    all
}

/// Files that an earlier run left under these names.
pub(crate) fn files(scratch: &[Location], names: &Names) -> Vec<Location> {
    let mut files = candidates(scratch, names);
    files.retain(|file| file.open(Access::Update).is_ok());
    files
}

/// The scratch files that a manifest lists, wherever they are. The sort of another output may have scratch files of
/// the same name, so a file counts only if it has a page that the manifest lists.
fn listed(scratch: &[Location], names: &Names, last: &Checkpoint) -> Vec<Location> {
    // Some pages of a killed sort may have been overwritten, but not all.
    let extents = || last.ranges.iter().flat_map(|gain| &gain.extents);
    let is_known = |(number, file): &(usize, Location)| {
        let mut here = extents().filter(|extent| extent.directory() as usize == *number);
        file.open(Access::Update).is_ok_and(|file| here.any(|extent| holds(&file, extent)))
    };
    let files = last.files.iter().enumerate().filter(|(_, path)| names.is_scratch(path));
    let located = files.map(|(number, path)| (number, names.locate(path, scratch)));
    located.filter(is_known).map(|(_, file)| file).collect()
}

/// Whether a file contains the page of an extent.
fn holds(file: &File, extent: &Extent) -> bool {
    if !(1..=PAGE_BYTES_MAX).contains(&u64::from(extent.len)) {
        return false;
    }
    let mut page = vec![0; extent.len as usize];
    let n = file.read_at(extent.offset(), &mut page);
    n.is_ok_and(|n| n == page.len()) && page_hash(&page) == extent.hash
}

/// Removes the files of killed sorts of an output that another operation is about to write. Files of a running sort
/// stay, and so do files that cannot be removed.
pub fn clear_killed(output: &Location) {
    let names = Names::of_file(output);
    let left = files(&[output.directory()], &names);
    if left.is_empty() {
        return;
    }
    if let Ok(Some(_claim)) = Claim::try_take(&names) {
        let _ = clear_but(left, &[]);
    }
}

/// Removes files except those that are also in `stays`, under any path. If one of `files` was not created by this
/// user, fails and removes none.
fn clear_but(files: Vec<Location>, stays: &[Location]) -> Result<()> {
    let mut own = Vec::new();
    for file in files {
        match file.open(Access::Update) {
            Err(e) if e.source.kind() == ErrorKind::NotFound => {}
            opened => own.push(opened.map(|_| file)?),
        }
    }
    for file in own {
        if !stays.iter().any(|stays| stays.is_same_file(&file)) {
            match file.remove() {
                // A sort that is just ending removes its own.
                Err(e) if e.source.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}
