//! What a data bucket does for its parity: it gives each record a rank, and sends every change to the parity buckets.
//!
//! Model: changes are numbered. They are sent in order, and again until all parity buckets of the group have them. An
//! answer leaves the server only when the change that it reports, and all that it may have seen, are there. A bucket
//! serves under leases of *all* its parity buckets. So whoever recovers the bucket from any one of them, which then
//! refuses the old occupant of the seat, knows after the time of a lease that nobody serves the old bucket any more.
//! Invariant: at most [`WINDOW_BYTES`] of changes, beyond one, are not yet confirmed.
//! Non-goals: who has which seat; see directory.rs.

use std::collections::VecDeque;

use super::super::image::Address;
use super::super::interval::Bytes;
use super::super::journal::Noted;
use super::super::message::{Message, Outbox, To};
use super::lines::{Rank, difference, line};
use super::message::{Change, Group, ParityMessage, Seat};
use crate::bucket::Bucket;
use crate::slab::{Full, Slab};

/// How long a bucket may serve after a parity bucket has heard from it.
pub(crate) const LEASE_MS: u64 = 2_000;
/// The most bytes of changes that are not confirmed. Above it, changes have to wait.
pub(crate) const WINDOW_BYTES: usize = 4 << 20;
/// The most bytes of a message with changes or lines, beyond one.
pub(crate) const MESSAGE_BYTES: usize = 256 << 10;
/// The time after which changes are sent again.
const RESEND_MS: u64 = 300;
/// The time after which a parity bucket is asked for another lease.
const RENEW_MS: u64 = 250;
/// How long a bucket is not changed after somebody has read a part of it to recover another bucket.
const FREEZE_MS: u64 = 1_000;
/// How long a parity bucket may be silent before the registrar hears of it: longer than a lease.
const SILENT_MS: u64 = 3_000;
/// The most time between two messages to a parity bucket that counts as silence: this server may have been suspended.
const COUNTED_MS: u64 = 250;
/// The memory that a change takes, besides its bytes.
const CHANGE_BYTES: usize = 64;

/// The part of a data bucket that is for parity.
pub(crate) struct Member {
    pub(crate) seat: Seat,
    /// The rank of each key.
    ranks: Bucket,
    /// Ranks below `next` that no key has.
    free: Vec<Rank>,
    next: Rank,
    /// The number of the latest change.
    changes: u64,
    /// The latest changes, which not all parity buckets are known to have.
    unconfirmed: VecDeque<Change>,
    bytes: usize,
    contacts: Vec<Contact>,
    flushed_ms: u64,
    frozen_until_ms: u64,
}

fn rank_in(value: &[u8]) -> Rank {
    Rank::from_le_bytes(value.try_into().expect("a rank has four bytes"))
}

impl Change {
    /// The memory that it takes.
    fn bytes(&self) -> usize {
        self.difference.len() + CHANGE_BYTES
    }
}

/// A parity bucket of the group.
struct Contact {
    parity: Seat,
    server: Address,
    /// The changes that it has; `None` while it is being built.
    have: Option<u64>,
    sent: u64,
    sent_ms: Option<u64>,
    /// Since when it has not said that it has more of what was sent.
    stalled_ms: u64,
    /// When a message was sent that it has answered.
    lease_ms: Option<u64>,
    /// The time since it was last heard, or first asked.
    silent_ms: u64,
    is_full: bool,
}

impl Member {
    /// The part of an empty bucket.
    pub(crate) fn new(slab: &mut Slab, seat: Seat) -> Result<Member, Full> {
        Ok(Member {
            seat,
            ranks: Bucket::new(slab)?,
            free: Vec::new(),
            next: 0,
            changes: 0,
            unconfirmed: VecDeque::new(),
            bytes: 0,
            contacts: Vec::new(),
            flushed_ms: 0,
            frozen_until_ms: 0,
        })
    }

    /// Notes the rank of a record that was recovered.
    pub(crate) fn recovered(&mut self, slab: &mut Slab, key: &[u8], rank: Rank) -> Result<(), Full> {
        self.next = self.next.max(rank + 1);
        self.ranks.put(slab, key, &rank.to_le_bytes(), None).map(drop)
    }

    /// Continues, with the records that were recovered, after so many changes, of which these are not confirmed.
    pub(crate) fn continues_after(&mut self, slab: &Slab, changes: u64, unconfirmed: Vec<Change>) {
        assert!(self.changes == 0 && self.unconfirmed.is_empty(), "a recovered bucket has not changed yet");
        let mut is_taken = vec![false; self.next as usize];
        let mut place = self.ranks.first();
        while let Some(record) = self.ranks.next(slab, &mut place) {
            is_taken[rank_in(record.value) as usize] = true;
        }
        self.free = (0..self.next).filter(|rank| !is_taken[*rank as usize]).collect();
        self.changes = changes;
        self.bytes = unconfirmed.iter().map(Change::bytes).sum();
        self.unconfirmed = unconfirmed.into();
    }

    /// The number of the latest change, and the latest changes that not all parity buckets are known to have.
    pub(crate) fn unconfirmed(&self) -> (u64, Vec<Change>) {
        (self.changes, self.unconfirmed.iter().cloned().collect())
    }

    /// Returns the memory to the slab.
    pub(crate) fn clear(self, slab: &mut Slab) {
        self.ranks.clear(slab);
    }

    /// Adopts the parity buckets of the group.
    pub(crate) fn follow(&mut self, group: &Group) {
        let mut old = std::mem::take(&mut self.contacts);
        let confirmed = self.confirmed();
        let data = group.shape().data;
        self.contacts = group
            .parities()
            .map(|(i, occupant)| {
                let parity = Seat { group: group.id, index: data + i, incarnation: occupant.incarnation };
                let known = old.iter().position(|contact| contact.parity == parity);
                known.map(|at| old.swap_remove(at)).unwrap_or_else(|| Contact {
                    parity,
                    server: occupant.server.clone(),
                    have: None,
                    sent: confirmed,
                    sent_ms: None,
                    stalled_ms: 0,
                    lease_ms: None,
                    silent_ms: 0,
                    is_full: false,
                })
            })
            .collect();
        self.confirm();
    }

    fn rank(&self, slab: &Slab, key: &[u8]) -> Option<Rank> {
        let record = self.ranks.get(slab, key)?;
        Some(rank_in(record.value))
    }

    /// Gives a key a rank, if it has none. Returns whether it had none.
    pub(crate) fn reserve(&mut self, slab: &mut Slab, key: &[u8]) -> Result<bool, Full> {
        if self.ranks.get(slab, key).is_some() {
            return Ok(false);
        }
        let rank = self.free.last().copied().unwrap_or(self.next);
        self.ranks.put(slab, key, &rank.to_le_bytes(), None)?;
        if self.free.pop().is_none() {
            self.next += 1;
        }
        Ok(true)
    }

    /// Takes the rank of a key away.
    pub(crate) fn release(&mut self, slab: &mut Slab, key: &[u8]) {
        if let Some(rank) = self.rank(slab, key) {
            self.ranks.remove(slab, key);
            self.free.push(rank);
        }
    }

    /// Records a change of a record whose key has a rank.
    pub(crate) fn changed(&mut self, slab: &mut Slab, key: &[u8], old: Option<&[u8]>, new: Option<&[u8]>) {
        let rank = self.rank(slab, key).expect("a key has a rank before it has a record");
        let of = |value: Option<&[u8]>| value.map(|value| line(key, value)).unwrap_or_default();
        self.push(Change { rank, difference: difference(of(old), &of(new)).into(), noted: Vec::new() });
        if new.is_none() {
            self.release(slab, key);
        }
    }

    /// Records the answer to a request: with the change that the request has just made, or by itself.
    pub(crate) fn noted(&mut self, noted: Noted, has_changed: bool) {
        match self.unconfirmed.back_mut().filter(|_| has_changed) {
            Some(change) => change.noted.push(noted),
            None => self.noted_all(vec![noted]),
        }
    }

    /// Records the answers that came with records from another bucket.
    pub(crate) fn noted_all(&mut self, noted: Vec<Noted>) {
        self.push(Change { rank: 0, difference: Bytes::default(), noted });
    }

    fn push(&mut self, change: Change) {
        self.changes += 1;
        self.bytes += change.bytes();
        self.unconfirmed.push_back(change);
    }

    /// The number of the latest change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn confirmed(&self) -> u64 {
        self.changes - self.unconfirmed.len() as u64
    }

    /// Whether all parity buckets have the changes up to a number.
    pub(crate) fn is_safe(&self, changes: u64) -> bool {
        self.contacts.iter().all(|contact| contact.have.is_some_and(|have| have >= changes))
    }

    /// Whether all parity buckets that are complete have all changes.
    pub(crate) fn is_agreed(&self) -> bool {
        self.contacts.iter().all(|contact| contact.have.is_none_or(|have| have >= self.changes))
    }

    /// Whether the bucket may answer requests.
    pub(crate) fn may_serve(&self, now_ms: u64) -> bool {
        let is_valid = |sent_ms: u64| now_ms < sent_ms + LEASE_MS;
        self.contacts.iter().all(|contact| contact.lease_ms.is_some_and(is_valid))
    }

    /// Whether the bucket may be changed now.
    pub(crate) fn may_change(&self, now_ms: u64) -> bool {
        now_ms >= self.frozen_until_ms && self.bytes <= WINDOW_BYTES
    }

    /// The parity buckets that do not answer.
    pub(crate) fn silent(&self) -> impl Iterator<Item = Seat> {
        let silent = self.contacts.iter().filter(|contact| contact.silent_ms >= SILENT_MS);
        silent.map(|contact| contact.parity)
    }

    /// A server whose memory is too full for the parity of more records.
    pub(crate) fn full(&self) -> Option<&Address> {
        self.contacts.iter().find(|contact| contact.is_full).map(|contact| &contact.server)
    }

    /// Keeps the bucket as it is for a while.
    pub(crate) fn freeze(&mut self, now_ms: u64) {
        self.frozen_until_ms = now_ms + FREEZE_MS;
    }

    /// Handles the word of a parity bucket about the changes that it has.
    pub(crate) fn have(
        &mut self,
        now_ms: u64,
        parity: Seat,
        (sent_ms, changes, is_full): (u64, Option<u64>, bool),
    ) {
        let Some(contact) = self.contacts.iter_mut().find(|contact| contact.parity == parity) else { return };
        contact.lease_ms = contact.lease_ms.max(Some(sent_ms));
        contact.silent_ms = 0;
        contact.is_full = is_full;
        let changes = changes.filter(|changes| *changes <= self.changes);
        if changes > contact.have {
            (contact.have, contact.stalled_ms) = (changes, now_ms);
        }
        contact.sent = contact.sent.max(contact.have.unwrap_or_default());
        self.confirm();
    }

    /// Drops the changes that all parity buckets have.
    fn confirm(&mut self) {
        let safe = self.contacts.iter().map(|contact| contact.have.unwrap_or_default()).min();
        while self.confirmed() < safe.unwrap_or(self.changes)
            && let Some(change) = self.unconfirmed.pop_front()
        {
            self.bytes -= change.bytes();
        }
    }

    /// Sends what was not sent yet, what has to be sent again, and requests for leases.
    pub(crate) fn flush(&mut self, now_ms: u64, out: &mut Outbox) {
        // A group may have no parity bucket for a while, so that nobody confirms anything.
        self.confirm();
        let confirmed = self.confirmed();
        let passed_ms = (now_ms - self.flushed_ms).min(COUNTED_MS);
        self.flushed_ms = now_ms;
        for contact in &mut self.contacts {
            contact.silent_ms += passed_ms;
            let is_silent_for = |ms: u64| contact.sent_ms.is_none_or(|sent_ms| now_ms >= sent_ms + ms);
            if let Some(have) = contact.have
                && contact.sent > have
                && now_ms >= contact.stalled_ms + RESEND_MS
            {
                (contact.sent, contact.stalled_ms) = (have, now_ms);
            }
            let has_more = contact.have.is_some() && contact.sent < self.changes;
            if !has_more && !is_silent_for(RENEW_MS) {
                continue;
            }
            contact.sent_ms = Some(now_ms);
            if contact.have == Some(contact.sent) {
                contact.stalled_ms = now_ms;
            }
            let mut is_first = true;
            while is_first || (contact.have.is_some() && contact.sent < self.changes) {
                is_first = false;
                contact.sent = contact.sent.max(confirmed);
                let first = contact.sent + 1;
                let mut bytes = 0;
                let fits = |change: &&Change| {
                    let has_room = bytes < MESSAGE_BYTES;
                    bytes += change.bytes();
                    has_room
                };
                let rest = self.unconfirmed.iter().skip((contact.sent - confirmed) as usize);
                let changes: Vec<Change> =
                    rest.take_while(fits).filter(|_| contact.have.is_some()).cloned().collect();
                contact.sent += changes.len() as u64;
                let message =
                    ParityMessage::Changes { seat: self.seat, sent_ms: now_ms, first, confirmed, changes };
                out.push((To::Server(contact.server.clone()), Message::Parity(message)));
            }
        }
    }

    /// The lines of the records from `cursor` on, and where the next part begins.
    pub(crate) fn lines(
        &self,
        slab: &Slab,
        tree: &Bucket,
        cursor: &[u8],
    ) -> (Vec<(Rank, Bytes)>, Option<Bytes>) {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let mut place = tree.seek(slab, cursor, false);
        while let Some(record) = tree.next(slab, &mut place) {
            if bytes >= MESSAGE_BYTES {
                return (lines, Some(record.key.into()));
            }
            let line: Bytes = line(record.key, record.value).into();
            bytes += line.len();
            let rank = self.rank(slab, record.key).expect("each record has a rank");
            lines.push((rank, line));
        }
        (lines, None)
    }
}
