//! Ordered records of one program, within a memory limit.
//!
//! Model: one [`Bucket`] and the [`Slab`] with its records. Ranges are read in batches. Each looks at a bounded number
//! of records, so a lock around a store is held only for a bounded time.
//! Invariant: a refused change has changed nothing.
//! Non-goals: concurrent access, and records that expire.

use std::ops::Bound;

use crate::Condition;
use crate::bucket::Bucket;
use crate::cluster::{Error, Result, fits};
use crate::slab::{Full, Slab};
use crate::walk::{self, Walk};

/// The least memory of a store, in bytes.
const MEMORY_MIN: usize = 1 << 20;
/// The most records that one batch looks at.
const LOOKED_AT_MAX: usize = 4 << 10;
/// A batch with this many bytes is full.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Ordered records in memory.
pub(crate) struct Store {
    slab: Slab,
    bucket: Bucket,
}

/// The request for a batch of a range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The lower end of the range.
    pub(crate) low: Bound<&'a [u8]>,
    /// The upper end of the range.
    pub(crate) high: Bound<&'a [u8]>,
    /// Whether the batch begins at the upper end.
    pub(crate) descending: bool,
    /// The most records of the batch.
    pub(crate) most: usize,
    /// Whether to leave values out.
    pub(crate) only_keys: bool,
    /// The condition that values must meet.
    pub(crate) condition: Option<&'a Condition>,
}

/// Some records of a range, in the requested order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Keys and values.
    pub(crate) records: Vec<(Vec<u8>, Vec<u8>)>,
    /// The key after which the next batch begins; `None` if this is the last batch.
    pub(crate) last: Option<Vec<u8>>,
}

fn little(memory: usize) -> Error {
    Error::LittleMemory { given: memory, least: MEMORY_MIN }
}

impl Store {
    /// An empty store of at most `memory` bytes.
    ///
    /// # Errors
    /// If `memory` is less than a MiB.
    pub(crate) fn new(memory: usize) -> Result<Store> {
        if memory < MEMORY_MIN {
            return Err(little(memory));
        }
        let mut slab = Slab::new(memory);
        let bucket = Bucket::new(&mut slab).map_err(|Full| little(memory))?;
        Ok(Store { slab, bucket })
    }

    /// Bytes in use, and the limit.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.slab.used(), self.slab.limit())
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.bucket.get(&self.slab, key).map(|record| record.value)
    }

    /// Sets the value of a key. Returns whether the key is new.
    ///
    /// # Errors
    /// If key or value are too long, or the memory is full.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        fits(key, value)?;
        let put = self.bucket.put(&mut self.slab, key, value, None);
        put.map(|was_there| !was_there).map_err(|Full| Error::MemoryFull(self.slab.limit()))
    }

    /// Sets the value of an existing key. Returns whether the key exists.
    ///
    /// # Errors
    /// If the value is too long, or the memory is full.
    pub(crate) fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        let exists = self.get(key).is_some();
        if exists {
            self.put(key, value)?;
        }
        Ok(exists)
    }

    /// Sets or removes the value of a key if its current value is `expected`. Returns whether it was.
    ///
    /// # Errors
    /// If key or value are too long, or the memory is full.
    pub(crate) fn compare_and_set(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<bool> {
        let is_as_expected = self.get(key) == expected;
        match value {
            Some(value) if is_as_expected => drop(self.put(key, value)?),
            None if is_as_expected => drop(self.remove(key)),
            _ => {}
        }
        Ok(is_as_expected)
    }

    /// Removes the record of a key. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.bucket.remove(&mut self.slab, key)
    }

    /// The number of records in a range.
    pub(crate) fn count(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> usize {
        walk::count(&self.bucket, &self.slab, (low, high))
    }

    /// The first records of a range.
    pub(crate) fn batch(&self, wanted: &Wanted<'_>) -> Batch {
        let ends = (wanted.low, wanted.high);
        let mut walk = Walk::new(&self.bucket, &self.slab, ends, wanted.descending);
        let (mut batch, mut bytes, mut last) = (Batch::default(), 0, None);
        for record in walk.by_ref().take(LOOKED_AT_MAX) {
            last = Some(record.key);
            if wanted.condition.is_none_or(|condition| condition.matches(record.value)) {
                let value = if wanted.only_keys { Vec::new() } else { record.value.to_vec() };
                bytes += record.key.len() + value.len();
                batch.records.push((record.key.to_vec(), value));
            }
            if batch.records.len() >= wanted.most || bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        batch.last = last.filter(|_| walk.next().is_some()).map(<[u8]>::to_vec);
        batch
    }
}
