//! Servers and clients with a simulated network, from a seed: messages are delayed and reordered. In most runs some are
//! also lost or duplicated, pairs of servers are disconnected, and servers crash and restart without records. Buckets
//! are split and merged as records come and go, and also split, merged and moved because clients ask for it. In some runs
//! the table is dropped while clients use it, and another one is made in its place.
//!
//! Invariant: the answers about each key are linearizable: they are those of one record that changed at one instant for
//! each request, unless a server with the key crashed. A range has every record that existed throughout exactly once,
//! in order. At most one server serves a key. In the end no transfer is left, and no memory is lost.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use thalweg_base::codec::Plain;
use thalweg_base::rng::{Rng, seeds};

use super::client::{Client, Sent, Variant};
use super::drops::Drops;
use super::image::Address;
use super::interval::{Bytes, Interval};
use super::journal::ClientId;
use super::message::{
    Answer, Arrange, Ask, Message, Operation, Outcome, Requests, Scan, Spec, TableId, What,
};
use super::owned::Owned;
use super::pages::Pages;
use super::parity::Shape;
use super::scale::{name, number};
use super::server::{BucketServer, Outbox, To};

#[path = "drops_sim_test.rs"]
mod drops;
#[path = "parity/sim_test.rs"]
mod parity;

use parity::SimRegistrar;

const SEEDS: u64 = 500;
const SERVERS: usize = 4;
const CLIENTS: usize = 4;
/// The number of keys whose records exist throughout; as many between them change.
const KEYS: u64 = 24;
const STEPS: u64 = 400;
const TABLE: u64 = 7;
const MEMORY: usize = 16 << 20;
/// The most entries of a page of the index.
const FANOUT: usize = 3;
const SPEC: Spec = Spec { id: TABLE, capacity: 4, capacity_bytes: 1 << 20, parity: None };
/// The time in which everything settles: longer than anything is tried.
const CALM_MS: u64 = 240_000;

/// The faults that may happen in a run.
#[derive(Debug, Clone, Copy)]
struct Weather {
    delay_ms: u64,
    /// One message in this many is lost; 0 for none.
    lost: u64,
    doubled: u64,
    cuts: bool,
    crashes: bool,
    drops: bool,
}

/// A request about a key, and its result.
#[derive(Debug, Clone)]
struct Event {
    operation: Operation,
    asked: u64,
    /// `None` if the request was given up, so that its result is unknown.
    answered: Option<(u64, Answer)>,
}

struct SimClient {
    core: Client,
    /// The table that it has open; `None` if that was dropped, and it has found no other.
    table: Option<TableId>,
    /// Requests that it made of a table after that was dropped.
    late: BTreeSet<u64>,
    /// Requests about single keys, by number, and the indices of their events.
    asked: BTreeMap<u64, (Bytes, usize)>,
    range: Option<(Pages, Interval, Vec<Bytes>, bool)>,
    /// The number of a request that changes buckets.
    arranging: Option<u64>,
}

struct World {
    rng: Rng,
    weather: Weather,
    now_ms: u64,
    servers: Vec<BucketServer>,
    runs: u64,
    clients: Vec<SimClient>,
    /// Messages by time of arrival: receiver, sender, and bytes.
    network: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    /// Pairs that are disconnected in one direction.
    cuts: Vec<(usize, usize, u64)>,
    /// The clock of the histories: each event has its own instant.
    instant: u64,
    history: BTreeMap<Bytes, Vec<Event>>,
    fixed: BTreeSet<Bytes>,
    /// Keys that a server had when it crashed.
    lost: BTreeSet<Bytes>,
    values: u64,
    ranges_read: u64,
    buckets: usize,
    /// How often there were fewer buckets than before.
    merges: u64,
    arranged: u64,
    spec: Spec,
    registrar: SimRegistrar,
    /// Servers that do nothing until a time; `true` for those that have their memory still.
    down: BTreeMap<usize, (u64, bool)>,
    /// The servers that have failed since all groups were sound, and when the last of them did.
    failed: usize,
    failed_ms: u64,
    /// How often all groups were sound again after a failure.
    rebuilt: u64,
    /// Servers that give their buckets away, until they end at a time.
    closing: BTreeMap<usize, u64>,
    stopped: u64,
    /// Servers that are cut off until a time, and how many of them had been replaced when they returned.
    cut_off: Vec<(usize, u64)>,
    replaced: u64,
    drops: Drops,
    /// Whether a drop is acknowledged at once, which is wrong.
    is_careless: bool,
    /// The table that is being dropped.
    dropping: Option<TableId>,
    /// Those that were dropped.
    dropped: Vec<TableId>,
    /// The home of the table.
    home: Address,
    sessions: u64,
}

fn key(i: u64) -> Bytes {
    format!("{i:03}").into_bytes().into()
}

impl World {
    fn new(seed: u64, parity: Option<Shape>, servers: usize) -> World {
        let mut rng = Rng::new(seed);
        let weather = Weather {
            delay_ms: [1, 20, 200][rng.below(3) as usize],
            lost: [0, 50, 10][rng.below(3) as usize],
            doubled: [0, 20, 5][rng.below(3) as usize],
            cuts: rng.one_in(2),
            crashes: rng.one_in(3),
            drops: seed % 5 < 2,
        };
        let client = |i| SimClient {
            core: core(i, (TABLE, name(0)), servers, 1),
            table: Some(TABLE),
            late: BTreeSet::new(),
            asked: BTreeMap::new(),
            range: None,
            arranging: None,
        };
        let mut world = World {
            rng,
            weather,
            now_ms: 0,
            servers: (0..servers).map(|i| server((i, servers), i as u64)).collect(),
            runs: servers as u64,
            registrar: SimRegistrar::new(),
            down: BTreeMap::new(),
            failed: 0,
            failed_ms: 0,
            rebuilt: 0,
            closing: BTreeMap::new(),
            stopped: 0,
            cut_off: Vec::new(),
            replaced: 0,
            drops: Drops::default(),
            is_careless: false,
            dropping: None,
            dropped: Vec::new(),
            home: name(0),
            sessions: 1,
            spec: Spec { parity, ..SPEC },
            clients: (0..CLIENTS).map(client).collect(),
            network: BTreeMap::new(),
            sent: 0,
            cuts: Vec::new(),
            instant: 0,
            history: BTreeMap::new(),
            fixed: BTreeSet::new(),
            lost: BTreeSet::new(),
            values: 0,
            ranges_read: 0,
            buckets: 0,
            merges: 0,
            arranged: 0,
        };
        match parity {
            None => {
                world.servers[0].begin(SPEC).unwrap();
                world.servers[0].begin_index(TABLE, &[]);
            }
            // Records that are loaded come with their buckets.
            Some(_) if seed % 3 == 2 => {}
            Some(shape) => world.create_group(shape),
        }
        world
    }

    fn instant(&mut self) -> u64 {
        self.instant += 1;
        self.instant
    }

    /// Sends a message. Clients are numbered after the servers.
    fn send(&mut self, from: usize, to: usize, message: &Message) {
        let cut = self.cuts.iter().any(|cut| (cut.0, cut.1) == (from, to));
        if cut {
            // In half of the cases the sender notices.
            if self.rng.one_in(2)
                && let Message::Requests(requests) = message
            {
                self.unreachable(from, to, requests.clone());
            }
            return;
        }
        if self.rng.one_in(self.weather.lost) {
            return;
        }
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        let copies = 1 + u64::from(self.rng.one_in(self.weather.doubled));
        for _ in 0..copies {
            let at = self.now_ms + 1 + self.rng.below(self.weather.delay_ms);
            self.sent += 1;
            self.network.insert((at, self.sent), (to, from, bytes.clone()));
        }
    }

    fn unreachable(&mut self, from: usize, to: usize, requests: Requests) {
        let now_ms = self.now_ms;
        match from.checked_sub(self.servers.len()) {
            Some(client) => self.clients[client].core.unreachable(now_ms, &name(to)),
            None => {
                let mut out = Outbox::new();
                self.servers[from].unreachable(requests, &name(to), &mut out);
                self.post(from, out);
            }
        }
    }

    fn post(&mut self, from: usize, out: Outbox) {
        for (to, message) in out {
            let to = match (to, &message) {
                (To::Server(server), _) => number(&server),
                (To::Client, Message::Replies(replies)) => {
                    self.servers.len() + replies.client.peer[1] as usize
                }
                (To::Registrar, _) => self.registrar_number(),
                (To::Client, other) => panic!("{other:?} for a client"),
            };
            self.send(from, to, &message);
        }
    }

    fn deliver(&mut self, (to, from, bytes): (usize, usize, Vec<u8>)) {
        if let Some((until_ms, is_frozen)) = self.down.get(&to).copied() {
            // What a frozen server has not read waits for it, unless the connection was closed.
            if is_frozen && self.rng.one_in(2) {
                self.sent += 1;
                self.network.insert((until_ms + 1, self.sent), (to, from, bytes));
            }
            return;
        }
        let message = Message::decode(&bytes).expect("what was encoded is decoded");
        if to == self.registrar_number() {
            return self.register(from, message);
        }
        if let Some(client) = to.checked_sub(self.servers.len()) {
            let Message::Replies(replies) = message else { panic!("{message:?} to a client") };
            if replies.client != self.clients[client].core.id() {
                return;
            }
            let outcomes = self.clients[client].core.take(self.now_ms, replies);
            outcomes.into_iter().for_each(|(number, outcome)| self.outcome(client, number, Some(outcome)));
            return;
        }
        let mut out = Outbox::new();
        let from = if from < self.servers.len() { name(from) } else { "client".into() };
        self.servers[to].take(self.now_ms, &from, message, &mut out);
        self.post(to, out);
    }

    /// Handles the end of a client's request.
    fn outcome(&mut self, client: usize, number: u64, outcome: Option<Outcome>) {
        if self.is_late(client, number, outcome.as_ref()) {
            return;
        }
        if let Some((key, at)) = self.clients[client].asked.remove(&number) {
            let now = self.instant();
            if let Some(Outcome::Answer(answer)) = outcome {
                self.history.get_mut(&key).unwrap()[at].answered = Some((now, answer));
            } else {
                assert!(self.may_fail(), "{} failed: {outcome:?}", key.escape_ascii());
            }
            return;
        }
        if self.clients[client].arranging == Some(number) {
            self.clients[client].arranging = None;
            self.arranged += u64::from(outcome == Some(Outcome::Answer(Answer::Done)));
            return;
        }
        let Some((mut pages, interval, mut seen, is_descending)) = self.clients[client].range.take() else {
            return;
        };
        match outcome {
            Some(Outcome::Page(page)) => {
                assert!(pages.arrived(number, page), "a page that was not asked for")
            }
            _ if pages.numbers().contains(&number) => {
                assert!(self.may_fail(), "a range failed: {outcome:?}");
                return;
            }
            _ => {}
        }
        while let Some(mut page) = pages.next() {
            while let Some((key, _)) = page.records.next() {
                seen.push(key.into());
            }
        }
        if pages.is_done() {
            self.check_range(&interval, seen, is_descending);
        } else {
            self.clients[client].range = Some((pages, interval, seen, is_descending));
        }
    }

    /// Whether a request may fail: no server answered for ten seconds, or the records are lost.
    fn may_fail(&self) -> bool {
        self.weather.cuts || self.weather.crashes || self.weather.lost > 0 || self.has_dropped()
    }

    fn check_range(&mut self, interval: &Interval, mut seen: Vec<Bytes>, is_descending: bool) {
        self.ranges_read += 1;
        if is_descending {
            seen.reverse();
        }
        assert!(seen.windows(2).all(|two| two[0] < two[1]), "{interval} is out of order: {seen:?}");
        let seen: BTreeSet<Bytes> = seen.into_iter().collect();
        for key in self.fixed.iter().filter(|key| interval.contains(key) && !self.lost.contains(*key)) {
            assert!(seen.contains(key), "{interval} misses {}", key.escape_ascii());
        }
    }

    /// Sends a random request of a client.
    fn wish(&mut self, client: usize) {
        let Some(table) = self.clients[client].table else { return };
        let is_late = self.dropped.contains(&table);
        if !is_late && self.clients[client].range.is_none() && self.rng.one_in(8) {
            let (a, b) = (key(self.rng.below(2 * KEYS)), key(self.rng.below(2 * KEYS)));
            let interval = match self.rng.below(3) {
                0 => Interval::all(),
                1 => Interval::new(&a, None),
                _ => Interval::new(&a, Some(&b)),
            };
            let is_descending = self.rng.one_in(2);
            let what = if self.rng.one_in(2) { What::Records } else { What::Keys };
            let scan = Scan {
                interval: interval.clone(),
                is_descending,
                what,
                limit: u64::MAX,
                condition: None,
                rest: None,
            };
            self.clients[client].range = Some((Pages::new(scan), interval, Vec::new(), is_descending))
                .filter(|(pages, ..)| !pages.is_done());
            return;
        }
        if !is_late && self.clients[client].arranging.is_none() && self.rng.one_in(10) {
            return self.arrange(client);
        }
        // The keys whose records exist throughout have even numbers.
        let key = key(2 * self.rng.below(KEYS) + 1);
        self.values += 1;
        let value = |values: u64| Bytes::from(values.to_string().into_bytes());
        let new = value(self.values);
        let old = value(self.rng.below(self.values) + 1);
        let operation = match self.rng.below(6) {
            0 => Operation::Insert { key, value: new },
            1 => Operation::Upsert { key, value: new },
            2 => Operation::Update { key, value: new },
            3 => Operation::Delete { key },
            4 => Operation::Get { key },
            _ => {
                let expected = Some(old).filter(|_| self.rng.one_in(2));
                let value = Some(new).filter(|_| !self.rng.one_in(4));
                Operation::CompareAndSet { key, expected, value }
            }
        };
        self.ask(client, operation);
    }

    /// Asks for a change of buckets.
    fn arrange(&mut self, client: usize) {
        let key = key(self.rng.below(2 * KEYS));
        let to = name(self.rng.below(self.servers.len() as u64) as usize);
        let arrange = match self.rng.below(3) {
            0 => Arrange::Split { key, to: Some(to).filter(|_| self.rng.one_in(2)) },
            1 => Arrange::Move { key, to },
            // A bucket may begin there.
            _ => {
                let buckets = self.servers.iter().flat_map(|server| server.tables.get(&self.spec.id));
                let begins: Vec<Bytes> = buckets
                    .flat_map(|served| &served.buckets)
                    .map(|bucket| bucket.interval.from.clone())
                    .collect();
                let at = self.rng.below(begins.len().max(1) as u64) as usize;
                Arrange::Merge { key: begins.get(at).cloned().unwrap_or(key) }
            }
        };
        let core = &mut self.clients[client].core;
        self.clients[client].arranging = Some(core.ask(self.now_ms, Arc::new(Ask::Arrange(arrange))));
    }

    fn ask(&mut self, client: usize, operation: Operation) {
        if self.clients[client].table.is_some_and(|table| self.dropped.contains(&table)) {
            return self.ask_late(client, operation);
        }
        let key: Bytes = operation.key().into();
        let asked = self.instant();
        let events = self.history.entry(key.clone()).or_default();
        events.push(Event { operation: operation.clone(), asked, answered: None });
        let at = events.len() - 1;
        let SimClient { core, asked, .. } = &mut self.clients[client];
        let number = core.ask(self.now_ms, Arc::new(Ask::Record(operation)));
        asked.insert(number, (key, at));
    }

    /// Advances the clock by a millisecond, and lets every server and client do what is due.
    fn step(&mut self) {
        self.now_ms += 1;
        self.cuts.retain(|cut| cut.2 > self.now_ms);
        while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now_ms) {
            let message = entry.remove();
            self.deliver(message);
        }
        for client in 0..CLIENTS {
            self.flush(client);
        }
        if self.now_ms.is_multiple_of(50) {
            self.down.retain(|_, (until_ms, _)| *until_ms > self.now_ms);
            self.end_closing();
            self.count_replaced();
            self.tick_registrar();
            self.tick_drops();
            for server in
                (0..self.servers.len()).filter(|server| !self.down.contains_key(server)).collect::<Vec<_>>()
            {
                let mut out = Outbox::new();
                self.servers[server].tick(self.now_ms, &mut out);
                self.post(server, out);
            }
            for client in 0..CLIENTS {
                let failed = self.clients[client].core.tick(self.now_ms);
                failed.into_iter().for_each(|(number, _)| self.outcome(client, number, None));
            }
            self.check_owners();
            let buckets = self.servers.iter().flat_map(|server| server.tables.values());
            let buckets = buckets.map(|served| served.buckets.len()).sum();
            self.merges += u64::from(buckets < self.buckets);
            self.buckets = buckets;
        }
    }

    fn flush(&mut self, client: usize) {
        let now_ms = self.now_ms;
        let SimClient { core, range, .. } = &mut self.clients[client];
        range.iter_mut().for_each(|(pages, ..)| pages.ask(now_ms, core));
        for (to, message) in core.messages(now_ms).into_iter().flat_map(Sent::each) {
            self.send(self.servers.len() + client, number(&to), &message);
        }
    }

    /// No key is served by two servers.
    fn check_owners(&self) {
        let of = |server: &'_ BucketServer| {
            let buckets = server.tables.get(&self.spec.id).into_iter().flat_map(|served| &served.buckets);
            let serving = buckets.filter(|bucket| bucket.may_serve(self.now_ms)).map(Owned::served);
            serving.filter(|interval| !interval.is_empty()).collect::<Vec<Interval>>()
        };
        let all = self.servers.iter().enumerate();
        let mut owned: Vec<(Interval, usize)> =
            all.flat_map(|(at, server)| of(server).into_iter().map(move |interval| (interval, at))).collect();
        owned.sort_unstable_by(|(a, _), (b, _)| a.from.cmp(&b.from));
        let mut last: Option<&(Interval, usize)> = None;
        for next in &owned {
            if let Some((before, _)) = last.filter(|last| last.1 != next.1) {
                let twice = before.to.is_above(&next.0.from);
                assert!(!twice, "{before:?} and {:?} are both served at {}", next.0, self.now_ms);
            }
            last = last.filter(|last| last.0.to >= next.0.to).or(Some(next));
        }
    }

    fn fault(&mut self) {
        if self.weather.cuts && self.rng.one_in(40) {
            let all = (self.registrar_number() + 1) as u64;
            let (a, b) = (self.rng.below(all) as usize, self.rng.below(all) as usize);
            let until = self.now_ms + self.rng.below(3_000);
            self.cuts.push((a, b, until));
            if self.rng.one_in(2) {
                self.cuts.push((b, a, until));
            }
        }
        if self.weather.drops && self.rng.one_in(100) {
            self.begin_drop();
        }
        if self.spec.parity.is_some() {
            return self.fail();
        }
        if self.weather.crashes && self.rng.one_in(300) {
            let server = self.rng.below(self.servers.len() as u64) as usize;
            let served =
                self.servers[server].tables.get(&self.spec.id).into_iter().flat_map(|served| &served.buckets);
            let had: Vec<Interval> = served.map(|bucket| bucket.interval.clone()).collect();
            let keys = (0..2 * KEYS).map(key);
            self.lost.extend(keys.filter(|key| had.iter().any(|interval| interval.contains(key))));
            self.runs += 1;
            self.servers[server] = self::server((server, self.servers.len()), self.runs);
        }
    }

    /// Inserts the records that exist throughout, and waits.
    fn load(&mut self) {
        let mut keys: Vec<u64> = (0..KEYS).map(|i| 2 * i).collect();
        if self.rng.one_in(2) {
            for i in (1..keys.len()).rev() {
                keys.swap(i, self.rng.below(i as u64 + 1) as usize);
            }
        }
        for i in keys {
            self.fixed.insert(key(i));
            self.ask(0, Operation::Upsert { key: key(i), value: (*b"fixed").into() });
            (0..self.rng.below(3)).for_each(|_| self.step());
        }
        self.settle();
        let missing = |key: &&Bytes| self.history[*key].iter().all(|event| event.answered.is_none());
        let missing: Vec<Bytes> = self.fixed.iter().filter(missing).cloned().collect();
        missing.iter().for_each(|key| _ = self.fixed.remove(key));
    }

    /// Runs until all requests have ended.
    fn settle(&mut self) {
        let until = self.now_ms + CALM_MS;
        let busy = |client: &SimClient| {
            let is_asking = !client.asked.is_empty() || !client.late.is_empty();
            is_asking || client.range.is_some() || client.arranging.is_some()
        };
        while self.clients.iter().any(busy) {
            assert!(self.now_ms < until, "a request has no end: {:?}", self.registrar.stored());
            self.step();
        }
    }

    fn run(&mut self) {
        self.load();
        for _ in 0..STEPS {
            self.fault();
            if self.rng.one_in(2) {
                let client = self.rng.below(CLIENTS as u64) as usize;
                if self.clients[client].asked.len() < 10 {
                    self.wish(client);
                }
            }
            (0..1 + self.rng.below(4)).for_each(|_| self.step());
        }
        // A server that is cut off stays so, until others have its buckets.
        let cut_off: Vec<usize> = self.cut_off.iter().map(|(server, _)| *server).collect();
        self.cuts.retain(|(a, b, _)| cut_off.contains(a) || cut_off.contains(b));
        self.settle();
        // Waits until transfers and reservations have ended.
        (self.weather.lost, self.weather.doubled) = (0, 0);
        // Between ticks nothing is due.
        self.now_ms = self.now_ms.next_multiple_of(50);
        for i in (0..CALM_MS / 50).rev() {
            if i == 1000 {
                // Until here buckets are offered to their neighbours again and again.
                self.servers.iter_mut().for_each(|server| server.merge_age_ms = u64::MAX);
            }
            self.now_ms += 49;
            self.step();
        }
        if self.spec.parity.is_some() {
            self.check_groups();
        }
        self.audit();
    }

    fn audit(&mut self) {
        self.check_drops();
        let keys: Vec<Bytes> = self.history.keys().filter(|key| !self.lost.contains(*key)).cloned().collect();
        for client in [0, CLIENTS - 1] {
            keys.iter().for_each(|key| self.ask(client, Operation::Get { key: key.clone() }));
        }
        if self.lost.is_empty() {
            let scan = Scan {
                interval: Interval::all(),
                is_descending: false,
                what: What::Keys,
                limit: u64::MAX,
                condition: None,
                rest: None,
            };
            self.clients[1].range = Some((Pages::new(scan), Interval::all(), Vec::new(), false));
        }
        self.settle();
        for key in keys {
            let events = &self.history[&key];
            assert!(events.last().unwrap().answered.is_some(), "{} cannot be read", key.escape_ascii());
            assert!(linearizable(events), "{}: {events:#?}", key.escape_ascii());
        }
        for server in &self.servers {
            assert!(server.receipts.is_empty() && server.reserved == 0, "{} has room reserved", server.me);
            assert!(server.ended.is_empty(), "{} remembers too much", server.me);
            assert!(server.shedding.is_empty(), "{} has records of others", server.me);
            let buckets = server.tables.values().flat_map(|served| &served.buckets);
            assert!(buckets.clone().all(|bucket| bucket.leaving.is_none() && bucket.origin.is_none()));
            if self.lost.is_empty() {
                assert!(buckets.clone().all(|bucket| !bucket.is_over(&SPEC)), "a bucket was not split");
            }
        }
    }
}

/// A client that knows the home of a table.
fn core(i: usize, home: (TableId, Address), servers: usize, session: u64) -> Client {
    let variant = [Variant::Nearest, Variant::Known, Variant::All, Variant::Indexed][i];
    let id = ClientId { peer: [0, i as u64], session };
    let core = Client::new(id, home, (0..servers).map(name).collect(), variant);
    // Two of them send two requests in a datagram, one to all servers.
    if matches!(variant, Variant::Nearest | Variant::All) { core.in_datagrams(200) } else { core }
}

fn server((i, servers): (usize, usize), run: u64) -> BucketServer {
    let mut server = BucketServer::new(name(i), run, MEMORY);
    server.merge_age_ms = 100;
    server.index.fanout = FANOUT;
    server.peers = (0..servers).filter(|other| *other != i).map(name).collect();
    server
}

/// The value that an operation makes of a value, and its answer.
fn done(operation: &Operation, value: Option<&Bytes>) -> (Option<Bytes>, Answer) {
    let same = value.cloned();
    match operation {
        Operation::Get { .. } => (same.clone(), Answer::Value(same)),
        Operation::Insert { value: new, .. } if value.is_none() => (Some(new.clone()), Answer::Done),
        Operation::Insert { .. } => (same, Answer::Exists),
        Operation::Upsert { value: new, .. } => (Some(new.clone()), Answer::Done),
        Operation::Update { value: new, .. } if value.is_some() => (Some(new.clone()), Answer::Done),
        Operation::Delete { .. } if value.is_some() => (None, Answer::Done),
        Operation::Update { .. } | Operation::Delete { .. } => (same, Answer::Missing),
        Operation::CompareAndSet { expected, value: new, .. } if *expected == same => {
            (new.clone(), Answer::Done)
        }
        Operation::CompareAndSet { .. } => (same.clone(), Answer::Differs(same)),
    }
}

/// Whether each event may have happened at one instant between request and answer (Wing and Gong, with Lowe's memory of
/// the states that were tried). Events without an answer may have happened later, or never.
fn linearizable(events: &[Event]) -> bool {
    assert!(events.len() <= 128, "too many events for a set of bits");
    let mut tried = HashSet::new();
    let mut to_try = vec![(0u128, None::<Bytes>)];
    let all = events.iter().enumerate().filter(|(_, event)| event.answered.is_some());
    let all = all.fold(0u128, |set, (i, _)| set | 1 << i);
    while let Some((happened, value)) = to_try.pop() {
        if happened & all == all {
            return true;
        }
        let left = || (0..events.len()).filter(|i| happened & 1 << i == 0);
        let first_answer = left().filter_map(|i| events[i].answered.as_ref().map(|(at, _)| *at)).min();
        for i in left().filter(|i| first_answer.is_none_or(|first| events[*i].asked < first)) {
            let (new, answer) = done(&events[i].operation, value.as_ref());
            if events[i].answered.as_ref().is_none_or(|(_, said)| *said == answer) {
                let next = (happened | 1 << i, new);
                if tried.insert(next.clone()) {
                    to_try.push(next);
                }
            }
        }
    }
    false
}

#[test]
fn records_survive_what_happens_to_messages_and_servers() {
    let (mut ranges, mut splits, mut merges, mut arranged, mut dropped) = (0, 0, 0, 0, 0);
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, None, SERVERS);
        let weather = world.weather;
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        assert!(ran.is_ok(), "seed {seed}, {weather:?}");
        ranges += world.ranges_read;
        (merges, arranged) = (merges + world.merges, arranged + world.arranged);
        dropped += world.dropped.len() as u64;
        splits += world.servers.iter().map(|server| server.transfers).sum::<u64>();
    }
    let all = [ranges, splits, merges, arranged, dropped];
    let is_part = seeds(SEEDS).count() < SEEDS as usize;
    assert!(
        is_part || !all.contains(&0),
        "{all:?} ranges read, transfers, merges, changes that clients asked for, and tables that were dropped"
    );
}

#[test]
fn the_checker_finds_what_is_not_linearizable() {
    let event = |operation, asked, answered| Event { operation, asked, answered };
    let key: Bytes = (*b"k").into();
    let put = |value: &[u8; 1]| Operation::Upsert { key: key.clone(), value: (*value).into() };
    let get = || Operation::Get { key: key.clone() };
    let found = |value: Option<&[u8; 1]>| Answer::Value(value.map(|value| (*value).into()));
    let first = event(put(b"1"), 1, Some((2, Answer::Done)));
    // A read that missed a change acknowledged before the read began.
    assert!(!linearizable(&[first.clone(), event(get(), 3, Some((4, found(None))))]));
    assert!(linearizable(&[first.clone(), event(get(), 3, Some((4, found(Some(b"1")))))]));
    // A change with an unknown result may become visible, but not disappear again.
    let unknown = event(put(b"2"), 3, None);
    let read = |at, value| event(get(), at, Some((at + 1, found(Some(value)))));
    assert!(linearizable(&[first.clone(), unknown.clone(), read(5, b"1"), read(7, b"2")]));
    assert!(!linearizable(&[first, unknown, read(5, b"2"), read(7, b"1")]));
}
