//! The messages between clients and servers of tables.
//!
//! ```text
//! client --Requests--> server --Requests, path--> server that has the records
//! client <--Replies--- server <--Replies, path----
//! ```
//!
//! Model: a message carries many requests of one client to one table. A server that does not have the records forwards
//! them, and adds its name to the path on which the replies return, so a client needs no link to every server. Replies
//! say where the visited buckets are: one adjustment of the client's image for each message. Transfers move records
//! between servers in numbered pieces. Each piece is sent again until it is acknowledged.
//! Invariant: no key or value exceeds the limits of a bucket; malformed messages are refused.

use std::sync::Arc;

use thalweg_base::codec::{choice, decode, record};

use super::image::{Address, Element};
use super::index_message::{Descent, IndexNote, IndexPage};
use super::interval::{Bytes, Interval, Point};
use super::journal::{ClientId, Noted};
use super::parity::message::{ParityMessage, Seat, Shape};
use super::records::Records;
use crate::condition::{Condition, ConditionError};
use crate::slab::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The most servers that forward a request, one after the other. A retry starts from what the client has learnt since.
pub(crate) const HOPS_MAX: usize = 8;

/// The keys by which a page says where the next pages begin.
pub(crate) const CUTS: usize = 3;

/// The number of a table, which no other table ever gets.
pub(crate) type TableId = u64;

/// The properties of a table, which all its servers know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) id: TableId,
    /// The most records of a bucket before it is split.
    pub(crate) capacity: u64,
    /// The most bytes of keys and values of a bucket before it is split.
    pub(crate) capacity_bytes: u64,
    /// How the table survives failures of servers, if it does.
    pub(crate) parity: Option<Shape>,
}

/// An operation on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Inserts a record, if there is none with this key.
    Insert {
        /** Its key. */
        key: Bytes,
        /** Its value. */
        value: Bytes,
    },
    /// Inserts a record, or replaces the one with this key.
    Upsert {
        /** Its key. */
        key: Bytes,
        /** Its value. */
        value: Bytes,
    },
    /// Replaces the value, if there is a record with this key.
    Update {
        /** Its key. */
        key: Bytes,
        /** Its new value. */
        value: Bytes,
    },
    /// Deletes the record with this key, if there is one.
    Delete {
        /** Its key. */
        key: Bytes,
    },
    /// Reads the value of this key.
    Get {
        /** The key. */
        key: Bytes,
    },
    /// Sets or deletes the value of a key, if its present value, or absence, is the expected one.
    CompareAndSet {
        /** The key. */
        key: Bytes,
        /** What it has to be. */
        expected: Option<Bytes>,
        /** What it becomes. */
        value: Option<Bytes>,
    },
}

/// The result of an operation on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The operation was done.
    Done,
    /// Nothing was changed: there is a record with this key.
    Exists,
    /// Nothing was changed: there is no record with this key.
    Missing,
    /// Nothing was changed: the present value, if any, is not the expected one.
    Differs(Option<Bytes>),
    /// The value of the key, if it has one.
    Value(Option<Bytes>),
}

/// A change of which buckets there are and which server has them. One that is repeated has no further effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrange {
    /// Makes a bucket begin at this key, on a server, or on the first that has room.
    Split {
        /** The key. */
        key: Bytes,
        /** The server. */
        to: Option<Address>,
    },
    /// Makes no bucket begin at this key: the one that does is merged with the one before it.
    Merge {
        /** The key. */
        key: Bytes,
    },
    /// Moves the bucket with this key to a server.
    Move {
        /** The key. */
        key: Bytes,
        /** The server. */
        to: Address,
    },
}

/// A request to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    Record(Operation),
    Scan(Scan),
    Arrange(Arrange),
}

/// A request for the records of a range in order, or for their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) interval: Interval,
    pub(crate) is_descending: bool,
    pub(crate) what: What,
    /// The most records that are returned.
    pub(crate) limit: u64,
    /// The text of a condition that values must meet; see condition.rs.
    pub(crate) condition: Option<Bytes>,
    /// The key from which on the client will ask for more, if that is not the end of the page.
    pub(crate) rest: Option<Bytes>,
}

/// Which parts of records a scan returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Records,
    Keys,
    Count,
}

/// A part of the answer to a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// Exactly the keys of this interval were examined. It begins where the scan does, or ends there if it descends.
    pub(crate) covered: Interval,
    pub(crate) records: Records,
    pub(crate) count: u64,
    /// Keys that cut the records of the bucket from the rest of the scan on into pages, so that the client can ask for
    /// several pages at a time. Fewer than [`CUTS`] if the bucket has fewer pages.
    pub(crate) cuts: Vec<Bytes>,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Answer),
    Page(Page),
    Refused(Refused),
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The memory of this server is full.
    Full(Address),
    /// This server neither has these records nor knows which does. It may have been restarted since it had them.
    Lost(Address),
    /// The server with the records cannot be reached.
    Unreachable(Address),
    /// This server has too many answers to send or to store at the moment. The request may be sent again.
    Busy(Address),
    /// The key or the value is too long.
    Long,
    /// The client may only read.
    ReadOnly,
    /// The change of buckets has begun; asked again, the server says when it is done.
    Underway(Address),
    /// The server, or every other one if none is named, has no room for the bucket, or cannot be reached.
    NoRoom(Option<Address>),
    /// The server has the bucket already.
    Here(Address),
    /// The request was forwarded too often. The client has learnt from this answer, so it may ask again.
    Far(Address),
    /// The table was dropped.
    Dropped,
}

/// Requests with their numbers.
pub(crate) type Asks = Vec<(u64, Arc<Ask>)>;

/// Requests of a client to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) table: TableId,
    pub(crate) client: ClientId,
    /// The servers that have forwarded the requests.
    pub(crate) path: Vec<Address>,
    /// The buckets that the requests have visited.
    pub(crate) visited: Vec<Element>,
    /// Whether all servers get them, so that only the one that has the keys answers.
    pub(crate) is_to_all: bool,
    /// How they find the bucket.
    pub(crate) descent: Descent,
    /// The client has the answers to all requests below this number.
    pub(crate) done_below: u64,
    pub(crate) asks: Asks,
}

/// Replies to requests of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replies {
    pub(crate) table: TableId,
    pub(crate) client: ClientId,
    /// The servers on the way back to the client, the next one last.
    pub(crate) path: Vec<Address>,
    pub(crate) adjustment: Vec<Element>,
    pub(crate) outcomes: Vec<(u64, Outcome)>,
    /// If the requests came through the index, the pages that they passed, the lowest first.
    pub(crate) trace: Option<Vec<IndexPage>>,
}

/// The id of a transfer of records to another server: the run of the sender, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransferId {
    pub(crate) run: u64,
    pub(crate) number: u64,
}

/// A part of the records of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) id: TransferId,
    /// The run of the receiver that has room. A later run must not take a late copy of what the earlier one has passed on.
    pub(crate) run: u64,
    pub(crate) number: u64,
    /// Keys with their values; without a value, the record was deleted.
    pub(crate) changes: Vec<(Bytes, Option<Bytes>)>,
    /// Only in the last piece: what the receiver owns from now on.
    pub(crate) last: Option<HandOver>,
}

/// A bucket that moves to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) interval: Interval,
    pub(crate) epoch: u64,
    pub(crate) journal: Vec<Noted>,
    /// The owners of the keys right before and after the interval, so that the receiver can forward requests to them.
    pub(crate) neighbours: Vec<Element>,
    /// Whether the receiver merges the bucket with the one before it, if it has that.
    pub(crate) is_to_merge: bool,
    /// Whether its first key was chosen by a user, so that only users merge it with the one before it.
    pub(crate) is_pinned: bool,
    /// The seat that the records leave, if the table has parity.
    pub(crate) seat: Option<Seat>,
}

/// The bucket that is to be merged with the one before it. It says that it has no records if they are to be merged
/// whatever their sizes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Underfull {
    pub(crate) from: Bytes,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Requests(Requests),
    Replies(Replies),
    /// Asks a server for the intervals of its buckets of a table.
    Where {
        table: TableId,
        client: ClientId,
    },
    /// Asks a server to reserve memory for a bucket of `bytes` bytes; if the bucket is underfull, only if the server
    /// has the one before it, and both together are small enough.
    Reserve {
        id: TransferId,
        spec: Spec,
        bytes: u64,
        underfull: Option<Underfull>,
    },
    /// Memory is reserved, in this run of the server.
    Room {
        id: TransferId,
        run: u64,
    },
    /// There is no room for the bucket.
    NoRoom {
        id: TransferId,
    },
    /// The transfer was cancelled, or both sides have completed it.
    Release {
        id: TransferId,
    },
    /// The transfer is released.
    Released {
        id: TransferId,
    },
    Piece(Piece),
    /// The piece with this number has arrived.
    Taken {
        id: TransferId,
        number: u64,
    },
    /// The transfer is not known in this run of the server, which has none of its records.
    Unknown {
        id: TransferId,
        run: u64,
    },
    /// About the index of a table.
    Index {
        table: TableId,
        note: IndexNote,
    },
    Parity(ParityMessage),
    /// From the registrar: remove what the server has of a table, and refuse its id from now on.
    End {
        table: TableId,
        round: u64,
    },
    /// To the registrar: the server refuses the table, in this run. It alone had these keys of it until it did.
    Ended {
        table: TableId,
        round: u64,
        run: u64,
        had: Vec<Interval>,
    },
    /// Asks a node for a session of datagrams of at most so many bytes.
    OpenDatagrams {
        client: ClientId,
        bytes: u32,
    },
    /// The session of datagrams, and the UDP port of the node.
    Datagrams {
        session: u64,
        port: u32,
    },
    /// Asks a node to receive what the client multicasts: the secret of its datagrams, in place of an earlier one.
    OpenMulticast {
        secret: Bytes,
    },
    /// The session of that secret, and the multicast group: its address and port.
    Multicast {
        session: u64,
        group: u32,
        port: u32,
    },
    /// Asks who receives what a client multicasts in this session; a node returns it.
    Probe {
        session: u64,
    },
}

/// The destination of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum To {
    Server(Address),
    /// The client that is named in the replies.
    Client,
    Registrar,
}

/// Messages to send.
pub(crate) type Outbox = Vec<(To, Message)>;

record!(Spec { id, capacity, capacity_bytes, parity });
record!(Scan { interval, is_descending, what, limit, condition, rest });
record!(Page { covered, records, count, cuts });
record!(Requests { table, client, path, visited, is_to_all, descent, done_below, asks });
record!(Replies { table, client, path, adjustment, outcomes, trace });
record!(TransferId { run, number });
record!(Piece { id, run, number, changes, last });
record!(HandOver { interval, epoch, journal, neighbours, is_to_merge, is_pinned, seat });
record!(Underfull { from, records, bytes });
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
choice!(Ask { 0 => Record { 0: operation }, 1 => Scan { 0: scan }, 2 => Arrange { 0: arrange } });
choice!(Arrange {
    0 => Split { key: key, to: to },
    1 => Merge { key: key },
    2 => Move { key: key, to: to },
});
choice!(What { 0 => Records {}, 1 => Keys {}, 2 => Count {} });
choice!(Outcome { 0 => Answer { 0: answer }, 1 => Page { 0: page }, 2 => Refused { 0: why } });
choice!(Refused {
    0 => Full { 0: server },
    1 => Lost { 0: server },
    2 => Unreachable { 0: server },
    3 => Busy { 0: server },
    4 => Long {},
    5 => ReadOnly {},
    6 => Underway { 0: server },
    7 => NoRoom { 0: server },
    8 => Here { 0: server },
    9 => Far { 0: server },
    10 => Dropped {},
});
choice!(Message {
    0 => Requests { 0: requests },
    1 => Replies { 0: replies },
    2 => Reserve { id: id, spec: spec, bytes: bytes, underfull: underfull },
    3 => Room { id: id, run: run },
    4 => Release { id: id },
    5 => Piece { 0: piece },
    6 => Taken { id: id, number: number },
    7 => Unknown { id: id, run: run },
    8 => Where { table: table, client: client },
    9 => Index { table: table, note: note },
    10 => Parity { 0: message },
    11 => Released { id: id },
    12 => NoRoom { id: id },
    13 => End { table: table, round: round },
    14 => Ended { table: table, round: round, run: run, had: had },
    20 => OpenDatagrams { client: client, bytes: bytes },
    21 => Datagrams { session: session, port: port },
    22 => OpenMulticast { secret: secret },
    23 => Multicast { session: session, group: group, port: port },
    24 => Probe { session: session },
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

    /// Whether the operation changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Operation::Get { .. })
    }

    /// The new value of the key.
    pub(crate) fn value(&self) -> &[u8] {
        match self {
            Operation::Insert { value, .. }
            | Operation::Upsert { value, .. }
            | Operation::Update { value, .. } => value,
            Operation::CompareAndSet { value, .. } => value.as_deref().unwrap_or_default(),
            Operation::Delete { .. } | Operation::Get { .. } => &[],
        }
    }

    /// The bytes of key and value.
    pub(crate) fn bytes(&self) -> usize {
        self.key().len() + self.value().len()
    }

    /// Whether key and value are within their limits.
    fn is_sound(&self) -> bool {
        self.key().len() <= KEY_BYTES_MAX && self.value().len() <= VALUE_BYTES_MAX
    }
}

impl Arrange {
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Arrange::Split { key, .. } | Arrange::Merge { key } | Arrange::Move { key, .. } => key,
        }
    }
}

impl Scan {
    /// The condition that values must meet, if there is one.
    pub(crate) fn condition(&self) -> Result<Option<Condition>, ConditionError> {
        self.condition.as_deref().map(Condition::parse).transpose()
    }
}

impl Ask {
    /// The point whose bucket answers the request.
    pub(crate) fn point(&self) -> Point<'_> {
        match self {
            Ask::Record(operation) => Point::At(operation.key()),
            Ask::Scan(Scan { interval, is_descending: true, .. }) => Point::Before(&interval.to),
            Ask::Scan(Scan { interval, .. }) => Point::At(&interval.from),
            Ask::Arrange(arrange) => Point::At(arrange.key()),
        }
    }

    /// Whether the request is within all limits and well-formed.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Ask::Record(operation) => operation.is_sound(),
            Ask::Scan(scan) => !scan.interval.is_empty() && scan.limit > 0 && scan.condition().is_ok(),
            Ask::Arrange(arrange) => arrange.key().len() <= KEY_BYTES_MAX,
        }
    }

    /// Whether the request changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Ask::Record(operation) => operation.is_read(),
            Ask::Scan(_) => true,
            Ask::Arrange(_) => false,
        }
    }
}

impl Outcome {
    /// The bytes of keys and values in the request.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Outcome::Answer(Answer::Value(Some(value)) | Answer::Differs(Some(value))) => value.len(),
            Outcome::Page(page) => page.records.bytes(),
            _ => 0,
        }
    }
}

impl Message {
    /// Decodes a message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        decode(bytes).filter(Message::is_sound)
    }

    /// Whether the message is within the limits of requests and records.
    fn is_sound(&self) -> bool {
        match self {
            Message::Requests(requests) => {
                requests.path.len() <= HOPS_MAX && requests.visited.len() <= HOPS_MAX
            }
            Message::Replies(Replies { trace: Some(trace), .. }) => {
                trace.len() <= HOPS_MAX && trace.iter().all(IndexPage::is_sound)
            }
            Message::Index { note, .. } => note.is_sound(),
            Message::Reserve { spec, .. } => spec.capacity > 0 && spec.capacity_bytes > 0,
            Message::Piece(piece) => {
                let fits = |(key, value): &(Bytes, Option<Bytes>)| {
                    key.len() <= KEY_BYTES_MAX
                        && value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
                };
                piece.changes.iter().all(fits)
                    && piece.last.as_ref().is_none_or(|last| !last.interval.is_empty())
            }
            Message::Parity(message) => message.is_sound(),
            _ => true,
        }
    }
}
