//! Finds a byte among 64, as a bit mask.

/// Bit i is set where `bytes[i]` is `byte`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn mask_of(bytes: &[u8; 64], byte: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let mut mask = 0;
    for (i, part) in bytes.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: SSE2 is part of x86-64, and the load reads the sixteen bytes of `part`.
        let equal = unsafe {
            _mm_movemask_epi8(_mm_cmpeq_epi8(
                _mm_loadu_si128(part.as_ptr().cast()),
                _mm_set1_epi8(byte as i8),
            ))
        };
        mask |= u64::from(equal as u16) << (16 * i);
    }
    mask
}

/// Bit i is set where `bytes[i]` is `byte`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn mask_of(bytes: &[u8; 64], byte: u8) -> u64 {
    bytes.iter().enumerate().fold(0, |mask, (i, &b)| mask | u64::from(b == byte) << i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_its_byte() {
        for at in 0..64 {
            let mut bytes = [b'a'; 64];
            bytes[at] = 0xff;
            assert_eq!(mask_of(&bytes, 0xff), 1 << at);
            assert_eq!(mask_of(&bytes, b'a'), !(1 << at));
        }
        assert_eq!(mask_of(&[0; 64], 1), 0);
    }
}
