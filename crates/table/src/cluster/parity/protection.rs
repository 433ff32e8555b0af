//! The state that a server has for groups, besides its buckets. See serve.rs for what it does with it.

use std::collections::BTreeMap;

use super::super::interval::Point;
use super::super::message::{Message, TableId, To};
use super::keeper::Keeper;
use super::message::{Group, GroupId, Seat};
use super::restore::{Recovered, Restore};
use crate::slab::Slab;

/// What a server has for groups, besides the buckets that it serves.
#[derive(Default)]
pub(crate) struct Protection {
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) keepers: BTreeMap<GroupId, Keeper>,
    pub(super) restores: BTreeMap<Seat, Restore>,
    /// Buckets from files, of which it is not known yet whether they still have their seats.
    pub(super) returned: Vec<Returned>,
    /// Replies that wait until changes are safe.
    pub(super) waiting: Vec<Waiting>,
    pub(super) asked_ms: u64,
}

/// A reply that waits until these changes of buckets are safe.
pub(super) struct Waiting {
    pub(super) needs: Vec<(Seat, u64)>,
    pub(super) reply: (To, Message),
}

/// A bucket that has returned, until the registrar says that it still has its seat.
pub(super) struct Returned {
    pub(super) table: TableId,
    pub(super) seat: Seat,
    pub(super) bucket: ReturnedBucket,
}

pub(super) enum ReturnedBucket {
    Data(Box<Recovered>),
    Parity(Keeper),
}

impl Returned {
    /// Returns the memory to the slab.
    pub(super) fn clear(self, slab: &mut Slab) {
        match self.bucket {
            ReturnedBucket::Data(recovered) => recovered.clear(slab),
            ReturnedBucket::Parity(keeper) => keeper.clear(slab),
        }
    }
}

impl Protection {
    /// Whether a bucket with a point is being recovered here.
    pub(crate) fn recovers(&self, table: TableId, point: Point<'_>) -> bool {
        let interval = |seat: &Seat| {
            let group = self.groups.get(&seat.group).filter(|group| group.spec.id == table)?;
            group.occupant(*seat)?.bucket.as_ref()?.interval.as_ref()
        };
        self.restores.keys().filter_map(interval).any(|interval| point.is_in(interval))
    }
}
