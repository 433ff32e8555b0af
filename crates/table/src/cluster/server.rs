//! The buckets of one server, of all its tables, without threads, sockets or a clock.
//!
//! Model: messages come in, messages go out ([`Outbox`]), and time is an argument. A request whose records are elsewhere is forwarded
//! to whom this server gave them, as far as its image says; the paper's allocation table is `tables` here.
//! Invariant: a request is answered by the bucket that has its key, or refused with a reason, or it gets lost, and its client asks
//! again. A change is carried out once. Memory stays within the slab's limit.
//! Non-goals: which tables there are; see registrar.rs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::image::{Address, Element, Image};
use super::interval::{Interval, Point, Upper};
use super::journal::Seen;
use super::message::{
    Ask, Asks, HOPS_MAX, Message, Outcome, Page, Refused, Replies, Requests, Scan, Spec, TableId, TransferId,
};
use super::owned::Owned;
use super::transfer::Receipt;
use crate::slab::{Full, Slab};

/// The most bytes of keys and values in replies to one message, beyond one record. Whoever wanted more asks again.
const REPLIES_BYTES: usize = 4 << 20;
/// The most elements of an adjustment that tell a client where a scan continues.
const AHEAD_MAX: usize = 64;

/// For whom a message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum To {
    Server(Address),
    /// The client that the replies name.
    Client,
}

/// Messages that go out.
pub(crate) type Outbox = Vec<(To, Message)>;

/// The buckets of a table on this server.
pub(crate) struct Served {
    pub(crate) spec: Spec,
    /// In order.
    pub(crate) buckets: Vec<Owned>,
    /// Where the rest is, and what this server gave away.
    pub(crate) image: Image,
}

/// The buckets of a server.
pub(crate) struct BucketServer {
    pub(crate) me: Address,
    /// Another one whenever the server starts, without any records.
    pub(crate) run: u64,
    pub(crate) slab: Slab,
    /// Bytes that are set aside for records on their way here.
    pub(crate) reserved: usize,
    /// The other servers.
    pub(crate) peers: Vec<Address>,
    pub(crate) tables: BTreeMap<TableId, Served>,
    /// Tables that were removed, so that nothing on its way brings them back.
    pub(crate) dropped: BTreeSet<TableId>,
    pub(crate) transfers: u64,
    pub(crate) receipts: BTreeMap<TransferId, Receipt>,
    /// Transfers that have ended, each until no message of it is under way.
    pub(crate) ended: BTreeMap<TransferId, u64>,
    /// Intervals of which changes may be lost, and the server that failed.
    pub(crate) losses: Vec<(TableId, Interval, Address)>,
}

impl Served {
    fn new(spec: Spec) -> Served {
        Served { spec, buckets: Vec::new(), image: Image::default() }
    }

    /// The bucket that answers for a point.
    fn at(&self, point: Point<'_>) -> Option<usize> {
        let behind = self.buckets.partition_point(|bucket| point.is_at_or_behind(&bucket.interval.from));
        behind.checked_sub(1).filter(|at| self.buckets[*at].serves(point))
    }

    /// Who has what lies behind an interval.
    pub(crate) fn owner_behind(&self, interval: &Interval, me: &Address) -> Option<Element> {
        let Upper::Key(key) = &interval.to else { return None };
        let point = Point::At(key);
        let own = self.at(point).map(|at| self.buckets[at].element(me));
        own.or_else(|| self.image.owner(point).cloned())
    }

    /// Where the nearest bucket before a point is, for the client that thought the point was there.
    fn before(&self, point: Point<'_>, me: &Address) -> Option<Element> {
        let behind = self.buckets.partition_point(|bucket| point.is_at_or_behind(&bucket.interval.from));
        let element = self.buckets[behind.checked_sub(1)?].element(me);
        (!element.interval.is_empty()).then_some(element)
    }
}

impl BucketServer {
    /// A server with no records yet, in so many bytes of memory at most.
    pub(crate) fn new(me: Address, run: u64, memory: usize) -> BucketServer {
        BucketServer {
            me,
            run,
            slab: Slab::new(memory),
            reserved: 0,
            peers: Vec::new(),
            tables: BTreeMap::new(),
            dropped: BTreeSet::new(),
            transfers: 0,
            receipts: BTreeMap::new(),
            ended: BTreeMap::new(),
            losses: Vec::new(),
        }
    }

    /// Has the first bucket of a new table.
    pub(crate) fn begin(&mut self, spec: Spec) -> Result<(), Full> {
        if !self.tables.contains_key(&spec.id) && !self.dropped.contains(&spec.id) {
            let bucket = Owned::new(&mut self.slab, Interval::all(), 1)?;
            self.adopt(spec, bucket, None);
        }
        Ok(())
    }

    /// Removes all that it has of a table.
    pub(crate) fn drop_table(&mut self, now_ms: u64, table: TableId) {
        self.dropped.insert(table);
        self.give_up_receipts_of(now_ms, table);
        if let Some(served) = self.tables.remove(&table) {
            served.buckets.into_iter().for_each(|bucket| bucket.tree.clear(&mut self.slab));
        }
        self.losses.retain(|(of, ..)| *of != table);
    }

    /// Has a bucket from now on.
    pub(crate) fn adopt(&mut self, spec: Spec, bucket: Owned, behind: Option<Element>) {
        let served = self.tables.entry(spec.id).or_insert_with(|| Served::new(spec));
        behind.iter().for_each(|behind| served.image.learn(behind));
        served.image.learn(&bucket.element(&self.me));
        let at = served.buckets.partition_point(|other| other.interval.from < bucket.interval.from);
        served.buckets.insert(at, bucket);
    }

    /// Takes a message of another server, or requests of a client.
    pub(crate) fn take(&mut self, now_ms: u64, from: &Address, message: Message, out: &mut Outbox) {
        match message {
            Message::Requests(requests) => self.requests(now_ms, requests, out),
            Message::Replies(replies) => self.relay(replies, out),
            Message::Where { table, client } => {
                let adjustment = self.elements(table);
                let replies = Replies { table, client, path: Vec::new(), adjustment, outcomes: Vec::new() };
                out.push((To::Client, Message::Replies(replies)));
            }
            Message::Reserve { id, spec, bytes } => self.reserve(now_ms, from, (id, spec, bytes), out),
            Message::Room { id, run } => self.room(now_ms, from, id, run, out),
            Message::Release { id } => self.release(now_ms, id),
            Message::Piece(piece) => self.piece(now_ms, from, piece, out),
            Message::Taken { id, number } => self.taken(now_ms, from, (id, number), out),
            Message::Unknown { id, run } => self.not_known(now_ms, id, run, out),
        }
        self.shed();
    }

    /// Does what is due. Called every few hundred milliseconds at least.
    pub(crate) fn tick(&mut self, now_ms: u64, out: &mut Outbox) {
        self.tick_transfers(now_ms, out);
        self.split_what_is_over(now_ms, out);
        self.shed();
    }

    /// What it has of a table.
    fn elements(&self, table: TableId) -> Vec<Element> {
        let buckets = self.tables.get(&table).map_or(&[][..], |served| &served.buckets);
        let elements = buckets.iter().map(|bucket| bucket.element(&self.me));
        elements.filter(|element| !element.interval.is_empty()).collect()
    }

    /// Removes some of the records that other servers have by now.
    fn shed(&mut self) {
        let buckets = self.tables.values_mut().flat_map(|served| &mut served.buckets);
        buckets.for_each(|bucket| bucket.shed(&mut self.slab));
    }

    fn split_what_is_over(&mut self, now_ms: u64, out: &mut Outbox) {
        if self.peers.is_empty() {
            return;
        }
        let over = |(table, served): (&TableId, &Served)| {
            let is_over = |bucket: &Owned| bucket.is_over(&served.spec) && now_ms >= bucket.retry_ms;
            let table = *table;
            let at = served.buckets.iter().enumerate().filter(move |(_, bucket)| is_over(bucket));
            at.map(|(at, bucket)| (table, at, bucket.upper_part(&self.slab, &served.spec)))
                .collect::<Vec<_>>()
        };
        let over: Vec<_> = self.tables.iter().flat_map(over).collect();
        for (table, at, part) in over {
            if let Some(part) = part {
                self.begin_leaving(now_ms, (table, at), part, out);
            }
        }
    }

    /// Carries out requests, and forwards those whose records are elsewhere.
    fn requests(&mut self, now_ms: u64, requests: Requests, out: &mut Outbox) {
        let mut handling = Handling::default();
        for (number, ask) in &requests.asks {
            let outcome =
                match self.tables.get_mut(&requests.table).map(|served| (served.at(ask.point()), served)) {
                    _ if !ask.is_sound() => Some(Outcome::Refused(Refused::Long)),
                    _ if handling.bytes >= REPLIES_BYTES => {
                        Some(Outcome::Refused(Refused::Busy(self.me.clone())))
                    }
                    Some((Some(at), served)) => {
                        let (slab, me) = (&mut self.slab, &self.me);
                        handling.visited.insert(at);
                        carry_out((served, slab, me), at, &requests, (now_ms, *number, ask), &mut handling)
                    }
                    Some((None, served)) => {
                        handling.forward(served, (*number, ask), (&self.me, &requests.path))
                    }
                    None => Some(Outcome::Refused(Refused::Lost(self.me.clone()))),
                };
            handling.bytes += outcome.as_ref().map_or(0, Outcome::bytes);
            handling.outcomes.extend(outcome.map(|outcome| (*number, outcome)));
        }
        let is_over = handling.is_over;
        self.send(requests, handling, out);
        if is_over {
            self.split_what_is_over(now_ms, out);
        }
    }

    /// Sends replies and forwarded requests.
    fn send(&self, requests: Requests, handling: Handling, out: &mut Outbox) {
        let Requests { table, client, mut path, mut visited, done_below, .. } = requests;
        let Handling { outcomes, visited: at, ahead, forwarded, .. } = handling;
        for (to, (asks, before)) in forwarded {
            let (mut path, mut visited) = (path.clone(), visited.clone());
            path.push(self.me.clone());
            visited.extend(before.into_iter().take(HOPS_MAX.saturating_sub(visited.len())));
            let requests = Requests { table, client, path, visited, done_below, asks };
            out.push((To::Server(to), Message::Requests(requests)));
        }
        if outcomes.is_empty() {
            return;
        }
        // Who asked here at once knows where it is.
        if !path.is_empty() || !ahead.is_empty() {
            let served = self.tables.get(&table);
            let elements = |served: &Served| {
                at.iter().map(|at| served.buckets[*at].element(&self.me)).collect::<Vec<_>>()
            };
            visited.extend(served.map(elements).unwrap_or_default());
        }
        visited.extend(ahead);
        let to = path.pop().map_or(To::Client, To::Server);
        out.push((to, Message::Replies(Replies { table, client, path, adjustment: visited, outcomes })));
    }

    /// Passes replies on, and learns from them.
    fn relay(&mut self, mut replies: Replies, out: &mut Outbox) {
        if let Some(served) = self.tables.get_mut(&replies.table) {
            let elsewhere = replies.adjustment.iter().filter(|element| element.address != self.me);
            elsewhere.for_each(|element| served.image.learn(element));
        }
        let to = replies.path.pop().map_or(To::Client, To::Server);
        out.push((to, Message::Replies(replies)));
    }

    /// A server cannot be reached for requests that were to be forwarded to it.
    pub(crate) fn unreachable(&self, requests: Requests, server: &Address, out: &mut Outbox) {
        let Requests { table, client, mut path, visited, asks, .. } = requests;
        let refused =
            |(number, _): (u64, Arc<Ask>)| (number, Outcome::Refused(Refused::Unreachable(server.clone())));
        let outcomes = asks.into_iter().map(refused).collect();
        // The last is this server.
        path.pop();
        let to = path.pop().map_or(To::Client, To::Server);
        out.push((to, Message::Replies(Replies { table, client, path, adjustment: visited, outcomes })));
    }
}

/// What comes of the requests of one message.
#[derive(Default)]
struct Handling {
    outcomes: Vec<(u64, Outcome)>,
    /// Bytes of keys and values in them.
    bytes: usize,
    /// The buckets that were asked.
    visited: BTreeSet<usize>,
    /// Where scans continue.
    ahead: Vec<Element>,
    /// Requests for other servers, and the buckets here that come before what is asked for.
    forwarded: BTreeMap<Address, (Asks, Option<Element>)>,
    /// Whether a bucket has more than it should.
    is_over: bool,
}

impl Handling {
    /// Notes a request for another server; an outcome if it is not known which.
    fn forward(
        &mut self,
        served: &Served,
        (number, ask): (u64, &Arc<Ask>),
        (me, path): (&Address, &[Address]),
    ) -> Option<Outcome> {
        let point = ask.point();
        match served.image.route(point).filter(|element| element.address != *me) {
            // It has come round: what is on its way has arrived when the client asks again.
            Some(_) if path.len() >= HOPS_MAX => None,
            Some(element) => {
                let before = || (Vec::new(), served.before(point, me));
                let (asks, _) = self.forwarded.entry(element.address.clone()).or_insert_with(before);
                asks.push((number, Arc::clone(ask)));
                None
            }
            None => Some(Outcome::Refused(Refused::Lost(me.clone()))),
        }
    }
}

/// Has a bucket carry out a request; no outcome if the client has it already.
fn carry_out(
    (served, slab, me): (&mut Served, &mut Slab, &Address),
    at: usize,
    requests: &Requests,
    (now_ms, number, ask): (u64, u64, &Ask),
    handling: &mut Handling,
) -> Option<Outcome> {
    let operation = match ask {
        Ask::Record(operation) => operation,
        Ask::Scan(scan) => return Some(Outcome::Page(scanned(served, slab, me, (at, scan), handling))),
    };
    let bucket = &mut served.buckets[at];
    let refused = |why: Refused| Some(Outcome::Refused(why));
    if !operation.is_read() {
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
                bucket.journal.note(now_ms, requests.client, (requests.done_below, number), &answer);
            }
            handling.is_over |= changed && bucket.is_over(&served.spec) && now_ms >= bucket.retry_ms;
            Some(Outcome::Answer(answer))
        }
    }
}

/// A page of a bucket. If the scan continues elsewhere, notes where.
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
