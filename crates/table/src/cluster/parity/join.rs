//! Merges of buckets with parity: the records of a bucket join those of the bucket before it.
//!
//! ```text
//! sender                          receiver                        registrar
//! Piece 0, 1, ...          --->   puts the records behind its own, and into its parity
//! last Piece               --->   when all parity has it: Commit ---> the keys belong to the receiver
//! ```
//!
//! Model: as transfers to a new bucket (transfer.rs), but the records get no seat of their own. A server that has both
//! buckets sends the pieces to itself.
//! Invariant: a bucket does not serve records beyond its keys. They are removed when the transfer is cancelled, or when
//! the bucket is recovered before the registrar has committed it.

use super::super::image::Address;
use super::super::interval::{Bytes, Upper};
use super::super::message::{Message, Operation, Piece, TableId, To, TransferId, Underfull};
use super::super::owned::Owned;
use super::super::server::{BucketServer, Outbox};
use super::super::transfer::{Arrived, Origin};
use super::message::{Placed, Seat};
use crate::slab::Full;

impl BucketServer {
    /// The bucket of a seat, if this server serves it.
    pub(super) fn of_seat(&mut self, seat: Seat) -> Option<&mut Owned> {
        let mut buckets = self.tables.values_mut().flat_map(|served| &mut served.buckets);
        buckets.find(|bucket| bucket.member.as_ref().is_some_and(|member| member.seat == seat))
    }

    /// Lets the bucket before one with few records wait for them. Returns its seat.
    pub(crate) fn begin_joining(&mut self, table: TableId, id: TransferId, next: &Underfull) -> Option<Seat> {
        let to = Upper::Key(next.from.clone());
        let served = self.tables.get_mut(&table)?;
        let bucket = served.buckets.iter_mut().find(|bucket| bucket.interval.to == to)?;
        bucket.joining = Some(id);
        bucket.member.as_ref().map(|member| member.seat)
    }

    /// Puts a piece behind the records of the bucket of a seat.
    pub(crate) fn join_piece(&mut self, now_ms: u64, from: &Address, piece: Piece, out: &mut Outbox) {
        let Piece { id, number, changes, last, .. } = piece;
        let found = self.receipts.get(&id).and_then(|receipt| Some((receipt.into?, receipt.next)));
        let Some((seat, next)) = found else { return };
        let taken = (To::Server(from.clone()), Message::Taken { id, number });
        if number < next {
            return out.push(taken);
        }
        if number > next || self.join_records(seat, changes).is_err() {
            self.end(now_ms, id);
            return out.push((To::Server(from.clone()), Message::Unknown { id, run: self.run }));
        }
        let bucket = self.of_seat(seat).expect("records were put into it");
        let member = bucket.member.as_mut().expect("it has a seat");
        let arrived = last.map(|last| Arrived::new(member, last, number));
        member.flush(now_ms, out);
        out.extend(arrived.is_none().then_some(taken));
        let receipt = self.receipts.get_mut(&id).expect("it was just found");
        (receipt.next, receipt.heard_ms, receipt.arrived) = (number + 1, now_ms, arrived);
    }

    fn join_records(&mut self, seat: Seat, changes: Vec<(Bytes, Option<Bytes>)>) -> Result<(), Full> {
        let buckets = self.tables.values_mut().flat_map(|served| &mut served.buckets);
        let mut of_seat =
            buckets.filter(|bucket| bucket.member.as_ref().is_some_and(|member| member.seat == seat));
        let bucket = of_seat.next().ok_or(Full)?;
        for (key, value) in changes {
            let operation = match value {
                Some(value) => Operation::Upsert { key, value },
                None => Operation::Delete { key },
            };
            bucket.apply(&mut self.slab, &operation)?;
        }
        Ok(())
    }

    /// Serves records that have joined the bucket of a seat, once the registrar has given them to it.
    pub(super) fn have_joined(&mut self, now_ms: u64, seat: Seat, placed: &Placed, out: &mut Outbox) {
        let joined = |id: &TransferId| {
            let receipt = self.receipts.get(id).filter(|receipt| receipt.into == Some(seat))?;
            receipt.arrived.as_ref().filter(|arrived| placed.has(&arrived.last.interval)).map(|_| *id)
        };
        let Some(id) = self.receipts.keys().find_map(joined) else { return };
        let receipt = self.receipts.remove(&id).expect("it was just found");
        self.reserved -= receipt.reserved;
        let Arrived { last, number } = receipt.arrived.expect("it was just found");
        let bucket = self.of_seat(seat).expect("the registrar has it");
        bucket.joins(now_ms, last, placed.epoch);
        bucket.origin = Some(Origin::new(now_ms, id, number, &receipt.sender));
        out.push((To::Server(receipt.sender), Message::Taken { id, number }));
    }

    /// Removes records that do not join the bucket of a seat after all.
    pub(crate) fn give_up_joining(&mut self, seat: Seat) {
        if let Some(bucket) = self.of_seat(seat) {
            bucket.joining = None;
            bucket.sheds();
        }
    }
}
