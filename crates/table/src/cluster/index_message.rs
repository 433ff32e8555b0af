//! The messages of an index: how a request finds its bucket, and what servers tell one another about pages.

use thalweg_base::codec::{choice, record};

use super::image::Element;
use super::interval::{Bytes, Interval};

/// The most levels: with half-full pages they lead to 2^40 buckets.
pub(crate) const LEVELS_MAX: usize = 8;
/// The most entries of a page.
pub(super) const FANOUT: usize = 64;
/// The most entries of a page that arrives: while a page gives its upper half away, more are added.
const ENTRIES_MAX: usize = 16 * FANOUT;

/// How a request finds its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Descent {
    /// Without the index.
    #[default]
    No,
    /// It is at the root.
    Root,
    /// It is below the root.
    Page,
    /// A page has sent it to a bucket.
    Bucket,
}

/// A page of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexPage {
    /// The pages of level 0 say where buckets are, the others where the pages of the level below are.
    pub(crate) level: u8,
    /// Where this page is.
    pub(crate) place: Element,
    pub(crate) entries: Vec<Element>,
}

/// A message between servers about the index of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IndexNote {
    /// For a page of this level: what is below it, and by how many servers this was forwarded.
    Below { level: u8, elements: Vec<Element>, hops: u8 },
    /// For a server with something below it: where a page of this level is.
    Above { level: u8, place: Element },
    /// A page for the receiver, and where the page above it is.
    Page { page: IndexPage, above: Option<Element> },
    /// The page of this level that begins here has arrived.
    Taken { level: u8, from: Bytes },
    /// The sender does not have the page with this key to which a request was sent.
    Missing { key: Bytes },
    /// The pages of an interval below this level are lost: says where buckets are, and removes what is left of them.
    Rebuild { level: u8, interval: Interval },
}

choice!(Descent { 0 => No {}, 1 => Root {}, 2 => Page {}, 3 => Bucket {} });
record!(IndexPage { level, place, entries });
choice!(IndexNote {
    0 => Below { level: level, elements: elements, hops: hops },
    1 => Above { level: level, place: place },
    2 => Page { page: page, above: above },
    3 => Taken { level: level, from: from },
    4 => Missing { key: key },
    5 => Rebuild { level: level, interval: interval },
});

impl IndexPage {
    /// Whether the page is within all limits.
    pub(crate) fn is_sound(&self) -> bool {
        usize::from(self.level) < LEVELS_MAX
            && self.entries.len() <= ENTRIES_MAX
            && self.entries.iter().chain([&self.place]).all(|element| !element.interval.is_empty())
    }
}

impl IndexNote {
    /// Whether the message is within all limits.
    pub(crate) fn is_sound(&self) -> bool {
        let is_level = |level: &u8| usize::from(*level) < LEVELS_MAX;
        match self {
            IndexNote::Below { level, elements, .. } => {
                is_level(level) && elements.iter().all(|element| !element.interval.is_empty())
            }
            IndexNote::Above { level, place } => is_level(level) && !place.interval.is_empty(),
            IndexNote::Page { page, above } => {
                page.is_sound() && above.as_ref().is_none_or(|above| !above.interval.is_empty())
            }
            IndexNote::Taken { level, .. } => is_level(level),
            IndexNote::Missing { .. } => true,
            IndexNote::Rebuild { level, interval } => {
                usize::from(*level) <= LEVELS_MAX && !interval.is_empty()
            }
        }
    }
}
