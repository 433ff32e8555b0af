//! The pages of a range, requested in parallel and returned in order.
//!
//! ```text
//! [a..c) read   [c..f) asked for   [f..m) arrived   [m..z) not asked for yet
//! ```
//!
//! Model: the range is cut into parts where buckets begin according to the image. Each page covers the beginning of its
//! part; the rest becomes a part again, cut by what is known then. So the pages cover the range exactly once while
//! buckets split and move (paper 002's deterministic termination). Only the first parts are requested, to bound memory.
//! Pages say where the next ones begin, so several of one bucket are on their way.
//! Invariant: a record that exists throughout is returned once, in order. One that is added or removed may be returned.
//! Non-goals: a snapshot.

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::Client;
use super::image::Image;
use super::interval::{Bytes, Interval, Upper};
use super::message::{Ask, CUTS, Page, Scan};

/// The most parts that are requested or wait to be read.
const PARTS_AHEAD: usize = 8;

enum State {
    Idle,
    /// The part is not requested while pages before it are: they say where to cut it.
    Rest,
    /// The part was requested, with this number.
    Asked(u64),
    Arrived(Page),
}

/// A range that is being read.
pub(crate) struct Pages {
    /// The scan whose interval is replaced by that of each part.
    scan: Scan,
    /// The parts, in the order in which they are read.
    parts: VecDeque<(Interval, State)>,
}

impl Pages {
    /// A range of which nothing was requested yet.
    pub(crate) fn new(scan: Scan) -> Pages {
        let parts = match scan.interval.is_empty() || scan.limit == 0 {
            true => VecDeque::new(),
            false => VecDeque::from([(scan.interval.clone(), State::Idle)]),
        };
        Pages { scan, parts }
    }

    /// Requests the first parts that were not requested yet.
    pub(crate) fn ask(&mut self, now_ms: u64, client: &mut Client) {
        let (is_descending, limit) = (self.scan.is_descending, self.scan.limit);
        // With a limit, the first part probably has enough records.
        let ahead = if limit == u64::MAX { PARTS_AHEAD } else { 1 };
        let mut at = 0;
        while at < ahead.min(self.parts.len()) {
            let is_due = match &self.parts[at].1 {
                State::Idle => true,
                State::Rest => !self.parts.iter().take(at).any(is_asked),
                State::Asked(_) | State::Arrived(_) => false,
            };
            if is_due {
                let interval = &self.parts[at].0;
                let mut known = parts(&client.image, interval);
                if is_descending {
                    known.reverse();
                }
                known.truncate(ahead + 1);
                let asked = known[0].clone();
                let (below, above) = interval.minus(&asked);
                self.parts[at].0 = asked.clone();
                let rest = if is_descending { below } else { above };
                rest.into_iter().for_each(|rest| self.parts.insert(at + 1, (rest, State::Idle)));
                let rest = self.parts.iter().skip(at + 1).find(|part| matches!(part.1, State::Rest));
                let rest = rest.map(|(interval, _)| interval.from.clone());
                let scan = Scan { interval: asked, rest, ..self.scan.clone() };
                self.parts[at].1 = State::Asked(client.ask(now_ms, Arc::new(Ask::Scan(scan))));
            }
            at += 1;
        }
    }

    /// Stores a page that has arrived. Returns false if it does not belong to a request.
    pub(crate) fn arrived(&mut self, number: u64, page: Page) -> bool {
        let is_asked = |part: &(Interval, State)| matches!(part.1, State::Asked(asked) if asked == number);
        let Some(at) = self.parts.iter().position(is_asked) else { return false };
        let interval = &self.parts[at].0;
        let covered = &page.covered;
        let begins = match self.scan.is_descending {
            false => covered.from == interval.from,
            true => covered.to == interval.to,
        };
        if !begins || covered.is_empty() || covered.intersection(interval) != *covered {
            return false;
        }
        let (below, above) = interval.minus(covered);
        let rest = if self.scan.is_descending { below } else { above };
        rest.into_iter().for_each(|rest| self.parts.insert(at + 1, (rest, State::Rest)));
        let cuts = page.cuts.clone();
        self.parts[at] = (page.covered.clone(), State::Arrived(page));
        self.cut(at + 1, &cuts);
        true
    }

    /// Cuts the first rest at or after an index, so that several pages are requested.
    fn cut(&mut self, from: usize, cuts: &[Bytes]) {
        let is_rest = |at: &usize| matches!(self.parts[*at].1, State::Rest);
        let Some(mut at) = (from..self.parts.len()).find(is_rest) else { return };
        let mut asked = self.parts.iter().filter(|part| is_asked(part)).count();
        for key in cuts {
            let rest = &self.parts[at].0;
            if asked >= CUTS {
                return;
            }
            if !rest.contains(key) || rest.from == *key {
                continue;
            }
            let above = Interval { from: key.clone(), to: rest.to.clone() };
            self.parts[at] = (Interval::of(&rest.from, Upper::Key(key.clone())), State::Idle);
            self.parts.insert(at + 1, (above, State::Rest));
            (at, asked) = (at + 1, asked + 1);
        }
        if cuts.len() < CUTS {
            // The rest is about to be read, or on another server.
            self.parts[at].1 = State::Idle;
        }
    }

    /// The scan of the whole range.
    pub(crate) fn scan(&self) -> &Scan {
        &self.scan
    }

    /// The numbers of outstanding requests.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let asked = |part: &(Interval, State)| match part.1 {
            State::Asked(number) => Some(number),
            _ => None,
        };
        self.parts.iter().filter_map(asked).collect()
    }

    /// The next page, if it has arrived; with fewer records if the limit is reached.
    pub(crate) fn next(&mut self) -> Option<Page> {
        let Some((_, State::Arrived(_))) = self.parts.front() else { return None };
        let Some((_, State::Arrived(mut page))) = self.parts.pop_front() else {
            unreachable!("it was just seen")
        };
        page.count = page.count.min(self.scan.limit);
        if self.scan.limit != u64::MAX {
            page.records.truncate(page.count);
            self.scan.limit -= page.count;
            if self.scan.limit == 0 {
                self.parts.clear();
            }
        }
        Some(page)
    }

    /// Whether the whole range was read.
    pub(crate) fn is_done(&self) -> bool {
        self.parts.is_empty()
    }
}

fn is_asked(part: &(Interval, State)) -> bool {
    matches!(part.1, State::Asked(_))
}

/// An interval, cut where buckets are known to begin.
fn parts(image: &Image, interval: &Interval) -> Vec<Interval> {
    let mut parts = Vec::new();
    let mut rest = Some(interval.clone());
    for element in image.within(interval) {
        let Some(here) = rest.take() else { break };
        let (below, above) = here.minus(&element.interval);
        parts.extend(below);
        parts.push(here.intersection(&element.interval));
        rest = above;
    }
    parts.extend(rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::super::client::Variant;
    use super::super::journal::ClientId;
    use super::super::message::{Message, Operation, What};
    use super::super::owned::Owned;
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn several_pages_of_a_bucket_are_on_their_way() {
        let mut slab = Slab::new(1 << 20);
        let mut bucket = Owned::new(&mut slab, Interval::all(), 1).unwrap();
        let keys: Vec<Bytes> = (0..200u8).map(|i| [i; 20].into()).collect();
        for key in &keys {
            let insert = Operation::Insert { key: key.clone(), value: Bytes::default() };
            bucket.apply(&mut slab, &insert).unwrap();
        }
        let id = ClientId { peer: [0; 2], session: 1 };
        let mut client = Client::new(id, (1, "n1".into()), vec!["n1".into()], Variant::Nearest);
        let interval = Interval::all();
        let (is_descending, limit, condition, rest) = (false, u64::MAX, None, None);
        let mut pages =
            Pages::new(Scan { interval, is_descending, what: What::Records, limit, condition, rest });
        let (mut asked, mut found, mut counts) = (VecDeque::new(), Vec::new(), Vec::new());
        while !pages.is_done() {
            pages.ask(0, &mut client);
            for sent in client.messages(0) {
                let Message::Requests(requests) = sent.message else { panic!("{:?}", sent.message) };
                asked.extend(requests.asks);
            }
            counts.push(asked.len());
            let (number, ask) = asked.pop_front().unwrap();
            let Ask::Scan(scan) = &*ask else { panic!("{ask:?}") };
            assert!(pages.arrived(number, bucket.page(&slab, scan)));
            while let Some(mut page) = pages.next() {
                while let Some((key, _)) = page.records.next() {
                    found.push(Bytes::from(key));
                }
            }
        }
        assert_eq!(found, keys);
        assert_eq!(counts[..3], [1, CUTS, CUTS]);
        assert!(counts[..counts.len() - CUTS].iter().skip(1).all(|count| *count == CUTS), "{counts:?}");
    }
}
