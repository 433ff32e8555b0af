//! Tables as a library: ordered records, each a key and a value.
//!
//! Model: threads share a [`Table`] by reference. Reads run concurrently, and a write runs alone. A [`Range`] reads a
//! batch of records at a time and holds no lock between two batches.
//! Invariant: a range returns, in order and exactly once, every record that exists during the whole iteration. It is
//! not a snapshot: of a record that is written in that time, it returns the old or the new value.
//! Non-goals: serving Redis clients, which [`Server`] does.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use thalweg_table::cluster;
pub use thalweg_table::{
    CONDITION_BYTES_MAX, Condition, ConditionError, Error, Options, Place, Server, Stop, StoreError, Tls,
};
use thalweg_table::{Store, Wanted};

/// Records in the first batch of a range; each following batch is twice as large.
const BATCH_MIN: usize = 16;
/// The most records in a batch.
const BATCH_MAX: usize = 1024;

/// The result of an operation on a table.
pub type Result<T> = std::result::Result<T, StoreError>;
/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Ordered records in the memory of this process.
///
/// ```
/// use thalweg::Table;
/// use thalweg::table::{Condition, StoreError};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let films = Table::in_memory(64 << 20)?;
/// std::thread::scope(|scope| {
///     let films = &films;
///     let write = move |key: &'static str, name: &'static str| films.insert(key, name);
///     let threads = [("film:2", "The Third Man"), ("film:3", "Rashomon"), ("film:1", "Citizen Kane")]
///         .map(|(key, name)| scope.spawn(move || write(key, name)));
///     threads.into_iter().try_for_each(|thread| thread.join().unwrap().map(|is_new| assert!(is_new)))
/// })?;
/// assert!(!films.insert("film:1", "Kane")?, "there is one already");
/// assert!(films.compare_and_set("film:1", Some(b"Citizen Kane"), Some(b"Kane"))?);
/// assert_eq!(films.get("film:1")?.as_deref(), Some(&b"Kane"[..]));
///
/// // Ascending or descending, as many as are wanted, with values or without.
/// let last_two: Vec<_> = films.keys("film:1"..="film:9").rev().take(2).collect::<Result<_, _>>()?;
/// assert_eq!(last_two, [b"film:3", b"film:2"]);
/// let condition = Condition::parse(b"contains:Third")?;
/// let found: Vec<_> = films.find::<&str>(.., condition).collect::<Result<_, _>>()?;
/// assert_eq!(found, [(b"film:2".to_vec(), b"The Third Man".to_vec())]);
/// assert_eq!(films.count("film:2"..)?, 2);
///
/// // The memory is bounded.
/// let small = Table::in_memory(1 << 20)?;
/// let full = (0..2000).find_map(|i: u32| small.upsert(i.to_be_bytes(), [0; 1000]).err());
/// assert_eq!(full, Some(StoreError::Full(1 << 20)));
/// # Ok(())
/// # }
/// ```
pub struct Table(RwLock<Store>);

impl Table {
    /// An empty table, which takes at most `bytes` bytes of memory.
    ///
    /// # Errors
    /// If `bytes` is less than 1 MiB.
    pub fn in_memory(bytes: u64) -> Result<Table> {
        Store::new(usize::try_from(bytes).unwrap_or(usize::MAX)).map(RwLock::new).map(Table)
    }

    fn read(&self) -> RwLockReadGuard<'_, Store> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Store> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record unless its key exists. Returns whether it was added.
    ///
    /// # Errors
    /// If the key or the value is too long, or the memory is full.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.compare_and_set(key, None, Some(value.as_ref()))
    }

    /// Sets the value of a key. Returns whether the key is new.
    ///
    /// # Errors
    /// If the key or the value is too long, or the memory is full.
    pub fn upsert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.write().put(key.as_ref(), value.as_ref())
    }

    /// Sets the value of an existing key. Returns whether the key exists.
    ///
    /// # Errors
    /// If the value is too long, or the memory is full.
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, mut store) = (key.as_ref(), self.write());
        if store.get(key).is_none() {
            return Ok(false);
        }
        store.put(key, value.as_ref()).map(|_| true)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// None for a table in the memory of this process.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        Ok(self.read().get(key.as_ref()).map(<[u8]>::to_vec))
    }

    /// Removes a record. Returns whether it existed.
    ///
    /// # Errors
    /// None for a table in the memory of this process.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.write().remove(key.as_ref()))
    }

    /// Sets the value of a key if its current value is `expected`. Returns whether it was. `None` stands for a missing
    /// record: as `expected` it makes this an insert, and as `value` a removal.
    ///
    /// # Errors
    /// If the key or the value is too long, or the memory is full.
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<bool> {
        let (key, mut store) = (key.as_ref(), self.write());
        if store.get(key) != expected {
            return Ok(false);
        }
        match value {
            Some(value) => store.put(key, value).map(|_| true),
            None => {
                store.remove(key);
                Ok(true)
            }
        }
    }

    /// The records of a range of keys, in order. `rev` reverses the order, and `take` limits the number.
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Range<'_> {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let (low, high) = (owned(keys.start_bound()), owned(keys.end_bound()));
        Range {
            table: self,
            low,
            high,
            front: VecDeque::new(),
            back: VecDeque::new(),
            is_read: false,
            most: BATCH_MIN,
            only_keys: false,
            condition: None,
        }
    }

    /// The keys of a range, in order.
    pub fn keys<K: AsRef<[u8]>>(
        &self,
        keys: impl RangeBounds<K>,
    ) -> impl DoubleEndedIterator<Item = Result<Vec<u8>>> {
        let range = Range { only_keys: true, ..self.range(keys) };
        range.map(|record| record.map(|(key, _)| key))
    }

    /// The records of a range whose values meet a condition, in order of their keys.
    pub fn find<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>, condition: Condition) -> Range<'_> {
        Range { condition: Some(condition), ..self.range(keys) }
    }

    /// The number of records in a range.
    ///
    /// # Errors
    /// None for a table in the memory of this process.
    pub fn count<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Result<u64> {
        let bound = |bound| Bound::map(bound, |key: &K| key.as_ref());
        Ok(self.read().count(bound(keys.start_bound()), bound(keys.end_bound())) as u64)
    }

    /// The bytes that the records and their index take, and the limit.
    pub fn memory(&self) -> (u64, u64) {
        let (used, limit) = self.read().memory();
        (used as u64, limit as u64)
    }
}

/// Records of a table in order, from either end.
pub struct Range<'a> {
    table: &'a Table,
    /// The bounds of the keys that have not been read yet.
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    /// Records that were read but not returned yet: from the lower end, and from the upper end with the highest first.
    front: VecDeque<Record>,
    back: VecDeque<Record>,
    is_read: bool,
    /// The most records of the next batch.
    most: usize,
    only_keys: bool,
    condition: Option<Condition>,
}

impl Range<'_> {
    fn read(&mut self, descending: bool) {
        let batch = self.table.read().batch(&Wanted {
            low: self.low.as_ref().map(Vec::as_slice),
            high: self.high.as_ref().map(Vec::as_slice),
            descending,
            most: self.most,
            only_keys: self.only_keys,
            condition: self.condition.as_ref(),
        });
        self.most = (2 * self.most).min(BATCH_MAX);
        self.is_read = batch.last.is_none();
        let (records, end) =
            if descending { (&mut self.back, &mut self.high) } else { (&mut self.front, &mut self.low) };
        records.extend(batch.records);
        if let Some(last) = batch.last {
            *end = Bound::Excluded(last);
        }
    }
}

impl Iterator for Range<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        while self.front.is_empty() && !self.is_read {
            self.read(false);
        }
        self.front.pop_front().or_else(|| self.back.pop_back()).map(Ok)
    }
}

impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Result<Record>> {
        while self.back.is_empty() && !self.is_read {
            self.read(true);
        }
        self.back.pop_front().or_else(|| self.front.pop_back()).map(Ok)
    }
}
