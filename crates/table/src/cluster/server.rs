//! The buckets of one server, for all its tables, without threads, sockets or a clock.
//!
//! Model: messages come in, messages go out ([`Outbox`]), and time is an argument. Requests for records of another
//! server are forwarded to that server, as far as the image knows it; the paper's allocation table is `tables` here.
//! Invariant: a request is answered by the bucket that has its key, or refused with a reason, or lost, and its client
//! sends it again. A change is carried out once. Memory stays within the slab's limit.
//! Non-goals: which tables exist; see registrar.rs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::image::{Address, Element, Image};
use super::index::Indexes;
use super::index_message::{Descent, IndexPage};
use super::interval::{Interval, Point, Upper};
use super::journal::Seen;
use super::message::{
    Ask, Asks, HOPS_MAX, Message, Outcome, Page, Refused, Replies, Requests, Scan, Spec, TableId, TransferId,
};
pub(crate) use super::message::{Outbox, To};
use super::owned::{MERGE_AGE_MS, Owned};
use super::parity::protection::Protection;
use super::transfer::Receipt;
use crate::bucket::{PREFETCHED, prefetch};
use crate::slab::{Full, Slab};

/// The most bytes of keys and values in replies to one message, beyond one record. The client requests the rest again.
const REPLIES_BYTES: usize = 4 << 20;
/// The most intervals that a server reports which had them alone.
const HAD_MAX: usize = 1024;
/// The most elements of an adjustment that say where a scan continues.
const AHEAD_MAX: usize = 64;

/// The buckets of a table on this server.
pub(crate) struct Served {
    pub(crate) spec: Spec,
    /// In order.
    pub(crate) buckets: Vec<Owned>,
    /// The location of the table's other buckets, as far as is known, including those that this server gave away.
    pub(crate) image: Image,
    /// The last transfer to another server: that server, the records, and the milliseconds until it had them.
    pub(crate) last_move: Option<(Address, u64, u64)>,
    /// Until then, changes are refused.
    pub(crate) frozen_until_ms: u64,
}

/// The buckets of a server.
pub(crate) struct BucketServer {
    pub(crate) me: Address,
    /// A number of this run: it changes whenever the server starts, which it does without records.
    pub(crate) run: u64,
    pub(crate) slab: Slab,
    /// Bytes that are reserved for records on their way to this server.
    pub(crate) reserved: usize,
    /// Buckets that other servers have now, whose records are removed some at a time.
    pub(crate) shedding: Vec<Owned>,
    /// How long a bucket is not merged after it was split, merged or moved.
    pub(crate) merge_age_ms: u64,
    /// Since when this server gives all its buckets away, and takes none.
    pub(crate) closing_ms: Option<u64>,
    /// Whether all its buckets are in files, so that it serves nothing.
    pub(crate) is_gone: bool,
    /// The other servers.
    pub(crate) peers: Vec<Address>,
    pub(crate) tables: BTreeMap<TableId, Served>,
    /// Tables that were removed, so that no late message recreates them.
    pub(crate) dropped: BTreeSet<TableId>,
    pub(crate) transfers: u64,
    pub(crate) receipts: BTreeMap<TransferId, Receipt>,
    /// Ended transfers, each until none of its messages can still be under way.
    pub(crate) ended: BTreeMap<TransferId, u64>,
    /// Completed transfers whose receivers may not know that, each until the time that one has to answer.
    pub(crate) releasing: BTreeMap<TransferId, u64>,
    /// Buckets with parity that have no keys, whose records are removed before their seats are given back.
    pub(crate) retiring: Vec<(Spec, Owned)>,
    /// Intervals in which changes may be lost, and the server that failed.
    pub(crate) losses: Vec<(TableId, Interval, Address)>,
    /// The server's part in the groups of tables with parity.
    pub(crate) protection: Protection,
    pub(crate) index: Indexes,
}

impl Served {
    fn new(spec: Spec) -> Served {
        Served { spec, buckets: Vec::new(), image: Image::default(), last_move: None, frozen_until_ms: 0 }
    }

    /// The bucket that answers for a point.
    pub(crate) fn at(&self, point: Point<'_>) -> Option<usize> {
        let behind = self.buckets.partition_point(|bucket| point.is_at_or_behind(&bucket.interval.from));
        behind.checked_sub(1).filter(|at| self.buckets[*at].serves(point))
    }

    /// Whether another server may not have taken over the bucket with this point yet.
    fn hands_over(&self, point: Point<'_>) -> bool {
        let mut parts = self.buckets.iter().filter_map(|bucket| bucket.leaving.as_ref()?.handed_over());
        parts.any(|(part, _)| point.is_in(part))
    }

    /// The owner of a point, as far as is known.
    pub(crate) fn owner(&self, point: Point<'_>, me: &Address) -> Option<Element> {
        let own = self.at(point).map(|at| self.buckets[at].element(me));
        own.or_else(|| self.image.owner(point).cloned())
    }

    /// The owners of the keys right before and after an interval.
    pub(crate) fn neighbours(&self, interval: &Interval, me: &Address) -> Vec<Element> {
        let from = Upper::Key(interval.from.clone());
        let before = Some(Point::Before(&from)).filter(|_| !interval.from.is_empty());
        let behind = match &interval.to {
            Upper::Key(key) => Some(Point::At(key)),
            Upper::Infinite => None,
        };
        [before, behind].into_iter().flatten().filter_map(|point| self.owner(point, me)).collect()
    }

    /// The location of this server's nearest bucket before a point, for a client that believed that this server had
    /// the point.
    fn nearest_before(&self, point: Point<'_>, me: &Address) -> Option<Element> {
        let behind = self.buckets.partition_point(|bucket| point.is_at_or_behind(&bucket.interval.from));
        let element = self.buckets[behind.checked_sub(1)?].element(me);
        (!element.interval.is_empty()).then_some(element)
    }
}

impl BucketServer {
    /// A server without records, with at most `memory` bytes.
    pub(crate) fn new(me: Address, run: u64, memory: usize) -> BucketServer {
        BucketServer {
            me,
            run,
            slab: Slab::new(memory),
            reserved: 0,
            shedding: Vec::new(),
            merge_age_ms: MERGE_AGE_MS,
            closing_ms: None,
            is_gone: false,
            peers: Vec::new(),
            tables: BTreeMap::new(),
            dropped: BTreeSet::new(),
            transfers: 0,
            receipts: BTreeMap::new(),
            ended: BTreeMap::new(),
            releasing: BTreeMap::new(),
            retiring: Vec::new(),
            losses: Vec::new(),
            protection: Protection::default(),
            index: Indexes::default(),
        }
    }

    /// Creates the first bucket of a new table.
    pub(crate) fn begin(&mut self, spec: Spec) -> Result<(), Full> {
        if !self.tables.contains_key(&spec.id) && !self.dropped.contains(&spec.id) {
            let bucket = Owned::new(&mut self.slab, Interval::all(), 1)?;
            self.adopt(spec, bucket, &[]);
        }
        Ok(())
    }

    /// Removes everything of a table, and refuses it from now on.
    fn end_table(&mut self, now_ms: u64, (table, round): (TableId, u64), out: &mut Outbox) {
        let buckets = self.tables.get(&table).map_or(&[][..], |served| &served.buckets);
        // Of a bucket that has just come, the sender may take the keys back.
        let is_alone = |bucket: &&Owned| bucket.origin.is_none() && bucket.member.is_none();
        let mut had: Vec<Interval> = Vec::new();
        for keys in buckets.iter().filter(is_alone).map(Owned::served).filter(|keys| !keys.is_empty()) {
            match had.last_mut().filter(|last| last.to == Upper::Key(keys.from.clone())) {
                Some(last) => last.to = keys.to,
                None => had.push(keys),
            }
        }
        had.truncate(HAD_MAX);
        self.drop_table(now_ms, table);
        out.push((To::Registrar, Message::Ended { table, round, run: self.run, had }));
    }

    /// Removes everything of a table.
    pub(crate) fn drop_table(&mut self, now_ms: u64, table: TableId) {
        self.dropped.insert(table);
        self.give_up_receipts_of(now_ms, table);
        if let Some(served) = self.tables.remove(&table) {
            served.buckets.into_iter().for_each(|bucket| bucket.clear(&mut self.slab));
        }
        self.drop_groups(table);
        self.losses.retain(|(of, ..)| *of != table);
        self.index.drop_table(table);
    }

    /// Adds a bucket, and what is known of others, unless the table was dropped.
    pub(crate) fn adopt(&mut self, spec: Spec, bucket: Owned, others: &[Element]) {
        if self.dropped.contains(&spec.id) {
            return bucket.clear(&mut self.slab);
        }
        let served = self.tables.entry(spec.id).or_insert_with(|| Served::new(spec));
        let elsewhere = others.iter().filter(|other| other.address != self.me);
        elsewhere.for_each(|other| served.image.learn(other));
        served.image.learn(&bucket.element(&self.me));
        let at = served.buckets.partition_point(|other| other.interval.from < bucket.interval.from);
        served.buckets.insert(at, bucket);
    }

    /// Processes a message from another server, or requests of a client.
    pub(crate) fn take(&mut self, now_ms: u64, from: &Address, message: Message, out: &mut Outbox) {
        if self.is_gone {
            return;
        }
        match message {
            Message::Requests(requests) => self.requests(now_ms, requests, out),
            Message::Replies(replies) => self.relay(replies, out),
            Message::Where { table, client } => {
                let adjustment = self.elements(table);
                let outcomes = Vec::new();
                let replies = Replies { table, client, path: Vec::new(), adjustment, outcomes, trace: None };
                out.push((To::Client, Message::Replies(replies)));
            }
            Message::Reserve { id, spec, bytes, underfull } => {
                self.reserve(now_ms, from, (id, spec, bytes), underfull, out);
            }
            Message::Room { id, run } => self.room(now_ms, from, id, run, out),
            Message::NoRoom { id } => self.no_room(now_ms, from, id),
            Message::Release { id } => self.release(now_ms, from, id, out),
            Message::Released { id } => _ = self.releasing.remove(&id),
            Message::Piece(piece) => self.piece(now_ms, from, piece, out),
            Message::Taken { id, number } => self.taken(now_ms, from, (id, number), out),
            Message::Unknown { id, run } => self.not_known(now_ms, id, run, out),
            Message::Parity(message) => self.parity(now_ms, from, message, out),
            Message::Index { table, note } => self.index_note(from, (table, note), out),
            Message::End { table, round } => self.end_table(now_ms, (table, round), out),
            // Only for the registrar.
            Message::Ended { .. } => {}
            // Only for those who have sockets.
            Message::OpenDatagrams { .. }
            | Message::Datagrams { .. }
            | Message::OpenMulticast { .. }
            | Message::Multicast { .. }
            | Message::Probe { .. } => {}
        }
        self.split_pages(now_ms, out);
        self.shed(now_ms);
    }

    /// Does what is due. Must be called at least every few hundred milliseconds.
    pub(crate) fn tick(&mut self, now_ms: u64, out: &mut Outbox) {
        if self.is_gone {
            return;
        }
        self.tick_transfers(now_ms, out);
        self.tick_index(now_ms, out);
        match self.is_closing() {
            true => self.give_away(now_ms, out),
            false => {
                self.split_what_is_over(now_ms, out);
                self.merge_what_is_underfull(now_ms, out);
            }
        }
        self.merge_neighbours(now_ms);
        self.shed(now_ms);
        self.tick_parity(now_ms, out);
    }

    /// The location of this server's buckets of a table.
    pub(super) fn elements(&self, table: TableId) -> Vec<Element> {
        let buckets = self.tables.get(&table).map_or(&[][..], |served| &served.buckets);
        let elements = buckets.iter().map(|bucket| bucket.element(&self.me));
        elements.filter(|element| !element.interval.is_empty()).collect()
    }

    /// Whether it can go on removing records that other servers have now.
    pub(super) fn may_shed(&self, now_ms: u64) -> bool {
        let retiring = self.retiring.iter().map(|(_, bucket)| bucket);
        let buckets = self.tables.values().flat_map(|served| &served.buckets);
        buckets.chain(&self.shedding).chain(retiring).any(|bucket| bucket.may_shed(now_ms))
    }

    /// Removes some of the records that other servers have now.
    fn shed(&mut self, now_ms: u64) {
        let buckets = self.tables.values_mut().flat_map(|served| &mut served.buckets);
        buckets.chain(&mut self.shedding).for_each(|bucket| bucket.shed(now_ms, &mut self.slab));
        for empty in self.shedding.extract_if(.., |bucket| !bucket.is_shedding()) {
            empty.clear(&mut self.slab);
        }
        self.retiring.iter_mut().for_each(|(_, bucket)| bucket.shed(now_ms, &mut self.slab));
    }

    /// Prefetches the records that the first of these requests read.
    fn prefetch(&self, table: TableId, asks: &[(u64, Arc<Ask>)]) {
        let Some(served) = self.tables.get(&table) else { return };
        let searches = asks.iter().take(PREFETCHED).filter_map(|(_, ask)| match &**ask {
            Ask::Record(operation) => Some((&served.buckets[served.at(ask.point())?].tree, operation.key())),
            _ => None,
        });
        prefetch(&self.slab, searches);
    }

    /// Carries out requests, and forwards those for records of other servers.
    fn requests(&mut self, now_ms: u64, requests: Requests, out: &mut Outbox) {
        let mut handling = Handling::default();
        for (i, (number, ask)) in requests.asks.iter().enumerate() {
            if i.is_multiple_of(PREFETCHED) && requests.asks.len() > 1 {
                self.prefetch(requests.table, &requests.asks[i..]);
            }
            if let Ask::Arrange(arrange) = &**ask
                && ask.is_sound()
                && let Some(at) = self.tables.get(&requests.table).and_then(|served| served.at(ask.point()))
            {
                handling.visited.insert(at);
                let outcome = self.arrange(now_ms, (requests.table, at), arrange, out);
                handling.outcomes.push((*number, outcome));
                continue;
            }
            let passed = self.descend(now_ms, &requests, ask, out);
            let outcome = match self
                .tables
                .get_mut(&requests.table)
                .map(|served| (served.at(ask.point()), served))
            {
                _ if !ask.is_sound() => Some(Outcome::Refused(Refused::Long)),
                _ if handling.bytes >= REPLIES_BYTES => {
                    Some(Outcome::Refused(Refused::Busy(self.me.clone())))
                }
                Some((Some(at), served)) => {
                    let (slab, me) = (&mut self.slab, &self.me);
                    handling.visited.insert(at);
                    carry_out((served, slab, me), at, &requests, (now_ms, *number, ask), &mut handling)
                }
                // The records will be here soon.
                _ if is_coming((&self.receipts, &self.protection), requests.table, ask.point()) => {
                    Some(Outcome::Refused(Refused::Busy(self.me.clone())))
                }
                None if self.dropped.contains(&requests.table) => Some(Outcome::Refused(Refused::Dropped)),
                // The server that has the record answers.
                None if requests.is_to_all => None,
                Some((None, served)) if requests.is_to_all && !served.hands_over(ask.point()) => None,
                _ if let Some((to, descent)) = passed => {
                    handling.pass(to, descent, (*number, ask));
                    None
                }
                Some((None, served)) => handling.forward(served, (*number, ask), (&self.me, &requests.path)),
                None => Some(Outcome::Refused(Refused::Lost(self.me.clone()))),
            };
            handling.bytes += outcome.as_ref().map_or(0, Outcome::bytes);
            handling.outcomes.extend(outcome.map(|outcome| (*number, outcome)));
        }
        let is_over = handling.is_over;
        self.send(now_ms, requests, handling, out);
        if is_over {
            self.split_what_is_over(now_ms, out);
        }
    }

    /// Sends replies and forwarded requests.
    fn send(&mut self, now_ms: u64, requests: Requests, handling: Handling, out: &mut Outbox) {
        let Requests { table, client, mut path, mut visited, is_to_all, descent, done_below, .. } = requests;
        let Handling { outcomes, visited: at, ahead, forwarded, .. } = handling;
        for ((to, further), (asks, before)) in forwarded {
            // Once the index has sent it to a bucket, buckets send it further.
            let descent =
                if further == Descent::No && descent != Descent::No { Descent::Bucket } else { further };
            let (mut path, mut visited) = (path.clone(), visited.clone());
            path.push(self.me.clone());
            visited.extend(before.into_iter().take(HOPS_MAX.saturating_sub(visited.len())));
            let is_to_all = false;
            let requests = Requests { table, client, path, visited, is_to_all, descent, done_below, asks };
            out.push((To::Server(to), Message::Requests(requests)));
        }
        if outcomes.is_empty() {
            return;
        }
        // A client that sent its requests directly to this server already knows this.
        if is_to_all || !path.is_empty() || !ahead.is_empty() || descent != Descent::No {
            let served = self.tables.get(&table);
            let elements = |served: &Served| {
                at.iter().map(|at| served.buckets[*at].element(&self.me)).collect::<Vec<_>>()
            };
            visited.extend(served.map(elements).unwrap_or_default());
        }
        visited.extend(ahead);
        let to = path.pop().map_or(To::Client, To::Server);
        let trace = trace_of(descent);
        let mut replies = Replies { table, client, path, adjustment: visited, outcomes, trace };
        self.index.pass(&self.me, &mut replies);
        let reply = (to, Message::Replies(replies));
        match self.needs(now_ms, table, &at, out) {
            needs if needs.is_empty() => out.push(reply),
            needs => self.send_when_safe(needs, reply, out),
        }
    }

    /// Forwards replies, and learns from them.
    fn relay(&mut self, mut replies: Replies, out: &mut Outbox) {
        if let Some(served) = self.tables.get_mut(&replies.table) {
            let elsewhere = replies.adjustment.iter().filter(|element| element.address != self.me);
            elsewhere.for_each(|element| served.image.learn(element));
        }
        self.index.pass(&self.me, &mut replies);
        let to = replies.path.pop().map_or(To::Client, To::Server);
        out.push((to, Message::Replies(replies)));
    }

    /// Refuses requests that could not be forwarded because a server cannot be reached.
    pub(crate) fn unreachable(&mut self, requests: Requests, server: &Address, out: &mut Outbox) {
        self.is_unreachable(&requests, server, out);
        let Requests { table, client, mut path, visited, descent, asks, .. } = requests;
        let refused =
            |(number, _): (u64, Arc<Ask>)| (number, Outcome::Refused(Refused::Unreachable(server.clone())));
        let outcomes = asks.into_iter().map(refused).collect();
        // The last one is this server.
        path.pop();
        let (to, trace) = (path.pop().map_or(To::Client, To::Server), trace_of(descent));
        let replies = Replies { table, client, path, adjustment: visited, outcomes, trace };
        out.push((to, Message::Replies(replies)));
    }
}

/// Where replies collect the pages that the requests passed, if these came through the index.
fn trace_of(descent: Descent) -> Option<Vec<IndexPage>> {
    (descent != Descent::No).then(Vec::new)
}

/// The results of the requests of one message.
#[derive(Default)]
struct Handling {
    outcomes: Vec<(u64, Outcome)>,
    /// Bytes of keys and values in them.
    bytes: usize,
    /// The indices of the buckets that carried out requests.
    visited: BTreeSet<usize>,
    /// Where scans continue.
    ahead: Vec<Element>,
    /// Requests for other servers, each with the bucket here that precedes the requested keys.
    forwarded: BTreeMap<(Address, Descent), (Asks, Option<Element>)>,
    /// Whether a bucket has more than it should.
    is_over: bool,
}

impl Handling {
    /// Adds a request that the index sends to another server.
    fn pass(&mut self, to: Address, descent: Descent, (number, ask): (u64, &Arc<Ask>)) {
        let (asks, _) = self.forwarded.entry((to, descent)).or_default();
        asks.push((number, Arc::clone(ask)));
    }

    /// Adds a request for another server; returns a refusal if that server is not known.
    fn forward(
        &mut self,
        served: &Served,
        (number, ask): (u64, &Arc<Ask>),
        (me, path): (&Address, &[Address]),
    ) -> Option<Outcome> {
        let point = ask.point();
        match served.image.route(point).filter(|element| element.address != *me) {
            Some(_) if path.len() >= HOPS_MAX => Some(Outcome::Refused(Refused::Far(me.clone()))),
            Some(element) => {
                let before = || (Vec::new(), served.nearest_before(point, me));
                let to = (element.address.clone(), Descent::No);
                let (asks, _) = self.forwarded.entry(to).or_insert_with(before);
                asks.push((number, Arc::clone(ask)));
                None
            }
            None => Some(Outcome::Refused(Refused::Lost(me.clone()))),
        }
    }
}

/// Whether records of a point are about to be served here: they have arrived from another server, or are being
/// recovered.
fn is_coming(
    (receipts, protection): (&BTreeMap<TransferId, Receipt>, &Protection),
    table: TableId,
    point: Point<'_>,
) -> bool {
    let mut receipts = receipts.values().filter(|receipt| receipt.spec.id == table);
    receipts
        .any(|receipt| receipt.arrived.as_ref().is_some_and(|arrived| point.is_in(&arrived.last.interval)))
        || protection.recovers(table, point)
}

/// Carries out a request in a bucket. Returns no outcome if the client has it already.
fn carry_out(
    (served, slab, me): (&mut Served, &mut Slab, &Address),
    at: usize,
    requests: &Requests,
    (now_ms, number, ask): (u64, u64, &Ask),
    handling: &mut Handling,
) -> Option<Outcome> {
    let operation = match ask {
        Ask::Record(operation) => operation,
        Ask::Scan(_) if !served.buckets[at].may_serve(now_ms) => {
            return Some(Outcome::Refused(Refused::Busy(me.clone())));
        }
        Ask::Scan(scan) => return Some(Outcome::Page(scanned(served, slab, me, (at, scan), handling))),
        Ask::Arrange(_) => unreachable!("the server changes its buckets itself"),
    };
    let bucket = &mut served.buckets[at];
    let refused = |why: Refused| Some(Outcome::Refused(why));
    if let Some(why) = bucket.hindrance(now_ms, operation, me) {
        return refused(why);
    }
    if !operation.is_read() {
        if now_ms < served.frozen_until_ms {
            return refused(Refused::Busy(me.clone()));
        }
        match bucket.journal.look(now_ms, requests.client, requests.done_below, number) {
            Seen::Answered => return None,
            Seen::Done(answer) => return Some(Outcome::Answer(answer)),
            Seen::New if !bucket.journal.has_room(now_ms) => return refused(Refused::Busy(me.clone())),
            Seen::New => {}
        }
    }
    match bucket.apply(slab, operation) {
        Err(Full) => refused(Refused::Full(me.clone())),
        Ok((answer, changed)) => {
            if !operation.is_read() {
                bucket.note(now_ms, requests.client, (requests.done_below, number), (&answer, changed));
            }
            handling.is_over |= changed && bucket.is_over(&served.spec) && now_ms >= bucket.retry_ms;
            Some(Outcome::Answer(answer))
        }
    }
}

/// A page of a bucket. If the scan continues in other buckets, adds their locations to `handling`.
fn scanned(
    served: &Served,
    slab: &Slab,
    me: &Address,
    (at, scan): (usize, &Scan),
    handling: &mut Handling,
) -> Page {
    let bucket = &served.buckets[at];
    let page = bucket.page(slab, scan);
    let is_through = match scan.is_descending {
        false => page.covered.to == bucket.served().to && page.covered.to != scan.interval.to,
        true => page.covered.from == bucket.interval.from && page.covered.from != scan.interval.from,
    };
    if is_through {
        let own =
            served.buckets.iter().map(|bucket| bucket.element(me)).filter(|own| !own.interval.is_empty());
        let known = served.image.within(&scan.interval).filter(|element| element.address != *me).cloned();
        handling.ahead.extend(known.chain(own).take(AHEAD_MAX));
    }
    page
}
