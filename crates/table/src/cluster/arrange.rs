//! Which buckets are split, merged and moved, and when.
//!
//! Model: a bucket with too many records is split. One with few is merged with the one before it, on the server that
//! has that, if both together are small. Users may ask for either, and for moves. A server that ends gives all its
//! buckets away. In each case records move by a transfer, and requests for them are forwarded from then on. Two
//! neighbours on one server are merged at once.
//! Invariant: buckets neither split nor merge again and again, while their size stays about the same.
//! Non-goals: how records move; see transfer.rs. Even load on all servers.

use thalweg_base::rng::Rng;

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
            // Neighbours that ask at the same time refuse each other, so each asks again at a time of its own.
            let early_ms = Rng::new(self.run ^ self.transfers).below(self.merge_age_ms);
            bucket.since_ms = now_ms.saturating_sub(early_ms);
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
                let to = before.filter(|_| !self.bucket((table, at)).asks_all);
                self.begin_leaving(now_ms, (table, at), moves, (to, Some(underfull)), out);
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

    /// Whether this server has no bucket that another one may still take, and those that have taken buckets know that
    /// they may pass them on.
    pub(crate) fn has_given_away(&self, now_ms: u64) -> bool {
        let mut buckets = self.tables.values().flat_map(|served| &served.buckets);
        let is_over = !self.awaits_registrar(now_ms)
            && self.releasing.is_empty()
            && self.receipts.is_empty()
            && buckets.all(|bucket| bucket.may_change_hands() && now_ms < bucket.retry_ms);
        self.peers.is_empty() || is_over
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::message::{Message, Operation, To};
    use super::super::scale::{name, number};
    use super::*;

    const SPEC: Spec = Spec { id: 7, capacity: 1000, capacity_bytes: 1 << 30, parity: None };
    const MEMORY: usize = 16 << 20;

    /// Delivers messages until there are none, except those that are `lost`.
    fn exchange(
        servers: &mut [BucketServer],
        (now_ms, from): (u64, usize),
        out: &mut Outbox,
        lost: impl Fn(&Message) -> bool,
    ) {
        let mut network: VecDeque<_> = out.drain(..).map(|message| (from, message)).collect();
        while let Some((from, (to, message))) = network.pop_front() {
            let To::Server(to) = to else { panic!("{message:?} to {to:?}") };
            if !lost(&message) {
                let mut out = Outbox::new();
                servers[number(&to)].take(now_ms, &name(from), message, &mut out);
                network.extend(out.into_iter().map(|message| (number(&to), message)));
            }
        }
    }

    #[test]
    fn a_server_knows_while_records_that_it_gave_away_keep_a_bucket_from_its_next_split() {
        let mut servers: Vec<_> = (0..2).map(|i| BucketServer::new(name(i), i as u64, MEMORY)).collect();
        servers[0].peers = vec![name(1)];
        servers[0].begin(SPEC).unwrap();
        let BucketServer { tables, slab, .. } = &mut servers[0];
        let bucket = &mut tables.get_mut(&SPEC.id).unwrap().buckets[0];
        for key in (0..8_000_u32).rev() {
            let operation = Operation::Insert { key: key.to_be_bytes().into(), value: [][..].into() };
            bucket.apply(slab, &operation).unwrap();
        }
        let mut out = Outbox::new();
        servers[0].tick(0, &mut out);
        assert!(!servers[0].may_shed(0));
        exchange(&mut servers, (0, 0), &mut out, |_| false);
        let splits_again = |server: &BucketServer| server.tables[&SPEC.id].buckets[0].leaving.is_some();
        let mut ticks = 0;
        while servers[0].may_shed(0) {
            servers[0].tick(0, &mut out);
            assert!(!splits_again(&servers[0]));
            ticks += 1;
        }
        assert!(ticks > 1, "a tick removes some");
        servers[0].tick(0, &mut out);
        assert!(splits_again(&servers[0]));
    }

    #[test]
    fn a_server_ends_only_when_others_may_pass_its_buckets_on() {
        let mut servers: Vec<_> = (0..3).map(|i| BucketServer::new(name(i), i as u64, MEMORY)).collect();
        for (server, peers) in servers.iter_mut().zip([&[1][..], &[0, 2], &[0, 1]]) {
            server.peers = peers.iter().copied().map(name).collect();
        }
        servers[0].begin(SPEC).unwrap();
        let mut out = Outbox::new();
        servers[0].close(0);
        servers[0].tick(0, &mut out);
        assert!(!servers[0].has_given_away(0), "the other has not answered yet");
        exchange(&mut servers, (0, 0), &mut out, |message| matches!(message, Message::Release { .. }));
        assert!(!servers[0].has_given_away(0), "whoever has the bucket may not pass it on");
        // It says again that it has the bucket.
        servers[1].tick(1_000, &mut out);
        exchange(&mut servers, (1_000, 1), &mut out, |_| false);
        assert!(servers[0].has_given_away(1_000));
        servers[0].is_gone = true;
        servers[1].close(1_000);
        servers[1].tick(1_000, &mut out);
        exchange(&mut servers, (1_000, 1), &mut out, |_| false);
        assert!(servers[1].has_given_away(1_000) && servers[1].elements(SPEC.id).is_empty());
        servers[1].is_gone = true;
        servers[2].close(2_000);
        servers[2].tick(2_000, &mut out);
        exchange(&mut servers, (2_000, 2), &mut out, |_| false);
        assert!(!servers[2].has_given_away(6_000), "others may still answer");
        let leaving = servers[2].tables[&SPEC.id].buckets[0].leaving.as_ref();
        let id = leaving.expect("it asks for room").id;
        (0..2).for_each(|other| servers[2].no_room(2_000, &name(other), id));
        assert!(servers[2].has_given_away(2_000), "no other server has room");
    }
}
