//! Which buckets are split, merged and moved, and when.
//!
//! Model: a bucket with too many records is split. One with few is merged with the one before it, on the server that
//! has that, if both together are small. Users may ask for either, and for moves. A server that ends gives all its
//! buckets away. In each case records move by a transfer, and requests for them are forwarded from then on. Two
//! neighbours on one server are merged at once.
//! Invariant: buckets neither split nor merge again and again, while their size stays about the same.
//! Non-goals: how records move; see transfer.rs. Even load on all servers.

use super::image::Address;
use super::interval::{Interval, Point, Upper};
use super::message::{Answer, Arrange, Outcome, Refused, Spec, TableId, Underfull};
use super::owned::Owned;
use super::server::{BucketServer, Outbox, Served};
use super::transfer::Purpose;

impl BucketServer {
    fn bucket(&mut self, (table, at): (TableId, usize)) -> &mut Owned {
        &mut self.tables.get_mut(&table).expect("whoever asks has seen it").buckets[at]
    }

    /// The buckets that meet a condition and were not refused a moment ago.
    fn buckets_that(&self, now_ms: u64, fits: impl Fn(&Served, &Owned) -> bool) -> Vec<(TableId, usize)> {
        let of = |(table, served): (&TableId, &Served)| {
            let fits =
                |at: &usize| now_ms >= served.buckets[*at].retry_ms && fits(served, &served.buckets[*at]);
            (0..served.buckets.len()).filter(fits).map(|at| (*table, at)).collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(of).collect()
    }

    /// Splits buckets with too many records.
    pub(crate) fn split_what_is_over(&mut self, now_ms: u64, out: &mut Outbox) {
        if self.peers.is_empty() || self.is_closing() {
            return;
        }
        for (table, at) in self.buckets_that(now_ms, |served, bucket| bucket.is_over(&served.spec)) {
            let served = &self.tables[&table];
            if let Some(part) = served.buckets[at].upper_part(&self.slab, &served.spec) {
                self.begin_leaving(now_ms, (table, at), (part, Purpose::Split), (None, None), out);
            }
        }
    }

    /// Offers buckets with few records to the servers of the buckets before them.
    pub(crate) fn merge_what_is_underfull(&mut self, now_ms: u64, out: &mut Outbox) {
        let since_ms = now_ms.saturating_sub(self.merge_age_ms);
        for (table, at) in
            self.buckets_that(now_ms, |served, bucket| bucket.is_underfull(since_ms, &served.spec))
        {
            let served = self.tables.get_mut(&table).expect("it was just found");
            let before = served.before(&served.buckets[at].interval.from, &self.me);
            let (spec, bucket) = (served.spec, &mut served.buckets[at]);
            bucket.since_ms = now_ms;
            let whole = bucket.interval.clone();
            let underfull = Underfull {
                from: whole.from.clone(),
                records: bucket.tree.len() as u64,
                bytes: bucket.bytes,
            };
            if before.as_ref() == Some(&self.me) && spec.parity.is_none() {
                let is_to_merge = self.may_merge(&spec, &underfull);
                self.bucket((table, at)).is_to_merge = is_to_merge;
            } else if before.is_some() {
                let moves = (whole, Purpose::MergeIfSmall);
                self.begin_leaving(now_ms, (table, at), moves, (before, Some(underfull)), out);
            }
        }
    }

    /// Whether this server has the bucket before one with few records, and both together are far from being split.
    pub(crate) fn may_merge(&self, spec: &Spec, underfull: &Underfull) -> bool {
        let Some(served) = self.tables.get(&spec.id) else { return false };
        let from = Upper::Key(underfull.from.clone());
        served.buckets.iter().any(|bucket| {
            bucket.interval.to == from
                && bucket.may_change_hands()
                && (underfull.records == 0 || bucket.may_grow_by(spec, (underfull.records, underfull.bytes)))
        })
    }

    /// Merges buckets that are to be merged with the one before them, which is here.
    pub(crate) fn merge_neighbours(&mut self, now_ms: u64) {
        for served in self.tables.values_mut() {
            for at in (0..served.buckets.len()).rev() {
                let bucket = &mut served.buckets[at];
                if !bucket.is_to_merge || !bucket.may_change_hands() {
                    continue;
                }
                bucket.is_to_merge = false;
                let from = Upper::Key(bucket.interval.from.clone());
                let Some(before) = at.checked_sub(1).map(|before| &served.buckets[before]) else { continue };
                if before.interval.to != from || !before.may_change_hands() {
                    continue;
                }
                let bucket = served.buckets.remove(at);
                let before = &mut served.buckets[at - 1];
                match before.merge(now_ms, &mut self.slab, bucket) {
                    None => {
                        let element = before.element(&self.me);
                        served.image.learn(&element);
                    }
                    Some(bucket) => served.buckets.insert(at, bucket),
                }
            }
        }
    }

    /// Takes no more buckets, and gives its own away from now on.
    pub(crate) fn close(&mut self, now_ms: u64) {
        self.closing_ms = Some(now_ms);
        let buckets = self.tables.values_mut().flat_map(|served| &mut served.buckets);
        buckets.for_each(|bucket| bucket.retry_ms = 0);
    }

    /// Whether this server gives all its buckets away, and takes none.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing_ms.is_some()
    }

    /// Gives all buckets to whichever servers have room.
    pub(crate) fn give_away(&mut self, now_ms: u64, out: &mut Outbox) {
        for (table, at) in self.buckets_that(now_ms, |_, bucket| bucket.may_change_hands()) {
            let interval = self.tables[&table].buckets[at].interval.clone();
            self.begin_leaving(now_ms, (table, at), (interval, Purpose::Move), (None, None), out);
        }
    }

    /// Whether this server has no bucket that another one may still take.
    pub(crate) fn has_given_away(&self, now_ms: u64) -> bool {
        let mut buckets = self.tables.values().flat_map(|served| &served.buckets);
        let is_over = !self.awaits_registrar(now_ms)
            && buckets.all(|bucket| bucket.may_change_hands() && now_ms < bucket.retry_ms);
        self.peers.is_empty() || is_over
    }

    /// Whether this server has buckets with parity.
    pub(crate) fn has_parity(&self) -> bool {
        self.tables.values().any(|served| served.spec.parity.is_some() && !served.buckets.is_empty())
    }

    /// Does what a user asks of the bucket with the key, or begins to.
    pub(crate) fn arrange(
        &mut self,
        now_ms: u64,
        (table, at): (TableId, usize),
        arrange: &Arrange,
        out: &mut Outbox,
    ) -> Outcome {
        let me = self.me.clone();
        let whole = self.bucket((table, at)).interval.clone();
        let begins = *whole.from == *arrange.key();
        let has_parity = self.tables[&table].spec.parity.is_some();
        let (part, purpose, to) = match arrange {
            Arrange::Split { to, .. } if begins && to.as_ref().is_none_or(|to| *to == me) => {
                self.bucket((table, at)).is_pinned = true;
                return Outcome::Answer(Answer::Done);
            }
            Arrange::Split { to, .. } if begins => (whole, Purpose::Move, to.clone()),
            Arrange::Split { key, to } => (Interval::of(key, whole.to), Purpose::SplitAt, to.clone()),
            Arrange::Move { to, .. } if *to == me => return Outcome::Answer(Answer::Done),
            Arrange::Move { to, .. } => (whole, Purpose::Move, Some(to.clone())),
            Arrange::Merge { key } if !begins || key.is_empty() => return Outcome::Answer(Answer::Done),
            Arrange::Merge { key } => match self.tables[&table].before(key, &me) {
                Some(before) if before == me && !has_parity => {
                    let bucket = self.bucket((table, at));
                    if now_ms < bucket.retry_ms {
                        return Outcome::Refused(Refused::NoRoom(Some(me)));
                    }
                    bucket.is_to_merge = true;
                    return Outcome::Refused(Refused::Underway(me));
                }
                // The server that had it has been restarted.
                None => return Outcome::Refused(Refused::Lost(me)),
                before => (whole, Purpose::Merge, before),
            },
        };
        // Buckets with parity are merged by a transfer, also on one server. A user decides whatever their sizes are.
        let joins = has_parity && purpose == Purpose::Merge;
        let underfull = joins.then(|| Underfull { from: part.from.clone(), records: 0, bytes: 0 });
        if to.as_ref() == Some(&me) && !joins {
            return Outcome::Refused(Refused::Here(me));
        }
        let is_known = to.as_ref().is_none_or(|to| *to == me || self.peers.contains(to));
        let bucket = self.bucket((table, at));
        if !bucket.may_change_hands() {
            return Outcome::Refused(Refused::Underway(me));
        }
        if !is_known || now_ms < bucket.retry_ms {
            return Outcome::Refused(Refused::NoRoom(to));
        }
        self.begin_leaving(now_ms, (table, at), (part, purpose), (to, underfull), out);
        Outcome::Refused(Refused::Underway(me))
    }
}

impl Served {
    /// The server with the keys right before this one, as far as is known.
    fn before(&self, key: &[u8], me: &Address) -> Option<Address> {
        let to = Upper::Key(key.into());
        self.owner(Point::Before(&to), me).map(|element| element.address)
    }
}
