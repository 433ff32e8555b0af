//! A stream as the input: standard input, a pipe, anything that can be read once, and pages that somebody
//! hands over.
//!
//! Model: memory is filled first; what is in it is the sample from which the cuts are chosen, unless whoever
//! hands the stream over has a better one. Then the pages in memory are distributed, and after them the rest
//! of the stream as it comes. If the stream drifts away from its sample (it is sorted, say), some range grows
//! too large and is distributed again.
//! Invariant: pages come out in order, each once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_block::{Block, Pool};
use thalweg_io::{Access, File, InputFile, Location};
use thalweg_pump::{InputsError, Meters, Source};
use thalweg_record::{Key, Layout, SplitPoint, Walk, records_in, thin_sample};

use crate::geometry::{Geometry, Given, hidden_copies};
use crate::handover::Handover;
use crate::options::Sort;
use crate::sample::{guess_records, keep_keys};
use crate::{Error, Result};

/// How long to wait for a pipe before looking whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// A stream that does not fit in memory is laid out as if it were so many times as long.
const STREAM_MEMORIES: u64 = 10;
/// Longer lines of a stream make room for themselves: how long they are nobody knows before they come.
pub(crate) const RECORD_BYTES: u64 = 256 << 10;
/// Pages that are kept free of a stream that memory holds, so that none waits for another.
pub(crate) const KEEP_FREE_PAGES: usize = 16;

/// What is known of a stream before it comes.
#[derive(Debug, Default)]
pub struct Expected {
    keys: Vec<SplitPoint>,
    bytes: u64,
}

impl Expected {
    /// A stream of about so many bytes, with a fair sample of its keys, whose origins have the order of the stream.
    pub fn new(bytes: u64, mut keys: Vec<SplitPoint>) -> Expected {
        keys.sort_unstable_by_key(|split_point| split_point.origin);
        let count = keys.len() as u128;
        for (i, split_point) in keys.iter_mut().enumerate() {
            split_point.origin = (i as u128 * u128::from(bytes) / count) as u64;
        }
        Expected { keys, bytes }
    }
}

/// Memory laid out for a stream of which little is known yet.
pub(crate) struct Room {
    pub(crate) given: Given,
    pub(crate) rough: Geometry,
    expected: Expected,
}

impl Room {
    /// All of the memory that a sort was promised, less what is resident.
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

    /// Lays out what is known now that `feed` is in memory, as all of the stream or as its beginning: what to reckon with,
    /// and keys from all over it.
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

    /// Bytes that the stream is to have, if that is known.
    pub(crate) fn least_bytes(&self) -> u64 {
        if self.expected.keys.is_empty() { 0 } else { self.expected.bytes }
    }

    /// How many pages may be in memory before they are distributed.
    pub(crate) fn pages(&self) -> usize {
        // The rest is for open pages: every range may want one before the first page read is free again.
        self.rough.main_pages - (self.rough.main_pages / 6).max(4 * KEEP_FREE_PAGES)
    }

    /// How many ranges there may be, when that many pages are full.
    pub(crate) fn ranges_max(&self) -> usize {
        self.rough.main_pages - self.pages() - 2 * KEEP_FREE_PAGES
    }
}

/// The beginning of a stream in memory, and the pools that it lies in.
pub(crate) struct Filled {
    pub(crate) feed: Feed,
    pub(crate) room: Room,
    pub(crate) main: Pool,
    pub(crate) transfer: Pool,
    /// Whether it is the whole stream.
    pub(crate) ended: bool,
}

/// Streams read one after the other, or the pages that are handed over.
pub(crate) struct Feed {
    layout: Layout,
    /// Who hands over the pages after those in memory; without one they are read from files.
    handover: Option<Arc<Handover>>,
    state: Mutex<State>,
    bytes: AtomicU64,
    /// Pages in memory that are not distributed yet.
    ahead: AtomicUsize,
}

struct State {
    files: VecDeque<InputFile>,
    /// Byte of the first file that is read next.
    at: u64,
    /// Behind the bytes of the first file that were read.
    walk: Walk,
    next_page: u64,
    /// Pages read into memory ahead of the distribution.
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

    /// A stream that begins with these pages and goes on with those that are handed over. Their offsets are
    /// those of the stream already, and the last record is whole.
    pub(crate) fn handed(handover: Arc<Handover>, ahead: VecDeque<Block>, layout: Layout) -> Feed {
        let bytes: u64 = ahead.iter().map(|page| page.len() as u64).sum();
        let count = ahead.len().into();
        let state = State { files: VecDeque::new(), at: 0, walk: Walk::new(layout), next_page: 0, ahead };
        Feed { layout, handover: Some(handover), state: Mutex::new(state), bytes: bytes.into(), ahead: count }
    }

    /// Who hands over the stream, and takes the sorted one.
    pub(crate) fn handover(&self) -> Option<&Handover> {
        self.handover.as_deref()
    }

    /// Pages in memory that are not distributed yet.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Bytes read so far, added newlines included.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the streams as they came; of what was handed over, whose last line was whole already, as it was.
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

    /// Keys from all over the pages in memory, at most `keys_bytes_max` bytes of them, and the average
    /// bytes of a record.
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
                // Who waits for a pipe still hears that it should stop.
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

/// Opens a stream as the output. Who waits for its reader still hears that it should stop.
pub(crate) fn open_output(output: &Location, stopped: impl Fn() -> bool) -> Result<File> {
    while !stopped() {
        if let Some(output) = File::open_some(&output.fs, &output.path, Access::WriteStream, PATIENCE)? {
            return Ok(output);
        }
    }
    Err(Error::Stopped)
}

/// One lane of a stream: takes whatever page is next.
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
