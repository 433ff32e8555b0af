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

use super::super::interval::Interval;
use super::super::message::{Message, TransferId};
use super::super::owned::Owned;
use super::super::server::{BucketServer, Outbox, To};
use super::super::transfer::{Arrived, Origin};
use super::message::{Fate, ParityMessage};
use super::serve::to_registrar;

impl BucketServer {
    /// Whether the next piece of a transfer may be taken. If not, its sender sends it again.
    pub(crate) fn may_receive(&self, now_ms: u64, id: TransferId, out: &mut Outbox) -> bool {
        let Some(receipt) = self.receipts.get(&id).filter(|receipt| receipt.spec.parity.is_some()) else {
            return true;
        };
        match &receipt.member {
            Some(member) => receipt.arrived.is_none() && member.may_change(now_ms) && member.full().is_none(),
            None => {
                out.push(to_registrar(ParityMessage::Join { id, spec: receipt.spec }));
                false
            }
        }
    }

    /// Asks the registrar to commit what has arrived.
    pub(super) fn commit(&self, out: &mut Outbox) {
        for (id, receipt) in &self.receipts {
            if let (Some(Arrived { last, .. }), Some(member)) = (&receipt.arrived, &receipt.member)
                && member.is_safe(member.changes())
                && let Some(from) = last.seat
            {
                let part = last.interval.clone();
                out.push(to_registrar(ParityMessage::Commit { id: *id, seat: member.seat, from, part }));
            }
        }
    }

    /// Asks the registrar for the fate of what was sent and is not acknowledged.
    pub(super) fn resolve(&self, now_ms: u64, out: &mut Outbox) {
        let buckets = self.tables.values().flat_map(|served| &served.buckets);
        let handed_over = |bucket: &Owned| {
            let leaving = bucket.leaving.as_ref().filter(|leaving| leaving.is_overdue(now_ms))?;
            bucket.member.as_ref().map(|_| leaving.id)
        };
        let ids = buckets.filter_map(handed_over);
        out.extend(ids.map(|id| to_registrar(ParityMessage::Resolve { id })));
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
        let Arrived { last, number, sender } = receipt.arrived.expect("it was just found");
        let tree = receipt.tree.expect("a piece was put into it");
        let mut bucket = Owned::of(tree, receipt.bytes, interval, epoch);
        bucket.member = receipt.member;
        bucket.journal.add(now_ms, last.journal);
        bucket.origin = Some(Origin::new(now_ms, id, number, &sender));
        bucket.is_pinned = last.is_pinned;
        self.adopt(receipt.spec, bucket, &last.neighbours);
        out.push((To::Server(sender), Message::Taken { id, number }));
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
