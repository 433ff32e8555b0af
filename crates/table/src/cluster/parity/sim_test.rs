//! The simulation of tables with parity: servers are killed, frozen, cut off and stopped, and so is the registrar.
//!
//! Invariant: no record is lost while at most k servers fail before all groups are sound again, whatever was under way,
//! nor if all are stopped. A server that was cut off or frozen serves nothing that others have since. In the end every
//! parity bucket is the sum of the records of its group.

use std::collections::BTreeSet;

use super::super::image::Address;
use super::super::interval::{Bytes, Interval};
use super::super::message::{Answer, Message, Operation, Spec, TableId};
use super::super::parity::directory::{Directory, Stored};
use super::super::parity::message::{Group, ParityMessage, Shape};
use super::super::server::{BucketServer, Outbox, To};
use super::{CALM_MS, Event, KEYS, SEEDS, TABLE, World, key, name, number, seeds, server};
use crate::bucket::Bucket;

/// How long it takes until the registrar has noticed a failure.
const NOTICED_MS: u64 = 3_000;
/// The longest failure of a server, and of the registrar.
const DOWN_MS: u64 = 8_000;
/// The longest time that a server has to give its buckets away.
const CLOSING_MS: u64 = 5_000;
/// The keys of a bucket that is loaded.
const LOADED_KEYS: u64 = 8;

/// The registrar, and what it has stored.
pub(super) struct SimRegistrar {
    directory: Option<Directory>,
    stored: Stored,
    up_ms: u64,
}

impl SimRegistrar {
    pub(super) fn new() -> SimRegistrar {
        SimRegistrar { directory: None, stored: Stored::default(), up_ms: 0 }
    }
}

impl SimRegistrar {
    /// The groups, as far as the registrar has stored them.
    pub(super) fn stored(&self) -> &Stored {
        &self.stored
    }
}

impl World {
    /// The number of the registrar in the network.
    pub(super) fn registrar_number(&self) -> usize {
        self.servers.len() + self.clients.len()
    }

    fn with_directory(&mut self, work: impl FnOnce(&mut Directory, &mut Outbox)) {
        let SimRegistrar { directory, stored, up_ms } = &mut self.registrar;
        if self.now_ms < *up_ms {
            return;
        }
        let directory =
            directory.get_or_insert_with(|| Directory::new(self.now_ms, "registrar".into(), stored.clone()));
        let mut out = Outbox::new();
        work(directory, &mut out);
        if std::mem::take(&mut directory.has_changed) {
            *stored = directory.stored.clone();
        }
        for (to, message) in out {
            let To::Server(to) = to else { panic!("{message:?} of the registrar to {to:?}") };
            self.send(self.registrar_number(), number(&to), &message);
        }
    }

    pub(super) fn register(&mut self, from: usize, message: Message) {
        let Message::Parity(message) = message else { return self.ended(from, &message) };
        if matches!(&message, ParityMessage::Join { spec, .. } if self.drops.has(spec.id)) {
            return;
        }
        let now_ms = self.now_ms;
        self.with_directory(|directory, out| directory.take(now_ms, &name(from), message, out));
    }

    pub(super) fn tick_registrar(&mut self) {
        if self.spec.parity.is_none() {
            return;
        }
        let servers: Vec<Address> = (0..self.servers.len()).map(name).collect();
        let now_ms = self.now_ms;
        self.with_directory(|directory, out| directory.tick(now_ms, &servers, out));
        let is_noticed = self.closing.is_empty() && self.now_ms >= self.failed_ms + NOTICED_MS;
        if self.failed > 0 && is_noticed && self.is_sound() {
            self.failed = 0;
            self.rebuilt += 1;
        }
    }

    /// Makes the first group of the table.
    pub(super) fn create_group(&mut self, shape: Shape) {
        while self.make_group(self.spec, shape).is_none() {
            self.step();
        }
    }

    /// Makes the first group of a table, if there are enough servers. Returns the home of the table.
    pub(super) fn make_group(&mut self, spec: Spec, shape: Shape) -> Option<Address> {
        let (now_ms, mut home) = (self.now_ms, None);
        self.with_directory(|directory, out| {
            if directory.alive(now_ms).count() >= shape.seats() {
                home = directory.create(now_ms, spec, out);
            }
        });
        home
    }

    /// Removes the groups of a table. Returns the servers with seats.
    pub(super) fn drop_groups(&mut self, table: TableId) -> Option<BTreeSet<Address>> {
        let mut seats = BTreeSet::new();
        self.with_directory(|directory, _| seats = directory.drop_table(table));
        Some(seats).filter(|seats| !seats.is_empty())
    }

    /// Whether the registrar is there.
    pub(super) fn registrar_is_up(&self) -> bool {
        self.now_ms >= self.registrar.up_ms
    }

    /// Loads the records that exist throughout into buckets, as a client would.
    pub(super) fn load_buckets(&mut self) {
        let servers = self.servers.len();
        loop {
            self.step();
            let alive = self.registrar.directory.as_ref().map_or(0, |known| known.alive(self.now_ms).count());
            if alive == servers {
                break;
            }
        }
        let count = 2 * KEYS / LOADED_KEYS;
        for i in 0..count {
            let from = if i == 0 { Bytes::default() } else { key(i * LOADED_KEYS) };
            let to = (i + 1 < count).then(|| key((i + 1) * LOADED_KEYS));
            let (server, spec, mut out) = (i as usize % servers, self.spec, Outbox::new());
            let BucketServer { slab, .. } = &mut self.servers[server];
            let (mut tree, mut bytes) = (Bucket::new(slab).unwrap(), 0);
            for i in (i * LOADED_KEYS..(i + 1) * LOADED_KEYS).step_by(2) {
                let (asked, answered) = (self.instant + 1, self.instant + 2);
                self.instant += 2;
                let operation = Operation::Upsert { key: key(i), value: (*b"fixed").into() };
                bytes += (key(i).len() + operation.value().len()) as u64;
                tree.put(slab, &key(i), operation.value(), None).unwrap();
                let answered = Some((answered, Answer::Done));
                self.history.entry(key(i)).or_default().push(Event { operation, asked, answered });
                self.fixed.insert(key(i));
            }
            let interval = Interval::new(&from, to.as_deref());
            self.servers[server].receive_load(self.now_ms, spec, (tree, bytes), interval, &mut out);
            self.post(server, out);
        }
        let until_ms = self.now_ms + CALM_MS;
        while self.servers.iter().any(|server| server.arriving(TABLE) > 0) {
            assert!(self.now_ms < until_ms, "a load has no end");
            self.step();
        }
    }

    /// The most buckets that a group lacks, as far as the registrar knows; `None` while it is down.
    fn lacking(&self) -> Option<usize> {
        let directory = self.registrar.directory.as_ref()?;
        let of = |group: &Group| {
            let data = usize::from(group.shape().data);
            let lacks = |index: &usize| match &group.seats[*index] {
                None => *index >= data,
                Some(_) => !directory.is_complete(self.now_ms, group, *index),
            };
            (0..group.seats.len()).filter(lacks).count()
        };
        Some(directory.stored.groups.iter().map(of).max().unwrap_or(0))
    }

    /// Whether all buckets of all groups are there.
    fn is_sound(&self) -> bool {
        self.lacking() == Some(0)
    }

    /// Lets a server or the registrar fail.
    pub(super) fn fail(&mut self) {
        if !self.weather.crashes {
            return;
        }
        if self.rng.one_in(300) {
            self.registrar.directory = None;
            self.registrar.up_ms = self.now_ms + self.rng.below(DOWN_MS);
        }
        let tolerated = self.spec.parity.map_or(0, |shape| usize::from(shape.parity));
        // A server that was cut off for long has failed as well, and others are about to get its buckets.
        let failed = self.lacking().map_or(tolerated, |lacking| lacking.max(self.failed));
        let failing = self.rng.below(self.servers.len() as u64) as usize;
        if failed >= tolerated || !self.rng.one_in(60) || self.down.contains_key(&failing) {
            return;
        }
        let (until_ms, all) = (self.now_ms + self.rng.below(DOWN_MS), self.servers.len());
        (self.failed, self.failed_ms) = (self.failed + 1, self.now_ms);
        match self.rng.below(6) {
            // It is killed.
            0 => {
                self.runs += 1;
                self.servers[failing] = server((failing, all), self.runs);
                self.closing.remove(&failing);
                self.down.insert(failing, (until_ms, false));
            }
            // It is frozen.
            1 => _ = self.down.insert(failing, (until_ms, true)),
            // It is cut off from the registrar and the other servers, but not from clients.
            2 => {
                let others = (0..all).chain([self.registrar_number()]).filter(|other| *other != failing);
                let cuts = others.flat_map(|other| [(failing, other, until_ms), (other, failing, until_ms)]);
                self.cuts.extend(cuts);
                self.cut_off.push((failing, until_ms));
            }
            // It and another one do not reach each other.
            3 => {
                let other = self.rng.below(all as u64) as usize;
                self.cuts.extend([(failing, other, until_ms), (other, failing, until_ms)]);
            }
            4 => self.stop(failing),
            // All are stopped. While they return, none of them may fail.
            _ => {
                (0..all).for_each(|server| self.stop(server));
                self.failed = tolerated;
            }
        }
    }

    /// Asks a server to end: it gives its buckets away, and returns later with those that no other took.
    fn stop(&mut self, server: usize) {
        if !self.down.contains_key(&server) && !self.closing.contains_key(&server) {
            self.servers[server].close(self.now_ms);
            self.closing.insert(server, self.now_ms + self.rng.below(CLOSING_MS));
        }
    }

    /// Counts the servers that were cut off and return to a network in which others have their seats.
    pub(super) fn count_replaced(&mut self) {
        for (server, _) in self.cut_off.extract_if(.., |(_, until_ms)| self.now_ms >= *until_ms) {
            let buckets = self.servers[server].tables.values().flat_map(|served| &served.buckets);
            let mut seats = buckets.filter_map(|bucket| bucket.member.as_ref().map(|member| member.seat));
            let groups = &self.registrar.stored.groups;
            let is_old = |seat| groups.iter().all(|group| group.occupant(seat).is_none());
            self.replaced += u64::from(seats.any(is_old));
        }
    }

    /// Ends servers that have given their buckets away, or have had the time to.
    pub(super) fn end_closing(&mut self) {
        for (server, until_ms) in self.closing.clone() {
            let is_over = self.now_ms >= until_ms || self.servers[server].has_given_away(self.now_ms);
            if !is_over || self.down.contains_key(&server) {
                continue;
            }
            self.closing.remove(&server);
            self.failed_ms = self.now_ms;
            self.runs += 1;
            let mut later = self::server((server, self.servers.len()), self.runs);
            self.servers[server].returns_as(self.now_ms, &mut later);
            self.servers[server] = later;
            self.down.insert(server, (self.now_ms + self.rng.below(DOWN_MS), false));
            self.stopped += 1;
        }
    }

    /// Checks that all groups are sound, and that each parity bucket is the sum of its group.
    pub(super) fn check_groups(&mut self) {
        assert!(self.is_sound(), "a group is not sound: {:?}", self.registrar.stored);
        for group in self.registrar.stored.groups.clone() {
            let mut buckets = Vec::new();
            for (index, occupant) in (0..).zip(&group.seats) {
                let Some(occupant) = occupant else { continue };
                let server = &mut self.servers[number(&occupant.server)];
                buckets.push((index, server.lines_of(&group, index)));
            }
            super::super::parity::check_sums(group.shape(), &buckets);
        }
    }
}

#[test]
fn no_record_is_lost_with_any_k_servers() {
    let (mut splits, mut rebuilt, mut arranged, mut replaced, mut stopped) = (0, 0, 0, 0, 0);
    for seed in seeds(SEEDS) {
        let (shape, servers) = [("2+1", 4), ("1+1", 3), ("2+2", 5), ("4+1", 6)][seed as usize % 4];
        let mut world = World::new(seed, Some(Shape::parse(shape).unwrap()), servers);
        let weather = world.weather;
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if seed % 3 == 2 {
                world.load_buckets();
            }
            world.run();
        }));
        assert!(ran.is_ok(), "seed {seed}, {shape} on {servers} servers, {weather:?}");
        splits += world.servers.iter().map(|server| server.transfers).sum::<u64>();
        (rebuilt, arranged) = (rebuilt + world.rebuilt, arranged + world.arranged);
        (replaced, stopped) = (replaced + world.replaced, stopped + world.stopped);
    }
    let all = [splits, rebuilt, arranged, replaced, stopped];
    assert!(
        seeds(SEEDS).count() < SEEDS as usize || !all.contains(&0),
        "{all:?} transfers, rebuilt groups, changes that clients asked for, and servers that were replaced and stopped"
    );
}
