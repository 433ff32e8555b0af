//! Read-ahead: a lane's reads. Several are in flight, and their blocks are returned in the order of the requests.
//!
//! Invariant: while there are free blocks, as many reads are in flight as the queue allows. The lane waits for a free
//! block only when it has nothing else to wait for.
//! Non-goals: deciding what to read next.

use std::collections::VecDeque;

use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Error, Handle, Kind, Op, Queue, Result};

use crate::Meters;

struct Slot<T> {
    tag: u64,
    about: T,
    block: Option<Block>,
    error: Option<Error>,
}

/// A lane's reads.
pub struct ReadAhead<'a, T> {
    queue: Box<dyn Queue>,
    pool: &'a Pool,
    meters: &'a Meters,
    slots: VecDeque<Slot<T>>,
    next_tag: u64,
}

impl<'a, T> ReadAhead<'a, T> {
    /// Reads through `queue` into blocks of `pool`.
    pub fn new(queue: Box<dyn Queue>, pool: &'a Pool, meters: &'a Meters) -> ReadAhead<'a, T> {
        ReadAhead { queue, pool, meters, slots: VecDeque::new(), next_tag: 0 }
    }

    /// The number of reads that were requested and not returned.
    pub fn pending(&self) -> usize {
        self.slots.len()
    }

    /// The most pending reads.
    pub fn depth(&self) -> usize {
        self.queue.depth()
    }

    /// A free block for the next read, if another read is allowed. Waits for one only if no read is pending.
    pub fn room(&self) -> Option<Block> {
        if self.slots.len() >= self.queue.depth() {
            return None;
        }
        match self.pool.try_take() {
            None if self.slots.is_empty() => Some(self.meters.stage.for_write(|| self.pool.take())),
            block => block,
        }
    }

    /// Starts reading into `block`, whose offset stays.
    pub fn read(&mut self, mut block: Block, file: &Handle, at: u64, len: usize, about: T) {
        block.set_len(if file.is_direct() { len.next_multiple_of(ALIGN) } else { len });
        let tag = self.next_tag;
        self.next_tag += 1;
        self.slots.push_back(Slot { tag, about, block: None, error: None });
        self.queue.submit(Op { kind: Kind::Read, file: file.clone(), at, block, tag });
    }

    /// Queues a block that is complete already, after the pending reads.
    pub fn ready(&mut self, block: Block, about: T) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.slots.push_back(Slot { tag, about, block: Some(block), error: None });
    }

    /// Waits for the next block in order; `None` if nothing is pending. It is shorter than requested only at the end of
    /// the file.
    pub fn next_block(&mut self) -> Result<Option<(Block, T)>> {
        match self.next_read() {
            None => Ok(None),
            Some((block, about, Ok(()))) => Ok(Some((block, about))),
            Some((_, _, Err(why))) => Err(why),
        }
    }

    /// As [`next_block`](Self::next_block), but a read that failed is returned with what it was about, and the others
    /// follow.
    pub fn next_read(&mut self) -> Option<(Block, T, Result<()>)> {
        loop {
            let front = self.slots.front_mut()?;
            if let Some(block) = front.block.take() {
                let slot = self.slots.pop_front().expect("there is a front");
                return Some((block, slot.about, slot.error.map_or(Ok(()), Err)));
            }
            let queue = &mut self.queue;
            let done = self.meters.stage.for_read(|| queue.reap(true)).expect("a read is in flight");
            let slot = self.slots.iter_mut().find(|slot| slot.tag == done.tag);
            let slot = slot.expect("only pending reads complete");
            slot.error = done.result.err();
            if slot.error.is_none() {
                self.meters.input.read(done.block.len() as u64);
                if !done.file.is_direct() {
                    self.meters.cached.read(done.block.len() as u64);
                }
            }
            slot.block = Some(done.block);
        }
    }
}
