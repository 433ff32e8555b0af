//! The keys of one node of a tree, in order.
//!
//! Model: the node holds four bytes of each key as an integer: those after the common prefix of all keys in the node's
//! range. They decide most comparisons, so a search rarely reads a record.
//! Invariant: a key that is searched for is in the node's range, so it has the common prefix too. Integers of unused
//! places are the largest.

use std::cmp::Ordering;

use crate::slab::{Cell, Slab};

/// The most keys of a node.
pub(crate) const FAN: usize = 64;

/// Keys in order, each referred to by the cell of its record.
pub(crate) struct Keys {
    len: u16,
    /// The length of the common prefix of all keys in the node's range.
    shared: u16,
    hints: [u32; FAN],
    cells: [Cell; FAN],
}

impl Keys {
    /// No keys yet, in a range whose keys have a common prefix of `shared` bytes.
    pub(crate) fn new(shared: usize) -> Keys {
        Keys { len: 0, shared: shared as u16, hints: [u32::MAX; FAN], cells: [Cell::UNUSED; FAN] }
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
        let wanted = hint(key, self.shared());
        // Compares all of them, by vector instructions. A binary search waits for one cache line after the other.
        let (mut low, mut equal) = (0u32, 0u32);
        for hint in &self.hints {
            low += u32::from(*hint < wanted);
            equal += u32::from(*hint == wanted);
        }
        let low = low as usize;
        let equal = (equal as usize).min(self.len() - low);
        let found = self.cells[low..low + equal].binary_search_by(|cell| slab.key(*cell).cmp(key));
        found.map(|i| low + i).map_err(|i| low + i)
    }

    /// The number of keys that are <= `key`, which is the index of the child of an inner node where `key` belongs.
    pub(crate) fn child(&self, slab: &Slab, key: &[u8]) -> usize {
        self.search(slab, key).map_or_else(|i| i, |i| i + 1)
    }

    pub(crate) fn insert(&mut self, slab: &Slab, i: usize, cell: Cell) {
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

    /// Moves the keys from an index on to a new node, whose range has a common prefix of `shared` bytes.
    pub(crate) fn split_off(&mut self, slab: &Slab, i: usize, shared: usize) -> Keys {
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

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells[..self.len()]
    }

    /// Sets the length of the common prefix, after the range of the node has changed.
    pub(crate) fn share(&mut self, slab: &Slab, shared: usize) {
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

/// The length of the common prefix of all keys that are >= `low` and < `high`; 0 if a bound is missing.
pub(crate) fn shared(low: Option<&[u8]>, high: Option<&[u8]>) -> usize {
    let (Some(low), Some(high)) = (low, high) else { return 0 };
    low.iter().zip(high).take_while(|(a, b)| a == b).count()
}

/// The shortest key that is > `below` and <= `at`.
pub(crate) fn between<'a>(below: &[u8], at: &'a [u8]) -> &'a [u8] {
    debug_assert_eq!(below.cmp(at), Ordering::Less);
    let same = below.iter().zip(at).take_while(|(a, b)| a == b).count();
    &at[..same + 1]
}
