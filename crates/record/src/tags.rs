//! Tags: eight bytes before each record, which decide its place in a shuffle.
//!
//! Model: a tag is a keyed hash of the record's origin, its offset in all inputs together. Sorting by tags is a
//! uniform random permutation. It depends only on the seed and the origins, not on memory, threads or pages.
//! Invariant: the highest bit of each byte of a tag is set, so a tag contains no newline and lines can be tagged too.
//! 56 bits are random. Among 10^9 records about seven pairs tie, and stay in the order of their origins.
//! Non-goals: secrecy. Some tags may reveal others.

use thalweg_base::rng::Rng;

use crate::layout::Walk;
use crate::{KeyPart, Layout, SplitPoint};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 8;
/// Random bits of a tag.
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

    /// The tag of the record at `origin`. There are two keyed rounds: with one, similar seeds would give similar
    /// permutations.
    #[inline(always)]
    pub fn of(&self, origin: u64) -> [u8; TAG_BYTES] {
        let hash = self.keys.iter().fold(origin, |hash, key| mixed(hash ^ key));
        (hash | HIGH_BITS).to_be_bytes()
    }

    /// Split points that divide all tags into `count + 1` ranges of equal width.
    pub fn split_points(count: usize) -> Vec<SplitPoint> {
        let at = |i: usize| ((i as u128) << TAG_BITS) / (count as u128 + 1);
        let tag = |number: u128| {
            let sevens = (0..TAG_BYTES).rev().map(|byte| (number >> (7 * byte)) as u8 | 0x80);
            sevens.collect()
        };
        (1..=count).map(|i| SplitPoint { normal: tag(at(i)), origin: 0 }).collect()
    }
}

/// Puts tags before records that come in pieces.
#[derive(Debug, Clone)]
pub struct Tagger {
    tags: Tags,
    layout: Layout,
    records: Walk,
    /// The offset of the next byte in all inputs together.
    origin: u64,
}

impl Tagger {
    /// Tags records of this layout.
    pub fn new(tags: Tags, layout: Layout) -> Tagger {
        Tagger { tags, layout, records: Walk::new(layout), origin: 0 }
    }

    /// Sets the offset of the next record.
    pub fn begin(&mut self, origin: u64) {
        (self.records, self.origin) = (Walk::new(self.layout), origin);
    }

    /// Appends the bytes, with a tag before every record that begins in them.
    pub fn push(&mut self, mut bytes: &[u8], into: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.records.done() == 0 {
                into.extend_from_slice(&self.tags.of(self.origin));
            }
            let (piece, rest) = bytes.split_at(self.records.step(bytes));
            into.extend_from_slice(piece);
            self.origin += piece.len() as u64;
            bytes = rest;
        }
    }
}

/// Removes the tags of records that come in pieces.
#[derive(Debug, Clone)]
pub struct Untagger(Walk);

impl Untagger {
    /// `layout` is the layout without tags.
    pub fn new(layout: Layout) -> Untagger {
        Untagger(Walk::new(layout.tagged()))
    }

    /// Appends the bytes without tags.
    pub fn push(&mut self, mut bytes: &[u8], into: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let tag = TAG_BYTES.saturating_sub(self.0.done());
            let (piece, rest) = bytes.split_at(self.0.step(bytes));
            into.extend_from_slice(&piece[tag.min(piece.len())..]);
            bytes = rest;
        }
    }
}

/// The key of tagged records.
pub const TAG_PART: KeyPart = KeyPart { offset: 0, length: TAG_BYTES as u32, descending: false };

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
    use crate::{Key, SplitPoints};

    #[test]
    fn split_points_divide_tags_evenly() {
        const RANGES: usize = 37;
        const RECORDS: u64 = 100_000;
        let key = Key::new(Layout::Fixed(4).tagged(), &[TAG_PART]).unwrap();
        let split_points = SplitPoints::new(&key, Tags::split_points(RANGES - 1));
        assert_eq!(split_points.ranges(), RANGES);
        let tags = Tags::new(3);
        let mut counts = [0u64; RANGES];
        for origin in (0..RECORDS).map(|i| 100 * i) {
            let tag = tags.of(origin);
            assert!(!tag.contains(&b'\n'));
            counts[split_points.locate(&key, tag[..].into(), origin)] += 1;
        }
        // Six standard deviations.
        let (mean, off) = (RECORDS as f64 / RANGES as f64, 6.0 * (RECORDS as f64 / RANGES as f64).sqrt());
        assert!(counts.iter().all(|&n| (n as f64 - mean).abs() < off), "{counts:?}");
    }

    #[test]
    fn records_in_pieces_are_tagged_and_untagged() {
        let tags = Tags::new(7);
        for (layout, bytes) in [
            (Layout::Fixed(3), &b"abcdefghi"[..]),
            (Layout::Lines, b"a\n\nlong one\nopen"),
            (Layout::Prefixed, b"\x01\0\0\0a\0\0\0\0\x0e\0\0\0longer and lon"),
        ] {
            let starts: &[usize] = match layout {
                Layout::Lines => &[0, 2, 3, 12],
                Layout::Prefixed => &[0, 5, 9],
                _ => &[0, 3, 6],
            };
            let mut whole = Vec::new();
            for (at, byte) in bytes.iter().enumerate() {
                if starts.contains(&at) {
                    whole.extend_from_slice(&tags.of(100 + at as u64));
                }
                whole.push(*byte);
            }
            for size in 1..=bytes.len() {
                let (mut tagger, mut out) = (Tagger::new(tags, layout), Vec::new());
                tagger.begin(100);
                bytes.chunks(size).for_each(|piece| tagger.push(piece, &mut out));
                assert_eq!(out, whole, "{layout:?} in pieces of {size}");
                let (mut untagger, mut back) = (Untagger::new(layout), Vec::new());
                out.chunks(size).for_each(|piece| untagger.push(piece, &mut back));
                assert_eq!(back, bytes, "{layout:?} in pieces of {size}");
            }
        }
    }

    /// Tags must never change: the same seed would give another output.
    #[test]
    fn tags_never_change() {
        let hex = |seed, origin| format!("{:016x}", u64::from_be_bytes(Tags::new(seed).of(origin)));
        assert_eq!(hex(1, 0), "88addca1badc9187");
        assert_eq!(hex(1, 100), "e780fbaaaaa8f29f");
        assert_eq!(hex(2, 100), "95ade3ed98f2b1fd");
    }
}
