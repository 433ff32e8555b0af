//! Results of benchmarks, which are stored as JSON and shown as tables.

use serde::{Deserialize, Serialize};

/// The machine that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchMachine {
    /// Its name.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Cores that the benchmark could use.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// File system and device that held the data.
    pub disk: String,
}

/// The measurement of several runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchMeasure {
    /// Median of the wall-clock seconds.
    pub seconds: f64,
    /// Median of the CPU seconds, user and system.
    pub cpu_seconds: f64,
    /// Median of the system's part of them, where it is known.
    #[serde(default)]
    pub kernel_seconds: f64,
    /// The most memory that any of the runs had resident, in bytes.
    pub peak_bytes: u64,
    /// Wall-clock seconds of each run, in order.
    pub all_seconds: Vec<f64>,
}

/// Reads and writes that run at the same time, and how long fio takes for them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchPhase {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests in flight of each direction, the best of those tried.
    pub depth: u32,
    /// Median of the seconds.
    pub seconds: f64,
}

/// The time of the disk for a plan's reads and writes alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchFloor {
    /// Median over the runs of the seconds of all phases.
    pub seconds: f64,
    /// Seconds of all phases, for each run.
    pub all_seconds: Vec<f64>,
    /// The phases in order.
    pub phases: Vec<BenchPhase>,
    /// The program that replayed them.
    pub engine: String,
}

/// A contender that ours is compared with, on the same data in the same run: a rival, or ours with other flags.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchOther {
    /// Its name.
    pub name: String,
    /// The measurement; none if it could not run.
    pub measure: Option<BenchMeasure>,
    /// Whether its output was right: the same bytes as ours, or accepted by its own check.
    pub right: Option<bool>,
    /// Why it was not measured, or a remark on the measurement.
    pub note: String,
}

impl BenchOther {
    /// A contender that ran, without a remark.
    pub fn measured(name: &str, measure: BenchMeasure) -> BenchOther {
        BenchOther { name: name.into(), measure: Some(measure), ..BenchOther::default() }
    }
}

/// A target of a row.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchTarget {
    /// The comparison: `wall <= 1.25 x floor`.
    pub target: String,
    /// The measured value.
    pub measured: String,
    /// Whether it is met; `None` if the necessary values were not measured.
    pub met: Option<bool>,
}

/// A row of a benchmark.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchRow {
    /// The name with which it is requested.
    pub name: String,
    /// A description of the work.
    pub work: String,
    /// Bytes of the input.
    pub bytes: u64,
    /// The memory limit, `--memory`.
    pub memory_bytes: u64,
    /// The measurement of ours.
    pub ours: BenchMeasure,
    /// The floor, if it was measured.
    pub floor: Option<BenchFloor>,
    /// The contenders that it is compared with.
    pub others: Vec<BenchOther>,
    /// Its targets.
    pub targets: Vec<BenchTarget>,
    /// Digest of the output's bytes, in their order; the same on every machine.
    pub digest: String,
    /// Why ours failed; then nothing else is measured.
    pub failed: String,
    /// Further notes.
    pub notes: Vec<String>,
    /// The seconds after which so many records were done, at some points of the first run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<(u64, f64)>,
}

/// The rates of one scheme of reading and writing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchRate {
    /// `direct overlapped`, `buffered synchronous`, ...
    pub scheme: String,
    /// Bytes of each read and write.
    pub chunk_bytes: u64,
    /// The number of directories with parts of the file.
    pub directories: u32,
    /// Bytes in all.
    pub bytes: u64,
    /// Median of the rates of reading, in bytes per second.
    pub read_bytes_per_second: f64,
    /// Median of the rates of writing, until durable, in bytes per second.
    pub write_bytes_per_second: f64,
}

/// A host of a lab, with the kernel's counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchHost {
    /// Its name.
    pub host: String,
    /// Its node's process.
    pub pid: u32,
    /// Bytes that it received over its link, headers included.
    pub received_bytes: u64,
    /// Bytes that it sent.
    pub sent_bytes: u64,
}

/// The report of a benchmark.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchReport {
    /// `sort`, `io`, `incore`, `pump` or `launch`.
    pub bench: String,
    /// When it began, in UTC: `2026-01-31T12:34:56Z`.
    pub date: String,
    /// The version that was measured.
    pub version: String,
    /// The machine.
    pub machine: BenchMachine,
    /// The `--size` that scales everything, in bytes.
    pub size_bytes: u64,
    /// The seed of all random data.
    pub seed: u64,
    /// The number of runs of each median.
    pub runs: u32,
    /// How the page cache was treated before each run.
    pub cache: String,
    /// Kinds of work, for `sort` and `incore`.
    pub rows: Vec<BenchRow>,
    /// Rates, for `io`.
    pub rates: Vec<BenchRate>,
    /// Hosts of the lab, if it was on one.
    #[serde(default)]
    pub hosts: Vec<BenchHost>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// The output of a process that read or wrote a file for `thalweg-bench volume`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct AccessRun {
    /// Seconds from its first request to its last, or to the end of its fsync.
    pub seconds: f64,
    /// Bytes that it moved.
    pub bytes: u64,
    /// The median of its requests, in microseconds.
    pub p50_us: u32,
    /// The time that 99 of 100 requests stayed within.
    pub p99_us: u32,
    /// For many small files, the seconds that making them took.
    pub made_seconds: f64,
}

/// The output of a rival's runner: one run, with its own check.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RivalRun {
    /// The rival's name and version.
    pub name: String,
    /// Whether the output was complete and in order.
    pub ok: bool,
    /// Wall-clock seconds of the sort itself, from file to file; starting the rival is not counted.
    pub wall_seconds: f64,
    /// CPU seconds of the sort itself, of all its processes.
    pub cpu_seconds: f64,
    /// The most memory resident, in bytes, of all its processes.
    pub peak_rss_bytes: u64,
    /// Further seconds until the output was durable.
    pub sync_seconds: f64,
    /// What went wrong, if anything.
    pub error: String,
}

/// The part of iperf3's JSON output that is used.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Iperf {
    /// The sums at its end.
    pub end: IperfEnd,
}

/// The sums of a run of iperf3.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct IperfEnd {
    /// What its receiver got.
    pub sum_received: IperfSum,
    /// What arrived in the other direction at the same time, if anything.
    #[serde(default)]
    pub sum_received_bidir_reverse: Option<IperfSum>,
}

/// The counts of one end of iperf3.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct IperfSum {
    /// Bytes of payload.
    pub bytes: u64,
    /// The seconds in which they arrived.
    pub seconds: f64,
}

/// What a client of a table does in a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchTable {
    /// The table.
    pub table: String,
    /// `insert`, `get`, `range`, or `split`: gets and updates, one after the other, while the table is split.
    pub what: String,
    /// The records of the table: the numbers below this one, in a random order.
    pub records: u64,
    /// The client takes every `clients`-th of them,
    pub clients: u64,
    /// beginning with this one.
    pub client: u64,
    /// `n`, `c` or `cu`.
    pub variant: String,
    /// The outstanding requests: a number, `adaptive` or `none`.
    pub window: String,
    /// `links`, `udp`, or `udp-single` with one request in a datagram.
    pub transport: String,
    /// Whether it learns where all buckets are before it is measured.
    pub knows: bool,
}

/// What such a client measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchTableRun {
    /// Seconds from its first request to its last answer.
    pub seconds: f64,
    /// Its CPU time.
    pub cpu_seconds: f64,
    /// Records with the seconds until they had been answered; while a table is split, the requests with the seconds that
    /// each took.
    pub curve: Vec<(u64, f64)>,
}
