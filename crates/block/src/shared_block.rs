//! A block that several threads fill in parallel, each in a range reserved beforehand.
//!
//! One thread at a time reserves ranges, so the order of the bytes does not depend on scheduling. The thread that
//! commits the last bytes of a sealed block gets the block.
//!
//! ```text
//! reserve 0..300 -> A     reserve 300..420 -> B     seal     A commits     B commits => block
//! ```

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::prefetch::prefetch_at;
use crate::{Block, copy_start};

/// A block that is being filled.
pub struct SharedBlock {
    shared: Arc<Shared>,
    reserved: u32,
}

struct Shared {
    base: NonNull<u8>,
    capacity: u32,
    /// Bytes that are reserved and not committed, plus `OPEN` until the block is sealed.
    pending: AtomicU32,
    block: std::sync::Mutex<Option<Block>>,
}

/// Keeps `pending` above zero until the block is sealed; capacities are smaller.
const OPEN: u32 = 1 << 31;

// SAFETY: the bytes are accessed only through `Reservation`s, which are disjoint, and through the block, which is
// returned only after every reservation is committed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A reserved range, which its holder must fill completely.
pub struct Reservation {
    at: NonNull<u8>,
    left: u32,
    length: u32,
    shared: Arc<Shared>,
}

// SAFETY: a reservation owns its range of the block exclusively.
unsafe impl Send for Reservation {}

impl SharedBlock {
    /// Starts to fill a block from its first byte.
    pub fn new(block: Block) -> SharedBlock {
        assert!(block.capacity() < OPEN as usize);
        SharedBlock {
            shared: Arc::new(Shared {
                base: block.address(),
                capacity: block.capacity() as u32,
                pending: AtomicU32::new(OPEN),
                block: std::sync::Mutex::new(Some(block)),
            }),
            reserved: 0,
        }
    }

    /// Bytes not reserved yet.
    pub fn room(&self) -> usize {
        (self.shared.capacity - self.reserved) as usize
    }

    /// Bytes reserved so far.
    pub fn len(&self) -> usize {
        self.reserved as usize
    }

    /// True while nothing has been reserved.
    pub fn is_empty(&self) -> bool {
        self.reserved == 0
    }

    /// Reserves the next `length` bytes; at most `room()`.
    pub fn reserve(&mut self, length: usize) -> Reservation {
        assert!(length <= self.room(), "{length} bytes in a fill with room for {}", self.room());
        // SAFETY: reserved + length <= capacity, so the range lies inside the block.
        let at = unsafe { self.shared.base.add(self.reserved as usize) };
        self.reserved += length as u32;
        self.shared.pending.fetch_add(length as u32, Ordering::Relaxed);
        Reservation { at, left: length as u32, length: length as u32, shared: Arc::clone(&self.shared) }
    }

    /// Allows no more reservations. Returns the block if all reservations are committed; otherwise the last
    /// `Reservation::commit` returns it.
    pub fn seal(self) -> Option<Block> {
        finish(&self.shared, OPEN, self.reserved)
    }
}

/// Subtracts `amount` from the pending bytes. At zero it returns the block, with its length set.
fn finish(shared: &Shared, amount: u32, reserved: u32) -> Option<Block> {
    if amount == OPEN
        && let Some(block) = shared.block.lock().expect("no holder panics").as_mut()
    {
        block.set_len(reserved as usize);
    }
    if shared.pending.fetch_sub(amount, Ordering::AcqRel) != amount {
        return None;
    }
    shared.block.lock().expect("no holder panics").take()
}

impl Reservation {
    /// Bytes still to be written.
    pub fn left(&self) -> usize {
        self.left as usize
    }

    /// Copies as much of `bytes` as fits; returns the number of bytes.
    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        self.push_start(bytes, bytes.len())
    }

    /// Copies as many of the first `len` bytes of `bytes` as fit, and returns their number. Bytes that follow them may
    /// be written too; the next push overwrites those.
    #[inline(always)]
    pub fn push_start(&mut self, bytes: &[u8], len: usize) -> usize {
        let n = len.min(self.left as usize);
        // SAFETY: the `left` bytes at `at` belong to this reservation alone, and `n` <= `left`.
        unsafe {
            copy_start(std::slice::from_raw_parts_mut(self.at.as_ptr(), self.left as usize), bytes, n);
            self.at = self.at.add(n);
        }
        self.left -= n as u32;
        n
    }

    /// Prefetches the two cache lines after the written bytes, for the next record.
    #[inline(always)]
    pub fn expect(&self) {
        let next = self.at.as_ptr().cast_const();
        prefetch_at(next.wrapping_add(63));
        prefetch_at(next.wrapping_add(127));
    }

    /// The bytes written so far.
    pub fn written(&self) -> &[u8] {
        let n = (self.length - self.left) as usize;
        // SAFETY: `at` has moved `n` bytes from the start of this reservation, which no other thread accesses before
        // the commit.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().sub(n), n) }
    }

    /// Commits the range. Returns the block if this was the last open reservation of a sealed block.
    pub fn commit(self) -> Option<Block> {
        assert_eq!(
            self.left, 0,
            "a place was committed with {} of {} bytes unwritten",
            self.left, self.length
        );
        finish(&self.shared, self.length, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn bytes_are_in_reservation_order_whoever_commits_last() {
        let pool = Pool::new(4096, 1).unwrap();
        for seal_first in [false, true] {
            let mut fill = SharedBlock::new(pool.take());
            let mut a = fill.reserve(3);
            let mut b = fill.reserve(2);
            assert_eq!(b.push(b"yy"), 2);
            let mut block = None;
            if seal_first {
                block = block.or(b.commit());
                block = block.or(fill.seal());
                assert_eq!(a.push(b"xxxx"), 3);
                block = block.or(a.commit());
            } else {
                assert_eq!(a.push(b"xxx"), 3);
                block = block.or(a.commit());
                block = block.or(b.commit());
                assert!(block.is_none());
                block = block.or(fill.seal());
            }
            assert_eq!(&block.expect("the last one gets the block")[..], b"xxxyy");
        }
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn many_threads_fill_one_block() {
        let pool = Pool::new(1 << 16, 1).unwrap();
        for _ in 0..50 {
            let mut fill = SharedBlock::new(pool.take());
            let places: Vec<Reservation> = (0..64).map(|_| fill.reserve(1024)).collect();
            let block = std::thread::scope(|s| {
                let mut handles = Vec::new();
                for (i, mut place) in places.into_iter().enumerate() {
                    handles.push(s.spawn(move || {
                        place.push(&[i as u8; 1024]);
                        place.commit()
                    }));
                }
                let mut got = fill.seal();
                for h in handles {
                    got = got.or(h.join().unwrap());
                }
                got
            });
            let block = block.expect("one of them gets it");
            assert!(block.iter().enumerate().all(|(i, &b)| b as usize == i / 1024));
        }
    }

    #[test]
    #[should_panic(expected = "unwritten")]
    fn an_incomplete_reservation_panics() {
        let pool = Pool::new(4096, 1).unwrap();
        let mut fill = SharedBlock::new(pool.take());
        let _ = fill.reserve(2).commit();
    }
}
