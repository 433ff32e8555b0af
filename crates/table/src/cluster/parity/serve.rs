//! What a server does for groups: it adopts seats, answers messages about parity, and holds replies until it is safe
//! to send them.
//!
//! Invariant: a reply leaves only when all parity buckets have what it reports.
//! Non-goals: what buckets, parity buckets and recoveries do; see member.rs, keeper.rs, restore.rs.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_api::TableHeld;

use super::super::image::{Address, Element};
#[cfg(test)]
use super::super::interval::Bytes;
use super::super::interval::{Interval, Upper};
use super::super::journal::{Journal, Noted};
use super::super::message::{Message, Outbox, Spec, TableId, To, TransferId};
use super::super::owned::Owned;
use super::super::server::{BucketServer, Served};
use super::super::transfer::Receipt;
use super::keeper::{ASK_MS, Keeper, Part};
#[cfg(test)]
use super::lines::Rank;
use super::member::Member;
use super::message::{
    Change, Cut, Group, GroupId, Held, Lines, Occupant, ParityMessage, Placed, Seat, State,
};
use super::protection::{Protection, Returned, ReturnedBucket, Waiting};
use super::restore::{Recovered, Restore};
use crate::bucket::Bucket;
use crate::slab::Full;

/// How long a server that ends waits until the registrar gives its parity buckets to others. Without such servers it does
/// not.
const GIVES_AWAY_MS: u64 = 1_500;

pub(super) fn to_registrar(message: ParityMessage) -> (To, Message) {
    (To::Registrar, Message::Parity(message))
}

impl BucketServer {
    /// Handles a message about parity.
    pub(crate) fn parity(&mut self, now_ms: u64, from: &Address, message: ParityMessage, out: &mut Outbox) {
        match message {
            ParityMessage::Probe => out.push(to_registrar(self.alive())),
            ParityMessage::Group(group) => self.adopt_group(now_ms, group, out),
            ParityMessage::Resolved { id, fate } => self.resolved(now_ms, id, fate, out),
            ParityMessage::Changes { seat, sent_ms, first, confirmed, changes } => {
                self.changes((now_ms, from), seat, (sent_ms, first, confirmed), changes, out);
            }
            ParityMessage::Have { seat, parity, sent_ms, changes, is_full } => {
                let mut members = members(&mut self.tables, &mut self.receipts, &mut self.retiring);
                if let Some(member) =
                    members.find(|found| found.member.seat == seat).map(|found| found.member)
                {
                    member.have(now_ms, parity, (sent_ms, changes, is_full));
                    member.flush(now_ms, out);
                }
                drop(members);
                self.send_what_is_safe(out);
                self.load(now_ms, out);
                self.commit(out);
            }
            ParityMessage::Pull { generation, of, for_seat, cursor, cuts }
                if self.has_generation(from, (for_seat.group, generation), out) =>
            {
                let part = self.read(now_ms, (of, for_seat), &cursor, &cuts);
                let Part { state, lines, next, silent_ms, noted } = part;
                let group = for_seat.group;
                let lines =
                    Lines { group, generation, of, for_seat, state, cursor, next, lines, silent_ms, noted };
                out.push((To::Server(from.clone()), Message::Parity(ParityMessage::Lines(lines))));
            }
            ParityMessage::Lines(part) => self.pulled(now_ms, part, out),
            _ => {}
        }
    }

    /// Does what is due.
    pub(crate) fn tick_parity(&mut self, now_ms: u64, out: &mut Outbox) {
        members(&mut self.tables, &mut self.receipts, &mut self.retiring)
            .for_each(|found| found.member.flush(now_ms, out));
        let Protection { restores, groups, .. } = &mut self.protection;
        for (seat, restore) in restores {
            restore.ask(now_ms, &groups[&seat.group], out);
        }
        self.finish_restores(now_ms, out);
        if now_ms < self.protection.asked_ms + ASK_MS {
            return;
        }
        self.protection.asked_ms = now_ms;
        let Protection { keepers, groups, .. } = &self.protection;
        keepers.iter().for_each(|(id, keeper)| keeper.pull(&groups[id], out));
        self.join(out);
        self.load(now_ms, out);
        self.commit(out);
        self.resolve(now_ms, out);
        self.vacate(out);
    }

    fn alive(&self) -> ParityMessage {
        let Protection { groups, keepers, restores, .. } = &self.protection;
        let buckets = self.tables.values().flat_map(|served| &served.buckets);
        let buckets = buckets.chain(self.retiring.iter().map(|(_, bucket)| bucket));
        let members = buckets.filter_map(|bucket| bucket.member.as_ref());
        let members = members.chain(self.receipts.values().filter_map(|receipt| receipt.member.as_ref()));
        let silent =
            |member: &Member| member.silent().map(|parity| (member.seat, parity)).collect::<Vec<_>>();
        let silent = members.clone().flat_map(silent).collect();
        let seats = members.map(|member| (member.seat, true));
        let seats = seats.chain(keepers.values().map(|keeper| (keeper.seat, keeper.is_complete())));
        let seats = seats.chain(restores.keys().map(|seat| (*seat, false)));
        let held = |(seat, is_complete): (Seat, bool)| {
            let generation = groups.get(&seat.group)?.generation;
            Some(Held { seat, generation, is_complete })
        };
        let free_bytes = self.slab.limit().saturating_sub(self.slab.used() + self.reserved) as u64;
        let (run, is_closing) = (self.run, self.is_closing());
        // The registrar tells of their groups.
        let returned = self.protection.returned.iter();
        let returned = returned.map(|of| Held { seat: of.seat, generation: 0, is_complete: false });
        let held = seats.filter_map(held).chain(returned).collect();
        ParityMessage::Alive { run, free_bytes, is_closing, held, silent }
    }

    /// The seats of a table that this server has, for reports.
    pub(crate) fn seats(&mut self, now_ms: u64, table: TableId) -> Vec<TableHeld> {
        let mut seats = Vec::new();
        for found in members(&mut self.tables, &mut self.receipts, &mut self.retiring) {
            seats.push((found.member.seat, found.member.may_serve(now_ms)));
        }
        let Protection { groups, keepers, .. } = &self.protection;
        seats.extend(keepers.values().map(|keeper| (keeper.seat, keeper.is_complete())));
        let is_of = |seat: &Seat| groups.get(&seat.group).is_some_and(|group| group.spec.id == table);
        let held = |(seat, is_complete): (Seat, bool)| {
            let Seat { group, index, incarnation } = seat;
            is_of(&seat).then_some(TableHeld { group, index, incarnation, is_complete })
        };
        seats.into_iter().filter_map(held).collect()
    }

    /// Whether this server has the generation of a group that somebody else has. If not, whoever has the older one
    /// learns of the newer one.
    fn has_generation(&self, from: &Address, (id, generation): (GroupId, u64), out: &mut Outbox) -> bool {
        match self.protection.groups.get(&id) {
            Some(group) if group.generation == generation => return true,
            Some(group) if group.generation > generation => {
                out.push((To::Server(from.clone()), Message::Parity(ParityMessage::Group(group.clone()))));
            }
            _ => out.push(to_registrar(ParityMessage::Which { group: id })),
        }
        false
    }

    /// Adds the changes of a data bucket to a parity bucket, if the data bucket still has its seat.
    fn changes(
        &mut self,
        (now_ms, from): (u64, &Address),
        seat: Seat,
        numbers: (u64, u64, u64),
        changes: Vec<Change>,
        out: &mut Outbox,
    ) {
        let Protection { keepers, groups, .. } = &mut self.protection;
        let keeper = keepers.get_mut(&seat.group);
        if let Some(keeper) = keeper.filter(|keeper| keeper.incarnation(seat.index) == Some(seat.incarnation))
        {
            let have = keeper.changes((now_ms, &mut self.slab), seat, numbers, changes);
            return out.push((To::Server(from.clone()), Message::Parity(have)));
        }
        let knows_less = groups.get(&seat.group).is_none_or(|group| {
            let seats = group.seats.get(usize::from(seat.index)).and_then(Option::as_ref);
            seats.is_some_and(|occupant| occupant.incarnation < seat.incarnation)
        });
        match groups.get(&seat.group).filter(|_| !knows_less) {
            Some(group) => {
                out.push((To::Server(from.clone()), Message::Parity(ParityMessage::Group(group.clone()))));
            }
            None => out.push(to_registrar(ParityMessage::Which { group: seat.group })),
        }
    }

    /// Reads a part of a bucket of this server for another one of its group.
    fn read(&mut self, now_ms: u64, (of, for_seat): (u8, Seat), cursor: &[u8], cuts: &[Cut]) -> Part {
        let group = &self.protection.groups[&for_seat.group];
        let occupant = group.seats.get(usize::from(of)).and_then(Option::as_ref);
        let Some(Occupant { incarnation, .. }) = occupant else { return Part::partial() };
        let seat = Seat { group: group.id, index: of, incarnation: *incarnation };
        if of >= group.shape().data {
            let keeper = self.protection.keepers.get_mut(&seat.group).filter(|keeper| keeper.seat == seat);
            let now = (now_ms, &mut self.slab);
            return keeper.map_or(Part::partial(), |keeper| keeper.read(now, for_seat, cursor, cuts));
        }
        let Some(found) = members(&mut self.tables, &mut self.receipts, &mut self.retiring)
            .find(|found| found.member.seat == seat)
        else {
            return Part::partial();
        };
        let noted = if cursor.is_empty() { found.noted() } else { Vec::new() };
        let Found { member, tree, .. } = found;
        member.freeze(now_ms);
        // A parity bucket cannot take away later what it has read, so it reads only what the others have.
        if for_seat.index >= group.shape().data && !member.is_agreed() {
            return Part::partial();
        }
        let (lines, next) = tree.map_or((Vec::new(), None), |tree| member.lines(&self.slab, tree, cursor));
        Part { state: State::Data(member.changes()), lines, next, silent_ms: 0, noted }
    }

    /// Takes a part of another bucket, for a parity bucket or a recovery.
    fn pulled(&mut self, now_ms: u64, part: Lines, out: &mut Outbox) {
        let Protection { groups, keepers, restores, .. } = &mut self.protection;
        let Some(group) = groups.get(&part.group).filter(|group| group.generation == part.generation) else {
            return;
        };
        let seat = part.for_seat;
        if let Some(keeper) = keepers.get_mut(&seat.group).filter(|keeper| keeper.seat == seat) {
            let of = part.of;
            // A part for which there is no memory is requested again later.
            if keeper.pulled(now_ms, &mut self.slab, part) == Ok(true) {
                keeper.pull_from(group, of, out);
            }
        } else if let Some(restore) = restores.get_mut(&seat) {
            let _ = restore.pulled((now_ms, &mut self.slab), group, part, out);
        }
        self.finish_restores(now_ms, out);
    }

    /// Serves the buckets that have been recovered.
    fn finish_restores(&mut self, now_ms: u64, out: &mut Outbox) {
        let Protection { restores, groups, .. } = &mut self.protection;
        let mut done = Vec::new();
        for (seat, restore) in restores {
            let group = &groups[&seat.group];
            if let Some(recovered) = restore.recovered((now_ms, &mut self.slab), group) {
                done.push((*seat, recovered));
            }
        }
        for (seat, recovered) in done {
            self.protection.restores.remove(&seat);
            self.serve_recovered(now_ms, recovered, out);
        }
    }

    /// Serves a bucket whose group is known, with the keys that the registrar has for it.
    fn serve_recovered(&mut self, now_ms: u64, recovered: Recovered, out: &mut Outbox) {
        let Recovered { tree, bytes, mut member, noted } = recovered;
        let group = &self.protection.groups[&member.seat.group];
        member.follow(group);
        member.flush(now_ms, out);
        let spec = group.spec;
        let placed = group.occupant(member.seat).and_then(|occupant| occupant.bucket.clone());
        let (interval, epoch) = placed.map_or((None, 0), |placed| (placed.interval, placed.epoch));
        let is_retiring = interval.is_none();
        let mut bucket = Owned::of(tree, bytes, interval.unwrap_or_else(nothing), epoch);
        bucket.member = Some(member);
        bucket.journal.add(now_ms, noted);
        bucket.since_ms = now_ms;
        bucket.sheds();
        if is_retiring {
            return self.retiring.push((spec, bucket));
        }
        let element = bucket.element(&self.me);
        self.adopt(spec, bucket, &[]);
        self.announce(spec.id, 0, vec![element], out);
    }

    /// Adopts a newer state of a group: seats that this server gets, keeps and loses.
    fn adopt_group(&mut self, now_ms: u64, group: Group, out: &mut Outbox) {
        let known = self.protection.groups.get(&group.id);
        if known.is_some_and(|known| known.generation >= group.generation) {
            return;
        }
        if self.dropped.contains(&group.spec.id) {
            return out.push(to_registrar(ParityMessage::Dropped { table: group.spec.id }));
        }
        self.give_up_seats(&group, out);
        self.adopt_parity(now_ms, &group, out);
        let id = group.id;
        self.protection.groups.insert(id, group.clone());
        for found in members(&mut self.tables, &mut self.receipts, &mut self.retiring) {
            if found.member.seat.group == id {
                found.member.follow(&group);
                found.member.flush(now_ms, out);
            }
        }
        for (seat, restore) in &mut self.protection.restores {
            if seat.group == id {
                restore.follow(&mut self.slab, &group);
                restore.ask(now_ms, &group, out);
            }
        }
        for (index, occupant) in group.data() {
            if self.is_mine(occupant) {
                let seat = Seat { group: id, index, incarnation: occupant.incarnation };
                self.adopt_seat(now_ms, seat, &group, out);
            }
            let placed = occupant.bucket.as_ref();
            // This server knows better which keys it has given away: the registrar's word may be late.
            if let Some(Placed { interval: Some(interval), epoch, .. }) = placed
                && occupant.server != self.me
                && let Some(served) = self.tables.get_mut(&group.spec.id)
            {
                let (interval, address) = (interval.clone(), occupant.server.clone());
                served.image.learn(&Element { interval, address, epoch: *epoch });
            }
        }
        self.send_what_is_safe(out);
    }

    /// Removes the data buckets of seats of a group that others have now.
    fn give_up_seats(&mut self, group: &Group, out: &mut Outbox) {
        let is_lost = |member: Option<&Member>| {
            member
                .is_some_and(|member| member.seat.group == group.id && group.occupant(member.seat).is_none())
        };
        let mut lost = Vec::new();
        if let Some(served) = self.tables.get_mut(&group.spec.id) {
            lost.extend(served.buckets.extract_if(.., |bucket| is_lost(bucket.member.as_ref())));
        }
        let retiring = self.retiring.extract_if(.., |(_, bucket)| is_lost(bucket.member.as_ref()));
        lost.extend(retiring.map(|(_, bucket)| bucket));
        for mut bucket in lost {
            out.extend(bucket.leaving.take().and_then(|leaving| leaving.released()));
            bucket.clear(&mut self.slab);
        }
        let lost = |seat: &Seat| seat.group == group.id && group.occupant(*seat).is_none();
        let receipts = self.receipts.iter().filter(|(_, receipt)| {
            is_lost(receipt.member.as_ref()) || receipt.into.as_ref().is_some_and(lost)
        });
        for id in receipts.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.forget_receipt(id);
        }
        for (_, mut restore) in self.protection.restores.extract_if(.., |seat, _| lost(seat)) {
            restore.clear(&mut self.slab);
        }
        self.take_returned(|seat| lost(&seat)).into_iter().for_each(|gone| gone.clear(&mut self.slab));
    }

    /// Whether a seat is for this run of this server. What an earlier run had is lost, and others get its seats.
    fn is_mine(&self, occupant: &Occupant) -> bool {
        occupant.server == self.me && occupant.run == self.run
    }

    /// Adopts, keeps or gives up the parity bucket of a group.
    fn adopt_parity(&mut self, now_ms: u64, group: &Group, out: &mut Outbox) {
        let data = group.shape().data;
        let own = group.parities().find(|(_, occupant)| self.is_mine(occupant));
        let own = own.map(|(number, occupant)| Seat {
            group: group.id,
            index: data + number,
            incarnation: occupant.incarnation,
        });
        let returned = own.map_or(Vec::new(), |own| self.take_returned(|seat| seat == own));
        let keepers = &mut self.protection.keepers;
        for of in returned {
            if let ReturnedBucket::Parity(keeper) = of.bucket {
                keepers.insert(group.id, keeper);
            }
        }
        if let Some(old) = keepers.remove(&group.id) {
            match own == Some(old.seat) {
                true => _ = keepers.insert(group.id, old),
                false => old.clear(&mut self.slab),
            }
        }
        let Some(seat) = own else { return };
        match keepers.get_mut(&group.id) {
            Some(keeper) => keeper.follow(&mut self.slab, group),
            // Without memory the seat is not reported, and the registrar tells of it again.
            None => match Keeper::new((now_ms, &mut self.slab), seat, group) {
                Ok(keeper) => _ = keepers.insert(group.id, keeper),
                Err(Full) => return,
            },
        }
        keepers[&group.id].pull(group, out);
    }

    /// Adopts the seat of a data bucket, if this server has nothing for it yet.
    fn adopt_seat(&mut self, now_ms: u64, seat: Seat, group: &Group, out: &mut Outbox) {
        let placed = group.occupant(seat).and_then(|occupant| occupant.bucket.clone());
        let (Some(placed), Some(occupant)) = (placed, group.occupant(seat)) else { return };
        let is_here = members(&mut self.tables, &mut self.receipts, &mut self.retiring)
            .any(|found| found.member.seat == seat);
        if is_here {
            self.follow_transfer(now_ms, seat, &placed, out);
            self.have_joined(now_ms, seat, &placed, out);
            if let (Some(interval), Some(id)) = (placed.interval, placed.transfer) {
                self.committed(now_ms, id, (interval, placed.epoch), out);
            }
            return;
        }
        if self.protection.restores.contains_key(&seat) {
            return;
        }
        if let Some(Returned { bucket: ReturnedBucket::Data(data), .. }) =
            self.take_returned(|of| of == seat).pop()
        {
            return self.serve_recovered(now_ms, *data, out);
        }
        if occupant.since != occupant.incarnation {
            let mut restore = Restore::new(seat, group);
            restore.ask(now_ms, group, out);
            self.protection.restores.insert(seat, restore);
            return;
        }
        let Ok(mut member) = Member::new(&mut self.slab, seat) else { return };
        member.follow(group);
        member.flush(now_ms, out);
        if let Some(id) = placed.transfer
            && let Some(receipt) = self.receipts.get_mut(&id)
        {
            receipt.member = Some(member);
            if receipt.load.is_none() {
                out.push((To::Server(receipt.sender.clone()), Message::Room { id, run: self.run }));
            }
            return;
        }
        let interval = placed.interval.filter(|_| placed.transfer.is_none());
        let is_retiring = interval.is_none();
        match Owned::new(&mut self.slab, interval.unwrap_or_else(nothing), placed.epoch) {
            Err(Full) => member.clear(&mut self.slab),
            Ok(mut bucket) => {
                bucket.member = Some(member);
                match is_retiring {
                    // The transfer was cancelled meanwhile.
                    true => self.retiring.push((group.spec, bucket)),
                    false => self.adopt(group.spec, bucket, &[]),
                }
            }
        }
    }

    /// Removes everything that belongs to the groups of a table.
    pub(crate) fn drop_groups(&mut self, table: TableId) {
        let Protection { groups, keepers, restores, .. } = &mut self.protection;
        let is_of = |id: &GroupId| groups.get(id).is_some_and(|group| group.spec.id == table);
        let gone: Vec<Keeper> = keepers.extract_if(.., |id, _| is_of(id)).map(|(_, keeper)| keeper).collect();
        gone.into_iter().for_each(|keeper| keeper.clear(&mut self.slab));
        let gone: Vec<Restore> =
            restores.extract_if(.., |seat, _| is_of(&seat.group)).map(|(_, restore)| restore).collect();
        gone.into_iter().for_each(|mut restore| restore.clear(&mut self.slab));
        let gone: Vec<_> = self.retiring.extract_if(.., |(spec, _)| spec.id == table).collect();
        gone.into_iter().for_each(|(_, bucket)| bucket.clear(&mut self.slab));
        groups.retain(|_, group| group.spec.id != table);
        self.forget_returned(|of| of != table);
    }

    /// Gives a seat back as soon as the records that were put into its bucket are removed.
    pub(crate) fn retire(&mut self, spec: Spec, tree: Option<Bucket>, bytes: u64, member: Member) {
        // An empty tree needs the least memory there is. Without it, the records stay in the parity.
        let Some(tree) = tree.or_else(|| Bucket::new(&mut self.slab).ok()) else {
            return member.clear(&mut self.slab);
        };
        let mut bucket = Owned::of(tree, bytes, nothing(), 0);
        bucket.member = Some(member);
        bucket.sheds();
        self.retiring.push((spec, bucket));
    }

    /// Whether the registrar may still give parity buckets of this server to others, or has to take its seats back.
    pub(crate) fn awaits_registrar(&self, now_ms: u64) -> bool {
        let has_time = self.closing_ms.is_some_and(|since_ms| now_ms < since_ms + GIVES_AWAY_MS);
        !self.retiring.is_empty() || (has_time && !self.protection.keepers.is_empty())
    }

    fn vacate(&mut self, out: &mut Outbox) {
        for (_, bucket) in &self.retiring {
            let member = bucket.member.as_ref().expect("only buckets with seats retire");
            if bucket.tree.len() == 0 && member.is_safe(member.changes()) {
                out.push(to_registrar(ParityMessage::Vacate { seat: member.seat }));
            }
        }
    }

    /// Sends the changes that requests have made in buckets of a table. Returns which replies have to wait for.
    pub(crate) fn needs(
        &mut self,
        now_ms: u64,
        table: TableId,
        buckets: &BTreeSet<usize>,
        out: &mut Outbox,
    ) -> Vec<(Seat, u64)> {
        let Some(served) = self.tables.get_mut(&table) else { return Vec::new() };
        let mut needs = Vec::new();
        for at in buckets {
            if let Some(member) = &mut served.buckets[*at].member {
                member.flush(now_ms, out);
                if !member.is_safe(member.changes()) {
                    needs.push((member.seat, member.changes()));
                }
            }
        }
        needs
    }

    /// Sends a reply, or the last piece of a transfer, when these changes of buckets are safe.
    pub(crate) fn send_when_safe(&mut self, needs: Vec<(Seat, u64)>, reply: (To, Message), out: &mut Outbox) {
        self.protection.waiting.push(Waiting { needs, reply });
        self.send_what_is_safe(out);
    }

    fn send_what_is_safe(&mut self, out: &mut Outbox) {
        if self.protection.waiting.is_empty() {
            return;
        }
        let mut states = BTreeMap::new();
        for found in members(&mut self.tables, &mut self.receipts, &mut self.retiring) {
            states.insert(found.member.seat, &*found.member);
        }
        self.protection.waiting.retain_mut(|Waiting { needs, reply }| {
            // Clients of a bucket that is gone ask again.
            if needs.iter().any(|(seat, _)| !states.contains_key(seat)) {
                return false;
            }
            needs.retain(|(seat, changes)| !states[seat].is_safe(*changes));
            if needs.is_empty() {
                out.push(reply.clone());
            }
            !needs.is_empty()
        });
    }
}

/// No keys.
fn nothing() -> Interval {
    Interval::of(b"", Upper::Key(Box::default()))
}

/// A data bucket that has a seat, or gets one.
pub(super) struct Found<'a> {
    pub(super) member: &'a mut Member,
    pub(super) tree: Option<&'a Bucket>,
    pub(super) journal: Option<&'a Journal>,
    /// The answers that came with its records, before it has a journal.
    pub(super) arrived: &'a [Noted],
}

impl Found<'_> {
    /// The answers that are remembered for retries.
    pub(super) fn noted(&self) -> Vec<Noted> {
        let journal = self.journal.map(Journal::copy).into_iter().flatten();
        journal.chain(self.arrived.iter().cloned()).collect()
    }
}

/// All data buckets of a server that have seats.
pub(super) fn members<'a>(
    tables: &'a mut BTreeMap<TableId, Served>,
    receipts: &'a mut BTreeMap<TransferId, Receipt>,
    retiring: &'a mut [(Spec, Owned)],
) -> impl Iterator<Item = Found<'a>> {
    let buckets = tables.values_mut().flat_map(|served| &mut served.buckets);
    let buckets = buckets.chain(retiring.iter_mut().map(|(_, bucket)| bucket)).filter_map(|bucket| {
        let (tree, journal) = (Some(&bucket.tree), Some(&bucket.journal));
        Some(Found { member: bucket.member.as_mut()?, tree, journal, arrived: &[] })
    });
    buckets.chain(receipts.values_mut().filter_map(|receipt| {
        let arrived = receipt.arrived.as_ref().map_or(&[][..], |arrived| &arrived.last.journal);
        Some(Found { member: receipt.member.as_mut()?, tree: receipt.tree.as_ref(), journal: None, arrived })
    }))
}

#[cfg(test)]
impl BucketServer {
    /// The lines of a bucket of this server.
    pub(crate) fn lines_of(&mut self, group: &Group, index: u8) -> BTreeMap<Rank, Vec<u8>> {
        let (mut lines, mut cursor) = (BTreeMap::new(), Bytes::default());
        loop {
            // Whoever reads is nobody's seat.
            let for_seat = Seat { group: group.id, index: u8::MAX, incarnation: 0 };
            let part = self.read(0, (index, for_seat), &cursor, &[]);
            assert_ne!(part.state, State::Partial, "bucket {index} of group {} on {}", group.id, self.me);
            lines.extend(part.lines.into_iter().map(|(rank, line)| (rank, line.into_vec())));
            match part.next {
                Some(next) => cursor = next,
                None => return lines,
            }
        }
    }
}

/// Checks that parity buckets are the sums of data buckets, given the lines of each.
#[cfg(test)]
pub(crate) fn check_sums(shape: super::message::Shape, buckets: &[(u8, BTreeMap<Rank, Vec<u8>>)]) {
    use super::field;

    let (data, parities): (Vec<_>, Vec<_>) = buckets.iter().partition(|(index, _)| *index < shape.data);
    for (index, lines) in parities {
        let mut sums: BTreeMap<Rank, Vec<u8>> = BTreeMap::new();
        for (bucket, lines) in &data {
            for (rank, line) in lines {
                let sum = sums.entry(*rank).or_default();
                sum.resize(sum.len().max(line.len()), 0);
                field::add(sum, field::coefficient(index - shape.data, *bucket), line);
            }
        }
        for line in sums.values_mut() {
            let len = line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            line.truncate(len);
        }
        sums.retain(|_, line| !line.is_empty());
        assert_eq!(sums, *lines, "parity bucket {index} is not the sum of its group");
    }
}
