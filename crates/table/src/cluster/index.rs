//! The index of a table: pages on servers that say where its buckets are (RP*S in paper 002).
//!
//! ```text
//! level 1   the root, on the home:   [..m) n2                   [m..) n3
//! level 0   pages on any servers:    n2: [..c) n1  [c..m) n4    n3: [m..t) n2  [t..) n1
//! ```
//!
//! Model: a request whose bucket the client does not know goes to the root, and from server to server down the pages.
//! The reply shows the client the pages that it passed. A page with too many entries gives its upper half to another
//! server and remembers which, so that a parent that does not know this yet leads there as well (B-link trees, Lehman
//! and Yao, 1981). A server that gives a bucket away, or half of a page, announces it to the page above that it knows.
//! Replies correct the pages that they pass. A page that is lost is rebuilt from the buckets by the server of the page
//! above it, and the root by the home.
//! Invariant: pages are hints. The bucket with the key answers, so a page that is out of date costs messages, nothing
//! else.
//! Non-goals: pages that become smaller again. Messages; see index_server.rs.

use std::collections::BTreeMap;

use super::image::{Address, Element, Image};
use super::index_message::{FANOUT, IndexNote, IndexPage, LEVELS_MAX};
use super::interval::{Interval, Point, Upper};
use super::message::{HOPS_MAX, Replies, TableId};

/// The most pages of a table on a server.
const PAGES_MAX: usize = 4096;

/// Where a request for a point is sent.
pub(super) enum Step {
    /// To the server of its bucket.
    Bucket(Address),
    /// To the server of a page.
    Page(Address),
    /// The page above this interval, which is here, leads to one that is not here any more.
    Lost(u8, Interval),
    /// Nothing here leads to it.
    Unknown,
}

/// A page on this server.
pub(super) struct Own {
    pub(super) level: u8,
    pub(super) interval: Interval,
    pub(super) epoch: u64,
    pub(super) entries: Image,
    pub(super) is_root: bool,
    pub(super) leaving: Option<Leaving>,
}

/// The upper half of a page, on its way to another server.
pub(super) struct Leaving {
    pub(super) to: Address,
    pub(super) since_ms: u64,
    pub(super) sent_ms: u64,
    pub(super) upper: IndexPage,
}

impl Own {
    pub(super) fn place(&self, me: &Address) -> Element {
        Element { interval: self.interval.clone(), address: me.clone(), epoch: self.epoch }
    }

    /// The entries with keys of an interval, cut to it.
    pub(super) fn entries_of(&self, interval: &Interval) -> Vec<Element> {
        let cut =
            |entry: &Element| Element { interval: entry.interval.intersection(interval), ..entry.clone() };
        self.entries.within(interval).map(cut).collect()
    }

    fn is_over(&self, fanout: usize) -> bool {
        self.leaving.is_none() && self.entries.within(&self.interval).nth(fanout).is_some()
    }

    /// The upper half of the page, for another server.
    fn upper(&self, to: &Address) -> Option<IndexPage> {
        let entries = self.entries_of(&self.interval);
        let from = entries[entries.len() / 2].interval.from.clone();
        let interval = Interval { from, to: self.interval.to.clone() };
        let place = Element { interval, address: to.clone(), epoch: self.epoch + 1 };
        let entries = self.entries_of(&place.interval);
        (place.interval.from > self.interval.from).then_some(IndexPage { level: self.level, place, entries })
    }
}

/// What a server has of the index of a table, and knows about it.
#[derive(Default)]
pub(crate) struct Index {
    pub(super) pages: Vec<Own>,
    /// Where the pages of each level are, as far as is known, including those here.
    pub(super) known: [Image; LEVELS_MAX],
    /// Whether a page may have too many entries now.
    pub(super) has_learnt: bool,
}

impl Index {
    /// Makes a root that knows where these buckets are, if there is none.
    pub(super) fn begin(&mut self, me: &Address, buckets: &[Element]) {
        if !self.has_root() {
            self.remove(LEVELS_MAX as u8, &Interval::all());
            self.add(me, 0, Interval::all(), 1).is_root = true;
            buckets.iter().for_each(|bucket| _ = self.learn(0, bucket));
        }
    }

    pub(super) fn has_root(&self) -> bool {
        self.pages.iter().any(|page| page.is_root)
    }

    /// Adds a page without entries.
    pub(super) fn add(&mut self, me: &Address, level: u8, interval: Interval, epoch: u64) -> &mut Own {
        let entries = Image::default();
        let page = Own { level, interval, epoch, entries, is_root: false, leaving: None };
        self.known[usize::from(level)].learn(&page.place(me));
        self.pages.push(page);
        self.pages.last_mut().expect("it was just added")
    }

    /// Whether the server has room for another page.
    pub(super) fn has_room(&self) -> bool {
        self.pages.len() < PAGES_MAX
    }

    /// The page of a level that begins at a key.
    pub(super) fn page(&mut self, level: u8, from: &[u8]) -> Option<&mut Own> {
        self.pages.iter_mut().find(|page| page.level == level && *page.interval.from == *from)
    }

    /// The lowest page with a point.
    pub(super) fn lowest(&self, point: Point<'_>) -> Option<&Own> {
        let of = self.pages.iter().filter(|page| point.is_in(&page.interval));
        of.min_by_key(|page| page.level)
    }

    /// Where a request for a point is sent that has passed these servers.
    pub(super) fn step(&self, point: Point<'_>, me: &Address, path: &[Address]) -> Step {
        let known = |below: usize| {
            let mut found = self.known[..below].iter().filter_map(|image| image.owner(point));
            found.find(|place| place.address != *me && !path.contains(&place.address))
        };
        let Some(page) = self.lowest(point) else {
            return known(LEVELS_MAX).map_or(Step::Unknown, |place| Step::Page(place.address.clone()));
        };
        match page.entries.route(point) {
            None => Step::Unknown,
            Some(entry) if page.level == 0 => Step::Bucket(entry.address.clone()),
            Some(entry) if entry.address != *me => Step::Page(entry.address.clone()),
            Some(entry) => match known(usize::from(page.level)) {
                Some(place) => Step::Page(place.address.clone()),
                None => Step::Lost(page.level, entry.interval.clone()),
            },
        }
    }

    /// Corrects the pages of a level. Returns whether one has an entry that is to be there.
    pub(super) fn learn(&mut self, level: u8, element: &Element) -> bool {
        let mut is_there = false;
        for page in self.pages.iter_mut().filter(|page| page.level == level) {
            let interval = element.interval.intersection(&page.interval);
            let part = Element { interval, ..element.clone() };
            if !part.interval.is_empty() && !page.entries.within(&part.interval).eq([&part]) {
                page.entries.learn(&part);
                self.has_learnt = true;
            }
            is_there |= page.interval.contains(&element.interval.from);
        }
        is_there
    }

    /// Makes empty pages below a level for an interval whose pages are lost. Returns whether there is room.
    pub(super) fn rebuild(&mut self, me: &Address, above: u8, interval: &Interval) -> bool {
        let epoch = self
            .pages
            .iter()
            .filter(|page| page.level == above)
            .filter_map(|page| page.entries.owner(Point::At(&interval.from)))
            .map(|entry| entry.epoch + 1)
            .max();
        let Some(epoch) = epoch.filter(|_| self.has_room()) else { return false };
        self.remove(above, interval);
        for level in (0..above).rev() {
            self.add(me, level, interval.clone(), epoch);
            self.learn(level + 1, &Element { interval: interval.clone(), address: me.clone(), epoch });
        }
        true
    }

    /// Removes the pages of an interval below a level, and what is known about them.
    pub(super) fn remove(&mut self, above: u8, interval: &Interval) {
        let is_of = |page: &Own| {
            page.level < above && !page.is_root && page.interval.intersection(interval) == page.interval
        };
        self.pages.retain(|page| !is_of(page));
        for image in &mut self.known[..usize::from(above)] {
            let old = std::mem::take(image);
            for place in old.within(&Interval::all()) {
                let (below, above) = match place.interval.intersection(interval).is_empty() {
                    true => (Some(place.interval.clone()), None),
                    false => place.interval.minus(interval),
                };
                let parts = below.into_iter().chain(above);
                parts.for_each(|part| image.learn(&Element { interval: part, ..place.clone() }));
            }
        }
    }

    /// The next page with too many entries. A root is put above a new page with its entries.
    pub(super) fn over(&mut self, me: &Address, fanout: usize) -> Option<&mut Own> {
        let at = self.pages.iter().position(|page| page.is_over(fanout))?;
        if self.pages[at].is_root {
            let root = &mut self.pages[at];
            if usize::from(root.level) + 1 == LEVELS_MAX {
                return None;
            }
            let (level, epoch) = (root.level, root.epoch + 1);
            (root.level, root.epoch) = (level + 1, epoch);
            let entries = std::mem::take(&mut root.entries);
            root.entries.learn(&root.place(me));
            let (above, place) = (usize::from(root.level), root.place(me));
            self.known[above].learn(&place);
            self.add(me, level, Interval::all(), epoch).entries = entries;
            return self.pages.last_mut();
        }
        Some(&mut self.pages[at])
    }
}

/// The indexes of a server.
pub(crate) struct Indexes {
    pub(super) tables: BTreeMap<TableId, Index>,
    /// Tables whose root was lost here, and when the other servers were asked where the buckets are.
    pub(super) asked: BTreeMap<TableId, u64>,
    /// The most entries of a page.
    pub(crate) fanout: usize,
    /// The number of pages that were sent to other servers.
    pub(super) sent: usize,
    /// When the other servers were last asked which page leads here to one that is not here.
    pub(super) missed_ms: u64,
}

impl Default for Indexes {
    fn default() -> Indexes {
        Indexes { tables: BTreeMap::new(), asked: BTreeMap::new(), fanout: FANOUT, sent: 0, missed_ms: 0 }
    }
}

impl Indexes {
    /// Removes the index of a table.
    pub(crate) fn drop_table(&mut self, table: TableId) {
        self.tables.remove(&table);
        self.asked.remove(&table);
    }

    /// The number of pages of a table here, by level.
    pub(crate) fn pages(&self, table: TableId) -> Vec<u64> {
        let pages = self.tables.get(&table).into_iter().flat_map(|index| &index.pages);
        pages.fold(Vec::new(), |mut counts, page| {
            counts.resize(counts.len().max(usize::from(page.level) + 1), 0);
            counts[usize::from(page.level)] += 1;
            counts
        })
    }

    /// Corrects pages by replies that pass them, and shows them to the client if the request came through the index.
    pub(super) fn pass(&mut self, me: &Address, replies: &mut Replies) {
        let Some(index) = self.tables.get_mut(&replies.table) else { return };
        for element in replies.adjustment.iter().filter(|element| !element.interval.is_empty()) {
            index.learn(0, element);
        }
        let Some(trace) = &mut replies.trace else { return };
        for page in trace.iter().filter(|page| page.place.address != *me) {
            index.known[usize::from(page.level)].learn(&page.place);
            index.learn(page.level + 1, &page.place);
        }
        for page in &index.pages {
            let leads = |element: &Element| page.interval.contains(&element.interval.from);
            if trace.len() < HOPS_MAX && replies.adjustment.iter().any(leads) {
                let entries = page.entries_of(&page.interval);
                trace.push(IndexPage { level: page.level, place: page.place(me), entries });
            }
        }
    }

    /// Begins to give upper halves of pages away to one of these servers, if there is one. Returns them.
    pub(super) fn halves(
        &mut self,
        now_ms: u64,
        me: &Address,
        peers: &[Address],
    ) -> Vec<(TableId, Address, IndexNote)> {
        let mut halves = Vec::new();
        for (table, index) in &mut self.tables {
            if !std::mem::take(&mut index.has_learnt) {
                continue;
            }
            while let Some(page) = index.over(me, self.fanout) {
                self.sent += 1;
                let to = peers.get(self.sent % peers.len().max(1)).unwrap_or(me).clone();
                let Some(upper) = page.upper(&to) else { break };
                page.leaving =
                    Some(Leaving { to: to.clone(), since_ms: now_ms, sent_ms: now_ms, upper: upper.clone() });
                halves.push((*table, to, index.page_note(upper)));
            }
        }
        halves
    }
}

impl Index {
    /// The message that gives a page to another server.
    pub(super) fn page_note(&self, page: IndexPage) -> IndexNote {
        let above = self.known.get(usize::from(page.level) + 1);
        let above = above.and_then(|image| image.owner(Point::At(&page.place.interval.from)));
        IndexNote::Page { above: above.cloned(), page }
    }

    /// Shrinks the page whose upper half a server has taken. Returns the two halves, and entries that it does not have.
    pub(super) fn shrink(
        &mut self,
        me: &Address,
        level: u8,
        (from, to): (&[u8], &Address),
    ) -> Option<([Element; 2], Vec<Element>)> {
        let is_it = |leaving: &Leaving| leaving.to == *to && *leaving.upper.place.interval.from == *from;
        let page = self
            .pages
            .iter_mut()
            .find(|page| page.level == level && page.leaving.as_ref().is_some_and(is_it))?;
        let Leaving { upper, .. } = page.leaving.take().expect("it was just found");
        let mut later = page.entries_of(&upper.place.interval);
        later.retain(|entry| !upper.entries.contains(entry));
        page.interval.to = Upper::Key(from.into());
        page.epoch = upper.place.epoch;
        let entries = page.entries_of(&page.interval);
        page.entries = Image::default();
        entries.iter().for_each(|entry| page.entries.learn(entry));
        let halves = [page.place(me), upper.place];
        halves.iter().for_each(|half| self.known[usize::from(level)].learn(half));
        Some((halves, later))
    }
}
