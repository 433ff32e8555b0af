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
use super::super::interval::{Interval, Upper};
use super::super::message::{Message, Outbox, Spec, TableId, To, TransferId};
use super::message::{Fate, Group, GroupId, Held, Occupant, ParityMessage, Placed, Seat};

/// How long a server may be silent before others get its seats.
pub(crate) const DEAD_MS: u64 = 1_500;
/// The time between two probes.
const PROBE_MS: u64 = 300;
/// How long two servers get no seats of one group after one has not heard from the other.
const APART_MS: u64 = 30_000;
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
    /// Servers that did not hear from each other, until when that matters.
    apart: BTreeMap<(Address, Address), u64>,
    since_ms: u64,
    probed_ms: u64,
}

/// What is known about a server.
struct Seen {
    run: u64,
    heard_ms: u64,
    free_bytes: u64,
    /// Whether it is about to end.
    is_closing: bool,
    held: Vec<Held>,
    /// Its data buckets that do not hear from a parity bucket.
    silent: Vec<(Seat, Seat)>,
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
            apart: BTreeMap::new(),
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

    /// Whether the server of an occupant has been restarted since, so that it has nothing of it any more.
    fn has_forgotten(&self, occupant: &Occupant) -> bool {
        self.seen.get(&occupant.server).is_some_and(|seen| seen.run != occupant.run)
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
        let meets = |server: &Address| {
            let is_apart = |(a, b): &(Address, Address)| {
                let of_group =
                    |other: &Address| group.seats.iter().flatten().any(|occupant| occupant.server == *other);
                (a == server && of_group(b)) || (b == server && of_group(a))
            };
            !self.apart.keys().any(is_apart)
        };
        let stays = |server: &&Address| !self.seen[*server].is_closing && meets(server);
        let best = self.alive(now_ms).filter(stays).min_by_key(rank)?;
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

    /// The groups of a table, for reports. The nodes themselves say which buckets are complete: what they last told the
    /// registrar may be old.
    pub(crate) fn shown(&self, now_ms: u64, table: TableId) -> TableGroups {
        let of_table = self.stored.groups.iter().filter(|group| group.spec.id == table);
        let shown = |group: &Group| {
            let data = usize::from(group.shape().data);
            let seat = |(index, occupant): (usize, &Option<Occupant>)| {
                let occupant = occupant.as_ref()?;
                Some(TableSeat {
                    node: occupant.server.to_string(),
                    incarnation: occupant.incarnation,
                    is_parity: index >= data,
                    is_complete: !self.is_gone(now_ms, occupant),
                })
            };
            TableGroup { id: group.id, seats: group.seats.iter().enumerate().map(seat).collect() }
        };
        TableGroups { groups: of_table.map(shown).collect() }
    }

    /// Removes the groups of a table. Returns the servers that have seats of them.
    pub(crate) fn drop_table(&mut self, table: TableId) -> BTreeSet<Address> {
        let of_table = self.stored.groups.extract_if(.., |group| group.spec.id == table);
        let seats = of_table.flat_map(|group| group.seats).flatten();
        let servers: BTreeSet<Address> = seats.map(|occupant| occupant.server).collect();
        self.has_changed |= !servers.is_empty();
        servers
    }

    /// Handles a message of a server.
    pub(crate) fn take(&mut self, now_ms: u64, from: &Address, message: ParityMessage, out: &mut Outbox) {
        match message {
            ParityMessage::Alive { run, free_bytes, is_closing, held, silent } => {
                self.return_seats((from, run), &held, out);
                for (_, parity) in &silent {
                    let occupant = self.stored.groups.iter().find_map(|group| group.occupant(*parity));
                    if let Some(Occupant { server, .. }) = occupant {
                        self.apart.insert((from.clone(), server.clone()), now_ms + APART_MS);
                    }
                }
                // Who was cut off learns that others have its seats.
                for group in &self.stored.groups {
                    let is_old =
                        |held: &Held| held.seat.group == group.id && group.occupant(held.seat).is_none();
                    out.extend(held.iter().any(is_old).then(|| told(from, group)));
                }
                let seen = Seen { run, heard_ms: now_ms, free_bytes, is_closing, held, silent };
                self.seen.insert(from.clone(), seen);
            }
            ParityMessage::Join { id, spec } => self.join(now_ms, from, (id, spec), out),
            ParityMessage::Commit { id, seat, from: sender, part } => {
                self.commit(from, (id, seat), sender, part, out);
            }
            ParityMessage::Vacate { seat } => self.vacate(from, seat, out),
            ParityMessage::Resolve { id, seat, part } => {
                let fate = self.fate(id, seat, &part);
                out.push(resolved(from, id, fate));
            }
            ParityMessage::Which { group } => {
                let found = self.stored.groups.iter().find(|found| found.id == group);
                out.extend(found.map(|group| told(from, group)));
            }
            _ => {}
        }
    }

    /// Gives a server that has been restarted the seats back whose buckets it has read from files. Its transfers from
    /// before are cancelled, as the buckets do not know of them.
    fn return_seats(&mut self, (server, run): (&Address, u64), held: &[Held], out: &mut Outbox) {
        for seat in held.iter().filter(|held| held.generation == 0).map(|held| held.seat) {
            let Some(at) = self.find(seat.group) else { continue };
            let occupant = self.stored.groups[at].seats.get_mut(usize::from(seat.index));
            let is_it = |of: &&mut Occupant| of.incarnation == seat.incarnation && of.server == *server;
            let Some(occupant) = occupant.and_then(Option::as_mut).filter(is_it) else { continue };
            if occupant.run != run {
                occupant.run = run;
                let coming = occupant.bucket.as_ref().filter(|placed| placed.epoch == 0);
                coming.and_then(|placed| placed.transfer).into_iter().for_each(|id| self.cancel(id));
                self.changed(at, out);
            }
        }
    }

    fn find(&mut self, id: GroupId) -> Option<usize> {
        self.stored.groups.iter().position(|group| group.id == id)
    }

    /// The group of the bucket that came, or is coming, by a transfer.
    fn group_of(&self, id: TransferId) -> Option<&Group> {
        self.stored.groups.iter().find(|group| group.received(id).is_some())
    }

    /// The fate of a transfer of a part of a seat's bucket.
    fn fate(&mut self, id: TransferId, seat: Seat, part: &Interval) -> Fate {
        let sender = self.stored.groups.iter().find_map(|group| group.occupant(seat)?.bucket.as_ref());
        // Whoever received the records may have passed them on since.
        let has_given = sender.is_some_and(|sender| !sender.has(part));
        match self.group_of(id).and_then(|group| group.received(id)) {
            _ if has_given => Fate::Committed,
            Some(placed) if placed.epoch > 0 => Fate::Committed,
            Some(_) => Fate::Pending,
            None => {
                self.cancel(id);
                Fate::Cancelled
            }
        }
    }

    /// Remembers that a transfer will never be committed.
    fn cancel(&mut self, id: TransferId) {
        if !self.stored.cancelled.contains(&id) {
            self.stored.cancelled.push(id);
            let len = self.stored.cancelled.len();
            self.stored.cancelled.drain(..len.saturating_sub(CANCELLED_MAX));
            self.has_changed = true;
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

    /// Makes the receiver of a transfer the owner of the records, beside those that it has, if the sender still is.
    /// Records that come from no seat must be of keys that nobody has.
    fn commit(
        &mut self,
        from: &Address,
        (id, seat): (TransferId, Seat),
        sender: Option<Seat>,
        part: Interval,
        out: &mut Outbox,
    ) {
        let Some(at) = self.find(seat.group) else { return out.push(resolved(from, id, Fate::Cancelled)) };
        let groups = &self.stored.groups;
        let Some(occupant) = groups[at].occupant(seat) else {
            // The seat has another occupant. If this one removed the records, as after a cancelled transfer, it would do so
            // in parity buckets that do not know the other one yet, and from which that one recovers them.
            return out.push(told(from, &groups[at]));
        };
        let receiver = occupant.bucket.as_ref();
        let whole = match receiver {
            Some(receiver)
                if receiver.has(&part) || (receiver.epoch > 0 && receiver.transfer == Some(id)) =>
            {
                return out.push(told(from, &groups[at]));
            }
            Some(receiver)
                if !self.gives((groups[at].spec.id, id), sender, &part) || receiver.has_ended() =>
            {
                None
            }
            Some(_) if self.stored.cancelled.contains(&id) => None,
            Some(Placed { interval: Some(had), .. }) => {
                let follows = had.to == Upper::Key(part.from.clone());
                follows.then(|| Interval { from: had.from.clone(), to: part.to.clone() })
            }
            Some(Placed { interval: None, .. }) => Some(part.clone()),
            None => None,
        };
        let Some(whole) = whole else {
            self.cancel(id);
            return out.push(resolved(from, id, Fate::Cancelled));
        };
        let epoch = self.number();
        let new = self.stored.groups[at].bucket(seat.index);
        (new.interval, new.epoch) = (Some(whole), epoch);
        if let Some(sender) = sender {
            let sender_at = self.find(sender.group).expect("it was just found");
            let left = self.stored.groups[sender_at].bucket(sender.index);
            let (below, above) = left.interval.take().expect("it was just found").minus(&part);
            left.interval = below.or(above);
            if at != sender_at {
                self.changed(sender_at, out);
            }
        }
        self.changed(at, out);
    }

    /// Whether a sender, in the run of the transfer, has the keys of a part at one of its ends; without a sender, whether
    /// no bucket of the table has any of them.
    fn gives(&self, (table, id): (TableId, TransferId), sender: Option<Seat>, part: &Interval) -> bool {
        let of_table = || self.stored.groups.iter().filter(|group| group.spec.id == table);
        let Some(sender) = sender else {
            let mut placed = of_table().flat_map(Group::data).filter_map(|(_, of)| of.bucket.as_ref());
            let meets = |has: &Interval| !has.intersection(part).is_empty();
            return !placed.any(|placed| placed.interval.as_ref().is_some_and(meets));
        };
        let placed = of_table()
            .find_map(|group| group.occupant(sender).filter(|of| of.run == id.run)?.bucket.as_ref());
        placed.is_some_and(|placed| {
            placed.has(part)
                && placed.interval.as_ref().is_some_and(|has| {
                    let (below, above) = has.minus(part);
                    below.is_none() || above.is_none()
                })
        })
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
        self.apart.retain(|_, until_ms| now_ms < *until_ms);
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

    /// The seats of a group that others should get because servers do not reach each other: of a data bucket that does
    /// not hear from a parity bucket, or of the parity bucket if several do not, or if it is not complete.
    fn cut_off(&self, group: &Group, complete: &[bool]) -> BTreeSet<usize> {
        let data = group.shape().data;
        let seat = |index: u8, of: &Occupant| Seat { group: group.id, index, incarnation: of.incarnation };
        let silent = |(number, of): (u8, &Occupant)| {
            let (parity, at) = (seat(data + number, of), usize::from(data + number));
            let silent = group.data().filter(|(index, of)| {
                let seen = self.seen.get(&of.server);
                seen.is_some_and(|seen| seen.silent.contains(&(seat(*index, of), parity)))
            });
            let silent: Vec<usize> = silent.map(|(index, _)| usize::from(index)).collect();
            let is_of_parity = silent.len() > 1 || (!silent.is_empty() && !complete[at]);
            if is_of_parity { vec![at] } else { silent }
        };
        group.parities().flat_map(silent).collect()
    }

    /// Gives seats of servers that are gone to others. Returns whether the group has changed.
    fn repair(&mut self, now_ms: u64, at: usize) -> bool {
        let mut group = self.stored.groups[at].clone();
        let data = usize::from(group.shape().data);
        let mut complete: Vec<bool> =
            (0..group.seats.len()).map(|index| self.is_complete(now_ms, &group, index)).collect();
        let mut is_gone: Vec<bool> = (group.seats.iter())
            .map(|seat| seat.as_ref().is_some_and(|occupant| self.is_gone(now_ms, occupant)))
            .collect();
        for index in self.cut_off(&group, &complete) {
            (complete[index], is_gone[index]) = (false, true);
        }
        let parities = complete[data..].iter().filter(|is_complete| **is_complete).count();
        let lost: Vec<usize> =
            (0..data).filter(|index| group.seats[*index].is_some() && !complete[*index]).collect();
        let can_recover = lost.len() <= parities;
        for index in (0..data).filter(|index| can_recover && is_gone[*index]) {
            if let Some(server) = self.choose(now_ms, &group, true) {
                self.reseat(&mut group, index, server);
            }
        }
        // Without recovery, what is lost stays with its server, which may come back, unless nobody has keys there.
        let is_empty = |index: &usize| is_gone[*index] && group.has_no_keys(*index);
        let begins_anew = !can_recover && lost.iter().all(is_empty);
        if begins_anew {
            lost.iter().for_each(|index| group.seats[*index] = None);
        }
        for (index, is_gone) in is_gone.iter().enumerate().skip(data) {
            let has_forgotten =
                group.seats[index].as_ref().is_some_and(|occupant| self.has_forgotten(occupant));
            if begins_anew || has_forgotten || (can_recover && *is_gone) {
                group.seats[index] = None;
            }
            if group.seats[index].is_none()
                && let Some(server) = self.choose(now_ms, &group, false)
            {
                self.seat(&mut group, index, server, None);
            }
        }
        let is_sound = (0..group.seats.len()).all(|index| group.seats[index].is_none() || complete[index]);
        if is_sound && parities > 0 {
            self.rearrange(now_ms, &mut group);
        }
        let has_changed = group != self.stored.groups[at];
        self.stored.groups[at] = group;
        has_changed
    }

    /// Gives a seat of a sound group to a server that has none: one that shares a server, or a parity bucket whose
    /// server is about to end.
    fn rearrange(&mut self, now_ms: u64, group: &mut Group) {
        let data = usize::from(group.shape().data);
        let server = |index: usize| group.seats[index].as_ref().map(|occupant| &occupant.server);
        let is_shared = |index: &usize| {
            let own = server(*index);
            own.is_some() && (0..group.seats.len()).filter(|other| server(*other) == own).count() > 1
        };
        let closes = |index: &usize| {
            server(*index).and_then(|server| self.seen.get(server)).is_some_and(|seen| seen.is_closing)
        };
        let shared = (0..data).find(is_shared);
        let closing = (data..group.seats.len()).find(closes);
        if let Some(index) = shared.or(closing)
            && let Some(server) = self.choose(now_ms, group, false)
        {
            match index < data {
                true => self.reseat(group, index, server),
                false => self.seat(group, index, server, None),
            }
        }
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

#[cfg(test)]
mod tests {
    use super::super::message::Shape;
    use super::*;

    /// All servers but one say that they live, and that they have every seat of theirs.
    fn alive(directory: &mut Directory, now_ms: u64, except: &str) {
        for server in directory.servers.clone().into_iter().filter(|server| **server != *except) {
            let mut held = Vec::new();
            for group in &directory.stored.groups {
                for (index, of) in group.seats.iter().enumerate() {
                    let Some(Occupant { server: of, incarnation, since, .. }) = of else { continue };
                    if *of == server && since == incarnation {
                        let seat = Seat { group: group.id, index: index as u8, incarnation: *incarnation };
                        held.push(Held { seat, generation: group.generation, is_complete: true });
                    }
                }
            }
            let message =
                ParityMessage::Alive { run: 1, free_bytes: 1 << 30, is_closing: false, held, silent: vec![] };
            directory.take(now_ms, &server, message, &mut Outbox::new());
        }
    }

    const SERVERS: [&str; 4] = ["n1", "n2", "n3", "n4"];

    /// A table with one bucket, and the server that has it.
    fn table() -> (Directory, Address) {
        let mut directory = Directory::new(0, "n1".into(), Stored::default());
        let spec =
            Spec { id: 7, capacity: 4, capacity_bytes: 4096, parity: Some(Shape { data: 1, parity: 1 }) };
        directory.tick(PROBE_MS, &SERVERS.map(Address::from), &mut Outbox::new());
        alive(&mut directory, PROBE_MS, "");
        let home = directory.create(PROBE_MS, spec, &mut Outbox::new()).expect("four servers are there");
        (directory, home)
    }

    #[test]
    fn an_occupant_that_was_replaced_hears_who_is_there_now() {
        let (mut directory, home) = table();
        let first = |directory: &Directory| directory.stored.groups[0].seats[0].clone().unwrap();
        let (group, incarnation) = (directory.stored.groups[0].id, first(&directory).incarnation);
        let late_ms = 2 * PROBE_MS + DEAD_MS;
        alive(&mut directory, late_ms, &home);
        directory.tick(late_ms, &SERVERS.map(Address::from), &mut Outbox::new());
        assert_ne!(first(&directory).server, home);
        let seat = Seat { group, index: 0, incarnation };
        let id = TransferId { run: 1, number: 1 };
        let commit = ParityMessage::Commit { id, seat, from: None, part: Interval::all() };
        let mut out = Outbox::new();
        directory.take(late_ms, &home, commit, &mut out);
        // Not that its transfer is cancelled: it would remove records that the other one is recovering.
        let [(To::Server(to), Message::Parity(ParityMessage::Group(group)))] = &out[..] else {
            panic!("{out:?}")
        };
        assert!(*to == home && group.occupant(seat).is_none(), "{out:?}");
    }

    #[test]
    fn a_bucket_is_shown_as_lost_if_its_server_is_gone() {
        let (mut directory, home) = table();
        let data = |directory: &Directory, now_ms| {
            let seat = directory.shown(now_ms, 7).groups[0].seats[0].clone().expect("the first bucket");
            (seat.node, seat.is_complete)
        };
        // Its server has not yet reported it.
        assert_eq!(data(&directory, PROBE_MS), (home.to_string(), true));
        alive(&mut directory, 2 * PROBE_MS, "");
        let late_ms = 2 * PROBE_MS + DEAD_MS;
        alive(&mut directory, late_ms, &home);
        assert_eq!(data(&directory, late_ms), (home.to_string(), false));
        // Another one is to recover it, and says itself when it has.
        directory.tick(late_ms, &SERVERS.map(Address::from), &mut Outbox::new());
        alive(&mut directory, late_ms, &home);
        let (recovers, is_complete) = data(&directory, late_ms);
        assert!(*recovers != *home && is_complete, "{recovers}");
    }
}
