//! Measurements of the machine that Thalweg runs on: ratios to a floor, in one run.
//!
//! Model: a measurement generates its data from a seed in a directory of its own, runs whole processes in turn, and
//! takes medians. It returns a [`BenchReport`], which is also written as JSON under `bench/results`. [`table`] shows
//! it.
//! Invariant: everything that is compared was measured in the same run on the same data, and every output was checked.
//! A missed target is shown like a met one. A row that was not measured says why.
//! Non-goals: profiling, and comparison with the results of another day. Rivals that have to be installed first, and
//! clusters, are measured by the program `thalweg-bench`, which uses this crate.
#![allow(clippy::disallowed_methods)] // Data, job files and results are not records in a sort.

pub mod contenders;
pub mod data;
pub mod data_dir;
mod digest;
mod error;
pub mod floor;
mod gnu;
mod incore;
mod io_rates;
mod lower_bound;
mod machine;
pub mod memory;
pub mod process;
pub mod pump;
mod results;
mod river;
pub mod sort;
mod sort_rows;
pub mod table;
pub mod targets;

use std::path::PathBuf;

use thalweg::Progress;
use thalweg_api::BenchReport;
use thalweg_base::clock;

use data_dir::DataDir;
pub use digest::of_file as digest_of;
pub use error::{Error, Result, failed};
pub use machine::cores;

/// Seed of all that is random in the data.
pub const SEED: u64 = 0x7468_616c_7765_6731;
/// A run of at most this size only tests that the benchmark works; it measures nothing.
pub const TINY_BYTES: u64 = 64_000_000;
/// The fewest bytes that a run is scaled to.
const BYTES_MIN: u64 = 100_000;
/// The number of runs of each median, and that of a tiny run.
const RUNS: usize = 5;
const RUNS_TINY: usize = 3;

/// What users measure on their machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Whole sorts, compared with their floors and GNU sort.
    Sort,
    /// Rates of reading and writing, as in table 2 of paper 004.
    Io,
    /// Sorting in memory, compared with a copy.
    InCore,
    /// Transfers on one host.
    Pump,
    /// Records distributed to lanes.
    River,
}

impl Which {
    const ALL: [Which; 5] = [Which::Sort, Which::Io, Which::InCore, Which::Pump, Which::River];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Which::Sort => "sort",
            Which::Io => "io",
            Which::InCore => "incore",
            Which::Pump => "pump",
            Which::River => "river",
        }
    }

    /// The measurement of that name.
    pub fn named(name: &str) -> Option<Which> {
        Which::ALL.into_iter().find(|which| which.name() == name)
    }

    /// The size of the published figures.
    pub fn usual_bytes(self) -> u64 {
        match self {
            Which::Sort | Which::InCore | Which::River => 1_000_000_000,
            Which::Pump => 4_000_000_000,
            // The table has thirty entries: with a gigabyte they would take a quarter of an hour.
            Which::Io => 256_000_000,
        }
    }

    /// Names of the rows.
    pub fn rows(self) -> Vec<&'static str> {
        match self {
            Which::Sort => sort::names(),
            Which::Io => io_rates::names(),
            Which::InCore => incore::NAMES.to_vec(),
            Which::Pump => pump::names(),
            Which::River => river::NAMES.to_vec(),
        }
    }

    /// Measures the rows that are asked for.
    pub fn measure(self, asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
        match self {
            Which::Sort => sort::measure(asked, dir, None, report),
            Which::Io => io_rates::measure(asked, dir, report),
            Which::InCore => incore::measure(asked, report),
            Which::Pump => pump::measure(asked, dir, report),
            Which::River => river::measure(asked, dir, report),
        }
    }
}

/// How to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The size that everything is scaled by; by default that of the published figures.
    pub bytes: Option<u64>,
    /// The number of runs of each median; by default the usual one.
    pub runs: Option<usize>,
    /// The rows to measure; if empty, all.
    pub rows: Vec<String>,
    /// For `sort`: text files of the user, each of which takes the place of a row.
    pub files: Vec<PathBuf>,
    /// Directories for the data; if empty, `bench/data` in the current directory. Only `io` uses more than the first.
    pub dirs: Vec<PathBuf>,
    /// The `thalweg` that is measured.
    pub program: PathBuf,
}

/// The name of a benchmark, its rows, and what is usual for it.
#[derive(Debug)]
pub struct Bench {
    /// The name on the command line.
    pub name: &'static str,
    /// Names by which its rows are selected.
    pub rows: Vec<&'static str>,
    /// The size of the published figures.
    pub usual_bytes: u64,
    /// The number of runs of each median, unless a run is tiny.
    pub usual_runs: usize,
    /// With fewer runs than this it only tests that the benchmark works.
    pub runs_min: usize,
}

impl From<Which> for Bench {
    fn from(which: Which) -> Bench {
        let (name, rows, usual_bytes) = (which.name(), which.rows(), which.usual_bytes());
        Bench { name, rows, usual_bytes, usual_runs: RUNS, runs_min: 0 }
    }
}

/// The options of a run, in the form that every benchmark needs.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// What was asked for.
    pub options: &'a Options,
    /// Where progress is shown, and from where the run is cancelled.
    pub progress: &'a Progress,
    /// The size that everything is scaled by.
    pub bytes: u64,
    /// The number of runs of each median.
    pub runs: usize,
    /// Whether this only tests that the benchmark works: caches stay as they are, and no floor is searched for.
    pub tiny: bool,
}

impl Asked<'_> {
    /// Fails if the user asked to stop. Called between runs.
    pub fn should_continue(&self) -> Result<()> {
        self.progress.cancelled().map_or(Ok(()), |signal| Err(thalweg::Error::Interrupted(signal).into()))
    }

    /// Whether the row of this name was asked for.
    pub fn wants(&self, row: &str) -> bool {
        self.options.rows.is_empty() || self.options.rows.iter().any(|name| name == row)
    }
}

/// Measures what users measure, and writes the result to disk. A missed target is no error; a wrong output is.
pub fn run(which: Which, options: &Options, progress: &Progress) -> Result<BenchReport> {
    run_as(&which.into(), options, progress, |asked, dir, report| which.measure(asked, dir, report))
}

/// Runs a benchmark: checks the options, makes the directories of its data, and writes the report to disk.
pub fn run_as(
    bench: &Bench,
    options: &Options,
    progress: &Progress,
    measure: impl FnOnce(&Asked<'_>, &DataDir, &mut BenchReport) -> Result<()>,
) -> Result<BenchReport> {
    let bytes = options.bytes.unwrap_or(bench.usual_bytes);
    if bytes < BYTES_MIN {
        return Err(Error::Failed(format!(
            "{bytes} bytes are too few to measure; give --size 100KB or more"
        )));
    }
    if let Some(name) = options.rows.iter().find(|name| !bench.rows.contains(&name.as_str())) {
        let (bench, rows) = (bench.name, bench.rows.join(", "));
        return Err(Error::Failed(format!("bench {bench} has no row '{name}'; it has {rows}")));
    }
    let tiny = bytes <= TINY_BYTES || options.runs.is_some_and(|runs| runs < bench.runs_min);
    let usual_runs = if tiny { RUNS_TINY } else { bench.usual_runs };
    let asked = Asked { options, progress, bytes, runs: options.runs.unwrap_or(usual_runs), tiny };
    let dir = DataDir::make(&asked)?;
    let mut report = BenchReport {
        bench: bench.name.to_string(),
        date: clock::date(clock::wall_seconds()),
        version: env!("CARGO_PKG_VERSION").to_string(),
        machine: machine::look(dir.path()),
        size_bytes: bytes,
        seed: SEED,
        runs: asked.runs as u32,
        cache: dir.cache().to_string(),
        ..BenchReport::default()
    };
    measure(&asked, &dir, &mut report)?;
    drop(dir);
    results::write(&report)?;
    Ok(report)
}

/// Whether every output was right and no row of ours failed.
pub fn all_right(report: &BenchReport) -> bool {
    let right = |row: &thalweg_api::BenchRow| {
        row.failed.is_empty() && row.others.iter().all(|other| other.right != Some(false))
    };
    report.rows.iter().all(right)
}
