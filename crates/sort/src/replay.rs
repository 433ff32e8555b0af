//! A range as a source: its pages in order, from memory or scratch, to be distributed once more
//! because it is larger than memory (a third pass, or a sample that erred).

use std::collections::VecDeque;

use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Kind, Op, Queue};
use thalweg_pump::{Meters, Source};
use thalweg_record::{Cut, Key, Layout};

use crate::sample::key_limit;

use crate::distribute::{RangeStore, Stored};
use crate::pages::segment_starts;
use crate::scratch::{Extent, Scratch, page_hash};
use crate::{Error, Result};

/// What a range is read back with.
#[derive(Clone, Copy)]
pub(crate) struct Replay<'a> {
    pub(crate) store: &'a RangeStore,
    pub(crate) scratch: &'a Scratch,
    pub(crate) pool: &'a Pool,
    pub(crate) meters: &'a Meters,
}

/// Pages `first`, `first + step`, ... of a range.
pub(crate) struct ReplayLane<'a> {
    replay: Replay<'a>,
    queue: Box<dyn Queue>,
    next: usize,
    step: usize,
    pending: VecDeque<(usize, Option<Block>)>,
}

impl<'a> ReplayLane<'a> {
    pub(crate) fn new(
        replay: Replay<'a>,
        queue: Box<dyn Queue>,
        first: usize,
        step: usize,
    ) -> ReplayLane<'a> {
        ReplayLane { replay, queue, next: first, step, pending: VecDeque::new() }
    }

    fn read_ahead(&mut self) {
        let Replay { store, scratch, pool, .. } = self.replay;
        while self.next < store.pages.len() && self.pending.len() < self.queue.depth() {
            let mut block = match pool.try_take() {
                Some(block) => block,
                None if self.pending.is_empty() => pool.take(),
                None => return,
            };
            let index = self.next;
            self.next += self.step;
            block.set_offset((index * pool.block_size()) as u64);
            match &store.pages[index] {
                Stored::Coming => unreachable!("a range is replayed when it is whole"),
                Stored::Resident(page) => {
                    block.set_len(page.len());
                    block.copy_from_slice(page);
                    self.pending.push_back((index, Some(block)));
                }
                Stored::Spilled(extent) => {
                    block.set_len((extent.len as usize).next_multiple_of(ALIGN));
                    let file = scratch.file(extent.directory()).clone();
                    self.pending.push_back((index, None));
                    let tag = index as u64;
                    self.queue.submit(Op { kind: Kind::Read, file, at: extent.offset(), block, tag });
                }
            }
        }
    }
}

impl Source for ReplayLane<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Block>> {
        self.read_ahead();
        loop {
            match self.pending.front_mut() {
                None => return Ok(None),
                Some((_, block @ Some(_))) => {
                    let block = block.take();
                    self.pending.pop_front();
                    return Ok(block);
                }
                Some((_, None)) => {
                    let Replay { store, scratch, meters, .. } = self.replay;
                    let queue = &mut self.queue;
                    let done = meters.stage.for_read(|| queue.reap(true)).expect("a read is in flight");
                    done.result?;
                    meters.scratch.read(done.block.len() as u64);
                    let index = done.tag as usize;
                    let Stored::Spilled(extent) = &store.pages[index] else {
                        unreachable!("only spilled pages are read")
                    };
                    let block = whole(done.block, extent, scratch)?;
                    let slot = self.pending.iter_mut().find(|(i, _)| *i == index);
                    slot.expect("only pending pages complete").1 = Some(block);
                }
            }
        }
    }
}

/// The page that was read, if it is what was written.
pub(crate) fn whole(mut block: Block, extent: &Extent, scratch: &Scratch) -> Result<Block> {
    if block.len() < extent.len as usize {
        return Err(scratch.damaged(extent));
    }
    block.set_len(extent.len as usize);
    if page_hash(&block) != extent.hash {
        return Err(scratch.damaged(extent));
    }
    Ok(block)
}

/// Writes a page to another place, in the tail of its file or elsewhere. Returns where it is now.
pub(crate) fn moved(
    extent: &Extent,
    mut block: Block,
    queue: &mut dyn Queue,
    scratch: &Scratch,
    meters: &Meters,
) -> Result<Extent> {
    let mut transfer = |kind, extent: &Extent, mut block: Block| -> Result<Block> {
        block.set_len(extent.room() as usize);
        let file = scratch.file(extent.directory()).clone();
        queue.submit(Op { kind, file, at: extent.offset(), block, tag: 0 });
        let done = queue.reap(true).expect("it is in flight");
        done.result?;
        Ok(done.block)
    };
    block = whole(transfer(Kind::Read, extent, block)?, extent, scratch)?;
    meters.scratch.read(extent.room());
    let to = scratch.allocate(block.len(), extent.hash, None)?;
    transfer(Kind::Write, &to, block)?;
    meters.scratch.wrote(to.room());
    Ok(to)
}

/// Keys from all over a range, at most about `keys_bytes_max` bytes of them, and if it can be had at least
/// `wanted`: from about `pages` pages, or from all where records are so long that few begin in those.
pub(crate) fn sample_range(
    replay: Replay<'_>,
    queue: impl Fn() -> Result<Box<dyn Queue>>,
    layout: Layout,
    key: &Key,
    (pages, wanted): (usize, usize),
    keys_bytes_max: u64,
) -> Result<Vec<Cut>> {
    let keys = sample_pages(replay, queue()?, layout, key, pages, keys_bytes_max)?;
    if keys.len() >= wanted {
        Ok(keys)
    } else {
        sample_records(replay, queue()?, layout, key, keys_bytes_max)
    }
}

/// Keys of every so many records of a range, all of which is read.
fn sample_records(
    replay: Replay<'_>,
    queue: Box<dyn Queue>,
    layout: Layout,
    key: &Key,
    keys_bytes_max: u64,
) -> Result<Vec<Cut>> {
    let mut lane = ReplayLane::new(replay, queue, 0, 1);
    let mut keys: Vec<Cut> = Vec::new();
    let (mut stride, mut seen, mut held_bytes) = (1u64, 0u64, 0u64);
    let mut take = |place: u64, record: &[u8]| {
        seen += 1;
        if !seen.is_multiple_of(stride) {
            return;
        }
        let normal = key.normal(record, key_limit(keys_bytes_max));
        held_bytes += (normal.len() + std::mem::size_of::<Cut>()) as u64;
        keys.push(Cut { normal, origin: place });
        if held_bytes > keys_bytes_max {
            // Too many: every other one goes, and from now on half as many are taken.
            let mut index = 0;
            keys.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            held_bytes = keys.iter().map(|k| (k.normal.len() + std::mem::size_of::<Cut>()) as u64).sum();
            stride *= 2;
        }
    };
    let mut carry: Vec<u8> = Vec::new();
    while let Some(block) = lane.next()? {
        let mut at = 0;
        while at < block.len() {
            let rest = &block[at..];
            let end = match layout {
                Layout::Fixed(n) => Some(n as usize - carry.len()).filter(|&left| left <= rest.len()),
                Layout::Lines => memchr::memchr(b'\n', rest).map(|end| end + 1),
            };
            let Some(end) = end else {
                carry.extend_from_slice(rest);
                break;
            };
            let terminator = usize::from(layout == Layout::Lines);
            let place = (block.offset() + at as u64).saturating_sub(carry.len() as u64);
            if carry.is_empty() {
                take(place, &rest[..end - terminator]);
            } else {
                carry.extend_from_slice(&rest[..end]);
                take(place, &carry[..carry.len() - terminator]);
                carry.clear();
            }
            at += end;
        }
    }
    Ok(keys)
}

/// Keys from about `pages` pages all over a range, at most `keys_bytes_max` bytes of them.
fn sample_pages(
    replay: Replay<'_>,
    queue: Box<dyn Queue>,
    layout: Layout,
    key: &Key,
    pages: usize,
    keys_bytes_max: u64,
) -> Result<Vec<Cut>> {
    let step = replay.store.pages.len().div_ceil(pages).max(1);
    let page_bytes = replay.pool.block_size();
    let starts = segment_starts(page_bytes, replay.store.pages.iter().map(Stored::len));
    let budget = keys_bytes_max as usize / (replay.store.pages.len() / step).max(1);
    let mut lane = ReplayLane::new(replay, queue, 0, step);
    let mut keys = Vec::new();
    while let Some(block) = lane.next()? {
        let index = block.offset() / page_bytes as u64;
        let before = (index - u64::from(starts[index as usize])) * page_bytes as u64;
        let mut left = budget;
        let mut add = |at: usize, record: &[u8]| {
            let normal = key.normal(record, key_limit(keys_bytes_max));
            let cost = normal.len() + std::mem::size_of::<Cut>();
            if cost <= left {
                left -= cost;
                keys.push(Cut { normal, origin: block.offset() + at as u64 });
            }
        };
        // Every page has many records more than a sample wants: take some at equal distances.
        match layout {
            Layout::Fixed(n) => {
                let n = n as usize;
                let first = (n - (before % n as u64) as usize) % n;
                let stride = (block.len() / n / 64).max(1) * n;
                let mut at = first;
                while at + n <= block.len() {
                    add(at, &block[at..at + n]);
                    at += stride;
                }
            }
            Layout::Lines => {
                let mut at = 0;
                while let Some(end) = memchr::memchr(b'\n', &block[at..]) {
                    let from = at + end + 1;
                    let to = memchr::memchr(b'\n', &block[from..]).map_or(block.len(), |n| from + n);
                    if from < block.len() {
                        add(from, &block[from..to]);
                    }
                    at = from + block.len() / 64;
                    if at >= block.len() {
                        break;
                    }
                }
            }
        }
    }
    Ok(keys)
}
