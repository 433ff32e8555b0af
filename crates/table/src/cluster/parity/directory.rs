//! The groups of all tables with parity, on the registrar: who has which seat.
//!
//! Model: the registrar probes all servers. If one is silent, or has been restarted, others get its seats, as long as
//! the buckets that are left suffice to recover what is lost. A server that comes back is as good as a new one. A bucket
//! that moves to another server changes hands when the registrar commits that.
//! Invariant: what the registrar says is durable before anybody hears it. No two buckets of a group are on one server,
//! unless too few are left: then a data bucket shares one until another server comes.
//! Non-goals: records. While there is no registrar, servers go on with the seats that they have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use thalweg_api::{TableGroup, TableGroups, TableSeat};
use thalweg_base::codec::record;

use super::super::image::Address;
use super::super::interval::Interval;
use super::super::message::{Message, Outbox, Spec, TableId, To, TransferId};
use super::message::{Fate, Group, GroupId, Held, Occupant, ParityMessage, Placed, Seat};

/// How long a server may be silent before others get its seats.
pub(crate) const DEAD_MS: u64 = 1_500;
/// The time between two probes.
const PROBE_MS: u64 = 300;
/// The most transfers whose cancellation is remembered.
const CANCELLED_MAX: usize = 4096;

/// What the registrar stores durably.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The number that was given last, to an incarnation, an epoch or a group.
    latest: u64,
    pub(crate) groups: Vec<Group>,
    /// Transfers that were cancelled, the latest last.
    cancelled: Vec<TransferId>,
}

record!(Stored { latest, groups, cancelled });

/// The groups of all tables.
pub(crate) struct Directory {
    me: Address,
    servers: Vec<Address>,
    pub(crate) stored: Stored,
    /// Whether there is something to store before anything is sent.
    pub(crate) has_changed: bool,
    seen: BTreeMap<Address, Seen>,
    since_ms: u64,
    probed_ms: u64,
}

/// What is known about a server.
struct Seen {
    run: u64,
    heard_ms: u64,
    free_bytes: u64,
    held: Vec<Held>,
}

impl Directory {
    /// The groups that were stored.
    pub(crate) fn new(now_ms: u64, me: Address, stored: Stored) -> Directory {
        Directory {
            me,
            servers: Vec::new(),
            stored,
            has_changed: false,
            seen: BTreeMap::new(),
            since_ms: now_ms,
            probed_ms: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.has_changed = true;
        self.stored.latest += 1;
        self.stored.latest
    }

    fn is_alive(&self, now_ms: u64, server: &Address) -> bool {
        self.seen.get(server).is_some_and(|seen| now_ms < seen.heard_ms + DEAD_MS)
    }

    /// The servers that have answered lately.
    pub(crate) fn alive(&self, now_ms: u64) -> impl Iterator<Item = &Address> {
        self.servers.iter().filter(move |server| self.is_alive(now_ms, server))
    }

    /// Whether each server has answered, or has had the time to.
    pub(crate) fn knows_servers(&self, now_ms: u64) -> bool {
        let are_known = !self.servers.is_empty();
        let are_alive = self.servers.iter().all(|server| self.is_alive(now_ms, server));
        are_known && (are_alive || now_ms >= self.since_ms + DEAD_MS)
    }

    /// Whether the occupant of a seat is gone: its server is silent, or has lost its memory.
    fn is_gone(&self, now_ms: u64, occupant: &Occupant) -> bool {
        match self.seen.get(&occupant.server) {
            Some(seen) => seen.run != occupant.run || now_ms >= seen.heard_ms + DEAD_MS,
            None => now_ms >= self.since_ms + DEAD_MS,
        }
    }

    fn held(&self, group: &Group, index: usize) -> Option<&Held> {
        let occupant = group.seats[index].as_ref()?;
        let seat = Seat { group: group.id, index: index as u8, incarnation: occupant.incarnation };
        self.seen.get(&occupant.server)?.held.iter().find(|held| held.seat == seat)
    }

    /// Whether a bucket can be read to recover others.
    pub(crate) fn is_complete(&self, now_ms: u64, group: &Group, index: usize) -> bool {
        let is_here = group.seats[index].as_ref().is_some_and(|occupant| !self.is_gone(now_ms, occupant));
        is_here && self.held(group, index).is_some_and(|held| held.is_complete)
    }

    /// The server for a seat of a group: one that has none of its seats. The registrar's own node comes last, so that
    /// its failure stops as little as possible.
    fn choose(&self, now_ms: u64, group: &Group, may_share: bool) -> Option<Address> {
        let seats_of = |server: &Address| {
            let of = |group: &Group| {
                group.seats.iter().flatten().filter(|occupant| occupant.server == *server).count()
            };
            (of(group), self.stored.groups.iter().map(of).sum::<usize>())
        };
        let rank = |server: &&Address| {
            let (in_group, in_all) = seats_of(server);
            (in_group, **server == self.me, in_all, Reverse(self.seen[*server].free_bytes))
        };
        let best = self.alive(now_ms).min_by_key(rank)?;
        (may_share || seats_of(best).0 == 0).then(|| best.clone())
    }

    fn occupant(&mut self, server: Address, since: Option<u64>, bucket: Option<Placed>) -> Occupant {
        let incarnation = self.number();
        let run = self.seen.get(&server).map_or(0, |seen| seen.run);
        Occupant { server, run, incarnation, since: since.unwrap_or(incarnation), bucket }
    }

    /// Gives an empty seat to a server.
    fn seat(&mut self, group: &mut Group, index: usize, server: Address, bucket: Option<Placed>) {
        group.seats[index] = Some(self.occupant(server, None, bucket));
    }

    /// A group with parity buckets only, on other servers than this one.
    fn new_group(&mut self, now_ms: u64, spec: Spec, except: Option<&Address>) -> Group {
        let shape = spec.parity.expect("only tables with parity have groups");
        let mut group = Group { id: self.number(), generation: 1, spec, seats: vec![None; shape.seats()] };
        // The first data bucket is there before the others, so that no parity bucket gets its server.
        if let Some(server) = except {
            self.seat(&mut group, 0, server.clone(), None);
        }
        for index in usize::from(shape.data)..shape.seats() {
            if let Some(server) = self.choose(now_ms, &group, false) {
                self.seat(&mut group, index, server, None);
            }
        }
        group.seats[0] = None;
        group
    }

    /// Makes a group with the first bucket of a table. Returns the server of the bucket.
    pub(crate) fn create(&mut self, now_ms: u64, spec: Spec, out: &mut Outbox) -> Option<Address> {
        let mut group = self.new_group(now_ms, spec, None);
        let home = self.choose(now_ms, &group, false)?;
        let placed = Placed { transfer: None, interval: Some(Interval::all()), epoch: self.number() };
        self.seat(&mut group, 0, home.clone(), Some(placed));
        self.stored.groups.push(group);
        self.changed(self.stored.groups.len() - 1, out);
        Some(home)
    }

    /// The groups of a table, for reports.
    pub(crate) fn shown(&self, now_ms: u64, table: TableId) -> TableGroups {
        let of_table = self.stored.groups.iter().filter(|group| group.spec.id == table);
        let shown = |group: &Group| {
            let data = usize::from(group.shape().data);
            let seat = |(index, occupant): (usize, &Option<Occupant>)| {
                let node = occupant.as_ref()?.server.to_string();
                let is_complete = self.is_complete(now_ms, group, index);
                Some(TableSeat { node, is_parity: index >= data, is_complete })
            };
            TableGroup { seats: group.seats.iter().enumerate().map(seat).collect() }
        };
        TableGroups { groups: of_table.map(shown).collect() }
    }

    /// Removes the groups of a table.
    pub(crate) fn drop_table(&mut self, table: TableId) {
        self.stored.groups.retain(|group| group.spec.id != table);
        self.has_changed = true;
    }

    /// Handles a message of a server.
    pub(crate) fn take(&mut self, now_ms: u64, from: &Address, message: ParityMessage, out: &mut Outbox) {
        match message {
            ParityMessage::Alive { run, free_bytes, held } => {
                // Who was cut off learns that others have its seats.
                for group in &self.stored.groups {
                    let is_old =
                        |held: &Held| held.seat.group == group.id && group.occupant(held.seat).is_none();
                    out.extend(held.iter().any(is_old).then(|| told(from, group)));
                }
                self.seen.insert(from.clone(), Seen { run, heard_ms: now_ms, free_bytes, held });
            }
            ParityMessage::Join { id, spec } => self.join(now_ms, from, (id, spec), out),
            ParityMessage::Commit { id, seat, from: sender, part } => {
                self.commit(from, (id, seat), sender, part, out);
            }
            ParityMessage::Vacate { seat } => self.vacate(from, seat, out),
            ParityMessage::Resolve { id } => {
                let fate = self.fate(id);
                out.push(resolved(from, id, fate));
            }
            ParityMessage::Which { group } => {
                let found = self.stored.groups.iter().find(|found| found.id == group);
                out.extend(found.map(|group| told(from, group)));
            }
            _ => {}
        }
    }

    fn find(&mut self, id: GroupId) -> Option<usize> {
        self.stored.groups.iter().position(|group| group.id == id)
    }

    /// The group of the bucket that came, or is coming, by a transfer.
    fn group_of(&self, id: TransferId) -> Option<&Group> {
        self.stored.groups.iter().find(|group| group.received(id).is_some())
    }

    fn fate(&mut self, id: TransferId) -> Fate {
        match self.group_of(id).and_then(|group| group.received(id)) {
            Some(placed) if placed.epoch > 0 => Fate::Committed,
            Some(_) => Fate::Pending,
            None => {
                if !self.stored.cancelled.contains(&id) {
                    self.stored.cancelled.push(id);
                    let len = self.stored.cancelled.len();
                    self.stored.cancelled.drain(..len.saturating_sub(CANCELLED_MAX));
                    self.has_changed = true;
                }
                Fate::Cancelled
            }
        }
    }

    /// Gives the bucket of a transfer a seat in the first group that has one, and no other bucket on its server.
    fn join(&mut self, now_ms: u64, from: &Address, (id, spec): (TransferId, Spec), out: &mut Outbox) {
        if self.stored.cancelled.contains(&id) {
            return out.push(resolved(from, id, Fate::Cancelled));
        }
        if let Some(group) = self.group_of(id) {
            return out.push(told(from, group));
        }
        // Without a sign of life the run of the server is not known. It asks again.
        if !self.is_alive(now_ms, from) {
            return;
        }
        let has_room = |group: &Group| {
            let is_free = group.seats[..usize::from(group.shape().data)].contains(&None);
            let is_elsewhere = group.seats.iter().flatten().all(|occupant| occupant.server != *from);
            group.spec.id == spec.id && is_free && is_elsewhere
        };
        let at = self.stored.groups.iter().position(has_room).unwrap_or_else(|| {
            let group = self.new_group(now_ms, spec, Some(from));
            self.stored.groups.push(group);
            self.stored.groups.len() - 1
        });
        let placed = Placed { transfer: Some(id), interval: None, epoch: 0 };
        let occupant = self.occupant(from.clone(), None, Some(placed));
        let free = self.stored.groups[at].seats.iter().position(Option::is_none);
        self.stored.groups[at].seats[free.expect("a group with a free seat was found or made")] =
            Some(occupant);
        self.changed(at, out);
    }

    /// Makes the receiver of a transfer the owner of the records, if the sender still is.
    fn commit(
        &mut self,
        from: &Address,
        (id, seat): (TransferId, Seat),
        sender: Seat,
        part: Interval,
        out: &mut Outbox,
    ) {
        let (Some(at), Some(sender_at)) = (self.find(seat.group), self.find(sender.group)) else {
            return out.push(resolved(from, id, Fate::Cancelled));
        };
        let groups = &self.stored.groups;
        let receiver = groups[at].occupant(seat).and_then(|occupant| occupant.bucket.as_ref());
        let had = groups[sender_at].occupant(sender).and_then(|occupant| occupant.bucket.as_ref());
        let had = had.and_then(|placed| placed.interval.clone());
        match (receiver, had.map(|had| (had.intersection(&part) == part, had.minus(&part)))) {
            (Some(receiver), _) if receiver.epoch > 0 => out.push(told(from, &groups[at])),
            (Some(_), Some((true, (below, above)))) if below.is_none() || above.is_none() => {
                let epoch = self.number();
                let groups = &mut self.stored.groups;
                let left = groups[sender_at].bucket(sender.index);
                left.interval = below.or(above);
                let new = groups[at].bucket(seat.index);
                (new.interval, new.epoch) = (Some(part), epoch);
                self.changed(at, out);
                if at != sender_at {
                    self.changed(sender_at, out);
                }
            }
            _ => out.push(resolved(from, id, Fate::Cancelled)),
        }
    }

    /// Frees the seat of a bucket without records.
    fn vacate(&mut self, from: &Address, seat: Seat, out: &mut Outbox) {
        let Some(at) = self.find(seat.group) else { return };
        let group = &mut self.stored.groups[at];
        let bucket = group.occupant(seat).and_then(|occupant| occupant.bucket.as_ref());
        match bucket {
            Some(Placed { interval: None, .. }) => {
                group.seats[usize::from(seat.index)] = None;
                self.changed(at, out);
                out.push(told(from, &self.stored.groups[at]));
            }
            _ => out.push(told(from, group)),
        }
    }

    /// Raises the generation of a group, and tells its servers.
    fn changed(&mut self, at: usize, out: &mut Outbox) {
        self.has_changed = true;
        let group = &mut self.stored.groups[at];
        group.generation += 1;
        let servers: BTreeSet<&Address> =
            group.seats.iter().flatten().map(|occupant| &occupant.server).collect();
        out.extend(servers.into_iter().map(|server| told(server, group)));
    }

    /// Probes servers, replaces those that are gone, and repeats what servers have not heard.
    pub(crate) fn tick(&mut self, now_ms: u64, servers: &[Address], out: &mut Outbox) {
        if self.servers != servers {
            self.servers = servers.to_vec();
        }
        if now_ms < self.probed_ms + PROBE_MS {
            return;
        }
        self.probed_ms = now_ms;
        let probe = || Message::Parity(ParityMessage::Probe);
        out.extend(self.servers.iter().map(|server| (To::Server(server.clone()), probe())));
        for at in 0..self.stored.groups.len() {
            if self.repair(now_ms, at) {
                self.changed(at, out);
                continue;
            }
            let group = &self.stored.groups[at];
            for index in 0..group.seats.len() {
                let is_known =
                    self.held(group, index).is_some_and(|held| held.generation == group.generation);
                if let Some(occupant) = group.seats[index].as_ref().filter(|_| !is_known) {
                    out.push(told(&occupant.server, group));
                }
            }
        }
    }

    /// Gives seats of servers that are gone to others. Returns whether the group has changed.
    fn repair(&mut self, now_ms: u64, at: usize) -> bool {
        let mut group = self.stored.groups[at].clone();
        let data = usize::from(group.shape().data);
        let complete: Vec<bool> =
            (0..group.seats.len()).map(|index| self.is_complete(now_ms, &group, index)).collect();
        let is_gone: Vec<bool> = (group.seats.iter())
            .map(|seat| seat.as_ref().is_some_and(|occupant| self.is_gone(now_ms, occupant)))
            .collect();
        for (seat, _) in group.seats.iter_mut().zip(&is_gone).skip(data).filter(|(_, is_gone)| **is_gone) {
            *seat = None;
        }
        let parities = complete[data..].iter().filter(|is_complete| **is_complete).count();
        let lost = (0..data).filter(|index| group.seats[*index].is_some() && !complete[*index]).count();
        for index in (0..data).filter(|index| is_gone[*index]) {
            // What cannot be recovered stays with its server, which may come back.
            if lost <= parities
                && let Some(server) = self.choose(now_ms, &group, true)
            {
                self.reseat(&mut group, index, server);
            }
        }
        for index in data..group.seats.len() {
            if group.seats[index].is_none()
                && let Some(server) = self.choose(now_ms, &group, false)
            {
                self.seat(&mut group, index, server, None);
            }
        }
        let is_shared = |group: &Group, index: usize| {
            let server = |seat: &Option<Occupant>| seat.as_ref().map(|occupant| occupant.server.clone());
            let own = server(&group.seats[index]);
            own.is_some() && group.seats.iter().filter(|seat| server(seat) == own).count() > 1
        };
        let is_sound = (0..group.seats.len()).all(|index| group.seats[index].is_none() || complete[index]);
        if is_sound
            && parities > 0
            && let Some(index) = (0..data).find(|index| is_shared(&group, *index))
            && let Some(server) = self.choose(now_ms, &group, false)
        {
            self.reseat(&mut group, index, server);
        }
        let has_changed = group != self.stored.groups[at];
        self.stored.groups[at] = group;
        has_changed
    }

    /// Lets a server recover a data bucket.
    fn reseat(&mut self, group: &mut Group, index: usize, server: Address) {
        let old = group.seats[index].take().expect("a seat of a bucket");
        let mut bucket = old.bucket;
        if let Some(placed) = bucket.as_mut().filter(|placed| placed.epoch > 0) {
            placed.epoch = self.number();
        }
        group.seats[index] = Some(self.occupant(server, Some(old.since), bucket));
    }
}

/// A message with the present state of a group.
fn told(server: &Address, group: &Group) -> (To, Message) {
    (To::Server(server.clone()), Message::Parity(ParityMessage::Group(group.clone())))
}

fn resolved(server: &Address, id: TransferId, fate: Fate) -> (To, Message) {
    (To::Server(server.clone()), Message::Parity(ParityMessage::Resolved { id, fate }))
}
