//! The verb `sort`: what was asked, made definite on this machine, and run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::Receipt;
use thalweg_io::{Io, process};
use thalweg_sort::{Sort, Watch};

use crate::{Endpoint, Error, Progress, Result, SortOptions, calibrate, machine};

/// Sorts the inputs into the output. The receipt's law: out + dropped = in, and out is in order.
pub fn sort(options: &SortOptions, progress: &Progress) -> Result<Receipt> {
    let (io, fallback) = machine::io(options.io)?;
    let mut definite = resolve(options, &io)?;
    definite.hardware = Some(calibrate::known(&definite, &io));
    let mut receipt =
        thalweg_sort::run(&definite, &io, &Watched(progress)).map_err(|e| error_of(e, progress))?;
    receipt.io.fallback = fallback;
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
}

/// Sorts an error of the engine by what the caller should do.
pub(super) fn error_of(error: thalweg_sort::Error, progress: &Progress) -> Error {
    match error {
        thalweg_sort::Error::Stopped => Error::Interrupted(progress.cancelled().unwrap_or(0)),
        wrong @ (thalweg_sort::Error::Mismatch(_) | thalweg_sort::Error::Damaged { .. }) => {
            Error::Wrong(wrong.to_string())
        }
        other => Error::CouldNot(other.to_string()),
    }
}

/// What was typed, made definite.
pub(super) fn resolve(options: &SortOptions, io: &Arc<dyn Io>) -> Result<Sort> {
    let path_of = |endpoint: &Endpoint, standard: &str| match endpoint {
        Endpoint::Path(path) => path.clone(),
        Endpoint::Standard => PathBuf::from(standard),
    };
    let mut inputs: Vec<PathBuf> = options.inputs.iter().map(|e| path_of(e, "/dev/stdin")).collect();
    if inputs.is_empty() {
        inputs.push(PathBuf::from("/dev/stdin"));
    }
    let output = path_of(&options.output, "/dev/stdout");
    // Standard output is written in order even where it is a file: its name is not ours to change.
    let output_is_stream = options.output == Endpoint::Standard
        || io.stat(&output).is_ok_and(|m| !m.is_regular && !m.is_directory);
    let available = process::available_memory_bytes();
    let memory_bytes = options.memory.map_or_else(machine::default_memory_bytes, |size| size.of(available));
    let scratch = if options.scratch.is_empty() {
        vec![directory_of(&output, output_is_stream)]
    } else {
        options.scratch.clone()
    };
    let space: u64 = scratch.iter().filter_map(|d| io.space(d).ok()).map(|s| s.available).sum();
    let scratch_limit = options.scratch_limit.map_or(u64::MAX, |size| size.of(space));
    Ok(Sort {
        inputs,
        output,
        output_is_stream,
        layout: options.layout,
        keys: options.keys.clone(),
        memory_bytes,
        scratch,
        scratch_limit,
        lanes: options.threads.unwrap_or_else(machine::cores).max(1),
        unique: options.unique,
        resume: options.resume,
        hashing: options.proof,
        hardware: None,
    })
}

/// Where scratch goes if nobody says: beside the output, or for a stream where temporary files go.
fn directory_of(output: &Path, is_stream: bool) -> PathBuf {
    if is_stream {
        return std::env::temp_dir();
    }
    match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
