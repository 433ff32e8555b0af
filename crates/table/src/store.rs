//! Ordered records of one program, within a memory limit.
//!
//! Model: one [`Bucket`] and the [`Slab`] with its records. Ranges are read in batches. Each looks at a bounded number
//! of records, so a lock around a store is held only for a bounded time.
//! Invariant: a refused change has changed nothing.
//! Non-goals: concurrent access, and records that expire.

use std::fmt;
use std::ops::Bound;

use crate::Condition;
use crate::bucket::Bucket;
use crate::slab::{Full, KEY_BYTES_MAX, Slab, VALUE_BYTES_MAX};
use crate::walk::{self, Walk};

/// The least memory of a store, in bytes.
const MEMORY_MIN: usize = 1 << 20;
/// The most records that one batch looks at.
const LOOKED_AT_MAX: usize = 4 << 10;
/// A batch with this many bytes is full.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Why a store refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The memory is full; its limit is this many bytes.
    Full(usize),
    /// The memory limit is too low: this many bytes.
    LittleMemory(usize),
    /// A key is too long; it has this many bytes.
    LongKey(usize),
    /// A value is too long; it has this many bytes.
    LongValue(usize),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Full(bytes) => {
                write!(
                    f,
                    "the {bytes} bytes of memory of this table are full; delete records, or give it more"
                )
            }
            StoreError::LittleMemory(bytes) => {
                write!(f, "{bytes} bytes of memory are too little for a table; the least is {MEMORY_MIN}")
            }
            StoreError::LongKey(bytes) => {
                write!(f, "a key of {bytes} bytes; the longest has {KEY_BYTES_MAX}")
            }
            StoreError::LongValue(bytes) => {
                write!(f, "a value of {bytes} bytes; the longest has {VALUE_BYTES_MAX}")
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// Ordered records in memory.
pub struct Store {
    slab: Slab,
    bucket: Bucket,
}

/// The request for a batch of a range.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The lower end of the range.
    pub low: Bound<&'a [u8]>,
    /// The upper end of the range.
    pub high: Bound<&'a [u8]>,
    /// Whether the batch begins at the upper end.
    pub descending: bool,
    /// The most records of the batch.
    pub most: usize,
    /// Whether to leave values out.
    pub only_keys: bool,
    /// The condition that values must meet.
    pub condition: Option<&'a Condition>,
}

/// Some records of a range, in the requested order.
#[derive(Debug, Default)]
pub struct Batch {
    /// Keys and values.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// The key after which the next batch begins; `None` if this is the last batch.
    pub last: Option<Vec<u8>>,
}

impl Store {
    /// An empty store of at most `memory` bytes.
    ///
    /// # Errors
    /// If `memory` is less than a MiB.
    pub fn new(memory: usize) -> Result<Store, StoreError> {
        if memory < MEMORY_MIN {
            return Err(StoreError::LittleMemory(memory));
        }
        let mut slab = Slab::new(memory);
        let bucket = Bucket::new(&mut slab).map_err(|Full| StoreError::LittleMemory(memory))?;
        Ok(Store { slab, bucket })
    }

    /// Bytes in use, and the limit.
    pub fn memory(&self) -> (usize, usize) {
        (self.slab.used(), self.slab.limit())
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.bucket.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.bucket.get(&self.slab, key).map(|record| record.value)
    }

    /// Sets the value of a key. Returns whether the key is new.
    ///
    /// # Errors
    /// If key or value are too long, or the memory is full.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(StoreError::LongKey(key.len()));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(StoreError::LongValue(value.len()));
        }
        let put = self.bucket.put(&mut self.slab, key, value, None);
        put.map(|was_there| !was_there).map_err(|Full| StoreError::Full(self.slab.limit()))
    }

    /// Removes the record of a key. Returns whether there was one.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.bucket.remove(&mut self.slab, key)
    }

    /// The number of records in a range.
    pub fn count(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> usize {
        walk::count(&self.bucket, &self.slab, (low, high))
    }

    /// The first records of a range.
    pub fn batch(&self, wanted: &Wanted<'_>) -> Batch {
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
