//! The verbs `sort` and `shuffle`: resolves the options on this machine, and runs the sort.
//!
//! A shuffle is a sort by random tags: every record is given a tag, a hash of the seed and of the byte at which it
//! begins in all inputs together (`record::Tags`). So the same seed and inputs give the same output, whatever the
//! memory and the number of threads.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_api::{Receipt, Work};
use thalweg_base::units::{MIB, Size};
use thalweg_io::{FileSystem, InputLocation, Location, directory_of};
use thalweg_record::{Layout, TAG_BYTES};
use thalweg_sort::{SCRATCH_FILES_MAX, Sort};

use super::header;
use crate::machine::Disks;
use crate::output::Target;
use crate::{
    Asked, BadPath, Endpoint, Error, Needs, Progress, Result, TooLittleMemory, WorkOptions, calibrate,
    machine, temporary,
};

/// Sorts or shuffles the inputs into the output. The receipt's invariant: out + dropped = in, and out is in order.
pub(super) fn sort(options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    sort_on(&Disks::of_sort(options)?, options, progress)
}

/// Sorts or shuffles on these disks.
pub(super) fn sort_on(disks: &Disks, options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    let mut definite = resolve(options, disks)?;
    definite.header = header::take(&mut definite.inputs, options.header, progress)?;
    if definite.shuffle.is_none() {
        definite.hardware = Some(calibrate::known(&definite));
    }
    if !definite.output_is_stream {
        temporary::clear(&definite.output);
    }
    let mut receipt = thalweg_sort::run(&definite, progress).map_err(|e| error_of(e, progress))?;
    receipt.io.fallback = disks.fallback();
    Ok(receipt)
}

/// The error of a sort that may have been cancelled.
pub(super) fn error_of(error: thalweg_sort::Error, progress: &Progress) -> Error {
    match error {
        thalweg_sort::Error::Stopped => Error::Interrupted(progress.cancelled().unwrap_or(0)),
        other => other.into(),
    }
}

/// The least memory that a sort promises to live in.
pub(crate) const MEMORY_BYTES_MIN: u64 = 16 * MIB;

/// Resolves the options on this machine.
pub(super) fn resolve(options: &WorkOptions, disks: &Disks) -> Result<Sort> {
    let shuffle = match options.work {
        Work::Shuffle(seed) => {
            has_room(options.layout)?;
            Some(seed)
        }
        _ => None,
    };
    let inputs = inputs_of(disks, &options.inputs)?;
    let target = Target::of(&disks.output, &options.output)?;
    let memory_bytes = machine::memory_of(options.memory)?;
    if memory_bytes < MEMORY_BYTES_MIN {
        return Err(
            TooLittleMemory { given: memory_bytes, by: Needs::Sort, needed: Some(MEMORY_BYTES_MIN) }.into()
        );
    }
    let scratch = scratch_of(&options.scratch, &target, &disks.scratch)?;
    let (output, output_is_stream) = match target {
        Target::File(file) => (file, false),
        Target::Stream(stream) => (stream, true),
    };
    let scratch_limit = scratch_limit(options.scratch_limit, &scratch);
    Ok(Sort {
        inputs,
        output,
        output_is_stream,
        header: Vec::new(),
        layout: options.layout,
        keys: options.keys.clone(),
        memory_bytes,
        // A user who names directories or a limit has a disk in mind.
        within_output: options.scratch.is_empty() && options.scratch_limit.is_none(),
        scratch,
        scratch_limit,
        lanes: machine::lanes(options.threads),
        shuffle,
        unique: options.unique,
        resume: options.resume,
        hashing: !options.no_proof,
        hardware: None,
    })
}

/// Fails if records of this layout have no room for a tag.
pub(super) fn has_room(layout: Layout) -> Result<()> {
    let most = u32::MAX - TAG_BYTES as u32;
    if layout.fixed_bytes().is_some_and(|n| n > most as usize) {
        return Err(Asked::ShuffledRecord { max: most }.into());
    }
    Ok(())
}

/// Where inputs are; standard input if there are none.
pub(super) fn inputs_of(disks: &Disks, inputs: &[Endpoint]) -> Result<Vec<InputLocation>> {
    let inputs = if inputs.is_empty() { &[Endpoint::Standard] } else { inputs };
    inputs.iter().map(|input| Ok(Location::new(&disks.of_input(input), input.input_path()?))).collect()
}

/// The most scratch bytes to use: a percentage is of what is free.
pub(crate) fn scratch_limit(asked: Option<Size>, scratch: &[Location]) -> u64 {
    let space: u64 = scratch.iter().filter_map(|d| d.space().ok()).map(|s| s.available).sum();
    asked.map_or(u64::MAX, |size| size.of(space))
}

/// The scratch directories of a verb: by default that of its output.
pub(super) fn scratch_of(
    asked: &[PathBuf],
    target: &Target,
    io: &Arc<dyn FileSystem>,
) -> Result<Vec<Location>> {
    match target {
        Target::File(file) if asked.is_empty() => {
            scratch_directories(&[directory_of(&file.path).to_path_buf()], io)
        }
        _ => scratch_directories(asked, io),
    }
}

/// The scratch directories, which must exist: by default the one for temporary files.
pub(crate) fn scratch_directories(asked: &[PathBuf], io: &Arc<dyn FileSystem>) -> Result<Vec<Location>> {
    let scratch = if asked.is_empty() { vec![std::env::temp_dir()] } else { asked.to_vec() };
    // A directory that is named twice still has only one scratch file.
    let mut once: Vec<(u64, u64, PathBuf)> = Vec::with_capacity(scratch.len());
    for directory in scratch {
        let there = io.stat(&directory)?;
        if !there.is_directory {
            return Err(BadPath::ScratchNotDirectory(directory).into());
        }
        if !once.iter().any(|(device, inode, _)| (*device, *inode) == (there.device, there.inode)) {
            once.push((there.device, there.inode, directory));
        }
    }
    if once.len() > SCRATCH_FILES_MAX {
        return Err(Asked::TooManyScratch { count: once.len(), max: SCRATCH_FILES_MAX }.into());
    }
    Ok(once.into_iter().map(|(_, _, directory)| Location::new(io, directory)).collect())
}
