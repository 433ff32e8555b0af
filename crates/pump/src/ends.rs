//! Sources and sinks without a disk: memory, and a sink that discards (the "no disk" mode of paper 000).

use std::convert::Infallible;

use thalweg_block::{Block, Pool};

use crate::{Sink, Source};

/// A source of bytes in memory.
pub struct MemorySource<'a> {
    bytes: &'a [u8],
    at: usize,
    pool: &'a Pool,
}

impl<'a> MemorySource<'a> {
    /// Returns `bytes` in blocks of `pool`.
    pub fn new(bytes: &'a [u8], pool: &'a Pool) -> MemorySource<'a> {
        MemorySource { bytes, at: 0, pool }
    }
}

impl Source for MemorySource<'_> {
    type Error = Infallible;

    fn next(&mut self) -> Result<Option<Block>, Infallible> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let mut block = self.pool.take();
        let n = block.capacity().min(self.bytes.len() - self.at);
        block.set_len(n);
        block.set_offset(self.at as u64);
        block.copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Ok(Some(block))
    }
}

/// A sink that counts and discards blocks.
#[derive(Debug, Default)]
pub struct NullSink {
    /// The bytes that were taken.
    pub bytes: u64,
}

impl Sink for NullSink {
    type Error = Infallible;

    fn put(&mut self, block: Block) -> Result<(), Infallible> {
        self.bytes += block.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
