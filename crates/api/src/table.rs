//! What is said about tables.

use serde::{Deserialize, Serialize};

/// A server of tables that is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableServer {
    /// Where Redis clients connect: `ADDRESS:PORT` or `unix:PATH`.
    pub resp: String,
    /// Bytes for records and what orders them.
    pub memory_bytes: u64,
    /// Whether clients have to give a password.
    pub password: bool,
}

/// A table on the nodes of a cluster, as its registrar knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    /// Its name.
    pub name: String,
    /// Its id, which no other table ever has: 16 hexadecimal digits.
    pub id: String,
    /// Records of a bucket; with more it is split.
    pub capacity: u64,
    /// Bytes of keys and values of a bucket, likewise.
    pub capacity_bytes: u64,
    /// The node that had the first bucket.
    pub home: String,
}

/// The tables of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableList {
    /// The tables, sorted by name.
    pub tables: Vec<TableEntry>,
}

/// What a node has of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShare {
    /// The node.
    pub node: String,
    /// Its buckets, in order.
    pub buckets: Vec<TableBucket>,
    /// Bytes in use for records of all tables and what orders them.
    pub memory_used_bytes: u64,
    /// The most bytes for them.
    pub memory_bytes: u64,
    /// Intervals of which changes may be lost because another node failed, each with its reason.
    pub losses: Vec<String>,
}

/// A bucket of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableBucket {
    /// Its first key, in hexadecimal; empty for the beginning.
    pub from: String,
    /// The key that all of its keys are below, in hexadecimal; none at the end.
    pub to: Option<String>,
    /// How often its keys have changed hands.
    pub epoch: u64,
    /// Its records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Whether records of it are on their way to another node.
    pub is_moving: bool,
}

/// The state of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// The table.
    pub table: TableEntry,
    /// Its records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// What each node has that could be asked.
    pub nodes: Vec<TableShare>,
    /// Nodes that could not be asked, each with the reason.
    pub unreachable: Vec<String>,
    /// Intervals that no node has that could be asked, as `FROM..TO`.
    pub missing: Vec<String>,
}

/// A record of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    /// Its key, in hexadecimal.
    pub key: String,
    /// Its value, in hexadecimal.
    pub value: String,
}

/// What became of a table that was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDropped {
    /// Nodes that could not be told, each with the reason. What they have of it is gone when they end.
    pub left: Vec<String>,
}
