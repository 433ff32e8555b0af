//! A bucket of a table on a server: the records of an interval, the journal of its answers, and its transfer, if any.
//!
//! Invariant: a bucket answers for exactly the keys that it serves. A change to a key that was already sent to another
//! server is sent too.
//! Non-goals: which server has which bucket; see server.rs. How records travel; see transfer.rs.

use super::image::{Address, Element};
use super::interval::{Bytes, Interval, Point, Upper, successor};
use super::journal::{ClientId, Journal, Noted};
use super::message::{Answer, CUTS, HandOver, Operation, Page, Refused, Scan, Spec, TransferId, What};
use super::parity::member::Member;
use super::records::Records;
use super::transfer::{Leaving, Origin, Purpose, RETRY_MS};
use crate::bucket::{Bucket, Place};
use crate::slab::{Full, Slab};

/// The most bytes of records in a page, beyond one record.
const PAGE_BYTES: usize = if cfg!(test) { 100 } else { 256 << 10 };
/// The bytes of the records between two cuts of a scan, if they are as long as those of the whole bucket. Most pages that
/// a client then asks for are complete.
const CUT_BYTES: usize = PAGE_BYTES / 8 * 7;
/// The most records that are examined for a page, so that other requests do not wait longer.
const LOOKED_AT_MAX: usize = 16 << 10;
/// The most bytes that are examined for a page.
const LOOKED_AT_BYTES_MAX: usize = 4 << 20;
/// A bucket with at most this part of its capacity is merged with the one before it, if both together have at most that
/// part. A merged bucket must double before it is split, and the parts of a split one must shrink to half.
const UNDERFULL: u64 = 4;
const MERGED: u64 = 2;
/// How long a bucket is not merged after it was split, merged or moved.
pub(crate) const MERGE_AGE_MS: u64 = 10_000;
/// The number of records that are removed at a time after another server has got them.
const SHED_AT_A_TIME: usize = 512;

/// A bucket of a table.
pub(crate) struct Owned {
    /// The keys of its records, including those that another server is about to get.
    pub(crate) interval: Interval,
    pub(crate) epoch: u64,
    pub(crate) tree: Bucket,
    /// The bytes of keys and values.
    pub(crate) bytes: u64,
    pub(crate) journal: Journal,
    pub(crate) leaving: Option<Leaving>,
    pub(crate) origin: Option<Origin>,
    /// The bucket's part in its group, if the table has parity.
    pub(crate) member: Option<Member>,
    /// The transfer by which it gets the records of the bucket behind it, if the table has parity.
    pub(crate) joining: Option<TransferId>,
    /// The time before which the bucket is not split, merged or moved again after an attempt failed.
    pub(crate) retry_ms: u64,
    /// When it came, or was last split or merged, or was to be merged without success.
    pub(crate) since_ms: u64,
    /// Whether it is to be merged with the bucket before it, as soon as neither is in a transfer.
    pub(crate) is_to_merge: bool,
    /// Whether its first key was chosen by a user, so that only users merge it with the bucket before it.
    pub(crate) is_pinned: bool,
    /// Whether the server that was believed to have the bucket before it did not merge the two: it may have lost that
    /// bucket, so all servers are asked next.
    pub(crate) asks_all: bool,
    growth: Growth,
    /// Whether there may still be records beyond the interval, which another server has now.
    is_shedding: bool,
    /// With parity, the change by which the last of them was removed.
    shed: u64,
}

/// Where a bucket has grown since it was last split or moved.
#[derive(Default)]
struct Growth {
    records: u64,
    /// The new records that came after all others.
    appended: u64,
    greatest: Bytes,
}

impl Owned {
    /// A bucket without records.
    pub(crate) fn new(slab: &mut Slab, interval: Interval, epoch: u64) -> Result<Owned, Full> {
        Bucket::new(slab).map(|tree| Owned::of(tree, 0, interval, epoch))
    }

    /// A bucket with the records of a tree.
    pub(crate) fn of(tree: Bucket, bytes: u64, interval: Interval, epoch: u64) -> Owned {
        Owned {
            interval,
            epoch,
            tree,
            bytes,
            journal: Journal::default(),
            leaving: None,
            origin: None,
            member: None,
            joining: None,
            retry_ms: 0,
            since_ms: 0,
            is_to_merge: false,
            is_pinned: false,
            asks_all: false,
            growth: Growth::default(),
            is_shedding: false,
            shed: 0,
        }
    }

    /// Returns the memory to the slab.
    pub(crate) fn clear(self, slab: &mut Slab) {
        self.tree.clear(slab);
        self.member.into_iter().for_each(|member| member.clear(slab));
    }

    /// Whether no other server can serve these records now.
    pub(crate) fn may_serve(&self, now_ms: u64) -> bool {
        self.member.as_ref().is_none_or(|member| member.may_serve(now_ms))
    }

    /// Why the bucket cannot carry out an operation now, if it cannot.
    pub(crate) fn hindrance(&self, now_ms: u64, operation: &Operation, me: &Address) -> Option<Refused> {
        let member = self.member.as_ref()?;
        if !member.may_serve(now_ms) || (!operation.is_read() && !member.may_change(now_ms)) {
            return Some(Refused::Busy(me.clone()));
        }
        let takes_memory = !matches!(operation, Operation::Get { .. } | Operation::Delete { .. });
        member.full().filter(|_| takes_memory).map(|server| Refused::Full(server.clone()))
    }

    /// Stores the answer to a request that may change something.
    pub(crate) fn note(
        &mut self,
        now_ms: u64,
        client: ClientId,
        numbers: (u64, u64),
        (answer, has_changed): (&Answer, bool),
    ) {
        self.journal.note(now_ms, client, numbers, answer);
        if let Some(member) = &mut self.member {
            member.noted(Noted::one(client, numbers, answer), has_changed);
        }
    }

    /// The keys that the bucket answers for: without those that were handed over.
    pub(crate) fn served(&self) -> Interval {
        match &self.leaving {
            Some(leaving) if leaving.is_handed_over() => {
                Interval::of(&self.interval.from, Upper::Key(leaving.part.from.clone()))
            }
            _ => self.interval.clone(),
        }
    }

    /// Whether the bucket answers for a point.
    pub(crate) fn serves(&self, point: Point<'_>) -> bool {
        match &self.leaving {
            Some(leaving) if leaving.is_handed_over() => point.is_in(&self.served()),
            _ => point.is_in(&self.interval),
        }
    }

    /// The location of the bucket, for clients.
    pub(crate) fn element(&self, address: &Address) -> Element {
        Element { interval: self.served(), address: address.clone(), epoch: self.epoch }
    }

    /// The number of records that the bucket answers for.
    pub(crate) fn records(&self, slab: &Slab) -> u64 {
        let served = self.served();
        self.tree.count(slab, self.place(slab, &served.from), self.end(slab, &served.to)) as u64
    }

    /// Whether the bucket is too large and may be split.
    pub(crate) fn is_over(&self, spec: &Spec) -> bool {
        self.may_change_hands()
            && self.tree.len() > 1
            && (self.tree.len() as u64 > spec.capacity || self.bytes > spec.capacity_bytes)
    }

    /// Whether no part of the bucket is in a transfer, and no sender may still take the bucket back.
    pub(crate) fn may_change_hands(&self) -> bool {
        self.leaving.is_none() && self.origin.is_none() && self.joining.is_none() && !self.is_shedding
    }

    /// Carries out an operation. Returns the answer, and whether something changed.
    pub(crate) fn apply(&mut self, slab: &mut Slab, operation: &Operation) -> Result<(Answer, bool), Full> {
        match operation {
            Operation::Get { key } => {
                let value = self.tree.get(slab, key).map(|record| record.value.into());
                Ok((Answer::Value(value), false))
            }
            Operation::Insert { key, value } => {
                self.put(slab, key, value, |old| old.map_or(Ok(()), |_| Err(Answer::Exists)))
            }
            Operation::Upsert { key, value } => self.put(slab, key, value, |_| Ok(())),
            Operation::Update { key, value } => {
                self.put(slab, key, value, |old| old.map(drop).ok_or(Answer::Missing))
            }
            Operation::Delete { key } => Ok(self.delete(slab, key)),
            Operation::CompareAndSet { key, expected, value } => {
                let decide = |old: Option<&[u8]>| match old == expected.as_deref() {
                    true => Ok(()),
                    false => Err(Answer::Differs(old.map(Into::into))),
                };
                match value {
                    Some(value) => self.put(slab, key, value, decide),
                    None => match decide(self.tree.get(slab, key).map(|record| record.value)) {
                        Ok(()) if expected.is_none() => Ok((Answer::Done, false)),
                        Ok(()) => Ok(self.delete(slab, key)),
                        Err(answer) => Ok((answer, false)),
                    },
                }
            }
        }
    }

    fn put(
        &mut self,
        slab: &mut Slab,
        key: &[u8],
        value: &[u8],
        decide: impl FnOnce(Option<&[u8]>) -> Result<(), Answer>,
    ) -> Result<(Answer, bool), Full> {
        let mut refusal = None;
        let mut old_bytes = 0;
        let mut old_value = None;
        let is_member = self.member.is_some();
        let gets_rank = self.member.as_mut().map(|member| member.reserve(slab, key)).transpose()?;
        let existed = self.tree.put_if(slab, (key, value, None), |old| {
            old_bytes = old.map_or(0, |old| key.len() + old.value.len());
            old_value = old.filter(|_| is_member).map(|old| old.value.to_vec());
            refusal = decide(old.map(|old| old.value)).err();
            refusal.is_none()
        });
        if let Some(member) = &mut self.member {
            match refusal.is_none() && existed.is_ok() {
                true => member.changed(slab, key, old_value.as_deref(), Some(value)),
                false if gets_rank == Some(true) => member.release(slab, key),
                false => {}
            }
        }
        let existed = existed?;
        if let Some(answer) = refusal {
            return Ok((answer, false));
        }
        self.bytes = self.bytes - old_bytes as u64 + (key.len() + value.len()) as u64;
        if !existed {
            self.growth.records += 1;
            if *key > *self.growth.greatest {
                self.growth.greatest = key.into();
                self.growth.appended += 1;
            }
        }
        self.changed(key);
        Ok((Answer::Done, true))
    }

    fn delete(&mut self, slab: &mut Slab, key: &[u8]) -> (Answer, bool) {
        let Some(old) = self.tree.get(slab, key) else { return (Answer::Missing, false) };
        self.bytes -= (key.len() + old.value.len()) as u64;
        self.remove(slab, key);
        self.changed(key);
        (Answer::Done, true)
    }

    fn remove(&mut self, slab: &mut Slab, key: &[u8]) {
        if let Some(member) = &mut self.member
            && let Some(old) = self.tree.get(slab, key).map(|record| record.value.to_vec())
        {
            member.changed(slab, key, Some(&old), None);
        }
        self.tree.remove(slab, key);
    }

    fn changed(&mut self, key: &[u8]) {
        if let Some(leaving) = &mut self.leaving {
            leaving.changed(key);
        }
    }

    /// A part of the answer to a scan.
    pub(crate) fn page(&self, slab: &Slab, scan: &Scan) -> Page {
        let page = self.first_page(slab, scan);
        Page { cuts: self.cuts(slab, scan, &page.covered.to), ..page }
    }

    /// Keys that cut the records after a page into pages, if the client may ask for several.
    fn cuts(&self, slab: &Slab, scan: &Scan, end: &Upper) -> Vec<Bytes> {
        let is_plain = scan.what == What::Records && scan.condition.is_none() && !scan.is_descending;
        let rest = match (&scan.rest, end) {
            (Some(rest), _) => rest,
            (None, Upper::Key(end)) => end,
            (None, Upper::Infinite) => return Vec::new(),
        };
        if !is_plain || scan.limit != u64::MAX || self.tree.len() == 0 {
            return Vec::new();
        }
        let record_bytes = self.bytes as usize / self.tree.len() + Records::EXTRA_BYTES;
        let mut place = self.place(slab, rest);
        let cut = |_| {
            self.tree.skip(&mut place, (CUT_BYTES / record_bytes).max(1));
            self.tree.next(slab, &mut place.clone()).map(|record| record.key.into())
        };
        (0..CUTS).map_while(cut).collect()
    }

    fn first_page(&self, slab: &Slab, scan: &Scan) -> Page {
        let part = scan.interval.intersection(&self.served());
        if scan.what == What::Count && scan.condition.is_none() {
            let count = self.tree.count(slab, self.place(slab, &part.from), self.end(slab, &part.to)) as u64;
            return Page { covered: part, records: Records::default(), count, cuts: Vec::new() };
        }
        let mut page = Page { covered: part, records: Records::with_room(), count: 0, cuts: Vec::new() };
        let condition = scan.condition().expect("a scan that is carried out is sound");
        let mut room = Room::default();
        let mut place = match scan.is_descending {
            false => self.place(slab, &page.covered.from),
            true => self.end(slab, &page.covered.to),
        };
        loop {
            let record = match scan.is_descending {
                false => self.tree.next(slab, &mut place),
                true => self.tree.previous(slab, &mut place),
            };
            let Some(record) = record else { return page };
            let is_beyond = match scan.is_descending {
                false => !page.covered.to.is_above(record.key),
                true => *record.key < *page.covered.from,
            };
            if is_beyond {
                return page;
            }
            if page.records.bytes() >= PAGE_BYTES || room.is_used_up() || page.count == scan.limit {
                match scan.is_descending {
                    false => page.covered.to = Upper::Key(record.key.into()),
                    true => page.covered.from = successor(record.key),
                }
                return page;
            }
            room.looked_at += 1;
            room.looked_at_bytes += record.key.len() + record.value.len();
            if condition.as_ref().is_some_and(|condition| !condition.matches(record.value)) {
                continue;
            }
            page.count += 1;
            let value = match scan.what {
                What::Records => record.value,
                What::Keys => &[],
                What::Count => continue,
            };
            page.records.push(record.key, value);
        }
    }

    /// The cursor before the first record whose key is >= `key`.
    pub(crate) fn place(&self, slab: &Slab, key: &[u8]) -> Place {
        self.tree.seek(slab, key, false)
    }

    fn end(&self, slab: &Slab, to: &Upper) -> Place {
        match to {
            Upper::Key(key) => self.place(slab, key),
            Upper::Infinite => self.tree.last(),
        }
    }

    /// The part that another server should get if this bucket is too large: the upper half, or, if records come in
    /// ascending order, everything after a full bucket.
    pub(crate) fn upper_part(&self, slab: &Slab, spec: &Spec) -> Option<Interval> {
        let Growth { records, appended, .. } = self.growth;
        let is_ascending = records * 2 >= self.tree.len() as u64 && appended * 4 >= records * 3;
        let stay = match is_ascending {
            true => spec.capacity.min(self.tree.len().saturating_sub(1) as u64) as usize,
            false => self.tree.len() / 2,
        };
        let mut place = self.tree.first();
        self.tree.skip(&mut place, stay);
        let from = self.tree.next(slab, &mut place)?.key.into();
        let part = Interval { from, to: self.interval.to.clone() };
        (!part.is_empty() && part.from > self.interval.from).then_some(part)
    }

    /// Ends the interval before a part that was handed over for good. Its records are removed later, some at a time.
    pub(crate) fn shrinks(&mut self, now_ms: u64, part: &Interval) {
        self.interval.to = Upper::Key(part.from.clone());
        self.growth = Growth::default();
        self.since_ms = now_ms;
        self.is_shedding = true;
    }

    /// The number of records of a part that was handed over, before they are removed.
    pub(crate) fn moved(&self, slab: &Slab, part: &Interval) -> u64 {
        self.tree.count(slab, self.place(slab, &part.from), self.tree.last()) as u64
    }

    /// Whether the bucket has so few records, since this time, that it may be merged with the one before it.
    pub(crate) fn is_underfull(&self, since_ms: u64, spec: &Spec) -> bool {
        let share = |limit: u64| limit / UNDERFULL;
        self.may_change_hands()
            && !self.is_pinned
            && !self.interval.from.is_empty()
            && self.since_ms <= since_ms
            && self.tree.len() as u64 <= share(spec.capacity)
            && self.bytes <= share(spec.capacity_bytes)
    }

    /// Whether a bucket with so many more records would be far from being split.
    pub(crate) fn may_grow_by(&self, spec: &Spec, (records, bytes): (u64, u64)) -> bool {
        self.tree.len() as u64 + records <= spec.capacity / MERGED
            && self.bytes + bytes <= spec.capacity_bytes / MERGED
    }

    /// Adds the bucket that begins where this one ends. Returns it if there is not enough memory.
    pub(crate) fn merge(&mut self, now_ms: u64, slab: &mut Slab, next: Owned) -> Option<Owned> {
        assert!(self.interval.to == Upper::Key(next.interval.from.clone()), "they are neighbours");
        assert!(self.may_change_hands() && next.may_change_hands(), "neither is in a transfer");
        assert!(self.member.is_none() && next.member.is_none(), "with parity, records join by a transfer");
        let Owned { interval, epoch, tree, bytes, journal, .. } = next;
        if let Some(tree) = self.tree.append(slab, tree, &interval.from) {
            let retry_ms = now_ms + RETRY_MS;
            return Some(Owned { journal, retry_ms, ..Owned::of(tree, bytes, interval, epoch) });
        }
        self.interval.to = interval.to;
        self.epoch = self.epoch.max(epoch);
        self.bytes += bytes;
        self.journal.add(now_ms, journal.copy());
        (self.growth, self.since_ms) = (Growth::default(), now_ms);
        None
    }

    /// Ends the interval after the records that have joined the bucket, and that were put behind its own before.
    pub(crate) fn joins(&mut self, now_ms: u64, last: HandOver, epoch: u64) {
        self.interval.to = last.interval.to;
        self.epoch = epoch;
        self.journal.add(now_ms, last.journal);
        (self.growth, self.since_ms, self.joining) = (Growth::default(), now_ms, None);
    }

    /// Whether records beyond its interval remain to be removed.
    pub(crate) fn is_shedding(&self) -> bool {
        self.is_shedding
    }

    /// Removes records beyond the interval later, if there are any.
    pub(crate) fn sheds(&mut self) {
        self.is_shedding = true;
    }

    /// Whether records beyond its interval can be removed now: with parity, it must have the removal of the last ones.
    pub(crate) fn may_shed(&self, now_ms: u64) -> bool {
        let may = |member: &Member| member.is_safe(self.shed) && member.may_change(now_ms);
        self.is_shedding && self.member.as_ref().is_none_or(may)
    }

    /// Removes some of the records that are beyond its interval. With parity, more are removed only when it has the
    /// removal of the last ones, so that the changes of requests do not wait behind many removals.
    pub(crate) fn shed(&mut self, now_ms: u64, slab: &mut Slab) {
        if !self.may_shed(now_ms) {
            return;
        }
        for _ in 0..SHED_AT_A_TIME {
            if !self.is_shedding || self.member.as_ref().is_some_and(|member| !member.may_change(now_ms)) {
                break;
            }
            let last = self.tree.previous(slab, &mut self.tree.last());
            match last.filter(|last| !self.interval.to.is_above(last.key)) {
                None => self.is_shedding = false,
                Some(last) => {
                    let (key, bytes) = (last.key.to_vec(), last.key.len() + last.value.len());
                    self.bytes -= bytes as u64;
                    self.remove(slab, &key);
                    self.shed = self.member.as_ref().map_or(0, Member::changes);
                }
            }
        }
    }

    /// The hand-over that the receiver of a part gets with its last piece.
    pub(crate) fn hand_over(
        &self,
        (part, purpose): (&Interval, Purpose),
        neighbours: Vec<Element>,
    ) -> HandOver {
        HandOver {
            interval: part.clone(),
            epoch: self.epoch + 1,
            journal: self.journal.copy(),
            neighbours,
            is_to_merge: matches!(purpose, Purpose::Merge | Purpose::MergeIfSmall),
            is_pinned: match purpose {
                Purpose::Split => false,
                Purpose::SplitAt => true,
                Purpose::Merge | Purpose::MergeIfSmall | Purpose::Move => self.is_pinned,
            },
            seat: self.member.as_ref().map(|member| member.seat),
        }
    }
}

/// What was used of the limits of the work for a page.
#[derive(Default)]
struct Room {
    looked_at: usize,
    looked_at_bytes: usize,
}

impl Room {
    fn is_used_up(&self) -> bool {
        self.looked_at >= LOOKED_AT_MAX || self.looked_at_bytes >= LOOKED_AT_BYTES_MAX
    }
}
