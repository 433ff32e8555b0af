//! Transfers between buckets with parity.
//!
//! ```text
//! sender                          receiver                        registrar
//! Piece 0                  --->   Join                     --->   a seat
//! Piece 0, 1, ...          --->   puts the records into its group's parity
//! last Piece               --->   when all parity has it: Commit ---> the records belong to the receiver
//!                          <---   Taken                    <---   the group, with the interval
//! removes the records, from its group's parity too
//! ```
//!
//! Model: as without parity (transfer.rs), but the registrar decides whose the records are. The last piece and its
//! acknowledgement are only messages, so either server may fail at any time: whoever recovers its bucket gets the keys
//! that the registrar has for it. A sender that hears nothing asks the registrar.

use super::super::interval::{Bytes, Interval};
use super::super::message::{HandOver, Message, Spec, TableId, TransferId};
use super::super::owned::Owned;
use super::super::server::{BucketServer, Outbox, To};
use super::super::transfer::{Arrived, Origin, Receipt};
use super::member::MESSAGE_BYTES;
use super::message::{Fate, ParityMessage, Placed, Seat};
use super::serve::to_registrar;
use crate::bucket::Bucket;
use crate::slab::{Full, Slab};

/// How many buckets that clients load are put into the parity at the same time. Each has unconfirmed changes in memory.
const LOADS_TOGETHER: usize = 4;

impl BucketServer {
    /// Whether the next piece of a transfer may be taken. If not, its sender sends it again.
    pub(crate) fn may_receive(&mut self, now_ms: u64, id: TransferId, out: &mut Outbox) -> bool {
        let Some(receipt) = self.receipts.get(&id).filter(|receipt| receipt.spec.parity.is_some()) else {
            return true;
        };
        if let Some(seat) = receipt.into {
            let is_open = receipt.arrived.is_none();
            let member = self.of_seat(seat).and_then(|bucket| bucket.member.as_ref());
            return member.is_some_and(|to| is_open && to.may_change(now_ms) && to.full().is_none());
        }
        match &receipt.member {
            Some(member) => receipt.arrived.is_none() && member.may_change(now_ms) && member.full().is_none(),
            None => {
                out.push(to_registrar(ParityMessage::Join { id, spec: receipt.spec }));
                false
            }
        }
    }

    /// Takes the records of a bucket that a client loads, of which no other bucket has any key.
    pub(crate) fn receive_load(
        &mut self,
        now_ms: u64,
        spec: Spec,
        records: (Bucket, u64),
        interval: Interval,
        out: &mut Outbox,
    ) {
        self.transfers += 1;
        let id = TransferId { run: self.run, number: self.transfers };
        self.receipts.insert(id, Receipt::loaded(now_ms, (self.me.clone(), spec), records, interval));
        out.push(to_registrar(ParityMessage::Join { id, spec }));
    }

    /// Asks the registrar for seats of loaded buckets.
    pub(super) fn join(&self, out: &mut Outbox) {
        for (id, receipt) in &self.receipts {
            if receipt.load.is_some() && receipt.member.is_none() {
                out.push(to_registrar(ParityMessage::Join { id: *id, spec: receipt.spec }));
            }
        }
    }

    /// Puts loaded records into the parity, as far as it has confirmed what was sent before.
    pub(super) fn load(&mut self, now_ms: u64, out: &mut Outbox) {
        let mut failed = Vec::new();
        let is_load = |receipt: &Receipt| {
            receipt.load.is_some() || receipt.arrived.as_ref().is_some_and(Arrived::is_load)
        };
        let loads = self.receipts.iter_mut().filter(|(_, receipt)| is_load(receipt));
        for (id, receipt) in loads.take(LOADS_TOGETHER) {
            match receipt.load(now_ms, &mut self.slab) {
                Ok(()) => receipt.member.iter_mut().for_each(|member| member.flush(now_ms, out)),
                Err(Full) => failed.push(*id),
            }
        }
        failed.into_iter().for_each(|id| self.give_up_receipt(id));
    }

    /// The number of buckets of a table that are on their way to this server.
    pub(crate) fn arriving(&self, table: TableId) -> usize {
        self.receipts.values().filter(|receipt| receipt.spec.id == table).count()
    }

    /// Asks the registrar to commit what has arrived.
    pub(super) fn commit(&self, out: &mut Outbox) {
        let buckets = || self.tables.values().flat_map(|served| &served.buckets);
        let joined = |seat: Seat| {
            buckets().filter_map(|bucket| bucket.member.as_ref()).find(|member| member.seat == seat)
        };
        for (id, receipt) in &self.receipts {
            let member = receipt.member.as_ref().or_else(|| receipt.into.and_then(joined));
            if let (Some(Arrived { last, .. }), Some(member)) = (&receipt.arrived, member)
                && member.is_safe(member.changes())
            {
                let (seat, from, part) = (member.seat, last.seat, last.interval.clone());
                out.push(to_registrar(ParityMessage::Commit { id: *id, seat, from, part }));
            }
        }
    }

    /// Asks the registrar for the fate of what was sent and is not acknowledged.
    pub(super) fn resolve(&self, now_ms: u64, out: &mut Outbox) {
        let buckets = self.tables.values().flat_map(|served| &served.buckets);
        let handed_over = |bucket: &Owned| {
            let leaving = bucket.leaving.as_ref().filter(|leaving| leaving.is_overdue(now_ms))?;
            let (id, seat, part) = (leaving.id, bucket.member.as_ref()?.seat, leaving.part.clone());
            Some(to_registrar(ParityMessage::Resolve { id, seat, part }))
        };
        out.extend(buckets.filter_map(handed_over));
    }

    /// Serves a bucket whose records the registrar has given to it.
    pub(super) fn committed(
        &mut self,
        now_ms: u64,
        id: TransferId,
        (interval, epoch): (Interval, u64),
        out: &mut Outbox,
    ) {
        if self.receipts.get(&id).is_none_or(|receipt| receipt.arrived.is_none()) {
            return;
        }
        let receipt = self.receipts.remove(&id).expect("it was just found");
        self.reserved -= receipt.reserved;
        let Arrived { last, number } = receipt.arrived.expect("it was just found");
        let tree = receipt.tree.expect("a piece was put into it");
        let mut bucket = Owned::of(tree, receipt.bytes, interval, epoch);
        bucket.member = receipt.member;
        bucket.journal.add(now_ms, last.journal);
        (bucket.since_ms, bucket.is_pinned) = (now_ms, last.is_pinned);
        if last.seat.is_some() {
            bucket.origin = Some(Origin::new(now_ms, id, number, &receipt.sender));
            out.push((To::Server(receipt.sender), Message::Taken { id, number }));
        }
        self.adopt(receipt.spec, bucket, &last.neighbours);
    }

    /// Gives up records that the registrar has given to the receiver of a transfer.
    pub(super) fn follow_transfer(&mut self, now_ms: u64, seat: Seat, placed: &Placed, out: &mut Outbox) {
        let mut buckets = self.tables.values().flat_map(|served| &served.buckets);
        let bucket = buckets.find(|bucket| bucket.member.as_ref().is_some_and(|member| member.seat == seat));
        let leaving = bucket.and_then(|bucket| bucket.leaving.as_ref());
        let given = leaving.filter(|leaving| leaving.is_handed_over() && !placed.has(&leaving.part));
        if let Some(id) = given.map(|leaving| leaving.id) {
            self.has_left(now_ms, id, out);
        }
    }

    /// Handles the registrar's word about a transfer.
    pub(super) fn resolved(&mut self, now_ms: u64, id: TransferId, fate: Fate, out: &mut Outbox) {
        match fate {
            Fate::Pending => {}
            Fate::Committed => self.has_left(now_ms, id, out),
            Fate::Cancelled if self.receipts.contains_key(&id) => self.end(now_ms, id),
            Fate::Cancelled => self.take_back(now_ms, id),
        }
    }

    /// Forgets a transfer whose seat has another occupant.
    pub(super) fn forget_receipt(&mut self, id: TransferId) {
        if let Some(receipt) = self.receipts.remove(&id) {
            self.reserved -= receipt.reserved;
            receipt.tree.into_iter().for_each(|tree| tree.clear(&mut self.slab));
            receipt.member.into_iter().for_each(|member| member.clear(&mut self.slab));
        }
    }
}

impl Receipt {
    /// Puts the next loaded records into the parity. After the last, the registrar may give them to the bucket.
    fn load(&mut self, now_ms: u64, slab: &mut Slab) -> Result<(), Full> {
        let (Some(load), Some(member), Some(tree)) = (&mut self.load, &mut self.member, &self.tree) else {
            return Ok(());
        };
        while member.may_change(now_ms) && member.full().is_none() {
            self.heard_ms = now_ms;
            let mut place = tree.seek(slab, &load.from, false);
            let (mut records, mut bytes, mut next): (Vec<(Bytes, Bytes)>, _, _) = (Vec::new(), 0, None);
            while let Some(record) = tree.next(slab, &mut place) {
                if bytes >= MESSAGE_BYTES {
                    next = Some(record.key.into());
                    break;
                }
                bytes += record.key.len() + record.value.len();
                records.push((record.key.into(), record.value.into()));
            }
            for (key, value) in records {
                member.reserve(slab, &key)?;
                member.changed(slab, &key, None, Some(&value));
            }
            let Some(next) = next else {
                let interval = load.interval.clone();
                self.arrived = Some(Arrived::new(member, HandOver::of_load(interval), 0));
                self.load = None;
                return Ok(());
            };
            load.from = next;
        }
        Ok(())
    }
}

impl Arrived {
    /// Whether a client has loaded the records.
    fn is_load(&self) -> bool {
        self.last.seat.is_none()
    }
}

impl HandOver {
    /// The end of a load: nobody hands these keys over.
    fn of_load(interval: Interval) -> HandOver {
        HandOver {
            interval,
            epoch: 0,
            journal: Vec::new(),
            neighbours: Vec::new(),
            is_to_merge: false,
            is_pinned: false,
            seat: None,
        }
    }
}
