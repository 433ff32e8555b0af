//! A range as a source: its pages in order, from memory or scratch, to be distributed once more
//! because it is larger than memory (a third pass, or a sample that erred); and pages that are moved before the output
//! takes their place.

use std::collections::VecDeque;

use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Kind, Op, Queue};
use thalweg_pump::{Meters, Source};

use crate::range::{Range, RangeStore, Stored};
use crate::scratch::{Extent, Scratch, page_hash};
use crate::{Error, Result};

/// What a range is read back with.
#[derive(Clone, Copy)]
pub(crate) struct Replay<'a> {
    pub(crate) store: &'a RangeStore,
    /// What a whole page has.
    pub(crate) page_bytes: usize,
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
        let Replay { store, page_bytes, scratch, pool, .. } = self.replay;
        while self.next < store.pages.len() && self.pending.len() < self.queue.depth() {
            let mut block = match pool.try_take() {
                Some(block) => block,
                None if self.pending.is_empty() => pool.take(),
                None => return,
            };
            let index = self.next;
            self.next += self.step;
            block.set_offset((index * page_bytes) as u64);
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

/// Moves pages that lie where the output would be before they are read: where samples erred by much, or an earlier
/// run's manifest lies. From `end` on the output takes what the ranges have, of which `tag_bytes` a record stay out of
/// it, in blocks as large as those of `pool`. A later run does not know where they are now: if it comes to need one, it
/// finds that it is damaged, and begins anew.
pub(crate) fn make_way(
    ranges: &mut [Range],
    mut end: u64,
    tag_bytes: u64,
    scratch: &Scratch,
    pool: &Pool,
    queue: &mut dyn Queue,
    meters: &Meters,
) -> Result<()> {
    for range in ranges {
        end += range.store.bytes - range.store.records * tag_bytes;
        let written = end.next_multiple_of(pool.block_size() as u64);
        for page in &mut range.store.pages {
            let Stored::Spilled(extent) = page else { continue };
            if scratch.is_overtaken(extent, written) {
                *extent = moved(extent, pool.take(), queue, scratch, meters)?;
            }
        }
    }
    Ok(())
}

/// Writes a page to another place, in the tail of its file or elsewhere. Returns where it is now.
fn moved(
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
