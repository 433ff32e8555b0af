//! The recovery of a data bucket from the other buckets of its group.
//!
//! ```text
//! asks all buckets of the group for their states           which are lost, which parity buckets are complete
//! reads those that are needed, and adds them up            lines.rs, field.rs
//! waits until no lease of the occupant before can be valid, then serves
//! ```
//!
//! Model: changes are numbered, so the parts of a bucket that say the same number are of one version. The versions of
//! the data buckets that a parity bucket has in it must be those that were read; otherwise everything is read again.
//! Whoever is read stays as it is for a second, so that this succeeds.
//! Non-goals: groups that change meanwhile. Their buckets are recovered anew.

use super::super::image::Address;
use super::super::interval::Bytes;
use super::super::journal::Noted;
use super::super::message::Outbox;
use super::field::factors;
use super::keeper::{ASK_MS, pulled};
use super::lines::{Lines, Rank, has_room, record};
use super::member::{LEASE_MS, Member};
use super::message::{self, Cut, Group, Seat, State};
use crate::bucket::Bucket;
use crate::slab::{Full, Slab};

/// The time from a failed attempt to the next.
const RETRY_MS: u64 = 100;

/// A data bucket that is being recovered.
pub(crate) struct Restore {
    pub(crate) seat: Seat,
    sources: Vec<Source>,
    /// When no lease of the occupant before is valid any more.
    fence_ms: Option<u64>,
    sum: Option<Sum>,
    retry_ms: u64,
}

/// Another bucket of the group.
struct Source {
    index: u8,
    server: Address,
    state: Option<State>,
    asked_ms: Option<u64>,
    /// By what its lines are multiplied; 0 if only its state matters, `None` if nothing is needed of it.
    factor: Option<u8>,
    cursor: Bytes,
    is_read: bool,
}

struct Sum {
    lines: Lines,
    cuts: Vec<Cut>,
    noted: Option<Vec<Noted>>,
}

/// A data bucket that was recovered.
pub(crate) struct Recovered {
    pub(crate) tree: Bucket,
    pub(crate) bytes: u64,
    pub(crate) member: Member,
    pub(crate) noted: Vec<Noted>,
}

impl Recovered {
    /// The bucket of a seat, without records.
    pub(crate) fn new(slab: &mut Slab, seat: Seat, noted: Vec<Noted>) -> Result<Recovered, Full> {
        let tree = Bucket::new(slab)?;
        match Member::new(slab, seat) {
            Ok(member) => Ok(Recovered { tree, bytes: 0, member, noted }),
            Err(Full) => {
                tree.clear(slab);
                Err(Full)
            }
        }
    }

    /// Puts the record of a line into the bucket. Returns false if the line has none.
    pub(crate) fn put(&mut self, slab: &mut Slab, rank: Rank, line: Vec<u8>) -> Result<bool, Full> {
        let Some((key, value)) = record(line) else { return Ok(false) };
        self.bytes += (key.len() + value.len()) as u64;
        self.tree.put(slab, &key, &value, None)?;
        self.member.recovered(slab, &key, rank)?;
        Ok(true)
    }

    /// Returns the memory to the slab.
    pub(crate) fn clear(self, slab: &mut Slab) {
        self.tree.clear(slab);
        self.member.clear(slab);
    }
}

impl Restore {
    /// The recovery of the bucket of a seat.
    pub(crate) fn new(seat: Seat, group: &Group) -> Restore {
        let mut restore = Restore { seat, sources: Vec::new(), fence_ms: None, sum: None, retry_ms: 0 };
        restore.sources = Restore::sources(seat, group);
        restore
    }

    fn sources(seat: Seat, group: &Group) -> Vec<Source> {
        let occupied = (0..).zip(&group.seats).filter_map(|(i, occupant)| Some((i, occupant.as_ref()?)));
        let source = |(index, occupant): (u8, &super::message::Occupant)| Source {
            index,
            server: occupant.server.clone(),
            state: None,
            asked_ms: None,
            factor: None,
            cursor: Bytes::default(),
            is_read: false,
        };
        occupied.filter(|(i, _)| *i != seat.index).map(source).collect()
    }

    /// Begins again, with the buckets that the group has now.
    pub(crate) fn follow(&mut self, slab: &mut Slab, group: &Group) {
        self.clear(slab);
        self.sources = Restore::sources(self.seat, group);
    }

    /// Returns the memory to the slab.
    pub(crate) fn clear(&mut self, slab: &mut Slab) {
        self.sum.take().into_iter().for_each(|sum| sum.lines.clear(slab));
    }

    fn again(&mut self, (now_ms, slab): (u64, &mut Slab), group: &Group) {
        self.follow(slab, group);
        self.retry_ms = now_ms + RETRY_MS;
    }

    /// Requests what is missing.
    pub(crate) fn ask(&mut self, now_ms: u64, group: &Group, out: &mut Outbox) {
        if now_ms < self.retry_ms {
            return;
        }
        let cuts = self.sum.as_ref().map_or(&[][..], |sum| &sum.cuts);
        for source in &mut self.sources {
            let is_due = source.asked_ms.is_none_or(|asked_ms| now_ms >= asked_ms + ASK_MS);
            // Those that were read are asked as well, so that they do not change.
            if is_due && (source.state.is_none() || source.factor.is_some()) {
                source.asked_ms = Some(now_ms);
                let of = (source.index, &source.server);
                out.push(pulled(group, of, self.seat, source.cursor.clone(), cuts));
            }
        }
    }

    /// Takes a part of another bucket.
    pub(crate) fn pulled(
        &mut self,
        (now_ms, slab): (u64, &mut Slab),
        group: &Group,
        part: message::Lines,
        out: &mut Outbox,
    ) -> Result<(), Full> {
        let is_parity = part.of >= group.shape().data;
        if part.state != State::Partial && is_parity != matches!(part.state, State::Parity(_)) {
            return Ok(());
        }
        if let State::Parity(_) = part.state {
            // A complete parity bucket refuses the occupant before, whose last lease is at least as old as this.
            let ends_ms = now_ms + LEASE_MS.saturating_sub(part.silent_ms);
            self.fence_ms = Some(self.fence_ms.map_or(ends_ms, |earlier| earlier.min(ends_ms)));
        }
        let Some(source) = self.sources.iter_mut().find(|source| source.index == part.of) else {
            return Ok(());
        };
        let Some(sum) = &mut self.sum else {
            source.state = Some(part.state);
            source.asked_ms = None;
            if self.sources.iter().all(|source| source.state.is_some()) {
                self.plan((now_ms, slab), group)?;
                self.ask(now_ms, group, out);
            }
            return Ok(());
        };
        if source.state.as_ref() != Some(&part.state) {
            self.again((now_ms, slab), group);
            return Ok(());
        }
        let Some(factor) = source.factor.filter(|_| !source.is_read && source.cursor == part.cursor) else {
            return Ok(());
        };
        if factor == 0 {
            source.is_read = true;
            return Ok(());
        }
        if matches!(part.state, State::Parity(_)) && part.cursor.is_empty() {
            sum.noted.get_or_insert(part.noted);
        }
        for (rank, line) in &part.lines {
            if !has_room(slab) {
                self.again((now_ms, slab), group);
                return Err(Full);
            }
            sum.lines.add(slab, *rank, factor, line)?;
        }
        match part.next {
            Some(next) => {
                (source.cursor, source.asked_ms) = (next, None);
                self.ask(now_ms, group, out);
            }
            None => source.is_read = true,
        }
        Ok(())
    }

    /// Decides from the states of all other buckets what to read, and which states they must have then.
    fn plan(&mut self, (now_ms, slab): (u64, &mut Slab), group: &Group) -> Result<(), Full> {
        let data = group.shape().data;
        let mut versions = vec![0; usize::from(data)];
        let mut lost = vec![self.seat.index];
        let mut parities = Vec::new();
        for source in &self.sources {
            match source.state.as_ref().expect("all have said their states") {
                State::Data(changes) => versions[usize::from(source.index)] = *changes,
                State::Partial if source.index < data => lost.push(source.index),
                State::Partial => {}
                State::Parity(changes) => parities.push((source.index - data, changes.clone())),
            }
        }
        let numbers: Vec<u8> = parities.iter().map(|(number, _)| *number).collect();
        let Some(factors) = factors(data, self.seat.index, &lost, &numbers) else {
            self.again((now_ms, slab), group);
            return Ok(());
        };
        let mut cuts = Vec::new();
        for index in lost {
            let at = usize::from(index);
            let least = parities.iter().filter_map(|(_, changes)| changes.get(at).copied()).min();
            let Some(changes) = least else { continue };
            versions[at] = changes;
            cuts.push(Cut { index, changes });
        }
        for source in &mut self.sources {
            let factor = factors.iter().find(|(index, _)| *index == source.index);
            source.factor = factor.map(|(_, factor)| *factor);
            if let Some(State::Parity(_)) = source.state {
                source.state = Some(State::Parity(versions.clone()));
                // A parity bucket that is not needed has to be cut as well.
                source.factor = source.factor.or(Some(0));
            }
        }
        self.sum = Some(Sum { lines: Lines::new(slab)?, cuts, noted: None });
        Ok(())
    }

    /// The bucket, if everything was read, and nobody can serve the old one any more.
    pub(crate) fn recovered(&mut self, (now_ms, slab): (u64, &mut Slab), group: &Group) -> Option<Recovered> {
        let is_read = |source: &Source| source.factor.is_none() || source.is_read;
        let is_fenced = self.fence_ms.is_some_and(|fence_ms| now_ms >= fence_ms);
        let is_done = is_fenced && self.sources.iter().all(is_read);
        let sum = self.sum.take_if(|_| is_done)?;
        let recovered = self.build(slab, &sum);
        sum.lines.clear(slab);
        if recovered.is_none() {
            self.again((now_ms, slab), group);
        }
        recovered
    }

    /// Makes a bucket of the sum. `None` if memory is full, or if the sum has no records, because some server is wrong.
    fn build(&self, slab: &mut Slab, sum: &Sum) -> Option<Recovered> {
        let noted = sum.noted.clone().unwrap_or_default();
        let mut recovered = Recovered::new(slab, self.seat, noted).ok()?;
        let mut rank = 0;
        while let Some((at, line)) = sum.lines.at_or_after(slab, rank) {
            let put = recovered.put(slab, at, line) == Ok(true);
            let Some(next) = at.checked_add(1).filter(|_| put) else {
                recovered.clear(slab);
                return None;
            };
            rank = next;
        }
        let own = sum.cuts.iter().find(|cut| cut.index == self.seat.index);
        recovered.member.continues_after(slab, own.map_or(0, |cut| cut.changes), Vec::new());
        Some(recovered)
    }
}
