//! The receipt of a partition.

use serde::{Deserialize, Serialize};

use crate::{Receipt, hex};

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// Its name.
    pub path: String,
    /// How many records.
    pub records: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Sum mod 2^128 of a 128-bit hash of each record.
    #[serde(with = "hex")]
    pub checksum: u128,
}

/// What a partition did: the receipt of the whole, whose law is out = in over all parts together, and each part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartitionReceipt {
    /// The whole.
    #[serde(flatten)]
    pub receipt: Receipt,
    /// `range`, `hash` or `robin`.
    pub pick: String,
    /// The parts in order.
    pub parts: Vec<PartReceipt>,
    /// How much more the largest part has than the mean, as a share of it; by bytes.
    pub spread: f64,
    /// Bytes of the inputs that were read for the sample.
    pub sampled_bytes: u64,
}
