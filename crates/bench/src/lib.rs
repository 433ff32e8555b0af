//! Benchmarks: ratios to a floor and to rivals, measured in one run on one machine.
//!
//! Model: a benchmark generates its data from a seed in a directory of its own, measures whole processes in turn, and
//! takes medians. It returns a [`BenchReport`], which is also written as JSON under `bench/results`. [`table`] shows
//! it.
//! Invariant: everything that is compared was measured in the same run on the same data, and every output was checked.
//! A missed target is shown like a met one. A row that was not measured says why.
//! Non-goals: profiling, and comparison with the results of another day.
#![allow(clippy::disallowed_methods)] // Data, job files and results are not records in a sort.

mod all_to_all;
mod cluster;
mod contenders;
mod data;
mod data_dir;
mod digest;
mod error;
mod floor;
mod incore;
mod io_rates;
mod iperf_ring;
mod lab;
mod launch;
mod launchers;
mod lower_bound;
mod machine;
mod measure;
mod memory;
mod minutesort;
mod pump;
mod pump_lab;
mod results;
mod rivals;
mod river;
mod rows;
mod slurm;
mod sort;
mod table;
mod tables;
mod targets;
mod volume;

use std::path::PathBuf;

use thalweg::Progress;
use thalweg_api::BenchReport;
use thalweg_base::clock;

pub use error::{Error, Result};
pub use rows::names as row_names;
pub use slurm::{Slurm, SlurmHost};
pub use table::table;

/// Seed of all that is random in the data.
const SEED: u64 = 0x7468_616c_7765_6731;
/// A run of at most this size only tests that the benchmark works; it measures nothing.
const TINY_BYTES: u64 = 64_000_000;

/// A benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Whole sorts, compared with their floors and rivals.
    Sort,
    /// Rates of reading and writing, as in table 2 of paper 004.
    Io,
    /// Sorting in memory, compared with a copy.
    InCore,
    /// Transfers on one host and between two.
    Pump,
    /// A null command on many nodes.
    Launch,
    /// Records distributed to lanes.
    River,
    /// Sorts on the nodes of a lab.
    Cluster,
    /// Every node of a lab sends to every other node.
    AllToAll,
    /// Files of a volume, on the hosts of a lab and on one machine.
    Volume,
    /// A server of tables beside Redis and etcd.
    Table,
}

impl Which {
    /// The name on the command line and in results.
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
            Which::Volume => "volume",
            Which::Table => "table",
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
            Which::Volume,
            Which::Table,
        ];
        all.into_iter().find(|which| which.name() == name)
    }

    /// The size of the published figures.
    fn usual_bytes(self) -> u64 {
        match self {
            Which::Sort | Which::InCore | Which::River | Which::Cluster => 1_000_000_000,
            Which::AllToAll | Which::Volume => 1_000_000_000,
            Which::Pump => 4_000_000_000,
            Which::Table => 100_000_000,
            // The table has thirty entries: with a gigabyte they would take a quarter of an hour.
            Which::Io => 256_000_000,
            // No data is moved.
            Which::Launch => TINY_BYTES + 1,
        }
    }
}

/// What to measure and with what.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Which benchmark.
    pub which: Which,
    /// The size that everything is scaled by; by default that of the published figures.
    pub bytes: Option<u64>,
    /// Whether to measure the installed rivals too.
    pub rivals: bool,
    /// Numbers of nodes to launch on; if empty, those of the published figures.
    pub nodes: Vec<u32>,
    /// The number of runs of each median; by default the usual one.
    pub runs: Option<usize>,
    /// The rows to measure; if empty, all.
    pub rows: Vec<String>,
    /// Whether to run the suites of `volume` instead of measuring.
    pub suites: bool,
    /// Directories for the data; if empty, `bench/data` in the current directory. Only `io` uses more than the first.
    pub dirs: Vec<PathBuf>,
    /// The `thalweg` that is measured.
    pub program: PathBuf,
}

/// The options of a run, in the form that every benchmark needs.
pub(crate) struct Asked<'a> {
    pub(crate) options: &'a BenchOptions,
    pub(crate) progress: &'a Progress,
    /// The size that everything is scaled by.
    pub(crate) bytes: u64,
    /// The number of runs of each median.
    pub(crate) runs: usize,
    /// Whether this only tests that the benchmark works: caches stay as they are, and no floor is searched for.
    pub(crate) tiny: bool,
}

impl Asked<'_> {
    /// Fails if the user asked to stop. Called between runs.
    pub(crate) fn should_continue(&self) -> Result<()> {
        self.progress.cancelled().map_or(Ok(()), |signal| Err(thalweg::Error::Interrupted(signal).into()))
    }

    /// Whether the row of this name was asked for.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.options.rows.is_empty() || self.options.rows.iter().any(|name| name == row)
    }
}

/// Measures, and writes the result to disk. A missed target is no error; a wrong output is.
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
    let dir = data_dir::DataDir::make(&asked)?;
    let mut report = BenchReport {
        bench: options.which.name().to_string() + if options.suites { "-suites" } else { "" },
        date: clock::date(clock::wall_seconds()),
        version: env!("CARGO_PKG_VERSION").to_string(),
        machine: machine::look(dir.path()),
        size_bytes: bytes,
        seed: SEED,
        runs: asked.runs as u32,
        cache: dir.cache().to_string(),
        ..BenchReport::default()
    };
    match options.which {
        Which::Sort => sort::measure(&asked, &dir, &mut report)?,
        Which::Io => io_rates::measure(&asked, &dir, &mut report)?,
        Which::InCore => incore::measure(&asked, &mut report)?,
        Which::Pump => pump::measure(&asked, &dir, &mut report)?,
        Which::Launch => launch::measure(&asked, &mut report)?,
        Which::River => river::measure(&asked, &dir, &mut report)?,
        Which::Cluster => cluster::measure(&asked, &mut report)?,
        Which::AllToAll => all_to_all::measure(&asked, &mut report)?,
        Which::Volume => volume::measure(&asked, &dir, &mut report)?,
        Which::Table => tables::measure(&asked, &dir, &mut report)?,
    }
    drop(dir);
    results::write(&report)?;
    Ok(report)
}

/// Does the work of one client of `bench table`, if this process was started for that.
pub fn run_as_client() -> Option<Result<()>> {
    tables::worker::task().map(|task| tables::worker::run(&task))
}

/// Whether every output was right and no row of ours failed.
pub fn all_right(report: &BenchReport) -> bool {
    let right = |row: &thalweg_api::BenchRow| {
        row.failed.is_empty() && row.others.iter().all(|other| other.right != Some(false))
    };
    report.rows.iter().all(right)
}

/// An error that names a file and what could not be done to it.
pub(crate) fn failed(what: &str, path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::Failed(format!("cannot {what} {}: {error}", path.display()))
}
