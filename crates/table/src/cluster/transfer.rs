//! The transfer of records from one server to another: a bucket, or the part of one that was split off.
//!
//! ```text
//! sender                              receiver
//! Reserve to all servers      --->    has room, or not
//!                             <---    Room: the first server that answers is taken, the others are released
//! Piece 0, 1, ...             --->    puts the records into a new tree, which serves nothing yet
//!                             <---    Taken, for each piece
//! last Piece: epoch, journal  --->    serves the interval from now on
//!                             <---    Taken
//! removes the records
//! ```
//!
//! Model: both ends are parts of a [`BucketServer`]. The sender serves until it sends the last piece. Keys that change
//! after they were sent are recorded and sent again. One piece is under way at a time, and is sent again until it is
//! acknowledged, so loss, duplication and reordering do no harm.
//! Invariant: at most one server serves a key. The receiver serves nothing before the last piece, and the sender
//! nothing after it. A sender takes its records back only if the receiver says that it does not have them. If a later
//! run of the receiver says so, changes that the earlier one acknowledged may be lost, which is reported.
//! Non-goals: when to split, merge or move; see arrange.rs.

use std::collections::BTreeSet;

use super::image::{Address, Element};
use super::interval::{Bytes, Interval, Upper};
use super::message::{HandOver, Message, Piece, Spec, TableId, TransferId, Underfull};
use super::owned::Owned;
use super::parity::member::Member;
use super::parity::message::Seat;
use super::server::{BucketServer, Outbox, To};
use crate::bucket::Bucket;
use crate::slab::Slab;

/// The most bytes of a piece, beyond one record.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// How long to wait for a server that has room.
const ASK_MS: u64 = 1_000;
/// The time after which a message is sent again.
const RESEND_MS: u64 = 300;
/// How long a receiver with parity may take for the last piece before the registrar is asked.
const OVERDUE_MS: u64 = 1_000;
/// How long a receiver may be silent before its transfer is cancelled; no limit once the last piece was sent.
const SILENT_MS: u64 = 10_000;
/// How long a sender may be silent: longer than it waits for the receiver.
const ABANDONED_MS: u64 = 3 * SILENT_MS;
/// The time from a failed transfer to the next attempt.
pub(crate) const RETRY_MS: u64 = 2_000;
/// How long a cancelled transfer is remembered: longer than any message is under way.
const REMEMBERED_MS: u64 = 60_000;
/// The memory of a bucket beyond that of its records.
const BUCKET_BYTES: usize = 64 << 10;

/// A bucket, or its upper part, that is moving to another server.
pub(crate) struct Leaving {
    pub(crate) id: TransferId,
    pub(crate) part: Interval,
    pub(crate) purpose: Purpose,
    phase: Phase,
}

/// Why records move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The bucket is too large. Its upper part is determined when a server has room.
    Split,
    /// A user chose where it is split.
    SplitAt,
    /// The whole bucket is merged with the one before it, which the receiver is believed to have: a user said so.
    Merge,
    /// It is merged because it has few records, if both together are small.
    MergeIfSmall,
    /// The whole bucket moves.
    Move,
}

enum Phase {
    /// No server has room so far; these may still have.
    Asking {
        since_ms: u64,
        left: BTreeSet<Address>,
    },
    Sending(Sending),
    /// The last piece was sent.
    HandedOver(Sending),
}

struct Sending {
    to: Address,
    run: u64,
    /// Keys below this were sent.
    sent_to: Upper,
    /// Keys among them that have changed since.
    changed: BTreeSet<Bytes>,
    unacknowledged: Piece,
    /// With parity, the last piece is not sent before so many changes of the bucket are safe.
    needs: u64,
    began_ms: u64,
    sent_ms: u64,
    heard_ms: u64,
}

impl Leaving {
    /// Whether the receiver may serve the part already.
    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self.phase, Phase::HandedOver(_))
    }

    /// The part and its receiver, if that may serve it already.
    pub(crate) fn handed_over(&self) -> Option<(&Interval, &Address)> {
        match &self.phase {
            Phase::HandedOver(sending) => Some((&self.part, &sending.to)),
            _ => None,
        }
    }

    /// Whether the receiver should have acknowledged the last piece by now.
    pub(crate) fn is_overdue(&self, now_ms: u64) -> bool {
        matches!(&self.phase, Phase::HandedOver(sending) if now_ms >= sending.heard_ms + OVERDUE_MS)
    }

    /// Records that a key of the bucket has changed.
    pub(crate) fn changed(&mut self, key: &[u8]) {
        if let Phase::Sending(sending) = &mut self.phase
            && self.part.contains(key)
            && sending.sent_to.is_above(key)
        {
            sending.changed.insert(key.into());
        }
    }
}

impl Sending {
    /// The changes for the next piece, and whether that piece is the last.
    fn fill(&mut self, tree: &Bucket, slab: &Slab, part: &Interval) -> (Vec<(Bytes, Option<Bytes>)>, bool) {
        let mut changes = Vec::new();
        let mut bytes = 0;
        // The other half of the piece is for new records, so that the transfer makes progress.
        while bytes < PIECE_BYTES / 2
            && let Some(key) = self.changed.pop_first()
        {
            let value: Option<Bytes> = tree.get(slab, &key).map(|record| record.value.into());
            bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
            changes.push((key, value));
        }
        if let Upper::Key(from) = self.sent_to.clone() {
            let mut place = tree.seek(slab, &from, false);
            self.sent_to = loop {
                match tree.next(slab, &mut place).filter(|record| part.to.is_above(record.key)) {
                    None => break part.to.clone(),
                    Some(record) if bytes >= PIECE_BYTES => break Upper::Key(record.key.into()),
                    Some(record) => {
                        bytes += record.key.len() + record.value.len();
                        changes.push((record.key.into(), Some(record.value.into())));
                    }
                }
            };
        }
        (changes, self.sent_to == part.to && self.changed.is_empty())
    }
}

/// The transfer by which a bucket came, while its sender may not know that it is complete. Until then the bucket is
/// neither split nor moved: if this server fails, the sender takes its records back.
pub(crate) struct Origin {
    id: TransferId,
    /// The number of its last piece.
    last: u64,
    sender: Address,
    said_ms: u64,
}

impl Origin {
    /// The transfer of a bucket that has just come with this last piece.
    pub(super) fn new(now_ms: u64, id: TransferId, last: u64, sender: &Address) -> Origin {
        Origin { id, last, sender: sender.clone(), said_ms: now_ms }
    }
}

/// Records that are arriving from another server.
pub(crate) struct Receipt {
    pub(super) spec: Spec,
    /// Who sends them; this server itself if a client loads them.
    pub(super) sender: Address,
    /// Bytes that are reserved for the records still to come.
    pub(super) reserved: usize,
    pub(super) next: u64,
    pub(super) heard_ms: u64,
    /// The records, once the first has arrived.
    pub(super) tree: Option<Bucket>,
    pub(super) bytes: u64,
    /// The seat of the new bucket, if the table has parity.
    pub(super) member: Option<Member>,
    /// The last piece, while the registrar has not yet given the records to the new bucket.
    pub(super) arrived: Option<Arrived>,
    /// What is not in the parity yet, if a client loads the records.
    pub(super) load: Option<Load>,
    /// The seat of the bucket that the records join, if the table has parity.
    pub(super) into: Option<Seat>,
}

/// The last piece of a transfer to a bucket with parity.
pub(crate) struct Arrived {
    pub(super) last: HandOver,
    pub(super) number: u64,
}

/// A bucket that a client loads, and whose records go to the parity from a key on.
pub(crate) struct Load {
    pub(super) interval: Interval,
    pub(super) from: Bytes,
}

impl Receipt {
    /// The records of a bucket that a client loads.
    pub(super) fn loaded(
        now_ms: u64,
        (me, spec): (Address, Spec),
        (tree, bytes): (Bucket, u64),
        interval: Interval,
    ) -> Receipt {
        let load = Some(Load { from: interval.from.clone(), interval });
        let (tree, member, arrived) = (Some(tree), None, None);
        Receipt {
            spec,
            sender: me,
            reserved: 0,
            next: 0,
            heard_ms: now_ms,
            tree,
            bytes,
            member,
            arrived,
            load,
            into: None,
        }
    }
}

impl Arrived {
    /// The last piece has arrived; the answers that came with it go to the parity as well.
    pub(super) fn new(member: &mut Member, last: HandOver, number: u64) -> Arrived {
        member.noted_all(last.journal.clone());
        Arrived { last, number }
    }
}

impl BucketServer {
    /// Begins to look for a server that takes a part of a bucket: this one, or the first that answers.
    pub(crate) fn begin_leaving(
        &mut self,
        now_ms: u64,
        (table, at): (TableId, usize),
        (part, purpose): (Interval, Purpose),
        (to, underfull): (Option<Address>, Option<Underfull>),
        out: &mut Outbox,
    ) {
        self.transfers += 1;
        let id = TransferId { run: self.run, number: self.transfers };
        let served = self.tables.get_mut(&table).expect("whoever asks has seen it");
        let bucket = &mut served.buckets[at];
        let bytes = match purpose {
            Purpose::Split => bucket.bytes.div_ceil(2),
            _ => bucket.bytes,
        };
        let reserve = Message::Reserve { id, spec: served.spec, bytes, underfull };
        let peers = to.map_or_else(|| self.peers.clone(), |to| vec![to]);
        let phase = Phase::Asking { since_ms: now_ms, left: peers.iter().cloned().collect() };
        bucket.leaving = Some(Leaving { id, part, purpose, phase });
        out.extend(peers.into_iter().map(|peer| (To::Server(peer), reserve.clone())));
    }

    /// The bucket that a transfer moves away.
    fn leaving(&self, id: TransferId) -> Option<(TableId, usize)> {
        let of = |bucket: &Owned| bucket.leaving.as_ref().is_some_and(|leaving| leaving.id == id);
        self.tables.iter().find_map(|(table, served)| Some((*table, served.buckets.iter().position(of)?)))
    }

    /// Handles an answer that a server has room.
    pub(crate) fn room(&mut self, now_ms: u64, from: &Address, id: TransferId, run: u64, out: &mut Outbox) {
        let release = (To::Server(from.clone()), Message::Release { id });
        let Some((table, at)) = self.leaving(id) else { return out.push(release) };
        let served = self.tables.get_mut(&table).expect("it was just found");
        let bucket = &mut served.buckets[at];
        let part = match &mut bucket.leaving {
            // The bucket has changed since, so the middle is determined again.
            Some(Leaving { phase: Phase::Asking { .. }, purpose: Purpose::Split, .. }) => {
                bucket.upper_part(&self.slab, &served.spec)
            }
            Some(Leaving { phase: Phase::Asking { .. }, part, .. }) => Some(part.clone()),
            Some(Leaving { phase: Phase::Sending(sending) | Phase::HandedOver(sending), .. }) => {
                if sending.to != *from {
                    return out.push(release);
                }
                // The first piece was refused before the receiver had a seat. It is sent again once, as it is much longer
                // than the message that asks for it.
                if sending.unacknowledged.number == 0 && sending.sent_ms == sending.began_ms {
                    sending.sent_ms = now_ms.max(sending.began_ms + 1);
                    let again = Message::Piece(sending.unacknowledged.clone());
                    out.push((To::Server(from.clone()), again));
                }
                return;
            }
            None => None,
        };
        let (Some(part), Some(leaving)) = (part, &mut bucket.leaving) else {
            bucket.leaving = None;
            return out.push(release);
        };
        leaving.phase = Phase::Sending(Sending {
            to: from.clone(),
            run,
            sent_to: Upper::Key(part.from.clone()),
            changed: BTreeSet::new(),
            unacknowledged: Piece { id, run, number: 0, changes: Vec::new(), last: None },
            needs: 0,
            began_ms: now_ms,
            sent_ms: now_ms,
            heard_ms: now_ms,
        });
        leaving.part = part;
        self.send_piece(now_ms, (table, at), 0, out);
    }

    /// Handles an answer that a server has no room, or that it cannot be reached.
    pub(crate) fn no_room(&mut self, now_ms: u64, from: &Address, id: TransferId) {
        let Some((table, at)) = self.leaving(id) else { return };
        let bucket = &mut self.tables.get_mut(&table).expect("it was just found").buckets[at];
        let leaving = bucket.leaving.as_mut().expect("it was just found");
        if let Phase::Asking { left, .. } = &mut leaving.phase
            && left.remove(from)
            && left.is_empty()
        {
            bucket.stays(now_ms);
        }
    }

    fn send_piece(&mut self, now_ms: u64, (table, at): (TableId, usize), number: u64, out: &mut Outbox) {
        let served = self.tables.get_mut(&table).expect("whoever sends has found it");
        let Some(mut leaving) = served.buckets[at].leaving.take() else { return };
        let Phase::Sending(mut sending) = leaving.phase else {
            served.buckets[at].leaving = Some(leaving);
            return;
        };
        let (changes, is_all) = sending.fill(&served.buckets[at].tree, &self.slab, &leaving.part);
        // A receiver with parity needs the registrar for its seat. It has one if it has taken the first piece.
        let is_all = is_all && (number > 0 || served.buckets[at].member.is_none());
        let last = is_all.then(|| {
            let neighbours = served.neighbours(&leaving.part, &self.me);
            served.buckets[at].hand_over((&leaving.part, leaving.purpose), neighbours)
        });
        sending.unacknowledged = Piece { id: leaving.id, run: sending.run, number, changes, last };
        sending.sent_ms = now_ms;
        let piece = (To::Server(sending.to.clone()), Message::Piece(sending.unacknowledged.clone()));
        if !is_all {
            out.push(piece);
            leaving.phase = Phase::Sending(sending);
            served.buckets[at].leaving = Some(leaving);
            return;
        }
        let bucket = &mut served.buckets[at];
        let state = bucket.member.as_ref().map(|member| (member.seat, member.changes()));
        sending.needs = state.map_or(0, |(_, changes)| changes);
        // With parity, the registrar decides on the epoch when it commits the transfer.
        bucket.epoch += u64::from(bucket.member.is_none());
        let mut element = bucket.element(&sending.to);
        element.interval = leaving.part.clone();
        leaving.phase = Phase::HandedOver(sending);
        bucket.leaving = Some(leaving);
        let kept = bucket.element(&self.me);
        served.image.learn(&element);
        if !kept.interval.is_empty() {
            served.image.learn(&kept);
        }
        // Its journal has answers about all keys of this bucket. The receiver must not have those whose changes would be
        // lost with this server.
        self.send_when_safe(state.into_iter().collect(), piece, out);
    }

    /// Handles the acknowledgement of a piece.
    pub(crate) fn taken(
        &mut self,
        now_ms: u64,
        from: &Address,
        (id, number): (TransferId, u64),
        out: &mut Outbox,
    ) {
        let Some((table, at)) = self.leaving(id) else {
            return out.push((To::Server(from.clone()), Message::Release { id }));
        };
        let served = self.tables.get_mut(&table).expect("it was just found");
        let bucket = &mut served.buckets[at];
        match &mut bucket.leaving.as_mut().expect("it was just found").phase {
            Phase::Sending(sending) if sending.unacknowledged.number == number => {
                sending.heard_ms = now_ms;
                self.send_piece(now_ms, (table, at), number + 1, out);
            }
            Phase::HandedOver(sending) if sending.unacknowledged.number == number => {
                self.has_left(now_ms, id, out);
            }
            _ => {}
        }
    }

    /// Gives up the records of a transfer, which its receiver has now.
    pub(super) fn has_left(&mut self, now_ms: u64, id: TransferId, out: &mut Outbox) {
        let Some((table, at)) = self.leaving(id) else { return };
        let served = self.tables.get_mut(&table).expect("it was just found");
        let bucket = &mut served.buckets[at];
        let leaving = bucket.leaving.take().expect("it was just found");
        bucket.shrinks(now_ms, &leaving.part);
        let mut changed = Vec::new();
        if let Phase::Sending(sending) | Phase::HandedOver(sending) = &leaving.phase {
            let records = bucket.moved(&self.slab, &leaving.part);
            served.last_move = Some((sending.to.clone(), records, now_ms - sending.began_ms));
            self.releasing.insert(id, now_ms + SILENT_MS);
            let new =
                Element { interval: leaving.part.clone(), address: sending.to.clone(), epoch: bucket.epoch };
            changed.extend([new, bucket.element(&self.me)].into_iter().filter(|of| !of.interval.is_empty()));
        }
        out.extend(leaving.released());
        if served.buckets[at].interval.is_empty() {
            let bucket = served.buckets.remove(at);
            match bucket.member.is_some() {
                true => self.retiring.push((served.spec, bucket)),
                false => self.shedding.push(bucket),
            }
        }
        self.announce(table, 0, changed, out);
    }

    /// Takes the records of a transfer with parity back, which its receiver will never have.
    pub(super) fn take_back(&mut self, now_ms: u64, id: TransferId) {
        let Some((table, at)) = self.leaving(id) else { return };
        let served = self.tables.get_mut(&table).expect("it was just found");
        let bucket = &mut served.buckets[at];
        bucket.leaving = None;
        bucket.retry_ms = now_ms + RETRY_MS;
        served.image.learn(&bucket.element(&self.me));
    }

    /// Takes the records of a transfer back, because the receiver does not know it.
    pub(crate) fn not_known(&mut self, now_ms: u64, id: TransferId, run: u64, out: &mut Outbox) {
        let Some((table, at)) = self.leaving(id) else { return };
        let served = self.tables.get_mut(&table).expect("it was just found");
        let bucket = &mut served.buckets[at];
        // With parity, the records are not lost with the receiver; the registrar knows whose they are.
        if bucket.member.is_some() && bucket.leaving.as_ref().is_some_and(Leaving::is_handed_over) {
            return;
        }
        let leaving = bucket.leaving.take().expect("it was just found");
        bucket.retry_ms = now_ms + RETRY_MS;
        if let Phase::HandedOver(sending) = leaving.phase {
            // Above any epoch that the receiver may have announced.
            bucket.epoch += 2;
            let element = bucket.element(&self.me);
            served.image.learn(&element);
            if sending.run != run {
                let spec = served.spec.id;
                self.losses.push((spec, leaving.part, sending.to));
            }
        } else {
            out.extend(leaving.released());
        }
    }

    /// Reserves memory for records of another server, if there is enough.
    pub(crate) fn reserve(
        &mut self,
        now_ms: u64,
        from: &Address,
        (id, spec, bytes): (TransferId, Spec, u64),
        underfull: Option<Underfull>,
        out: &mut Outbox,
    ) {
        // This may be a late copy of a request.
        if self.ended.contains_key(&id) || self.origin(id).is_some() {
            return;
        }
        let may_merge = underfull.as_ref().is_none_or(|underfull| self.may_merge(&spec, underfull));
        let needed = (bytes as usize).saturating_mul(3) / 2 + BUCKET_BYTES;
        let free = self.slab.limit().saturating_sub(self.slab.used() + self.reserved);
        if !self.receipts.contains_key(&id) {
            if needed > free || !may_merge || self.is_closing() || self.dropped.contains(&spec.id) {
                return out.push((To::Server(from.clone()), Message::NoRoom { id }));
            }
            self.reserved += needed;
            let joins = underfull.as_ref().filter(|_| spec.parity.is_some());
            let into = joins.and_then(|next| self.begin_joining(spec.id, id, next));
            let receipt = Receipt {
                spec,
                sender: from.clone(),
                reserved: needed,
                next: 0,
                heard_ms: now_ms,
                tree: None,
                bytes: 0,
                member: None,
                arrived: None,
                load: None,
                into,
            };
            self.receipts.insert(id, receipt);
        }
        out.push((To::Server(from.clone()), Message::Room { id, run: self.run }));
    }

    /// Ends a transfer that was cancelled, or whose sender knows that it is complete.
    pub(crate) fn release(&mut self, now_ms: u64, from: &Address, id: TransferId, out: &mut Outbox) {
        // The sender may have learned of the commit before this server.
        let awaits_registrar = |receipt: &Receipt| receipt.arrived.is_some();
        if !self.receipts.get(&id).is_some_and(awaits_registrar) {
            self.end(now_ms, id);
            out.push((To::Server(from.clone()), Message::Released { id }));
        }
    }

    /// Ends a transfer to this server.
    pub(super) fn end(&mut self, now_ms: u64, id: TransferId) {
        match self.origin(id) {
            Some(bucket) => bucket.origin = None,
            None => self.give_up_receipt(id),
        }
        self.ended.insert(id, now_ms + REMEMBERED_MS);
        self.merge_neighbours(now_ms);
    }

    /// The bucket that came by a transfer whose sender may not know yet that it is complete.
    pub(super) fn origin(&mut self, id: TransferId) -> Option<&mut Owned> {
        let mut buckets = self.tables.values_mut().flat_map(|served| &mut served.buckets);
        buckets.find(|bucket| bucket.origin.as_ref().is_some_and(|origin| origin.id == id))
    }

    /// Cancels the transfers of a table to this server.
    pub(crate) fn give_up_receipts_of(&mut self, now_ms: u64, table: TableId) {
        let of = |(id, receipt): (&TransferId, &Receipt)| (receipt.spec.id == table).then_some(*id);
        for id in self.receipts.iter().filter_map(of).collect::<Vec<_>>() {
            self.give_up_receipt(id);
            self.ended.insert(id, now_ms + REMEMBERED_MS);
        }
    }

    pub(super) fn give_up_receipt(&mut self, id: TransferId) {
        if let Some(receipt) = self.receipts.remove(&id) {
            self.reserved -= receipt.reserved;
            receipt.into.into_iter().for_each(|seat| self.give_up_joining(seat));
            match receipt.member {
                None => receipt.tree.into_iter().for_each(|tree| tree.clear(&mut self.slab)),
                Some(member) => self.retire(receipt.spec, receipt.tree, receipt.bytes, member),
            }
        }
    }

    /// Stores a piece from another server.
    pub(crate) fn piece(&mut self, now_ms: u64, from: &Address, piece: Piece, out: &mut Outbox) {
        let Piece { id, run, number, changes, last } = piece;
        let taken = || (To::Server(from.clone()), Message::Taken { id, number });
        let unknown = (To::Server(from.clone()), Message::Unknown { id, run: self.run });
        if run != self.run {
            return out.push(unknown);
        }
        if let Some(origin) = self.origin(id).and_then(|bucket| bucket.origin.as_ref()) {
            if number == origin.last {
                out.push(taken());
            }
            return;
        }
        if !self.may_receive(now_ms, id, out) {
            return;
        }
        if self.receipts.get(&id).is_some_and(|receipt| receipt.into.is_some()) {
            return self.join_piece(now_ms, from, Piece { id, run, number, changes, last }, out);
        }
        let Some(receipt) = self.receipts.get_mut(&id) else { return out.push(unknown) };
        if number < receipt.next {
            return out.push(taken());
        }
        if number > receipt.next || receipt.put(&mut self.slab, &mut self.reserved, changes).is_err() {
            // A piece is missing, and cannot be sent again; or there is less memory than was reserved.
            self.give_up_receipt(id);
            self.ended.insert(id, now_ms + REMEMBERED_MS);
            return out.push(unknown);
        }
        (receipt.next, receipt.heard_ms) = (number + 1, now_ms);
        if let Some(member) = &mut receipt.member {
            receipt.arrived = last.map(|last| Arrived::new(member, last, number));
            member.flush(now_ms, out);
            if receipt.arrived.is_none() {
                out.push(taken());
            }
            return;
        }
        out.push(taken());
        if let Some(last) = last {
            let receipt = self.receipts.remove(&id).expect("it was just found");
            self.reserved -= receipt.reserved;
            let tree = receipt.tree.expect("a piece was put into it");
            let mut bucket = Owned::of(tree, receipt.bytes, last.interval, last.epoch);
            bucket.journal.add(now_ms, last.journal);
            bucket.origin = Some(Origin::new(now_ms, id, number, from));
            bucket.since_ms = now_ms;
            (bucket.is_to_merge, bucket.is_pinned) = (last.is_to_merge, last.is_pinned);
            self.adopt(receipt.spec, bucket, &last.neighbours);
        }
    }

    /// Sends unanswered messages again, and cancels transfers that take too long.
    pub(crate) fn tick_transfers(&mut self, now_ms: u64, out: &mut Outbox) {
        let is_closing = self.is_closing();
        for served in self.tables.values_mut() {
            for bucket in &mut served.buckets {
                if let Some(origin) =
                    bucket.origin.as_mut().filter(|origin| now_ms >= origin.said_ms + RESEND_MS)
                {
                    origin.said_ms = now_ms;
                    let taken = Message::Taken { id: origin.id, number: origin.last };
                    out.push((To::Server(origin.sender.clone()), taken));
                }
                let Some(leaving) = &mut bucket.leaving else { continue };
                let is_safe = |changes| bucket.member.as_ref().is_none_or(|member| member.is_safe(changes));
                let gives_up = match &mut leaving.phase {
                    Phase::Asking { since_ms, .. } => now_ms >= *since_ms + ASK_MS,
                    Phase::Sending(sending) if now_ms >= sending.heard_ms + SILENT_MS => true,
                    Phase::Sending(sending) | Phase::HandedOver(sending) => {
                        if now_ms >= sending.sent_ms + RESEND_MS && is_safe(sending.needs) {
                            sending.sent_ms = now_ms;
                            let piece = Message::Piece(sending.unacknowledged.clone());
                            out.push((To::Server(sending.to.clone()), piece));
                        }
                        false
                    }
                };
                if gives_up {
                    out.extend(bucket.stays(now_ms).and_then(Leaving::released));
                    if is_closing {
                        // It asks again: whoever was slow may have room, and those that are gone are noticed.
                        bucket.retry_ms = 0;
                    }
                }
            }
        }
        let abandoned = |(id, receipt): (&TransferId, &Receipt)| {
            (now_ms >= receipt.heard_ms + ABANDONED_MS && receipt.arrived.is_none()).then_some(*id)
        };
        let abandoned: Vec<TransferId> = self.receipts.iter().filter_map(abandoned).collect();
        for id in abandoned {
            self.give_up_receipt(id);
            self.ended.insert(id, now_ms + REMEMBERED_MS);
        }
        self.ended.retain(|_, until_ms| now_ms < *until_ms);
        self.releasing.retain(|_, until_ms| now_ms < *until_ms);
    }
}

impl Owned {
    /// Cancels a transfer to another server.
    fn stays(&mut self, now_ms: u64) -> Option<Leaving> {
        let leaving = self.leaving.take()?;
        match leaving.purpose {
            Purpose::MergeIfSmall => self.asks_all = !self.asks_all,
            _ => self.retry_ms = now_ms + RETRY_MS,
        }
        Some(leaving)
    }
}

impl Leaving {
    /// The message that tells the receiver that the transfer is cancelled.
    pub(super) fn released(self) -> Option<(To, Message)> {
        match self.phase {
            // Servers that have room learn of it when they answer.
            Phase::Asking { .. } => None,
            Phase::Sending(sending) | Phase::HandedOver(sending) => {
                Some((To::Server(sending.to), Message::Release { id: self.id }))
            }
        }
    }
}

impl Receipt {
    /// Puts records into the tree, and takes their memory from the reservation.
    fn put(
        &mut self,
        slab: &mut Slab,
        reserved: &mut usize,
        changes: Vec<(Bytes, Option<Bytes>)>,
    ) -> Result<(), crate::slab::Full> {
        let before = slab.used();
        let tree = match &mut self.tree {
            Some(tree) => tree,
            none => none.insert(Bucket::new(slab)?),
        };
        for (key, value) in changes {
            let mut old_bytes = tree.get(slab, &key).map_or(0, |old| key.len() + old.value.len());
            if let Some(member) = &mut self.member {
                let old: Option<Bytes> = tree.get(slab, &key).map(|old| old.value.into());
                if value.is_some() {
                    member.reserve(slab, &key)?;
                }
                if value.is_some() || old.is_some() {
                    member.changed(slab, &key, old.as_deref(), value.as_deref());
                }
            }
            match value {
                Some(value) => {
                    tree.put(slab, &key, &value, None)?;
                    self.bytes += (key.len() + value.len()) as u64;
                }
                None if old_bytes > 0 || tree.remove(slab, &key) => _ = tree.remove(slab, &key),
                None => old_bytes = 0,
            }
            self.bytes -= old_bytes as u64;
        }
        let used = slab.used().saturating_sub(before).min(self.reserved);
        self.reserved -= used;
        *reserved -= used;
        Ok(())
    }
}
