//! The cluster file, and what nodes and their clients say to each other about control.

use serde::{Deserialize, Serialize};

/// What a cluster is: kept as `cluster.json` beside each identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Version of this format: 1.
    pub format: u32,
    /// What its owner calls it.
    pub name: String,
    /// 32 hexadecimal digits.
    pub id: String,
    /// Grows with every change of the hosts.
    pub epoch: u64,
    /// How payloads travel.
    pub links: Links,
    /// The hosts.
    pub hosts: Vec<ClusterHost>,
    /// Those that were dropped, whose certificates are refused.
    pub dropped: Vec<DroppedHost>,
}

/// How payloads travel between hosts that have proved who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Links {
    /// As TLS records.
    Sealed,
    /// As they are, for networks that are trusted.
    Clear,
}

/// A host of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterHost {
    /// Its name, which its certificate carries.
    pub name: String,
    /// Where its node listens: a name or an address, and a port.
    pub address: String,
    /// The node's id.
    pub id: String,
    /// What it is there for; free words.
    pub roles: Vec<String>,
    /// Directories for data.
    pub data: Vec<String>,
    /// The most memory that a share of a job has there, if there is less than the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A host that is of the cluster no longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DroppedHost {
    /// Its name then.
    pub name: String,
    /// The id whose certificates are refused.
    pub id: String,
    /// The epoch that began without it.
    pub epoch: u64,
}
