//! Records in the order of their keys.
//!
//! ```text
//!           inner                    separators and children
//!          /     \
//!      leaf <---> leaf <---> leaf    cells of records, by key; each leaf knows its neighbours
//! ```
//!
//! Model: a B+-tree over the cells of a [`Slab`] (section 2.2, "Bucket Structure", of Diène and Litwin's paper on RP*).
//! The keys of a child are >= the separator on its left, and < the one on its right.
//! A separator is the shortest key that divides its two children.
//! Invariant: a change that would exceed the memory limit changes nothing. The slab also counts the memory of nodes.
//! Non-goals: the range of keys that the bucket holds, and the expiry of records.

use thalweg_block::prefetch_value;

use crate::arena::Arena;
use crate::keys::{FAN, Keys, between, shared};
use crate::slab::{Cell, Full, Record, Slab};

/// Two siblings are merged if together they have at most this many keys.
const JOIN_UP_TO: usize = FAN * 3 / 4;
/// A bound on the height: no tree with 32-bit node numbers is higher.
const HEIGHT_MAX: usize = 32;
const NO_LEAF: u32 = u32::MAX;
/// The most keys that [`prefetch`] searches for.
pub(crate) const PREFETCHED: usize = 16;
/// The number of records that are prefetched ahead of the one that is read.
const AHEAD: usize = 8;

struct Leaf {
    keys: Keys,
    before: u32,
    behind: u32,
}

struct Inner {
    /// Separator `i` is the least key that child `i + 1` may have.
    separators: Keys,
    children: [u32; FAN + 1],
}

/// Records in the order of their keys.
pub(crate) struct Bucket {
    leaves: Arena<Leaf>,
    inners: Arena<Inner>,
    root: u32,
    /// Levels of inner nodes.
    height: usize,
    len: usize,
}

/// A cursor between two records: before a record, or after the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    leaf: u32,
    index: usize,
}

/// The path from the root to a leaf, and the bounds of that leaf's range.
struct Descent {
    inners: [(u32, usize); HEIGHT_MAX],
    leaf: u32,
    low: Option<Cell>,
    high: Option<Cell>,
}

impl Bucket {
    /// An empty bucket.
    pub(crate) fn new(slab: &mut Slab) -> Result<Bucket, Full> {
        slab.take(size_of::<Leaf>())?;
        let mut leaves = Arena::new();
        let root = leaves.insert(Leaf { keys: Keys::new(None), before: NO_LEAF, behind: NO_LEAF });
        Ok(Bucket { leaves, inners: Arena::new(), root, height: 0, len: 0 })
    }

    /// The number of records.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The record with this key.
    pub(crate) fn get<'a>(&self, slab: &'a Slab, key: &[u8]) -> Option<Record<'a>> {
        self.find(slab, key).map(|cell| slab.record(cell))
    }

    /// The cell of the record with this key.
    pub(crate) fn find(&self, slab: &Slab, key: &[u8]) -> Option<Cell> {
        let leaf = &self.leaves[self.leaf_of(slab, key)];
        leaf.keys.search(slab, key).ok().map(|i| leaf.keys.cell(i))
    }

    /// Stores a record in place of the one with the same key. Returns whether there was one.
    pub(crate) fn put(
        &mut self,
        slab: &mut Slab,
        key: &[u8],
        value: &[u8],
        expires_ms: Option<i64>,
    ) -> Result<bool, Full> {
        self.put_if(slab, (key, value, expires_ms), |_| true)
    }

    /// Stores a record if `decides` agrees, given the key's present record. Returns whether the key had a record.
    pub(crate) fn put_if(
        &mut self,
        slab: &mut Slab,
        (key, value, expires_ms): (&[u8], &[u8], Option<i64>),
        decides: impl FnOnce(Option<Record<'_>>) -> bool,
    ) -> Result<bool, Full> {
        let way = self.descend(slab, key);
        let leaf = &mut self.leaves[way.leaf];
        match leaf.keys.search(slab, key) {
            Ok(i) => {
                let old = leaf.keys.cell(i);
                if decides(Some(slab.record(old))) && !slab.overwrite(old, key, value, expires_ms) {
                    let new = slab.store(key, value, expires_ms)?;
                    slab.remove(old);
                    leaf.keys.set(slab, i, new);
                }
                Ok(true)
            }
            Err(i) => {
                if decides(None) {
                    let new = slab.store(key, value, expires_ms)?;
                    match leaf.keys.is_full() {
                        false => leaf.keys.insert(slab, i, new),
                        true => self.split_leaf(slab, &way, i, new).inspect_err(|_| slab.remove(new))?,
                    }
                    self.len += 1;
                }
                Ok(false)
            }
        }
    }

    /// Removes the record with this key. Returns whether there was one.
    pub(crate) fn remove(&mut self, slab: &mut Slab, key: &[u8]) -> bool {
        let way = self.descend(slab, key);
        let keys = &mut self.leaves[way.leaf].keys;
        let Ok(i) = keys.search(slab, key) else { return false };
        slab.remove(keys.remove(i));
        self.len -= 1;
        if keys.len() <= FAN / 4 && self.height > 0 {
            self.join(slab, &way);
        }
        true
    }

    /// Removes all records and nodes, and returns their memory to the slab.
    pub(crate) fn clear(self, slab: &mut Slab) {
        let mut leaf = self.first_leaf();
        while leaf != NO_LEAF {
            self.leaves[leaf].keys.cells().iter().for_each(|cell| slab.remove(*cell));
            leaf = self.leaves[leaf].behind;
        }
        if self.height > 0 {
            self.clear_separators(slab, self.root, self.height);
        }
        slab.give(self.node_bytes());
    }

    /// Appends the records of another bucket, whose keys are >= `from`, and which must be greater than all keys here.
    /// Leaves move as they are, so the cost does not depend on the size of the records. Without enough memory nothing
    /// changes, and the other bucket is returned.
    pub(crate) fn append(&mut self, slab: &mut Slab, mut other: Bucket, from: &[u8]) -> Option<Bucket> {
        if other.len == 0 {
            other.clear(slab);
            return None;
        }
        if self.len == 0 {
            std::mem::replace(self, other).clear(slab);
            return None;
        }
        let mut moving = Vec::new();
        other.leaves_below((other.root, other.height), None, &mut moving);
        // More than the inner nodes for so many leaves.
        let nodes = (moving.len() * 2 / FAN + HEIGHT_MAX) * size_of::<Inner>();
        if slab.take(nodes).is_err() {
            return Some(other);
        }
        let Ok(first) = slab.store(from, b"", None) else {
            slab.give(nodes);
            return Some(other);
        };
        self.drop_leaves_from(slab, from);
        let before = self.node_bytes();
        let moved = moving.len() * size_of::<Leaf>();
        for (separator, leaf) in moving {
            let Leaf { keys, .. } = std::mem::replace(
                &mut other.leaves[leaf],
                Leaf { keys: Keys::new(None), before: NO_LEAF, behind: NO_LEAF },
            );
            let way = self.last_descent();
            let leaf = self.leaves.insert(Leaf { keys, before: way.leaf, behind: NO_LEAF });
            self.leaves[way.leaf].behind = leaf;
            self.add_child(slab, &way, separator.unwrap_or(first), leaf);
        }
        self.len += other.len;
        let added = self.node_bytes() - before - moved;
        assert!(added <= nodes, "{added} bytes of inner nodes, and {nodes} are reserved");
        slab.give(nodes - added + other.inners.used() * size_of::<Inner>());
        None
    }

    /// Removes the last leaves whose ranges begin at `from` or later. They are empty, because all keys are below that.
    fn drop_leaves_from(&mut self, slab: &mut Slab, from: &[u8]) {
        let before = self.node_bytes();
        while self.height > 0 {
            let way = self.last_descent();
            let level = way.inners[..self.height].iter().rposition(|(_, child)| *child > 0);
            let level = level.expect("the root has two children");
            let parent = way.inners[level].0;
            let separators = &self.inners[parent].separators;
            if slab.key(separators.cell(separators.len() - 1)) < from {
                break;
            }
            let leaf = &self.leaves[way.leaf];
            assert!(leaf.keys.len() == 0, "all keys are below {}", from.escape_ascii());
            let last = leaf.before;
            self.leaves[last].behind = NO_LEAF;
            self.leaves.remove(way.leaf);
            way.inners[level + 1..self.height].iter().for_each(|(inner, _)| self.inners.remove(*inner));
            let separators = &mut self.inners[parent].separators;
            slab.remove(separators.remove(separators.len() - 1));
            self.drop_roots();
        }
        // The ranges of those that are the last ones now have no upper bound.
        let way = self.last_descent();
        for (inner, _) in &way.inners[..self.height] {
            self.inners[*inner].separators.share(slab, None);
        }
        slab.give(before - self.node_bytes());
    }

    /// Removes roots with one child.
    fn drop_roots(&mut self) {
        while self.height > 0 && self.inners[self.root].separators.len() == 0 {
            let only = self.inners[self.root].children[0];
            self.inners.remove(self.root);
            (self.root, self.height) = (only, self.height - 1);
        }
    }

    /// The leaves below a node in order, each with the separator on its left.
    fn leaves_below(
        &self,
        (node, height): (u32, usize),
        left: Option<Cell>,
        into: &mut Vec<(Option<Cell>, u32)>,
    ) {
        if height == 0 {
            return into.push((left, node));
        }
        let inner = &self.inners[node];
        for (i, child) in inner.children[..inner.separators.len() + 1].iter().enumerate() {
            let left = i.checked_sub(1).map_or(left, |i| Some(inner.separators.cell(i)));
            self.leaves_below((*child, height - 1), left, into);
        }
    }

    /// The path to the last leaf.
    fn last_descent(&self) -> Descent {
        let mut way = Descent { inners: [(0, 0); HEIGHT_MAX], leaf: self.root, low: None, high: None };
        for level in 0..self.height {
            let inner = &self.inners[way.leaf];
            let child = inner.separators.len();
            way.inners[level] = (way.leaf, child);
            way.leaf = inner.children[child];
        }
        way
    }

    fn node_bytes(&self) -> usize {
        self.leaves.used() * size_of::<Leaf>() + self.inners.used() * size_of::<Inner>()
    }

    fn clear_separators(&self, slab: &mut Slab, inner: u32, height: usize) {
        let inner = &self.inners[inner];
        inner.separators.cells().iter().for_each(|cell| slab.remove(*cell));
        if height > 1 {
            let children = &inner.children[..inner.separators.len() + 1];
            children.iter().for_each(|child| self.clear_separators(slab, *child, height - 1));
        }
    }

    /// The place before the first record.
    pub(crate) fn first(&self) -> Place {
        Place { leaf: self.first_leaf(), index: 0 }
    }

    /// The place after the last record.
    pub(crate) fn last(&self) -> Place {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            node = inner.children[inner.separators.len()];
        }
        Place { leaf: node, index: self.leaves[node].keys.len() }
    }

    /// The place before the first record whose key is >= `key`, or, with `behind`, > `key`.
    pub(crate) fn seek(&self, slab: &Slab, key: &[u8], behind: bool) -> Place {
        let leaf = self.leaf_of(slab, key);
        let keys = &self.leaves[leaf].keys;
        let index = if behind { keys.child(slab, key) } else { keys.search(slab, key).unwrap_or_else(|i| i) };
        (index..index + AHEAD).for_each(|index| self.prefetch(slab, &self.leaves[leaf], index));
        Place { leaf, index }
    }

    /// Returns the record after a place, and moves the place past it.
    pub(crate) fn next<'a>(&self, slab: &'a Slab, place: &mut Place) -> Option<Record<'a>> {
        let mut leaf = &self.leaves[place.leaf];
        while place.index == leaf.keys.len() {
            if leaf.behind == NO_LEAF {
                return None;
            }
            *place = Place { leaf: leaf.behind, index: 0 };
            leaf = &self.leaves[place.leaf];
            if leaf.behind != NO_LEAF {
                prefetch_value(&self.leaves[leaf.behind]);
            }
        }
        self.prefetch(slab, leaf, place.index + AHEAD);
        place.index += 1;
        Some(slab.record(leaf.keys.cell(place.index - 1)))
    }

    /// Prefetches the record at an index of a leaf, or beyond its end in the next one.
    fn prefetch(&self, slab: &Slab, leaf: &Leaf, index: usize) {
        let cell = match index.checked_sub(leaf.keys.len()) {
            None => leaf.keys.cells().get(index),
            Some(_) if leaf.behind == NO_LEAF => None,
            Some(beyond) => self.leaves[leaf.behind].keys.cells().get(beyond),
        };
        cell.into_iter().for_each(|cell| slab.prefetch(*cell));
    }

    /// Returns the record before a place, and moves the place in front of it.
    pub(crate) fn previous<'a>(&self, slab: &'a Slab, place: &mut Place) -> Option<Record<'a>> {
        while place.index == 0 {
            let before = self.leaves[place.leaf].before;
            if before == NO_LEAF {
                return None;
            }
            *place = Place { leaf: before, index: self.leaves[before].keys.len() };
        }
        place.index -= 1;
        Some(slab.record(self.leaves[place.leaf].keys.cell(place.index)))
    }

    /// The number of records between two places; 0 if the second is not after the first.
    pub(crate) fn count(&self, slab: &Slab, from: Place, to: Place) -> usize {
        let key = |place: &Place| self.previous(slab, &mut place.clone()).map(|record| record.key);
        if from.leaf == to.leaf {
            return to.index.saturating_sub(from.index);
        }
        if key(&from) >= key(&to) {
            return 0;
        }
        let mut count = self.leaves[from.leaf].keys.len() - from.index;
        let mut leaf = self.leaves[from.leaf].behind;
        while leaf != to.leaf {
            count += self.leaves[leaf].keys.len();
            leaf = self.leaves[leaf].behind;
        }
        count + to.index
    }

    /// Moves a place forward by `count` records, or to the end.
    pub(crate) fn skip(&self, place: &mut Place, mut count: usize) {
        loop {
            let leaf = &self.leaves[place.leaf];
            let here = leaf.keys.len() - place.index;
            if count <= here || leaf.behind == NO_LEAF {
                place.index += count.min(here);
                return;
            }
            count -= here;
            *place = Place { leaf: leaf.behind, index: 0 };
        }
    }

    fn first_leaf(&self) -> u32 {
        (0..self.height).fold(self.root, |node, _| self.inners[node].children[0])
    }

    fn leaf_of(&self, slab: &Slab, key: &[u8]) -> u32 {
        (0..self.height).fold(self.root, |node, _| {
            let inner = &self.inners[node];
            inner.children[inner.separators.child(slab, key)]
        })
    }

    fn descend(&self, slab: &Slab, key: &[u8]) -> Descent {
        let mut way = Descent { inners: [(0, 0); HEIGHT_MAX], leaf: self.root, low: None, high: None };
        for level in 0..self.height {
            let inner = &self.inners[way.leaf];
            let child = inner.separators.child(slab, key);
            way.inners[level] = (way.leaf, child);
            if child > 0 {
                way.low = Some(inner.separators.cell(child - 1));
            }
            if child < inner.separators.len() {
                way.high = Some(inner.separators.cell(child));
            }
            way.leaf = inner.children[child];
        }
        way
    }

    /// Inserts a cell into a full leaf, which is split.
    fn split_leaf(&mut self, slab: &mut Slab, way: &Descent, i: usize, new: Cell) -> Result<(), Full> {
        let behind = self.leaves[way.leaf].behind;
        // Keys that arrive in ascending order leave full leaves.
        let at = if i == FAN && behind == NO_LEAF { FAN } else { FAN / 2 };
        let keys = &self.leaves[way.leaf].keys;
        let below = if i == at && at < FAN { new } else { keys.cell(at - 1) };
        let above = if at == FAN { new } else { keys.cell(at) };
        let separator = between(slab.key(below), slab.key(above)).to_vec();
        let nodes = size_of::<Leaf>() + (self.height + 1) * size_of::<Inner>();
        slab.take(nodes)?;
        let separator = slab.store(&separator, b"", None).inspect_err(|_| slab.give(nodes))?;
        let left_shares = shares(slab, way.low, Some(separator));
        let right_shares = shares(slab, Some(separator), way.high);
        let keys = &mut self.leaves[way.leaf].keys;
        let mut right = keys.split_off(slab, at, right_shares);
        keys.share(slab, left_shares);
        match i.checked_sub(at).filter(|_| i > at || at == FAN) {
            Some(i) => right.insert(slab, i, new),
            None => keys.insert(slab, i, new),
        }
        let right = self.leaves.insert(Leaf { keys: right, before: way.leaf, behind });
        self.leaves[way.leaf].behind = right;
        if behind != NO_LEAF {
            self.leaves[behind].before = right;
        }
        let before = self.node_bytes();
        self.add_child(slab, way, separator, right);
        slab.give(nodes - size_of::<Leaf>() - (self.node_bytes() - before));
        Ok(())
    }

    /// Inserts a new node after the one that the path leads to.
    fn add_child(&mut self, slab: &Slab, way: &Descent, mut separator: Cell, mut node: u32) {
        for level in (0..self.height).rev() {
            let (number, child) = way.inners[level];
            let inner = &mut self.inners[number];
            if !inner.separators.is_full() {
                return inner.insert(slab, child, separator, node);
            }
            // The separator in the middle goes up.
            let at = if child == FAN { FAN - 1 } else { FAN / 2 };
            let middle = inner.separators.cell(at);
            let (low, high) = self.bounds(way, level);
            let inner = &mut self.inners[number];
            let separators = inner.separators.split_off(slab, at + 1, shares(slab, Some(middle), high));
            let mut right = Inner { separators, children: [0; FAN + 1] };
            right.children[..FAN - at].copy_from_slice(&inner.children[at + 1..]);
            inner.separators.remove(at);
            inner.separators.share(slab, shares(slab, low, Some(middle)));
            match child.checked_sub(at + 1) {
                Some(child) => right.insert(slab, child, separator, node),
                None => inner.insert(slab, child, separator, node),
            }
            (separator, node) = (middle, self.inners.insert(right));
        }
        let mut root = Inner { separators: Keys::new(None), children: [0; FAN + 1] };
        root.children[0] = self.root;
        root.insert(slab, 0, separator, node);
        self.root = self.inners.insert(root);
        self.height += 1;
    }

    /// The bounds of the range of an inner node on a path.
    fn bounds(&self, way: &Descent, level: usize) -> (Option<Cell>, Option<Cell>) {
        let (mut low, mut high) = (None, None);
        for (number, child) in &way.inners[..level] {
            let separators = &self.inners[*number].separators;
            if *child > 0 {
                low = Some(separators.cell(child - 1));
            }
            if *child < separators.len() {
                high = Some(separators.cell(*child));
            }
        }
        (low, high)
    }

    /// Merges underfull nodes along a path with a sibling, if both together fill at most three quarters of a node.
    fn join(&mut self, slab: &mut Slab, way: &Descent) {
        let before = self.node_bytes();
        for level in (0..self.height).rev() {
            let (parent, child) = way.inners[level];
            let inner = &self.inners[parent];
            let node = |child: usize| inner.children[child];
            let is_leaf = level + 1 == self.height;
            let len = |child: usize| match is_leaf {
                true => self.leaves[node(child)].keys.len(),
                // The separator between the two comes down.
                false => self.inners[node(child)].separators.len() + 1,
            };
            let count = inner.separators.len();
            let pairs = [child.checked_sub(1), (child < count).then_some(child)];
            let fits = |left: &usize| len(*left) + len(*left + 1) <= JOIN_UP_TO;
            let Some(left) = pairs.into_iter().flatten().find(fits) else { break };
            let (into, from) = (node(left), node(left + 1));
            let (low, high) = self.bounds(way, level);
            let low = left.checked_sub(1).map_or(low, |i| Some(inner.separators.cell(i)));
            let high = if left + 1 < count { Some(inner.separators.cell(left + 1)) } else { high };
            let shares = shares(slab, low, high);
            let inner = &mut self.inners[parent];
            let separator = inner.separators.remove(left);
            inner.children.copy_within(left + 2..count + 1, left + 1);
            match is_leaf {
                true => {
                    slab.remove(separator);
                    self.join_leaves(slab, into, from, shares);
                }
                false => self.join_inners(slab, into, from, separator, shares),
            }
            if self.inners[parent].separators.len() > FAN / 4 {
                break;
            }
        }
        self.drop_roots();
        slab.give(before - self.node_bytes());
    }

    fn join_leaves(&mut self, slab: &Slab, into: u32, from: u32, shares: Option<usize>) {
        let moved = self.leaves[from].keys.cells().to_vec();
        let behind = self.leaves[from].behind;
        let leaf = &mut self.leaves[into];
        leaf.keys.share(slab, shares);
        leaf.keys.append(slab, &moved);
        leaf.behind = behind;
        if behind != NO_LEAF {
            self.leaves[behind].before = into;
        }
        self.leaves.remove(from);
    }

    fn join_inners(&mut self, slab: &Slab, into: u32, from: u32, separator: Cell, shares: Option<usize>) {
        let from_inner = &self.inners[from];
        let count = from_inner.separators.len();
        let cells = [&[separator], from_inner.separators.cells()].concat();
        let children = from_inner.children;
        let inner = &mut self.inners[into];
        let at = inner.separators.len() + 1;
        inner.separators.share(slab, shares);
        inner.separators.append(slab, &cells);
        inner.children[at..at + count + 1].copy_from_slice(&children[..count + 1]);
        self.inners.remove(from);
    }
}

/// Searches for up to [`PREFETCHED`] keys at the same time, so that the processor waits for memory once for all of them.
/// This returns nothing; but later searches for these keys find what they read in the cache.
pub(crate) fn prefetch<'a>(slab: &Slab, searches: impl Iterator<Item = (&'a Bucket, &'a [u8])>) {
    let mut probes = [const { None }; PREFETCHED];
    for (probe, (bucket, key)) in probes.iter_mut().zip(searches) {
        *probe = Some(Probe { bucket, key, node: bucket.root, height: bucket.height });
    }
    while probes.iter().any(Option::is_some) {
        for probe in &mut probes {
            if probe.as_mut().is_some_and(|probe| !probe.step(slab)) {
                *probe = None;
            }
        }
    }
}

/// A search for a key.
struct Probe<'a> {
    bucket: &'a Bucket,
    key: &'a [u8],
    node: u32,
    /// Levels of inner nodes that are left.
    height: usize,
}

impl Probe<'_> {
    /// Takes a step, and prefetches what the next one reads. Returns whether there is a next one.
    fn step(&mut self, slab: &Slab) -> bool {
        let Bucket { inners, leaves, .. } = self.bucket;
        if self.height == 0 {
            leaves[self.node].keys.probe(slab, self.key);
            return false;
        }
        let inner = &inners[self.node];
        self.node = inner.children[inner.separators.probe(slab, self.key)];
        self.height -= 1;
        match self.height {
            0 => prefetch_value(&leaves[self.node]),
            _ => prefetch_value(&inners[self.node]),
        }
        true
    }
}

/// The length of the common prefix of all keys between two separators, if there are two.
fn shares(slab: &Slab, low: Option<Cell>, high: Option<Cell>) -> Option<usize> {
    let bound = |cell: Option<Cell>| cell.map(|cell| slab.key(cell));
    shared(bound(low), bound(high))
}

impl Inner {
    /// Inserts a new child after this one.
    fn insert(&mut self, slab: &Slab, child: usize, separator: Cell, node: u32) {
        let count = self.separators.len() + 1;
        self.children.copy_within(child + 1..count, child + 2);
        self.children[child + 1] = node;
        self.separators.insert(slab, child, separator);
    }
}

#[cfg(test)]
#[path = "bucket_test.rs"]
mod tests;
