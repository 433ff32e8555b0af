//! Ranges of keys.
//!
//! Model: an interval has all keys >= `from` and < `to`. The paper's bucket (λ, Λ] is the interval from the successor
//! of λ to the successor of Λ. The successor of a key is the key followed by a zero. So one kind of bound is enough.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use thalweg_base::codec::{choice, record};

use super::text;

/// A key or a value.
pub(crate) type Bytes = Box<[u8]>;

/// The upper bound of an interval: the keys below this one, or no bound.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Upper {
    Key(Bytes),
    Infinite,
}

impl Upper {
    /// Whether the bound is above a key.
    pub(crate) fn is_above(&self, key: &[u8]) -> bool {
        match self {
            Upper::Key(bound) => **bound > *key,
            Upper::Infinite => true,
        }
    }
}

/// All keys that are at least one key and below another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    pub(crate) from: Bytes,
    pub(crate) to: Upper,
}

choice!(Upper { 0 => Key { 0: key }, 1 => Infinite {} });
record!(Interval { from, to });

impl Interval {
    /// The keys >= `from` and < `to`, or without an upper bound if there is no `to`.
    pub fn new(from: &[u8], to: Option<&[u8]>) -> Interval {
        let to = to.map_or(Upper::Infinite, |to| Upper::Key(to.into()));
        Interval { from: from.into(), to }
    }

    /// All keys.
    pub fn all() -> Interval {
        Interval::new(b"", None)
    }

    /// The keys of a range of Rust.
    fn of_range<K: AsRef<[u8]>>(keys: &impl RangeBounds<K>) -> Interval {
        let from = match keys.start_bound() {
            Bound::Included(key) => key.as_ref().into(),
            Bound::Excluded(key) => successor(key.as_ref()),
            Bound::Unbounded => Bytes::default(),
        };
        let to = match keys.end_bound() {
            Bound::Included(key) => Upper::Key(successor(key.as_ref())),
            Bound::Excluded(key) => Upper::Key(key.as_ref().into()),
            Bound::Unbounded => Upper::Infinite,
        };
        Interval { from, to }
    }

    /// Parses `LOW..HIGH`, in which `bytes` parses a key: from LOW up to but not including HIGH. Either may be missing.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(
        text: &str,
        bytes: impl Fn(&str) -> std::result::Result<Vec<u8>, String>,
    ) -> std::result::Result<Interval, String> {
        let ends = text.split_once("..").filter(|(_, high)| !high.contains(".."));
        let (low, high) = ends.ok_or_else(|| {
            format!(r"'{text}' is no range of keys; write LOW..HIGH, and a dot of a key there as \x2e")
        })?;
        let high = Some(high).filter(|high| !high.is_empty()).map(&bytes).transpose()?;
        Ok(Interval::new(&bytes(low)?, high.as_deref()))
    }

    pub(crate) fn of(from: &[u8], to: Upper) -> Interval {
        Interval { from: from.into(), to }
    }

    /// The first key, and the upper bound, if there is one.
    pub fn bounds(&self) -> (&[u8], Option<&[u8]>) {
        let to = match &self.to {
            Upper::Key(key) => Some(&**key),
            Upper::Infinite => None,
        };
        (&self.from, to)
    }

    /// Whether the interval has no keys.
    pub fn is_empty(&self) -> bool {
        !self.to.is_above(&self.from)
    }

    /// Whether the interval contains this key.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.is_above(key)
    }

    /// The keys that are in both intervals.
    pub(crate) fn intersection(&self, other: &Interval) -> Interval {
        let from = if self.from >= other.from { &self.from } else { &other.from };
        Interval { from: from.clone(), to: self.to.clone().min(other.to.clone()) }
    }

    /// The keys of this interval below the other one, and those above it, if there are any.
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

impl From<RangeFull> for Interval {
    fn from(_: RangeFull) -> Interval {
        Interval::all()
    }
}

macro_rules! from_ranges {
    ($($range:ty),*) => {$(
        impl<K: AsRef<[u8]>> From<$range> for Interval {
            fn from(keys: $range) -> Interval {
                Interval::of_range(&keys)
            }
        }
    )*};
}

from_ranges!(
    Range<K>,
    RangeFrom<K>,
    RangeInclusive<K>,
    RangeTo<K>,
    RangeToInclusive<K>,
    (Bound<K>, Bound<K>)
);

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.bounds();
        // A dot in a key is escaped, because two dots separate the bounds.
        let shown = |key: &[u8]| text::show(key).replace('.', r"\x2e");
        write!(f, "{}..{}", shown(from), shown(to.unwrap_or_default()))
    }
}

/// The key right after this one.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// A point in the order of keys, which belongs to exactly one bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point<'a> {
    /// The point of a key.
    At(&'a [u8]),
    /// The point right before this bound.
    Before(&'a Upper),
}

impl Point<'_> {
    /// Whether the point is in the interval.
    pub(crate) fn is_in(self, interval: &Interval) -> bool {
        match self {
            Point::At(key) => interval.contains(key),
            Point::Before(to) => *to <= interval.to && to.is_above(&interval.from),
        }
    }

    /// Whether the point is at or after the key `from`.
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
    fn a_range_has_two_ends_which_may_be_missing() {
        for (typed, low, high) in [
            ("a..b", &b"a"[..], Some(&b"b"[..])),
            ("..", b"", None),
            ("a..", b"a", None),
            ("..b", b"", Some(b"b")),
            (r"a\x2e..b", b"a.", Some(b"b")),
        ] {
            assert_eq!(Interval::parse(typed, text::parse).unwrap(), Interval::new(low, high), "{typed}");
        }
        assert_eq!(Interval::parse("00..ff", text::parse_hex).unwrap(), Interval::new(&[0], Some(&[0xff])));
        assert!(Interval::parse("a", text::parse).is_err());
        assert!(Interval::parse("a..b..c", text::parse).is_err());
        assert!(Interval::parse("0..1", text::parse_hex).is_err());
    }

    #[test]
    fn ranges_of_rust_are_intervals() {
        for (range, low, high) in [
            (Interval::from("a".."b"), "a", Some("b")),
            (Interval::from("a"..="b"), "a", Some("b\0")),
            (Interval::from(.."b"), "", Some("b")),
            (Interval::from(..="b"), "", Some("b\0")),
            (Interval::from("a"..), "a", None),
            (Interval::from(..), "", None),
            (Interval::from((Bound::Excluded("a"), Bound::Unbounded)), "a\0", None),
        ] {
            assert_eq!(range, Interval::new(low.as_bytes(), high.map(str::as_bytes)));
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
