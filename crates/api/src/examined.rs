//! What is said about a check on several nodes, between whoever asked for it and each node.
//!
//! ```text
//! asks:  Check(CheckShare)                                              end
//! node:                     Said::Progress, ...   Said::Done       end
//! ```

use serde::{Deserialize, Serialize};

use crate::{PieceEnd, Proof, hex};

/// What a node is asked to check: files of its own, as one piece of the sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckShare {
    /// Patterns as in a shell, as words with escapes.
    pub inputs: Vec<String>,
    /// Bytes of a record; none means lines.
    pub record: Option<u32>,
    /// Whether records begin with their length; then there is no `record`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefixed: bool,
    /// The parts of the key: offset, length, and whether it sorts downwards.
    pub keys: Vec<(u32, u32, bool)>,
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CheckSaid {
    /// So many bytes are examined, of so many.
    Progress(u64, u64),
    /// All of it is examined.
    Done(Box<Examined>),
}

/// What was found in whole records that were examined in one place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Examined {
    /// Their proof.
    pub proof: Proof,
    /// Sum of the CRC-32 of each record.
    #[serde(with = "hex")]
    pub crc_sum: u128,
    /// Index of the first record that is smaller than the one before it.
    pub first_unordered: Option<u64>,
    /// The first and the last record.
    pub ends: [PieceEnd; 2],
}
