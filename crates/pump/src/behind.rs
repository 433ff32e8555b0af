//! Write-behind: a lane's writes. Several are in flight, to any files, and complete in any order.
//!
//! Invariant: direct files are written in whole pages, with zeros after the end of the data.
//! Non-goals: what happens after a completed write, which is up to the caller.

use thalweg_block::Block;
use thalweg_io::{ALIGN, Done, Handle, Kind, Op, Queue, Result};

use crate::Meters;

/// A lane's writes.
pub struct WriteBehind<'a> {
    queue: Box<dyn Queue>,
    meters: &'a Meters,
}

impl<'a> WriteBehind<'a> {
    /// Writes through `queue`.
    pub fn new(queue: Box<dyn Queue>, meters: &'a Meters) -> WriteBehind<'a> {
        WriteBehind { queue, meters }
    }

    /// Whether a write has to complete before another can begin.
    pub fn is_full(&self) -> bool {
        self.queue.in_flight() == self.queue.depth()
    }

    /// Begins to write the block at byte `at`. There must be room for it.
    pub fn write(&mut self, mut block: Block, file: &Handle, at: u64, tag: u64) {
        let len = block.len();
        self.meters.output.wrote(len as u64);
        if file.is_direct() {
            // Only the last block of a file is ragged; whoever sets its length cuts the zeros off again.
            block.set_len(len.next_multiple_of(ALIGN));
            block[len..].fill(0);
        }
        self.queue.submit(Op { kind: Kind::Write, file: file.clone(), at, block, tag });
    }

    /// A write that has completed. With `wait`, `None` means that nothing is in flight.
    pub fn reap(&mut self, wait: bool) -> Result<Option<Done>> {
        let queue = &mut self.queue;
        let done = if wait { self.meters.stage.for_write(|| queue.reap(true)) } else { queue.reap(false) };
        let Some(mut done) = done else { return Ok(None) };
        std::mem::replace(&mut done.result, Ok(()))?;
        Ok(Some(done))
    }
}
