//! Nodes of a tree, addressed by number, in chunks that never move.
//!
//! Invariant: a number refers to the same node until that node is removed; then it is reused.

use std::ops::{Index, IndexMut};

const CHUNK: usize = 64;

/// Nodes of one kind.
pub(crate) struct Arena<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
    vacant: Vec<u32>,
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Arena<T> {
        Arena { chunks: Vec::new(), len: 0, vacant: Vec::new() }
    }

    /// Stores a node and returns its number.
    pub(crate) fn insert(&mut self, node: T) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self[number] = node;
            return number;
        }
        if self.len.is_multiple_of(CHUNK) {
            // A small tree has a small first chunk.
            let capacity = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        self.chunks[self.len / CHUNK].push(node);
        self.len += 1;
        (self.len - 1) as u32
    }

    /// Removes a node, whose number may then be reused.
    pub(crate) fn remove(&mut self, number: u32) {
        self.vacant.push(number);
    }

    /// The number of nodes in use.
    pub(crate) fn used(&self) -> usize {
        self.len - self.vacant.len()
    }
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }
}
