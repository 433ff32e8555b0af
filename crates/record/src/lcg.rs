//! The random numbers of the Sort Benchmark: a 128-bit linear congruential generator.
//!
//! Invariant: `r(n) = A * r(n-1) + C` mod 2^128 with `r(-1) = 0`. [`at`] computes any of them with at most 128
//! squarings, by composing the step with itself (Brown, "Random Number Generation with Arbitrary Stride", 1994). The
//! period is 2^128, so indices may wrap.
//! Non-goal: good randomness. The values define the contents of benchmark files.

const A: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
const C: u128 = 0x4a69_6d47_7261_7952_4950_2020_2020_2001;

/// `r(n + 1)` from `r(n)`.
#[inline(always)]
pub(crate) fn step(r: u128) -> u128 {
    r.wrapping_mul(A).wrapping_add(C)
}

/// `r(n)`.
pub(crate) fn at(n: u128) -> u128 {
    let (mut a, mut c) = (A, C);
    let mut r = 0u128;
    // n + 1 steps lead from r(-1) = 0 to r(n); 2^128 steps lead back to the start.
    let mut steps = n.wrapping_add(1);
    while steps > 0 {
        if steps & 1 == 1 {
            r = r.wrapping_mul(a).wrapping_add(c);
        }
        c = c.wrapping_mul(a).wrapping_add(c);
        a = a.wrapping_mul(a);
        steps >>= 1;
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_the_references() {
        assert_eq!(at(u128::MAX), 0, "r(-1)");
        assert_eq!(at(0), 0x4a69_6d47_7261_7952_4950_2020_2020_2001);
        assert_eq!(at(1), 0x95e0_e482_62b3_edfe_0447_9485_c755_b646);
        assert_eq!(at(2), 0x4597_9353_dbed_5329_365c_f795_f129_84df);
    }

    #[test]
    fn skipping_equals_stepping() {
        for start in [0, 1, 999_999, u128::from(u64::MAX) - 50, (1 << 127) - 50, u128::MAX - 50] {
            let mut r = at(start);
            for i in 1..=100u128 {
                r = step(r);
                assert_eq!(r, at(start.wrapping_add(i)), "{start} + {i}");
            }
        }
    }
}
