//! The verb `merge`: inputs that are in order become one.
//!
//! Model: files are parted by key into as many stretches as there are lanes, each of which merges its pieces of all
//! files and writes its stretch of the output. Pipes, and `--unique`, with which a stretch's length is unknown, are
//! merged by one lane. More inputs than may be open, or than memory has blocks for, take one more pass, as a
//! multi-level merge would: they are sorted, which needs few of them at a time. So are files with lines that are too
//! long for a merge's memory. This is decided before any pipe is opened: closing a pipe loses what has come through it.
//! Invariant: out + dropped = in, and out is in order; the records that came fill the files that they came from.
//! Non-goals: saying which of very many inputs is not in order; the output is in order.

use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_api::{Proof, Receipt, Work};
use thalweg_base::clock::Stopwatch;
use thalweg_base::units::MIB;
use thalweg_block::Pool;
use thalweg_io::{ALIGN, Caching, File, InputLocation, host, process};
use thalweg_merge::{AHEAD, Broken, Ends, Limits, Merge, Merged, Piece, Reads, Share, Stretch, close, split};
use thalweg_pump::{FileLane, Inputs, Meters, Output, Sink, StreamLane};
use thalweg_record::{Key, Prover, add_proof, file_bytes, same_records};

use super::receipt::Ran;
use super::sort::inputs_of;
use crate::lane_threads::Lanes;
use crate::machine::Disks;
use crate::output::{self, Target};
use crate::{Error, Progress, Result, WorkOptions, machine};

/// Writes of a lane in flight.
const DEPTH: usize = 8;
/// Blocks of a lane's output: in flight, the one that is filled, the one in which its stretch ends.
const OUT_BLOCKS: usize = DEPTH + 2;
/// Blocks are no larger: with two ahead of each input, a disk is busy.
const BLOCK_BYTES_MAX: u64 = MIB;
/// The most reads in flight.
const READS_MAX: usize = 256;
/// The least bytes for each lane.
const LANE_BYTES_MIN: u64 = 16 * MIB;
/// Code, stacks and small things that become resident while a merge runs.
const PROCESS_GROWS_BYTES: u64 = 2 * MIB;
/// Open files beside inputs and rings: standard ones, the output, one that is open briefly.
const FILES_BESIDE: u64 = 5;

/// Merges inputs that are in order. The receipt's invariant: out + dropped = in, and out is in order.
pub(super) fn merge(options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    match merge_at_once(&Disks::of_work(options)?, options, progress)? {
        Some(receipt) => Ok(receipt),
        None => merge_by_sorting(options, progress),
    }
}

fn merge_by_sorting(options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    let sorting = WorkOptions { work: Work::Sort, ..options.clone() };
    let receipt = super::sort::sort(&sorting, progress)?;
    Ok(Receipt { verb: "merge".to_string(), plan: None, ..receipt })
}

/// Merges all inputs at once; `None` if they, or lines of files, are too many or too long for that.
pub(super) fn merge_at_once(
    disks: &Disks,
    options: &WorkOptions,
    progress: &Progress,
) -> Result<Option<Receipt>> {
    let watch = Stopwatch::start();
    let key = Key::new(options.layout, &options.keys)?;
    let target = Target::of(&disks.output, &options.output)?;
    let Some(inputs) = Sorted::open(disks, options)? else { return Ok(None) };
    let can_part = options.layout.is_found_anywhere();
    let may_part = can_part && inputs.are_files() && !options.unique && matches!(target, Target::File(_));
    let lanes_useful = if may_part { (inputs.files.file_bytes() / LANE_BYTES_MIN + 1) as usize } else { 1 };
    let lanes = machine::lanes(options.threads).min(lanes_useful);
    let Some(room) = Room::of(options, machine::memory_of(options.memory)?, inputs.count(), lanes) else {
        return Ok(None);
    };
    let merge = Merge { layout: options.layout, key: &key, unique: options.unique, line_max: room.line_max };
    let pool = Pool::new(room.block_bytes, room.blocks())?;
    let meters = Meters::default();
    let met_long = AtomicBool::new(false);
    let job = Job { inputs: &inputs, merge, room: &room, pool, progress, meters, met_long };
    progress.begin("merge", 1, 1, if inputs.are_files() { inputs.files.bytes() } else { 0 });
    let (file, (merged, output, written)) = match &target {
        Target::File(name) => {
            let file = output::create(name, inputs.files.bytes())?;
            let merged = job.to_file(&file);
            if merged.is_err() && job.met_long.load(Ordering::Relaxed) && inputs.are_files() {
                return Ok(None);
            }
            (Some((file, &name.path)), merged?)
        }
        Target::Stream(stream) => (None, job.to_stream(&output::open_stream(stream, progress)?)?),
    };
    inputs.files.check_unchanged()?;
    job.judge(&merged, &output)?;
    let direct_output = file.as_ref().is_some_and(|(file, _)| file.file().is_direct());
    let not_kept =
        file.map_or_else(|| Ok(Vec::new()), |(file, path)| output::publish(file, path, written))?;
    let input_file_bytes =
        if inputs.are_files() { inputs.files.file_bytes() } else { job.meters.input.totals().0 };
    let memory_bytes = room.memory_bytes;
    let ran = Ran { disks, meters: &job.meters, watch: &watch, direct_output, memory_bytes };
    Ok(Some(Receipt {
        input: merged.input,
        output,
        dropped: merged.dropped,
        input_file_bytes,
        output_file_bytes: written,
        not_kept,
        ..ran.receipt("merge", "merge")
    }))
}

/// The inputs, each a file that can be read at any place or a stream.
struct Sorted {
    /// Those that are files.
    files: Inputs,
    /// Those that are not, each with its place among all.
    streams: Vec<(usize, InputLocation)>,
}

impl Sorted {
    /// Opens the files; `None` if the process may not have this many inputs open.
    fn open(disks: &Disks, options: &WorkOptions) -> Result<Option<Sorted>> {
        let all = inputs_of(disks, &options.inputs)?;
        let needed = process::open_files() + all.len() as u64 + FILES_BESIDE;
        if host::allow_open_files(needed) < needed {
            return Ok(None);
        }
        let (streams, files): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(_, input)| input.is_stream());
        let files: Vec<InputLocation> = files.into_iter().map(|(_, file)| file).collect();
        let mut files = Inputs::open(&files, options.layout)?;
        files.set_page_bytes(ALIGN);
        Ok(Some(Sorted { files, streams }))
    }

    fn are_files(&self) -> bool {
        self.streams.is_empty()
    }

    fn count(&self) -> usize {
        self.files.files().len() + self.streams.len()
    }
}

/// How memory is laid out.
struct Room {
    memory_bytes: u64,
    lanes: usize,
    inputs: usize,
    block_bytes: usize,
    line_max: u64,
}

impl Room {
    /// The layout for this many inputs; `None` if there is too little memory.
    fn of(options: &WorkOptions, memory_bytes: u64, inputs: usize, lanes: usize) -> Option<Room> {
        let resident = host::prepare_memory() + PROCESS_GROWS_BYTES;
        // If records cross blocks, each flow copies two, and a proof one; the proof keeps two more, to compare them
        // with those of other lanes. One more is kept to recognize equal keys.
        let copies = (lanes * (2 * inputs + 3) + usize::from(options.unique)) as u64;
        let (copied, line_max) = match options.layout.fixed_bytes() {
            Some(n) => (copies * n as u64, u64::MAX),
            None => (memory_bytes / 4, memory_bytes / 4 / copies),
        };
        let mut room = Room { memory_bytes, lanes, inputs, block_bytes: ALIGN, line_max };
        // In the block where two lanes meet, the later lane keeps its part separately.
        let blocks = (room.blocks() + lanes - 1) as u64;
        let least = resident + copied + blocks * ALIGN as u64;
        if memory_bytes < least && lanes > 1 {
            return Room::of(options, memory_bytes, inputs, 1);
        }
        let most = (memory_bytes.checked_sub(least)? / blocks + ALIGN as u64).min(BLOCK_BYTES_MAX);
        room.block_bytes = most as usize / ALIGN * ALIGN;
        Some(room)
    }

    /// Blocks that all lanes can hold at once: for each input one and those read ahead, and those of the output.
    fn blocks(&self) -> usize {
        self.lanes * (self.inputs * (AHEAD + 1) + OUT_BLOCKS)
    }
}

struct Job<'a> {
    inputs: &'a Sorted,
    merge: Merge<'a>,
    room: &'a Room,
    pool: Pool,
    progress: &'a Progress,
    meters: Meters,
    /// Whether a line was longer than there is memory for.
    met_long: AtomicBool,
}

impl Job<'_> {
    /// What each lane merges.
    fn shares(&self) -> Result<Vec<Share>> {
        let Room { lanes, block_bytes, line_max, .. } = *self.room;
        // No block is taken yet. The sample gets half of the blocks' memory; the other half is for the lines between
        // lanes, since a line inside one block may be as long as the block.
        let sample_bytes = self.pool.capacity() as u64 * block_bytes as u64 / 2;
        let limits = Limits { sample_bytes, line_bytes: line_max.max(block_bytes as u64) };
        let mut shares = split(&self.inputs.files, &self.merge, lanes, limits).map_err(|e| self.error(e))?;
        for (place, stream) in &self.inputs.streams {
            let stream = stream.open(Caching::Cached)?;
            shares[0].pieces.insert(*place, Piece::Stream(stream));
        }
        Ok(shares)
    }

    /// Merges into a file. Returns what was merged, the proof of the output, and its bytes.
    fn to_file(&self, output: &Output) -> Result<(Merged, Proof, u64)> {
        let sink = || Ok(FileLane::new(output.file(), output.file().backend().queue(DEPTH)?, &self.meters));
        let (merged, ends) = self.run(self.shares()?, sink)?;
        let mut joints = sink()?;
        let (prover, written) = close(ends, |block| joints.put(block))?;
        joints.finish()?;
        Ok((merged, *prover.proof(), written))
    }

    /// Merges into a stream. Returns what was merged, the proof of the output, and its bytes.
    fn to_stream(&self, file: &File) -> Result<(Merged, Proof, u64)> {
        let (merged, ends) = self.run(self.shares()?, || Ok(StreamLane::new(file, &self.meters)))?;
        let (prover, written) = close(ends, |_| unreachable!("one lane writes all of it"))?;
        Ok((merged, *prover.proof(), written))
    }

    /// Runs the lanes, each into a sink of its own.
    fn run<K: Sink<Error = thalweg_io::Error>>(
        &self,
        shares: Vec<Share>,
        sink: impl Fn() -> thalweg_io::Result<K> + Sync,
    ) -> Result<(Merged, Vec<Ends>)> {
        let Job { merge, pool, inputs, meters, progress, .. } = self;
        let empty = Prover::new(merge.layout, merge.key.clone(), true);
        let count = shares.len();
        let done = Lanes::new(progress).run(count, |lanes, lane| {
            let should_continue = |bytes| {
                progress.advance(bytes);
                lanes.should_continue()
            };
            let Share { pieces, at } = shares[lane].clone();
            let depth = (pieces.len() * AHEAD).min(READS_MAX);
            let reads =
                Reads::new(pieces, inputs.files.backends().queue(depth)?, pool, meters, &should_continue);
            let mut out = Stretch::new(sink()?, pool, empty.clone(), at);
            let merged = thalweg_merge::merge(*merge, reads, &mut out).map_err(|e| self.error(e))?;
            Ok((merged, out.finish(lane + 1 == count)?))
        })?;
        let mut whole = Merged::default();
        let mut ends = Vec::with_capacity(count);
        for (merged, end) in done {
            add_proof(&mut whole.input, &merged.input);
            add_proof(&mut whole.dropped, &merged.dropped);
            ends.push(end);
        }
        Ok((whole, ends))
    }

    /// Whether the invariant holds.
    fn judge(&self, merged: &Merged, output: &Proof) -> Result<()> {
        let mut out = *output;
        add_proof(&mut out, &merged.dropped);
        let Merge { layout, unique, .. } = self.merge;
        let came = file_bytes(layout, &merged.input);
        let is_all = !self.inputs.are_files() || came == self.inputs.files.bytes();
        let in_order = output.unordered == 0 && (!unique || output.duplicates == 0);
        if is_all && in_order && same_records(&merged.input, &out) {
            return Ok(());
        }
        Err(Error::MergeMismatch {
            read: merged.input.records,
            written: output.records,
            dropped: merged.dropped.records,
            unordered: output.unordered,
        })
    }

    fn error(&self, error: thalweg_merge::Error) -> Error {
        match error {
            thalweg_merge::Error::Stopped => Error::Interrupted(self.progress.cancelled().unwrap_or(0)),
            other => {
                if matches!(other, thalweg_merge::Error::Broken { what: Broken::TooLong { .. }, .. }) {
                    self.met_long.store(true, Ordering::Relaxed);
                }
                other.into()
            }
        }
    }
}
