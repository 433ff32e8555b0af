//! Sampling: keys from all parts of the input, for split points, and an estimate of the number of records.
//!
//! Small chunks are read at equal distances, so that the sample is representative whatever the order of the input. At
//! most a fixed number of records is taken from each chunk.

use std::ops::Range;

use thalweg_base::units::GIB;
use thalweg_block::Pool;
use thalweg_io::{ALIGN, Kind, Op, Queue};
use thalweg_pump::Inputs;
use thalweg_record::{Key, Layout, SPLIT_KEY_BYTES_MAX, SplitPoint, records_in};

use crate::Result;

/// The maximum number of chunks.
const CHUNKS_MAX: u64 = 1024;
/// Bytes of a chunk. Many small chunks are more representative than a few large ones.
const CHUNK_BYTES: usize = 16 << 10;
/// One chunk for this many bytes of input.
const BYTES_PER_CHUNK: u64 = 2 << 20;
/// The maximum number of records from a chunk.
const RECORDS_PER_CHUNK: usize = 96;

/// The number of records to read one by one if the chunks have too few.
const SPARSE_RECORDS: u64 = 64;
/// The number of records to read from the start, if records cannot be found from the middle of a file.
const FIRST_RECORDS: u64 = 1024;

/// A sample of an input.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Sampled keys with their places in the stream of pages.
    pub(crate) keys: Vec<SplitPoint>,
    /// The number of variable-length records whose ends are in the chunks, and the bytes of these chunks.
    seen_records: u64,
    seen_bytes: u64,
    /// The longest variable-length record that was measured. Records are measured only if the chunks have too few.
    pub(crate) longest_seen: u64,
}

impl Sample {
    /// Average bytes of a variable-length record, with its terminator.
    pub(crate) fn record_bytes(&self) -> f64 {
        self.seen_bytes as f64 / self.seen_records.max(1) as f64
    }
}

/// The number of records, or an estimate with a margin.
pub(crate) fn guess_records(layout: Layout, bytes: u64, record_bytes: f64) -> u64 {
    match layout.fixed_bytes() {
        Some(n) => bytes / n as u64,
        None => ((bytes as f64 / record_bytes.max(1.0) * 1.03) as u64 + 64).min(bytes),
    }
}

/// Reads a sample with at most `keys_bytes_max` bytes of keys. Blocks of `pool` must have the size of the inputs'
/// pages.
pub(crate) fn take_sample(
    inputs: &Inputs,
    page_bytes: u64,
    layout: Layout,
    key: &Key,
    pool: &Pool,
    queue: &mut dyn Queue,
    keys_bytes_max: u64,
) -> Result<Sample> {
    let mut sample = Sample::default();
    let total_bytes = inputs.pages() * page_bytes;
    let chunk_bytes = pool.block_size().min(CHUNK_BYTES) as u64;
    let chunks =
        (inputs.bytes() / BYTES_PER_CHUNK).clamp(16, CHUNKS_MAX).min(total_bytes.div_ceil(chunk_bytes));
    let mut next = 0;
    while next < chunks || queue.in_flight() > 0 {
        if next < chunks
            && queue.in_flight() < queue.depth()
            && let Some(block) = pool.try_take()
        {
            submit_chunk(inputs, page_bytes, next * total_bytes / chunks, chunk_bytes, block, queue)?;
            next += 1;
            continue;
        }
        let Some(done) = queue.reap(true) else { continue };
        done.result?;
        let budget = (keys_bytes_max / chunks) as usize;
        look(&mut sample, &done.block, done.tag, layout, key, budget);
    }
    Ok(sample)
}

/// The maximum distance to search for the end of a line, to report how much memory the line needs.
const MEASURED_BYTES_MAX: u64 = 4 * GIB;

/// The maximum length of one key in a sample of this size.
fn key_limit(keys_bytes_max: u64) -> usize {
    SPLIT_KEY_BYTES_MAX.min(keys_bytes_max as usize / 16)
}

/// Adds keys of single records if the chunks had too few: because records are so long that few begin in a chunk, or
/// their keys lie after its end. Reads up to `SPARSE_RECORDS` records at equal distances.
pub(crate) fn add_sparse(
    sample: &mut Sample,
    inputs: &Inputs,
    page_bytes: u64,
    layout: Layout,
    key: &Key,
    (record_max, keys_bytes_max): (u64, u64),
) -> Result<()> {
    if !layout.is_found_anywhere() {
        return add_first(sample, inputs, page_bytes, layout, key, (record_max, keys_bytes_max));
    }
    let mut record = Vec::new();
    let mut left = keys_bytes_max as usize;
    let total_bytes = inputs.pages() * page_bytes;
    let distance = total_bytes / SPARSE_RECORDS;
    // Nothing before this place has to be read again: a line that was measured ends there, or a file.
    let mut known = 0;
    for i in 0..SPARSE_RECORDS {
        let place = distance * i;
        if place < known {
            continue;
        }
        let Some(input) = (place < total_bytes).then(|| inputs.file_of(place / page_bytes)) else { break };
        let start = input.first_page * page_bytes;
        let in_file = (place - start).min(input.metadata.len.saturating_sub(1));
        let file = input.file()?;
        let at = match layout.fixed_bytes() {
            Some(n) => in_file / n as u64 * n as u64,
            None => {
                let mut lines = Lines { file: &file, piece: vec![0; SPLIT_KEY_BYTES_MAX] };
                let Some(line) = lines.at(in_file, known.saturating_sub(start), distance)? else { continue };
                known = start + line.end + 1;
                let len = line.end - line.start;
                sample.longest_seen = sample.longest_seen.max(len);
                if len > record_max {
                    // The sort will fail and report how much memory this line needs.
                    break;
                }
                record.resize(len.min(SPLIT_KEY_BYTES_MAX as u64) as usize, 0);
                line.start
            }
        };
        if let Some(n) = layout.fixed_bytes() {
            record.resize(n, 0);
        }
        if file.read_at(at, &mut record)? < record.len() {
            continue;
        }
        let normal = key.normal(&record, key_limit(keys_bytes_max));
        if !keep(&mut sample.keys, SplitPoint { normal, origin: start + at }, &mut left) {
            break;
        }
    }
    Ok(())
}

/// Adds keys of the first records of every file, if records cannot be found from the middle of a file.
fn add_first(
    sample: &mut Sample,
    inputs: &Inputs,
    page_bytes: u64,
    layout: Layout,
    key: &Key,
    (record_max, keys_bytes_max): (u64, u64),
) -> Result<()> {
    let mut piece = vec![0; SPLIT_KEY_BYTES_MAX];
    let mut left = keys_bytes_max as usize;
    for input in inputs.files() {
        let (file, mut at) = (input.file()?, 0);
        for _ in 0..FIRST_RECORDS.div_ceil(inputs.files().len() as u64) {
            let n = file.read_at(at, &mut piece)?;
            let Some(len) = layout.length(&piece[..n]) else { break };
            sample.longest_seen = sample.longest_seen.max(len as u64);
            sample.seen_records += 1;
            sample.seen_bytes += len as u64;
            let normal = key.normal(&piece[..n.min(len)], key_limit(keys_bytes_max));
            let split_point = SplitPoint { normal, origin: input.first_page * page_bytes + at };
            if len as u64 > record_max || !keep(&mut sample.keys, split_point, &mut left) {
                return Ok(());
            }
            at += len as u64;
        }
    }
    Ok(())
}

/// Finds lines in the middle of a file.
struct Lines<'f> {
    file: &'f thalweg_io::InputFile,
    piece: Vec<u8>,
}

impl Lines<'_> {
    /// The first line that begins at byte `at` or after it, or, if that line is `long`, the one that `at` is in. A line
    /// begins at byte `known`. `None` if there is none.
    fn at(&mut self, at: u64, known: u64, long: u64) -> Result<Option<Range<u64>>> {
        let before = if at == 0 { 0 } else { self.end(at - 1)? + 1 - at };
        if before <= long {
            let start = at + before;
            let end = self.end(start)?;
            return Ok(
                (end > start || self.file.read_at(start, &mut self.piece[..1])? > 0).then_some(start..end)
            );
        }
        // Lines so long are few, so all bytes are read once.
        let (mut start, mut from) = (known, known);
        while from < at {
            let n = self.read(from, at)?;
            if n == 0 {
                break;
            }
            start = memchr::memrchr(b'\n', &self.piece[..n]).map_or(start, |last| from + last as u64 + 1);
            from += n as u64;
        }
        Ok(Some(start..at + before - 1))
    }

    /// The end of the line that the byte at `from` is in: its newline, or the end of the file. A line of more than about
    /// [`MEASURED_BYTES_MAX`] ends there.
    fn end(&mut self, from: u64) -> Result<u64> {
        let mut at = from;
        while at - from <= MEASURED_BYTES_MAX {
            let n = self.read(at, u64::MAX)?;
            match memchr::memchr(b'\n', &self.piece[..n]) {
                Some(end) => return Ok(at + end as u64),
                None if n == 0 => break,
                None => at += n as u64,
            }
        }
        Ok(at)
    }

    fn read(&mut self, from: u64, to: u64) -> Result<usize> {
        let n = (self.piece.len() as u64).min(to - from) as usize;
        Ok(self.file.read_at(from, &mut self.piece[..n])?)
    }
}

fn submit_chunk(
    inputs: &Inputs,
    page_bytes: u64,
    place: u64,
    chunk_bytes: u64,
    mut block: thalweg_block::Block,
    queue: &mut dyn Queue,
) -> Result<()> {
    let page = place / page_bytes;
    let input = inputs.file_of(page);
    let in_page = (place % page_bytes).min((inputs.page_len(page) as u64).saturating_sub(1)) / chunk_bytes
        * chunk_bytes;
    let at = (page - input.first_page) * page_bytes + in_page;
    let len = (input.metadata.len - at.min(input.metadata.len)).min(chunk_bytes);
    block.set_len((len as usize).next_multiple_of(if input.is_direct() { ALIGN } else { 1 }));
    block.set_offset(at);
    let file = input.file()?.handle().clone();
    queue.submit(Op { kind: Kind::Read, file, at, block, tag: page * page_bytes + in_page });
    Ok(())
}

fn look(
    sample: &mut Sample,
    block: &thalweg_block::Block,
    tag: u64,
    layout: Layout,
    key: &Key,
    budget: usize,
) {
    let (place, bytes): (_, &[u8]) = (tag, block);
    let (mut records, open) = records_in(layout, bytes, block.offset());
    if layout.fixed_bytes().is_none() {
        // A record that began before the chunk ended in it.
        sample.seen_records += records.len() as u64 + u64::from(block.offset() > 0 && open.is_some());
        sample.seen_bytes += bytes.len() as u64;
        // The start of a record that continues after the chunk is good enough for a split point.
        records.extend(open.filter(|&from| from < bytes.len()).map(|from| (from, &bytes[from..])));
    }
    keep_keys(&mut sample.keys, key, &records, place, budget);
}

/// Adds keys of records at equal distances, up to `budget` bytes. The records begin in a piece at `place`.
pub(crate) fn keep_keys(
    keys: &mut Vec<SplitPoint>,
    key: &Key,
    records: &[(usize, &[u8])],
    place: u64,
    budget: usize,
) {
    let step = records.len().div_ceil(RECORDS_PER_CHUNK).max(1);
    let mut left = budget;
    for (at, record) in records.iter().step_by(step) {
        let normal = key.normal(record, SPLIT_KEY_BYTES_MAX);
        if !keep(keys, SplitPoint { normal, origin: place + *at as u64 }, &mut left) {
            break;
        }
    }
}

/// Keeps a key if there is space `left` for it.
fn keep(keys: &mut Vec<SplitPoint>, split_point: SplitPoint, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(split_point.normal.len() + std::mem::size_of::<SplitPoint>()) else {
        return false;
    };
    *left = rest;
    keys.push(split_point);
    true
}
