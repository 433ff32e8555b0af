//! Output notes: how much of the output is durable. They are written during the second pass, and a later run resumes
//! from them.
//!
//! ```text
//! output  [ range 0 ][ range 1 ][ range 2 |      ][ ...
//!                              ^ bound    ^ end of the prefix that is completely written
//!         [ noted ->           ]
//! ```
//!
//! Model: ranges are written in order, and sorting a range again gives the same bytes. So the output up to the end of
//! a range is a prefix that a later run would only repeat. When enough of it is written, one lane syncs the file and
//! appends a note, while the others continue. Scratch may lie in the output file, so they must not overwrite pages
//! that a run needs if it resumes at the last note.
//! Invariant: a note is appended only after its bytes are durable. A run resumes from a note only if the file is long
//! enough and ends there as the note says. Noted bytes are not written again, except for the block in which they end.
//! Non-goals: bytes that the disk changes later; `check` reads the file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use thalweg_api::Proof;
use thalweg_base::sabotage;
use thalweg_block::Block;
use thalweg_io::{Access, File, Location};
use thalweg_pump::{FileLane, Meters, Prefix, Sink};
use thalweg_record::{Chain, Layout, Prover, add_proof};
use xxhash_rust::xxh3::xxh3_64;

use crate::geometry::Geometry;
use crate::manifest::{Manifest, OutputNote};
use crate::range::RangeStore;
use crate::{Error, Result};

/// How often a lane that has to wait polls the progress of the others.
const POLL: Duration = Duration::from_millis(1);

/// Where this run starts in the output: at its first byte, or after what an earlier run wrote.
#[derive(Debug, Default)]
pub(crate) struct ResumePoint {
    /// The output that is already there; empty by default.
    pub(crate) note: OutputNote,
    /// The start of the block in which the output continues.
    pub(crate) head: Vec<u8>,
}

impl ResumePoint {
    /// Resumes after `note`, if the file `partial` agrees with it.
    pub(crate) fn of_note(partial: &Location, note: OutputNote, block_bytes: usize) -> Option<ResumePoint> {
        let file = partial.open(Access::Update).ok()?;
        file.metadata().ok().filter(|m| m.len >= note.bytes)?;
        let tail = tail_of(&file, note.bytes, block_bytes).ok()?;
        if xxh3_64(&tail) != note.tail_hash && !sabotage::breaks("trust-partial") {
            return None;
        }
        let head = tail[tail.len() - (note.bytes % block_bytes as u64) as usize..].to_vec();
        Some(ResumePoint { note, head })
    }

    /// The number of ranges that need not be sorted.
    pub(crate) fn ranges(&self) -> usize {
        self.note.ranges as usize
    }

    /// Input bytes of finished ranges that are not in `stores`. `None` if `stores` has more bytes for them than they
    /// had.
    pub(crate) fn unseen_bytes(&self, layout: Layout, stores: &[RangeStore]) -> Option<u64> {
        let Proof { records, bytes, .. } = self.note.dropped;
        let end_bytes = records.checked_mul(layout.end_bytes() as u64)?;
        let all = self.note.bytes.checked_add(bytes)?.checked_add(end_bytes)?;
        all.checked_sub(stores.iter().take(self.ranges()).map(|store| store.bytes).sum())
    }
}

/// The last of the first `bytes` bytes, up to a block of them.
fn tail_of(file: &File, bytes: u64, block_bytes: usize) -> thalweg_io::Result<Vec<u8>> {
    let mut tail = vec![0; bytes.min(block_bytes as u64) as usize];
    let n = file.read_at(bytes - tail.len() as u64, &mut tail)?;
    tail.truncate(n);
    Ok(tail)
}

/// The end of a job in the output.
#[derive(Debug)]
pub(crate) struct JobEnd {
    /// The end of its stretch.
    pub(crate) at: u64,
    /// The proof of the records that were dropped.
    pub(crate) dropped: Proof,
    /// If this is the last job of a range: the number of ranges that are now done.
    pub(crate) ranges_done: Option<u64>,
}

/// Joins the proofs of jobs in their order. Jobs may end in any order.
#[derive(Debug)]
pub(crate) struct Joined {
    chain: Chain,
    dropped: Proof,
    ends: BTreeMap<u64, JobEnd>,
}

impl Joined {
    /// Starts with the proof in `start`. `empty` is an empty proof with the right key.
    pub(crate) fn new(empty: Prover, start: &ResumePoint) -> Joined {
        let note = &start.note;
        let whole = if note.proof.records > 0 { empty.behind(note.proof, &note.last) } else { empty };
        Joined { chain: Chain::new(whole), dropped: note.dropped, ends: BTreeMap::new() }
    }

    /// Adds the proof of job `index`.
    pub(crate) fn add(&mut self, index: u64, piece: Prover, end: JobEnd, notes: Option<&Notes<'_>>) {
        let Joined { chain, dropped, ends } = self;
        ends.insert(index, end);
        chain.add_each(index, piece, |index, whole| {
            let end = ends.remove(&index).expect("every job that is joined has ended");
            add_proof(dropped, &end.dropped);
            let (Some(ranges), Some(notes)) = (end.ranges_done, notes) else { return };
            let Some(last) = whole.last() else { return notes.passed(ranges) };
            let (proof, last, unique) = (*whole.proof(), last.to_vec(), notes.unique);
            let (bytes, dropped) = (end.at, *dropped);
            notes.reached(OutputNote { ranges, bytes, unique, proof, dropped, last, tail_hash: 0 });
        });
    }

    /// The proof of all jobs, and the proof of the records that were dropped.
    pub(crate) fn finish(self) -> (Prover, Proof) {
        (self.chain.finish(), self.dropped)
    }
}

/// Writes output notes.
pub(crate) struct Notes<'a> {
    manifest: &'a Manifest,
    meters: &'a Meters,
    file: File,
    block_bytes: usize,
    unique: bool,
    /// The written prefix, block by block.
    pub(crate) prefix: Prefix,
    /// The minimum number of bytes between two notes.
    every: u64,
    /// The number of written bytes at which the next note is due.
    due: AtomicU64,
    /// Ends of ranges whose jobs have all ended, in order.
    bounds: Mutex<VecDeque<OutputNote>>,
    /// Signals another bound or a note.
    changed: Condvar,
    /// Held by the lane that writes a note.
    making: Mutex<()>,
    /// Ranges that were done when this run started.
    begun: usize,
    /// Ranges that were noted since, or that cannot be noted.
    noted: AtomicUsize,
    /// For each number of noted ranges: the lowest byte of the output file that a resumed run would still read.
    needed: Vec<u64>,
}

impl<'a> Notes<'a> {
    /// Notes for an output of about `bytes` bytes that continues from `start`.
    pub(crate) fn new(
        manifest: &'a Manifest,
        file: &File,
        meters: &'a Meters,
        geometry: &Geometry,
        unique: bool,
        (start, bytes): (&ResumePoint, u64),
        needed: Vec<u64>,
    ) -> Notes<'a> {
        let every = geometry.note_every(bytes);
        Notes {
            manifest,
            meters,
            file: file.clone(),
            block_bytes: geometry.transfer_bytes,
            unique,
            prefix: Prefix::of(start.note.bytes),
            every,
            due: AtomicU64::new(start.note.bytes + every),
            bounds: Mutex::default(),
            changed: Condvar::new(),
            making: Mutex::default(),
            begun: start.ranges(),
            noted: AtomicUsize::new(0),
            needed,
        }
    }

    /// Adds the end of a range, after all jobs up to it have ended.
    fn reached(&self, bound: OutputNote) {
        let mut bounds = self.bounds.lock().expect("no lane panics");
        // Of the bounds that are written only the last one matters.
        let written = self.prefix.bytes();
        while bounds.get(1).is_some_and(|second| second.bytes <= written) {
            bounds.pop_front();
        }
        bounds.push_back(bound);
        self.changed.notify_all();
    }

    /// All jobs up to the end of `ranges` ranges have ended, but no note is possible there: hashing is off, or the
    /// last record is too long. Lets lanes continue without that note.
    fn passed(&self, ranges: u64) {
        self.noted.fetch_max(ranges as usize - self.begun, Ordering::Release);
        self.changed.notify_all();
    }

    /// Takes the last bound up to which everything is written, if it is at byte `due` or later.
    fn take_from(&self, due: u64) -> Option<OutputNote> {
        let written = self.prefix.bytes();
        if written < due {
            return None;
        }
        let mut bounds = self.bounds.lock().expect("no lane panics");
        let count = bounds.partition_point(|bound| bound.bytes <= written);
        let is_due = count > 0 && bounds[count - 1].bytes >= due;
        if is_due { bounds.drain(..count).next_back() } else { None }
    }

    /// Writes a note if one is due and no other lane is writing one.
    fn make_if_due(&self) -> Result<()> {
        self.make_from(self.due.load(Ordering::Relaxed))
    }

    /// Writes a note of everything written, if that ends at byte `due` or later and no other lane is writing one.
    fn make_from(&self, due: u64) -> Result<()> {
        let Ok(_making) = self.making.try_lock() else { return Ok(()) };
        let Some(mut note) = self.take_from(due) else { return Ok(()) };
        self.meters.stage.for_write(|| self.file.sync())?;
        let tail = tail_of(&self.file, note.bytes, self.block_bytes)?;
        note.tail_hash = xxh3_64(&tail);
        self.manifest.output_note(&note)?;
        self.due.store(note.bytes + self.every, Ordering::Relaxed);
        self.noted.fetch_max(note.ranges as usize - self.begun, Ordering::Release);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for a note, or for progress that may make one due, if a resumed run needs bytes before `end`.
    fn wait_behind(&self, end: u64) {
        let bounds = self.bounds.lock().expect("no lane panics");
        if self.are_behind(end) {
            drop(self.meters.stage.for_write(|| self.changed.wait_timeout(bounds, POLL)));
        }
    }

    /// Whether a run that resumes from the last note needs bytes of the file before `end`.
    fn are_behind(&self, end: u64) -> bool {
        end > self.needed[self.noted.load(Ordering::Acquire)]
    }
}

/// A lane of the output that also writes notes.
pub(crate) struct OutputLane<'a> {
    lane: FileLane<'a>,
    notes: Option<&'a Notes<'a>>,
    stop: &'a AtomicBool,
}

impl<'a> OutputLane<'a> {
    /// `stop` is set when another lane has failed.
    pub(crate) fn new(
        lane: FileLane<'a>,
        notes: Option<&'a Notes<'a>>,
        stop: &'a AtomicBool,
    ) -> OutputLane<'a> {
        OutputLane { lane: lane.telling(notes.map(|notes| &notes.prefix)), notes, stop }
    }
}

impl Sink for OutputLane<'_> {
    type Error = Error;

    /// While the block would overwrite bytes that a resumed run needs, waits for a later note. The pages of a range
    /// lie after the block that ends the range, so lanes that have fallen behind never wait.
    fn put(&mut self, block: Block) -> Result<()> {
        let Some(notes) = self.notes else { return Ok(self.lane.put(block)?) };
        let end = block.offset() + block.len() as u64;
        while notes.are_behind(end) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            self.lane.finish()?;
            notes.make_from(0)?;
            notes.wait_behind(end);
        }
        self.lane.put(block)?;
        notes.make_if_due()
    }

    fn settle(&mut self) -> Result<()> {
        self.lane.settle()?;
        self.notes.map_or(Ok(()), Notes::make_if_due)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.lane.finish()?)
    }
}
