//! The pool and its blocks.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use thalweg_base::units::{Bytes, MIB};

use crate::cache;

/// Alignment of every block. It satisfies O_DIRECT on all disks that we know.
pub(crate) const ALIGN: usize = 4096;
/// Below this a pool has too few whole huge pages, and uses ordinary ones.
const HUGE_FROM_BYTES: usize = 4 * MIB as usize;

/// Why a pool could not be created.
#[derive(Debug)]
pub struct PoolError {
    bytes: usize,
    source: std::io::Error,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot map {} of memory: {}", Bytes(self.bytes as u64), self.source)
    }
}

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A fixed number of blocks of equal size. Cheap to clone; all clones are one pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    base: NonNull<u8>,
    mapped_bytes: usize,
    block_size: usize,
    /// The initial number of blocks, and how many were retired.
    capacity: usize,
    retired: AtomicUsize,
    free: Mutex<Vec<u32>>,
    returned: Condvar,
    /// The number of waiting threads. It changes under the lock of `free`. If it is 0, the system call that wakes a
    /// thread is skipped.
    waiting: AtomicUsize,
}

// SAFETY: the mapping is plain memory owned by `Inner`; access to its bytes goes through `Block`s,
// whose indices are handed out at most once at a time by the mutex.
unsafe impl Send for Inner {}
// SAFETY: as above; `Inner` itself reads and writes no byte of the mapping.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every block holds an `Arc` of this, so there are no blocks left.
        let is_like_new = self.mapped_bytes >= HUGE_FROM_BYTES && *self.retired.get_mut() == 0;
        if !is_like_new || !cache::put(self.base, self.mapped_bytes) {
            // SAFETY: `base` and `mapped_bytes` are what mmap returned.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

/// Maps memory, from the cache if possible.
fn map(bytes: usize) -> Result<NonNull<u8>, PoolError> {
    let failed = |source| PoolError { bytes, source };
    if bytes >= HUGE_FROM_BYTES
        && let Some(kept) = cache::take(bytes)
    {
        return Ok(kept);
    }
    // SAFETY: an anonymous private mapping of fresh addresses; the result is checked.
    let address = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let address = address.map_err(|e| failed(e.into()))?;
    if bytes >= HUGE_FROM_BYTES {
        // SAFETY: the range is the mapping just made; the call is advice and may fail freely.
        let _ = unsafe { madvise(address, bytes, Advice::LinuxHugepage) };
    }
    NonNull::new(address.cast::<u8>()).ok_or_else(|| failed(std::io::Error::other("mapped at 0")))
}

impl Pool {
    /// Maps `capacity` blocks of `block_size` bytes (a multiple of 4096). The kernel counts memory only when a block
    /// is first used, so used blocks are preferred.
    pub fn new(block_size: usize, capacity: usize) -> Result<Pool, PoolError> {
        assert!(
            block_size > 0 && block_size.is_multiple_of(ALIGN),
            "block size {block_size} is not a multiple of {ALIGN}"
        );
        assert!(capacity > 0 && capacity <= u32::MAX as usize, "a pool of {capacity} blocks");
        let bytes = block_size * capacity;
        Ok(Pool(Arc::new(Inner {
            base: map(bytes)?,
            mapped_bytes: bytes,
            block_size,
            capacity,
            retired: AtomicUsize::new(0),
            free: Mutex::new((0..capacity as u32).rev().collect()),
            returned: Condvar::new(),
            waiting: AtomicUsize::new(0),
        })))
    }

    /// Bytes of each block.
    pub fn block_size(&self) -> usize {
        self.0.block_size
    }

    /// The number of blocks, without retired ones.
    pub fn capacity(&self) -> usize {
        self.0.capacity - self.0.retired.load(Ordering::Relaxed)
    }

    /// The number of free blocks.
    pub fn free(&self) -> usize {
        self.0.free.lock().expect("no holder of the pool panics").len()
    }

    /// Takes a block if one is free.
    pub fn try_take(&self) -> Option<Block> {
        let index = self.0.free.lock().expect("no holder of the pool panics").pop()?;
        Some(self.lend(index))
    }

    /// Waits for a free block and takes it.
    pub fn take(&self) -> Block {
        let mut free = self.0.free.lock().expect("no holder of the pool panics");
        loop {
            if let Some(index) = free.pop() {
                drop(free);
                return self.lend(index);
            }
            self.0.waiting.fetch_add(1, Ordering::Relaxed);
            free = self.0.returned.wait(free).expect("no holder of the pool panics");
            self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits at most `patience` for a free block and takes it.
    pub fn take_within(&self, patience: std::time::Duration) -> Option<Block> {
        let free = self.0.free.lock().expect("no holder of the pool panics");
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let (mut free, _) = self
            .0
            .returned
            .wait_timeout_while(free, patience, |free| free.is_empty())
            .expect("no holder of the pool panics");
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        let index = free.pop()?;
        drop(free);
        Some(self.lend(index))
    }

    /// Address and length of the mapping, to query the kernel about it.
    pub fn mapping(&self) -> (usize, usize) {
        (self.0.base.as_ptr() as usize, self.0.mapped_bytes)
    }

    fn lend(&self, index: u32) -> Block {
        assert!((index as usize) < self.0.capacity);
        // SAFETY: index < capacity, so the block lies inside the mapping.
        let bytes = unsafe { self.0.base.add(index as usize * self.0.block_size) };
        Block {
            bytes,
            capacity: self.0.block_size as u32,
            len: 0,
            index,
            offset: 0,
            home: Arc::clone(&self.0),
            is_retired: false,
            held: None,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} blocks of {} B free)", self.free(), self.0.capacity, self.0.block_size)
    }
}

/// Counts blocks whose holder may keep them indefinitely. The code that hands blocks out counts them here, and stops
/// at a number for which the pool has space. All clones share one count.
#[derive(Debug, Clone, Default)]
pub struct Held(Arc<AtomicUsize>);

impl Held {
    /// The number of blocks that are held now. A dropped block is already back in its pool.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// One counted block.
struct Hold(Arc<AtomicUsize>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Aligned bytes with a length and an offset in their stream. Derefs to the bytes up to its length.
pub struct Block {
    bytes: NonNull<u8>,
    capacity: u32,
    len: u32,
    index: u32,
    offset: u64,
    home: Arc<Inner>,
    is_retired: bool,
    /// Dropped after the block has returned to its pool.
    held: Option<Hold>,
}

// SAFETY: a block owns its bytes exclusively; they are plain memory.
unsafe impl Send for Block {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// The capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Sets the number of valid bytes.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity as usize, "length {len} of a block of {}", self.capacity);
        self.len = len as u32;
    }

    /// The offset of its first byte in its stream.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Sets the offset in its stream.
    pub fn set_offset(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Whether it belongs to `pool`.
    pub fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.home, &pool.0)
    }

    /// Counts it in `held` until it is dropped or `unheld` is called.
    pub fn held(mut self, held: &Held) -> Block {
        held.0.fetch_add(1, Ordering::Relaxed);
        self.held = Some(Hold(Arc::clone(&held.0)));
        self
    }

    /// Stops counting it.
    pub fn unheld(mut self) -> Block {
        self.held = None;
        self
    }

    /// Returns the block's memory to the kernel; from now on the pool has one block less. Huge pages are turned off
    /// for that memory, because the kernel could otherwise make a huge page there and allocate the memory again.
    pub fn retire(mut self) {
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontNeed] {
            // SAFETY: the block owns these bytes of its pool's mapping, and is never used again.
            let _ = unsafe { madvise(self.bytes.as_ptr().cast(), self.capacity as usize, advice) };
        }
        self.home.retired.fetch_add(1, Ordering::Relaxed);
        self.is_retired = true;
    }

    /// All bytes, including those after the length: zeros if never used, otherwise arbitrary.
    pub fn whole(&self) -> &[u8] {
        // SAFETY: the block owns `capacity` bytes at `bytes`, initialised by the kernel.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.capacity as usize) }
    }

    /// All bytes, for writing.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `whole`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.capacity as usize) }
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.bytes
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.whole()[..self.len as usize]
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len as usize;
        &mut self.whole_mut()[..len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.is_retired {
            let mut free = self.home.free.lock().expect("no holder of the pool panics");
            free.push(self.index);
            if self.home.waiting.load(Ordering::Relaxed) > 0 {
                drop(free);
                self.home.returned.notify_one();
            }
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} of {} B at {})", self.len, self.capacity, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_block_is_not_reused_and_its_memory_is_returned() {
        let pool = Pool::new(8192, 2).unwrap();
        let mut blocks = [pool.take(), pool.take()];
        blocks.iter_mut().for_each(|block| block.whole_mut().fill(7));
        let [kept, retired] = blocks;
        let at = retired.address();
        retired.retire();
        assert!(pool.capacity() == 1 && pool.try_take().is_none());
        // SAFETY: the pool and its mapping are alive, and no block with these bytes is in use.
        assert_eq!(unsafe { *at.as_ptr() }, 0, "zeros come again");
        drop(kept);
        assert!(pool.free() == 1 && pool.take().whole()[0] == 7);
    }

    #[test]
    fn blocks_are_aligned_disjoint_and_return() {
        let pool = Pool::new(8192, 3).unwrap();
        let mut blocks: Vec<Block> = (0..3).map(|_| pool.try_take().unwrap()).collect();
        assert!(pool.try_take().is_none());
        for (i, b) in blocks.iter_mut().enumerate() {
            assert_eq!(b.whole().as_ptr() as usize % ALIGN, 0);
            b.whole_mut().fill(i as u8 + 1);
            b.set_len(100);
        }
        for (i, b) in blocks.iter().enumerate() {
            assert_eq!(b.len(), 100);
            assert!(b.whole().iter().all(|&x| x == i as u8 + 1));
        }
        blocks.clear();
        assert_eq!(pool.free(), 3);
    }

    #[test]
    fn take_waits_for_a_block() {
        let pool = Pool::new(4096, 1).unwrap();
        let held = pool.take();
        let other = pool.clone();
        let waiting = std::thread::spawn(move || other.take().capacity());
        drop(held);
        assert_eq!(waiting.join().unwrap(), 4096);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn held_blocks_are_counted() {
        let (pool, other, held) = (Pool::new(4096, 2).unwrap(), Pool::new(4096, 1).unwrap(), Held::default());
        let one = pool.take().held(&held);
        let two = pool.take().held(&held).held(&held);
        assert!(one.is_of(&pool) && !one.is_of(&other));
        assert_eq!(held.count(), 2);
        let one = one.unheld();
        assert_eq!((held.count(), pool.free()), (1, 0));
        drop((one, two));
        assert_eq!((held.count(), pool.free()), (0, 2));
    }

    #[test]
    #[should_panic(expected = "length 4097")]
    fn a_length_beyond_the_block_is_refused() {
        Pool::new(4096, 1).unwrap().take().set_len(4097);
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        let error = Pool::new(1 << 30, 1 << 20).unwrap_err().to_string();
        assert!(error.starts_with("cannot map 1024 TiB of memory: "), "{error}");
    }
}
