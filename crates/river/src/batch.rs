//! Batches: a block of records of one lane, after a head.

use std::collections::BTreeMap;

use thalweg_block::{Block, copy};
use thalweg_pump::Carrier;
use thalweg_record::Layout;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::head::{HEAD_BYTES, Head};
use crate::transport::Ticket;

/// Records of one lane, with their head.
pub struct Batch {
    /// Describes the records.
    pub head: Head,
    /// Space for the head, followed by the records.
    pub(crate) block: Block,
    /// When the batch is dropped, this tells the outlet that its buffer is free.
    pub(crate) ticket: Option<Ticket>,
}

impl Batch {
    /// The records without gaps; lines have their newlines.
    pub fn records(&self) -> &[u8] {
        &self.block[HEAD_BYTES..]
    }

    /// The hash of the records.
    pub(crate) fn checksum(&self) -> u128 {
        xxh3_128_with_seed(self.records(), self.head.sequence)
    }
}

impl Carrier for Batch {
    fn bytes(&self) -> u64 {
        self.head.bytes
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({:?})", self.head)
    }
}

/// The first parts of records that continue in the next batches of their lanes.
#[derive(Default)]
pub(crate) struct Partials(BTreeMap<u32, Vec<u8>>);

impl Partials {
    /// The complete records of a batch: its first record is joined with the part that came before, and the part of a
    /// record that continues is kept for later. `None` if the batch itself has exactly its complete records.
    pub(crate) fn whole(&mut self, layout: Layout, batch: &Batch) -> Option<Vec<u8>> {
        let Batch { head: Head { lane, more, .. }, .. } = batch;
        let before = self.0.remove(lane);
        if before.is_none() && !more {
            return None;
        }
        let (mut bytes, arrived) = (before.unwrap_or_default(), batch.records());
        let (began, ends) = (bytes.len(), layout.completes(&bytes, arrived));
        bytes.extend_from_slice(arrived);
        if *more {
            let whole = ends.map_or(0, |end| began + end + layout.whole(&arrived[end..]));
            let partials = if whole == 0 { std::mem::take(&mut bytes) } else { bytes.split_off(whole) };
            self.0.insert(*lane, partials);
        }
        Some(bytes)
    }
}

/// The batch of a lane that is being filled.
#[derive(Default)]
pub(crate) struct Open {
    block: Option<Block>,
    /// Where the next record goes, and the end of the block. Both are equal if there is no block.
    at: usize,
    end: usize,
    records: u64,
    origin: u64,
}

impl Open {
    /// Free bytes.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.end - self.at
    }

    /// Copies a record, which must fit.
    #[inline(always)]
    pub(crate) fn push(&mut self, record: &[u8], origin: u64) {
        if self.records == 0 {
            self.origin = origin;
        }
        self.records += 1;
        self.fill(record);
    }

    /// Copies bytes that do not begin a record.
    #[inline(always)]
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        let block = self.block.as_mut().expect("there is room");
        copy(&mut block.whole_mut()[self.at..self.at + bytes.len()], bytes);
        self.at += bytes.len();
    }

    /// Starts a block with space for `bytes` bytes of records.
    pub(crate) fn begin(&mut self, block: Block, bytes: usize) {
        *self = Open { block: Some(block), at: HEAD_BYTES, end: HEAD_BYTES + bytes, records: 0, origin: 0 };
    }

    /// Closes the batch; `None` if it is empty. `head` has the fields that are not known here.
    pub(crate) fn close(&mut self, head: Head, checked: bool) -> Option<Batch> {
        let Open { block, at, records, origin, .. } = std::mem::take(self);
        let mut block = block.filter(|_| at > HEAD_BYTES)?;
        block.set_len(at);
        let bytes = (at - HEAD_BYTES) as u64;
        let mut batch = Batch { head: Head { records, bytes, origin, ..head }, block, ticket: None };
        if checked {
            batch.head.checksum = batch.checksum();
        }
        Some(batch)
    }
}
