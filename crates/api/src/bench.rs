//! What a benchmark measured: kept as JSON, shown as a table.

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

/// One thing measured several times.
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

/// Reads and writes that go on at once, and how long they take alone.
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

/// What the disk needs for a plan's own reads and writes, and nothing else.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchFloor {
    /// Median over the runs of the seconds of all phases.
    pub seconds: f64,
    /// Seconds of all phases, for each run.
    pub all_seconds: Vec<f64>,
    /// The phases in order.
    pub phases: Vec<BenchPhase>,
    /// What replayed them.
    pub engine: String,
}

/// Something measured beside ours on the same data in the same run: a rival, or another way of ours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchOther {
    /// Its name.
    pub name: String,
    /// What was measured; nothing if it could not run.
    pub measure: Option<BenchMeasure>,
    /// Whether its output was found to be right: the same bytes as ours, or its own check passed.
    pub right: Option<bool>,
    /// Why it was not measured, or what to know about how it was.
    pub note: String,
}

impl BenchOther {
    /// One that ran, of which nothing else is said.
    pub fn measured(name: &str, measure: BenchMeasure) -> BenchOther {
        BenchOther { name: name.into(), measure: Some(measure), ..BenchOther::default() }
    }
}

/// What a row is to reach.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchTarget {
    /// What is compared and how: `wall <= 1.25 x floor`.
    pub target: String,
    /// What was measured of it.
    pub measured: String,
    /// Whether it is met; nothing if what it needs was not measured.
    pub met: Option<bool>,
}

/// One kind of work.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchRow {
    /// Its name, by which it can be asked for.
    pub name: String,
    /// What is done.
    pub work: String,
    /// Bytes of the input.
    pub bytes: u64,
    /// The promise, `--memory`.
    pub memory_bytes: u64,
    /// What ours took.
    pub ours: BenchMeasure,
    /// The same on the disk alone, if it was measured.
    pub floor: Option<BenchFloor>,
    /// What was measured beside it.
    pub others: Vec<BenchOther>,
    /// What it is to reach.
    pub targets: Vec<BenchTarget>,
    /// Digest of the output's bytes, in their order; the same on every machine.
    pub digest: String,
    /// Why there is nothing else here, if ours could not do it.
    pub failed: String,
    /// What else to know.
    pub notes: Vec<String>,
}

/// How fast one way of reading and writing is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchRate {
    /// `direct overlapped`, `buffered synchronous`, ...
    pub scheme: String,
    /// Bytes of each read and write.
    pub chunk_bytes: u64,
    /// Directories that the file was spread over.
    pub directories: u32,
    /// Bytes in all.
    pub bytes: u64,
    /// Median of the rates of reading, in bytes per second.
    pub read_bytes_per_second: f64,
    /// Median of the rates of writing, with making durable, in bytes per second.
    pub write_bytes_per_second: f64,
}

/// A host of a lab that was measured, as the kernel saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchHost {
    /// Its name.
    pub host: String,
    /// Its node's process.
    pub pid: u32,
    /// Bytes that came over its link meanwhile, all headers included.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
}

/// What a benchmark measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BenchReport {
    /// `sort`, `io`, `incore`, `pump` or `launch`.
    pub bench: String,
    /// When it began, in UTC: `2026-01-31T12:34:56Z`.
    pub date: String,
    /// Version of what was measured.
    pub version: String,
    /// Where.
    pub machine: BenchMachine,
    /// The `--size` that everything is scaled by, in bytes.
    pub size_bytes: u64,
    /// Seed of all that is random in the data.
    pub seed: u64,
    /// How many runs each median is of.
    pub runs: u32,
    /// What was done about the page cache before each run.
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

/// What a rival's runner prints: one run, judged by itself.
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
    /// Seconds more until the output was durable.
    pub sync_seconds: f64,
    /// What went wrong, if something did.
    pub error: String,
}

/// Of what iperf3 prints with `-J`: what its receiver got.
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
    /// What came the other way at the same time, if anything did.
    #[serde(default)]
    pub sum_received_bidir_reverse: Option<IperfSum>,
}

/// What one end of iperf3 counted.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct IperfSum {
    /// Bytes of payload.
    pub bytes: u64,
    /// In how many seconds.
    pub seconds: f64,
}
