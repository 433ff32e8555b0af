//! A set of regions of a strip, 1 MiB each, in a bounded bitmap.
//!
//! Model: region `n` has bit `n % BITS`. In strips of up to [`BITS`] regions each has a bit of its own; in longer
//! strips several share one.
//! Invariant: a region that was added is in the set. Another region may be too, if it shares a bit with an added one,
//! or if the bytes read from a disk were not a set.
//! Non-goals: the meaning of a region in the set; see strip.rs.

use std::ops::Range;

/// The size of a region.
pub(crate) const REGION: u64 = 1 << 20;
/// The size of a set in a file: the bits, and their CRC-32C.
pub(crate) const REGIONS_BYTES: usize = 896;
const WORDS: usize = (REGIONS_BYTES - 8) / 8;
const BITS: u64 = 64 * WORDS as u64;

/// The most ranges that are returned; if there are more, the last one extends to the end.
const RANGES_MAX: usize = 4096;

/// A set of regions of a strip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Regions([u64; WORDS]);

/// The numbers of the regions that these bytes touch. `BITS` consecutive numbers stand for all regions.
fn touched(bytes: &Range<u64>) -> Range<u64> {
    let first = bytes.start / REGION;
    let end = if bytes.is_empty() { first } else { bytes.end.div_ceil(REGION) };
    first..end.min(first.saturating_add(BITS))
}

impl Regions {
    /// The empty set.
    pub(crate) const NONE: Regions = Regions([0; WORDS]);
    /// The set of all regions.
    pub(crate) const ALL: Regions = Regions([u64::MAX; WORDS]);

    fn has(&self, region: u64) -> bool {
        let bit = region % BITS;
        self.0[(bit / 64) as usize] & 1 << (bit % 64) != 0
    }

    /// Whether all regions that these bytes touch are in the set.
    pub(crate) fn cover(&self, bytes: &Range<u64>) -> bool {
        touched(bytes).all(|region| self.has(region))
    }

    /// Adds the regions that these bytes touch.
    pub(crate) fn add(&mut self, bytes: &Range<u64>) {
        for bit in touched(bytes).map(|region| region % BITS) {
            self.0[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }

    /// The ranges of the regions in the set, for a strip of `len` bytes.
    pub(crate) fn ranges(&self, len: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        match *self {
            Regions::NONE => return ranges,
            Regions::ALL => return (len > 0).then_some(0..len).into_iter().collect(),
            _ => {}
        }
        for region in (0..len.div_ceil(REGION)).filter(|region| self.has(*region)) {
            let (start, end) = (region * REGION, len.min((region + 1) * REGION));
            let full = ranges.len() == RANGES_MAX;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                Some(last) if full => {
                    last.end = len;
                    break;
                }
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    pub(crate) fn encode(&self) -> [u8; REGIONS_BYTES] {
        let mut bytes = [0; REGIONS_BYTES];
        for (into, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[..8 * WORDS]);
        bytes[8 * WORDS..8 * WORDS + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a set. If the bytes are damaged, or were written only in part, returns all regions.
    pub(crate) fn decode(bytes: &[u8; REGIONS_BYTES]) -> Regions {
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(from.try_into().expect("8 bytes"));
        }
        let read = Regions(words);
        if read.encode() == *bytes { read } else { Regions::ALL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_in_the_set_and_little_else() {
        let mut regions = Regions::NONE;
        let mib = |from: u64, to: u64| from << 20..to << 20;
        assert!(regions.cover(&(5..5)) && !regions.cover(&(5..6)) && regions.ranges(1 << 40).is_empty());
        regions.add(&(5..6));
        regions.add(&(mib(3, 5).start + 1..mib(3, 5).end + 1));
        assert!(regions.cover(&mib(0, 1)) && regions.cover(&mib(3, 6)) && !regions.cover(&mib(0, 2)));
        assert_eq!(regions.ranges(mib(0, 5).end + 7), [mib(0, 1), mib(3, 5).start..mib(0, 5).end + 7]);
        assert_eq!(Regions::decode(&regions.encode()), regions);
        // In a strip with more regions than bits, regions that share a bit cannot be told apart.
        assert_eq!(regions.ranges((BITS + 1) << 20), [mib(0, 1), mib(3, 6), mib(BITS, BITS + 1)]);
        // However long the strip is, the ranges are few and found at once.
        let far = 1 << 62;
        let ranges = regions.ranges(far);
        assert_eq!((ranges.len(), ranges.last().map(|range| range.end)), (RANGES_MAX, Some(far)));
        regions.add(&(0..u64::MAX));
        assert_eq!(regions, Regions::ALL);
        assert_eq!(regions.ranges(far).iter().map(|range| range.end).collect::<Vec<_>>(), [far]);
    }

    #[test]
    fn a_set_that_was_not_written_whole_stands_for_all() {
        let mut bytes = Regions::NONE.encode();
        bytes[100] ^= 1;
        assert_eq!(Regions::decode(&bytes), Regions::ALL);
        assert_eq!(Regions::decode(&[0; REGIONS_BYTES]), Regions::ALL);
    }
}
