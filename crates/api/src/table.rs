//! Reports about tables.

use serde::{Deserialize, Serialize};

/// A server of tables that is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableServer {
    /// Where Redis clients connect: `ADDRESS:PORT` or `unix:PATH`.
    pub resp: String,
    /// Bytes for records and their index.
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
    /// The most records of a bucket; a larger one is split.
    pub capacity: u64,
    /// The most bytes of keys and values of a bucket; a larger one is split.
    pub capacity_bytes: u64,
    /// The node that had the first bucket.
    pub home: String,
    /// Its parity, as `M+K`: K parity buckets for each M buckets. Without it, buckets end with their nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity: Option<String>,
    /// The form of its records, if it was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<TableForm>,
    /// Whether its nodes have an index of it, whose pages lead clients to its buckets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub index: bool,
    /// What a Redis client made it for; `None` if no Redis client has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<TableKind>,
}

/// What a table is to Redis clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableKind {
    /// A hash, or the keys that have strings.
    Hash,
    /// A sorted set.
    Sorted {
        /// The score of all its members, as text.
        score: String,
    },
}

/// The form of the records of a loaded table. The bytes beside the key, in order, are the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableForm {
    /// The bytes of a record.
    pub record_bytes: u32,
    /// The byte of a record at which its key begins.
    pub key_offset: u32,
    /// The bytes of a key.
    pub key_bytes: u32,
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableLoaded {
    /// The table.
    pub table: String,
    /// The records that were loaded.
    pub records: u64,
    /// The records that were left out because others have their keys.
    pub dropped: u64,
    /// The buckets that have the records.
    pub buckets: u64,
    /// The nodes that have the buckets.
    pub nodes: u64,
}

/// The tables of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableList {
    /// The tables, sorted by name.
    pub tables: Vec<TableEntry>,
    /// Tables that are being dropped: not all nodes have confirmed yet that they refuse their ids. Their names stay
    /// taken until then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropping: Vec<TableEntry>,
}

/// A node's share of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShare {
    /// The node.
    pub node: String,
    /// Its buckets, in order.
    pub buckets: Vec<TableBucket>,
    /// Bytes in use for the records of all tables and their indexes.
    pub memory_used_bytes: u64,
    /// The limit of these bytes.
    pub memory_bytes: u64,
    /// The last transfer of its buckets to another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_move: Option<TableMove>,
    /// The buckets and parity buckets that it has of the table's groups, if the table has parity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<TableHeld>,
    /// The pages that it has of the table's index, by level: those of the first lead to buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub index_pages: Vec<u64>,
    /// Intervals of keys whose changes may be lost because another node failed, each with its reason.
    pub losses: Vec<String>,
    /// Datagrams with requests that the node has received since it was started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub received_datagrams: u64,
    /// Datagrams that the node has dropped since it was started, because no client of a table had sent them, or
    /// because they had arrived before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_datagrams: u64,
    /// What clients have multicast, if one has asked the node since it was started to receive that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<TableMulticast>,
}

/// What a node has received in the multicast group of its cluster since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMulticast {
    /// The address and port of the group; empty if the node could not join it.
    pub group: String,
    /// Datagrams that the node has received.
    pub received: u64,
    /// Datagrams that it has dropped, because no client of a table had sent them, or because they had arrived before;
    /// and those that it has refused, because the client may not change records.
    pub dropped: u64,
    /// Why the node receives nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Records of a table that were moved to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMove {
    /// The node that has them now.
    pub to: String,
    /// Their number.
    pub records: u64,
    /// From the answer of that node that it has room, to the answer that it has them all.
    pub milliseconds: u64,
}

/// A bucket or parity bucket of a group, as its node has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableHeld {
    /// The group.
    pub group: u64,
    /// Its place in the group.
    pub index: u8,
    /// Which occupant of that place it is.
    pub incarnation: u64,
    /// Whether it is not being built, and may serve.
    pub is_complete: bool,
}

/// A bucket of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableBucket {
    /// Its first key, in hexadecimal; empty for the beginning.
    pub from: String,
    /// The exclusive upper bound of its keys, in hexadecimal; `None` at the end.
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
    /// The share of each node that could be reached.
    pub nodes: Vec<TableShare>,
    /// Nodes that could not be reached, each with the reason.
    pub unreachable: Vec<String>,
    /// Intervals of keys that no reachable node has, as `FROM..TO`.
    pub missing: Vec<String>,
    /// The groups of buckets, if the table has parity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TableGroup>,
}

/// The groups of a table with parity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableGroups {
    /// The groups.
    pub groups: Vec<TableGroup>,
}

/// A group of buckets with their parity buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableGroup {
    /// Its number.
    pub id: u64,
    /// Its buckets; the parity buckets are last. `None` for a bucket that is not there.
    pub seats: Vec<Option<TableSeat>>,
}

/// A bucket of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSeat {
    /// The node that has it.
    pub node: String,
    /// Which occupant of its place it is.
    pub incarnation: u64,
    /// Whether it is a parity bucket.
    pub is_parity: bool,
    /// Whether other buckets can be recovered with it: its node has said so since it was asked for this report.
    pub is_complete: bool,
}

/// A record of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    /// Its key, in hexadecimal.
    pub key: String,
    /// Its value, in hexadecimal.
    pub value: String,
}
