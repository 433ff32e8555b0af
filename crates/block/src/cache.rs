//! A cache of the memory of dropped pools, for the next job of the same process.
//!
//! Model: the kernel may reclaim cached memory when it needs some (`MADV_FREE`). Memory that it did not reclaim need
//! not be faulted in again, which takes a third of the time of a small sort on a virtual machine.
//! Invariant: memory is cached only if the program allows it, and only up to the given limit. A pool takes a mapping
//! of its size, or a slightly larger one, which is truncated. If no mapping fits, or if work with another memory
//! limit begins, the whole cache is released. So pools and cache together never exceed the memory limit.

use std::ptr::NonNull;
use std::sync::Mutex;

use rustix::mm::{Advice, madvise, munmap};

static CACHE: Mutex<Cache> = Mutex::new(Cache { most_bytes: 0, memory: u64::MAX, mappings: Vec::new() });

struct Cache {
    most_bytes: usize,
    /// Identifies the memory limit of the work.
    memory: u64,
    mappings: Vec<Mapping>,
}

struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a cached mapping belongs to no pool, and the pool that takes it is its only owner.
unsafe impl Send for Mapping {}

/// Allows this process to cache up to `most_bytes` bytes of dropped pools, for work with the same memory limit.
/// `memory` is any number that identifies the limit.
pub fn begin_work(memory: u64, most_bytes: usize) {
    let mut kept = CACHE.lock().expect("no holder panics");
    if kept.memory != memory {
        kept.give_back();
        (kept.memory, kept.most_bytes) = (memory, most_bytes);
    }
}

/// Caches the mapping of a pool, if there is space.
pub(crate) fn put(base: NonNull<u8>, bytes: usize) -> bool {
    let mut kept = CACHE.lock().expect("no holder panics");
    let fits = kept.mappings.iter().map(|mapping| mapping.bytes).sum::<usize>() + bytes <= kept.most_bytes;
    if fits {
        // SAFETY: the caller owns the mapping, and its contents are not read again.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxFree) };
        kept.mappings.push(Mapping { base, bytes });
    }
    fits
}

/// Takes a mapping of `bytes` bytes, a multiple of the page size. One that is up to a quarter larger is truncated.
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
        // SAFETY: these are the last bytes of a mapping that is not in use.
        let _ = unsafe { munmap(mapping.base.as_ptr().add(bytes).cast(), rest) };
    }
    Some(mapping.base)
}

impl Cache {
    fn give_back(&mut self) {
        for mapping in self.mappings.drain(..) {
            // SAFETY: this is the mapping of a dropped pool, and it is no longer in the list.
            let _ = unsafe { munmap(mapping.base.as_ptr().cast(), mapping.bytes) };
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

    /// A single test, because the cache is global.
    #[test]
    fn memory_is_cached_for_similar_pools_and_released_for_others() {
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
