//! The database that Redis clients see: keys with strings, and keys that name tables.
//!
//! Model: all strings are records of one bucket. A hash is a table of its fields, and a sorted set is a table of its
//! members; each table has its own bucket. Expired records are removed on access, and by [`Keyspace::sweep`].
//! Invariant: a key has one type. A table without records is removed.
//! Non-goals: the protocol.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::bucket::{Bucket, prefetch};
use crate::error::Refusal;
use crate::slab::{Full, KEY_BYTES_MAX, Record, Slab, VALUE_BYTES_MAX};
use crate::walk::{self, End, Walk};

/// The approximate memory of a table's name and map entry, without its bucket.
const TABLE_BYTES: usize = 2 << 10;
/// The records that one step of [`Keyspace::sweep`] looks at.
const SWEPT: usize = 1000;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    String,
    Hash,
    /// Members in the order of their bytes, all with this score.
    Sorted(f64),
}

impl Kind {
    /// The name of the type in replies to TYPE.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Sorted(_) => "zset",
        }
    }
}

/// A hash or a sorted set.
pub(crate) struct Table {
    pub(crate) kind: Kind,
    bucket: Bucket,
    expires_ms: Option<i64>,
}

/// The keys of one database.
pub(crate) struct Keyspace {
    slab: Slab,
    strings: Bucket,
    tables: BTreeMap<Box<[u8]>, Table>,
    /// Where the sweep continues.
    swept: Option<Vec<u8>>,
    /// An upper bound of the number of keys that may expire. Each full sweep counts them again.
    ending: usize,
    found_ending: usize,
    /// Watched keys: the number of changes of each since it was first watched, and the number of its watchers.
    watched: HashMap<Vec<u8>, (u64, usize)>,
    /// The current time in milliseconds since 1970.
    pub(crate) now_ms: i64,
}

impl Keyspace {
    /// An empty keyspace of at most `memory` bytes.
    pub(crate) fn new(memory: usize) -> Result<Keyspace, Full> {
        let mut slab = Slab::new(memory);
        let strings = Bucket::new(&mut slab)?;
        Ok(Keyspace {
            slab,
            strings,
            tables: BTreeMap::new(),
            swept: None,
            ending: 0,
            found_ending: 0,
            watched: HashMap::new(),
            now_ms: 0,
        })
    }

    /// Bytes in use, and the limit.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.slab.used(), self.slab.limit())
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.strings.len() + self.tables.len()
    }

    fn has_ended(&self, expires_ms: Option<i64>) -> bool {
        expires_ms.is_some_and(|at| at <= self.now_ms)
    }

    /// The type of a key's value, if the key exists.
    pub(crate) fn kind(&mut self, key: &[u8]) -> Option<Kind> {
        self.expiry(key).map(|_| self.tables.get(key).map_or(Kind::String, |table| table.kind))
    }

    /// When a key expires, if ever; `None` if it does not exist.
    pub(crate) fn expiry(&mut self, key: &[u8]) -> Option<Option<i64>> {
        let found = match self.tables.get(key) {
            Some(table) => table.expires_ms,
            None => self.strings.get(&self.slab, key)?.expires_ms,
        };
        if self.has_ended(found) {
            self.delete(key);
            return None;
        }
        Some(found)
    }

    /// The string of a key, if the key exists.
    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<Record<'_>>, Refusal> {
        match self.strings.find(&self.slab, key) {
            Some(cell) if self.has_ended(self.slab.record(cell).expires_ms) => {
                self.delete(key);
                Ok(None)
            }
            Some(cell) => Ok(Some(self.slab.record(cell))),
            None if self.tables.contains_key(key) && self.kind(key).is_some() => Err(Refusal::WrongType),
            None => Ok(None),
        }
    }

    /// Sets a key to a string, whatever it held before.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], expires_ms: Option<i64>) -> Result<(), Refusal> {
        fits(key, value)?;
        self.strings.put(&mut self.slab, key, value, expires_ms)?;
        if !self.tables.is_empty() {
            self.drop_table(key);
        }
        self.ending += usize::from(expires_ms.is_some());
        self.touch(key);
        Ok(())
    }

    /// Sets when a key expires, if ever. Returns whether the key exists.
    pub(crate) fn expire(&mut self, key: &[u8], expires_ms: Option<i64>) -> Result<bool, Refusal> {
        if self.expiry(key).is_none() {
            return Ok(false);
        }
        if self.has_ended(expires_ms) {
            return Ok(self.delete(key));
        }
        if let Some(table) = self.tables.get_mut(key) {
            table.expires_ms = expires_ms;
        } else if let Some(record) = self.strings.get(&self.slab, key) {
            let value = record.value.to_vec();
            self.strings.put(&mut self.slab, key, &value, expires_ms)?;
        }
        self.ending += usize::from(expires_ms.is_some());
        self.touch(key);
        Ok(true)
    }

    /// Removes a key. Returns whether it existed.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let is_string = self.strings.remove(&mut self.slab, key);
        let was_there = is_string || self.drop_table(key);
        if was_there {
            self.touch(key);
        }
        was_there
    }

    /// Removes a key unless it has already expired. Returns whether it existed.
    pub(crate) fn delete_live(&mut self, key: &[u8]) -> bool {
        self.expiry(key).is_some() && self.delete(key)
    }

    fn drop_table(&mut self, name: &[u8]) -> bool {
        let Some(table) = self.tables.remove(name) else { return false };
        table.bucket.clear(&mut self.slab);
        self.slab.give(TABLE_BYTES);
        true
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) -> Result<(), Refusal> {
        let strings = Bucket::new(&mut self.slab)?;
        std::mem::replace(&mut self.strings, strings).clear(&mut self.slab);
        while let Some((name, _)) = self.tables.first_key_value() {
            let name = name.clone();
            self.drop_table(&name);
        }
        self.watched.values_mut().for_each(|(changes, _)| *changes += 1);
        Ok(())
    }

    /// The hash or sorted set of this name, if it exists. It is an error if `is` rejects its type.
    pub(crate) fn table(
        &mut self,
        name: &[u8],
        is: fn(Kind) -> bool,
    ) -> Result<Option<TableRef<'_>>, Refusal> {
        match self.kind(name) {
            None => Ok(None),
            Some(kind) if is(kind) => {
                Ok(self.tables.get(name).map(|table| TableRef { table, slab: &self.slab }))
            }
            Some(_) => Err(Refusal::WrongType),
        }
    }

    /// Stores a record in the table of this name, which is created if necessary. Returns whether the record is new.
    pub(crate) fn put(&mut self, name: &[u8], kind: Kind, key: &[u8], value: &[u8]) -> Result<bool, Refusal> {
        fits(name, b"")?;
        fits(key, value)?;
        let is_new = match (self.kind(name), kind) {
            (None, _) => true,
            (Some(Kind::Hash), Kind::Hash) => false,
            (Some(Kind::Sorted(has)), Kind::Sorted(score)) => {
                if has != score {
                    return Err(Refusal::Score(has));
                }
                false
            }
            _ => return Err(Refusal::WrongType),
        };
        if is_new {
            self.slab.take(TABLE_BYTES)?;
            let bucket = Bucket::new(&mut self.slab).inspect_err(|_| self.slab.give(TABLE_BYTES))?;
            self.tables.insert(name.into(), Table { kind, bucket, expires_ms: None });
        }
        let table = self.tables.get_mut(name).expect("it is there, or was just made");
        let was_there = table.bucket.put(&mut self.slab, key, value, None);
        if was_there.is_err() && is_new {
            self.drop_table(name);
        }
        let was_there = was_there?;
        self.touch(name);
        Ok(!was_there)
    }

    /// Removes a record from the table of this name, if both exist. Returns whether the record existed.
    pub(crate) fn take(&mut self, name: &[u8], key: &[u8]) -> bool {
        let Some(table) = self.tables.get_mut(name) else { return false };
        if !table.bucket.remove(&mut self.slab, key) {
            return false;
        }
        if table.bucket.len() == 0 {
            self.drop_table(name);
        }
        self.touch(name);
        true
    }

    /// Visits up to `most` keys after `after`, in order. Returns the last one if there may be more.
    pub(crate) fn scan(
        &self,
        after: Option<&[u8]>,
        most: usize,
        mut found: impl FnMut(&[u8], Kind),
    ) -> Option<Vec<u8>> {
        self.walk(after, most, |key, kind, expires_ms| {
            if !self.has_ended(expires_ms) {
                found(key, kind);
            }
        })
    }

    /// Strings and tables are visited together: a key may change its type meanwhile, and must not be missed.
    fn walk(
        &self,
        after: Option<&[u8]>,
        most: usize,
        mut found: impl FnMut(&[u8], Kind, Option<i64>),
    ) -> Option<Vec<u8>> {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut strings = Walk::new(&self.strings, &self.slab, (behind, Bound::Unbounded), false).peekable();
        let mut tables = self.tables.range::<[u8], _>((behind, Bound::Unbounded)).peekable();
        let mut last = None;
        for _ in 0..most {
            let table = tables.next_if(|(name, _)| strings.peek().is_none_or(|string| ***name < *string.key));
            last = Some(match table {
                Some((name, table)) => {
                    found(name, table.kind, table.expires_ms);
                    &name[..]
                }
                None => {
                    let string = strings.next()?;
                    found(string.key, Kind::String, string.expires_ms);
                    string.key
                }
            });
        }
        last.map(<[u8]>::to_vec)
    }

    /// Removes some of the expired keys, and continues after them the next time.
    pub(crate) fn sweep(&mut self) {
        if self.ending == 0 {
            return;
        }
        let (mut ended, mut live) = (Vec::new(), 0);
        let last = self.walk(self.swept.as_deref(), SWEPT, |key, _, expires_ms| match expires_ms {
            Some(_) if self.has_ended(expires_ms) => ended.push(key.to_vec()),
            Some(_) => live += 1,
            None => {}
        });
        for key in &ended {
            self.delete(key);
        }
        self.found_ending += live;
        if last.is_none() {
            (self.ending, self.found_ending) = (self.found_ending, 0);
        }
        self.swept = last;
    }

    /// Whether a sweep may find something to remove.
    pub(crate) fn may_end(&self) -> bool {
        self.ending > 0
    }

    /// Prefetches the records of requests with these first two arguments: a key, or the name of a table and one of its keys.
    pub(crate) fn prefetch<'a>(&'a self, requests: impl Iterator<Item = [Option<&'a [u8]>; 2]>) {
        let search = |[first, second]: [Option<&'a [u8]>; 2]| {
            let table = if self.tables.is_empty() { None } else { self.tables.get(first?) };
            match table {
                Some(table) => Some((&table.bucket, second?)),
                None => Some((&self.strings, first?)),
            }
        };
        prefetch(&self.slab, requests.filter_map(search));
    }

    /// Begins to watch a key. Returns the number of its changes so far.
    pub(crate) fn watch(&mut self, key: &[u8]) -> u64 {
        let (changes, watchers) = self.watched.entry(key.to_vec()).or_default();
        *watchers += 1;
        *changes
    }

    /// Ends one watch of a key. Returns whether the key has changed since `watch` returned `changes`.
    pub(crate) fn unwatch(&mut self, key: &[u8], changes: u64) -> bool {
        let Some((now, watchers)) = self.watched.get_mut(key) else { return true };
        let has_changed = *now != changes;
        *watchers -= 1;
        if *watchers == 0 {
            self.watched.remove(key);
        }
        has_changed
    }

    fn touch(&mut self, key: &[u8]) {
        if !self.watched.is_empty()
            && let Some((changes, _)) = self.watched.get_mut(key)
        {
            *changes += 1;
        }
    }
}

/// A table, for reading.
pub(crate) struct TableRef<'a> {
    table: &'a Table,
    slab: &'a Slab,
}

impl<'a> TableRef<'a> {
    pub(crate) fn kind(&self) -> Kind {
        self.table.kind
    }

    pub(crate) fn len(&self) -> usize {
        self.table.bucket.len()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.table.bucket.get(self.slab, key).map(|record| record.value)
    }

    /// The number of records in a range.
    pub(crate) fn count(&self, range: (End<'_>, End<'_>)) -> usize {
        walk::count(&self.table.bucket, self.slab, range)
    }

    /// The records of a range, in order.
    pub(crate) fn walk<'b>(&self, range: (End<'b>, End<'b>), is_descending: bool) -> Walk<'b>
    where
        'a: 'b,
    {
        Walk::new(&self.table.bucket, self.slab, range, is_descending)
    }
}

impl Keyspace {
    /// Checks that a key and a value are within their limits.
    pub(crate) fn fits(&self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        fits(key, value)
    }
}

fn fits(key: &[u8], value: &[u8]) -> Result<(), Refusal> {
    match (key.len(), value.len()) {
        (bytes, _) if bytes > KEY_BYTES_MAX => Err(Refusal::LongKey(bytes)),
        (_, bytes) if bytes > VALUE_BYTES_MAX => Err(Refusal::LongValue(bytes)),
        _ => Ok(()),
    }
}
