//! Room on disks: what a sort takes of it, looked at before anything is made, and told when it ends all the same.
//!
//! Model: the output is reserved whole; what is spilled takes what that leaves on the disks of the scratch
//! directories, up to the limit. Directories on one disk share its room.
//! Invariant: a plan and a run refuse by the same look and in the same words. A file system that does not tell its size is
//! not judged.
//! Non-goals: reserving anything; quotas and limits on one file, which are met when they are met.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_io::{FileSystem, directory_of};

use crate::asked::Sort;
use crate::leftover;
use crate::names::Names;
use crate::{Error, Result};

/// Pads and pages that are closed early take this part of what is spilled beside it.
const PAD_SHARE: u64 = 50;

/// What a sort is still going to take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Takes {
    /// Of the output's disk.
    pub(crate) output_bytes: u64,
    /// Of scratch.
    pub(crate) spilled_bytes: u64,
    /// Scratch that it has already: of the limit, not of the disks.
    pub(crate) scratch_used: u64,
    /// Whether a later run can go on from what there is.
    pub(crate) resumable: bool,
}

impl Takes {
    fn scratch_bytes(&self) -> u64 {
        self.spilled_bytes.saturating_add(self.spilled_bytes / PAD_SHARE)
    }
}

/// Free bytes of disks, by their device.
#[derive(Default)]
struct Disks(BTreeMap<u64, u64>);

impl Disks {
    /// Looks at the disk that holds a directory; returns its device.
    fn look(&mut self, io: &Arc<dyn FileSystem>, directory: &Path) -> Result<u64> {
        let (device, space) = (io.stat(directory)?.device, io.space(directory)?);
        self.0.entry(device).or_insert(if space.total > 0 { space.available } else { u64::MAX });
        Ok(device)
    }

    fn room(&mut self, device: u64) -> &mut u64 {
        self.0.get_mut(&device).expect("it was looked at")
    }
}

/// Refuses what cannot fit in the output's directory and in these scratch directories.
pub(crate) fn preflight(
    sort: &Sort,
    io: &Arc<dyn FileSystem>,
    scratch: &[PathBuf],
    takes: &Takes,
) -> Result<()> {
    look(sort, io, scratch, takes, &[])
}

/// The same before a plan, which makes nothing: what the sort would remove first counts as room.
pub(crate) fn preflight_of_plan(sort: &Sort, io: &Arc<dyn FileSystem>, takes: &Takes) -> Result<()> {
    let names = Names::of(sort);
    if sort.resume && io.stat(&names.manifest).is_ok() {
        // How much is there already shows only when it is gone on from.
        return Ok(());
    }
    look(sort, io, &sort.scratch, takes, &leftover::files(io, &sort.scratch, &names))
}

fn look(
    sort: &Sort,
    io: &Arc<dyn FileSystem>,
    scratch: &[PathBuf],
    takes: &Takes,
    to_go: &[PathBuf],
) -> Result<()> {
    let mut disks = Disks::default();
    let output = (!sort.output_is_stream).then(|| directory_of(&sort.output));
    let beside = output.map(|directory| disks.look(io, directory)).transpose()?;
    let needed = takes.scratch_bytes();
    let mut devices = Vec::new();
    for directory in scratch.iter().filter(|_| needed > 0) {
        devices.push(disks.look(io, directory)?);
    }
    for path in to_go {
        let there = io.stat(path)?;
        if let Some(room) = disks.0.get_mut(&there.device) {
            *room = room.saturating_add(there.len);
        }
    }
    if let Some(device) = beside {
        let room = disks.room(device);
        if takes.output_bytes > *room {
            let (output, needed, available) = (sort.output.clone(), takes.output_bytes, *room);
            return Err(Error::OutputFull { output, needed, available, resumable: takes.resumable });
        }
        *room -= takes.output_bytes;
    }
    devices.sort_unstable();
    devices.dedup();
    let room = devices.iter().fold(0u64, |sum, device| sum.saturating_add(*disks.room(*device)));
    let left = sort.scratch_limit.saturating_sub(takes.scratch_used);
    let available = room.min(left);
    if needed <= available {
        return Ok(());
    }
    let limit = (left < room).then_some(sort.scratch_limit);
    let beside = beside.filter(|device| devices.contains(device)).map_or(0, |_| takes.output_bytes);
    let (directories, resumable) = (scratch.to_vec(), takes.resumable);
    Err(Error::ScratchFull { needed, available, beside, limit, directories, resumable })
}

/// Says of a disk that became full in the middle how much was still to be had of it, which whoever met it does not
/// know.
pub(crate) fn told(
    error: Error,
    sort: &Sort,
    io: &Arc<dyn FileSystem>,
    names: &Names,
    takes: &Takes,
) -> Error {
    let resumable = takes.resumable;
    match error {
        Error::ScratchFull { needed, available, beside, limit, directories, .. } => {
            let needed = needed.max(takes.scratch_bytes());
            Error::ScratchFull { needed, available, beside, limit, directories, resumable }
        }
        Error::Io(e) if is_out_of_room(&e) => {
            let directory = directory_of(&e.path).to_path_buf();
            let available = io.space(&directory).map_or(0, |space| space.available);
            let is_short_of = |needed: u64| needed > available;
            if e.path == names.partial && is_short_of(takes.output_bytes) {
                let (output, needed) = (sort.output.clone(), takes.output_bytes);
                Error::OutputFull { output, needed, available, resumable }
            } else if names.is_scratch(&e.path) && is_short_of(takes.scratch_bytes()) {
                let (needed, directories) = (takes.scratch_bytes(), vec![directory]);
                Error::ScratchFull { needed, available, beside: 0, limit: None, directories, resumable }
            } else {
                // A quota, say: the numbers of the disk would explain nothing.
                Error::Io(e)
            }
        }
        other => other,
    }
}

/// Whether the disk or a quota is full, and not one file too large.
fn is_out_of_room(e: &thalweg_io::Error) -> bool {
    matches!(e.source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_io::sim::Sim;
    use thalweg_io::{Action, Error as IoError};

    #[test]
    fn a_write_that_met_a_full_disk_is_told_with_what_it_needed_and_what_to_do() {
        let sim = Sim::new(1);
        sim.set_capacity("/out", 8192);
        sim.make_dir("/far");
        let sort = Sort::new(thalweg_record::Layout::Lines, 0, vec!["/out".into()]);
        let sort = Sort { output: "/out/sorted".into(), ..sort };
        let names = Names::of(&sort);
        let said = |path: &Path, kind: ErrorKind, resumable| {
            let error = Error::Io(IoError::at(Action::Write, path, 7, kind.into()));
            let takes =
                Takes { output_bytes: 1 << 20, spilled_bytes: 100 << 10, resumable, ..Takes::default() };
            told(error, &sort, &sim.io(), &names, &takes).to_string()
        };
        let scratch = Path::new("/out").join(&names.scratch);
        for (path, resumable, expected) in [
            (
                &names.partial,
                false,
                "the disk of /out/sorted is full: 1 MiB needed for the output, 8 KiB available; free some, or give another -o",
            ),
            (
                &names.partial,
                true,
                "the disk of /out/sorted is full: 1 MiB needed for the output, 8 KiB available; free some, and go on with --resume",
            ),
            (
                &scratch,
                true,
                "scratch in /out is full: 102 KiB needed, 8 KiB available; free some, or go on with --resume --scratch OTHER",
            ),
        ] {
            assert_eq!(said(path, ErrorKind::StorageFull, resumable), expected);
        }
        // Of a limit on one file, of an input, and where there is room, the system's word stands.
        let far = Path::new("/far").join(&names.scratch);
        for (path, kind) in [
            (names.partial.as_path(), ErrorKind::FileTooLarge),
            (Path::new("/out/in"), ErrorKind::StorageFull),
            (&far, ErrorKind::QuotaExceeded),
        ] {
            assert!(said(path, kind, true).starts_with(&format!("cannot write {}", path.display())));
        }
    }
}
