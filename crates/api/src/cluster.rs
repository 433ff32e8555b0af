//! The cluster file, and what nodes and their clients say to each other about control.

use serde::{Deserialize, Serialize};

/// What a cluster is: kept as `cluster.json` beside each identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Version of this format: 2; 1 was not signed.
    pub format: u32,
    /// What its owner calls it.
    pub name: String,
    /// 32 hexadecimal digits.
    pub id: String,
    /// Grows with every change of hosts, clients or their keys.
    pub epoch: u64,
    /// How payloads travel.
    pub links: Links,
    /// The hosts.
    pub hosts: Vec<ClusterHost>,
    /// People and programs that may ask them.
    #[serde(default)]
    pub clients: Vec<ClusterClient>,
    /// Those that were dropped, hosts and clients; the oldest are forgotten, and refused because they are not listed.
    pub dropped: Vec<DroppedHost>,
}

/// How payloads travel between hosts that have proved who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Links {
    /// As TLS records.
    Sealed,
    /// As they were until 0.1: refused, because nothing proved that they came from the peer.
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
    /// The SHA-256 of the public key in its certificate: 64 hexadecimal digits.
    #[serde(default)]
    pub key: String,
    /// What it is there for; free words.
    pub roles: Vec<String>,
    /// Directories for data.
    pub data: Vec<String>,
    /// The most memory that a share of a job has there, if there is less than the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A person or a program that may ask the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterClient {
    /// Its name, which its certificate carries; no host has it.
    pub name: String,
    /// The client's id.
    pub id: String,
    /// The SHA-256 of the public key in its certificate: 64 hexadecimal digits.
    pub key: String,
    /// What it may ask.
    pub may: May,
}

/// What a client may ask of the hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum May {
    /// Anything.
    #[default]
    All,
    /// How they are and what runs on them, and nothing that changes it.
    Status,
}

/// A host or a client that is of the cluster no longer.
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
