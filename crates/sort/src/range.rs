//! The ranges of a distribution: which pages and split points each of them has.
//!
//! ```text
//! split points   k0 k1 k2 | k3 | k4 k5 k6 | k7 | ...     every n-th bounds a range, the others bound its buckets
//! range          0          1                            pages in input order, each in memory or spilled
//! ```
//!
//! Invariant: the pages of a range, in order, hold its records in input order.

use std::sync::Arc;

use thalweg_block::Block;
use thalweg_record::SplitPoint;

use crate::in_order::Order;
use crate::scratch::{Extent, Scratch};

/// One page of a range.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Being filled or written.
    Coming,
    /// In memory.
    Resident(Box<Block>),
    /// In scratch.
    Spilled(Extent),
}

impl Stored {
    /// Bytes of the page.
    pub(crate) fn len(&self) -> usize {
        match self {
            Stored::Coming => unreachable!("pages are measured when the pass is done"),
            Stored::Resident(block) => block.len(),
            Stored::Spilled(extent) => extent.len as usize,
        }
    }
}

/// The contents of a range.
#[derive(Debug, Default)]
pub(crate) struct RangeStore {
    pub(crate) pages: Vec<Stored>,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// The order of its records, once all of them are there.
    pub(crate) order: Order,
}

impl RangeStore {
    /// The extents of its spilled pages.
    pub(crate) fn extents(&self) -> impl DoubleEndedIterator<Item = &Extent> {
        self.pages.iter().filter_map(|page| match page {
            Stored::Spilled(extent) => Some(extent),
            _ => None,
        })
    }
}

/// A range that is to be sorted.
pub(crate) struct Range {
    pub(crate) store: RangeStore,
    /// A prefix of all keys of the range, which its split points omit.
    pub(crate) base: Arc<[u8]>,
    /// Split points between its buckets. Their origins are places in the range.
    pub(crate) split_points: Vec<SplitPoint>,
    /// The bounds of the range, without `base`.
    pub(crate) low: Option<SplitPoint>,
    pub(crate) high: Option<SplitPoint>,
}

/// Makes ranges. Every `per_range`-th split point bounds a range, and those between bound its buckets. The origins of
/// bucket bounds become places in the range. `base` is a prefix that the split points omit.
pub(crate) fn ranges_of(
    stores: Vec<RangeStore>,
    base: &Arc<[u8]>,
    split_points: &[SplitPoint],
    per_range: usize,
) -> Vec<Range> {
    let bound = |i: usize| split_points.get((i + 1) * per_range - 1).cloned();
    stores
        .into_iter()
        .enumerate()
        .map(|(i, store)| {
            let from = (i * per_range).min(split_points.len());
            let to = (from + per_range - 1).min(split_points.len());
            let mut inner = split_points[from..to].to_vec();
            // The places of the records of one key in the range are unknown: assume an even spread.
            for group in inner.chunk_by_mut(|a, b| a.normal == b.normal) {
                let parts = group.len() as u64 + 1;
                for (split_point, part) in group.iter_mut().zip(1..) {
                    split_point.origin = store.bytes / parts * part;
                }
            }
            inner.dedup();
            let low = i.checked_sub(1).and_then(bound);
            Range { store, base: Arc::clone(base), split_points: inner, low, high: bound(i) }
        })
        .collect()
}

/// For each n: the lowest offset in the output file of a spilled page that is still needed when the first n of these
/// ranges are written; `u64::MAX` if there is none.
pub(crate) fn needed_within(ranges: &[Range], scratch: &Scratch) -> Vec<u64> {
    let mut first = u64::MAX;
    let mut places = vec![first];
    for range in ranges.iter().rev() {
        let within = range.store.extents().filter(|extent| scratch.is_overtaken(extent, u64::MAX));
        first = within.map(Extent::offset).fold(first, u64::min);
        places.push(first);
    }
    places.reverse();
    places
}
