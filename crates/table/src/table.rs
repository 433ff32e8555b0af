//! A table as a program uses it: in the memory of the process, or on the nodes of a cluster.
//!
//! Model: threads share a [`Table`] by reference. In memory, reads run concurrently and a write runs alone; a
//! [`Records`] reads a batch of records at a time and holds no lock between two batches.
//! Invariant: a range returns, in order and exactly once, every record that exists during the whole iteration. It is
//! not a snapshot: of a record that is written in that time, it returns the old or the new value.
//! Non-goals: how a cluster answers, which is in `cluster`, and Redis clients, which [`crate::Server`] serves.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::cluster::{self, Answer, Arrange, ClusterOptions, Error, Interval, Operation, Result, Tables};
use crate::condition::Condition;
use crate::store::{Store, Wanted};

/// Records in the first batch of a range in memory; each following batch is twice as large.
const BATCH_MIN: usize = 16;
/// The most records in a batch.
const BATCH_MAX: usize = 1024;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Ordered records, each a key and a value: in the memory of this process, or on the nodes of a cluster.
///
/// ```
/// use thalweg_table::{Condition, Table, cluster::Error};
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
/// let last_two: Vec<_> = films.range("film:1"..="film:9").descending().limit(2).keys_only().collect::<Result<_,
/// _>>()?; assert!(last_two.iter().map(|(key, _)| &key[..]).eq([b"film:3", b"film:2"])); let condition =
/// Condition::parse(b"contains:Third")?; let found: Vec<_> = films.find(.., condition).collect::<Result<_, _>>()?;
/// assert_eq!(found, [(b"film:2".to_vec(), b"The Third Man".to_vec())]); assert_eq!(films.count("film:2".., None)?, 2);
///
/// // The memory is bounded.
/// let small = Table::in_memory(1 << 20)?;
/// let full = (0..2000).find_map(|i: u32| small.upsert(i.to_be_bytes(), [0; 1000]).err());
/// assert_eq!(full, Some(Error::MemoryFull(1 << 20)));
/// # Ok(())
/// # }
/// ```
pub struct Table(Kind);

enum Kind {
    Memory(Box<RwLock<Store>>),
    Cluster(cluster::Table),
}

fn read(store: &RwLock<Store>) -> RwLockReadGuard<'_, Store> {
    store.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(store: &RwLock<Store>) -> RwLockWriteGuard<'_, Store> {
    store.write().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// An empty table in the memory of this process, which takes at most `bytes` bytes.
    ///
    /// # Errors
    /// If `bytes` is less than 1 MiB.
    pub fn in_memory(bytes: u64) -> Result<Table> {
        let store = Store::new(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(Table(Kind::Memory(Box::new(RwLock::new(store)))))
    }

    /// A table of a cluster.
    ///
    /// # Errors
    /// If there is none of this name, or the registrar cannot be reached.
    pub fn open(tables: &Tables, name: &str) -> Result<Table> {
        Table::open_with(tables, name, ClusterOptions::default())
    }

    /// A table of a cluster, used in a certain way.
    ///
    /// # Errors
    /// If there is none of this name, or the registrar cannot be reached.
    pub fn open_with(tables: &Tables, name: &str, options: ClusterOptions) -> Result<Table> {
        cluster::Table::open_with(tables, name, options).map(Kind::Cluster).map(Table)
    }

    /// Changes which buckets there are, or which node has them, and waits until it is done. Records can be used
    /// meanwhile.
    ///
    /// # Errors
    /// If the table is in memory; or the node that should get a bucket has no room, or cannot be reached.
    pub fn arrange(&self, arrange: Arrange) -> Result<()> {
        match &self.0 {
            Kind::Memory(_) => Err(Error::Refused("a table in memory has no buckets to arrange".into())),
            Kind::Cluster(table) => table.arrange(arrange),
        }
    }

    /// Submits an operation without waiting for its answer, so that a cluster works on many at a time. Waits only while
    /// as many are outstanding as [`ClusterOptions`] allow.
    ///
    /// # Errors
    /// If the key or the value is too long; or, in memory, if the operation failed.
    pub fn submit(&self, operation: Operation) -> Result<Ticket> {
        match &self.0 {
            Kind::Cluster(table) => table.submit(operation).map(Awaited::Cluster).map(Ticket),
            Kind::Memory(store) => {
                let mut store = write(store);
                let or = |is_done: bool, otherwise| if is_done { Answer::Done } else { otherwise };
                let answer = match &operation {
                    Operation::Get { key } => Answer::Value(store.get(key).map(Into::into)),
                    Operation::Insert { key, value } => {
                        or(store.compare_and_set(key, None, Some(value))?, Answer::Exists)
                    }
                    Operation::Upsert { key, value } => store.put(key, value).map(|_| Answer::Done)?,
                    Operation::Update { key, value } => or(store.update(key, value)?, Answer::Missing),
                    Operation::Delete { key } => or(store.remove(key), Answer::Missing),
                    Operation::CompareAndSet { key, expected, value } => {
                        let is_done = store.compare_and_set(key, expected.as_deref(), value.as_deref())?;
                        or(is_done, Answer::Differs(store.get(key).map(Into::into)))
                    }
                };
                Ok(Ticket(Awaited::Memory(answer)))
            }
        }
    }

    /// Inserts a record. Returns false if there is one with this key.
    ///
    /// # Errors
    /// If the key or the value is too long, or the memory is full. On a cluster also [`Error::Uncertain`] if no node has
    /// answered: then the change may have been made.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.compare_and_set(key, None, Some(value.as_ref()))
    }

    /// Inserts a record, or replaces the value of the one with this key.
    ///
    /// # Errors
    /// As for [`Table::insert`].
    pub fn upsert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        match &self.0 {
            Kind::Memory(store) => write(store).put(key.as_ref(), value.as_ref()).map(drop),
            Kind::Cluster(table) => table.upsert(key.as_ref(), value.as_ref()),
        }
    }

    /// Replaces the value of a record. Returns false if there is none with this key.
    ///
    /// # Errors
    /// As for [`Table::insert`].
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        match &self.0 {
            Kind::Memory(store) => write(store).update(key.as_ref(), value.as_ref()),
            Kind::Cluster(table) => table.update(key.as_ref(), value.as_ref()),
        }
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// If the node with the record cannot be reached.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        match &self.0 {
            Kind::Memory(store) => Ok(read(store).get(key.as_ref()).map(<[u8]>::to_vec)),
            Kind::Cluster(table) => table.get(key.as_ref()),
        }
    }

    /// Removes a record. Returns false if there is none with this key.
    ///
    /// # Errors
    /// On a cluster, [`Error::Uncertain`] if no node has answered: then the change may have been made.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        match &self.0 {
            Kind::Memory(store) => Ok(write(store).remove(key.as_ref())),
            Kind::Cluster(table) => table.delete(key.as_ref()),
        }
    }

    /// Sets the value of a key if its current value is `expected`. Returns whether it was. `None` stands for a missing
    /// record: as `expected` it makes this an insert, and as `value` a removal.
    ///
    /// # Errors
    /// As for [`Table::insert`].
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<bool> {
        match &self.0 {
            Kind::Memory(store) => write(store).compare_and_set(key.as_ref(), expected, value),
            Kind::Cluster(table) => table.compare_and_set(key.as_ref(), expected, value),
        }
    }

    /// The records of an interval of keys, in order.
    pub fn range(&self, keys: impl Into<Interval>) -> Records<'_> {
        self.records(keys.into(), None)
    }

    /// The records of an interval whose values meet a condition, in order of their keys.
    pub fn find(&self, keys: impl Into<Interval>, condition: Condition) -> Records<'_> {
        self.records(keys.into(), Some(condition))
    }

    fn records(&self, keys: Interval, condition: Option<Condition>) -> Records<'_> {
        Records(match &self.0 {
            Kind::Memory(store) => Source::Memory(Batches::new(store, keys, condition)),
            Kind::Cluster(table) => Source::Cluster(match condition {
                Some(condition) => table.find(keys, &condition),
                None => table.range(keys),
            }),
        })
    }

    /// The number of records in an interval, or of those whose values meet a condition.
    ///
    /// # Errors
    /// If a node with records of the interval cannot be reached.
    pub fn count(&self, keys: impl Into<Interval>, condition: Option<Condition>) -> Result<u64> {
        let keys = keys.into();
        match (&self.0, condition) {
            (Kind::Cluster(table), condition) => table.count(keys, condition.as_ref()),
            (Kind::Memory(store), None) => {
                let (low, high) = keys.bounds();
                let high = high.map_or(Bound::Unbounded, Bound::Excluded);
                Ok(read(store).count(Bound::Included(low), high) as u64)
            }
            (Kind::Memory(_), condition) => self
                .records(keys, condition)
                .keys_only()
                .try_fold(0, |count, record| record.map(|_| count + 1)),
        }
    }

    /// The bytes that the records and their index take in this process, and the limit; `None` on a cluster.
    pub fn memory(&self) -> Option<(u64, u64)> {
        let Kind::Memory(store) = &self.0 else { return None };
        let (used, limit) = read(store).memory();
        Some((used as u64, limit as u64))
    }
}

/// A submitted operation, whose answer can be waited for.
pub struct Ticket(Awaited);

enum Awaited {
    Memory(Answer),
    Cluster(cluster::Ticket),
}

impl Ticket {
    /// Whether [`Ticket::wait`] returns at once.
    pub fn is_answered(&self) -> bool {
        match &self.0 {
            Awaited::Memory(_) => true,
            Awaited::Cluster(ticket) => ticket.is_answered(),
        }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// If the operation failed, or it is not known whether it succeeded.
    pub fn wait(self) -> Result<Answer> {
        match self.0 {
            Awaited::Memory(answer) => Ok(answer),
            Awaited::Cluster(ticket) => ticket.wait(),
        }
    }
}

/// Records of a table in order, read on demand. After an error there are no more.
pub struct Records<'a>(Source<'a>);

enum Source<'a> {
    Memory(Batches<'a>),
    Cluster(cluster::Range),
}

impl<'a> Records<'a> {
    /// Reads from the last record to the first. This method and the two below are for records of which none was read.
    pub fn descending(self) -> Records<'a> {
        self.with(|batches| batches.descending = true, cluster::Range::descending)
    }

    /// Reads at most `limit` records.
    pub fn limit(self, limit: u64) -> Records<'a> {
        self.with(|batches| batches.left = limit, |range| range.limit(limit))
    }

    /// Reads keys without their values, which are empty then.
    pub fn keys_only(self) -> Records<'a> {
        self.with(|batches| batches.only_keys = true, cluster::Range::keys_only)
    }

    /// On a cluster, ends after this time with the records that have arrived by then, without an error: some may be
    /// missing (probabilistic termination in paper 002). [`Records::is_whole`] tells.
    pub fn within(self, time: Duration) -> Records<'a> {
        self.with(|_| (), |range| range.within(time))
    }

    /// The key and the value of the next record, which are not copied for the caller; `None` at the end. Four times as
    /// fast as the iterator on a cluster.
    ///
    /// # Errors
    /// If a node with records of the range cannot be reached. There are no more records then.
    pub fn read(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match &mut self.0 {
            Source::Memory(batches) => {
                batches.current = batches.next();
                Ok(batches.current.as_ref().map(|(key, value)| (&key[..], &value[..])))
            }
            Source::Cluster(range) => range.read(),
        }
    }

    /// Whether all records were read.
    pub fn is_whole(&self) -> bool {
        match &self.0 {
            Source::Memory(batches) => batches.is_done(),
            Source::Cluster(range) => range.is_whole(),
        }
    }

    fn with(
        self,
        memory: impl FnOnce(&mut Batches<'a>),
        cluster: impl FnOnce(cluster::Range) -> cluster::Range,
    ) -> Records<'a> {
        Records(match self.0 {
            Source::Memory(mut batches) => {
                memory(&mut batches);
                Source::Memory(batches)
            }
            Source::Cluster(range) => Source::Cluster(cluster(range)),
        })
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        match &mut self.0 {
            Source::Memory(batches) => batches.next().map(Ok),
            Source::Cluster(range) => range.next(),
        }
    }
}

/// Records of a table in memory, read in batches.
struct Batches<'a> {
    store: &'a RwLock<Store>,
    /// The bounds of the keys that have not been read yet.
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    /// Records that were read but not returned yet.
    ready: VecDeque<Record>,
    /// The record that [`Records::read`] has returned last.
    current: Option<Record>,
    is_read: bool,
    /// The most records of the next batch.
    most: usize,
    /// The records that may still be returned.
    left: u64,
    descending: bool,
    only_keys: bool,
    condition: Option<Condition>,
}

impl<'a> Batches<'a> {
    fn new(store: &'a RwLock<Store>, keys: Interval, condition: Option<Condition>) -> Batches<'a> {
        let (low, high) = keys.bounds();
        Batches {
            store,
            low: Bound::Included(low.into()),
            high: high.map_or(Bound::Unbounded, |high| Bound::Excluded(high.into())),
            ready: VecDeque::new(),
            current: None,
            is_read: false,
            most: BATCH_MIN,
            left: u64::MAX,
            descending: false,
            only_keys: false,
            condition,
        }
    }

    fn read(&mut self) {
        let batch = read(self.store).batch(&Wanted {
            low: self.low.as_ref().map(Vec::as_slice),
            high: self.high.as_ref().map(Vec::as_slice),
            descending: self.descending,
            most: self.most,
            only_keys: self.only_keys,
            condition: self.condition.as_ref(),
        });
        self.most = (2 * self.most).min(BATCH_MAX);
        self.is_read = batch.last.is_none();
        self.ready.extend(batch.records);
        if let Some(last) = batch.last {
            let end = if self.descending { &mut self.high } else { &mut self.low };
            *end = Bound::Excluded(last);
        }
    }

    fn is_done(&self) -> bool {
        self.left == 0 || (self.is_read && self.ready.is_empty())
    }

    fn next(&mut self) -> Option<Record> {
        self.left = self.left.checked_sub(1)?;
        while self.ready.is_empty() && !self.is_read {
            self.read();
        }
        self.ready.pop_front()
    }
}
