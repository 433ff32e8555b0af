//! `gen`: writes the Sort Benchmark's records.
//!
//! Model: the output is cut into pages of 10,240 whole records. Each lane takes the next page that
//! no lane has taken, skips to its first record, makes it in a block, proves the block and hands it to the
//! write; the proofs are joined in the order of pages. A stream gets its pages from one lane, in order.
//! Invariant: the writes are given exactly the requested number of records and bytes.
//! Non-goals: what the records contain; that is the record crate's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};

use thalweg_api::{Proof, Receipt};
use thalweg_base::clock::Stopwatch;
use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Location};
use thalweg_pump::{FileLane, Meters, Sink, StreamLane};
use thalweg_record::{Chain, Generator, KEY_BYTES, Key, KeyPart, Kind, Layout, Prover, RECORD_BYTES};

use super::receipt::Ran;
use crate::lane_threads::Lanes;
use crate::machine::Disks;
use crate::output::{self, Target};
use crate::{Asked, Error, GenOptions, Progress, Result, machine};

/// Records of a page. A page is 1,024,000 bytes: whole records, and whole sectors for direct writes.
const PAGE_RECORDS: u64 = 10_240;
const PAGE_BYTES: usize = PAGE_RECORDS as usize * RECORD_BYTES;
const _: () = assert!(PAGE_BYTES.is_multiple_of(ALIGN));
/// Writes in flight for each lane. Two lanes saturate a disk of 2 GB/s with four; the rest is margin.
const DEPTH: usize = 8;
/// Blocks of a stream: one is written, one is made, one waits in between.
const STREAM_BLOCKS: usize = 3;
/// No disk keeps more lanes than this busy: one makes and proves 3 GB/s.
const LANES_MAX: usize = 8;

/// Writes the Sort Benchmark's records.
pub fn generate(options: &GenOptions, progress: &Progress) -> Result<Receipt> {
    generate_on(&Disks::of(options.io, [], Some(&options.output))?, options, progress)
}

pub(super) fn generate_on(disks: &Disks, options: &GenOptions, progress: &Progress) -> Result<Receipt> {
    let watch = Stopwatch::start();
    let job = Job::new(options, progress)?;
    let target = Target::of(&disks.output, &options.output)?;
    let bytes = job.count * RECORD_BYTES as u64;
    progress.begin("generate+write", 1, 1, bytes);
    let direct_output = match &target {
        Target::File(file) => job.to_file(file)?,
        Target::Stream(stream) => job.to_stream(stream)?,
    };
    let ran = Ran { disks, meters: &job.meters, watch: &watch, direct_output, memory_bytes: 0 };
    let receipt = ran.receipt("gen", "generate+write");
    let written = receipt.io.output.written_bytes;
    let output = *job.chain.into_inner().expect("no holder panics").finish().proof();
    // Only the generator knows the checksum of its records; count and bytes are those requested.
    let input = Proof { records: job.count, bytes, ..output };
    let whole = match &target {
        Target::File(file) => file.stat()?.len == bytes,
        Target::Stream(_) => written == bytes,
    };
    let holds = whole && output == input;
    Ok(Receipt { input, output, input_file_bytes: bytes, output_file_bytes: written, holds, ..receipt })
}

/// What is to be made, and what is known of it so far.
struct Job<'a> {
    kind: Kind,
    start: u128,
    count: u64,
    progress: &'a Progress,
    meters: Meters,
    chain: Mutex<Chain>,
    prover: Prover,
}

impl<'a> Job<'a> {
    fn new(options: &GenOptions, progress: &'a Progress) -> Result<Job<'a>> {
        let GenOptions { count, start, ascii, skewed, .. } = *options;
        // The greatest length of a file, or of anything else with an offset.
        let most = i64::MAX as u64 / RECORD_BYTES as u64;
        let Some(count) = u64::try_from(count).ok().filter(|&count| count <= most) else {
            return Err(Asked::TooManyRecords { count, record_bytes: RECORD_BYTES, max: most }.into());
        };
        if count > 0 && start.checked_add(u128::from(count) - 1).is_none() {
            return Err(Asked::PastLastRecord { count, start }.into());
        }
        let layout = Layout::Fixed(RECORD_BYTES as u32);
        let part = KeyPart { offset: 0, length: KEY_BYTES as u32, descending: false };
        let key = Key::new(layout, &[part]).expect("the key lies inside the record");
        let prover = Prover::new(layout, key, true);
        let chain = Mutex::new(Chain::new(prover.clone()));
        Ok(Job {
            kind: Kind { ascii, skewed },
            start,
            count,
            progress,
            meters: Meters::default(),
            chain,
            prover,
        })
    }

    fn pages(&self) -> u64 {
        self.count.div_ceil(PAGE_RECORDS)
    }

    /// Makes page `page` in `block` and proves it.
    fn make(&self, page: u64, mut block: Block) -> Block {
        let first = page * PAGE_RECORDS;
        block.set_len(PAGE_RECORDS.min(self.count - first) as usize * RECORD_BYTES);
        block.set_offset(first * RECORD_BYTES as u64);
        Generator::new(self.kind, self.start + u128::from(first)).fill(&mut block);
        let mut prover = self.prover.clone();
        prover.push(&block);
        self.chain.lock().expect("no holder panics").add(page, prover);
        block
    }

    /// Returns whether the writes bypassed the page cache.
    fn to_file(&self, name: &Location) -> Result<bool> {
        let bytes = self.count * RECORD_BYTES as u64;
        let output = output::create(name, bytes)?;
        let file = output.file();
        let count = machine::cores().min(LANES_MAX).min(self.pages().max(1) as usize);
        let pool = Pool::new(PAGE_BYTES, count * (DEPTH + 1))?;
        let next = AtomicU64::new(0);
        Lanes::new(self.progress).run(count, |lanes, _| {
            let mut sink = FileLane::new(file, name.fs.queue(DEPTH)?, &self.meters);
            while lanes.should_continue() {
                let page = next.fetch_add(1, Ordering::Relaxed);
                if page >= self.pages() {
                    break;
                }
                let block = self.make(page, pool.take());
                self.put(&mut sink, block)?;
            }
            Ok(sink.finish()?)
        })?;
        let direct = file.is_direct();
        output::publish(output, &name.path, bytes)?;
        Ok(direct)
    }

    /// Makes the next pages while one is written; a stream takes one after the other.
    fn to_stream(&self, stream: &Location) -> Result<bool> {
        let file = output::open_stream(stream, self.progress)?;
        let mut sink = StreamLane::new(&file, &self.meters);
        let pool = Pool::new(PAGE_BYTES, STREAM_BLOCKS)?;
        let (made, to_write) = mpsc::sync_channel(STREAM_BLOCKS);
        std::thread::scope(|scope| {
            // Ends early when the receiver is gone.
            scope.spawn(|| {
                let made = made;
                (0..self.pages()).all(|page| made.send(self.make(page, pool.take())).is_ok())
            });
            for block in to_write {
                if let Some(signal) = self.progress.cancelled() {
                    return Err(Error::Interrupted(signal));
                }
                self.put(&mut sink, block)?;
            }
            sink.finish()?;
            Ok(false)
        })
    }

    fn put(&self, sink: &mut impl Sink<Error = thalweg_io::Error>, block: Block) -> Result<()> {
        let bytes = block.len() as u64;
        sink.put(block)?;
        self.progress.advance(bytes);
        Ok(())
    }
}
