//! Write-behind: a lane's writes. Several are in flight, to any files, and complete in any order.
//!
//! Invariant: direct files are written in whole pages, with zeros after the end of the data.
//! Non-goals: what follows a completed write.

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

    /// Whether a write must complete before another can start.
    pub fn is_full(&self) -> bool {
        self.queue.in_flight() == self.queue.depth()
    }

    /// Starts writing the block at offset `at`. There must be room for it.
    pub fn write(&mut self, mut block: Block, file: &Handle, at: u64, tag: u64) {
        let len = block.len();
        self.meters.output.wrote(len as u64);
        if file.is_direct() {
            // Only the last block of a file is not a whole number of pages; setting the file's length removes the
            // zeros.
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
