//! A cache of the memory of dropped pools, for the next job of the same process.
//!
//! Model: the kernel may reclaim cached memory when it needs some ([`libc::MADV_FREE`]). Memory that it did not reclaim need
//! not be faulted in again, which takes a third of the time of a small sort on a virtual machine.
//! Invariant: nothing is cached unless the program asked for that, and never more than it allowed. A pool takes a mapping
//! only of exactly its size. When no cached mapping fits, or work with another memory limit begins, the whole cache is
//! released, so pools and cache together never exceed the limit of the work.

use std::ptr::NonNull;
use std::sync::Mutex;

static CACHE: Mutex<Cache> = Mutex::new(Cache { most_bytes: 0, memory: u64::MAX, mappings: Vec::new() });

struct Cache {
    most_bytes: usize,
    /// Whose promise of memory it is.
    memory: u64,
    mappings: Vec<Mapping>,
}

struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping that no pool has any more is plain memory, and whoever takes it has it alone.
unsafe impl Send for Mapping {}

/// Has this process keep up to so many bytes of pools that are gone, for work in the same memory. `memory` is any number
/// that is the same for the same amount.
pub fn begin_work(memory: u64, most_bytes: usize) {
    let mut kept = CACHE.lock().expect("no holder panics");
    if kept.memory != memory {
        kept.give_back();
        (kept.memory, kept.most_bytes) = (memory, most_bytes);
    }
}

/// Keeps a mapping of a pool, if it may.
pub(crate) fn put(base: NonNull<u8>, bytes: usize) -> bool {
    let mut kept = CACHE.lock().expect("no holder panics");
    let fits = kept.mappings.iter().map(|mapping| mapping.bytes).sum::<usize>() + bytes <= kept.most_bytes;
    if fits {
        // SAFETY: the mapping is the caller's to give, and nobody reads what is in it.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_FREE) };
        kept.mappings.push(Mapping { base, bytes });
    }
    fits
}

/// One of so many bytes, a multiple of the system's page; what was larger by up to a quarter has lost its end.
pub(crate) fn take(bytes: usize) -> Option<NonNull<u8>> {
    let mut kept = CACHE.lock().expect("no holder panics");
    let sizes = kept.mappings.iter().map(|mapping| mapping.bytes).enumerate();
    let right = sizes.filter(|(_, size)| (bytes..=bytes + bytes / 4).contains(size));
    let Some((place, _)) = right.min_by_key(|(_, size)| *size) else {
        kept.give_back();
        return None;
    };
    let mapping = kept.mappings.swap_remove(place);
    let rest = mapping.bytes - bytes;
    if rest > 0 {
        // SAFETY: these are the last bytes of a mapping that nobody has.
        unsafe { libc::munmap(mapping.base.as_ptr().add(bytes).cast(), rest) };
    }
    Some(mapping.base)
}

impl Cache {
    fn give_back(&mut self) {
        for mapping in self.mappings.drain(..) {
            // SAFETY: it is what mmap returned to a pool that is gone, and it is in no list any more.
            unsafe { libc::munmap(mapping.base.as_ptr().cast(), mapping.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    const MIB: usize = 1 << 20;

    fn kept_bytes() -> usize {
        CACHE.lock().unwrap().mappings.iter().map(|mapping| mapping.bytes).sum()
    }

    /// One test, since what is kept is the process's.
    #[test]
    fn memory_is_kept_for_pools_like_the_last_and_given_back_for_others() {
        let pool = |mib: usize| Pool::new(MIB, mib).unwrap();
        let touched = |pool: &Pool| {
            let mut block = pool.take();
            block.whole_mut().fill(7);
            block.as_ptr()
        };
        drop(pool(8));
        assert_eq!(kept_bytes(), 0, "nobody asked");
        begin_work(1, 20 * MIB);
        let (first, second) = (pool(8), pool(12));
        let at = touched(&first);
        drop((first, second));
        assert_eq!(kept_bytes(), 20 * MIB);
        let like = pool(7);
        assert!(touched(&like) == at && like.capacity() == 7 && kept_bytes() == 12 * MIB);
        begin_work(1, 20 * MIB);
        assert_eq!(kept_bytes(), 12 * MIB, "it is more of the same");
        begin_work(2, 20 * MIB);
        assert_eq!(kept_bytes(), 0);
        drop(pool(12));
        assert_eq!(kept_bytes(), 12 * MIB);
        drop(pool(1));
        assert_eq!(kept_bytes(), 12 * MIB, "small ones are not kept, and change nothing");
        let other = pool(30);
        assert_eq!(kept_bytes(), 0);
        drop(other);
        assert_eq!(kept_bytes(), 0, "it is more than may be kept");
        drop(like);
        assert_eq!(kept_bytes(), 7 * MIB, "its end is gone");
        begin_work(1, 0);
        drop(pool(8));
        assert_eq!(kept_bytes(), 0);
    }
}
