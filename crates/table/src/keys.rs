//! The keys of one node of a tree, in order.
//!
//! Model: the node holds four bytes of each key as an integer: those after the common prefix of all keys in the node's
//! range. They decide most comparisons, so a search rarely reads a record. The first and the last node of each level
//! have a range without a bound: they use the common prefix of the keys that they have.
//! Invariant: a key that is searched for is in the node's range, so it has the common prefix too, if the range has
//! bounds. Integers of unused places are the largest.

use std::cmp::Ordering;

use crate::slab::{Cell, Slab};

/// The most keys of a node.
pub(crate) const FAN: usize = 64;

/// Keys in order, each referred to by the cell of its record.
pub(crate) struct Keys {
    len: u16,
    /// The length of the common prefix.
    shared: u16,
    /// Whether keys without that prefix may be searched for.
    is_open: bool,
    hints: [u32; FAN],
    cells: [Cell; FAN],
}

impl Keys {
    /// No keys yet, in a range whose keys have a common prefix of `shared` bytes, or which has no bounds.
    pub(crate) fn new(shared: Option<usize>) -> Keys {
        let is_open = shared.is_none();
        Keys {
            len: 0,
            shared: shared.unwrap_or(0) as u16,
            is_open,
            hints: [u32::MAX; FAN],
            cells: [Cell::UNUSED; FAN],
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == FAN
    }

    pub(crate) fn cell(&self, i: usize) -> Cell {
        self.cells[..self.len()][i]
    }

    /// The index of the key, or the index at which it belongs.
    pub(crate) fn search(&self, slab: &Slab, key: &[u8]) -> Result<usize, usize> {
        if self.is_open
            && let Some(first) = self.cells().first()
        {
            let prefix = &slab.key(*first)[..self.shared()];
            match key[..key.len().min(prefix.len())].cmp(prefix) {
                Ordering::Less => return Err(0),
                Ordering::Equal => {}
                Ordering::Greater => return Err(self.len()),
            }
        }
        let wanted = hint(key, self.shared());
        let low = self.below(wanted);
        let equal = self.equal(low, wanted);
        let found = self.cells[low..low + equal].binary_search_by(|cell| slab.key(*cell).cmp(key));
        found.map(|i| low + i).map_err(|i| low + i)
    }

    /// The number of hints that are less. Compares all of them, by vector instructions: a binary search waits for one
    /// cache line after the other.
    fn below(&self, wanted: u32) -> usize {
        self.hints.iter().map(|hint| u32::from(*hint < wanted)).sum::<u32>() as usize
    }

    /// The number of keys from an index on whose hints are equal to this one.
    fn equal(&self, from: usize, wanted: u32) -> usize {
        self.hints[from..self.len()].iter().take_while(|hint| **hint == wanted).count()
    }

    /// The number of keys that are <= `key`, which is the index of the child of an inner node where `key` belongs.
    pub(crate) fn child(&self, slab: &Slab, key: &[u8]) -> usize {
        self.search(slab, key).map_or_else(|i| i, |i| i + 1)
    }

    pub(crate) fn insert(&mut self, slab: &Slab, i: usize, cell: Cell) {
        if self.is_open {
            let key = slab.key(cell);
            let has = |first: &Cell| common(slab.key(*first), key).min(self.shared());
            let shared = self.cells().first().map_or(key.len(), has);
            self.set_shared(slab, shared);
        }
        let len = self.len();
        self.hints.copy_within(i..len, i + 1);
        self.cells.copy_within(i..len, i + 1);
        self.len += 1;
        self.set(slab, i, cell);
    }

    /// Replaces the record at an index; the key of the new one must belong there.
    pub(crate) fn set(&mut self, slab: &Slab, i: usize, cell: Cell) {
        self.hints[i] = hint(slab.key(cell), self.shared());
        self.cells[i] = cell;
    }

    pub(crate) fn remove(&mut self, i: usize) -> Cell {
        let (len, cell) = (self.len(), self.cell(i));
        self.hints.copy_within(i + 1..len, i);
        self.cells.copy_within(i + 1..len, i);
        self.len -= 1;
        self.hints[len - 1] = u32::MAX;
        cell
    }

    /// Moves the keys from an index on to a new node; see [`Keys::new`] for `shared`.
    pub(crate) fn split_off(&mut self, slab: &Slab, i: usize, shared: Option<usize>) -> Keys {
        let mut right = Keys::new(shared);
        right.append(slab, &self.cells[i..self.len()]);
        self.hints[i..].fill(u32::MAX);
        self.len = i as u16;
        right
    }

    /// Appends keys.
    pub(crate) fn append(&mut self, slab: &Slab, cells: &[Cell]) {
        for cell in cells {
            self.insert(slab, self.len(), *cell);
        }
    }

    /// The number of keys that are probably <= `key`. Reads no record, but prefetches those that a search compares.
    pub(crate) fn probe(&self, slab: &Slab, key: &[u8]) -> usize {
        let wanted = hint(key, self.shared());
        let low = self.below(wanted);
        let equal = self.equal(low, wanted);
        self.cells[low..low + equal].iter().for_each(|cell| slab.prefetch(*cell));
        low + equal
    }

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells[..self.len()]
    }

    /// Sets the length of the common prefix, after the range of the node has changed; see [`Keys::new`].
    pub(crate) fn share(&mut self, slab: &Slab, shared: Option<usize>) {
        self.is_open = shared.is_none();
        let ends = self.cells().first().zip(self.cells().last());
        let own = || ends.map_or(0, |(first, last)| common(slab.key(*first), slab.key(*last)));
        let shared = shared.unwrap_or_else(own);
        self.set_shared(slab, shared);
    }

    fn set_shared(&mut self, slab: &Slab, shared: usize) {
        if shared != self.shared() {
            self.shared = shared as u16;
            for i in 0..self.len() {
                self.hints[i] = hint(slab.key(self.cells[i]), shared);
            }
        }
    }

    fn shared(&self) -> usize {
        usize::from(self.shared)
    }
}

/// Four bytes of a key after the first `shared`, padded with zeros. Their order is that of the keys as far as they go.
fn hint(key: &[u8], shared: usize) -> u32 {
    let rest = key.get(shared..).unwrap_or_default();
    match rest.first_chunk() {
        Some(first) => u32::from_be_bytes(*first),
        None => {
            let mut first = [0; 4];
            first[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(first)
        }
    }
}

/// The length of the common prefix of all keys that are >= `low` and < `high`; `None` if a bound is missing.
pub(crate) fn shared(low: Option<&[u8]>, high: Option<&[u8]>) -> Option<usize> {
    low.zip(high).map(|(low, high)| common(low, high))
}

/// The length of the common prefix of two keys.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest key that is > `below` and <= `at`.
pub(crate) fn between<'a>(below: &[u8], at: &'a [u8]) -> &'a [u8] {
    debug_assert_eq!(below.cmp(at), Ordering::Less);
    &at[..common(below, at) + 1]
}
