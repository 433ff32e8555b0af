//! A line of a node's audit log.

use serde::{Deserialize, Serialize};

/// Something that somebody asked of a node: that it runs, or how it ended. No environment, no input and no output of it is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditLine {
    /// When it ended, or when it began of what is running, in seconds since 1970.
    pub time: u64,
    /// Who asked: name and address, or the address alone of one that proved nothing.
    pub peer: String,
    /// The peer's id, if it proved one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Whether it is a node or a client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// What was asked.
    pub what: String,
    /// The job's id, the same on all nodes that have a part in it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// Of what is asked of other hosts: which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// Its words: the first bytes of a command, the ends of a transfer.
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
