//! Ranges whose records come in order, or in reverse order: they are not sorted.
//!
//! Model: the first pass compares each record with the one before it in its range, until the range is in neither order;
//! in most inputs that is so after a few records. A lane compares inside its block, and in its sequence slot it compares
//! the ends of the block with what came before. The last pass copies the pages of a range in order as they are, without
//! entries, and walks back through a range in reverse order.
//!
//! ```text
//! rising     page 0 | page 1 | page 2          copied from the first page to the last
//! falling    page 2 | page 1 | page 0          in each page, from the last record that ends in it to the first
//! ```
//!
//! Invariant: equal keys stay in input order, so a range with equal keys is not in reverse order.
//! Non-goals: a range that is in order but for a few records; prefixed records, whose bounds in a page depend on the page
//! before it.

use std::cmp::Ordering;
use std::ops::Range;

use thalweg_record::{Key, Layout};

use crate::pages::Pages;

/// A longer record is not kept for the comparison with what follows, and its range counts as mixed.
const KEPT_BYTES_MAX: usize = 1 << 10;
/// Records in order are copied in pieces of this size, which are proved while they are in the cache.
const PIECE_BYTES: u64 = 32 << 10;

/// The order in which the records of a range come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    /// Any other.
    #[default]
    Mixed,
    /// Each key is at least the one before it.
    Rising,
    /// Each key is less than the one before it.
    Falling,
}

/// The orders in which some records may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    rising: bool,
    falling: bool,
}

impl Orders {
    /// The orders that are noticed in records of this layout: both, if records can be found from the middle of a page.
    pub(crate) fn of(layout: Layout) -> Orders {
        let both = layout.is_found_anywhere();
        Orders { rising: both, falling: both }
    }

    pub(crate) const NONE: Orders = Orders { rising: false, falling: false };

    /// Whether it is still worth comparing.
    #[inline(always)]
    pub(crate) fn is_any(self) -> bool {
        self.rising | self.falling
    }

    /// Excludes the orders in which two neighbours cannot compare like this.
    #[inline(always)]
    pub(crate) fn saw(&mut self, order: Ordering) {
        self.rising &= order.is_le();
        self.falling &= order.is_gt();
    }

    fn and(&mut self, other: Orders) {
        self.rising &= other.rising;
        self.falling &= other.falling;
    }

    /// The order. Of a single record it is rising.
    fn order(self) -> Order {
        match self {
            Orders { rising: true, .. } => Order::Rising,
            Orders { falling: true, .. } => Order::Falling,
            _ => Order::Mixed,
        }
    }
}

/// The records of one range in a block: the first and the last, and their order.
#[derive(Debug, Clone)]
pub(crate) struct InBlock {
    pub(crate) orders: Orders,
    first: Range<usize>,
    last: Range<usize>,
}

impl InBlock {
    pub(crate) fn new(orders: Orders) -> InBlock {
        InBlock { orders, first: 0..0, last: 0..0 }
    }

    /// Whether the record at `own` of the block is the same as the last one, and the range may be in order.
    #[inline(always)]
    pub(crate) fn is_repeat(&self, block: &[u8], own: &Range<usize>) -> bool {
        self.orders.is_any() && block[self.last.clone()] == block[own.clone()]
    }

    /// Adds such a record.
    #[inline(always)]
    pub(crate) fn repeats(&mut self, own: Range<usize>) {
        self.orders.saw(Ordering::Equal);
        self.last = own;
    }

    /// Adds the record at `own` of the block; `is_first` if the block has no other before it.
    #[inline(always)]
    pub(crate) fn add(&mut self, key: &Key, block: &[u8], own: Range<usize>, is_first: bool) {
        if is_first {
            self.first = own.clone();
        } else {
            self.orders.saw(key.compare(&block[self.last.clone()], &block[own.clone()]));
        }
        self.last = own;
    }
}

/// The last record of a block, if its range may be in order: the index of the range, and the record's hash. Records that
/// repeat it share both.
pub(crate) struct Before {
    pub(crate) id: usize,
    pub(crate) hash: u128,
    /// The last place at which a repeat is still in this range, once it is needed.
    pub(crate) last_place: Option<u64>,
}

/// The records of one range so far: their order, and the last of them.
#[derive(Debug)]
pub(crate) struct SoFar {
    orders: Orders,
    last: Option<Vec<u8>>,
}

impl SoFar {
    pub(crate) fn new(orders: Orders) -> SoFar {
        SoFar { orders, last: None }
    }

    /// Adds the next record.
    pub(crate) fn add(&mut self, key: &Key, record: &[u8]) {
        self.join(key, record, 0..record.len(), 0..record.len());
    }

    /// Adds the records of a block, and tells its lane which orders are still possible.
    pub(crate) fn add_block(&mut self, key: &Key, block: &[u8], some: &mut InBlock) {
        self.orders.and(some.orders);
        self.join(key, block, some.first.clone(), some.last.clone());
        some.orders = self.orders;
    }

    fn join(&mut self, key: &Key, bytes: &[u8], first: Range<usize>, last: Range<usize>) {
        if !self.orders.is_any() {
            self.last = None;
            return;
        }
        if let Some(before) = &self.last {
            self.orders.saw(key.compare(before, &bytes[first]));
        }
        if last.len() > KEPT_BYTES_MAX {
            self.orders = Orders::NONE;
        }
        let kept = self.last.get_or_insert_default();
        kept.clear();
        if self.orders.is_any() {
            kept.extend_from_slice(&bytes[last]);
        }
    }

    /// The order of all records.
    pub(crate) fn order(&self) -> Order {
        self.orders.order()
    }
}

/// A part of a range that is copied as it is, or record by record from its end.
#[derive(Debug)]
pub(crate) struct Stretch {
    places: Range<u64>,
    order: Order,
}

/// The parts of a range in this order, in the order of the output: one for each page in which a record ends.
pub(crate) fn stretches(pages: &Pages, layout: Layout, order: Order) -> Vec<Stretch> {
    let mut all = Vec::with_capacity(pages.count());
    let mut open = 0;
    for index in 0..pages.count() {
        let (place, page) = (pages.place_of(index), pages.page(index));
        if pages.is_segment_start(index) {
            open = place;
        }
        let before = pages.segment_bytes_before(index);
        let end = match layout.fixed_bytes() {
            Some(n) => place - before + (before + page.len() as u64) / n as u64 * n as u64,
            None => match layout.whole(page) {
                0 => open,
                end => place + end as u64,
            },
        };
        if end > open {
            all.push(Stretch { places: open..end, order });
            open = end;
        }
    }
    if order == Order::Falling {
        all.reverse();
    }
    all
}

impl Stretch {
    pub(crate) fn bytes(&self) -> u64 {
        self.places.end - self.places.start
    }

    /// The next part to be copied.
    pub(crate) fn next(&mut self, pages: &Pages, layout: Layout) -> Option<Range<u64>> {
        let Range { start, end } = self.places;
        if start == end {
            return None;
        }
        Some(match self.order {
            Order::Falling => {
                self.places.end = pages.start_of_last(layout, start..end);
                self.places.end..end
            }
            _ => {
                self.places.start = end.min(start + PIECE_BYTES);
                start..self.places.start
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The order of these records, which come in blocks that end at these records.
    fn noticed(records: &[Vec<u8>], ends: &[usize]) -> Order {
        let key = Key::new(Layout::Lines, &[]).unwrap();
        let orders = Orders::of(Layout::Lines);
        // Two lanes take turns; between blocks, one record crosses their bounds.
        let (mut lanes, mut so_far) = ([InBlock::new(orders), InBlock::new(orders)], SoFar::new(orders));
        let mut from = 0;
        for (turn, &end) in ends.iter().chain([&records.len()]).enumerate() {
            if from < end {
                so_far.add(&key, &records[from]);
                from += 1;
            }
            let lane = &mut lanes[turn % 2];
            let block = records[from..end].concat();
            let mut at = 0;
            for (i, record) in records[from..end].iter().enumerate() {
                if lane.orders.is_any() {
                    lane.add(&key, &block, at..at + record.len(), i == 0);
                }
                at += record.len();
            }
            if from < end {
                so_far.add_block(&key, &block, lane);
            }
            from = end;
        }
        so_far.order()
    }

    proptest! {
        #[test]
        fn an_order_is_noticed_across_blocks(
            mut records in prop::collection::vec("[ab]{0,3}", 2..40),
            order in 0..4,
            swapped in any::<prop::sample::Index>(),
            ends in prop::collection::vec(0usize..40, 0..6),
        ) {
            if order > 0 {
                records.sort();
            }
            if order > 1 {
                records.dedup();
                records.reverse();
            }
            if order == 3 {
                let at = swapped.index(records.len() - 1 + usize::from(records.len() == 1));
                let next = (at + 1) % records.len();
                records.swap(at, next);
            }
            let records: Vec<Vec<u8>> = records.into_iter().map(String::into_bytes).collect();
            let mut ends: Vec<usize> = ends.into_iter().map(|end| end.min(records.len())).collect();
            ends.sort_unstable();
            let expected = match &records[..] {
                all if all.is_sorted() => Order::Rising,
                all if all.windows(2).all(|pair| pair[0] > pair[1]) => Order::Falling,
                _ => Order::Mixed,
            };
            prop_assert_eq!(noticed(&records, &ends), expected, "{:?} {:?}", records, ends);
        }
    }

    #[test]
    fn long_records_are_not_kept() {
        let of = |len: usize| vec![vec![b'a'; 3], vec![b'b'; len], vec![b'c'; 3]];
        assert_eq!(noticed(&of(KEPT_BYTES_MAX), &[1, 2]), Order::Rising);
        assert_eq!(noticed(&of(KEPT_BYTES_MAX + 1), &[1, 2]), Order::Mixed);
        // Inside a block they need not be kept.
        let mut records = of(KEPT_BYTES_MAX + 1);
        records.insert(0, b"a".to_vec());
        assert_eq!(noticed(&records, &[]), Order::Rising);
    }
}
