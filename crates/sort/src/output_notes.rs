//! What of the output is durable: noted while the second pass runs, and gone on from by a later run.
//!
//! ```text
//! output  [ range 0 ][ range 1 ][ range 2 |      ][ ...
//!                              ^ bound    ^ prefix that is wholly written
//!         [ noted ->           ]
//! ```
//!
//! Model: ranges leave in order, and what is in them is the same however often they are sorted, so the output up to
//! the end of a range is a prefix that any later run would write again. When enough more of it is written, one lane
//! makes it durable and notes it; the others go on meanwhile, up to what a run needs that goes on from the last note:
//! where scratch lies within the output, a lane that gets ahead of another would write over it.
//! Invariant: nothing is noted before it is durable, and nothing is gone on from unless the file is as long and ends there as
//! the note says. What was noted is not written again, but for the block in which it ends, with the same bytes.
//! Non-goals: bytes that a disk changes after it has been told to keep them; `check` reads the file.

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

/// How often a lane that is ahead looks whether others have written.
const POLL: Duration = Duration::from_millis(1);

/// Where an output begins: at its first byte, or behind what an earlier run wrote.
#[derive(Debug, Default)]
pub(crate) struct ResumePoint {
    /// What is there; of nothing by default.
    pub(crate) note: OutputNote,
    /// The beginning of the block in which the output goes on.
    pub(crate) head: Vec<u8>,
}

impl ResumePoint {
    /// Behind what `note` says of `partial`, if that is so.
    pub(crate) fn take_up(partial: &Location, note: OutputNote, block_bytes: usize) -> Option<ResumePoint> {
        let file = partial.open(Access::Update).ok()?;
        file.metadata().ok().filter(|m| m.len >= note.bytes)?;
        let tail = tail_of(&file, note.bytes, block_bytes).ok()?;
        if xxh3_64(&tail) != note.tail_hash && !sabotage::breaks("trust-partial") {
            return None;
        }
        let head = tail[tail.len() - (note.bytes % block_bytes as u64) as usize..].to_vec();
        Some(ResumePoint { note, head })
    }

    /// How many ranges need not be sorted.
    pub(crate) fn ranges(&self) -> usize {
        self.note.ranges as usize
    }

    /// Bytes of input that go to ranges which are done and are not in `stores`. `None` if more is there than they
    /// ever got.
    pub(crate) fn unseen_bytes(&self, layout: Layout, stores: &[RangeStore]) -> Option<u64> {
        let Proof { records, bytes, .. } = self.note.dropped;
        let end_bytes = records.checked_mul(layout.end_bytes() as u64)?;
        let all = self.note.bytes.checked_add(bytes)?.checked_add(end_bytes)?;
        all.checked_sub(stores.iter().take(self.ranges()).map(|store| store.bytes).sum())
    }
}

/// The last block's bytes of the first `bytes` bytes, or all of them.
fn tail_of(file: &File, bytes: u64, block_bytes: usize) -> thalweg_io::Result<Vec<u8>> {
    let mut tail = vec![0; bytes.min(block_bytes as u64) as usize];
    let n = file.read_at(bytes - tail.len() as u64, &mut tail)?;
    tail.truncate(n);
    Ok(tail)
}

/// The end of a job in the output.
#[derive(Debug)]
pub(crate) struct JobEnd {
    /// The byte behind its last one.
    pub(crate) at: u64,
    /// What it did not keep.
    pub(crate) dropped: Proof,
    /// If it is the last one of a range: how many ranges are done with it.
    pub(crate) ranges_done: Option<u64>,
}

/// The proofs of jobs, which end in any order, joined in theirs.
#[derive(Debug)]
pub(crate) struct Joined {
    chain: Chain,
    dropped: Proof,
    ends: BTreeMap<u64, JobEnd>,
}

impl Joined {
    /// Nothing yet but what `start` has; `empty` proves nothing, with the right key.
    pub(crate) fn new(empty: Prover, start: &ResumePoint) -> Joined {
        let note = &start.note;
        let whole = if note.proof.records > 0 { empty.behind(note.proof, &note.last) } else { empty };
        Joined { chain: Chain::new(whole), dropped: note.dropped, ends: BTreeMap::new() }
    }

    /// Job `index` has ended.
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

    /// The proof of all jobs, and of what they did not keep.
    pub(crate) fn finish(self) -> (Prover, Proof) {
        (self.chain.finish(), self.dropped)
    }
}

/// Makes output notes.
pub(crate) struct Notes<'a> {
    manifest: &'a Manifest,
    meters: &'a Meters,
    file: File,
    block_bytes: usize,
    unique: bool,
    /// What was written, block by block.
    pub(crate) prefix: Prefix,
    /// Bytes between notes, at least.
    every: u64,
    /// The least bytes that are worth the next note.
    due: AtomicU64,
    /// Ends of ranges up to which all jobs have ended, in order.
    bounds: Mutex<VecDeque<OutputNote>>,
    /// Another bound, or a note.
    changed: Condvar,
    /// Held by the lane that is making a note.
    making: Mutex<()>,
    /// Ranges that were done when this run began.
    begun: usize,
    /// Ranges that were noted since, or could not be.
    noted: AtomicUsize,
    /// Where in the output the first page lies that a run needs which goes on behind so many noted ranges.
    needed: Vec<u64>,
}

impl<'a> Notes<'a> {
    /// Of an output of about `bytes` bytes that goes on from `start`.
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

    /// All jobs up to the end of a range have ended.
    fn reached(&self, bound: OutputNote) {
        let mut bounds = self.bounds.lock().expect("no lane panics");
        // Of those that are written only the last one matters.
        let written = self.prefix.bytes();
        while bounds.get(1).is_some_and(|second| second.bytes <= written) {
            bounds.pop_front();
        }
        bounds.push_back(bound);
        self.changed.notify_all();
    }

    /// All jobs up to the end of so many ranges have ended, and no note can be made there, without a proof or behind a
    /// record that is too long to be noted: nobody waits for one.
    fn passed(&self, ranges: u64) {
        self.noted.fetch_max(ranges as usize - self.begun, Ordering::Release);
        self.changed.notify_all();
    }

    /// The last bound up to which everything is written, if that is from byte `due` on.
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

    /// Makes a note if one is due and no other lane is at it.
    fn make_if_due(&self) -> Result<()> {
        self.make_from(self.due.load(Ordering::Relaxed))
    }

    /// Makes a note of all that is written, if that is from byte `due` on and no other lane is at it.
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

    /// Waits for a note, or for what may make one due, if notes are still behind byte `end`.
    fn wait_behind(&self, end: u64) {
        let bounds = self.bounds.lock().expect("no lane panics");
        if self.are_behind(end) {
            drop(self.meters.stage.for_write(|| self.changed.wait_timeout(bounds, POLL)));
        }
    }

    /// Whether a run that goes on from the last note needs what lies before byte `end` of the file.
    fn are_behind(&self, end: u64) -> bool {
        end > self.needed[self.noted.load(Ordering::Acquire)]
    }
}

/// A lane to the output that makes notes of it.
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

    /// Waits where the block would take the place of what a later run needs, until a note is made up to behind that.
    /// The pages of a range lie behind the block that ends it, so the lanes that are behind never wait.
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
