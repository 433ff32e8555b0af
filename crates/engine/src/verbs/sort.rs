//! The verbs `sort` and `shuffle`: what was asked, made definite on this machine, and run.
//!
//! A shuffle is a sort by random tags: every record is given a tag, a hash of the seed and of the byte at which it begins
//! in all inputs together (`record::Tags`). So the same seed and inputs give the same output, whatever the memory and the
//! number of threads.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_api::{Receipt, Work};
use thalweg_base::units::{Bytes, MIB, Size};
use thalweg_io::{FileSystem, directory_of};
use thalweg_record::{Layout, TAG_BYTES};
use thalweg_sort::{Foreign, SCRATCH_FILES_MAX, Sort, Watch};

use super::nodes;
use crate::output::Target;
use crate::{Endpoint, Error, Progress, Result, WorkOptions, calibrate, machine, temporary};

/// Sorts or shuffles the inputs into the output. The receipt's invariant: out + dropped = in, and out is in order.
pub(super) fn sort(options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    if let Some(nodes @ 2..) = options.nodes {
        return nodes::sort_on_nodes(options, nodes, progress);
    }
    let (io, fallback) = machine::io_of_sort(options)?;
    let mut definite = resolve(options, &io)?;
    if definite.shuffle.is_none() {
        definite.hardware = Some(calibrate::known(&definite, &io));
    }
    if !definite.output_is_stream {
        temporary::clear(&io, &definite.output);
    }
    let mut receipt =
        thalweg_sort::run(&definite, &io, &Watched(progress)).map_err(|e| error_of(e, progress))?;
    receipt.io.fallback = fallback.or_else(|| io.fallback());
    Ok(receipt)
}

struct Watched<'a>(&'a Progress);

impl Watch for Watched<'_> {
    fn begin(&self, stage: &str, index: u64, stages: u64, total_bytes: u64) {
        self.0.begin(stage, index, stages, total_bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn stopped(&self) -> bool {
        self.0.cancelled().is_some()
    }

    fn begins_anew(&self, why: Foreign) {
        let left = match why {
            Foreign::Damaged => "is damaged".to_string(),
            Foreign::Early => "has no checkpoint yet".to_string(),
            Foreign::Memory(bytes) => format!("is of a sort in {}, which --memory was then", Bytes(bytes)),
            Foreign::Unique => "has output of a sort with --unique, or without".to_string(),
            Foreign::Other => "is of other inputs, keys or --record".to_string(),
        };
        self.0.note(&format!("nothing to resume: what an earlier run left {left}; beginning anew"));
    }
}

/// Sorts an error of the engine by what the caller should do.
pub(super) fn error_of(error: thalweg_sort::Error, progress: &Progress) -> Error {
    match error {
        thalweg_sort::Error::Stopped => Error::Interrupted(progress.cancelled().unwrap_or(0)),
        other => engine_error(other),
    }
}

/// The same where nobody can ask to stop.
pub(crate) fn engine_error(error: thalweg_sort::Error) -> Error {
    match error {
        wrong @ thalweg_sort::Error::Mismatch(_) => Error::Wrong(wrong.to_string()),
        thalweg_sort::Error::Io(e) => e.into(),
        full @ (thalweg_sort::Error::ScratchFull { limit: None, .. }
        | thalweg_sort::Error::OutputFull { .. }) => Error::Full(full.to_string()),
        other => Error::CouldNot(other.to_string()),
    }
}

/// The least memory that a sort promises to live in.
pub(crate) const MEMORY_BYTES_MIN: u64 = 16 * MIB;

/// What was typed, made definite.
pub(super) fn resolve(options: &WorkOptions, io: &Arc<dyn FileSystem>) -> Result<Sort> {
    let shuffle = match options.work {
        Work::Shuffle(seed) => {
            has_room(options.layout)?;
            Some(seed)
        }
        _ => None,
    };
    let inputs = input_paths(&options.inputs)?;
    let target = Target::of(io, &options.output)?;
    let memory_bytes = options.memory.map_or_else(machine::default_memory_bytes, machine::memory_bytes);
    if memory_bytes < MEMORY_BYTES_MIN {
        return Err(Error::CouldNot(format!(
            "--memory {} is too small: a sort needs at least {}",
            Bytes(memory_bytes),
            Bytes(MEMORY_BYTES_MIN)
        )));
    }
    let scratch = scratch_directories(&options.scratch, &target, io)?;
    let (output, output_is_stream) = match target {
        Target::File(path) => (path, false),
        Target::Stream(path) => (path, true),
    };
    let scratch_limit = scratch_limit(options.scratch_limit, &scratch, io);
    Ok(Sort {
        inputs,
        output,
        output_is_stream,
        layout: options.layout,
        keys: options.keys.clone(),
        memory_bytes,
        // Who names directories or a limit has a disk in mind.
        within_output: options.scratch.is_empty() && options.scratch_limit.is_none(),
        scratch,
        scratch_limit,
        lanes: machine::lanes(options.threads),
        shuffle,
        unique: options.unique,
        resume: options.resume,
        hashing: options.proof,
        hardware: None,
    })
}

/// Fails if records that lie so have no room for a tag.
pub(super) fn has_room(layout: Layout) -> Result<()> {
    let most = u32::MAX - TAG_BYTES as u32;
    if layout.fixed_bytes().is_some_and(|n| n > most as usize) {
        return Err(Error::CouldNot(format!(
            "records to shuffle have at most {most} bytes; give a smaller --record"
        )));
    }
    Ok(())
}

/// The names of inputs; standard input if there are none.
pub(super) fn input_paths(inputs: &[Endpoint]) -> Result<Vec<PathBuf>> {
    let inputs = if inputs.is_empty() { &[Endpoint::Standard] } else { inputs };
    inputs.iter().map(|input| input.input_path().map(PathBuf::from)).collect()
}

/// The most scratch bytes to use: a percentage is of what is free.
pub(super) fn scratch_limit(asked: Option<Size>, scratch: &[PathBuf], io: &Arc<dyn FileSystem>) -> u64 {
    let space: u64 = scratch.iter().filter_map(|d| io.space(d).ok()).map(|s| s.available).sum();
    asked.map_or(u64::MAX, |size| size.of(space))
}

/// Where scratch goes: if nobody says, beside the output, or for a stream where temporary files go.
pub(super) fn scratch_directories(
    asked: &[PathBuf],
    target: &Target,
    io: &Arc<dyn FileSystem>,
) -> Result<Vec<PathBuf>> {
    let scratch = match target {
        _ if !asked.is_empty() => asked.to_vec(),
        Target::File(path) => vec![directory_of(path).to_path_buf()],
        Target::Stream(_) => vec![std::env::temp_dir()],
    };
    // A directory that is named twice has one scratch file all the same.
    let mut once: Vec<(u64, u64, PathBuf)> = Vec::with_capacity(scratch.len());
    for directory in scratch {
        let there = io.stat(&directory)?;
        if !there.is_directory {
            let name = directory.display();
            return Err(Error::CouldNot(format!("--scratch {name} is not a directory; name one that is")));
        }
        if !once.iter().any(|(device, inode, _)| (*device, *inode) == (there.device, there.inode)) {
            once.push((there.device, there.inode, directory));
        }
    }
    if once.len() > SCRATCH_FILES_MAX {
        return Err(Error::CouldNot(format!(
            "--scratch names {} directories; a sort has at most {SCRATCH_FILES_MAX}, name fewer",
            once.len()
        )));
    }
    Ok(once.into_iter().map(|(_, _, directory)| directory).collect())
}
