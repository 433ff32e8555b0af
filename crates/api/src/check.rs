//! Messages of a check on several nodes, between the client and each node.
//!
//! ```text
//! client:  Check(CheckShare)                              end
//! node:                         Progress, ...   Done      end
//! ```

use serde::{Deserialize, Serialize};

use crate::{PieceEnd, Proof, hex};

/// A request to a node to check its own files, or a range of a table, as one piece of the sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckShare {
    /// Shell patterns, or tables, as strings with escapes.
    pub inputs: Vec<String>,
    /// Bytes of a record; none means lines.
    pub record: Option<u32>,
    /// Whether records begin with their length; then there is no `record`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefixed: bool,
    /// The parts of the key: offset, length, and whether it is descending.
    pub keys: Vec<(u32, u32, bool)>,
}

/// A message of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CheckSaid {
    /// The bytes that are checked, and the bytes in all.
    Progress(u64, u64),
    /// The result, when all of it is checked.
    Done(Box<Examined>),
}

/// The result of checking whole records in one place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Examined {
    /// The proof of the records.
    pub proof: Proof,
    /// Sum of the CRC-32 of each record.
    #[serde(with = "hex")]
    pub crc_sum: u128,
    /// Index of the first record that is smaller than the one before it.
    pub first_unordered: Option<u64>,
    /// The first and the last record.
    pub ends: [PieceEnd; 2],
}
