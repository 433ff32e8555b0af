//! A hint to the processor, safe because a prefetch of any address has no effect but speed.

/// Asks for the cache line that holds `bytes[at]`; out of bounds, does nothing.
#[inline(always)]
pub fn prefetch(bytes: &[u8], at: usize) {
    if at < bytes.len() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the address is inside `bytes`; a prefetch reads nothing into the program.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(at).cast());
        }
    }
}
