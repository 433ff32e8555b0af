//! What a client or a server knows about the location of buckets.
//!
//! ```text
//! [a..c) n1 epoch 3   [c..m) n2 epoch 2        not known: [m..t)        [t..) n1 epoch 1
//! ```
//!
//! Model: disjoint intervals in order, each with the server that had its keys at an epoch. The epoch of keys rises
//! whenever they move to another server, so of two statements about a key the one with the higher epoch is newer.
//! (Paper 002 has no epochs: there, a late adjustment could undo newer knowledge.)
//! Invariant: an older statement never replaces a newer one.
//! Non-goals: being up to date. A server that no longer has a key knows which server it gave the key to.

use std::sync::Arc;

use thalweg_base::codec::record;

use super::interval::{Interval, Point};

/// The name of a server.
pub(crate) type Address = Arc<str>;

/// The server that had the keys of an interval at an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) interval: Interval,
    pub(crate) address: Address,
    pub(crate) epoch: u64,
}

record!(Element { interval, address, epoch });

/// What is known about the location of buckets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Image {
    /// In order, disjoint.
    elements: Vec<Element>,
}

impl Image {
    /// Adds an element, except where something newer is known.
    pub(crate) fn learn(&mut self, new: &Element) {
        let first = self.elements.partition_point(|old| !old.interval.to.is_above(&new.interval.from));
        let len = self.elements[first..]
            .iter()
            .take_while(|old| new.interval.to.is_above(&old.interval.from))
            .count();
        if len == 1 && self.elements[first] == *new {
            return;
        }
        let mut pieces: Vec<Element> = Vec::with_capacity(len + 2);
        let mut rest = Some(new.interval.clone());
        let piece = |of: &Element, interval: Option<Interval>| {
            interval.map(|interval| Element { interval, ..of.clone() })
        };
        for old in &self.elements[first..first + len] {
            if old.epoch > new.epoch {
                let Some(here) = rest.take() else {
                    pieces.push(old.clone());
                    continue;
                };
                let (below, above) = here.minus(&old.interval);
                pieces.extend(piece(new, below));
                pieces.push(old.clone());
                rest = above;
            } else {
                let (below, above) = old.interval.minus(&new.interval);
                pieces.extend(piece(old, below));
                // At most the last one reaches beyond the new one.
                if let Some(above) = piece(old, above) {
                    pieces.extend(piece(new, rest.take()));
                    pieces.push(above);
                }
            }
        }
        pieces.extend(piece(new, rest));
        self.elements.splice(first..first + len, pieces);
    }

    /// The last known owner of a point.
    pub(crate) fn owner(&self, point: Point<'_>) -> Option<&Element> {
        self.route(point).filter(|element| point.is_in(&element.interval))
    }

    /// Where to send a request for a point: its owner, or that of the nearest interval before it (the paper's RP*Cu).
    pub(crate) fn route(&self, point: Point<'_>) -> Option<&Element> {
        let behind = self.elements.partition_point(|element| point.is_at_or_behind(&element.interval.from));
        behind.checked_sub(1).map(|at| &self.elements[at])
    }

    /// Removes the element because of which requests for a point are sent to this server.
    pub(crate) fn forget(&mut self, point: Point<'_>, address: &str) {
        let behind = self.elements.partition_point(|element| point.is_at_or_behind(&element.interval.from));
        if let Some(at) = behind.checked_sub(1).filter(|at| *self.elements[*at].address == *address) {
            self.elements.remove(at);
        }
    }

    /// The elements that overlap an interval.
    pub(crate) fn within(&self, interval: &Interval) -> impl Iterator<Item = &Element> {
        let first = self.elements.partition_point(|element| !element.interval.to.is_above(&interval.from));
        self.elements[first..].iter().take_while(|element| interval.to.is_above(&element.interval.from))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::interval::Upper;
    use super::*;

    const KEYS: u8 = 12;

    /// From one letter up to but not including another; the letter after the last one is the end.
    fn interval(from: u8, to: u8) -> Interval {
        let key = |i: u8| if i == 0 { Vec::new() } else { vec![b'a' + i] };
        Interval::new(&key(from), (to < KEYS).then(|| key(to)).as_deref())
    }

    proptest! {
        #[test]
        fn the_newest_statement_about_each_key_holds(
            statements in vec((0..KEYS, 1..=KEYS, 0..6u64), 1..40),
        ) {
            let mut image = Image::default();
            let mut model = vec![None; usize::from(KEYS)];
            for (from, to, epoch) in statements.into_iter().filter(|(from, to, _)| from < to) {
                // In each epoch a key has one owner.
                let address: Address = format!("n{epoch}").into();
                image.learn(&Element { interval: interval(from, to), address: address.clone(), epoch });
                for key in &mut model[usize::from(from)..usize::from(to)] {
                    if key.as_ref().is_none_or(|(known, _)| *known <= epoch) {
                        *key = Some((epoch, address.clone()));
                    }
                }
            }
            for (i, expected) in (0..).zip(&model) {
                let key = interval(i, KEYS).from;
                let found = image.owner(Point::At(&key)).map(|element| (element.epoch, element.address.clone()));
                prop_assert_eq!(&found, expected, "of key {}", i);
                let to = interval(0, i + 1).to;
                let before = image.owner(Point::Before(&to)).map(|element| (element.epoch, element.address.clone()));
                prop_assert_eq!(&before, expected, "before the end of key {}", i);
            }
            let disjoint = image.elements.windows(2).all(|two| two[0].interval.to <= Upper::Key(two[1].interval.from.clone()));
            prop_assert!(disjoint && image.elements.iter().all(|element| !element.interval.is_empty()));
        }
    }

    #[test]
    fn an_unknown_point_is_asked_for_at_the_nearest_before_it() {
        let mut image = Image::default();
        for (from, to, address) in [(0, 2, "n1"), (4, 6, "n2")] {
            image.learn(&Element { interval: interval(from, to), address: address.into(), epoch: 1 });
        }
        let asked = |i: u8| image.route(Point::At(&interval(i, KEYS).from)).map(|element| &*element.address);
        assert_eq!([0, 3, 4, 5, 9].map(asked), ["n1", "n1", "n2", "n2", "n2"].map(Some));
    }
}
