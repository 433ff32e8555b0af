//! The reports of `check` and `doctor`.

use serde::{Deserialize, Serialize};

use crate::{GrownInputs, Proof, hex};

/// The result of `check` for files that form one sorted sequence.
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
    /// The files that grew while they were read, if any did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown: Option<GrownInputs>,
    /// The result of each node, in order, if the files are on nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeCheck>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// The result of `check` for the files of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeCheck {
    /// The host.
    pub host: String,
    /// The index of its first record in the whole sequence.
    pub from: u64,
    /// Proof of its files.
    pub proof: Proof,
}

/// The severity of a finding.
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

/// A finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The subject: `io_uring`, `direct I/O`, `open files`, ...
    pub name: String,
    /// The severity.
    pub verdict: Verdict,
    /// The observation, with numbers.
    pub seen: String,
    /// The remedy; empty if it is good.
    pub remedy: String,
}

/// The findings about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// One finding for each subject.
    pub findings: Vec<Finding>,
}
