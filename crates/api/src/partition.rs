//! The part of a receipt that only a partition has.

use serde::{Deserialize, Serialize};

use crate::hex;

/// Which part a record belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionPick {
    /// By the range of its key: parts of about equal size, which follow each other in order.
    #[default]
    Range,
    /// By a hash of its key: equal keys go to one part.
    Hash,
    /// In turn.
    Robin,
}

impl PartitionPick {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PartitionPick::Range => "range",
            PartitionPick::Hash => "hash",
            PartitionPick::Robin => "robin",
        }
    }
}

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// Its name.
    pub path: String,
    /// The number of records.
    pub records: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Sum mod 2^128 of a 128-bit hash of each record.
    #[serde(with = "hex")]
    pub checksum: u128,
}

/// The part of a receipt about the parts of a partition. Invariant: out = in over all parts together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartitionReceipt {
    /// `range`, `hash` or `robin`.
    pub pick: String,
    /// The parts in order.
    pub parts: Vec<PartReceipt>,
    /// By how much the largest part exceeds the mean number of bytes, as a fraction of the mean.
    pub spread: f64,
    /// Bytes of the inputs that were read for the sample.
    pub sampled_bytes: u64,
}

impl PartitionReceipt {
    /// The receipt for these parts, in the order of their numbers.
    pub fn new(pick: PartitionPick, parts: Vec<PartReceipt>, sampled_bytes: u64) -> PartitionReceipt {
        let largest = parts.iter().map(|part| part.file_bytes).max().unwrap_or(0);
        let mean = parts.iter().map(|part| part.file_bytes).sum::<u64>() as f64 / parts.len() as f64;
        let spread = if mean > 0.0 { largest as f64 / mean - 1.0 } else { 0.0 };
        PartitionReceipt { pick: pick.name().into(), parts, spread, sampled_bytes }
    }
}
