//! The receipt: what a run did, proved, beside what the plan had promised.

use serde::{Deserialize, Serialize};

use crate::{NodeShare, PartitionReceipt, Plan, hex};

/// What is known of a stream of records from having seen all of it. Proofs of parts merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Proof {
    /// How many records.
    pub records: u64,
    /// How many bytes of records, terminators of lines not counted.
    pub bytes: u64,
    /// Sum mod 2^128 of a 128-bit hash of each record; the order does not matter.
    #[serde(with = "hex")]
    pub checksum: u128,
    /// How many records are greater than the one just after.
    pub unordered: u64,
    /// How many records have the same key as the one just before.
    pub duplicates: u64,
}

/// Seconds of one stage of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What it does: `sample`, `read+distribute`, `load+merge+write`, ...
    pub name: String,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// What the plan said it would take, if it said.
    pub predicted_seconds: Option<f64>,
    /// Seconds, summed over the lanes, spent waiting for reads.
    pub waited_read_seconds: f64,
    /// Seconds, summed over the lanes, spent waiting for writes or for a free block.
    pub waited_write_seconds: f64,
    /// Bytes read from disks in this stage.
    pub read_bytes: u64,
    /// Bytes written to disks in this stage.
    pub written_bytes: u64,
}

impl Stage {
    /// One that has moved nothing and waited for nothing.
    pub fn new(name: &str, seconds: f64) -> Stage {
        Stage { name: name.to_string(), seconds, ..Stage::default() }
    }

    /// Adds what another has moved and waited for; its seconds may have been the same ones.
    pub fn add_traffic(&mut self, other: &Stage) {
        self.waited_read_seconds += other.waited_read_seconds;
        self.waited_write_seconds += other.waited_write_seconds;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// Disk traffic of one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Disk {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// How bytes were moved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IoReceipt {
    /// `uring`, `threads`, `uring+threads` if it had to change, or `sim`.
    pub backend: String,
    /// Why it is not the one asked for or expected, if so.
    pub fallback: Option<String>,
    /// Input bytes that were taken from the page cache because it held them.
    pub cached_input_bytes: u64,
    /// Whether the output bypassed the page cache.
    pub direct_output: bool,
    /// Traffic on inputs.
    pub input: Disk,
    /// Traffic on scratch files.
    pub scratch: Disk,
    /// Traffic on the output.
    pub output: Disk,
}

/// What memory was promised and what was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryReceipt {
    /// The promise (`--memory`), for the whole process.
    pub limit_bytes: u64,
    /// The most that was resident, as the kernel counts it.
    pub peak_bytes: u64,
    /// How much of it lay in huge pages at the end of the work.
    pub huge_page_bytes: u64,
}

/// What went into a join, and what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sides {
    /// Proof of the left input.
    pub left: Proof,
    /// Proof of the right input.
    pub right: Proof,
    /// Records of the output that have a right part.
    pub pairs: u64,
    /// Records of the output that have none.
    pub unmatched: u64,
}

/// What a run did. A verb succeeds only if its invariant holds between `input` and `output`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Receipt {
    /// The verb: `sort`, `shuffle`, `merge`, `join`, `gen`.
    pub verb: String,
    /// Proof of what went in.
    pub input: Proof,
    /// Proof of what came out.
    pub output: Proof,
    /// Proof of what `--unique` dropped.
    pub dropped: Proof,
    /// The sides of a join, which `input` adds up.
    #[serde(default)]
    pub sides: Option<Sides>,
    /// Bytes of the inputs as files or streams have them, newlines included. 0 in receipts from before there was this.
    #[serde(default)]
    pub input_file_bytes: u64,
    /// Bytes of the output as a file or stream has them, newlines included. 0 in receipts from before there was this.
    #[serde(default)]
    pub output_file_bytes: u64,
    /// Whether checksums were taken. If not, proofs are of counts alone.
    pub proved: bool,
    /// Whether the verb's invariant holds.
    pub holds: bool,
    /// Wall-clock seconds of the whole run.
    pub seconds: f64,
    /// CPU seconds of the whole process, user and system.
    pub cpu_seconds: f64,
    /// Stages in order.
    pub stages: Vec<Stage>,
    /// How bytes were moved.
    pub io: IoReceipt,
    /// What memory was used.
    pub memory: MemoryReceipt,
    /// The most scratch space in use at once, in bytes.
    pub scratch_peak_bytes: u64,
    /// Input bytes that a resumed run did not have to read again.
    pub resumed_bytes: u64,
    /// Output bytes that a resumed run did not have to write again.
    pub resumed_output_bytes: u64,
    /// What was said before the run.
    pub plan: Option<Plan>,
    /// What each node did, if there were several.
    #[serde(default)]
    pub nodes: Vec<NodeShare>,
    /// Why each attempt before this one came to nothing, if nodes failed.
    #[serde(default)]
    pub failed: Vec<String>,
    /// What a partition made.
    #[serde(flatten)]
    pub partition: Option<PartitionReceipt>,
}
