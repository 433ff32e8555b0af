//! The preflight check: is there enough disk space? It runs before any file is created, and its figures are added to
//! the error if a disk becomes full later.
//!
//! Model: the output is reserved as a whole. Spilled data takes what remains on the disks of the scratch directories,
//! up to the limit. Directories on one disk share its space.
//! Invariant: a plan and a run fail in the same cases with the same message. A file system of unknown size is not
//! checked.
//! Non-goals: reserving space; quotas and file size limits, which are detected only when they are exceeded.

use std::io::ErrorKind;

use thalweg_io::Location;

use crate::leftover;
use crate::names::Names;
use crate::options::Sort;
use crate::{Error, Result};

/// Padding and pages that are closed early add 1/`PAD_SHARE` of the spilled bytes.
const PAD_SHARE: u64 = 50;

/// The disk space that a sort still needs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskNeeds {
    /// On the output's disk.
    pub(crate) output_bytes: u64,
    /// In scratch.
    pub(crate) spilled_bytes: u64,
    /// Scratch in use already. It counts towards the limit.
    pub(crate) scratch_used: u64,
    /// Whether a later run can resume.
    pub(crate) resumable: bool,
}

impl DiskNeeds {
    fn scratch_bytes(&self) -> u64 {
        self.spilled_bytes.saturating_add(self.spilled_bytes / PAD_SHARE)
    }
}

/// A disk: a directory on it, and its device number.
struct Disk {
    directory: Location,
    device: u64,
    free_bytes: u64,
}

/// The disks of some directories.
#[derive(Default)]
struct Disks(Vec<Disk>);

impl Disks {
    fn find(&self, location: &Location, device: u64) -> Option<usize> {
        self.0.iter().position(|disk| disk.device == device && disk.directory.is_beside(location))
    }

    /// Finds the disk of a directory and returns its index.
    fn look(&mut self, directory: &Location) -> Result<usize> {
        let (device, space) = (directory.stat()?.device, directory.space()?);
        if let Some(known) = self.find(directory, device) {
            return Ok(known);
        }
        let free_bytes = if space.total > 0 { space.available } else { u64::MAX };
        self.0.push(Disk { directory: directory.clone(), device, free_bytes });
        Ok(self.0.len() - 1)
    }
}

/// Fails if the output or the scratch data cannot fit.
pub(crate) fn preflight(sort: &Sort, scratch: &[Location], takes: &DiskNeeds) -> Result<()> {
    look(sort, scratch, takes, &[])
}

/// The check for a plan, which creates no files: files that the sort would remove first count as free space.
pub(crate) fn preflight_of_plan(sort: &Sort, takes: &DiskNeeds) -> Result<()> {
    let names = Names::of(sort);
    if sort.resume && names.manifest.stat().is_ok() {
        // The space that is already in use is known only when the sort resumes.
        return Ok(());
    }
    look(sort, &sort.scratch, takes, &leftover::files(&sort.scratch, &names))
}

fn look(sort: &Sort, scratch: &[Location], takes: &DiskNeeds, to_go: &[Location]) -> Result<()> {
    let mut disks = Disks::default();
    let output = (!sort.output_is_stream).then(|| sort.output.directory());
    let beside = output.map(|directory| disks.look(&directory)).transpose()?;
    let needed = takes.scratch_bytes();
    let mut spilled_to = Vec::new();
    for directory in scratch.iter().filter(|_| needed > 0) {
        spilled_to.push(disks.look(directory)?);
    }
    for file in to_go {
        let there = file.stat()?;
        if let Some(disk) = disks.find(file, there.device) {
            disks.0[disk].free_bytes = disks.0[disk].free_bytes.saturating_add(there.len);
        }
    }
    if let Some(disk) = beside {
        let room = &mut disks.0[disk].free_bytes;
        if takes.output_bytes > *room {
            let (output, needed, available) = (sort.output.path.clone(), takes.output_bytes, *room);
            return Err(Error::OutputFull { output, needed, available, resumable: takes.resumable });
        }
        *room -= takes.output_bytes;
    }
    spilled_to.sort_unstable();
    spilled_to.dedup();
    let room = spilled_to.iter().fold(0u64, |sum, disk| sum.saturating_add(disks.0[*disk].free_bytes));
    let left = sort.scratch_limit.saturating_sub(takes.scratch_used);
    let available = room.min(left);
    if needed <= available {
        return Ok(());
    }
    let limit = (left < room).then_some(sort.scratch_limit);
    let beside = beside.filter(|disk| spilled_to.contains(disk)).map_or(0, |_| takes.output_bytes);
    let directories = scratch.iter().map(|directory| directory.path.clone()).collect();
    let resumable = takes.resumable;
    Err(Error::ScratchFull { needed, available, beside, limit, directories, resumable })
}

/// Adds the figures of the disk to an error that says it is full.
pub(crate) fn with_figures(error: Error, sort: &Sort, names: &Names, takes: &DiskNeeds) -> Error {
    let resumable = takes.resumable;
    match error {
        Error::ScratchFull { needed, available, beside, limit, directories, .. } => {
            let needed = needed.max(takes.scratch_bytes());
            Error::ScratchFull { needed, available, beside, limit, directories, resumable }
        }
        Error::Io(e) if is_out_of_room(&e) => {
            let directory = names.locate(&e.path, &sort.scratch).directory();
            let available = directory.space().map_or(0, |space| space.available);
            let is_short_of = |needed: u64| needed > available;
            if e.path == names.partial.path && is_short_of(takes.output_bytes) {
                let (output, needed) = (sort.output.path.clone(), takes.output_bytes);
                Error::OutputFull { output, needed, available, resumable }
            } else if names.is_scratch(&e.path) && is_short_of(takes.scratch_bytes()) {
                let (needed, directories) = (takes.scratch_bytes(), vec![directory.path]);
                Error::ScratchFull { needed, available, beside: 0, limit: None, directories, resumable }
            } else {
                // With a quota, for example, the figures of the disk would not explain the error.
                Error::Io(e)
            }
        }
        other => other,
    }
}

/// Whether a disk or quota is full; false if a file is too large.
fn is_out_of_room(e: &thalweg_io::Error) -> bool {
    matches!(e.source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use thalweg_io::sim::Sim;
    use thalweg_io::{Action, Error as IoError};

    #[test]
    fn a_full_disk_error_has_figures_and_a_remedy() {
        let sim = Sim::new(1);
        sim.set_capacity("/out", 8192);
        sim.make_dir("/far");
        let sort = Sort::new(thalweg_record::Layout::Lines, 0, vec![Location::new(&sim.io(), "/out")]);
        let sort = Sort { output: sort.scratch[0].at("/out/sorted"), ..sort };
        let names = Names::of(&sort);
        let said = |path: &Path, kind: ErrorKind, resumable| {
            let error = Error::Io(IoError::at(Action::Write, path, 7, kind.into()));
            let takes = DiskNeeds {
                output_bytes: 1 << 20,
                spilled_bytes: 100 << 10,
                resumable,
                ..DiskNeeds::default()
            };
            with_figures(error, &sort, &names, &takes).to_string()
        };
        let scratch = Path::new("/out").join(&names.scratch);
        for (path, resumable, expected) in [
            (
                &names.partial.path,
                false,
                "the disk of /out/sorted is full: 1 MiB needed for the output, 8 KiB available; free some space, or choose another output",
            ),
            (
                &names.partial.path,
                true,
                "the disk of /out/sorted is full: 1 MiB needed for the output, 8 KiB available; free some space, and resume",
            ),
            (
                &scratch,
                true,
                "scratch in /out is full: 102 KiB needed, 8 KiB available; free some space, or resume with another scratch directory",
            ),
        ] {
            assert_eq!(said(path, ErrorKind::StorageFull, resumable), expected);
        }
        // For a file size limit, for an input, and if there is space, the error stays as it is.
        let far = Path::new("/far").join(&names.scratch);
        for (path, kind) in [
            (names.partial.path.as_path(), ErrorKind::FileTooLarge),
            (Path::new("/out/in"), ErrorKind::StorageFull),
            (&far, ErrorKind::QuotaExceeded),
        ] {
            assert!(said(path, kind, true).starts_with(&format!("cannot write {}", path.display())));
        }
    }
}
