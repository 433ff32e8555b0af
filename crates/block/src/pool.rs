//! The pool and its blocks.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use thalweg_base::units::{Bytes, MIB};

use crate::cache;

/// Alignment of every block: what O_DIRECT asks for on any disk we know.
pub(crate) const ALIGN: usize = 4096;
/// Below this a pool has few whole huge pages, and ordinary ones are used.
const HUGE_FROM_BYTES: usize = 4 * MIB as usize;

/// Why a pool could not be made.
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

/// A fixed number of equal blocks, lent out and taken back. Cheap to clone; all clones are one pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    base: NonNull<u8>,
    mapped_bytes: usize,
    block_size: usize,
    /// Blocks that there were at the start, and those of them that were retired.
    capacity: usize,
    retired: AtomicUsize,
    free: Mutex<Vec<u32>>,
    returned: Condvar,
    /// How many wait for one. Changed under the lock of `free`; waking is a system call, and mostly nobody waits.
    waiting: AtomicUsize,
}

// SAFETY: the mapping is plain memory owned by `Inner`; access to its bytes goes through `Block`s,
// whose indices are handed out at most once at a time by the mutex.
unsafe impl Send for Inner {}
// SAFETY: as above; `Inner` itself reads and writes no byte of the mapping.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every block holds an `Arc` of this, so none is left.
        let is_like_new = self.mapped_bytes >= HUGE_FROM_BYTES && *self.retired.get_mut() == 0;
        if !is_like_new || !cache::put(self.base, self.mapped_bytes) {
            // SAFETY: `base` and `mapped_bytes` are what mmap returned.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

/// So much memory, of what is kept if there is such.
fn map(bytes: usize) -> Result<NonNull<u8>, PoolError> {
    let failed = |source| PoolError { bytes, source };
    if bytes >= HUGE_FROM_BYTES
        && let Some(kept) = cache::take(bytes)
    {
        return Ok(kept);
    }
    // SAFETY: an anonymous private mapping of fresh addresses; the result is checked.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(failed(std::io::Error::last_os_error()));
    }
    if bytes >= HUGE_FROM_BYTES {
        // SAFETY: the range is the mapping just made; the call is advice and may fail freely.
        unsafe { libc::madvise(address, bytes, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(address.cast::<u8>()).ok_or_else(|| failed(std::io::Error::other("mapped at 0")))
}

impl Pool {
    /// Maps `capacity` blocks of `block_size` bytes (a multiple of 4096). Memory is touched, and so
    /// counted by the kernel, only as blocks are first used; reused blocks are preferred.
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

    /// Bytes that each block can hold.
    pub fn block_size(&self) -> usize {
        self.0.block_size
    }

    /// How many blocks there are in all, without those that were retired.
    pub fn capacity(&self) -> usize {
        self.0.capacity - self.0.retired.load(Ordering::Relaxed)
    }

    /// How many blocks are at home now.
    pub fn free(&self) -> usize {
        self.0.free.lock().expect("no holder of the pool panics").len()
    }

    /// A block if one is at home.
    pub fn try_take(&self) -> Option<Block> {
        let index = self.0.free.lock().expect("no holder of the pool panics").pop()?;
        Some(self.lend(index))
    }

    /// Waits until a block is at home and takes it.
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

    /// Waits at most `patience` for a block to be at home and takes it.
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

    /// Address and length of the whole mapping, for asking the kernel about it.
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

/// How many blocks are in the hands of somebody who may keep them as long as he likes. Whoever gives blocks
/// away counts them here, and stops at a number that the pool was laid out for. All clones are one count.
#[derive(Debug, Clone, Default)]
pub struct Held(Arc<AtomicUsize>);

impl Held {
    /// Blocks that are held now; those that were dropped are at home already.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// One of a count.
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
    /// Dropped after the block has gone home.
    held: Option<Hold>,
}

// SAFETY: a block owns its bytes exclusively; they are plain memory.
unsafe impl Send for Block {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Says how many of its bytes are payload.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity as usize, "length {len} of a block of {}", self.capacity);
        self.len = len as u32;
    }

    /// Offset of its first byte in the stream that it is part of.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Says where in its stream it lies.
    pub fn set_offset(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Whether `pool` is its home.
    pub fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.home, &pool.0)
    }

    /// Counts it in `held` until it is dropped or `unheld`.
    pub fn held(mut self, held: &Held) -> Block {
        held.0.fetch_add(1, Ordering::Relaxed);
        self.held = Some(Hold(Arc::clone(&held.0)));
        self
    }

    /// The block, counted no longer.
    pub fn unheld(mut self) -> Block {
        self.held = None;
        self
    }

    /// Gives its memory back to the kernel: its pool has one block less from now on. No huge page is put together there
    /// again, which would fill it with zeros.
    pub fn retire(mut self) {
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTNEED] {
            // SAFETY: the block owns these bytes, which are plain memory of its pool's mapping, and it is lent to
            // nobody again.
            unsafe { libc::madvise(self.bytes.as_ptr().cast(), self.capacity as usize, advice) };
        }
        self.home.retired.fetch_add(1, Ordering::Relaxed);
        self.is_retired = true;
    }

    /// All its bytes, beyond the length too: zero when never used, else whatever was there.
    pub fn whole(&self) -> &[u8] {
        // SAFETY: the block owns `capacity` bytes at `bytes`, initialised by the kernel.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.capacity as usize) }
    }

    /// All its bytes, to be written.
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
    fn a_retired_block_is_lent_to_nobody_and_its_memory_is_the_kernels() {
        let pool = Pool::new(8192, 2).unwrap();
        let mut blocks = [pool.take(), pool.take()];
        blocks.iter_mut().for_each(|block| block.whole_mut().fill(7));
        let [kept, retired] = blocks;
        let at = retired.address();
        retired.retire();
        assert!(pool.capacity() == 1 && pool.try_take().is_none());
        // SAFETY: the pool lives, so its mapping does, and nobody else has these bytes.
        assert_eq!(unsafe { *at.as_ptr() }, 0, "zeros come again");
        drop(kept);
        assert!(pool.free() == 1 && pool.take().whole()[0] == 7);
    }

    #[test]
    fn blocks_are_aligned_apart_and_come_home() {
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
    fn take_waits_for_a_block_to_come_home() {
        let pool = Pool::new(4096, 1).unwrap();
        let held = pool.take();
        let other = pool.clone();
        let waiting = std::thread::spawn(move || other.take().capacity());
        drop(held);
        assert_eq!(waiting.join().unwrap(), 4096);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn who_holds_blocks_is_counted_until_they_are_dropped_or_given_back() {
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
        assert!(error.starts_with("cannot map 1 PiB of memory: "), "{error}");
    }
}
