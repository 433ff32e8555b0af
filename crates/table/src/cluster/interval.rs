//! Ranges of keys.
//!
//! Model: an interval has the keys from `from` on that are below `to`. The paper's bucket (λ, Λ] is the interval from the successor
//! of λ to the successor of Λ, and the successor of a key is the key with a zero behind it. So one kind of bound is enough.

use std::fmt;

use thalweg_base::codec::{choice, record};

use super::text;

/// A key or a value.
pub(crate) type Bytes = Box<[u8]>;

/// Where an interval ends: before this key, or never.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Upper {
    Key(Bytes),
    Infinite,
}

impl Upper {
    /// Whether a key is below it.
    pub(crate) fn is_above(&self, key: &[u8]) -> bool {
        match self {
            Upper::Key(bound) => **bound > *key,
            Upper::Infinite => true,
        }
    }
}

/// Keys from one on that are below another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    pub(crate) from: Bytes,
    pub(crate) to: Upper,
}

choice!(Upper { 0 => Key { 0: key }, 1 => Infinite {} });
record!(Interval { from, to });

impl Interval {
    /// From one key on to below another; without that one, to the last key.
    pub fn new(from: &[u8], to: Option<&[u8]>) -> Interval {
        let to = to.map_or(Upper::Infinite, |to| Upper::Key(to.into()));
        Interval { from: from.into(), to }
    }

    /// All keys.
    pub fn all() -> Interval {
        Interval::new(b"", None)
    }

    pub(crate) fn of(from: &[u8], to: Upper) -> Interval {
        Interval { from: from.into(), to }
    }

    /// The first key, and the one that all are below, if there is one.
    pub fn bounds(&self) -> (&[u8], Option<&[u8]>) {
        let to = match &self.to {
            Upper::Key(key) => Some(&**key),
            Upper::Infinite => None,
        };
        (&self.from, to)
    }

    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        !self.to.is_above(&self.from)
    }

    /// Whether it has this key.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.is_above(key)
    }

    /// The keys that both have.
    pub(crate) fn intersection(&self, other: &Interval) -> Interval {
        let from = if self.from >= other.from { &self.from } else { &other.from };
        Interval { from: from.clone(), to: self.to.clone().min(other.to.clone()) }
    }

    /// The keys below the other interval, and those above it, if there are any.
    pub(crate) fn minus(&self, other: &Interval) -> (Option<Interval>, Option<Interval>) {
        let below =
            Interval { from: self.from.clone(), to: Upper::Key(other.from.clone()).min(self.to.clone()) };
        let above = match &other.to {
            Upper::Infinite => None,
            Upper::Key(key) => {
                Some(Interval { from: key.clone().max(self.from.clone()), to: self.to.clone() })
            }
        };
        let some = |interval: &Interval| !interval.is_empty();
        (Some(below).filter(some), above.filter(some))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.bounds();
        // A dot of a key is none of those between the two.
        let shown = |key: &[u8]| text::show(key).replace('.', r"\x2e");
        write!(f, "{}..{}", shown(from), shown(to.unwrap_or_default()))
    }
}

/// The key right behind this one.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// A place in the order of keys, which exactly one bucket has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point<'a> {
    /// That of a key.
    At(&'a [u8]),
    /// Right before this bound.
    Before(&'a Upper),
}

impl Point<'_> {
    /// Whether the interval has it.
    pub(crate) fn is_in(self, interval: &Interval) -> bool {
        match self {
            Point::At(key) => interval.contains(key),
            Point::Before(to) => *to <= interval.to && to.is_above(&interval.from),
        }
    }

    /// Whether it lies behind the interval or within it.
    pub(crate) fn is_at_or_behind(self, from: &[u8]) -> bool {
        match self {
            Point::At(key) => *from <= *key,
            Point::Before(to) => to.is_above(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(from: &str, to: &str) -> Interval {
        Interval::new(from.as_bytes(), Some(to.as_bytes()).filter(|to| !to.is_empty()))
    }

    #[test]
    fn what_is_cut_out_leaves_what_is_below_and_above() {
        let whole = interval("b", "y");
        let cases = [
            ("d", "f", Some(("b", "d")), Some(("f", "y"))),
            ("", "f", None, Some(("f", "y"))),
            ("d", "", Some(("b", "d")), None),
            ("", "", None, None),
            ("b", "y", None, None),
            ("z", "", Some(("b", "y")), None),
            ("", "a", None, Some(("b", "y"))),
        ];
        for (from, to, below, above) in cases {
            let expected = [below, above].map(|some| some.map(|(from, to)| interval(from, to)));
            let (below, above) = whole.minus(&interval(from, to));
            assert_eq!([below, above], expected, "without {from}..{to}");
        }
    }

    #[test]
    fn a_point_is_in_one_of_two_neighbours() {
        let (low, high) = (interval("", "m"), interval("m", ""));
        for (point, is_low) in [
            (Point::At(b""), true),
            (Point::At(b"m"), false),
            (Point::At(b"lz"), true),
            (Point::Before(&Upper::Key((*b"m").into())), true),
            (Point::Before(&Upper::Key((*b"m\0").into())), false),
            (Point::Before(&Upper::Infinite), false),
        ] {
            assert_eq!((point.is_in(&low), point.is_in(&high)), (is_low, !is_low), "{point:?}");
        }
    }
}
