//! The cluster file, and messages between nodes and clients about it.

use serde::{Deserialize, Serialize};

/// The description of a cluster: `cluster.json` in each identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFile {
    /// Version of this format: 2; 1 was not signed.
    pub format: u32,
    /// Its name.
    pub name: String,
    /// 32 hexadecimal digits.
    pub id: String,
    /// Grows with every change of hosts, clients or their keys.
    pub epoch: u64,
    /// The encryption of payloads.
    pub links: Links,
    /// The hosts.
    pub hosts: Vec<ClusterHost>,
    /// People and programs that may send requests to the hosts.
    #[serde(default)]
    pub clients: Vec<ClusterClient>,
    /// The silence of a peer in milliseconds after which it is considered dead; 5,000 if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_ms: Option<u64>,
    /// Dropped hosts and clients. The oldest are forgotten, and then refused because they are not listed.
    pub dropped: Vec<DroppedHost>,
}

/// The encryption of payloads between authenticated hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Links {
    /// As TLS records.
    Sealed,
    /// Not encrypted, as until version 0.1. Refused, because nothing proves that payloads come from the peer.
    Clear,
}

/// A host of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Its roles; any names.
    pub roles: Vec<String>,
    /// Directories for data.
    pub data: Vec<String>,
    /// The most memory of a participant there, if it is less than the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The port on which its node answers Redis clients, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp: Option<u16>,
}

/// A person or a program that may send requests to the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterClient {
    /// Its name, which its certificate carries; no host has it.
    pub name: String,
    /// The client's id.
    pub id: String,
    /// The SHA-256 of the public key in its certificate: 64 hexadecimal digits.
    pub key: String,
    /// Its rights.
    pub may: May,
}

/// The rights of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum May {
    /// Anything.
    #[default]
    All,
    /// Read status, jobs, metrics, tables and volumes, and change nothing.
    Status,
}

/// A host or a client that no longer belongs to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedHost {
    /// Its former name.
    pub name: String,
    /// The id whose certificates are refused.
    pub id: String,
    /// The first epoch without it.
    pub epoch: u64,
}
