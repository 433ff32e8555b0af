//! A line of a node's audit log.

use serde::{Deserialize, Serialize};

/// A request to a node, while it runs or after it ended. Environment, input and output are never logged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditLine {
    /// When it ended or, while it runs, when it began, in seconds since 1970.
    pub time: u64,
    /// Name and address of the peer, or only the address if it did not authenticate.
    pub peer: String,
    /// The peer's id, if it proved one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Whether it is a node or a client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// The kind of request.
    pub what: String,
    /// The job's id, the same on all nodes that have a part in it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// For a relayed request, the other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// Its arguments: the first bytes of a command, the ends of a transfer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// How it ended, or `running`.
    pub ended: String,
    /// How long it took.
    pub seconds: f64,
    /// Bytes of a command's output, or that a transfer moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}
