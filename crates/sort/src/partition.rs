//! An in-memory partition: a range of records in memory, with their entries in buckets, ready to be sorted bucket by
//! bucket.
//!
//! Model: the lane that installs a page scatters it: each record that lies completely in the page becomes an entry in
//! this lane's chunks of the record's bucket. Records that cross pages are added when the partition is sealed, from
//! the bounds that were stored for each page. If the start of a record is known only from the record before it, one
//! lane at a time walks over the pages that have arrived without a gap.
//! If the records of the range are in order, or in reverse order, a bucket has a stretch of pages instead of entries.
//! Invariant: every record is in one bucket. Buckets are (low, high] ranges of (key, place).
//! Non-goals: sorting; deciding what fits in memory, which the geometry does.

use std::sync::{Mutex, OnceLock};

use thalweg_block::{Block, Chunk, Pool, carve};
use thalweg_record::{
    InPlace, Key, Layout, SPLIT_KEY_BYTES_MAX, SplitPoint, SplitPoints, choose_split_points, each_record,
};

use crate::entry::{Entries, addressable_bytes};
use crate::in_order::{Order, Stretch, stretches};
use crate::pages::Pages;

/// Keys sampled for each part of a bucket that is split.
const SAMPLES_PER_PART: usize = 16;

/// The pool had no block for another chunk of entries: there are more records than planned.
#[derive(Debug)]
pub(crate) struct PoolExhausted;

/// The entries of one bucket, in no order.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) chunks: Vec<(Chunk, usize)>,
    pub(crate) records: u64,
    /// Bytes of its records in the output, with terminators.
    pub(crate) bytes: u64,
    /// In place of entries, if the range is in order.
    pub(crate) stretch: Option<Stretch>,
}

/// The configuration of a partition.
pub(crate) struct Config<'a> {
    pub(crate) key: &'a Key,
    pub(crate) layout: Layout,
    /// Split points between buckets.
    pub(crate) split_points: SplitPoints,
    /// For each bucket, the length of the common prefix of its keys, which windows skip.
    pub(crate) skips: Vec<usize>,
    /// Entries in a chunk.
    pub(crate) chunk_entries: usize,
    /// Larger buckets are split.
    pub(crate) bucket_entries_max: u64,
    /// The maximum bytes of a sample of keys.
    pub(crate) sample_bytes: u64,
    pub(crate) lanes: usize,
    /// The order of the records. Unless it is mixed, there are no entries.
    pub(crate) order: Order,
    /// How many records there are.
    pub(crate) records: u64,
}

/// Records in memory and their entries in buckets.
pub(crate) struct Partition<'a> {
    pub(crate) pages: Pages,
    config: Config<'a>,
    entries: Entries,
    /// For each page, the start of its first record and the end of its last complete one, if a record begins in it.
    bounds: Vec<OnceLock<Option<(u32, u32)>>>,
    /// The end of the records that were walked over, for layouts that need it.
    walked: Mutex<Walked>,
    lanes: Vec<Mutex<LaneScatter>>,
    /// After sealing: the buckets in order, each with the bytes that its windows skip.
    buckets: OnceLock<Sealed>,
}

type Sealed = Vec<(Mutex<Option<Bucket>>, usize)>;

/// The number of pages walked over, and the place of the next record.
#[derive(Default)]
struct Walked {
    pages: usize,
    at: u64,
}

impl Bucket {
    /// Adds the entries that a lane scattered into this bucket.
    fn take(&mut self, lane: LaneBucket) {
        self.bytes += lane.bytes;
        let from = self.chunks.len();
        self.chunks.extend(lane.full.into_iter().map(|chunk| {
            let used = chunk.len();
            (chunk, used)
        }));
        self.chunks.extend(lane.open.map(|chunk| (chunk, lane.used)));
        self.records += self.chunks[from..].iter().map(|(_, used)| *used as u64).sum::<u64>();
    }
}

/// The buckets of one lane, and its unused chunks.
struct LaneScatter {
    buckets: Vec<LaneBucket>,
    spare: Vec<Chunk>,
}

/// One lane's chunks of a bucket: the full ones, and the open one with its length.
#[derive(Default)]
struct LaneBucket {
    full: Vec<Chunk>,
    open: Option<Chunk>,
    used: usize,
    bytes: u64,
}

impl<'a> Partition<'a> {
    pub(crate) fn new(config: Config<'a>, pages: Pages) -> Partition<'a> {
        assert_eq!(config.skips.len(), config.split_points.ranges());
        let addressed = pages.place_of(pages.count());
        assert!(addressed <= addressable_bytes(config.layout), "{addressed} bytes of records");
        let lane = |_| {
            let buckets = config.skips.iter().map(|_| LaneBucket::default()).collect();
            Mutex::new(LaneScatter { buckets, spare: Vec::new() })
        };
        Partition {
            entries: Entries::new(config.layout, config.key),
            bounds: (0..pages.count()).map(|_| OnceLock::new()).collect(),
            walked: Mutex::default(),
            lanes: (0..config.lanes).map(lane).collect(),
            buckets: OnceLock::new(),
            pages,
            config,
        }
    }

    pub(crate) fn key(&self) -> &'a Key {
        self.config.key
    }

    pub(crate) fn entries(&self) -> Entries {
        self.entries
    }

    /// Installs page `index` and scatters the records that lie completely in it.
    pub(crate) fn take_page(
        &self,
        lane: usize,
        index: usize,
        block: Block,
        pool: &Pool,
    ) -> Result<(), PoolExhausted> {
        self.pages.install(index, block);
        if self.config.order != Order::Mixed {
            return Ok(());
        }
        let mut scatter = self.lanes[lane].lock().expect("no lane panics");
        let page = self.pages.page(index);
        let place = self.pages.place_of(index);
        let layout = self.config.layout;
        if !layout.is_found_anywhere() {
            return self.walk_on(&mut scatter, pool);
        }
        let mut bounds = None;
        if let Some(first) = layout.first_record(page, self.pages.segment_bytes_before(index)) {
            let after = each_record!(layout, page, first, |at, record, _| {
                self.add(&mut scatter, record, place + at as u64, pool)?;
            });
            bounds = Some((first as u32, after as u32));
        }
        self.bounds[index].set(bounds).expect("a page is scattered once");
        Ok(())
    }

    /// For layouts in which the start of a record is known only from the record before it: scatters the records that
    /// end in the pages that have arrived without a gap.
    fn walk_on(&self, scatter: &mut LaneScatter, pool: &Pool) -> Result<(), PoolExhausted> {
        let layout = self.config.layout;
        let mut walked = self.walked.lock().expect("no lane panics");
        let Walked { pages, at } = &mut *walked;
        while *pages < self.pages.count() && self.pages.is_installed(*pages) {
            let place = self.pages.place_of(*pages);
            let end = place + self.pages.page(*pages).len() as u64;
            if self.pages.is_segment_start(*pages) {
                *at = place;
            }
            let start_bytes = layout.start_bytes().expect("records tell how long they are");
            while *at + start_bytes as u64 <= end {
                let len = self.pages.record_len(layout, *at, 0);
                if *at + len as u64 > end {
                    break;
                }
                self.add_copied(scatter, *at, len, pool)?;
                *at += len as u64;
            }
            *pages += 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn add(
        &self,
        scatter: &mut LaneScatter,
        record: InPlace<'_>,
        place: u64,
        pool: &Pool,
    ) -> Result<(), PoolExhausted> {
        let config = &self.config;
        let at = config.split_points.locate(config.key, record, place);
        let entry = match self.entries.value_bytes() {
            Some(_) => Entries::value(record.alone()),
            None => self.entries.make(config.key.window(record, config.skips[at]), place, record.len()),
        };
        self.add_entry(scatter, at, entry, record.len(), pool)
    }

    /// Adds the entry of a record of `len` bytes to a bucket.
    #[inline(always)]
    fn add_entry(
        &self,
        scatter: &mut LaneScatter,
        at: usize,
        entry: u128,
        len: usize,
        pool: &Pool,
    ) -> Result<(), PoolExhausted> {
        let bucket = &mut scatter.buckets[at];
        bucket.bytes += (len + self.entries.terminator()) as u64;
        if let Some(slot) = bucket.open.as_mut().and_then(|chunk| chunk.get_mut(bucket.used)) {
            *slot = entry;
            bucket.used += 1;
            return Ok(());
        }
        self.add_to_next_chunk(scatter, at, entry, pool)
    }

    #[inline(never)]
    fn add_to_next_chunk(
        &self,
        scatter: &mut LaneScatter,
        at: usize,
        entry: u128,
        pool: &Pool,
    ) -> Result<(), PoolExhausted> {
        if scatter.spare.is_empty() {
            let block = pool.try_take().ok_or(PoolExhausted)?;
            scatter.spare.extend(carve(block, self.config.chunk_entries));
        }
        let mut chunk = scatter.spare.pop().ok_or(PoolExhausted)?;
        chunk[0] = entry;
        let bucket = &mut scatter.buckets[at];
        bucket.full.extend(bucket.open.replace(chunk));
        bucket.used = 1;
        Ok(())
    }

    /// Adds the records that cross pages and joins the buckets of all lanes. Called once, after every page was taken.
    pub(crate) fn seal(&self, pool: &Pool) -> Result<(), PoolExhausted> {
        let buckets = match self.config.order {
            Order::Mixed => self.scattered(pool)?,
            order => self.in_order(order),
        };
        assert!(self.buckets.set(buckets).is_ok(), "a part is sealed once");
        Ok(())
    }

    /// The buckets of a range in order, one for each stretch.
    fn in_order(&self, order: Order) -> Sealed {
        let mut records = self.config.records;
        let bucket = |stretch: Stretch| {
            // How many records are in which of them does not matter, so the first has all.
            let bucket = Bucket {
                records: std::mem::take(&mut records),
                bytes: stretch.bytes(),
                stretch: Some(stretch),
                ..Bucket::default()
            };
            (Mutex::new(Some(bucket)), 0)
        };
        stretches(&self.pages, self.config.layout, order).into_iter().map(bucket).collect()
    }

    fn scattered(&self, pool: &Pool) -> Result<Sealed, PoolExhausted> {
        let mut first = self.lanes[0].lock().expect("no lane panics");
        if self.config.layout.is_found_anywhere() {
            self.add_crossing(&mut first, pool)?;
        }
        drop(first);
        let mut whole: Vec<Bucket> = self.config.skips.iter().map(|_| Bucket::default()).collect();
        for lane in &self.lanes {
            let mut lane = lane.lock().expect("no lane panics");
            lane.spare.clear();
            for (bucket, more) in whole.iter_mut().zip(std::mem::take(&mut lane.buckets)) {
                bucket.take(more);
            }
        }
        let mut buckets = Vec::with_capacity(whole.len());
        let mut spare = Vec::new();
        for (bucket, &skip) in whole.into_iter().zip(&self.config.skips) {
            if bucket.records <= self.config.bucket_entries_max {
                buckets.push((Mutex::new(Some(bucket)), skip));
            } else {
                let parts = self.split(bucket, &mut spare, pool)?;
                buckets.extend(parts.into_iter().map(|partition| (Mutex::new(Some(partition)), skip)));
            }
        }
        Ok(buckets)
    }

    /// Splits a bucket that is far larger than the sample predicted, by a sample of its own, so that sorting it needs
    /// no more memory than other buckets. Emptied chunks are reused, so each part needs one additional chunk, which
    /// admission has reserved.
    fn split(
        &self,
        bucket: Bucket,
        spare: &mut Vec<Chunk>,
        pool: &Pool,
    ) -> Result<Vec<Bucket>, PoolExhausted> {
        let Config { key, bucket_entries_max, sample_bytes, .. } = self.config;
        let parts = (bucket.records / (bucket_entries_max / 2)) as usize;
        let samples = (parts * SAMPLES_PER_PART) as u64;
        let stride = (bucket.records / samples).max(1);
        let key_bytes = (sample_bytes / samples).clamp(1, SPLIT_KEY_BYTES_MAX as u64) as usize;
        // Records that are their own entries have no place, and equal ones are interchangeable.
        let values = self.entries.value_bytes().is_some();
        let origin = |entry: u128, index: u64| if values { index } else { self.entries.place(entry) };
        let mut keys = Vec::new();
        let mut index = 0;
        for &entry in bucket.chunks.iter().flat_map(|(chunk, used)| &chunk[..*used]) {
            if index % stride == 0 {
                let normal = self.entries.with_record(entry, &self.pages, |r| key.normal(r, key_bytes));
                keys.push(SplitPoint { normal, origin: origin(entry, index) });
            }
            index += 1;
        }
        let split_points = SplitPoints::new(key, choose_split_points(&mut keys, parts - 1));
        drop(keys);
        let buckets = (0..split_points.ranges()).map(|_| LaneBucket::default()).collect();
        let mut scatter = LaneScatter { buckets, spare: std::mem::take(spare) };
        index = 0;
        for (chunk, used) in bucket.chunks {
            for &entry in &chunk[..used] {
                let (at, len) = self.entries.with_record(entry, &self.pages, |record| {
                    (split_points.locate(key, record.into(), origin(entry, index)), record.len())
                });
                self.add_entry(&mut scatter, at, entry, len, pool)?;
                index += 1;
            }
            scatter.spare.push(chunk);
        }
        let whole = |lane| {
            let mut bucket = Bucket::default();
            bucket.take(lane);
            bucket
        };
        *spare = scatter.spare;
        Ok(scatter.buckets.into_iter().map(whole).collect())
    }

    fn add_crossing(&self, scatter: &mut LaneScatter, pool: &Pool) -> Result<(), PoolExhausted> {
        let end_bytes = self.config.layout.end_bytes() as u64;
        let mut open = 0;
        for index in 0..self.pages.count() {
            let place = self.pages.place_of(index);
            if self.pages.is_segment_start(index) {
                open = place;
            }
            if let Some((first, after)) = *self.bounds[index].get().expect("every page was taken") {
                let end = place + u64::from(first);
                if open < end {
                    self.add_copied(scatter, open, (end - end_bytes - open) as usize, pool)?;
                }
                open = place + u64::from(after);
            }
        }
        Ok(())
    }

    fn add_copied(
        &self,
        scatter: &mut LaneScatter,
        place: u64,
        len: usize,
        pool: &Pool,
    ) -> Result<(), PoolExhausted> {
        self.pages.with(place, len, |record| self.add(scatter, record.into(), place, pool))
    }

    fn sealed(&self) -> &[(Mutex<Option<Bucket>>, usize)] {
        self.buckets.get().expect("the part is sealed")
    }

    /// The number of buckets.
    pub(crate) fn bucket_count(&self) -> usize {
        self.sealed().len()
    }

    /// The records and output bytes of a bucket that was not taken yet.
    pub(crate) fn bucket_size(&self, index: usize) -> (u64, u64) {
        let bucket = self.sealed()[index].0.lock().expect("no lane panics");
        let bucket = bucket.as_ref().expect("a bucket is taken once");
        (bucket.records, bucket.bytes)
    }

    /// Takes a bucket, with the bytes that its windows skip.
    pub(crate) fn take_bucket(&self, index: usize) -> (Bucket, usize) {
        let (bucket, skip) = &self.sealed()[index];
        (bucket.lock().expect("no lane panics").take().expect("a bucket is taken once"), *skip)
    }
}
