//! The messages about parity: between the registrar and servers, and between the buckets of a group.
//!
//! ```text
//! registrar --Probe, Group--> server             registrar <--Alive, Join, Commit, Vacate, Resolve-- server
//! data bucket --Changes--> parity bucket         data bucket <--Have-- parity bucket
//! new bucket --Pull--> bucket of its group       new bucket <--Lines-- bucket of its group
//! ```
//!
//! Model: a group has a number of seats, first those of its data buckets, then those of its parity buckets. An
//! *incarnation* is the number of an occupant of a seat, which no other occupant of any seat ever has; it fences off
//! the occupants before it. The *generation* of a group rises with each change of its seats.

use std::fmt;

use thalweg_base::codec::{choice, record};

use super::super::image::Address;
use super::super::interval::{Bytes, Interval};
use super::super::journal::Noted;
use super::super::message::{Spec, TableId, TransferId};
use super::field::{DATA_MAX, PARITY_MAX};
use super::lines::{LINE_BYTES_MAX, Rank};

/// The number of data buckets and of parity buckets in a group, written as `4+1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub(crate) data: u8,
    pub(crate) parity: u8,
}

impl Shape {
    /// The shape that a text such as `4+1` describes.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(text: &str) -> Result<Shape, String> {
        let shape = text.split_once('+').and_then(|(data, parity)| {
            Some(Shape { data: data.parse().ok()?, parity: parity.parse().ok()? })
        });
        shape.filter(Shape::is_sound).ok_or_else(|| {
            format!(
                "'{text}' is no parity; write M+K, such as 4+1: K parity buckets for M data buckets, with M from 1 to {DATA_MAX} and K from 1 to {PARITY_MAX}"
            )
        })
    }

    fn is_sound(&self) -> bool {
        (1..=DATA_MAX).contains(&self.data) && (1..=PARITY_MAX).contains(&self.parity)
    }

    /// The number of seats of a group, each on a server of its own.
    pub fn seats(self) -> usize {
        usize::from(self.data + self.parity)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

/// The number of a group, which no other group ever has.
pub(crate) type GroupId = u64;

/// A seat of a group, and its occupant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub(crate) group: GroupId,
    pub(crate) index: u8,
    pub(crate) incarnation: u64,
}

/// The occupant of a seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) server: Address,
    /// The run of the server, which loses its memory between two of them.
    pub(crate) run: u64,
    pub(crate) incarnation: u64,
    /// The incarnation that began with empty memory; the later ones have recovered its records.
    pub(crate) since: u64,
    /// Of a data bucket.
    pub(crate) bucket: Option<Placed>,
}

/// What is known about a data bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The transfer by which it came; the first one of a table has none.
    pub(crate) transfer: Option<TransferId>,
    /// Its keys. `None` while its records arrive, and after they have left.
    pub(crate) interval: Option<Interval>,
    pub(crate) epoch: u64,
}

impl Placed {
    /// Whether the records of the bucket have left.
    pub(crate) fn has_ended(&self) -> bool {
        self.epoch > 0 && self.interval.is_none()
    }

    /// Whether the bucket has all keys of a part.
    pub(crate) fn has(&self, part: &Interval) -> bool {
        self.interval.as_ref().is_some_and(|has| has.intersection(part) == *part)
    }
}

/// A group, as the registrar has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) generation: u64,
    pub(crate) spec: Spec,
    /// Data buckets, then parity buckets. `None` if nobody has the seat.
    pub(crate) seats: Vec<Option<Occupant>>,
}

impl Group {
    pub(crate) fn shape(&self) -> Shape {
        self.spec.parity.expect("only tables with parity have groups")
    }

    /// The parity buckets, with their numbers.
    pub(crate) fn parities(&self) -> impl Iterator<Item = (u8, &Occupant)> {
        let seats = self.seats.iter().skip(usize::from(self.shape().data));
        (0..).zip(seats).filter_map(|(i, seat)| Some((i, seat.as_ref()?)))
    }

    /// The data buckets, with their seats.
    pub(crate) fn data(&self) -> impl Iterator<Item = (u8, &Occupant)> {
        let seats = (0..self.shape().data).zip(&self.seats);
        seats.filter_map(|(i, seat)| Some((i, seat.as_ref()?)))
    }

    /// The occupant of a seat, if it has this incarnation.
    pub(crate) fn occupant(&self, seat: Seat) -> Option<&Occupant> {
        let occupant = self.seats.get(usize::from(seat.index))?.as_ref()?;
        (seat.group == self.id && occupant.incarnation == seat.incarnation).then_some(occupant)
    }

    /// The bucket that came, or is coming, by a transfer.
    pub(crate) fn received(&self, id: TransferId) -> Option<&Placed> {
        let mut buckets = self.seats.iter().flatten().filter_map(|occupant| occupant.bucket.as_ref());
        buckets.find(|placed| placed.transfer == Some(id))
    }

    /// The bucket of a seat that has one.
    pub(crate) fn bucket(&mut self, index: u8) -> &mut Placed {
        let occupant = self.seats[usize::from(index)].as_mut();
        occupant.and_then(|occupant| occupant.bucket.as_mut()).expect("whoever asks has seen it")
    }

    /// Whether the bucket of a seat has no keys: its records are yet to come, or have left.
    pub(crate) fn has_no_keys(&self, index: usize) -> bool {
        let placed = self.seats[index].as_ref().and_then(|occupant| occupant.bucket.as_ref());
        placed.is_none_or(|placed| placed.interval.is_none())
    }

    fn is_sound(&self) -> bool {
        self.spec.parity.is_some_and(|shape| shape.is_sound() && self.seats.len() == shape.seats())
    }
}

/// A change of a data bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) rank: Rank,
    /// What is added to the line; nothing if only an answer was stored.
    pub(crate) difference: Bytes,
    /// The answers to store, so that the requests are not carried out twice.
    pub(crate) noted: Vec<Noted>,
}

/// The state of a bucket when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It is not complete, so nothing can be recovered from it.
    Partial,
    /// A data bucket after this many changes.
    Data(u64),
    /// A parity bucket, with the number of changes of each data bucket in it.
    Parity(Vec<u64>),
}

/// An order to forget what some parity buckets got of a lost data bucket and others did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) index: u8,
    /// The changes that remain.
    pub(crate) changes: u64,
}

/// A part of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) group: GroupId,
    pub(crate) generation: u64,
    /// The seat that was read, and the one of whoever asked.
    pub(crate) of: u8,
    pub(crate) for_seat: Seat,
    pub(crate) state: State,
    pub(crate) cursor: Bytes,
    /// Where the next part begins; `None` at the end.
    pub(crate) next: Option<Bytes>,
    pub(crate) lines: Vec<(Rank, Bytes)>,
    /// How long a parity bucket has not heard from the data bucket of the seat of whoever asked.
    pub(crate) silent_ms: u64,
    /// In the first part: the answers of the seat of whoever asked, or of the data bucket that was read.
    pub(crate) noted: Vec<Noted>,
}

/// A server's share of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) seat: Seat,
    pub(crate) generation: u64,
    pub(crate) is_complete: bool,
}

/// The fate of a transfer between buckets with parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The receiver may still complete it.
    Pending,
    /// The receiver has the records.
    Committed,
    /// The receiver will never have the records.
    Cancelled,
}

/// A message about parity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParityMessage {
    /// Asks a server whether it is alive.
    Probe,
    /// The present state of a group.
    Group(Group),
    /// The fate of a transfer.
    Resolved { id: TransferId, fate: Fate },
    /// To the registrar: the sender is alive, in this run, with these seats and this much free memory. Whether it is
    /// about to end, so that it gets no more seats. Which data buckets do not hear from which parity buckets.
    Alive { run: u64, free_bytes: u64, is_closing: bool, held: Vec<Held>, silent: Vec<(Seat, Seat)> },
    /// To the registrar: give the bucket of a transfer a seat.
    Join { id: TransferId, spec: Spec },
    /// To the registrar: the receiver of a transfer has all records; they belong to its bucket from now on. Records that
    /// a client loads come from no seat.
    Commit { id: TransferId, seat: Seat, from: Option<Seat>, part: Interval },
    /// To the registrar: the bucket has no records any more.
    Vacate { seat: Seat },
    /// To the registrar: did the receiver of this transfer, of a part of a seat's bucket, commit it?
    Resolve { id: TransferId, seat: Seat, part: Interval },
    /// To the registrar: the sender has this generation of a group, or an older one.
    Which { group: GroupId },
    /// To the registrar: the sender has removed a table, so that there need be no groups of it.
    Dropped { table: TableId },
    /// Changes of a data bucket, the first one with this number.
    Changes { seat: Seat, sent_ms: u64, first: u64, confirmed: u64, changes: Vec<Change> },
    /// A parity bucket has this many changes of a data bucket, which may serve for the time of a lease since `sent_ms`.
    Have { seat: Seat, parity: Seat, sent_ms: u64, changes: Option<u64>, is_full: bool },
    /// Asks for a part of the bucket of a seat.
    Pull { generation: u64, of: u8, for_seat: Seat, cursor: Bytes, cuts: Vec<Cut> },
    /// A part of a bucket.
    Lines(Lines),
}

record!(Shape { data, parity });
record!(Seat { group, index, incarnation });
record!(Occupant { server, run, incarnation, since, bucket });
record!(Placed { transfer, interval, epoch });
record!(Group { id, generation, spec, seats });
record!(Change { rank, difference, noted });
record!(Cut { index, changes });
record!(Lines { group, generation, of, for_seat, state, cursor, next, lines, silent_ms, noted });
record!(Held { seat, generation, is_complete });
choice!(State { 0 => Partial {}, 1 => Data { 0: changes }, 2 => Parity { 0: changes } });
choice!(Fate { 0 => Pending {}, 1 => Committed {}, 2 => Cancelled {} });
choice!(ParityMessage {
    0 => Probe {},
    1 => Group { 0: group },
    2 => Resolved { id: id, fate: fate },
    3 => Alive { run: run, free_bytes: free_bytes, is_closing: is_closing, held: held, silent: silent },
    4 => Join { id: id, spec: spec },
    5 => Commit { id: id, seat: seat, from: from, part: part },
    6 => Vacate { seat: seat },
    7 => Resolve { id: id, seat: seat, part: part },
    8 => Which { group: group },
    9 => Changes { seat: seat, sent_ms: sent_ms, first: first, confirmed: confirmed, changes: changes },
    10 => Have { seat: seat, parity: parity, sent_ms: sent_ms, changes: changes, is_full: is_full },
    11 => Pull { generation: generation, of: of, for_seat: for_seat, cursor: cursor, cuts: cuts },
    12 => Lines { 0: lines },
    13 => Dropped { table: table },
});

impl ParityMessage {
    /// Whether the registrar handles the message.
    pub(crate) fn is_for_registrar(&self) -> bool {
        use ParityMessage::{Alive, Commit, Dropped, Join, Resolve, Vacate, Which};
        matches!(
            self,
            Alive { .. }
                | Join { .. }
                | Commit { .. }
                | Vacate { .. }
                | Resolve { .. }
                | Which { .. }
                | Dropped { .. }
        )
    }

    /// Whether only the registrar sends the message.
    pub(crate) fn is_of_registrar(&self) -> bool {
        matches!(self, ParityMessage::Probe | ParityMessage::Group(_) | ParityMessage::Resolved { .. })
    }

    /// Whether the message is within the limits of groups and lines.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            ParityMessage::Group(group) => group.is_sound(),
            ParityMessage::Join { spec, .. } => spec.parity.as_ref().is_some_and(Shape::is_sound),
            ParityMessage::Commit { part, .. } | ParityMessage::Resolve { part, .. } => !part.is_empty(),
            ParityMessage::Changes { first, changes, .. } => {
                *first > 0 && changes.iter().all(|change| change.difference.len() <= LINE_BYTES_MAX)
            }
            ParityMessage::Lines(lines) => {
                lines.lines.iter().all(|(_, line)| !line.is_empty() && line.len() <= LINE_BYTES_MAX)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_written_as_two_numbers() {
        for text in ["4+1", "2+2", "1+1", "16+2"] {
            assert_eq!(Shape::parse(text).unwrap().to_string(), text);
        }
        for wrong in ["4", "4+0", "0+1", "17+1", "4+3", "4+1+1", "+", "a+b", "-1+1"] {
            assert!(Shape::parse(wrong).unwrap_err().contains("write M+K"), "{wrong}");
        }
    }
}
