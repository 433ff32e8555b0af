//! A sample of a range that is to be distributed again: keys, the bytes that each of them stands for, and what all of
//! them begin with.
//!
//! Model: some of the pages tell enough where records are short and alike in length. Otherwise all of the range is read,
//! and a key is kept for every so many bytes. Keys are kept up to a limit; where more than half of the bytes belong to
//! keys that agree up to it, the sample is taken once more, of what follows the bytes in which those agree. So every
//! distribution parts a range, however long the keys are alike.
//!
//! Invariant: every record that is sampled begins with the base, and what is kept of its key follows that.

use std::sync::Arc;

use thalweg_io::Queue;
use thalweg_pump::Source;
use thalweg_record::{Key, Layout, SPLIT_KEY_BYTES_MAX, SplitPoint};

use crate::Result;
use crate::pages::segment_starts;
use crate::range::Stored;
use crate::replay::{Replay, ReplayLane};

/// Pages that a first sample looks at.
const PAGES: usize = 256;
/// Keys kept of each page that is looked at.
const KEYS_PER_PAGE: usize = 64;
/// A sample can hold at least so many keys.
const KEYS_MIN: u64 = 256;

/// What a sample tells of a range.
pub(crate) struct Resample {
    /// What the keys begin with that are to be told apart.
    pub(crate) base: Arc<[u8]>,
    /// What follows in them, and how many bytes of records each stands for.
    pub(crate) keys: Vec<(SplitPoint, u64)>,
}

/// What is sampled, and how much of its keys is kept.
pub(crate) struct Request<'a> {
    pub(crate) replay: Replay<'a>,
    pub(crate) queue: &'a dyn Fn() -> Result<Box<dyn Queue>>,
    pub(crate) layout: Layout,
    pub(crate) key: &'a Key,
    /// Bytes of keys that a sample holds.
    pub(crate) keys_bytes_max: u64,
}

impl Request<'_> {
    /// A sample of at least `wanted` keys, if there are as many: from some pages, or where those have too few, or
    /// `whole` is asked for, from all of the range.
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

    /// Bytes of a key that are kept.
    fn key_limit(&self) -> usize {
        (self.keys_bytes_max / KEYS_MIN).clamp(1, SPLIT_KEY_BYTES_MAX as u64) as usize
    }

    /// The beginning of keys that go on behind the limit, if more than half of the bytes are of such. Sorts the keys.
    fn heaviest<'k>(&self, keys: &'k mut [(SplitPoint, u64)]) -> Option<&'k [u8]> {
        keys.sort_unstable();
        let bytes_of = |group: &[(SplitPoint, u64)]| group.iter().map(|(_, bytes)| *bytes).sum::<u64>();
        let all = bytes_of(keys);
        let group =
            keys.chunk_by(|(a, _), (b, _)| a.normal == b.normal).max_by_key(|group| bytes_of(group))?;
        let start = &group[0].0.normal[..];
        (start.len() == self.key_limit() && bytes_of(group) > all / 2).then_some(start)
    }

    /// What all keys agree in that begin with `start`.
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

    /// What follows `base` in a key for every so many bytes of the range, all of which is read.
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
                // Too many: of those that stand for one stride every other one goes, and strides are twice as long.
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

    /// Calls `take` with every record of the range and about where it begins.
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

    /// Keys from some pages all over the range.
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
            // Every page has many records more than a sample wants: some are taken, at equal distances.
            layout.some_records(&block, before, KEYS_PER_PAGE, &mut add);
        }
        Ok(keys)
    }
}
