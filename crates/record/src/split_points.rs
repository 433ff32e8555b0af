//! Split points: points in the order of (key, origin) that part a stream into ranges of about equal depth.
//!
//! Model: a sorted sample gives the cuts; `locate` tells how many cuts are less than a record, which is the
//! index of its range. Ranges are (low, high]: a record equal to a cut goes left. Because a cut has
//! an origin, even one key that fills the whole input is parted evenly, and stays in input order.
//!
//! A record is located by the head of its key behind the prefix that all cuts share: a table over the
//! heads between the first cut and the last, squeezed where they are text, narrows the search to no cut at all, or a few.
//! Only where a head equals a cut's is more of the key looked at.
//!
//! Non-goals: how the sample was taken; moving records.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::key::{HEAD_BYTES, common_prefix};
use crate::{InPlace, Key, VaryingBits};

/// The most bytes of a key that a cut keeps. Keys that agree that far are parted by origin alone
/// where they equal the kept bytes, and not parted where they go on: cuts behind what they agree in do that.
pub const SPLIT_KEY_BYTES_MAX: usize = 64 << 10;

/// Tables have at most 2^12 steps, 16 KiB: there is one for each range that is in memory.
const TABLE_BITS_MAX: u32 = 12;
/// The share of records for which the table need not suffice.
const CROWDED_SHARE: f64 = 1.0 / 12.0;

/// One key of a sample, or one cut.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitPoint {
    /// The normal form of the key, or its first bytes.
    pub normal: Vec<u8>,
    /// Where the record began in the stream.
    pub origin: u64,
}

/// Split points in order, ready to locate records.
#[derive(Debug, Clone)]
pub struct SplitPoints {
    split_points: Vec<SplitPoint>,
    /// Bytes of every cut's key before those that the cut keeps.
    base: Arc<[u8]>,
    /// Bytes that all keep first.
    shared: Vec<u8>,
    /// Bytes of both.
    skip: usize,
    /// The head of each cut's key behind the shared bytes.
    heads: Vec<u64>,
    /// The first and the last of them.
    first: u64,
    last: u64,
    /// What brings them together, if they lie in clumps.
    extract: Option<VaryingBits>,
    /// Entry i is the first cut whose head, squeezed, is at least the first cut's plus i steps of 2^shift.
    table: Vec<u32>,
    table_first: u64,
    table_shift: u32,
    /// Every key ends within the head, so that equal heads are equal keys.
    exact: bool,
}

/// Chooses the `count` cuts that part a sample into `count + 1` stretches of equal depth. Sorts the
/// sample. Fewer come back where the sample is small; none repeats.
pub fn choose_split_points(sample: &mut [SplitPoint], count: usize) -> Vec<SplitPoint> {
    let depth = sample.len();
    split_points_at(sample, (1..=count).map(|i| i * depth / (count + 1)))
}

/// Chooses the cuts that part a sample into stretches whose depths are to each other as these weights. Sorts the
/// sample. Fewer come back where it is small; none repeats.
pub fn choose_weighted_split_points(sample: &mut [SplitPoint], weights: &[u64]) -> Vec<SplitPoint> {
    let all = weights.iter().map(|weight| u128::from(*weight)).sum::<u128>().max(1);
    let (depth, mut before) = (sample.len() as u128, 0);
    let places = weights.split_last().map_or(&[][..], |(_, but_last)| but_last).iter().map(|weight| {
        before += u128::from(*weight);
        (before * depth / all) as usize
    });
    split_points_at(sample, places)
}

/// Chooses the `count` cuts that part a sample, of which each key stands for so many bytes, into `count + 1` stretches
/// of equally many. Sorts the sample. Fewer come back where it is small; none repeats.
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

/// Keeps so few of a sample, at equal distances, that they take no more than about so many bytes.
pub fn thin_sample(sample: &mut Vec<SplitPoint>, bytes_max: u64) {
    let bytes: usize =
        sample.iter().map(|split_point| split_point.normal.capacity() + size_of::<SplitPoint>()).sum();
    keep_every(sample, (bytes as u64).div_ceil(bytes_max), 0);
    sample.shrink_to_fit();
}

/// Keeps one of so many keys of a sample, from the one at `first` on.
pub fn keep_every(sample: &mut Vec<SplitPoint>, of: u64, first: u64) {
    let (of, mut at) = (of.max(1), 0);
    sample.retain(|_| {
        at += 1;
        (at - 1) % of == first % of
    });
}

/// The cuts at these places of a sample, which is sorted first: by a sort that is quick where it is some that are in order,
/// one behind the other.
fn split_points_at(sample: &mut [SplitPoint], places: impl Iterator<Item = usize>) -> Vec<SplitPoint> {
    sample.sort();
    split_points_of_sorted(|at| sample.get(at), places)
}

/// The cuts at these places of a sorted sample, up to the first that it has not.
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

/// A cut at `at`, as short as tells it from the sampled key `before`. Keys that begin with a shortened
/// cut's bytes lie to its right, whatever their origin.
fn shortened(before: Option<&SplitPoint>, at: &SplitPoint) -> SplitPoint {
    let agree = before.map_or(at.normal.len(), |b| common_prefix(&b.normal, &at.normal));
    let keep = if agree < at.normal.len() { agree + 1 } else { at.normal.len() };
    SplitPoint { normal: at.normal[..keep].to_vec(), origin: at.origin }
}

impl SplitPoints {
    /// Prepares `cuts`, which must be strictly increasing, for keys of `key`.
    pub fn new(key: &Key, split_points: Vec<SplitPoint>) -> SplitPoints {
        SplitPoints::behind(key, Arc::default(), split_points)
    }

    /// Prepares `cuts` whose keys all begin with `base` and keep only what follows it.
    pub fn behind(key: &Key, base: Arc<[u8]>, split_points: Vec<SplitPoint>) -> SplitPoints {
        assert!(split_points.windows(2).all(|p| p[0] < p[1]), "cuts must increase");
        let shared = match (split_points.first(), split_points.last()) {
            // Of one key the end is to be in the head: few records begin with all of it.
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

    /// How many ranges the cuts part the stream into.
    pub fn ranges(&self) -> usize {
        self.split_points.len() + 1
    }

    /// The cuts in order.
    pub fn split_points(&self) -> &[SplitPoint] {
        &self.split_points
    }

    /// How many bytes all keys of range `index` begin with, and so need not be compared.
    pub fn shared_in(&self, index: usize) -> usize {
        if index == 0 || index >= self.split_points.len() {
            return 0;
        }
        self.base.len()
            + common_prefix(&self.split_points[index - 1].normal, &self.split_points[index].normal)
    }

    /// The index of the range of a record that began at `origin`.
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

    /// Among the cuts from `low` to `high`.
    #[inline(never)]
    fn locate_between(&self, key: &Key, record: InPlace<'_>, origin: u64, low: usize, high: usize) -> usize {
        let head = key.head(record, self.skip);
        let low = low + self.heads[low..high].partition_point(|h| *h < head);
        if low < high && self.heads[low] == head {
            return self.locate_among_equals(key, record, origin, low, head);
        }
        low
    }

    /// Whether a record begins with the bytes that all cuts begin with.
    #[inline(always)]
    fn begin(&self, key: &Key, record: InPlace<'_>) -> bool {
        (self.base.is_empty() || key.begins_with(record, 0, &self.base))
            && key.begins_with(record, self.base.len(), &self.shared)
    }

    /// Where a record belongs that does not.
    #[inline(never)]
    fn outside(&self, key: &Key, record: &[u8]) -> usize {
        let based = key.compare_start(record, 0, &self.base);
        let order = based.then_with(|| key.compare_start(record, self.base.len(), &self.shared));
        if order.is_lt() { 0 } else { self.split_points.len() }
    }

    /// Among the cuts from `low` on whose window is the record's.
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
                // A shortened cut looks like a key that goes on with zeros, and is less.
                (self.base.len() + split_point.normal.len()).cmp(&key.fixed_bytes().unwrap_or(0))
            } else {
                key.compare_with_normal(record.alone(), self.base.len(), &split_point.normal).reverse()
            };
            order == Ordering::Less || (order == Ordering::Equal && split_point.origin < origin)
        };
        low + self.split_points[low..group].partition_point(is_less)
    }
}

/// A head as the table has it.
#[inline(always)]
fn squeezed(extract: Option<&VaryingBits>, head: u64) -> u64 {
    extract.map_or(head, |extract| extract.extract(head))
}

/// How wide the steps of a table over `span` are, as a power of two: so that few records meet a step that a
/// cut lies in. Between two cuts lie equally many records, so the share that meets it is the step's share of
/// the gap; where keys are text, which leaves most numbers out, steps must be the finer.
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

    /// The index by the plainest means: how many cuts are less than (key, origin).
    fn truth(key: &Key, split_points: &[SplitPoint], record: &[u8], origin: u64) -> usize {
        let own = SplitPoint { normal: key.normal(record, usize::MAX), origin };
        split_points.iter().filter(|c| **c < own).count()
    }

    proptest! {
        #[test]
        fn a_record_is_located_where_counting_cuts_says(
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
                let shared = split_points.shared_in(at);
                if at > 0 {
                    let normal = key.normal(&record, usize::MAX);
                    prop_assert!(normal.len() >= shared);
                    prop_assert_eq!(&normal[..shared], &chosen[at - 1].normal[..shared]);
                }
            }
        }
    }

    /// A cut is shortened to what tells it from its neighbour, and a head pads with zeros: where keys end within the
    /// head, a key of `b` and zeros was taken to equal the cut `b`, and went left of it or right by its origin.
    /// What begins with a shortened cut's bytes lies to its right. Found by the fuzzer.
    #[test]
    fn zeros_behind_a_shortened_cut_are_bytes_too() {
        let key = Key::new(Layout::Fixed(4), &[]).unwrap();
        let split_points = SplitPoints::new(&key, vec![SplitPoint { normal: b"b".to_vec(), origin: 8 }]);
        for origin in [0, 8, 9] {
            assert_eq!(split_points.locate(&key, b"b\0\0\0"[..].into(), origin), 1, "{origin}");
            assert_eq!(split_points.locate(&key, b"a\xff\xff\xff"[..].into(), origin), 0, "{origin}");
        }
    }

    #[test]
    fn depths_are_to_each_other_as_their_weights() {
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
    fn a_thinned_sample_is_still_from_all_over() {
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

    /// A few records of 1,000 bytes among many of one: cuts fall where the bytes are.
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
    fn equal_keys_are_parted_by_origin_into_equal_depths() {
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
