//! Reads a range back, page by page, from memory or scratch. This is the source when a range that is too large for
//! memory is distributed again.

use std::collections::VecDeque;

use thalweg_block::{Block, Pool};
use thalweg_io::Queue;
use thalweg_pump::{Meters, Source};

use crate::range::{RangeStore, Stored};
use crate::scratch::Scratch;
use crate::{Error, Result};

/// Everything that is needed to read a range back.
#[derive(Clone, Copy)]
pub(crate) struct Replay<'a> {
    pub(crate) store: &'a RangeStore,
    /// Bytes of a full page.
    pub(crate) page_bytes: usize,
    pub(crate) scratch: &'a Scratch,
    pub(crate) pool: &'a Pool,
    pub(crate) meters: &'a Meters,
}

/// Reads pages `first`, `first + step`, ... of a range.
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
                    self.pending.push_back((index, None));
                    self.queue.submit(scratch.read(extent, block, index as u64));
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
                    let block = scratch.verify(done.block, extent)?;
                    let slot = self.pending.iter_mut().find(|(i, _)| *i == index);
                    slot.expect("only pending pages complete").1 = Some(block);
                }
            }
        }
    }
}
