//! Messages of a check on several nodes, between the client and each node.
//!
//! ```text
//! client:  Check(CheckShare)                              end
//! node:                         Progress, ...   Done      end
//! ```

use serde::{Deserialize, Serialize};

use crate::{JobVolume, KeyPart, PieceEnd, Proof, RecordForm, hex};

/// A request to a node to check its own files, a range of a table, or a share of files that all nodes see, as one piece
/// of the sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckShare {
    /// Shell patterns, tables, or paths of shared files, as strings with escapes.
    pub inputs: Vec<String>,
    /// The share, if all nodes see the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedFiles>,
    /// The layout of the records.
    #[serde(flatten)]
    pub layout: RecordForm,
    /// The parts of the key.
    pub keys: Vec<KeyPart>,
}

/// A node's share of files that all nodes see: pages that follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFiles {
    /// The volume that they are in, if they are in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<JobVolume>,
    /// The number of this share, from 0.
    pub index: usize,
    /// The number of shares.
    pub count: usize,
}

/// A message of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckSaid {
    /// The bytes that are checked, and the bytes in all.
    Progress(u64, u64),
    /// The result, when all of it is checked.
    Done(Box<Examined>),
}

/// The result of checking a piece of the sequence in one place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Examined {
    /// The proof of the whole records.
    pub proof: Proof,
    /// Sum of the CRC-32 of each of them.
    #[serde(with = "hex")]
    pub crc_sum: u128,
    /// Index of the first record that is smaller than the one before it.
    pub first_unordered: Option<u64>,
    /// The first and the last of them.
    pub ends: [PieceEnd; 2],
    /// The end of a record that began before the piece.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "hex::bytes")]
    pub head: Vec<u8>,
    /// The start of a record that ends after the piece.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "hex::bytes")]
    pub open: Vec<u8>,
    /// The lengths in bytes of the files of a share, which are the same for all nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<u64>,
}
