//! Loaded tables as files that code reads at offsets, by the path `table:NAME` or `table:NAME@LOW..HIGH`: their records
//! in order, as they were before the load.
//!
//! Model: a table that is opened is counted, bucket by bucket. A read begins at the nearest key before its offset whose
//! place is known: where a bucket began, or an earlier read ended.
//! Invariant: a file has the bytes that were counted; if records are added or removed while it is open, reads fail.
//! Values may change.
//! Non-goals: writing.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use thalweg_api::TableForm;
use thalweg_io::threads::{Calls, Threads};
use thalweg_io::{
    Action, Backend, Caching, Error as IoError, FileId, Kind, Metadata, Queue, ReadFiles, Result as IoResult,
};

use super::error::{Error, Result};
use super::interval::{Bytes, Interval, Upper, successor};
use super::load::whole;
use super::nodes::Tables;
use super::stream::locked;
use super::table::{ClusterOptions, Table};
use super::text;

/// The most reads at a time: a few for each node.
const THREADS: usize = 16;
/// The most places that are remembered of a file.
const PLACES_MAX: usize = 64 << 10;
/// The device number of tables: one that the system never uses, nor a volume.
const DEVICE: u64 = u64::MAX - 1;
const PREFIX: &str = "table:";

/// Loaded tables of a cluster as files. Cheap to clone.
#[derive(Clone)]
pub struct TableFiles(Arc<Inner>);

struct Inner {
    tables: Tables,
    threads: Threads,
    /// The tables by path, each counted once.
    counted: Mutex<HashMap<String, Arc<Counted>>>,
    open: Mutex<(i32, HashMap<i32, Arc<Counted>>)>,
}

/// A part of a table whose records were counted.
struct Counted {
    table: Table,
    form: TableForm,
    /// The number of this part among those of this process.
    number: u64,
    records: u64,
    /// Where buckets began: the number of a record, and the key.
    buckets: BTreeMap<u64, Bytes>,
    to: Upper,
    /// Where earlier reads ended.
    places: Mutex<BTreeMap<u64, Bytes>>,
}

/// Whether a path is that of a table.
pub fn is_table(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with(PREFIX))
}

impl TableFiles {
    /// The loaded tables of a cluster.
    pub fn new(tables: Tables) -> TableFiles {
        let (counted, open) = (Mutex::default(), Mutex::default());
        TableFiles(Arc::new(Inner { tables, threads: Threads::new(THREADS), counted, open }))
    }

    /// Divides a table, or a part of it, where buckets begin, into at most `count` parts with about as many records
    /// each. Returns their paths, in order; none if there are no records.
    ///
    /// # Errors
    /// If there is no such table, it was not loaded, or its nodes cannot be reached.
    pub fn divided(&self, path: &Path, count: usize) -> Result<Vec<String>> {
        let part = self.0.part(path)?;
        let first = |i: usize| {
            let (number, key) = part.buckets.range(part.records * i as u64 / count as u64..).next()?;
            (*number < part.records).then_some(key)
        };
        let mut from: Vec<&Bytes> = (0..count).filter_map(first).collect();
        from.dedup();
        let to = from.iter().skip(1).map(|key| Upper::Key((*key).clone())).chain([part.to.clone()]);
        let path = path.to_string_lossy();
        let name = path.split('@').next().unwrap_or_default();
        let path_of =
            |(from, to): (&&Bytes, Upper)| format!("{name}@{}", Interval { from: (*from).clone(), to });
        Ok(from.iter().zip(to).map(path_of).collect())
    }
}

impl Inner {
    /// The part of a table that a path names.
    fn part(&self, path: &Path) -> Result<Arc<Counted>> {
        let refused = || Error::Refused(format!("'{}' is no table", path.display()));
        let path = path.to_str().and_then(|path| path.strip_prefix(PREFIX)).ok_or_else(refused)?;
        let mut counted = locked(&self.counted);
        if let Some(known) = counted.get(path) {
            return Ok(Arc::clone(known));
        }
        let (name, keys) = path.split_once('@').map_or((path, None), |(name, keys)| (name, Some(keys)));
        let keys = keys.map(|keys| Interval::parse(keys, text::parse)).transpose().map_err(Error::Refused)?;
        let table = Table::open_with(&self.tables, name, ClusterOptions::default())?;
        let form = table.form().cloned().ok_or_else(|| Error::NoForm(name.into()))?;
        let number = counted.len() as u64;
        let part = Arc::new(Counted::new(table, form, number, keys.unwrap_or(Interval::all()))?);
        counted.insert(path.into(), Arc::clone(&part));
        Ok(part)
    }

    fn file(&self, id: FileId) -> Arc<Counted> {
        Arc::clone(locked(&self.open).1.get(&id.0).expect("an id is used while its file is open"))
    }
}

impl Counted {
    fn new(table: Table, form: TableForm, number: u64, keys: Interval) -> Result<Counted> {
        let (mut records, mut buckets) = (0, BTreeMap::new());
        for counted in table.counts(keys.clone()) {
            let (interval, count) = counted?;
            buckets.insert(records, interval.from);
            records += count;
        }
        Ok(Counted { table, form, number, records, buckets, to: keys.to, places: Mutex::default() })
    }

    fn bytes(&self) -> u64 {
        self.records * u64::from(self.form.record_bytes)
    }

    /// Fills `into` from an offset. Returns fewer bytes at the end.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let record_bytes = u64::from(self.form.record_bytes);
        let end = (at + into.len() as u64).min(self.bytes());
        if at >= end {
            return Ok(0);
        }
        let (first, behind) = (at / record_bytes, end.div_ceil(record_bytes));
        let near = |places: &BTreeMap<u64, Bytes>| {
            places.range(..=first).next_back().map(|(place, key)| (*place, key.clone()))
        };
        let (from, key) = near(&self.buckets).max(near(&locked(&self.places))).expect("a bucket is first");
        // After the last record there must be none.
        let wanted = self
            .table
            .range(Interval { from: key, to: self.to.clone() })
            .limit(behind - from + u64::from(behind == self.records));
        let mut bytes = Vec::with_capacity(((behind - first) * record_bytes) as usize);
        let (mut number, mut last) = (from, Bytes::default());
        let changed =
            || Error::Refused("records were added to the table or removed while it was read".into());
        for record in wanted {
            let (key, value) = record?;
            // Where a bucket began there are as many records before it as were counted.
            if let Some(begins) = self.buckets.get(&number)
                && (*key < **begins || (*last >= **begins && number > from))
            {
                return Err(changed());
            }
            if number >= first {
                whole(&self.form, &key, &value, &mut bytes)?;
            }
            number += 1;
            last = key.into();
        }
        let begins = self.buckets.get(&behind).filter(|_| behind < self.records);
        if number != behind || begins.is_some_and(|begins| *last >= **begins) {
            return Err(changed());
        }
        let mut places = locked(&self.places);
        if places.len() < PLACES_MAX {
            places.insert(behind, successor(&last));
        }
        let skipped = (at - first * record_bytes) as usize;
        let read = (end - at) as usize;
        into[..read].copy_from_slice(&bytes[skipped..skipped + read]);
        Ok(read)
    }

    fn metadata(&self) -> Metadata {
        Metadata {
            len: self.bytes(),
            is_regular: true,
            is_directory: false,
            device: DEVICE,
            inode: self.number,
            modified_ns: 0,
            changed_ns: 0,
            mode: 0o400,
        }
    }
}

fn failed(action: Action, path: &Path, why: Error) -> IoError {
    IoError::new(action, path, io::Error::other(why))
}

impl Calls for Inner {
    fn attempt(&self, id: FileId, kind: Kind, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        match kind {
            Kind::Read => self.file(id).read(at, bytes).map_err(io::Error::other),
            Kind::Write => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Backend for TableFiles {
    fn name(&self) -> &'static str {
        "table"
    }

    fn queue(&self, depth: usize) -> IoResult<Box<dyn Queue>> {
        Ok(self.0.threads.queue_of(Arc::clone(&self.0) as Arc<dyn Calls>, depth))
    }

    fn close(&self, id: FileId) {
        locked(&self.0.open).1.remove(&id.0);
    }
}

impl ReadFiles for TableFiles {
    fn open_to_read(&self, path: &Path, _: Caching) -> IoResult<(FileId, bool)> {
        let part = self.0.part(path).map_err(|why| failed(Action::Open, path, why))?;
        let mut open = locked(&self.0.open);
        open.0 += 1;
        let id = open.0;
        open.1.insert(id, part);
        Ok((FileId(id), false))
    }

    fn metadata(&self, id: FileId, _: &Path) -> IoResult<Metadata> {
        Ok(self.0.file(id).metadata())
    }

    fn stat(&self, path: &Path) -> IoResult<Metadata> {
        let part = self.0.part(path).map_err(|why| failed(Action::Stat, path, why))?;
        Ok(part.metadata())
    }

    fn cached_share(&self, _: FileId, _: u64) -> f64 {
        0.0
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> IoResult<usize> {
        let read = self.0.file(id).read(at, into);
        read.map_err(|why| IoError { offset: Some(at), ..failed(Action::Read, path, why) })
    }
}
