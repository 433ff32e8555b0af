//! The sorted stream: loads ranges in order, sorts them bucket by bucket, and gathers the records into output blocks.
//!
//! Model: when a block is requested from a lane, it does the most urgent work: continue its job, take in pages whose
//! reads are complete, start the next job, request more pages. It waits only if there is no work. While one range is
//! gathered, as many of the next ones are loaded as memory allows (admission).
//!
//! ```text
//! range i    [pages in memory] -> buckets -> jobs -> blocks out
//! range i+1  [scratch] => reads => scatter into buckets
//! range i+2  waits for admission: pages and entries must fit in free memory
//! ```
//!
//! Invariant: jobs are numbered in output order, and each reserves its stretch of the output in its sequence slot.
//! Non-goals: writing blocks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::Proof;
use thalweg_base::sabotage;
use thalweg_block::{Block, Pool};
use thalweg_io::{Done, File, Queue};
use thalweg_pump::{Meters, Source};
use thalweg_record::{Key, Layout, Prover, SplitPoints, add_proof, add_record, common_prefix, counted};

use crate::assemble::{Assembler, Cursor};
use crate::geometry::{BUCKET_ENTRIES, entry_pages};
use crate::in_order::{Order, Stretch};
use crate::order::Ordered;
use crate::output_notes::{JobEnd, Joined, Notes, ResumePoint};
use crate::pages::Pages;
use crate::partition::{self, Partition};
use crate::range::{Range, Stored};
use crate::scratch::{Extent, Scratch};
use crate::spill::evict;
use crate::{Error, Result};

/// How long a lane without work waits before it checks again.
const POLL: Duration = Duration::from_millis(1);
/// The number of records that are prefetched ahead of the current one.
const PREFETCH_RECORDS: usize = 24;
/// Written bytes are added to the proof in steps of about this size, while they are in the cache.
const PROVE_STEP_BYTES: usize = 32 << 10;

/// The configuration of a sorted stream.
pub(crate) struct Config<'a> {
    pub(crate) key: &'a Key,
    pub(crate) layout: Layout,
    /// Bytes at the start of every record that are left out of the output.
    pub(crate) tag_bytes: usize,
    pub(crate) unique: bool,
    /// Bytes in front of the first record; none if a run is resumed.
    pub(crate) header: &'a [u8],
    pub(crate) proving: bool,
    /// An empty proof for the output.
    pub(crate) prover: Prover,
    pub(crate) lanes: usize,
    pub(crate) chunk_entries: usize,
    /// The bytes of a job, and its maximum number of entries, approximately.
    pub(crate) job_bytes: u64,
    pub(crate) job_entries: u64,
    /// The maximum bytes of a sample of keys.
    pub(crate) sample_bytes: u64,
    pub(crate) pool: &'a Pool,
    pub(crate) scratch: &'a Scratch,
    pub(crate) meters: &'a Meters,
    pub(crate) stop: &'a AtomicBool,
    /// Gets the bounds of ranges in the output.
    pub(crate) notes: Option<&'a Notes<'a>>,
}

/// The state that the lanes of a sorted stream share.
pub(crate) struct Sorted<'a> {
    config: Config<'a>,
    assembler: Assembler,
    state: Mutex<State<'a>>,
    changed: Condvar,
    joined: Mutex<Joined>,
    /// The number of records that are in the output, or will be.
    records: AtomicU64,
}

struct State<'a> {
    waiting: VecDeque<Range>,
    /// Admitted ranges in order.
    active: VecDeque<Arc<Active<'a>>>,
    /// Pages of the last admitted range that are still to be loaded.
    to_load: VecDeque<(usize, Stored)>,
    free_pages: usize,
    next_job: u64,
    closed: bool,
    /// All ranges of the sort, including those that an earlier run finished.
    ranges: u64,
}

/// An admitted range.
struct Active<'a> {
    partition: Partition<'a>,
    /// The number of pages that are still missing.
    missing: AtomicUsize,
    ready: AtomicBool,
    /// The first bucket that is in no job.
    next_bucket: Mutex<usize>,
    jobs_open: AtomicUsize,
    /// The number of pages that it frees when it is done.
    held_pages: usize,
    /// How many ranges are in the output when it is done.
    ranges_done: u64,
}

/// Consecutive buckets of one range.
struct Job<'a> {
    index: u64,
    range: Arc<Active<'a>>,
    buckets: std::ops::Range<usize>,
    bytes: u64,
}

impl<'a> Sorted<'a> {
    /// Sorts these ranges. The output continues at `start`.
    pub(crate) fn new(config: Config<'a>, out: Pool, ranges: Vec<Range>, start: &ResumePoint) -> Sorted<'a> {
        let empty = config.prover.clone();
        let note = &start.note;
        let last_key = (note.proof.records > 0).then(|| config.key.normal(&note.last, usize::MAX));
        let state = State {
            ranges: note.ranges + ranges.len() as u64,
            waiting: ranges.into(),
            active: VecDeque::new(),
            to_load: VecDeque::new(),
            free_pages: config.pool.free(),
            next_job: 0,
            closed: false,
        };
        let assembler = match config.header {
            [] => Assembler::new(out, note.bytes, &start.head, last_key),
            header => Assembler::new(out, header.len() as u64, header, None),
        };
        Sorted {
            config,
            assembler,
            state: Mutex::new(state),
            changed: Condvar::new(),
            joined: Mutex::new(Joined::new(empty, start)),
            records: AtomicU64::new(0),
        }
    }

    /// Makes a lane. `queue` is its own queue to scratch.
    pub(crate) fn lane(&self, lane: usize, queue: Box<dyn Queue>) -> SortedLane<'_, 'a> {
        SortedLane {
            shared: self,
            lane,
            queue,
            ordered: Ordered::new(self.config.unique),
            stretches: VecDeque::new(),
            gathering: None,
            finished: Vec::new(),
            loading: Vec::new(),
        }
    }

    /// After all lanes have ended, returns the proof of the output, the proof of the dropped records, and the length of
    /// the output. If neighbours agree in the part that proofs keep, they are compared in the output file, if any.
    pub(crate) fn finish(self, output: Option<&File>) -> Result<(Proof, Proof, u64)> {
        let (mut prover, dropped) = self.joined.into_inner().expect("no lane panics").finish();
        let (end, header) = (self.assembler.end(), self.config.header.len() as u64);
        if self.config.proving {
            let read = |output: &File, at, into: &mut _| output.read_exact_at(header + at, into);
            output.map_or(Ok(()), |output| prover.settle(|at, into| read(output, at, into)))?;
            return Ok((*prover.proof(), dropped, end));
        }
        Ok((counted(self.config.layout, self.records.into_inner(), end - header), dropped, end))
    }

    fn stopped(&self) -> bool {
        self.config.stop.load(Ordering::Relaxed)
    }

    /// Claims the next page to load, and admits the next range if it fits. If nothing is in memory, `queue` must be
    /// idle: pages of later ranges may have to be spilled.
    fn claim_page(&self, queue: &mut dyn Queue) -> Result<Option<(Arc<Active<'a>>, usize, Stored)>> {
        let mut state = self.state.lock().expect("no lane panics");
        loop {
            if let Some((index, stored)) = state.to_load.pop_front() {
                let range = Arc::clone(state.active.back().expect("pages belong to the last admitted range"));
                return Ok(Some((range, index, stored)));
            }
            let Some(next) = state.waiting.front() else { return Ok(None) };
            if next.store.records == 0 {
                state.waiting.pop_front();
                continue;
            }
            let (spilled, entries) = self.needs(next);
            let needed = spilled + entries;
            if needed > state.free_pages {
                if !state.active.is_empty() {
                    return Ok(None);
                }
                let missing = needed - state.free_pages;
                let later = state.waiting.iter_mut().skip(1).rev().map(|r| &mut r.store);
                let freed = evict(later, missing, self.config.scratch, self.config.meters, queue)?;
                assert!(freed >= missing, "ranges that memory is too small for were distributed again");
                state.free_pages += freed;
            }
            let range = state.waiting.pop_front().expect("it was looked at just now");
            state.free_pages -= needed;
            self.admit(&mut state, range, needed);
        }
    }

    /// The pages that a range needs for its spilled pages, and for its entries.
    fn needs(&self, range: &Range) -> (usize, usize) {
        let spilled = range.store.pages.iter().filter(|p| matches!(p, Stored::Spilled(_))).count();
        let config = &self.config;
        if self.order_of(range) != Order::Mixed {
            return (spilled, 0);
        }
        let buckets = range.split_points.len() + 1;
        let page_bytes = config.pool.block_size();
        (
            spilled,
            entry_pages(range.store.records, buckets, config.lanes, config.chunk_entries, page_bytes)
                as usize,
        )
    }

    /// The order in which the records of a range are copied without sorting them. Sorting finds repeats, and leaves out
    /// tags.
    fn order_of(&self, range: &Range) -> Order {
        let is_copied = !self.config.unique && self.config.tag_bytes == 0;
        if is_copied { range.store.order } else { Order::Mixed }
    }

    fn admit(&self, state: &mut State<'a>, range: Range, needed: usize) {
        let config = &self.config;
        let resident = range.store.pages.iter().filter(|p| matches!(p, Stored::Resident(_))).count();
        let order = self.order_of(&range);
        let partition = Partition::new(
            partition::Config {
                key: config.key,
                layout: config.layout,
                skips: skips(&range),
                split_points: SplitPoints::behind(config.key, range.base, range.split_points),
                chunk_entries: config.chunk_entries,
                bucket_entries_max: config.job_entries.max(BUCKET_ENTRIES) * 2,
                sample_bytes: config.sample_bytes,
                lanes: config.lanes,
                order,
                records: range.store.records,
            },
            Pages::new(config.pool.block_size(), range.store.pages.iter().map(Stored::len)),
        );
        let pages = range.store.pages;
        state.active.push_back(Arc::new(Active {
            partition,
            missing: AtomicUsize::new(pages.len()),
            ready: AtomicBool::new(false),
            next_bucket: Mutex::new(0),
            jobs_open: AtomicUsize::new(0),
            held_pages: needed + resident,
            ranges_done: state.ranges - state.waiting.len() as u64,
        }));
        state.to_load = pages.into_iter().enumerate().collect();
    }

    /// Claims the next job if a range is ready, and drops ranges that are done.
    fn claim_job(&self) -> NextJob<'a> {
        let mut state = self.state.lock().expect("no lane panics");
        self.retire(&mut state);
        let State { waiting, active, next_job, closed, .. } = &mut *state;
        // Jobs of the next range may start while the last jobs of the first are gathered.
        for range in active.iter().take(2) {
            if !range.ready.load(Ordering::Acquire) {
                return NextJob::Wait;
            }
            let mut next = range.next_bucket.lock().expect("no lane panics");
            if *next < range.partition.bucket_count() {
                return NextJob::Job(self.next_job_of(range, &mut next, next_job));
            }
        }
        if waiting.is_empty() && active.len() <= 1 {
            let is_first = !std::mem::replace(closed, true);
            return NextJob::End { jobs: is_first.then_some(*next_job) };
        }
        NextJob::Wait
    }

    fn next_job_of(&self, range: &Arc<Active<'a>>, next: &mut usize, number: &mut u64) -> Job<'a> {
        let from = *next;
        let (mut bytes, mut records) = (0, 0);
        while *next < range.partition.bucket_count() {
            let (r, b) = range.partition.bucket_size(*next);
            let b = b - r * self.config.tag_bytes as u64;
            if *next > from && (bytes + b > self.config.job_bytes || records + r > self.config.job_entries) {
                break;
            }
            bytes += b;
            records += r;
            *next += 1;
        }
        range.jobs_open.fetch_add(1, Ordering::AcqRel);
        *number += 1;
        Job { index: *number - 1, range: Arc::clone(range), buckets: from..*next, bytes }
    }

    /// Drops the ranges at the front whose jobs are done, once no lane uses them.
    fn retire(&self, state: &mut State<'a>) {
        while let Some(range) = state.active.front() {
            let is_claimed =
                || *range.next_bucket.lock().expect("no lane panics") == range.partition.bucket_count();
            let is_done = range.ready.load(Ordering::Acquire) && is_claimed();
            if !is_done || range.jobs_open.load(Ordering::Acquire) > 0 || Arc::strong_count(range) > 1 {
                break;
            }
            let range = state.active.pop_front().expect("it was looked at just now");
            state.free_pages += range.held_pages;
        }
    }
}

enum NextJob<'a> {
    Job(Job<'a>),
    /// There is no job now, but there will be.
    Wait,
    /// There are no more jobs. The first lane that learns this closes the stream with the number of jobs.
    End {
        jobs: Option<u64>,
    },
}

/// For each bucket of a range, the bytes that windows may skip.
fn skips(range: &Range) -> Vec<usize> {
    let Range { base, split_points, low, high, .. } = range;
    let bound = |i: usize| if i < split_points.len() { Some(&split_points[i]) } else { high.as_ref() };
    (0..=split_points.len())
        .map(|i| match (if i == 0 { low.as_ref() } else { split_points.get(i - 1) }, bound(i)) {
            (Some(a), Some(b)) => base.len() + common_prefix(&a.normal, &b.normal),
            _ => 0,
        })
        .collect()
}

/// A job that is being gathered.
struct Gathering<'a> {
    job: Job<'a>,
    cursor: Cursor,
    /// The index of the next entry, and how many bytes of its record are written.
    at: usize,
    written: usize,
    /// What is left of the current piece of a stretch.
    piece: std::ops::Range<u64>,
    /// The proof of the records that were dropped.
    dropped: Proof,
}

/// One lane of the sorted stream: a source of output blocks.
pub(crate) struct SortedLane<'s, 'a> {
    shared: &'s Sorted<'a>,
    lane: usize,
    queue: Box<dyn Queue>,
    ordered: Ordered,
    /// Records of the job that are in order.
    stretches: VecDeque<Stretch>,
    gathering: Option<Gathering<'a>>,
    finished: Vec<Block>,
    /// Reads in flight: the range, the index of the page, and its extent.
    loading: Vec<Option<(Arc<Active<'a>>, usize, Extent)>>,
}

impl<'a> SortedLane<'_, 'a> {
    /// Starts reads while there are pages to claim. A page that is in memory is taken in at once, but only one for
    /// each call, so that jobs do not wait. Returns whether there was anything to do.
    fn ask_for_pages(&mut self) -> Result<bool> {
        let mut any = false;
        while self.queue.in_flight() < self.queue.depth() {
            let Some((range, index, stored)) = self.shared.claim_page(&mut *self.queue)? else { break };
            any = true;
            match stored {
                Stored::Coming => unreachable!("all pages are whole when the first pass is done"),
                Stored::Resident(block) => {
                    self.take_in(&range, index, *block)?;
                    break;
                }
                Stored::Spilled(extent) => self.start_read(range, index, extent),
            }
        }
        Ok(any)
    }

    fn start_read(&mut self, range: Arc<Active<'a>>, index: usize, extent: Extent) {
        let block = self.shared.config.pool.try_take().expect("admission counted this page");
        let slot = self.loading.iter().position(Option::is_none).unwrap_or(self.loading.len());
        if slot == self.loading.len() {
            self.loading.push(None);
        }
        self.loading[slot] = Some((range, index, extent));
        self.queue.submit(self.shared.config.scratch.read(&extent, block, slot as u64));
    }

    fn loaded(&mut self, done: Done) -> Result<()> {
        let (range, index, extent) = self.loading[done.tag as usize].take().expect("it was asked for");
        done.result?;
        self.shared.config.meters.scratch.read(done.block.len() as u64);
        let block = self.shared.config.scratch.verify(done.block, &extent)?;
        self.take_in(&range, index, block)
    }

    fn take_in(&mut self, range: &Arc<Active<'a>>, index: usize, block: Block) -> Result<()> {
        let pool = self.shared.config.pool;
        let no_room = |_| Error::Underestimated;
        range.partition.take_page(self.lane, index, block, pool).map_err(no_room)?;
        if range.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            range.partition.seal(pool).map_err(no_room)?;
            range.ready.store(true, Ordering::Release);
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Sorts the entries of a job and reserves its stretch of the output.
    fn begin(&mut self, job: Job<'a>) -> Result<()> {
        let config = &self.shared.config;
        let partition = &job.range.partition;
        self.ordered.clear();
        for index in job.buckets.clone() {
            let (mut bucket, skip) = partition.take_bucket(index);
            match bucket.stretch.take() {
                Some(stretch) => {
                    self.shared.records.fetch_add(bucket.records, Ordering::Relaxed);
                    self.stretches.push_back(stretch);
                }
                None => self.ordered.append(partition, bucket, skip),
            }
        }
        if self.ordered.entries.len() > 1 && sabotage::strikes("swap-order") {
            self.ordered.entries.swap(0, 1);
        }
        let (ordered, entries, pages) = (&mut self.ordered, partition.entries(), &partition.pages);
        let bytes = std::cell::Cell::new(job.bytes);
        let mut dropped = Proof::default();
        let mut drop_one = |entry| {
            let len = entries.len(entry, pages) as u64;
            if config.proving {
                entries.with_record(entry, pages, |record| add_record(&mut dropped, record));
            } else {
                add_proof(&mut dropped, &Proof { records: 1, bytes: len, ..Proof::default() });
            }
            bytes.set(bytes.get() - len - entries.terminator() as u64);
        };
        if config.unique {
            ordered.drop_repeats(&mut drop_one);
        }
        // In the sequence slot: records with the last key of the previous job may continue here.
        let take = |last_key: &mut Option<Vec<u8>>| {
            if config.unique && !ordered.entries.is_empty() {
                let normal = |entry| entries.with_record(entry, pages, |r| config.key.normal(r, usize::MAX));
                let last = normal(*ordered.entries.last().expect("it is not empty"));
                if last_key.as_ref() == Some(&normal(ordered.entries[0])) {
                    drop_one(ordered.entries.remove(0));
                }
                *last_key = Some(last);
            }
            bytes.get()
        };
        let prover = config.prover.clone();
        let stopped = || self.shared.stopped();
        let cursor = self
            .shared
            .assembler
            .reserve(job.index, take, prover, config.proving, stopped)
            .ok_or(Error::Stopped)?;
        self.shared.records.fetch_add(self.ordered.entries.len() as u64, Ordering::Relaxed);
        self.gathering = Some(Gathering { job, cursor, at: 0, written: 0, piece: 0..0, dropped });
        Ok(())
    }

    /// Copies records that are in order to the output until a block is full. Returns whether all are copied.
    fn gather_in_order(&mut self) -> bool {
        let Some(now) = &mut self.gathering else { return true };
        let pages = &now.job.range.partition.pages;
        let mut unproved = 0;
        loop {
            while now.piece.start < now.piece.end {
                let (bytes, len) = (pages.from(now.piece.start), now.piece.end - now.piece.start);
                let n = now.cursor.push_start(bytes, bytes.len().min(len as usize));
                now.piece.start += n as u64;
                unproved += n;
                if now.cursor.has_finished() {
                    self.finished.extend(now.cursor.drain_finished());
                    return false;
                }
            }
            if unproved >= PROVE_STEP_BYTES {
                now.cursor.prove_written();
                unproved = 0;
            }
            let Some(first) = self.stretches.front_mut() else { return true };
            match first.next(pages, self.shared.config.layout) {
                Some(piece) => now.piece = piece,
                None => drop(self.stretches.pop_front()),
            }
        }
    }

    /// Copies records to the output until a block is full or the job is done.
    fn gather(&mut self) {
        if !self.gather_in_order() {
            return;
        }
        let Some(now) = &mut self.gathering else { return };
        let partition = &now.job.range.partition;
        let (pages, entries) = (&partition.pages, partition.entries());
        let tag_bytes = self.shared.config.tag_bytes;
        let list = &self.ordered.entries;
        let mut unproved = 0;
        while now.at < list.len() {
            if let Some(&ahead) = list.get(now.at + PREFETCH_RECORDS)
                && entries.value_bytes().is_none()
            {
                pages.prefetch(entries.place(ahead), entries.known_len(ahead).unwrap_or_else(|least| least));
            }
            let entry = list[now.at - usize::from(now.at > 0 && sabotage::strikes("double-record"))];
            let len = entries.len(entry, pages) + entries.terminator() - tag_bytes;
            let value = entry.to_be_bytes();
            while now.written < len {
                let piece = match entries.value_bytes() {
                    Some(_) => &value[now.written..],
                    None => pages.from(entries.place(entry) + (tag_bytes + now.written) as u64),
                };
                now.written += now.cursor.push_start(piece, piece.len().min(len - now.written));
                if now.cursor.has_finished() {
                    if now.written == len {
                        now.at += 1;
                        now.written = 0;
                    }
                    return self.finished.extend(now.cursor.drain_finished());
                }
            }
            now.at += 1;
            now.written = 0;
            unproved += len;
            if unproved >= PROVE_STEP_BYTES {
                now.cursor.prove_written();
                unproved = 0;
            }
        }
        // A job without bytes may still have received the last block of the stream.
        self.finished.extend(now.cursor.drain_finished());
        self.end_job();
    }

    fn end_job(&mut self) {
        let now = self.gathering.take().expect("a job is being gathered");
        let (job, (prover, at)) = (now.job, now.cursor.finish());
        let is_last = job.buckets.end == job.range.partition.bucket_count();
        let ranges_done = is_last.then_some(job.range.ranges_done);
        let end = JobEnd { at, dropped: now.dropped, ranges_done };
        let mut joined = self.shared.joined.lock().expect("no lane panics");
        joined.add(job.index, prover, end, self.shared.config.notes);
        drop(joined);
        let was_last = job.range.jobs_open.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(job);
        if was_last {
            self.shared.changed.notify_all();
        }
    }

    /// Waits for a read or for progress of another lane.
    fn wait_for_pages(&mut self) -> Result<()> {
        let stage = &self.shared.config.meters.stage;
        if self.queue.in_flight() > 0 {
            let queue = &mut self.queue;
            if let Some(done) = stage.for_read(|| queue.reap(true)) {
                return self.loaded(done);
            }
        }
        let state = self.shared.state.lock().expect("no lane panics");
        drop(stage.for_read(|| self.shared.changed.wait_timeout(state, POLL)));
        if self.shared.stopped() { Err(Error::Stopped) } else { Ok(()) }
    }
}

impl Source for SortedLane<'_, '_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Block>> {
        while self.wait()? {}
        Ok(self.finished.pop())
    }

    /// Sorts and gathers until there is a block or the stream ends.
    fn wait(&mut self) -> Result<bool> {
        while self.finished.is_empty() {
            if self.gathering.is_some() {
                self.gather();
                continue;
            }
            while let Some(done) = self.queue.reap(false) {
                self.loaded(done)?;
            }
            let any = self.ask_for_pages()?;
            match self.shared.claim_job() {
                NextJob::Job(job) => self.begin(job)?,
                NextJob::Wait if any => {}
                NextJob::Wait => return self.wait_for_pages().map(|()| true),
                // Jobs of other lanes may be unfinished; the last of them gets the last block.
                NextJob::End { jobs: Some(jobs) } => self.finished.extend(self.shared.assembler.close(jobs)),
                NextJob::End { jobs: None } => break,
            }
        }
        Ok(false)
    }
}
