//! A stretch of a file; other nodes write what is before and after it.
//!
//! ```text
//! sectors  |       |       |       |       |
//! stretch      [edge| blocks, direct | edge]        edges of neighbours share a sector
//! ```
//!
//! Invariant: whole sectors are written as they come; what is left at either end is handed back, to be written when all
//! stretches are there.

use thalweg_api::Edge;
use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, File, Handle, Queue};
use thalweg_pump::{Meters, WriteBehind};

use crate::Result;

const SECTOR: u64 = ALIGN as u64;

/// A stretch that is being written.
pub(super) struct Stretch<'a> {
    file: &'a Handle,
    meters: &'a Meters,
    behind: WriteBehind<'a>,
    pool: &'a Pool,
    start: u64,
    end: u64,
    head: Vec<u8>,
    open: Option<Block>,
}

impl<'a> Stretch<'a> {
    pub(super) fn new(
        file: &'a Handle,
        queue: Box<dyn Queue>,
        pool: &'a Pool,
        meters: &'a Meters,
    ) -> Stretch<'a> {
        let behind = WriteBehind::new(queue, meters);
        Stretch { file, meters, behind, pool, start: 0, end: 0, head: Vec::new(), open: None }
    }

    /// Sets where the stretch begins.
    pub(super) fn begin(&mut self, at: u64) {
        (self.start, self.end) = (at, at);
    }

    /// Bytes that were put.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Puts the next bytes.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        let first_sector = self.start.next_multiple_of(SECTOR);
        if self.end < first_sector {
            let (head, rest) = bytes.split_at(bytes.len().min((first_sector - self.end) as usize));
            self.head.extend_from_slice(head);
            self.end += head.len() as u64;
            bytes = rest;
        }
        while !bytes.is_empty() {
            let mut block = match self.open.take() {
                Some(block) => block,
                None => self.free_block()?,
            };
            let at = block.len();
            let (now, rest) = bytes.split_at(bytes.len().min(block.capacity() - at));
            block.set_len(at + now.len());
            block[at..].copy_from_slice(now);
            self.end += now.len() as u64;
            bytes = rest;
            if block.len() == block.capacity() {
                self.write(block)?;
            } else {
                self.open = Some(block);
            }
        }
        Ok(())
    }

    /// Every node has one open block, and as many more as its queue is deep.
    fn free_block(&mut self) -> Result<Block> {
        while self.behind.reap(false)?.is_some() {}
        if self.behind.is_full() {
            self.behind.reap(true)?;
        }
        let mut block = self.pool.take();
        block.set_len(0);
        Ok(block)
    }

    /// Writes the block that ends where the stretch ends now.
    fn write(&mut self, block: Block) -> Result<()> {
        if self.behind.is_full() {
            self.behind.reap(true)?;
        }
        let at = self.end - block.len() as u64;
        self.behind.write(block, self.file, at, 0);
        Ok(())
    }

    /// Waits for all writes; the edges are left.
    pub(super) fn finish(mut self) -> Result<Vec<Edge>> {
        let mut edges = vec![Edge { at: self.start, bytes: std::mem::take(&mut self.head) }];
        if let Some(mut block) = self.open.take() {
            let whole = block.len() / ALIGN * ALIGN;
            let tail = block[whole..].to_vec();
            let end = self.end;
            self.end -= tail.len() as u64;
            edges.push(Edge { at: self.end, bytes: tail });
            if whole > 0 {
                block.set_len(whole);
                self.write(block)?;
            }
            self.end = end;
        }
        while self.behind.reap(true)?.is_some() {}
        // Written later, when all stretches are there, but counted here.
        self.meters.output.wrote(edges.iter().map(|edge| edge.bytes.len() as u64).sum());
        Ok(edges)
    }
}

/// Writes the edges of all stretches, which are not whole sectors. Returns where the file ends.
pub(super) fn write_edges(file: &File, edges: Vec<Edge>) -> Result<u64> {
    let mut end = 0;
    for Edge { at, bytes } in edges {
        file.write_at(at, &bytes)?;
        end = end.max(at + bytes.len() as u64);
    }
    Ok(end)
}
