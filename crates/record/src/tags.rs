//! Tags: eight bytes in front of a record that decide its place in a shuffle.
//!
//! Model: a tag is a keyed hash of the record's origin, the byte at which it begins in all inputs together. Records in
//! the order of their tags are a uniform random permutation of them, and which one depends on the seed and on the origins
//! alone: not on memory, threads or pages.
//! Law: the highest bit of each byte of a tag is set, so that no tag has a newline and lines may be tagged as
//! well; 56 bits are random. Of 10^9 records about seven pairs tie, and stay in the order of their origins.
//! Non-goals: secrets. Whoever knows some tags may learn the others.

use thalweg_base::rng::Rng;

use crate::Cut;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 8;
/// Bits of a tag that are random.
const TAG_BITS: u32 = 56;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The tags of one seed.
#[derive(Debug, Clone, Copy)]
pub struct Tags {
    keys: [u64; 2],
}

impl Tags {
    /// The same seed gives the same tags, on every machine.
    pub fn new(seed: u64) -> Tags {
        let mut rng = Rng::new(seed);
        Tags { keys: [rng.next_u64(), rng.next_u64()] }
    }

    /// The tag of the record that begins at byte `origin`. Two keyed rounds: with one, seeds that differ in few bits
    /// would give permutations that are alike.
    #[inline(always)]
    pub fn of(&self, origin: u64) -> [u8; TAG_BYTES] {
        let hash = self.keys.iter().fold(origin, |hash, key| mixed(hash ^ key));
        (hash | HIGH_BITS).to_be_bytes()
    }

    /// Cuts that part all tags into `count + 1` ranges of equal width.
    pub fn cuts(count: usize) -> Vec<Cut> {
        let at = |i: usize| ((i as u128) << TAG_BITS) / (count as u128 + 1);
        let tag = |number: u128| {
            let sevens = (0..TAG_BYTES).rev().map(|byte| (number >> (7 * byte)) as u8 | 0x80);
            sevens.collect()
        };
        (1..=count).map(|i| Cut { normal: tag(at(i)), origin: 0 }).collect()
    }
}

/// A bijection in which every bit of the result depends on every bit of `x` (the finalizer of SplitMix64).
#[inline(always)]
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cuts, Key, KeyPart, Layout};

    #[test]
    fn cuts_part_tags_evenly() {
        const RANGES: usize = 37;
        const RECORDS: u64 = 100_000;
        let key =
            Key::new(Layout::Fixed(12), &[KeyPart { offset: 0, length: 8, descending: false }]).unwrap();
        let cuts = Cuts::new(&key, Tags::cuts(RANGES - 1));
        assert_eq!(cuts.ranges(), RANGES);
        let tags = Tags::new(3);
        let mut counts = [0u64; RANGES];
        for origin in (0..RECORDS).map(|i| 100 * i) {
            let tag = tags.of(origin);
            assert!(!tag.contains(&b'\n'));
            counts[cuts.locate(&key, tag[..].into(), origin)] += 1;
        }
        // Six standard deviations.
        let (mean, off) = (RECORDS as f64 / RANGES as f64, 6.0 * (RECORDS as f64 / RANGES as f64).sqrt());
        assert!(counts.iter().all(|&n| (n as f64 - mean).abs() < off), "{counts:?}");
    }

    /// What a tag is cannot change: the same seed would give another output.
    #[test]
    fn tags_are_what_they_were() {
        let hex = |seed, origin| format!("{:016x}", u64::from_be_bytes(Tags::new(seed).of(origin)));
        assert_eq!(hex(1, 0), "88addca1badc9187");
        assert_eq!(hex(1, 100), "e780fbaaaaa8f29f");
        assert_eq!(hex(2, 100), "95ade3ed98f2b1fd");
    }
}
