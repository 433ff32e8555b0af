//! Prefetching. It is safe for any address, because it affects only speed.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches the cache line of `bytes[at]`. Does nothing if `at` is out of bounds.
#[inline(always)]
pub fn prefetch(bytes: &[u8], at: usize) {
    if at < bytes.len() {
        prefetch_at(bytes[at..].as_ptr());
    }
}

/// Prefetches all cache lines of a value, without what it points to.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    let from: *const u8 = std::ptr::from_ref(value).cast();
    // The last line, too, if the value does not begin at the beginning of one.
    (0..size_of::<T>()).step_by(LINE_BYTES).for_each(|at| prefetch_at(from.wrapping_add(at)));
    prefetch_at(from.wrapping_add(size_of::<T>().saturating_sub(1)));
}

/// Prefetches the cache line at `at`, which need not be mapped.
#[inline(always)]
pub(crate) fn prefetch_at(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch loads nothing into the program, and does nothing for an invalid address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}
