//! What clients and servers of tables say to each other.
//!
//! ```text
//! client --Requests--> server --Requests, path--> server that has the records
//! client <--Replies--- server <--Replies, path----
//! ```
//!
//! Model: a message carries many requests of one client to one table. A server that does not have the records forwards them and
//! adds its name to the path, by which the replies come back, so a client needs no link with every server. Replies carry where the
//! buckets are that were visited: one adjustment of the client's image for each message.
//! Transfers move records between servers in numbered pieces, each sent again until it is acknowledged.
//! Invariant: no key or value is longer than a bucket takes; what is malformed is refused.

use std::sync::Arc;

use thalweg_base::codec::{choice, decode, record};

use super::image::{Address, Element};
use super::interval::{Bytes, Interval, Point};
use super::journal::{ClientId, Noted};
use crate::condition::{Condition, ConditionError};
use crate::slab::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Servers that may forward a request, one after the other. Whoever asks again starts from what it has learnt.
pub(crate) const HOPS_MAX: usize = 8;

/// The number of a table, which no other table ever has.
pub(crate) type TableId = u64;

/// What every server of a table knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) id: TableId,
    /// Records of a bucket; with more it is split.
    pub(crate) capacity: u64,
    /// Bytes of keys and values of a bucket, likewise.
    pub(crate) capacity_bytes: u64,
}

/// An operation on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// A new record, if there is none with this key.
    Insert {
        /** Its key. */
        key: Bytes,
        /** Its value. */
        value: Bytes,
    },
    /// A record, in place of the one with this key, if there is one.
    Upsert {
        /** Its key. */
        key: Bytes,
        /** Its value. */
        value: Bytes,
    },
    /// Another value, if there is a record with this key.
    Update {
        /** Its key. */
        key: Bytes,
        /** Its new value. */
        value: Bytes,
    },
    /// No record with this key.
    Delete {
        /** Its key. */
        key: Bytes,
    },
    /// The value of this key.
    Get {
        /** The key. */
        key: Bytes,
    },
    /// Another value, or none, if it is this one, or there is none.
    CompareAndSet {
        /** The key. */
        key: Bytes,
        /** What it has to be. */
        expected: Option<Bytes>,
        /** What it becomes. */
        value: Option<Bytes>,
    },
}

/// What came of an operation on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// Nothing was changed: there is a record with this key.
    Exists,
    /// Nothing was changed: there is no record with this key.
    Missing,
    /// Nothing was changed: the value is another, or there is none.
    Differs(Option<Bytes>),
    /// The value of the key, if it has one.
    Value(Option<Bytes>),
}

/// What is asked of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    Record(Operation),
    Scan(Scan),
}

/// Records in order, or how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) interval: Interval,
    pub(crate) is_descending: bool,
    pub(crate) what: What,
    /// The most records.
    pub(crate) limit: u64,
    /// The text of a condition that values meet; see condition.rs.
    pub(crate) condition: Option<Bytes>,
}

/// What is wanted of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Records,
    Keys,
    Count,
}

/// A part of the answer to a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// All keys of this interval were looked at, and no others. It begins where the scan does, or ends there if it descends.
    pub(crate) covered: Interval,
    pub(crate) records: Vec<(Bytes, Bytes)>,
    pub(crate) count: u64,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Answer),
    Page(Page),
    Refused(Refused),
}

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The memory of this server is full.
    Full(Address),
    /// This server has no such records and does not know who has. It may have been restarted since it had them.
    Lost(Address),
    /// The server with the records cannot be reached.
    Unreachable(Address),
    /// This server has too much that it could be asked for again.
    Busy(Address),
    /// Key or value are too long.
    Long,
    /// The client may only read.
    ReadOnly,
}

/// Requests with their numbers.
pub(crate) type Asks = Vec<(u64, Arc<Ask>)>;

/// Requests of a client to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) table: TableId,
    pub(crate) client: ClientId,
    /// The servers that have forwarded them.
    pub(crate) path: Vec<Address>,
    /// Buckets that they have visited.
    pub(crate) visited: Vec<Element>,
    /// The client has the answers to all requests below this number.
    pub(crate) done_below: u64,
    pub(crate) asks: Asks,
}

/// Replies to requests of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replies {
    pub(crate) table: TableId,
    pub(crate) client: ClientId,
    /// The servers through which they still have to go, the next one last.
    pub(crate) path: Vec<Address>,
    pub(crate) adjustment: Vec<Element>,
    pub(crate) outcomes: Vec<(u64, Outcome)>,
}

/// The transfer of records from one server to another: the run of the sending server, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransferId {
    pub(crate) run: u64,
    pub(crate) number: u64,
}

/// Records on their way to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) id: TransferId,
    pub(crate) number: u64,
    /// Values of keys; without one the record was deleted.
    pub(crate) changes: Vec<(Bytes, Option<Bytes>)>,
    /// In the last piece: what the receiver has from now on.
    pub(crate) last: Option<HandOver>,
}

/// A bucket that changes hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) interval: Interval,
    pub(crate) epoch: u64,
    pub(crate) journal: Vec<Noted>,
    /// Who had what lies behind it, so that the receiver can forward requests there.
    pub(crate) behind: Option<Element>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Requests(Requests),
    Replies(Replies),
    /// Reply where your buckets of a table are.
    Where {
        table: TableId,
        client: ClientId,
    },
    /// Have room for a bucket of so many bytes.
    Reserve {
        id: TransferId,
        spec: Spec,
        bytes: u64,
    },
    /// There is room, in this run of the server.
    Room {
        id: TransferId,
        run: u64,
    },
    /// The transfer will not be, or is complete at both ends.
    Release {
        id: TransferId,
    },
    Piece(Piece),
    /// The piece of this number has arrived.
    Taken {
        id: TransferId,
        number: u64,
    },
    /// No such transfer is known in this run of the server: it has none of the records.
    Unknown {
        id: TransferId,
        run: u64,
    },
}

record!(Spec { id, capacity, capacity_bytes });
record!(Scan { interval, is_descending, what, limit, condition });
record!(Page { covered, records, count });
record!(Requests { table, client, path, visited, done_below, asks });
record!(Replies { table, client, path, adjustment, outcomes });
record!(TransferId { run, number });
record!(Piece { id, number, changes, last });
record!(HandOver { interval, epoch, journal, behind });
choice!(Operation {
    0 => Insert { key: key, value: value },
    1 => Upsert { key: key, value: value },
    2 => Update { key: key, value: value },
    3 => Delete { key: key },
    4 => Get { key: key },
    5 => CompareAndSet { key: key, expected: expected, value: value },
});
choice!(Answer {
    0 => Done {},
    1 => Exists {},
    2 => Missing {},
    3 => Differs { 0: value },
    4 => Value { 0: value },
});
choice!(Ask { 0 => Record { 0: operation }, 1 => Scan { 0: scan } });
choice!(What { 0 => Records {}, 1 => Keys {}, 2 => Count {} });
choice!(Outcome { 0 => Answer { 0: answer }, 1 => Page { 0: page }, 2 => Refused { 0: why } });
choice!(Refused {
    0 => Full { 0: server },
    1 => Lost { 0: server },
    2 => Unreachable { 0: server },
    3 => Busy { 0: server },
    4 => Long {},
    5 => ReadOnly {},
});
choice!(Message {
    0 => Requests { 0: requests },
    1 => Replies { 0: replies },
    2 => Reserve { id: id, spec: spec, bytes: bytes },
    3 => Room { id: id, run: run },
    4 => Release { id: id },
    5 => Piece { 0: piece },
    6 => Taken { id: id, number: number },
    7 => Unknown { id: id, run: run },
    8 => Where { table: table, client: client },
});

impl Operation {
    /// The key of the record.
    pub fn key(&self) -> &[u8] {
        match self {
            Operation::Insert { key, .. }
            | Operation::Upsert { key, .. }
            | Operation::Update { key, .. }
            | Operation::Delete { key }
            | Operation::Get { key }
            | Operation::CompareAndSet { key, .. } => key,
        }
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Operation::Get { .. })
    }

    /// The value that the key is to have.
    fn value(&self) -> &[u8] {
        match self {
            Operation::Insert { value, .. }
            | Operation::Upsert { value, .. }
            | Operation::Update { value, .. } => value,
            Operation::CompareAndSet { value, .. } => value.as_deref().unwrap_or_default(),
            Operation::Delete { .. } | Operation::Get { .. } => &[],
        }
    }

    /// Bytes of key and value.
    pub(crate) fn bytes(&self) -> usize {
        self.key().len() + self.value().len()
    }

    /// Whether key and value are within their bounds.
    fn is_sound(&self) -> bool {
        self.key().len() <= KEY_BYTES_MAX && self.value().len() <= VALUE_BYTES_MAX
    }
}

impl Scan {
    /// What values have to meet, if anything.
    pub(crate) fn condition(&self) -> Result<Option<Condition>, ConditionError> {
        self.condition.as_deref().map(Condition::parse).transpose()
    }
}

impl Ask {
    /// The place whose bucket answers it.
    pub(crate) fn point(&self) -> Point<'_> {
        match self {
            Ask::Record(operation) => Point::At(operation.key()),
            Ask::Scan(Scan { interval, is_descending: true, .. }) => Point::Before(&interval.to),
            Ask::Scan(Scan { interval, .. }) => Point::At(&interval.from),
        }
    }

    /// Whether it can be carried out at all.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Ask::Record(operation) => operation.is_sound(),
            Ask::Scan(scan) => !scan.interval.is_empty() && scan.limit > 0 && scan.condition().is_ok(),
        }
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Ask::Record(operation) => operation.is_read(),
            Ask::Scan(_) => true,
        }
    }
}

impl Outcome {
    /// Bytes of keys and values in it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Outcome::Answer(Answer::Value(Some(value)) | Answer::Differs(Some(value))) => value.len(),
            Outcome::Page(page) => page.records.iter().map(|(key, value)| key.len() + value.len()).sum(),
            _ => 0,
        }
    }
}

impl Message {
    /// What these bytes say.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        decode(bytes).filter(Message::is_sound)
    }

    /// Whether it stays within what servers may be asked.
    fn is_sound(&self) -> bool {
        match self {
            Message::Requests(requests) => {
                requests.path.len() <= HOPS_MAX && requests.visited.len() <= HOPS_MAX
            }
            Message::Reserve { spec, .. } => spec.capacity > 0 && spec.capacity_bytes > 0,
            Message::Piece(piece) => {
                let fits = |(key, value): &(Bytes, Option<Bytes>)| {
                    key.len() <= KEY_BYTES_MAX
                        && value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
                };
                piece.changes.iter().all(fits)
                    && piece.last.as_ref().is_none_or(|last| !last.interval.is_empty())
            }
            _ => true,
        }
    }
}
