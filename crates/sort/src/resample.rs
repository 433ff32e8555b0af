//! Samples a range that is to be distributed again: some keys, their weights in bytes, and their common prefix.
//!
//! Model: if records are short and similar in length, a sample of some pages is enough. Otherwise the whole range is
//! read, and a key is sampled at regular distances in bytes. Sampled keys are truncated to a length limit. If keys
//! that agree up to that limit have more than half of the bytes, another sample is taken of the bytes that follow their
//! common prefix. So every distribution divides a range, however long the common prefix is.
//!
//! Invariant: every sampled key begins with the base; the sample contains the bytes that follow the base.

use std::sync::Arc;

use thalweg_io::Queue;
use thalweg_pump::Source;
use thalweg_record::{Key, Layout, SPLIT_KEY_BYTES_MAX, SplitPoint};

use crate::Result;
use crate::pages::segment_starts;
use crate::range::Stored;
use crate::replay::{Replay, ReplayLane};

/// The number of pages in a first sample.
const PAGES: usize = 256;
/// Keys from each of these pages.
const KEYS_PER_PAGE: usize = 64;
/// A sample has space for at least this many keys.
const KEYS_MIN: u64 = 256;

/// A sample of a range.
pub(crate) struct Resample {
    /// A common prefix of the keys.
    pub(crate) base: Arc<[u8]>,
    /// The rest of each key after the prefix, and the bytes of records that this key represents.
    pub(crate) keys: Vec<(SplitPoint, u64)>,
}

/// The range to sample, and the limits of the sample.
pub(crate) struct Request<'a> {
    pub(crate) replay: Replay<'a>,
    pub(crate) queue: &'a dyn Fn() -> Result<Box<dyn Queue>>,
    pub(crate) layout: Layout,
    pub(crate) key: &'a Key,
    /// The maximum bytes of keys in a sample.
    pub(crate) keys_bytes_max: u64,
}

impl Request<'_> {
    /// Takes a sample of at least `wanted` keys if possible: from some pages, or from the whole range if the pages have
    /// too few keys or `whole` is set.
    pub(crate) fn sample(&self, wanted: usize, whole: bool) -> Result<Resample> {
        if !whole {
            let mut keys = self.of_pages()?;
            if keys.len() >= wanted && self.heaviest(&mut keys).is_none() {
                return Ok(Resample { base: Arc::default(), keys });
            }
        }
        let mut base: Arc<[u8]> = Arc::default();
        loop {
            let mut keys = self.of_records(&base)?;
            match self.heaviest(&mut keys) {
                Some(start) => base = self.agreed([&base, start].concat())?.into(),
                None => return Ok(Resample { base, keys }),
            }
        }
    }

    /// The maximum length of a sampled key.
    fn key_limit(&self) -> usize {
        (self.keys_bytes_max / KEYS_MIN).clamp(1, SPLIT_KEY_BYTES_MAX as u64) as usize
    }

    /// The truncated key that represents more than half of the bytes, if there is one. Sorts the keys.
    fn heaviest<'k>(&self, keys: &'k mut [(SplitPoint, u64)]) -> Option<&'k [u8]> {
        keys.sort_unstable();
        let bytes_of = |group: &[(SplitPoint, u64)]| group.iter().map(|(_, bytes)| *bytes).sum::<u64>();
        let all = bytes_of(keys);
        let group =
            keys.chunk_by(|(a, _), (b, _)| a.normal == b.normal).max_by_key(|group| bytes_of(group))?;
        let start = &group[0].0.normal[..];
        (start.len() == self.key_limit() && bytes_of(group) > all / 2).then_some(start)
    }

    /// The longest common prefix of all keys that begin with `start`.
    fn agreed(&self, mut start: Vec<u8>) -> Result<Vec<u8>> {
        let mut more: Option<Vec<u8>> = None;
        self.each_record(|_, record| {
            if self.key.compare_start(record, 0, &start).is_ne() {
                return;
            }
            match &mut more {
                None => more = Some(self.key.normal_from(record, start.len(), usize::MAX)),
                Some(more) => more.truncate(self.key.agreement(record, start.len(), more)),
            }
        })?;
        start.extend(more.unwrap_or_default());
        Ok(start)
    }

    /// Reads the whole range and returns keys at regular distances in bytes, without `base`.
    fn of_records(&self, base: &[u8]) -> Result<Vec<(SplitPoint, u64)>> {
        let mut keys: Vec<(SplitPoint, u64)> = Vec::new();
        let (mut stride, mut seen, mut held) = (1u64, 0u64, 0u64);
        let cost =
            |split_point: &SplitPoint| (split_point.normal.len() + size_of::<(SplitPoint, u64)>()) as u64;
        self.each_record(|place, record| {
            let before = seen / stride;
            seen += record.len() as u64 + 1;
            let bytes = (seen / stride - before) * stride;
            if bytes == 0 || self.key.compare_start(record, 0, base).is_ne() {
                return;
            }
            let normal = self.key.normal_from(record, base.len(), self.key_limit());
            let split_point = SplitPoint { normal, origin: place };
            held += cost(&split_point);
            keys.push((split_point, bytes));
            if held > self.keys_bytes_max {
                // Too many keys: drop every other key that stands for a single stride, and double the stride.
                let mut odd = false;
                keys.retain_mut(|(_, bytes)| {
                    let is_short = *bytes < 2 * stride;
                    odd ^= is_short;
                    *bytes = (*bytes).max(2 * stride);
                    !(is_short && odd)
                });
                held = keys.iter().map(|(split_point, _)| cost(split_point)).sum();
                stride *= 2;
            }
        })?;
        Ok(keys)
    }

    /// Calls `take` with every record of the range and its approximate place.
    fn each_record(&self, mut take: impl FnMut(u64, &[u8])) -> Result<()> {
        let mut lane = ReplayLane::new(self.replay, (self.queue)()?, 0, 1);
        let mut carry: Vec<u8> = Vec::new();
        let end_bytes = self.layout.end_bytes();
        while let Some(block) = lane.next()? {
            let mut at = 0;
            while at < block.len() {
                let rest = &block[at..];
                let Some(end) = self.layout.completes(&carry, rest) else {
                    carry.reserve_exact(rest.len());
                    carry.extend_from_slice(rest);
                    break;
                };
                let place = (block.offset() + at as u64).saturating_sub(carry.len() as u64);
                if carry.is_empty() {
                    take(place, &rest[..end - end_bytes]);
                } else {
                    carry.reserve_exact(end);
                    carry.extend_from_slice(&rest[..end]);
                    take(place, &carry[..carry.len() - end_bytes]);
                    carry.clear();
                }
                at += end;
            }
        }
        Ok(())
    }

    /// Keys from pages spread over the range.
    fn of_pages(&self) -> Result<Vec<(SplitPoint, u64)>> {
        let Request { replay, layout, .. } = *self;
        let step = replay.store.pages.len().div_ceil(PAGES).max(1);
        let page_bytes = replay.page_bytes;
        let starts = segment_starts(page_bytes, replay.store.pages.iter().map(Stored::len));
        let budget = self.keys_bytes_max as usize / (replay.store.pages.len() / step).max(1);
        let mut lane = ReplayLane::new(replay, (self.queue)()?, 0, step);
        let mut keys = Vec::new();
        while let Some(block) = lane.next()? {
            let index = block.offset() / page_bytes as u64;
            let before = (index - u64::from(starts[index as usize])) * page_bytes as u64;
            let mut left = budget;
            let mut add = |at: usize, record: &[u8]| {
                let normal = self.key.normal(record, self.key_limit());
                let cost = normal.len() + size_of::<(SplitPoint, u64)>();
                if cost <= left {
                    left -= cost;
                    keys.push((SplitPoint { normal, origin: block.offset() + at as u64 }, 1));
                }
            };
            // A page has many more records than needed: take some at equal distances.
            layout.some_records(&block, before, KEYS_PER_PAGE, &mut add);
        }
        Ok(keys)
    }
}
