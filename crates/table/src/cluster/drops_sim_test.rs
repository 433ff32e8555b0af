//! The simulation of drops: clients use a table while it is dropped, and another one is made in its place as soon as its
//! name is free. Some of them have the old one open until they hear of the drop.
//!
//! Invariant: what was dropped is served by nobody, ever. Until a table is dropped, its answers are linearizable, and of
//! the table in its place as well: nothing of the old one is there, and nothing that was acknowledged is missing.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::image::Address;
use super::super::message::{Ask, Message, Operation, Outbox, Outcome, Spec, TableId, To};
use super::super::server::BucketServer;
use super::{CALM_MS, Drops, SERVERS, SimClient, World, core, linearizable, name, number};

impl World {
    /// Whether a table is being dropped, or was.
    pub(super) fn has_dropped(&self) -> bool {
        self.dropping.is_some() || !self.dropped.is_empty()
    }

    /// Begins to drop the table, unless the registrar is down or does so already.
    pub(super) fn begin_drop(&mut self) {
        let table = self.spec.id;
        if self.dropping.is_some() || self.dropped.contains(&table) || !self.registrar_is_up() {
            return;
        }
        let seats = self.drop_groups(table);
        self.drops.begin(table, seats);
        self.dropping = Some(table);
        self.fixed.clear();
    }

    /// Does what is due for drops.
    pub(super) fn tick_drops(&mut self) {
        self.check_dropped();
        if !self.registrar_is_up() {
            // It knows from its list what it was doing, but not how far it had come.
            self.drops = Drops::default();
            return;
        }
        if let Some(table) = self.dropping {
            self.drops.begin(table, None);
        }
        let servers: Vec<Address> = (0..self.servers.len()).map(name).collect();
        let mut out = Outbox::new();
        self.drops.tick(self.now_ms, &servers, &mut out);
        for (to, message) in out {
            let To::Server(to) = to else { panic!("{message:?} of the registrar to {to:?}") };
            self.send(self.registrar_number(), number(&to), &message);
        }
        let mut finished = self.drops.finished(self.now_ms);
        finished.extend(self.dropping.filter(|_| self.is_careless));
        for table in finished {
            self.drops.finish(table);
            if self.dropping == Some(table) {
                self.is_dropped(table);
            }
        }
        if self.dropped.contains(&self.spec.id) {
            self.make_another();
        }
    }

    pub(super) fn ended(&mut self, from: usize, message: &Message) {
        let Message::Ended { table, round, run, had } = message else {
            panic!("{message:?} to the registrar")
        };
        if self.registrar_is_up() {
            self.drops.ended(self.now_ms, &name(from), (*table, *round, *run), had);
        }
    }

    /// Handles the end of a drop: from now on, nothing of the table counts.
    fn is_dropped(&mut self, table: TableId) {
        self.dropping = None;
        self.dropped.push(table);
        for (key, events) in std::mem::take(&mut self.history) {
            assert!(self.lost.contains(&key) || linearizable(&events), "{}: {events:#?}", key.escape_ascii());
        }
        self.lost.clear();
        for client in &mut self.clients {
            client.asked.clear();
            (client.range, client.arranging) = (None, None);
        }
        self.check_dropped();
    }

    /// Makes a table in place of the one that was dropped, if there are enough servers. Clients that know of the drop
    /// open it, and some others.
    fn make_another(&mut self) {
        let spec = Spec { id: self.spec.id + 1, ..self.spec };
        let home = match spec.parity {
            Some(shape) => match self.make_group(spec, shape) {
                Some(home) => home,
                None => return,
            },
            None => {
                let home = self.rng.below(self.servers.len() as u64) as usize;
                self.servers[home].begin(spec).expect("an empty bucket fits");
                name(home)
            }
        };
        self.servers[number(&home)].begin_index(spec.id, &[]);
        (self.spec, self.home) = (spec, home);
        for client in 0..self.clients.len() {
            if self.clients[client].table.is_none() || self.rng.one_in(3) {
                self.open(client);
            }
        }
    }

    /// Lets a client open the present table, if there is one.
    fn open(&mut self, client: usize) {
        self.sessions += 1;
        let is_there = self.dropping.is_none() && !self.dropped.contains(&self.spec.id);
        let home = (self.spec.id, self.home.clone());
        self.clients[client] = SimClient {
            core: core(client, home, self.servers.len(), self.sessions),
            table: is_there.then_some(self.spec.id),
            late: BTreeSet::new(),
            asked: Default::default(),
            range: None,
            arranging: None,
        };
    }

    /// A request of a client that has a table open which was dropped.
    pub(super) fn ask_late(&mut self, client: usize, operation: Operation) {
        let SimClient { core, late, .. } = &mut self.clients[client];
        late.insert(core.ask(self.now_ms, Arc::new(Ask::Record(operation))));
    }

    /// Handles an outcome, if it is for a client whose table was, or is being, dropped. Such a client opens the table
    /// again when a request fails.
    pub(super) fn is_late(&mut self, client: usize, number: u64, outcome: Option<&Outcome>) -> bool {
        let SimClient { table, late, .. } = &self.clients[client];
        let Some(table) = *table else { return true };
        if late.contains(&number) {
            assert!(matches!(outcome, None | Some(Outcome::Refused(_))), "{table} was dropped: {outcome:?}");
        }
        let has_failed = matches!(outcome, None | Some(Outcome::Refused(_)));
        let is_gone = self.dropping == Some(table) || self.dropped.contains(&table);
        if is_gone && has_failed {
            self.open(client);
        }
        // What it did before the drop was finished does not count any more.
        is_gone && (has_failed || self.dropping != Some(table))
    }

    /// Checks that nobody serves what was dropped.
    fn check_dropped(&self) {
        let serves = |server: &BucketServer, table: &TableId| {
            let mut buckets = server.tables.get(table).into_iter().flat_map(|served| &served.buckets);
            buckets.any(|bucket| !bucket.served().is_empty() && bucket.may_serve(self.now_ms))
        };
        for table in &self.dropped {
            let serving = self.servers.iter().find(|server| serves(server, table));
            assert!(serving.is_none(), "{table} was dropped, and {} serves it", serving.unwrap().me);
        }
    }

    /// Waits until there is a table, and checks that nobody has anything of those that were dropped. All clients open it.
    pub(super) fn check_drops(&mut self) {
        let until_ms = self.now_ms + CALM_MS;
        while self.dropping.is_some() || self.dropped.contains(&self.spec.id) {
            assert!(self.now_ms < until_ms, "a drop has no end");
            self.step();
        }
        for server in &self.servers {
            assert!(server.tables.keys().all(|table| *table == self.spec.id), "{} has old tables", server.me);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].table != Some(self.spec.id) {
                self.open(client);
            }
        }
    }
}

#[test]
fn a_drop_that_does_not_wait_for_the_servers_is_found() {
    let is_found = |seed: u64| {
        let mut world = World::new(seed, None, SERVERS);
        world.is_careless = true;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run())).is_err()
    };
    assert!((0..20).filter(|seed| seed % 5 < 2).any(is_found), "nothing is found");
}
