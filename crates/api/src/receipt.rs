//! The receipt: what a run did, with proofs, and what the plan predicted.

use serde::{Deserialize, Serialize};

use crate::{NodeReceipt, PartitionReceipt, Plan, hex};

/// A summary of a stream of records, taken while all of it passed. The proofs of parts can be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Proof {
    /// The number of records.
    pub records: u64,
    /// Bytes of the records, without line terminators.
    pub bytes: u64,
    /// Sum mod 2^128 of a 128-bit hash of each record; the order does not matter.
    #[serde(with = "hex")]
    pub checksum: u128,
    /// Records that are greater than the next one.
    pub unordered: u64,
    /// Records with the same key as the one before.
    pub duplicates: u64,
}

/// One stage of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What it does: `sample`, `read+distribute`, `load+merge+write`, ...
    pub name: String,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The seconds that the plan predicted, if it did.
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
    /// A stage without traffic or waits.
    pub fn new(name: &str, seconds: f64) -> Stage {
        Stage { name: name.to_string(), seconds, ..Stage::default() }
    }

    /// Adds the traffic and waits of another stage, which may have run at the same time, so its seconds are not added.
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
    /// Why another back end was used than requested or expected, if so.
    pub fallback: Option<String>,
    /// Input bytes that came from the page cache.
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

/// The memory limit and the memory used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryReceipt {
    /// The limit: `--memory`.
    pub limit_bytes: u64,
    /// The peak resident size of the whole process, as the kernel counts it, whatever else a program with this library
    /// holds.
    pub peak_bytes: u64,
    /// Bytes in huge pages at the end of the work.
    pub huge_page_bytes: u64,
}

/// The inputs of a join, and what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sides {
    /// Proof of the left input.
    pub left: Proof,
    /// Proof of the right input.
    pub right: Proof,
    /// Output records with a right part.
    pub pairs: u64,
    /// Output records without a right part.
    pub unmatched: u64,
}

/// Inputs that grew while they were read. What counts is their length when they were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GrownInputs {
    /// How many files have grown.
    pub inputs: u64,
    /// By how many bytes, all together; these were not read.
    pub bytes: u64,
    /// How many of them ended in an incomplete record, which was left out.
    pub incomplete_records: u64,
    /// Bytes of the incomplete records.
    pub incomplete_bytes: u64,
}

impl GrownInputs {
    /// Those of two groups of inputs.
    pub fn and(self, other: GrownInputs) -> GrownInputs {
        GrownInputs {
            inputs: self.inputs + other.inputs,
            bytes: self.bytes + other.bytes,
            incomplete_records: self.incomplete_records + other.incomplete_records,
            incomplete_bytes: self.incomplete_bytes + other.incomplete_bytes,
        }
    }
}

/// What a run did. A verb succeeds only if its invariant holds between `input` and `output`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Receipt {
    /// The verb: `sort`, `shuffle`, `merge`, `join`, `gen`.
    pub verb: String,
    /// Proof of the input.
    pub input: Proof,
    /// Proof of the output.
    pub output: Proof,
    /// Proof of what `--unique` dropped.
    pub dropped: Proof,
    /// The sides of a join; `input` is their sum.
    #[serde(default)]
    pub sides: Option<Sides>,
    /// Bytes of the input files or streams, newlines included. 0 in receipts that are older than this field.
    #[serde(default)]
    pub input_file_bytes: u64,
    /// Bytes of the output file or stream, newlines included. 0 in receipts that are older than this field.
    #[serde(default)]
    pub output_file_bytes: u64,
    /// Whether checksums were taken. If not, proofs hold counts only.
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
    /// The memory used.
    pub memory: MemoryReceipt,
    /// The most scratch space in use at once, in bytes.
    pub scratch_peak_bytes: u64,
    /// Input bytes that a resumed run did not have to read again.
    pub resumed_bytes: u64,
    /// Output bytes that a resumed run did not have to write again.
    pub resumed_output_bytes: u64,
    /// The plan that was made before the run.
    pub plan: Option<Plan>,
    /// What each node did, if there were several.
    #[serde(default)]
    pub nodes: Vec<NodeReceipt>,
    /// Why each earlier attempt failed, if nodes failed.
    #[serde(default)]
    pub failed: Vec<String>,
    /// What the output lacks of the file that it replaced: attributes that could not be kept, and other names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_kept: Vec<String>,
    /// The inputs that grew while they were read, if any did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown: Option<GrownInputs>,
    /// The words of the command that asks for the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<String>,
    /// The parts of a partition.
    #[serde(flatten)]
    pub partition: Option<PartitionReceipt>,
}
