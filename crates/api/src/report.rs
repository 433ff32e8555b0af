//! Reports that are not about a transfer: what `check` found, what `doctor` found.

use serde::{Deserialize, Serialize};

use crate::{Proof, hex};

/// What `check` found in files that together are one sorted sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Proof of all files, in the order given.
    pub proof: Proof,
    /// Sum of the CRC-32 of each record, as the Sort Benchmark's validator computes it.
    #[serde(with = "hex")]
    pub crc_sum: u128,
    /// Index of the first record that is smaller than the one before it.
    pub first_unordered: Option<u128>,
    /// Whether all records are in order.
    pub ordered: bool,
    /// What each node had of it, in order, if the files are nodes'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeCheck>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// What `check` found in the files of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeCheck {
    /// The host.
    pub host: String,
    /// Index in the whole of its first record.
    pub from: u64,
    /// Proof of its files.
    pub proof: Proof,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, but slower or less than it could.
    Weak,
    /// Something that Thalweg wants is missing.
    Missing,
}

/// One thing that `doctor` looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What: `io_uring`, `direct I/O`, `open files`, ...
    pub name: String,
    /// How much it matters.
    pub verdict: Verdict,
    /// What was seen, with numbers.
    pub seen: String,
    /// What to do about it; empty if it is good.
    pub remedy: String,
}

/// What this machine offers and lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// One finding for each thing looked at.
    pub findings: Vec<Finding>,
}
