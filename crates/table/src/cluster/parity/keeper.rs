//! A parity bucket of a group: the sum of its data buckets' lines, and the answers of their journals.
//!
//! Model: a change is added when it comes in order, and remembered until its data bucket says that all parity buckets
//! have it. Those that some parity buckets lack when a data bucket is lost are taken away again (*cut*), so that all
//! parity buckets agree; nobody has seen their effects. A new parity bucket reads each data bucket of the group once.
//! Invariant: changes and leases are for the present occupant of a seat only.

use std::collections::VecDeque;

use thalweg_base::codec::record;

use super::super::image::Address;
use super::super::interval::Bytes;
use super::super::journal::{Journal, Noted};
use super::super::message::{Message, Outbox, To};
use super::field::coefficient;
use super::lines::{Lines, Rank, has_room};
use super::member::MESSAGE_BYTES;
use super::message::{self, Change, Cut, Group, ParityMessage, Seat, State};
use crate::slab::{Full, Slab};

/// The time after which a part is requested again.
pub(crate) const ASK_MS: u64 = 300;

/// A parity bucket.
pub(crate) struct Keeper {
    pub(crate) seat: Seat,
    /// Which of the group's parity buckets this is.
    number: u8,
    lines: Lines,
    data: Vec<Protected>,
}

/// The part of a parity bucket that is about one data bucket.
#[derive(Default)]
struct Protected {
    /// The occupant of the seat; 0 if there is none.
    incarnation: u64,
    since: u64,
    /// Whether this occupant has sent changes.
    is_heard: bool,
    /// When an occupant last got a lease, or this parity bucket began.
    heard_ms: u64,
    /// The number of changes that are in the lines; `None` until the bucket has been read.
    changes: Option<u64>,
    /// The latest of them, which other parity buckets may lack.
    unconfirmed: VecDeque<Change>,
    journal: Journal,
    reading: Option<Reading>,
}

/// The part of a parity bucket that is about one data bucket, in a file.
pub(crate) struct Share {
    incarnation: u64,
    since: u64,
    is_heard: bool,
    changes: Option<u64>,
    unconfirmed: Vec<Change>,
    noted: Vec<Noted>,
}

record!(Share { incarnation, since, is_heard, changes, unconfirmed, noted });

impl Share {
    fn returned(self, now_ms: u64) -> Protected {
        let Share { incarnation, since, is_heard, changes, unconfirmed, noted } = self;
        let mut journal = Journal::default();
        journal.add(now_ms, noted);
        let (unconfirmed, heard_ms) = (unconfirmed.into(), now_ms);
        Protected { incarnation, since, is_heard, heard_ms, changes, unconfirmed, journal, reading: None }
    }
}

/// A data bucket that is being read.
struct Reading {
    changes: u64,
    lines: Lines,
    noted: Vec<Noted>,
    cursor: Bytes,
}

impl Protected {
    /// Its state, for a file. What was read in part is read again.
    fn share(&self) -> Share {
        let (unconfirmed, noted) = (self.unconfirmed.iter().cloned().collect(), self.journal.copy());
        let Protected { incarnation, since, is_heard, changes, .. } = *self;
        Share { incarnation, since, is_heard, changes, unconfirmed, noted }
    }

    /// Adds the answers of confirmed changes to the journal.
    fn confirm(&mut self, now_ms: u64, confirmed: u64) {
        let changes = self.changes.unwrap_or_default();
        while changes - (self.unconfirmed.len() as u64) < confirmed
            && let Some(change) = self.unconfirmed.pop_front()
        {
            self.journal.add(now_ms, change.noted);
        }
    }

    fn stop_reading(&mut self, slab: &mut Slab) {
        self.reading.take().into_iter().for_each(|reading| reading.lines.clear(slab));
    }
}

impl Keeper {
    /// The parity bucket of a seat of a group.
    pub(crate) fn new((now_ms, slab): (u64, &mut Slab), seat: Seat, group: &Group) -> Result<Keeper, Full> {
        let data = group.shape().data;
        let mut keeper = Keeper {
            seat,
            number: seat.index - data,
            lines: Lines::new(slab)?,
            data: (0..data).map(|_| Protected { heard_ms: now_ms, ..Protected::default() }).collect(),
        };
        keeper.follow(slab, group);
        Ok(keeper)
    }

    /// A parity bucket that has returned from a file, without its lines.
    pub(crate) fn returned(
        (now_ms, slab): (u64, &mut Slab),
        seat: Seat,
        shares: Vec<Share>,
    ) -> Result<Keeper, Full> {
        let number = seat.index - shares.len() as u8;
        let data = shares.into_iter().map(|share| share.returned(now_ms)).collect();
        Ok(Keeper { seat, number, lines: Lines::new(slab)?, data })
    }

    /// Adds a line that has returned.
    pub(crate) fn put(&mut self, slab: &mut Slab, rank: Rank, line: &[u8]) -> Result<(), Full> {
        self.lines.add(slab, rank, 1, line)
    }

    /// The state of the bucket beside its lines.
    pub(crate) fn shares(&self) -> Vec<Share> {
        self.data.iter().map(Protected::share).collect()
    }

    /// The lines from a cursor on, and where the next part begins.
    pub(crate) fn lines(&self, slab: &Slab, cursor: &[u8]) -> (Vec<(Rank, Bytes)>, Option<Bytes>) {
        self.lines.part(slab, cursor, MESSAGE_BYTES)
    }

    /// Returns the memory to the slab.
    pub(crate) fn clear(mut self, slab: &mut Slab) {
        self.data.iter_mut().for_each(|protected| protected.stop_reading(slab));
        self.lines.clear(slab);
    }

    /// Adopts the data buckets of the group.
    pub(crate) fn follow(&mut self, slab: &mut Slab, group: &Group) {
        for (protected, seat) in self.data.iter_mut().zip(&group.seats) {
            let (incarnation, since) =
                seat.as_ref().map_or((0, 0), |occupant| (occupant.incarnation, occupant.since));
            if protected.incarnation != incarnation || protected.since != since {
                protected.stop_reading(slab);
                protected.is_heard = false;
            }
            if protected.since != since {
                // Occupants begin with empty memory, and leave with it.
                let is_empty = since == 0 || since > self.seat.incarnation;
                let (changes, heard_ms) = (is_empty.then_some(0), protected.heard_ms);
                *protected = Protected { changes, heard_ms, ..Protected::default() };
            }
            (protected.incarnation, protected.since) = (incarnation, since);
            protected.changes = protected.changes.or((incarnation == 0).then_some(0));
        }
    }

    /// Whether any data bucket can be recovered with this bucket.
    pub(crate) fn is_complete(&self) -> bool {
        self.data.iter().all(|protected| protected.changes.is_some())
    }

    /// The occupant of a data bucket's seat.
    pub(crate) fn incarnation(&self, index: u8) -> Option<u64> {
        self.data.get(usize::from(index)).map(|protected| protected.incarnation)
    }

    /// Adds changes of a data bucket whose seat is taken by this occupant. Returns the answer.
    pub(crate) fn changes(
        &mut self,
        (now_ms, slab): (u64, &mut Slab),
        seat: Seat,
        (sent_ms, first, confirmed): (u64, u64, u64),
        changes: Vec<Change>,
    ) -> ParityMessage {
        let coefficient = coefficient(self.number, seat.index);
        let protected = &mut self.data[usize::from(seat.index)];
        (protected.is_heard, protected.heard_ms) = (true, now_ms);
        for (number, change) in (first..).zip(changes) {
            if protected.changes.is_none_or(|have| have + 1 != number) {
                continue;
            }
            if !has_room(slab) || self.lines.add(slab, change.rank, coefficient, &change.difference).is_err()
            {
                break;
            }
            protected.changes = Some(number);
            protected.unconfirmed.push_back(change);
        }
        protected.confirm(now_ms, confirmed);
        let (parity, changes, is_full) = (self.seat, protected.changes, !has_room(slab));
        ParityMessage::Have { seat, parity, sent_ms, changes, is_full }
    }

    /// Takes changes of lost data buckets away that other parity buckets do not have.
    fn cut(&mut self, slab: &mut Slab, cuts: &[Cut]) {
        for Cut { index, changes } in cuts {
            let coefficient = coefficient(self.number, *index);
            let Some(protected) = self.data.get_mut(usize::from(*index)) else { continue };
            // Once the new occupant was heard, everything has been settled.
            while !protected.is_heard
                && protected.changes.is_some_and(|have| have > *changes)
                && let Some(change) = protected.unconfirmed.pop_back()
            {
                if self.lines.add(slab, change.rank, coefficient, &change.difference).is_err() {
                    // Whoever reads sees a state that it did not expect, and tries again.
                    protected.unconfirmed.push_back(change);
                    break;
                }
                protected.changes = protected.changes.map(|have| have - 1);
            }
        }
    }

    /// Reads a part of the bucket to recover the data bucket of a seat.
    pub(crate) fn read(
        &mut self,
        (now_ms, slab): (u64, &mut Slab),
        for_seat: Seat,
        cursor: &[u8],
        cuts: &[Cut],
    ) -> Part {
        if !self.is_complete() {
            return Part::partial();
        }
        self.cut(slab, cuts);
        let (lines, next) = self.lines(slab, cursor);
        let noted = match self.data.get(usize::from(for_seat.index)).filter(|_| cursor.is_empty()) {
            Some(protected) => {
                let recent = protected.unconfirmed.iter().flat_map(|change| change.noted.iter().cloned());
                protected.journal.copy().into_iter().chain(recent).collect()
            }
            None => Vec::new(),
        };
        let protected = self.data.get(usize::from(for_seat.index));
        let silent_ms = protected.map_or(0, |protected| now_ms - protected.heard_ms);
        let changes = self.data.iter().map(|protected| protected.changes.unwrap_or_default()).collect();
        Part { state: State::Parity(changes), lines, next, silent_ms, noted }
    }

    /// Requests parts of the data buckets that are not in the lines yet.
    pub(crate) fn pull(&self, group: &Group, out: &mut Outbox) {
        group.data().for_each(|(index, _)| self.pull_from(group, index, out));
    }

    /// Requests the next part of a data bucket, if it is not in the lines yet.
    pub(crate) fn pull_from(&self, group: &Group, index: u8, out: &mut Outbox) {
        let protected = &self.data[usize::from(index)];
        if let Some(occupant) = group.seats[usize::from(index)].as_ref()
            && protected.changes.is_none()
        {
            let cursor = protected.reading.as_ref().map(|reading| reading.cursor.clone()).unwrap_or_default();
            out.push(pulled(group, (index, &occupant.server), self.seat, cursor, &[]));
        }
    }

    /// Takes a part of a data bucket. Returns whether it was of use, so that the next part may be requested.
    pub(crate) fn pulled(
        &mut self,
        now_ms: u64,
        slab: &mut Slab,
        part: message::Lines,
    ) -> Result<bool, Full> {
        let State::Data(changes) = part.state else { return Ok(false) };
        let coefficient = coefficient(self.number, part.of);
        let Some(protected) = self.data.get_mut(usize::from(part.of)) else { return Ok(false) };
        if protected.changes.is_some() {
            return Ok(false);
        }
        if part.cursor.is_empty() {
            protected.stop_reading(slab);
            let lines = Lines::new(slab)?;
            protected.reading = Some(Reading { changes, lines, noted: part.noted, cursor: Bytes::default() });
        }
        let Some(reading) = &mut protected.reading else { return Ok(false) };
        if reading.changes != changes {
            protected.stop_reading(slab);
            return Ok(true);
        }
        if reading.cursor != part.cursor {
            return Ok(false);
        }
        for (rank, line) in part.lines {
            if !has_room(slab) {
                protected.stop_reading(slab);
                return Err(Full);
            }
            reading.lines.add(slab, rank, coefficient, &line)?;
        }
        if let Some(next) = part.next {
            reading.cursor = next;
            return Ok(true);
        }
        let reading = protected.reading.take().expect("it was just found");
        let mut rank = 0;
        while let Some((at, line)) = reading.lines.at_or_after(slab, rank) {
            self.lines.add(slab, at, 1, &line)?;
            let Some(next) = at.checked_add(1) else { break };
            rank = next;
        }
        reading.lines.clear(slab);
        protected.journal.add(now_ms, reading.noted);
        protected.changes = Some(reading.changes);
        Ok(false)
    }
}

/// A part of a bucket that was read.
pub(crate) struct Part {
    pub(crate) state: State,
    pub(crate) lines: Vec<(Rank, Bytes)>,
    pub(crate) next: Option<Bytes>,
    pub(crate) silent_ms: u64,
    pub(crate) noted: Vec<Noted>,
}

impl Part {
    /// The answer of a bucket that is not complete, or not there.
    pub(crate) fn partial() -> Part {
        Part { state: State::Partial, lines: Vec::new(), next: None, silent_ms: 0, noted: Vec::new() }
    }
}

/// A request for a part of a bucket.
pub(crate) fn pulled(
    group: &Group,
    (of, server): (u8, &Address),
    for_seat: Seat,
    cursor: Bytes,
    cuts: &[Cut],
) -> (To, Message) {
    let (generation, cuts) = (group.generation, cuts.to_vec());
    let message = ParityMessage::Pull { generation, of, for_seat, cursor, cuts };
    (To::Server(server.clone()), Message::Parity(message))
}
