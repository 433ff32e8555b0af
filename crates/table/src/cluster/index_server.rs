//! The pages of indexes on a server: requests go down them, and other servers correct them. See index.rs.

use super::image::{Address, Element};
use super::index::Step;
use super::index_message::{Descent, IndexNote, LEVELS_MAX};
use super::interval::{Interval, Point};
use super::message::{Ask, HOPS_MAX, Message, Requests, TableId};
use super::server::{BucketServer, Outbox, To};

/// The time after which a page that was given away is sent again, and after which another server gets it.
const RESEND_MS: u64 = 300;
const SILENT_MS: u64 = 3_000;
/// How long the answers about the buckets of a lost root are waited for, before the servers are asked again.
const ASK_AGAIN_MS: u64 = 1_000;
/// The least time from one question to all servers about a missing page to the next.
const MISSED_MS: u64 = 100;
/// The most roots that are rebuilt at a time.
const ASKED_MAX: usize = 64;
/// The most elements in a message: with the longest keys they are half of the longest message.
const ELEMENTS_TOGETHER: usize = 1024;

impl BucketServer {
    /// Creates the root of the index of a table with these buckets, or the ones here.
    pub(crate) fn begin_index(&mut self, table: TableId, buckets: &[Element]) {
        let own = self.elements(table);
        let index = self.index.tables.entry(table).or_default();
        index.begin(&self.me, if buckets.is_empty() { &own } else { buckets });
    }

    /// Where the index sends a request that no bucket here answers, and how it continues there.
    pub(super) fn descend(
        &mut self,
        now_ms: u64,
        requests: &Requests,
        ask: &Ask,
        out: &mut Outbox,
    ) -> Option<(Address, Descent)> {
        if requests.descent == Descent::No || requests.path.len() >= HOPS_MAX || !ask.is_sound() {
            return None;
        }
        let point = ask.point();
        let (table, served) = (requests.table, self.tables.get(&requests.table));
        if served.is_some_and(|served| served.at(point).is_some()) {
            return None;
        }
        if requests.descent == Descent::Bucket {
            if served.and_then(|served| served.image.route(point)).is_none() {
                self.say_missing(now_ms, requests, point, out);
            }
            return None;
        }
        let step = |server: &BucketServer| match server.index.tables.get(&table) {
            Some(index) => index.step(point, &server.me, &requests.path),
            None => Step::Unknown,
        };
        let mut next = step(self);
        if let Step::Lost(level, interval) = next {
            self.rebuild(table, level, &interval, out);
            next = step(self);
        }
        match next {
            Step::Bucket(address) if address == self.me => None,
            Step::Bucket(address) => Some((address, Descent::Bucket)),
            Step::Page(address) => Some((address, Descent::Page)),
            Step::Lost(..) => None,
            Step::Unknown => {
                let has_pages =
                    self.index.tables.get(&table).is_some_and(|index| index.lowest(point).is_some());
                match requests.descent {
                    _ if has_pages => {}
                    Descent::Root => self.ask_for_root(now_ms, table, out),
                    _ => self.say_missing(now_ms, requests, point, out),
                }
                None
            }
        }
    }

    /// Says to the server of the page that sent requests here that what it leads to is not here. If a client came by
    /// itself, all servers are told, but not all the time.
    fn say_missing(&mut self, now_ms: u64, requests: &Requests, point: Point<'_>, out: &mut Outbox) {
        let Point::At(key) = point else { return };
        let (table, note) = (requests.table, IndexNote::Missing { key: key.into() });
        match requests.path.last() {
            Some(above) => out.push((To::Server(above.clone()), Message::Index { table, note })),
            None if now_ms >= self.index.missed_ms + MISSED_MS => {
                self.index.missed_ms = now_ms;
                self.tell_peers(table, &note, out);
            }
            None => {}
        }
    }

    /// Asks all servers for the buckets of a table whose root is not here any more.
    fn ask_for_root(&mut self, now_ms: u64, table: TableId, out: &mut Outbox) {
        let asked = &mut self.index.asked;
        asked.retain(|_, at_ms| now_ms < *at_ms + ASK_AGAIN_MS);
        if self.dropped.contains(&table) || asked.len() >= ASKED_MAX || asked.contains_key(&table) {
            return;
        }
        asked.insert(table, now_ms);
        let interval = Interval::all();
        self.tell_peers(table, &IndexNote::Rebuild { level: LEVELS_MAX as u8, interval }, out);
        if self.tables.contains_key(&table) {
            self.begin_index(table, &[]);
        }
    }

    fn tell_peers(&self, table: TableId, note: &IndexNote, out: &mut Outbox) {
        let message = || Message::Index { table, note: note.clone() };
        out.extend(self.peers.iter().map(|peer| (To::Server(peer.clone()), message())));
    }

    /// Makes new pages for an interval, and asks all servers for its buckets.
    fn rebuild(&mut self, table: TableId, level: u8, interval: &Interval, out: &mut Outbox) {
        let own = self.elements(table);
        let Some(index) = self.index.tables.get_mut(&table) else { return };
        if !index.rebuild(&self.me, level, interval) {
            return;
        }
        own.iter().for_each(|element| _ = index.learn(0, element));
        self.tell_peers(table, &IndexNote::Rebuild { level, interval: interval.clone() }, out);
    }

    /// Handles requests that a page has sent to a server without the page or the bucket, or that cannot be reached.
    fn is_missing(&mut self, table: TableId, key: &[u8], server: &Address, out: &mut Outbox) {
        let lost = self.index.tables.get_mut(&table).and_then(|index| {
            index.known.iter_mut().for_each(|image| image.forget(Point::At(key), server));
            let page = index.lowest(Point::At(key))?;
            let entry = page.entries.owner(Point::At(key)).filter(|entry| entry.address == *server)?;
            let lost = (page.level, entry.interval.clone());
            if page.level == 0 {
                let pages = index.pages.iter_mut().filter(|page| page.level == 0);
                pages.for_each(|page| page.entries.forget(Point::At(key), server));
            }
            Some(lost)
        });
        match lost {
            Some((0, interval)) => self.tell_peers(table, &IndexNote::Rebuild { level: 0, interval }, out),
            Some((level, interval)) => self.rebuild(table, level, &interval, out),
            None => {}
        }
    }

    /// Handles requests that the index has sent to a server that cannot be reached.
    pub(super) fn is_unreachable(&mut self, requests: &Requests, server: &Address, out: &mut Outbox) {
        for (_, ask) in requests.asks.iter().filter(|_| requests.descent != Descent::No) {
            if let Point::At(key) = ask.point() {
                self.is_missing(requests.table, key, server, out);
            }
        }
    }

    /// Says to the page above where buckets, or pages of the level below, are now.
    pub(crate) fn announce(&mut self, table: TableId, level: u8, elements: Vec<Element>, out: &mut Outbox) {
        if self.index.tables.contains_key(&table) {
            let me = self.me.clone();
            self.below(&me, table, (level, 0), elements, out);
        }
    }

    /// Processes a message about an index.
    pub(super) fn index_note(
        &mut self,
        from: &Address,
        (table, note): (TableId, IndexNote),
        out: &mut Outbox,
    ) {
        if self.dropped.contains(&table) {
            return;
        }
        match note {
            IndexNote::Below { level, elements, hops } => {
                if self.index.asked.contains_key(&table) {
                    self.begin_index(table, &elements);
                }
                self.below(from, table, (level, hops), elements, out);
            }
            IndexNote::Above { level, place } => {
                let index = self.index.tables.entry(table).or_default();
                index.known[usize::from(level)].learn(&place);
            }
            IndexNote::Page { page, above } => {
                let taken = IndexNote::Taken { level: page.level, from: page.place.interval.from.clone() };
                let index = self.index.tables.entry(table).or_default();
                if index.page(page.level, &page.place.interval.from).is_none() {
                    if !index.has_room() {
                        return;
                    }
                    let own = index.add(&self.me, page.level, page.place.interval, page.place.epoch);
                    page.entries.iter().for_each(|entry| own.entries.learn(entry));
                    let above_level = index.known.get_mut(usize::from(page.level) + 1);
                    above_level.zip(above).into_iter().for_each(|(image, above)| image.learn(&above));
                    index.has_learnt = true;
                }
                out.push((To::Server(from.clone()), Message::Index { table, note: taken }));
            }
            IndexNote::Taken { level, from: begins } => {
                let Some(index) = self.index.tables.get_mut(&table) else { return };
                let Some((halves, later)) = index.shrink(&self.me, level, (&begins, from)) else { return };
                // Either half may still have too many.
                index.has_learnt = true;
                if !later.is_empty() {
                    let note = IndexNote::Below { level, elements: later, hops: 0 };
                    out.push((To::Server(from.clone()), Message::Index { table, note }));
                }
                self.announce(table, level + 1, halves.into(), out);
            }
            IndexNote::Missing { key } => self.is_missing(table, &key, from, out),
            IndexNote::Rebuild { level, interval } => {
                let index = self.index.tables.entry(table).or_default();
                index.remove(level, &interval);
                let place = Element { interval: interval.clone(), address: from.clone(), epoch: 0 };
                index.known[..usize::from(level)].iter_mut().for_each(|image| image.learn(&place));
                let mut own = self.elements(table);
                own.retain(|element| !element.interval.intersection(&interval).is_empty());
                for elements in own.chunks(ELEMENTS_TOGETHER) {
                    let note = IndexNote::Below { level: 0, elements: elements.into(), hops: 0 };
                    out.push((To::Server(from.clone()), Message::Index { table, note }));
                }
            }
        }
    }

    /// Corrects the page of a level by what is below it, or forwards this to the server that should have the page.
    fn below(
        &mut self,
        from: &Address,
        table: TableId,
        (level, hops): (u8, u8),
        elements: Vec<Element>,
        out: &mut Outbox,
    ) {
        let Some(index) = self.index.tables.get_mut(&table) else { return };
        for element in elements {
            let point = Point::At(&element.interval.from);
            if index.learn(level, &element) {
                let is_told = element.address == self.me || (element.address == *from && hops == 0);
                let page = index.pages.iter().find(|page| page.level == level && point.is_in(&page.interval));
                if let Some(page) = page.filter(|_| !is_told) {
                    let note = IndexNote::Above { level, place: page.place(&self.me) };
                    out.push((To::Server(element.address.clone()), Message::Index { table, note }));
                }
                continue;
            }
            let place = index.known[usize::from(level)].route(point);
            let place = place.filter(|place| place.address != self.me && usize::from(hops) < HOPS_MAX);
            if let Some(place) = place {
                let to = To::Server(place.address.clone());
                let note = IndexNote::Below { level, elements: vec![element], hops: hops + 1 };
                out.push((to, Message::Index { table, note }));
            }
        }
    }

    /// Gives halves of pages with too many entries away.
    pub(super) fn split_pages(&mut self, now_ms: u64, out: &mut Outbox) {
        let halves = self.index.halves(now_ms, &self.me, &self.peers);
        out.extend(
            halves.into_iter().map(|(table, to, note)| (To::Server(to), Message::Index { table, note })),
        );
    }

    /// Sends pages again that did not arrive.
    pub(super) fn tick_index(&mut self, now_ms: u64, out: &mut Outbox) {
        for (table, index) in &mut self.index.tables {
            let mut again = Vec::new();
            for page in &mut index.pages {
                let Some(leaving) = &mut page.leaving else { continue };
                if now_ms >= leaving.since_ms + SILENT_MS {
                    page.leaving = None;
                    index.has_learnt = true;
                } else if now_ms >= leaving.sent_ms + RESEND_MS {
                    leaving.sent_ms = now_ms;
                    again.push((leaving.to.clone(), leaving.upper.clone()));
                }
            }
            out.extend(again.into_iter().map(|(to, upper)| {
                (To::Server(to), Message::Index { table: *table, note: index.page_note(upper) })
            }));
        }
    }
}
