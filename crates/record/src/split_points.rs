//! Split points divide a stream, ordered by (key, origin), into ranges of about equal size.
//!
//! Model: split points are chosen from a sorted sample. `locate` returns how many split points are less than a
//! record, which is the index of its range. Ranges are (low, high]: a record equal to a split point is in the range
//! to its left. A split point includes an origin, so even a single key that fills the whole input is divided evenly,
//! and stays in input order.
//!
//! A record is located by the head of its key after the common prefix of all split points. A table is indexed by heads
//! between the first and the last split point (for text, by the bits that vary), and leaves at most a few candidates.
//! More of the key is compared only if a head equals that of a split point.
//!
//! Non-goals: sampling; moving records.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::key::{HEAD_BYTES, common_prefix};
use crate::{InPlace, Key, VaryingBits};

/// The maximum bytes of a key in a split point. Equal keys of at most this length are divided by origin. Longer keys
/// that agree in these bytes are not divided, unless the split points omit a common prefix (`behind`).
pub const SPLIT_KEY_BYTES_MAX: usize = 64 << 10;

/// A table has at most 2^12 entries, 16 KiB, and every range in memory has one.
const TABLE_BITS_MAX: u32 = 12;
/// The maximum fraction of records that fall into a step of the table with a split point, and need a search.
const CROWDED_SHARE: f64 = 1.0 / 12.0;

/// A key of a sample, or a split point.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitPoint {
    /// The normal form of the key, or its start.
    pub normal: Vec<u8>,
    /// The offset of the record in the stream.
    pub origin: u64,
}

/// Sorted split points that can locate records.
#[derive(Debug, Clone)]
pub struct SplitPoints {
    split_points: Vec<SplitPoint>,
    /// A prefix of all keys that the split points omit.
    base: Arc<[u8]>,
    /// The common prefix of the split points.
    shared: Vec<u8>,
    /// The length of both.
    skip: usize,
    /// For each split point, the head of its key after the common prefix.
    heads: Vec<u64>,
    /// The first and the last head.
    first: u64,
    last: u64,
    /// The bits of heads to use, if heads are text.
    extract: Option<VaryingBits>,
    /// Entry i is the index of the first split point whose (extracted) head is at least that of the first split point
    /// plus i steps of 2^shift.
    table: Vec<u32>,
    table_first: u64,
    table_shift: u32,
    /// Whether every key ends within the head, so that equal heads mean equal keys.
    exact: bool,
}

/// Chooses `count` split points that divide a sample into `count + 1` ranges of equal size. Sorts the sample. A small
/// sample yields fewer; none is repeated.
pub fn choose_split_points(sample: &mut [SplitPoint], count: usize) -> Vec<SplitPoint> {
    let depth = sample.len();
    split_points_at(sample, (1..=count).map(|i| i * depth / (count + 1)))
}

/// Chooses split points that divide a sample in the ratio of these weights. Sorts the sample. A small sample yields
/// fewer; none is repeated.
pub fn choose_weighted_split_points(sample: &mut [SplitPoint], weights: &[u64]) -> Vec<SplitPoint> {
    let all = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>().max(1);
    let (depth, mut before) = (sample.len() as u128, 0);
    let places = weights.split_last().map_or(&[][..], |(_, but_last)| but_last).iter().map(|weight| {
        before += u128::from(*weight);
        (before * depth / all) as usize
    });
    split_points_at(sample, places)
}

/// Chooses `count` split points that divide a sample into `count + 1` ranges with equal bytes; each key stands for
/// some bytes. Sorts the sample. A small sample yields fewer; none is repeated.
pub fn choose_split_points_by_bytes(sample: &mut [(SplitPoint, u64)], count: usize) -> Vec<SplitPoint> {
    sample.sort_unstable();
    let ends: Vec<u128> = sample
        .iter()
        .scan(0, |end, (_, bytes)| {
            *end += u128::from(*bytes);
            Some(*end)
        })
        .collect();
    let all = ends.last().copied().unwrap_or(0);
    let place = |i: usize| ends.partition_point(|end| *end <= i as u128 * all / (count as u128 + 1));
    split_points_of_sorted(|at| sample.get(at).map(|(split_point, _)| split_point), (1..=count).map(place))
}

/// Thins out a sample evenly, to about `bytes_max` bytes.
pub fn thin_sample(sample: &mut Vec<SplitPoint>, bytes_max: u64) {
    let bytes: usize =
        sample.iter().map(|split_point| split_point.normal.capacity() + size_of::<SplitPoint>()).sum();
    keep_every(sample, (bytes as u64).div_ceil(bytes_max), 0);
    sample.shrink_to_fit();
}

/// Keeps every `of`-th key of a sample, starting with number `first`.
pub fn keep_every(sample: &mut Vec<SplitPoint>, of: u64, first: u64) {
    let (of, mut at) = (of.max(1), 0);
    sample.retain(|_| {
        at += 1;
        (at - 1) % of == first % of
    });
}

/// The split points at these positions of a sample. Sorts the sample, with an algorithm that is fast if it consists
/// of a few sorted runs.
fn split_points_at(sample: &mut [SplitPoint], places: impl Iterator<Item = usize>) -> Vec<SplitPoint> {
    sample.sort();
    split_points_of_sorted(|at| sample.get(at), places)
}

/// The split points at these positions of a sorted sample, up to its end.
fn split_points_of_sorted<'s>(
    sample: impl Fn(usize) -> Option<&'s SplitPoint>,
    places: impl Iterator<Item = usize>,
) -> Vec<SplitPoint> {
    let mut chosen: Vec<SplitPoint> = Vec::with_capacity(places.size_hint().0);
    for at in places {
        let Some(own) = sample(at) else { break };
        let split_point = shortened(at.checked_sub(1).and_then(&sample), own);
        if chosen.last().is_none_or(|last| *last < split_point) {
            chosen.push(split_point);
        }
    }
    chosen
}

/// The split point at `at`, truncated after the byte that distinguishes it from the sampled key `before`. Keys that
/// begin with a shortened split point are to its right, whatever their origin.
fn shortened(before: Option<&SplitPoint>, at: &SplitPoint) -> SplitPoint {
    let agree = before.map_or(at.normal.len(), |b| common_prefix(&b.normal, &at.normal));
    let keep = if agree < at.normal.len() { agree + 1 } else { at.normal.len() };
    SplitPoint { normal: at.normal[..keep].to_vec(), origin: at.origin }
}

impl SplitPoints {
    /// Prepares `split_points`, which must be strictly increasing, for this key.
    pub fn new(key: &Key, split_points: Vec<SplitPoint>) -> SplitPoints {
        SplitPoints::behind(key, Arc::default(), split_points)
    }

    /// Prepares split points that omit `base`, a prefix of all their keys.
    pub fn behind(key: &Key, base: Arc<[u8]>, split_points: Vec<SplitPoint>) -> SplitPoints {
        assert!(split_points.windows(2).all(|p| p[0] < p[1]), "cuts must increase");
        let shared = match (split_points.first(), split_points.last()) {
            // For a single key, the head should include its end: few other records share all of it.
            (Some(a), Some(b)) if a.normal == b.normal => a.normal.len().saturating_sub(HEAD_BYTES),
            (Some(a), Some(b)) => common_prefix(&a.normal, &b.normal),
            _ => 0,
        };
        let shared =
            split_points.first().map_or(Vec::new(), |split_point| split_point.normal[..shared].to_vec());
        let skip = base.len() + shared.len();
        let heads: Vec<u64> =
            split_points.iter().map(|c| InPlace::from(&c.normal[shared.len()..]).head()).collect();
        let end = |head: Option<&u64>| head.copied().unwrap_or(0);
        let (first, last) = (end(heads.first()), end(heads.last()));
        let extract = VaryingBits::of(heads.iter().copied());
        let even: Vec<u64> = heads.iter().map(|&head| squeezed(extract.as_ref(), head)).collect();
        let table_first = end(even.first());
        let span = end(even.last()) - table_first;
        let table_shift = shift_for(&even, span);
        let before = |step: u64| even.partition_point(|head| ((head - table_first) >> table_shift) < step);
        let table = (0..=(span >> table_shift) + 1).map(|step| before(step) as u32).collect();
        let exact = key.fixed_bytes().is_some_and(|n| n <= skip + HEAD_BYTES);
        SplitPoints {
            exact,
            split_points,
            base,
            shared,
            skip,
            heads,
            first,
            last,
            extract,
            table,
            table_first,
            table_shift,
        }
    }

    /// The number of ranges.
    pub fn ranges(&self) -> usize {
        self.split_points.len() + 1
    }

    /// The split points in order.
    pub fn split_points(&self) -> &[SplitPoint] {
        &self.split_points
    }

    /// The length of the common prefix of all keys in range `index`.
    pub fn shared_in(&self, index: usize) -> usize {
        if index == 0 || index >= self.split_points.len() {
            return 0;
        }
        self.base.len()
            + common_prefix(&self.split_points[index - 1].normal, &self.split_points[index].normal)
    }

    /// The index of the range of a record with this origin.
    #[inline(always)]
    pub fn locate(&self, key: &Key, record: InPlace<'_>, origin: u64) -> usize {
        if self.skip > 0 && !self.begin(key, record) {
            return self.outside(key, record.alone());
        }
        let head = key.head(record, self.skip);
        if head < self.first {
            return 0;
        }
        if head > self.last {
            return self.heads.len();
        }
        if self.extract.as_ref().is_some_and(|extract| !extract.fits(head)) {
            return self.locate_between(key, record, origin, 0, self.heads.len());
        }
        let even = squeezed(self.extract.as_ref(), head);
        let step = ((even - self.table_first) >> self.table_shift) as usize;
        let (low, high) = (self.table[step] as usize, self.table[step + 1] as usize);
        if low == high { low } else { self.locate_between(key, record, origin, low, high) }
    }

    /// The last origin with which a record with this key is still in range `index`, in which another with this key is.
    pub fn last_origin(&self, key: &Key, record: &[u8], index: usize) -> u64 {
        let is_its_key = |bound: &&SplitPoint| {
            key.compare_start(record, 0, &self.base).is_eq()
                && key.compare_with_normal(record, self.base.len(), &bound.normal).is_eq()
        };
        self.split_points.get(index).filter(is_its_key).map_or(u64::MAX, |bound| bound.origin)
    }

    /// Searches the split points from `low` to `high`.
    #[inline(never)]
    fn locate_between(&self, key: &Key, record: InPlace<'_>, origin: u64, low: usize, high: usize) -> usize {
        let head = key.head(record, self.skip);
        let low = low + self.heads[low..high].partition_point(|h| *h < head);
        if low < high && self.heads[low] == head {
            return self.locate_among_equals(key, record, origin, low, head);
        }
        low
    }

    /// Whether a record begins with the common prefix of the split points.
    #[inline(always)]
    fn begin(&self, key: &Key, record: InPlace<'_>) -> bool {
        (self.base.is_empty() || key.begins_with(record, 0, &self.base))
            && key.begins_with(record, self.base.len(), &self.shared)
    }

    /// The range of a record without this prefix: the first or the last one.
    #[inline(never)]
    fn outside(&self, key: &Key, record: &[u8]) -> usize {
        let based = key.compare_start(record, 0, &self.base);
        let order = based.then_with(|| key.compare_start(record, self.base.len(), &self.shared));
        if order.is_lt() { 0 } else { self.split_points.len() }
    }

    /// Searches the split points whose head equals the record's, starting at index `low`.
    #[inline(never)]
    fn locate_among_equals(
        &self,
        key: &Key,
        record: InPlace<'_>,
        origin: u64,
        low: usize,
        head: u64,
    ) -> usize {
        let group = low + self.heads[low..].partition_point(|h| *h == head);
        let is_less = |split_point: &SplitPoint| {
            let order = if self.exact {
                // A shortened split point looks like a key that continues with zeros, but is less.
                (self.base.len() + split_point.normal.len()).cmp(&key.fixed_bytes().unwrap_or(0))
            } else {
                key.compare_with_normal(record.alone(), self.base.len(), &split_point.normal).reverse()
            };
            order == Ordering::Less || (order == Ordering::Equal && split_point.origin < origin)
        };
        low + self.split_points[low..group].partition_point(is_less)
    }
}

/// A head as it is used in the table.
#[inline(always)]
fn squeezed(extract: Option<&VaryingBits>, head: u64) -> u64 {
    extract.map_or(head, |extract| extract.extract(head))
}

/// The step of a table over `span`, as a power of two, such that only few records fall into a step with a split point.
/// Any two neighbouring split points have equally many records between them, and the step contains the fraction
/// step / gap of these. Text uses only a small part of the numbers, so its steps must be finer.
fn shift_for(heads: &[u64], span: u64) -> u32 {
    let span_bits = u64::BITS - span.leading_zeros();
    let crowded = |shift: u32| -> f64 {
        let share = |pair: &[u64]| ((1u64 << shift) as f64 / (pair[1] - pair[0]).max(1) as f64).min(1.0);
        heads.windows(2).map(share).sum()
    };
    let coarsest = span_bits.saturating_sub(usize::BITS - heads.len().leading_zeros() + 3);
    let finest = span_bits.saturating_sub(TABLE_BITS_MAX);
    let few = heads.len() as f64 * CROWDED_SHARE;
    (finest..=coarsest).rev().find(|&shift| crowded(shift) <= few).unwrap_or(finest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyPart, Layout};
    use proptest::prelude::*;

    /// A reference implementation: counts the split points that are less than (key, origin).
    fn truth(key: &Key, split_points: &[SplitPoint], record: &[u8], origin: u64) -> usize {
        let own = SplitPoint { normal: key.normal(record, usize::MAX), origin };
        split_points.iter().filter(|c| **c < own).count()
    }

    proptest! {
        #[test]
        fn locating_a_record_agrees_with_counting_split_points(
            lines in any::<bool>(),
            based in any::<bool>(),
            prefix in "[ab]{0,14}",
            samples in prop::collection::vec(("[ab]{0,16}", 0u64..50), 1..60),
            probes in prop::collection::vec(("[abc]{0,30}", 0u64..50, any::<bool>()), 1..30),
            count in 0usize..20,
            parts in prop::collection::vec((0u32..4, 1u32..12, any::<bool>()), 0..3),
        ) {
            let parts: Vec<KeyPart> = parts.into_iter()
                .map(|(offset, length, descending)| KeyPart { offset, length, descending }).collect();
            let layout = if lines { Layout::Lines } else { Layout::Fixed(30) };
            let key = Key::new(layout, &parts).unwrap();
            let shape = |text: String| {
                let mut r = text.into_bytes();
                if !lines { r.resize(30, b'a'); }
                r
            };
            let mut sample: Vec<SplitPoint> = samples.into_iter().map(|(t, origin)| SplitPoint {
                normal: key.normal(&shape(format!("{prefix}{t}")), usize::MAX), origin,
            }).collect();
            let chosen = choose_split_points(&mut sample, count);
            let shared = chosen.iter().map(|c| common_prefix(&c.normal, &chosen[0].normal)).min().unwrap_or(0);
            let base = chosen.first().map_or(&[][..], |c| &c.normal[..shared * usize::from(based)]);
            let short = |c: &SplitPoint| SplitPoint { normal: c.normal[base.len()..].to_vec(), origin: c.origin };
            let split_points = SplitPoints::behind(&key, base.into(), chosen.iter().map(short).collect());
            for (t, origin, shares) in probes {
                let record = shape(if shares { format!("{prefix}{t}") } else { t });
                let at = split_points.locate(&key, record[..].into(), origin);
                prop_assert_eq!(at, truth(&key, &chosen, &record, origin));
                let last = split_points.last_origin(&key, &record, at);
                for later in origin..origin + 60 {
                    prop_assert_eq!(truth(&key, &chosen, &record, later) == at, later <= last);
                }
                let shared = split_points.shared_in(at);
                if at > 0 {
                    let normal = key.normal(&record, usize::MAX);
                    prop_assert!(normal.len() >= shared);
                    prop_assert_eq!(&normal[..shared], &chosen[at - 1].normal[..shared]);
                }
            }
        }
    }

    /// A split point is truncated after the byte that differs from its neighbour, and a head is padded with zeros. If
    /// keys end within the head, a key of `b` and zeros was mistaken for the split point `b`, and went left or right by
    /// its origin. Keys that begin with a shortened split point are to its right. Found by the fuzzer.
    #[test]
    fn zeros_after_a_shortened_split_point_count() {
        let key = Key::new(Layout::Fixed(4), &[]).unwrap();
        let split_points = SplitPoints::new(&key, vec![SplitPoint { normal: b"b".to_vec(), origin: 8 }]);
        for origin in [0, 8, 9] {
            assert_eq!(split_points.locate(&key, b"b\0\0\0"[..].into(), origin), 1, "{origin}");
            assert_eq!(split_points.locate(&key, b"a\xff\xff\xff"[..].into(), origin), 0, "{origin}");
        }
    }

    #[test]
    fn ranges_are_proportional_to_weights() {
        let key = Key::new(Layout::Fixed(4), &[]).unwrap();
        let sample = || {
            (0..1000u32).map(|i| SplitPoint { normal: (i * 7919 % 1000).to_be_bytes().to_vec(), origin: 0 })
        };
        let depths = |weights: &[u64]| {
            let mut chosen: Vec<SplitPoint> = sample().collect();
            let split_points = SplitPoints::new(&key, choose_weighted_split_points(&mut chosen, weights));
            let mut depths = vec![0; weights.len()];
            sample().for_each(|split_point| {
                depths[split_points.locate(&key, split_point.normal[..].into(), 0)] += 1
            });
            depths
        };
        for weights in [&[1, 2, 7][..], &[7, 2, 1], &[1, 1], &[5], &[u64::MAX, u64::MAX, 1]] {
            let all: f64 = weights.iter().map(|weight| *weight as f64).sum();
            for (depth, weight) in depths(weights).into_iter().zip(weights) {
                let due = 1000.0 * *weight as f64 / all;
                assert!((f64::from(depth) - due).abs() <= 2.0, "{weights:?}: {:?}", depths(weights));
            }
        }
        let (mut even, mut weighted): (Vec<SplitPoint>, Vec<SplitPoint>) =
            (sample().collect(), sample().collect());
        assert_eq!(choose_split_points(&mut even, 6), choose_weighted_split_points(&mut weighted, &[3; 7]));
        assert!(choose_weighted_split_points(&mut [], &[1, 2]).is_empty());
    }

    #[test]
    fn a_thinned_sample_covers_everything() {
        let all = |n: u64| {
            (0..n).map(|i| SplitPoint { normal: vec![7; 68], origin: i }).collect::<Vec<SplitPoint>>()
        };
        for (bytes_max, kept) in [(u64::MAX, 1000), (100_000, 1000), (99_999, 500), (10_001, 100), (1, 1)] {
            let mut sample = all(1000);
            thin_sample(&mut sample, bytes_max);
            let step = 1000 / kept as u64;
            assert_eq!(sample.len(), kept, "{bytes_max}");
            assert!(sample.iter().zip(0..).all(|(split_point, i)| split_point.origin == i * step));
        }
        let mut none = all(0);
        thin_sample(&mut none, 1);
        assert!(none.is_empty());
    }

    /// A few records of 1,000 bytes among many of one byte: split points follow the bytes.
    #[test]
    fn long_records_count_as_many_bytes() {
        let split_point = |i: u32| SplitPoint { normal: i.to_be_bytes().to_vec(), origin: 0 };
        let mut sample: Vec<(SplitPoint, u64)> =
            (0..2000).map(|i| (split_point(i * 7919 % 2000), 0)).collect();
        sample.iter_mut().for_each(|(split_point, bytes)| {
            *bytes = if split_point.normal[2..] < [7, 128][..] { 1 } else { 1000 }
        });
        let split_points = choose_split_points_by_bytes(&mut sample, 9);
        let bytes_before = |split_point: &SplitPoint| {
            sample.iter().filter(|(own, _)| own < split_point).map(|(_, b)| b).sum::<u64>() as f64
        };
        let all: f64 = sample.iter().map(|(_, bytes)| *bytes as f64).sum();
        assert_eq!(split_points.len(), 9);
        for (i, split_point) in split_points.iter().enumerate() {
            assert!(
                (bytes_before(split_point) - all * (i + 1) as f64 / 10.0).abs() <= 1000.0,
                "{split_points:?}"
            );
        }
        assert!(choose_split_points_by_bytes(&mut [], 3).is_empty());
    }

    #[test]
    fn equal_keys_are_divided_evenly_by_origin() {
        let key = Key::new(Layout::Fixed(4), &[]).unwrap();
        let mut sample: Vec<SplitPoint> =
            (0..1000).map(|i| SplitPoint { normal: b"same".to_vec(), origin: i * 4 }).collect();
        let split_points = SplitPoints::new(&key, choose_split_points(&mut sample, 9));
        let mut depth = [0; 10];
        for i in 0..1000 {
            depth[split_points.locate(&key, b"same"[..].into(), i * 4)] += 1;
        }
        assert!(depth.iter().all(|d| (95..=105).contains(d)), "{depth:?}");
    }
}
