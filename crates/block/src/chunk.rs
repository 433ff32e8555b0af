//! Chunks: small exclusive pieces of a block, seen as arrays of 128-bit entries.
//!
//! A sorter distributes entries to thousands of buckets, and a whole block for each would waste most of the memory, so
//! blocks are divided. A block returns to its pool when its last chunk is dropped.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Block;

/// An exclusive piece of a block, as 128-bit values.
pub struct Chunk {
    values: NonNull<u128>,
    count: usize,
    _home: Arc<Block>,
}

// SAFETY: a chunk owns its bytes exclusively (`carve` gives out disjoint pieces of an owned block).
unsafe impl Send for Chunk {}
// SAFETY: through a shared reference the values can only be read.
unsafe impl Sync for Chunk {}

/// Cuts a block into chunks of `count` 128-bit values each; a remainder smaller than that is unused.
pub fn carve(block: Block, count: usize) -> impl Iterator<Item = Chunk> {
    assert!(count > 0 && count * 16 <= block.capacity(), "chunks of {count} values in {block:?}");
    let chunks = block.capacity() / (count * 16);
    let base = block.address().cast::<u128>();
    let home = Arc::new(block);
    (0..chunks).map(move |i| Chunk {
        // SAFETY: i * count + count values lie inside the block's capacity.
        values: unsafe { base.add(i * count) },
        count,
        _home: Arc::clone(&home),
    })
}

impl Deref for Chunk {
    type Target = [u128];
    fn deref(&self) -> &[u128] {
        // SAFETY: the chunk owns `count` initialised values; blocks are 4096-aligned and so are
        // multiples of 16 from there.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.count) }
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u128] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn chunks_are_disjoint_and_the_last_one_returns_the_block() {
        let pool = Pool::new(4096, 1).unwrap();
        let mut chunks: Vec<Chunk> = carve(pool.take(), 100).collect();
        assert_eq!(chunks.len(), 2);
        chunks[0].fill(1);
        chunks[1].fill(2);
        assert!(chunks[0].iter().all(|&v| v == 1));
        chunks.pop();
        assert_eq!(pool.free(), 0);
        chunks.pop();
        assert_eq!(pool.free(), 1);
    }
}
