//! Loads records that are in order straight into new buckets.
//!
//! ```text
//! client                                 a node                                  registrar
//! Load: id, then Records, Bucket, ... -> builds buckets of the new id
//! Elements, End                       -> knows where all buckets are
//!                                     <- "loaded"
//! Loaded ----------------------------------------------------------------------> freezes the old, empty buckets
//!                                        keeps the new buckets          <------- Keep
//!                                                                                lists the new id, ends the old
//! ```
//!
//! Model: the records go to buckets under an id that no list has yet. The registrar then gives the table this id, in
//! one write of its list. Each node has a stream, and the nodes that have room get the buckets in turn.
//! Invariant: until the registrar has listed the new id, the table is as it was. A node removes what it received if its
//! stream ends before the registrar asked it to keep the buckets. The memory of the client does not depend on how many
//! records there are. Nothing is loaded into a table with records, so no acknowledged change is lost: the registrar
//! freezes the old buckets before it looks at them.
//! Non-goals: to sort the records.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_api::{ServiceRequest, TableEntry, TableForm, TableLoaded, TableRequest, TableShare, from_json};
use thalweg_base::codec::{choice, decode};
use thalweg_block::Pool;
use thalweg_wire::{Incoming, Link, Outgoing, new_id};

use super::error::{Error, Result, fits};
use super::image::{Address, Element};
use super::interval::{Bytes, Interval, Upper};
use super::message::{Spec, TableId};
use super::nodes::{Tables, missing_of};
use super::owned::Owned;
use super::registrar::{find, number};
use super::service::{TableService, spec};
use super::stream::{Reader, framed, locked};
use super::table::now_ms;
use super::text;
use crate::bucket::Bucket;
use crate::slab::{Full, KEY_BYTES_MAX};

/// The bytes of records in a message, beyond one record.
const MESSAGE_BYTES: usize = 64 << 10;
/// The elements in a message: with the longest keys they are half of the longest message.
const ELEMENTS_TOGETHER: usize = 1024;
/// The most loads of a node at a time.
const LOADS_MAX: usize = 16;
/// How long the buckets of a table refuse changes while the registrar replaces them.
const FREEZE_MS: u64 = 5_000;
/// The time of a freeze in which the registrar still begins to replace the table.
const FREEZE_USED_MS: u64 = 3_000;
/// A bucket takes this many times the bytes of its records, at most.
const OVERHEAD: f64 = 1.5;
/// How long it may take until the next bucket of a load has its parity.
const PROTECTED_MS: u64 = 60_000;
/// What a node answers when it has everything.
const ANSWER: &[u8] = b"loaded";

/// A message of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Records of the bucket that is being built, in order.
    Records(Vec<(Bytes, Bytes)>),
    /// The bucket has all records of this interval.
    Bucket(Interval),
    /// Where buckets of the table are.
    Elements(Vec<Element>),
    /// There is nothing more.
    End,
}

choice!(Part {
    0 => Records { 0: records },
    1 => Bucket { 0: interval },
    2 => Elements { 0: elements },
    3 => End {},
});

/// What to do with records that have the key of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duplicates {
    /// The load fails.
    #[default]
    Fail,
    /// The first one is loaded.
    First,
    /// The last one is loaded.
    Last,
}

/// Checks that records have this form.
fn check(form: &TableForm) -> Result<()> {
    let TableForm { record_bytes, key_offset, key_bytes } = *form;
    if key_bytes == 0 || u64::from(key_offset) + u64::from(key_bytes) > u64::from(record_bytes) {
        return Err(Error::Refused(format!(
            "the key of {key_bytes} bytes at byte {key_offset} is not a part of a record of {record_bytes} bytes"
        )));
    }
    let key_bytes = key_bytes as usize;
    if key_bytes > KEY_BYTES_MAX {
        return Err(Error::LongKey(key_bytes));
    }
    fits(&[], &vec![0; record_bytes as usize - key_bytes])
}

/// The value of a record, that is, everything but its key.
fn value(form: &TableForm, record: &[u8]) -> Bytes {
    let (from, to) = (form.key_offset as usize, (form.key_offset + form.key_bytes) as usize);
    [&record[..from], &record[to..]].concat().into()
}

/// The records of a loaded table as they were before the load.
pub(crate) fn whole(form: &TableForm, key: &[u8], value: &[u8], into: &mut Vec<u8>) -> Result<()> {
    if (key.len(), key.len() + value.len()) != (form.key_bytes as usize, form.record_bytes as usize) {
        return Err(Error::wrong_form(form, key, value));
    }
    let (before, behind) = value.split_at(form.key_offset as usize);
    [before, key, behind].iter().for_each(|part| into.extend_from_slice(part));
    Ok(())
}

/// Loads records into a table.
pub struct Loader {
    tables: Tables,
    old: TableEntry,
    new: TableEntry,
    form: TableForm,
    duplicates: Duplicates,
    nodes: Vec<Node>,
    /// The node that gets the bucket.
    at: usize,
    /// Bytes of a record whose end is yet to come.
    begun: Vec<u8>,
    /// The last record, which may have duplicates.
    last: Option<(Bytes, Bytes)>,
    /// Records of the bucket that are not sent yet, and their bytes.
    unsent: (Vec<(Bytes, Bytes)>, usize),
    /// The first key of the bucket.
    from: Bytes,
    /// The records of the bucket, and their bytes.
    size: (u64, u64),
    elements: Vec<Element>,
    records: u64,
    dropped: u64,
}

/// A node that takes part in a load.
struct Node {
    name: Address,
    free_bytes: f64,
    stream: Option<Stream>,
}

struct Stream {
    /// Keeps the connection open.
    _link: Arc<Link>,
    out: Outgoing,
    inc: Incoming,
}

impl Stream {
    fn open(tables: &Tables, node: &str, entry: &TableEntry) -> Result<Stream> {
        let link = tables.link(&tables.host(node)?)?;
        let request = TableRequest::Load(entry.clone());
        let (out, inc) = link.open(request.text().as_bytes()).map_err(Error::refused)?;
        let pool = Pool::new(link.block_bytes(), 2).map_err(Error::refused)?;
        Ok(Stream { inc: inc.takes(&pool, 1), out, _link: link })
    }

    fn send(&mut self, part: &Part) -> Result<()> {
        match self.out.send(0, &mut framed(part)) {
            Ok(()) => Ok(()),
            // The node has said why it takes no more.
            Err(why) => Err(self.answer().err().unwrap_or(Error::refused(why))),
        }
    }

    /// Waits for the answer of the node.
    fn answer(&mut self) -> Result<()> {
        match self.inc.next_on().map_err(Error::refused)? {
            Some((_, answer)) if *answer == *ANSWER => Ok(()),
            _ => Err(Error::Refused("a node ended a load before it had everything".into())),
        }
    }
}

impl Loader {
    /// Begins to load records of this form into a table without records.
    ///
    /// # Errors
    /// If there is no such table, it has records, or the nodes cannot be reached.
    pub fn new(tables: &Tables, name: &str, form: TableForm, duplicates: Duplicates) -> Result<Loader> {
        check(&form)?;
        let status = tables.status(name)?;
        if status.records > 0 {
            return Err(Error::NotEmpty { table: name.into(), records: status.records });
        }
        let node = |share: &TableShare| Node {
            name: (*share.node).into(),
            free_bytes: share.memory_bytes.saturating_sub(share.memory_used_bytes) as f64,
            stream: None,
        };
        let nodes: Vec<Node> = status.nodes.iter().map(node).collect();
        if nodes.is_empty() {
            return Err(Error::Refused(status.unreachable.join("; ")));
        }
        let id = format!("{:016x}", new_id().0 as u64);
        let mut loader = Loader {
            tables: tables.clone(),
            new: TableEntry { id, form: Some(form.clone()), ..status.table.clone() },
            old: status.table,
            form,
            duplicates,
            nodes,
            at: 0,
            begun: Vec::new(),
            last: None,
            unsent: (Vec::new(), 0),
            from: Bytes::default(),
            size: (0, 0),
            elements: Vec::new(),
            records: 0,
            dropped: 0,
        };
        loader.next_node();
        loader.new.home = loader.nodes[loader.at].name.to_string();
        Ok(loader)
    }

    /// Loads the next bytes of the records, which are in order of their keys. A record may be cut anywhere.
    ///
    /// # Errors
    /// If records are not in order, have the same key, or cannot be stored.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        let record_bytes = self.form.record_bytes as usize;
        if !self.begun.is_empty() {
            let (rest, behind) = bytes.split_at(bytes.len().min(record_bytes - self.begun.len()));
            self.begun.extend_from_slice(rest);
            bytes = behind;
            if self.begun.len() == record_bytes {
                let record = std::mem::take(&mut self.begun);
                self.record(&record)?;
            }
        }
        let records = bytes.chunks_exact(record_bytes);
        self.begun.extend_from_slice(records.remainder());
        for record in records {
            self.record(record)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        let key = &record[self.form.key_offset as usize..][..self.form.key_bytes as usize];
        if let Some((last, _)) = &self.last {
            match (key.cmp(last), self.duplicates) {
                (std::cmp::Ordering::Greater, _) => self.stow()?,
                (std::cmp::Ordering::Less, _) => return Err(Error::Unordered(text::show(key))),
                (_, Duplicates::Fail) => return Err(Error::Duplicate(text::show(key))),
                (_, Duplicates::First) => {
                    self.dropped += 1;
                    return Ok(());
                }
                (_, Duplicates::Last) => self.dropped += 1,
            }
        }
        self.last = Some((key.into(), value(&self.form, record)));
        Ok(())
    }

    /// Adds the last record to the bucket, or to a new one if the bucket is full.
    fn stow(&mut self) -> Result<()> {
        let Some((key, value)) = self.last.take() else { return Ok(()) };
        let bytes = key.len() + value.len();
        let (records, bucket_bytes) = self.size;
        let is_full = records >= self.new.capacity || bucket_bytes + bytes as u64 > self.new.capacity_bytes;
        if is_full && records > 0 {
            self.end_bucket(Upper::Key(key.clone()))?;
            self.from = key.clone();
            self.size = (0, 0);
            self.next_node();
        }
        self.size.0 += 1;
        self.size.1 += bytes as u64;
        self.records += 1;
        self.unsent.0.push((key, value));
        self.unsent.1 += bytes;
        if self.unsent.1 >= MESSAGE_BYTES { self.send_records() } else { Ok(()) }
    }

    fn send_records(&mut self) -> Result<()> {
        let (records, _) = std::mem::take(&mut self.unsent);
        if records.is_empty() { Ok(()) } else { self.stream()?.send(&Part::Records(records)) }
    }

    fn end_bucket(&mut self, to: Upper) -> Result<()> {
        self.send_records()?;
        let interval = Interval::of(&self.from, to);
        self.stream()?.send(&Part::Bucket(interval.clone()))?;
        let node = &mut self.nodes[self.at];
        node.free_bytes -= self.size.1 as f64 * OVERHEAD;
        self.elements.push(Element { interval, address: Arc::clone(&node.name), epoch: 1 });
        Ok(())
    }

    /// Chooses the next node that has room for a bucket, or else the one with the most free memory.
    fn next_node(&mut self) {
        let records_bytes = self.new.capacity.saturating_mul(self.form.record_bytes.into());
        let needed = records_bytes.min(self.new.capacity_bytes) as f64 * OVERHEAD;
        let count = self.nodes.len();
        let free = |at: &usize| self.nodes[*at].free_bytes;
        let mut order = (1..=count).map(|behind| (self.at + behind) % count);
        let most = order.clone().max_by(|a, b| free(a).total_cmp(&free(b))).expect("there is a node");
        self.at = order.find(|at| free(at) >= needed).unwrap_or(most);
    }

    fn stream(&mut self) -> Result<&mut Stream> {
        let node = &mut self.nodes[self.at];
        match &mut node.stream {
            Some(stream) => Ok(stream),
            closed => Ok(closed.insert(Stream::open(&self.tables, &node.name, &self.new)?)),
        }
    }

    /// Ends the records, and waits until the nodes have them. The table is as it was until [`Prepared::commit`].
    ///
    /// # Errors
    /// If the last record is cut short, or a node cannot store its records.
    pub fn finish(mut self) -> Result<Prepared> {
        if !self.begun.is_empty() {
            let (bytes, of) = (self.begun.len(), self.form.record_bytes);
            return Err(Error::Refused(format!("the last record has {bytes} bytes instead of {of}")));
        }
        self.stow()?;
        self.end_bucket(Upper::Infinite)?;
        let mut streams = self.nodes.iter_mut().filter_map(|node| node.stream.as_mut());
        streams.try_for_each(|stream| {
            let mut together = self.elements.chunks(ELEMENTS_TOGETHER);
            together.try_for_each(|elements| stream.send(&Part::Elements(elements.to_vec())))?;
            stream.send(&Part::End)
        })?;
        self.nodes.iter_mut().filter_map(|node| node.stream.as_mut()).try_for_each(Stream::answer)?;
        Ok(Prepared(self))
    }
}

/// A load whose records are on the nodes, but not yet in the table.
pub struct Prepared(Loader);

impl Prepared {
    /// Puts the loaded records into the table, all at once.
    ///
    /// # Errors
    /// If the table has been changed or dropped meanwhile, or the registrar or a node cannot be reached.
    pub fn commit(self) -> Result<TableLoaded> {
        let Loader { tables, old, new, nodes, records, dropped, elements, .. } = self.0;
        let involved: Vec<_> = nodes.iter().filter(|node| node.stream.is_some()).collect();
        let nodes = involved.iter().map(|node| node.name.to_string()).collect();
        let table = new.name.clone();
        tables.loaded(&TableRequest::Loaded { entry: new, replaces: old.id, nodes })?;
        let (buckets, nodes) = (elements.len() as u64, involved.len() as u64);
        Ok(TableLoaded { table, records, dropped, buckets, nodes })
    }
}

/// Buckets that a node receives. They are removed unless the registrar has asked to keep them.
struct Receiving<'a> {
    service: &'a Arc<TableService>,
    spec: Spec,
    /// The bucket that is being built, and the bytes of its records.
    tree: Option<Bucket>,
    bytes: u64,
    /// Whether the table has an index, whose root is here.
    is_home_of_index: bool,
    /// How many are complete.
    buckets: usize,
}

impl Receiving<'_> {
    fn take(&mut self, part: Part) -> Result<()> {
        match part {
            Part::Records(records) => self.records(&records),
            Part::Bucket(interval) => self.bucket(interval),
            Part::Elements(elements) => {
                let table = self.spec.id;
                let is_home = self.is_home_of_index;
                self.service.with_buckets(|buckets, out| {
                    let served = buckets.tables.get_mut(&table);
                    served.into_iter().for_each(|served| {
                        elements.iter().for_each(|element| served.image.learn(element));
                    });
                    if is_home {
                        buckets.begin_index(table, &[]);
                        buckets.announce(table, 0, elements, out);
                    }
                });
                Ok(())
            }
            Part::End if self.spec.parity.is_some() => self.await_parity(),
            Part::End => Ok(()),
        }
    }

    /// Waits until the records are in the parity, and the registrar has given them to their buckets.
    fn await_parity(&self) -> Result<()> {
        let table = self.spec.id;
        let mut left = (usize::MAX, now_ms());
        loop {
            let (arriving, have) = self.service.with_buckets(|buckets, _| {
                let have = buckets.tables.get(&table).map_or(0, |served| served.buckets.len());
                (buckets.arriving(table), have)
            });
            if have == self.buckets {
                return Ok(());
            }
            if arriving < left.0 {
                left = (arriving, now_ms());
            }
            if arriving == 0 || now_ms() >= left.1 + PROTECTED_MS {
                break;
            }
            self.service.wait()?;
        }
        let name = self.service.name();
        Err(Error::Refused(format!(
            "{name} could not protect the records, because memory is full or nodes do not answer; try again"
        )))
    }

    fn records(&mut self, records: &[(Bytes, Bytes)]) -> Result<()> {
        records.iter().try_for_each(|(key, value)| fits(key, value))?;
        let Receiving { service, tree, bytes, .. } = self;
        let stored = service.with_buckets(|buckets, _| {
            let slab = &mut buckets.slab;
            let tree = match tree {
                Some(tree) => tree,
                none => none.insert(Bucket::new(slab)?),
            };
            for (key, value) in records {
                if !tree.put(slab, key, value, None)? {
                    *bytes += (key.len() + value.len()) as u64;
                }
            }
            Ok(())
        });
        stored.map_err(|Full| Error::Full(service.name().into()))
    }

    fn bucket(&mut self, interval: Interval) -> Result<()> {
        let (tree, bytes) = (self.tree.take(), std::mem::take(&mut self.bytes));
        let spec = self.spec;
        self.buckets += 1;
        self.service.with_buckets(|buckets, out| {
            let mut bucket = match tree {
                Some(tree) => Owned::of(tree, bytes, interval, 1),
                None => Owned::new(&mut buckets.slab, interval, 1)
                    .map_err(|Full| Error::Full(buckets.me.to_string()))?,
            };
            let slab = &buckets.slab;
            let mut ends = [bucket.tree.first(), bucket.tree.last()];
            let first = bucket.tree.next(slab, &mut ends[0]);
            let last = bucket.tree.previous(slab, &mut ends[1]);
            let is_sound =
                [first, last].into_iter().flatten().all(|record| bucket.interval.contains(record.key));
            let served = buckets.tables.get(&spec.id);
            let overlaps = served.is_some_and(|served| {
                served.buckets.iter().any(|other| !other.interval.intersection(&bucket.interval).is_empty())
            });
            if !is_sound || overlaps {
                bucket.tree.clear(&mut buckets.slab);
                return Err(Error::Refused("the records of a load are not in their bucket".into()));
            }
            bucket.since_ms = now_ms();
            match spec.parity {
                None => buckets.adopt(spec, bucket, &[]),
                Some(_) => {
                    let Owned { tree, bytes, interval, .. } = bucket;
                    buckets.receive_load(now_ms(), spec, (tree, bytes), interval, out);
                }
            }
            Ok(())
        })
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        let (tree, id) = (self.tree.take(), self.spec.id);
        let stays = !locked(&self.service.loads).remove(&id);
        self.service.with_buckets(|buckets, _| {
            tree.into_iter().for_each(|tree| tree.clear(&mut buckets.slab));
            if !stays {
                buckets.drop_table(now_ms(), id);
            }
        });
    }
}

impl TableService {
    /// Receives buckets of a new table from a client.
    pub(crate) fn load(
        self: &Arc<Self>,
        link: &Link,
        entry: &TableEntry,
        (mut out, inc): (Outgoing, Incoming),
    ) {
        if let Err(why) = self.receive(link, entry, (&mut out, inc)) {
            // A client that is gone does not get the reason.
            let _ = out.abort(&why.to_string());
        }
    }

    fn receive(
        self: &Arc<Self>,
        link: &Link,
        entry: &TableEntry,
        (out, inc): (&mut Outgoing, Incoming),
    ) -> Result<()> {
        let spec = spec(entry)?;
        {
            let is_taken = self.with_buckets(|buckets, _| {
                buckets.tables.contains_key(&spec.id) || buckets.dropped.contains(&spec.id)
            });
            let mut loads = locked(&self.loads);
            if is_taken || loads.len() >= LOADS_MAX || !loads.insert(spec.id) {
                return Err(Error::Busy(self.name().into()));
            }
        }
        let is_home_of_index = entry.index && entry.home == self.name();
        let mut receiving =
            Receiving { service: self, spec, tree: None, bytes: 0, is_home_of_index, buckets: 0 };
        let mut reader = Reader::new(link, inc).map_err(Error::Refused)?;
        while let Some(part) = reader.next_as(decode::<Part>).map_err(Error::Refused)? {
            let is_end = part == Part::End;
            receiving.take(part)?;
            if is_end {
                out.send(0, &mut ANSWER.to_vec()).map_err(Error::refused)?;
            }
        }
        out.end(&[]).map_err(Error::refused)
    }

    /// Keeps the buckets of a load after its stream has ended.
    pub(crate) fn keep(&self, id: TableId) -> Result<()> {
        match locked(&self.loads).remove(&id) {
            true => Ok(()),
            false => Err(Error::Refused(format!("{} lost the client of a load", self.name()))),
        }
    }

    /// As the registrar: lists a loaded table in place of an empty one of the same name.
    pub(crate) fn replace(
        self: &Arc<Self>,
        entry: TableEntry,
        replaces: &str,
        nodes: &[String],
    ) -> Result<()> {
        spec(&entry)?;
        entry.form.as_ref().map_or(Ok(()), check)?;
        let registrar = self.registrar()?;
        let list = registrar.list()?;
        let old = find(&list, &entry.name)?;
        if old.id != replaces || list.tables.iter().any(|table| table.id == entry.id) {
            return Err(Error::Refused(format!("'{}' was dropped or loaded meanwhile", entry.name)));
        }
        let begun_ms = now_ms();
        self.check_empty(&entry.name, replaces)?;
        let keep = TableRequest::Keep { id: entry.id.clone() };
        let mut replaced = nodes.iter().try_for_each(|node| self.tell(node, &keep).map(drop));
        if replaced.is_ok() && now_ms() > begun_ms + FREEZE_USED_MS {
            replaced = Err(Error::Refused(format!(
                "the nodes took too long to give '{}' up; try again",
                entry.name
            )));
        }
        let replaced = replaced.and_then(|()| registrar.replace(&entry, replaces));
        self.begin_drop(if replaced.is_ok() { &old } else { &entry })?;
        replaced?;
        self.await_drop(&old).map_err(|left| Error::not_replaced(&entry.name, &left))
    }

    /// Freezes a table on all nodes, and checks that it has no records.
    fn check_empty(self: &Arc<Self>, name: &str, id: &str) -> Result<()> {
        let freeze = TableRequest::Freeze { id: id.into() };
        let mut shares: BTreeMap<Address, TableShare> = BTreeMap::new();
        for node in self.all_nodes() {
            // A node that cannot be reached matters only if it has buckets, which are then missing.
            if let Ok(text) = self.tell(&node, &freeze) {
                shares.insert(node, from_json(&text).map_err(Error::Refused)?);
            }
        }
        let buckets = || shares.values().flat_map(|share| &share.buckets);
        let records = buckets().map(|bucket| bucket.records).sum();
        if records > 0 {
            return Err(Error::NotEmpty { table: name.into(), records });
        }
        match missing_of(buckets()).first() {
            Some(interval) => {
                let why = format!(
                    "no node that answers has the keys {interval} of '{name}'; see thalweg table status"
                );
                Err(Error::Refused(why))
            }
            None => Ok(()),
        }
    }

    /// Refuses changes of a table for a while.
    pub(crate) fn freeze(self: &Arc<Self>, id: &str) -> Result<()> {
        let id = number(id)?;
        self.with_buckets(|buckets, _| {
            let served = buckets.tables.get_mut(&id);
            served.into_iter().for_each(|served| served.frozen_until_ms = now_ms() + FREEZE_MS);
        });
        Ok(())
    }
}
