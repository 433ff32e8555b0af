//! Seeded random numbers for sampling, tests and simulated faults. Not for cryptography.

use std::ops::Range;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers, on every machine.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`. The bias is at most bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a bound of 0 leaves nothing to choose");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability 1/n; never if `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// The seeds that a simulation runs: from `THALWEG_SEED` on, as many as `THALWEG_SEEDS` says. If only the first of these
/// variables is set, it is one seed, and if neither is, `count` from 0 on.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let first: Option<u64> = number("THALWEG_SEED");
    let count = number("THALWEG_SEEDS").unwrap_or(if first.is_some() { 1 } else { count });
    first.unwrap_or(0)..first.unwrap_or(0) + count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let take = |seed| {
            let mut r = Rng::new(seed);
            (0..8).map(|_| r.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        // The reference value for seed 0.
        assert_eq!(take(0)[0], 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut r = Rng::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[r.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
