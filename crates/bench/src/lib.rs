//! Benchmarks: ratios to a floor and to rivals, measured in one run on one machine.
//!
//! Model: a benchmark makes its data from a seed in a place of its own, measures whole processes in turn,
//! takes medians, and gives back a [`BenchReport`], which is also kept as JSON under `bench/results`.
//! [`table`] shows it.
//! Law: whatever is compared was measured in the same run on the same data, and the output of each was
//! looked at; a target that is missed is shown like one that is met; what was not measured says why.
//! Non-goals: profiles, comparing with results of another day.
#![allow(clippy::disallowed_methods)] // Data, job files and results are not records on their way.

mod alone;
mod cluster;
mod data;
mod digest;
mod error;
mod exchange;
mod far;
mod floor;
mod incore;
mod keep;
mod lab;
mod launch;
mod launchers;
mod machine;
mod measure;
mod memory;
mod minutesort;
mod place;
mod pump;
mod rates;
mod ring;
mod rivals;
mod river;
mod rows;
mod slurm;
mod sort;
mod table;
mod targets;

use std::path::PathBuf;

use thalweg::Progress;
use thalweg_api::BenchReport;
use thalweg_base::clock;

pub use error::{Error, Result};
pub use rows::names as row_names;
pub use table::table;

/// Seed of all that is random in the data.
const SEED: u64 = 0x7468_616c_7765_6731;
/// Up to here a size is tiny: a test that the benchmark works, and no measurement.
const TINY_BYTES: u64 = 64_000_000;

/// Which benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Whole sorts beside their floors and rivals.
    Sort,
    /// Ways of reading and writing: table 2 of paper 004.
    Io,
    /// Sorting in memory beside a copy.
    InCore,
    /// Transfers on one host and between two.
    Pump,
    /// A null command on many nodes.
    Launch,
    /// Records parted among lanes.
    River,
    /// Sorts on the nodes of a lab.
    Cluster,
    /// Every node of a lab sends to every other.
    AllToAll,
}

impl Which {
    /// As typed, and in the names of results.
    pub fn name(self) -> &'static str {
        match self {
            Which::Sort => "sort",
            Which::Io => "io",
            Which::InCore => "incore",
            Which::Pump => "pump",
            Which::Launch => "launch",
            Which::River => "river",
            Which::Cluster => "cluster",
            Which::AllToAll => "all-to-all",
        }
    }

    /// The benchmark of that name.
    pub fn named(name: &str) -> Option<Which> {
        let all = [
            Which::Sort,
            Which::Io,
            Which::InCore,
            Which::Pump,
            Which::Launch,
            Which::River,
            Which::Cluster,
            Which::AllToAll,
        ];
        all.into_iter().find(|which| which.name() == name)
    }

    /// The size of the published figures.
    fn usual_bytes(self) -> u64 {
        match self {
            Which::Sort | Which::InCore | Which::River | Which::Cluster | Which::AllToAll => 1_000_000_000,
            Which::Pump => 4_000_000_000,
            // Thirty ways, each several times: a gigabyte would take a quarter of an hour.
            Which::Io => 256_000_000,
            // No data goes anywhere.
            Which::Launch => TINY_BYTES + 1,
        }
    }
}

/// What to measure and with what.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Which benchmark.
    pub which: Which,
    /// The size that everything is scaled by; that of the published figures if not given.
    pub bytes: Option<u64>,
    /// Also measure the rivals that are installed.
    pub rivals: bool,
    /// Numbers of nodes to launch on; those of the published figures if empty.
    pub nodes: Vec<u32>,
    /// How many runs each median is of; the usual number if not given.
    pub runs: Option<usize>,
    /// The rows to measure; all if empty.
    pub rows: Vec<String>,
    /// Directories for the data; `bench/data` in the current one if empty. More than the first are used by
    /// `io` only.
    pub dirs: Vec<PathBuf>,
    /// The `thalweg` that is measured.
    pub program: PathBuf,
}

/// What every part of a benchmark needs to know.
pub(crate) struct Asked<'a> {
    pub(crate) options: &'a BenchOptions,
    pub(crate) progress: &'a Progress,
    /// What everything is scaled by.
    pub(crate) bytes: u64,
    /// How many runs each median is of.
    pub(crate) runs: usize,
    /// A test that the benchmark works: caches are left alone and no floor is searched for.
    pub(crate) tiny: bool,
}

impl Asked<'_> {
    /// An error if somebody asked to stop. Looked at between runs.
    pub(crate) fn go_on(&self) -> Result<()> {
        self.progress.cancelled().map_or(Ok(()), |signal| Err(thalweg::Error::Interrupted(signal).into()))
    }

    /// Whether the row of this name is to be measured.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.options.rows.is_empty() || self.options.rows.iter().any(|name| name == row)
    }
}

/// Measures, and keeps the result. A target that is missed is no error; an output that is wrong is.
pub fn run(options: &BenchOptions, progress: &Progress) -> Result<BenchReport> {
    let bytes = options.bytes.unwrap_or(options.which.usual_bytes());
    if bytes < 100_000 {
        return Err(Error::Failed(format!(
            "{bytes} bytes are too few to measure; give --size 100KB or more"
        )));
    }
    let few = options.which == Which::Launch && options.runs.is_some_and(|runs| runs < launch::RUNS_MIN);
    let tiny = bytes <= TINY_BYTES || few;
    let usual = match (options.which, tiny) {
        (_, true) => 3,
        (Which::Launch, false) => launch::RUNS,
        (_, false) => 5,
    };
    let asked = Asked { options, progress, bytes, runs: options.runs.unwrap_or(usual), tiny };
    rows::check_names(&asked)?;
    let place = place::Place::make(&asked)?;
    let mut report = BenchReport {
        bench: options.which.name().to_string(),
        date: clock::date(clock::wall_seconds()),
        version: env!("CARGO_PKG_VERSION").to_string(),
        machine: machine::look(place.path()),
        size_bytes: bytes,
        seed: SEED,
        runs: asked.runs as u32,
        cache: place.cache().to_string(),
        ..BenchReport::default()
    };
    match options.which {
        Which::Sort => sort::measure(&asked, &place, &mut report)?,
        Which::Io => rates::measure(&asked, &place, &mut report)?,
        Which::InCore => incore::measure(&asked, &mut report)?,
        Which::Pump => pump::measure(&asked, &place, &mut report)?,
        Which::Launch => launch::measure(&asked, &mut report)?,
        Which::River => river::measure(&asked, &place, &mut report)?,
        Which::Cluster => cluster::measure(&asked, &mut report)?,
        Which::AllToAll => exchange::measure(&asked, &mut report)?,
    }
    drop(place);
    keep::keep(&report)?;
    Ok(report)
}

/// Whether every output was right and nothing of ours failed.
pub fn all_right(report: &BenchReport) -> bool {
    let right = |row: &thalweg_api::BenchRow| {
        row.failed.is_empty() && row.others.iter().all(|other| other.right != Some(false))
    };
    report.rows.iter().all(right)
}

/// An error that names what could not be done to which file.
pub(crate) fn failed(what: &str, path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::Failed(format!("cannot {what} {}: {error}", path.display()))
}
