//! A stream as the input: standard input, a pipe, or pages that a program hands over; and a stream as the output.
//!
//! Model: memory is filled first, and its contents are the sample for the split points, unless the program provides a
//! better one. Then the pages in memory are distributed, followed by the rest of the stream. If later records differ
//! from the sample, for example because the stream is sorted, some range grows too large and is distributed again.
//! Lanes fill blocks of the output in parallel, and the one that brings the next block writes it and those after it.
//! Invariant: pages come out in order, each once; so do blocks of the output.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use thalweg_block::{Block, Pool};
use thalweg_io::{Access, File, InputFile, Location};
use thalweg_pump::{InputsError, Meters, Sink, Source};
use thalweg_record::{Key, Layout, SplitPoint, Walk, records_in, thin_sample};

use crate::geometry::{Geometry, Given, hidden_copies};
use crate::handover::Handover;
use crate::options::Sort;
use crate::sample::{guess_records, keep_keys};
use crate::{Error, Result};

/// How long to wait for a pipe before checking whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// A stream that does not fit in memory is laid out as if it had this many times the size of memory.
const STREAM_MEMORIES: u64 = 10;
/// The line length for which a stream reserves space. Longer lines take pages when they arrive.
pub(crate) const RECORD_BYTES: u64 = 256 << 10;
/// Pages kept free for a stream that fits in memory, so that no lane waits for another.
pub(crate) const KEEP_FREE_PAGES: usize = 16;

/// Facts about a stream that are known before it arrives.
#[derive(Debug, Default)]
pub struct Expected {
    keys: Vec<SplitPoint>,
    bytes: u64,
}

impl Expected {
    /// A stream of about `bytes` bytes, with a representative sample of its keys. Their origins must be in stream
    /// order.
    pub fn new(bytes: u64, mut keys: Vec<SplitPoint>) -> Expected {
        keys.sort_unstable_by_key(|split_point| split_point.origin);
        let count = keys.len() as u128;
        for (i, split_point) in keys.iter_mut().enumerate() {
            split_point.origin = (i as u128 * u128::from(bytes) / count) as u64;
        }
        Expected { keys, bytes }
    }
}

/// The memory layout for a stream that is mostly unknown.
pub(crate) struct Room {
    pub(crate) given: Given,
    pub(crate) rough: Geometry,
    expected: Expected,
}

impl Room {
    /// Lays out the memory of a sort, minus what is resident.
    pub(crate) fn of(sort: &Sort, resident_bytes: u64) -> Result<Room> {
        let input_bytes = sort.memory_bytes.saturating_mul(STREAM_MEMORIES);
        let mut given = Given {
            memory_bytes: sort.memory_bytes,
            resident_bytes,
            lanes: sort.lanes,
            input_bytes,
            any_length: sort.layout.fixed_bytes().is_none(),
            records: guess_records(sort.layout, input_bytes, 64.0),
            is_stream: true,
        };
        let lanes = Geometry::of_stream(&given)?.lanes;
        given.resident_bytes += hidden_copies(&sort.stored_key()?, sort.layout, lanes);
        Ok(Room { given, rough: Geometry::of_stream(&given)?, expected: Expected::default() })
    }

    pub(crate) fn expect(&mut self, mut expected: Expected) {
        thin_sample(&mut expected.keys, self.rough.sample_bytes);
        self.expected = expected;
    }

    /// After the whole stream or its beginning was read into the memory of `feed`: returns the facts that the layout
    /// needs, and sampled keys.
    pub(crate) fn seen(self, feed: &Feed, ended: bool, sort: &Sort, key: &Key) -> (Given, Vec<SplitPoint>) {
        let Room { mut given, rough, expected } = self;
        let (seen, record_bytes) = feed.sample(key, rough.sample_bytes);
        let known = !ended && !expected.keys.is_empty();
        if ended || known {
            given.input_bytes = feed.bytes().max(expected.bytes * u64::from(known));
        }
        given.records = guess_records(sort.layout, given.input_bytes, record_bytes);
        given.input_bytes += given.records * sort.tag_bytes() as u64;
        (given, if known { expected.keys } else { seen })
    }

    /// The minimum length of the stream, if it is known.
    pub(crate) fn least_bytes(&self) -> u64 {
        if self.expected.keys.is_empty() { 0 } else { self.expected.bytes }
    }

    /// The number of pages that are read into memory before they are distributed.
    pub(crate) fn pages(&self) -> usize {
        // The other pages are for ranges: each may need an open one before a page of the input is free again.
        self.rough.main_pages - (self.rough.main_pages / 6).max(4 * KEEP_FREE_PAGES)
    }

    /// The maximum number of ranges while `pages()` pages are full.
    pub(crate) fn ranges_max(&self) -> usize {
        self.rough.main_pages - self.pages() - 2 * KEEP_FREE_PAGES
    }
}

/// The pools, and the beginning of a stream in memory.
pub(crate) struct Filled {
    pub(crate) feed: Feed,
    pub(crate) room: Room,
    pub(crate) main: Pool,
    pub(crate) transfer: Pool,
    /// Whether this is the whole stream.
    pub(crate) ended: bool,
}

/// Reads streams one after the other, or takes the pages that a program hands over.
pub(crate) struct Feed {
    layout: Layout,
    /// The program that hands over the pages after those in memory; without it they are read from files.
    handover: Option<Arc<Handover>>,
    state: Mutex<State>,
    bytes: AtomicU64,
    /// The number of pages in memory that are not distributed yet.
    ahead: AtomicUsize,
}

struct State {
    files: VecDeque<InputFile>,
    /// The offset in the first file that is read next.
    at: u64,
    /// The record bounds at this offset.
    walk: Walk,
    next_page: u64,
    /// Pages in memory that are not distributed yet.
    ahead: VecDeque<Block>,
}

impl Feed {
    pub(crate) fn new(files: Vec<InputFile>, layout: Layout) -> Feed {
        let state = State {
            files: files.into(),
            at: 0,
            walk: Walk::new(layout),
            next_page: 0,
            ahead: VecDeque::new(),
        };
        Feed { layout, handover: None, state: Mutex::new(state), bytes: AtomicU64::new(0), ahead: 0.into() }
    }

    /// A stream that begins with these pages and continues with those that a program hands over. Their offsets are
    /// set already, and the last record is complete.
    pub(crate) fn handed(handover: Arc<Handover>, ahead: VecDeque<Block>, layout: Layout) -> Feed {
        let bytes: u64 = ahead.iter().map(|page| page.len() as u64).sum();
        let count = ahead.len().into();
        let state = State { files: VecDeque::new(), at: 0, walk: Walk::new(layout), next_page: 0, ahead };
        Feed { layout, handover: Some(handover), state: Mutex::new(state), bytes: bytes.into(), ahead: count }
    }

    /// The handover, if a program puts the stream and takes the result.
    pub(crate) fn handover(&self) -> Option<&Handover> {
        self.handover.as_deref()
    }

    /// The number of pages in memory that are not distributed yet.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Bytes read so far, including added newlines.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes read so far, without added newlines.
    pub(crate) fn file_bytes(&self, meters: &Meters) -> u64 {
        if self.handover.is_some() { self.bytes() } else { meters.input.totals().0 }
    }

    /// Reads up to `pages` pages into blocks of `pool`. Returns whether the stream ended.
    pub(crate) fn fill(
        &self,
        pool: &Pool,
        pages: usize,
        meters: &Meters,
        stopped: impl Fn() -> bool,
    ) -> Result<bool> {
        let mut state = self.state.lock().expect("no lane panics");
        while state.ahead.len() < pages {
            if stopped() {
                return Err(Error::Stopped);
            }
            let block = pool.try_take().expect("memory has room for what is read ahead");
            match self.read_page(&mut state, block, meters, &stopped)? {
                Some(block) => {
                    state.ahead.push_back(block);
                    self.ahead.fetch_add(1, Ordering::Relaxed);
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Keys from all pages in memory, at most `keys_bytes_max` bytes of them, and the average bytes of a record.
    pub(crate) fn sample(&self, key: &Key, keys_bytes_max: u64) -> (Vec<SplitPoint>, f64) {
        let state = self.state.lock().expect("no lane panics");
        let mut keys = Vec::new();
        let (mut seen, mut seen_bytes) = (0u64, 0u64);
        let budget = keys_bytes_max as usize / state.ahead.len().max(1);
        for block in &state.ahead {
            let (records, _) = records_in(self.layout, block, block.offset());
            seen += records.len() as u64;
            seen_bytes += block.len() as u64;
            keep_keys(&mut keys, key, &records, block.offset(), budget);
        }
        (keys, seen_bytes as f64 / seen.max(1) as f64)
    }

    /// Fills a block with the next bytes; `None` at the end.
    fn read_page(
        &self,
        state: &mut State,
        mut block: Block,
        meters: &Meters,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Block>> {
        let capacity = block.capacity();
        let mut len = 0;
        while len < capacity {
            let Some(file) = state.files.front().cloned() else { break };
            let room = &mut block.whole_mut()[len..];
            let Some(n) = meters.stage.for_read(|| file.read_some(state.at, room, PATIENCE))? else {
                // Even while waiting for a pipe, a sort can be stopped.
                if stopped() {
                    return Err(Error::Stopped);
                }
                continue;
            };
            meters.input.read(n as u64);
            if n > 0 {
                state.walk.pass(&block.whole()[len..len + n]);
                state.at += n as u64;
                len += n;
                continue;
            }
            let end = self.layout.end();
            match state.walk.done() as u64 {
                0 => {}
                left if end.is_empty() => {
                    return Err(InputsError::cut_off(file.path(), self.layout, state.at, left).into());
                }
                _ => {
                    block.whole_mut()[len..len + end.len()].copy_from_slice(end);
                    len += end.len();
                }
            }
            state.walk = Walk::new(self.layout);
            state.files.pop_front();
            state.at = 0;
        }
        if len == 0 {
            return Ok(None);
        }
        block.set_len(len);
        block.set_offset(state.next_page * capacity as u64);
        state.next_page += 1;
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Some(block))
    }
}

/// A stream as the output, which several lanes write.
pub(crate) struct OutputStream {
    file: File,
    /// Bytes of blocks that may wait for those before them.
    window_bytes: u64,
    state: Mutex<Leaving>,
    /// Wakes lanes whose blocks are beyond the window.
    passed: Condvar,
}

#[derive(Default)]
struct Leaving {
    written_bytes: u64,
    /// Whether a lane writes.
    is_busy: bool,
    /// Blocks that wait for those before them, by offset.
    waiting: BTreeMap<u64, Block>,
}

impl OutputStream {
    /// Opens a stream as the output. It can be stopped while it waits for a reader.
    pub(crate) fn open(
        output: &Location,
        window_bytes: u64,
        stopped: impl Fn() -> bool,
    ) -> Result<OutputStream> {
        while !stopped() {
            if let Some(file) = File::open_some(&output.fs, &output.path, Access::WriteStream, PATIENCE)? {
                let (state, passed) = (Mutex::default(), Condvar::new());
                return Ok(OutputStream { file, window_bytes, state, passed });
            }
        }
        Err(Error::Stopped)
    }

    fn state(&self) -> MutexGuard<'_, Leaving> {
        self.state.lock().expect("no lane panics")
    }
}

/// A lane of the output: writes the blocks that are next, and leaves others to the lane that gets there.
pub(crate) struct OutputStreamLane<'a> {
    pub(crate) stream: &'a OutputStream,
    pub(crate) meters: &'a Meters,
    pub(crate) stopped: &'a (dyn Fn() -> bool + Sync),
}

impl Sink for OutputStreamLane<'_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        let stream = self.stream;
        let mut state = stream.state();
        while block.offset() >= state.written_bytes + stream.window_bytes {
            if (self.stopped)() {
                return Err(Error::Stopped);
            }
            let wait = || stream.passed.wait_timeout(state, PATIENCE).expect("no lane panics").0;
            state = self.meters.stage.for_write(wait);
        }
        state.waiting.insert(block.offset(), block);
        if std::mem::replace(&mut state.is_busy, true) {
            return Ok(());
        }
        let mut at = state.written_bytes;
        while let Some(block) = state.waiting.remove(&at) {
            drop(state);
            self.meters.stage.for_write(|| stream.file.write_at(at, &block))?;
            self.meters.output.wrote(block.len() as u64);
            at += block.len() as u64;
            drop(block);
            state = stream.state();
            state.written_bytes = at;
            stream.passed.notify_all();
        }
        state.is_busy = false;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One lane of a stream: takes the next page.
pub(crate) struct FeedLane<'a> {
    pub(crate) feed: &'a Feed,
    pub(crate) pool: &'a Pool,
    pub(crate) meters: &'a Meters,
    pub(crate) stopped: &'a (dyn Fn() -> bool + Sync),
}

impl Source for FeedLane<'_> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Block>> {
        let mut state = self.feed.state.lock().expect("no lane panics");
        if let Some(block) = state.ahead.pop_front() {
            self.feed.ahead.fetch_sub(1, Ordering::Relaxed);
            return Ok(Some(block));
        }
        if let Some(handover) = self.feed.handover() {
            let page = self.meters.stage.for_read(|| handover.next_input(self.stopped))?;
            self.feed.bytes.fetch_add(page.as_ref().map_or(0, |page| page.len() as u64), Ordering::Relaxed);
            return Ok(page);
        }
        let block = self.meters.stage.for_write(|| self.pool.take());
        self.feed.read_page(&mut state, block, self.meters, self.stopped)
    }
}
