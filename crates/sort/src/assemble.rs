//! Assembles the output: jobs write stretches of one stream, which leaves in whole blocks.
//!
//! ```text
//! stream  |        block 0        |        block 1        |        block 2        |
//! jobs    [---- job 0 ----][---------- job 1 ----------][------- job 2 -------][ ...
//!                          `shared: both write block 0  `shared block 1
//! ```
//!
//! Jobs reserve their stretches one after the other, each in its sequence slot, and then copy in parallel. A block
//! inside a stretch belongs to its job. A block that several jobs share is a [`SharedBlock`]; the last job to finish
//! its part sends the block.
//! Invariant: the pool has enough blocks for all lanes, so no job ever waits for one.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use thalweg_base::sabotage;
use thalweg_block::{Block, Pool, Reservation, SharedBlock, copy_start};
use thalweg_record::Prover;

/// The output stream during assembly.
pub(crate) struct Assembler {
    pool: Pool,
    state: Mutex<State>,
    slot_passed: Condvar,
}

struct State {
    next_job: u64,
    /// The number of jobs, once it is known.
    jobs: Option<u64>,
    end: u64,
    /// The key of the last record before `end`, if duplicates are dropped.
    last_key: Option<Vec<u8>>,
    /// The unfinished block at the end of the stream.
    open: Option<SharedBlock>,
}

/// Writes the stretch of one job from start to end.
pub(crate) struct Cursor {
    segments: VecDeque<Segment>,
    pool: Pool,
    prover: Prover,
    /// Bytes of the first segment that are already in the proof.
    proved: usize,
    proving: bool,
    /// Full blocks, which must be taken before more is written.
    finished: Vec<Block>,
    /// The end of the stretch in the stream.
    end: u64,
}

enum Segment {
    Shared(Reservation),
    Own { offset: u64, block: Option<Block> },
}

impl Assembler {
    /// The number of blocks that `lanes` lanes need, if the sink of each holds `depth` blocks.
    pub(crate) fn blocks_needed(lanes: usize, depth: usize) -> usize {
        // A sink holds `depth` blocks; a cursor holds one of its own, the shared one at its end, and two that are
        // full.
        lanes * (depth + 4) + 1
    }

    /// Continues a stream at byte `from`, after `last_key`. `head` is the part of its block before `from`.
    pub(crate) fn new(pool: Pool, from: u64, head: &[u8], last_key: Option<Vec<u8>>) -> Assembler {
        let begun = from - head.len() as u64;
        assert!(begun.is_multiple_of(pool.block_size() as u64) && head.len() < pool.block_size());
        let open = (!head.is_empty()).then(|| {
            let mut block = pool.try_take().expect("the pool holds what all lanes need");
            block.set_offset(begun);
            let mut fill = SharedBlock::new(block);
            let mut place = fill.reserve(head.len());
            place.push(head);
            assert!(place.commit().is_none(), "more is to come");
            fill
        });
        let state = State { next_job: 0, jobs: None, end: from, last_key, open };
        Assembler { pool, state: Mutex::new(state), slot_passed: Condvar::new() }
    }

    /// Waits for the sequence slot of job `index` and reserves the next bytes of the stream. Inside the slot, `len`
    /// gets the last key of the previous job, replaces it with the last key of this job, and returns the number of
    /// bytes. Returns `None` if `stopped` returns true first.
    pub(crate) fn reserve(
        &self,
        index: u64,
        len: impl FnOnce(&mut Option<Vec<u8>>) -> u64,
        prover: Prover,
        proving: bool,
        stopped: impl Fn() -> bool,
    ) -> Option<Cursor> {
        let mut state = self.state.lock().expect("no lane panics");
        while state.next_job != index {
            assert!(state.next_job < index, "job {index} comes twice");
            if stopped() {
                return None;
            }
            state =
                self.slot_passed.wait_timeout(state, Duration::from_millis(20)).expect("no lane panics").0;
        }
        let mut cursor = Cursor {
            segments: VecDeque::new(),
            pool: self.pool.clone(),
            prover,
            proving,
            proved: 0,
            finished: Vec::new(),
            end: 0,
        };
        let len = len(&mut state.last_key);
        self.take_stretch(&mut state, len, &mut cursor);
        cursor.end = state.end;
        state.next_job += 1;
        if state.jobs == Some(state.next_job)
            && let Some(fill) = state.open.take()
        {
            cursor.finished.extend(fill.seal());
        }
        drop(state);
        self.slot_passed.notify_all();
        Some(cursor)
    }

    fn take_stretch(&self, state: &mut State, mut len: u64, cursor: &mut Cursor) {
        let block_size = self.pool.block_size() as u64;
        while len > 0 {
            if state.open.is_none() {
                let offset = state.end;
                if len >= block_size {
                    cursor.segments.push_back(Segment::Own { offset, block: None });
                    state.end += block_size;
                    len -= block_size;
                    continue;
                }
                let mut block = self.pool.try_take().expect("the pool holds what all lanes need");
                block.set_offset(offset);
                state.open = Some(SharedBlock::new(block));
            }
            let fill = state.open.as_mut().expect("just made sure");
            let n = len.min(fill.room() as u64);
            cursor.segments.push_back(Segment::Shared(fill.reserve(n as usize)));
            state.end += n;
            len -= n;
            if fill.room() == 0 {
                let sealed = state.open.take().expect("it is there").seal();
                assert!(sealed.is_none(), "a place in it was taken just now");
            }
        }
    }

    /// Sets the number of jobs. Returns the last block if all jobs have written to it; otherwise the job that
    /// finishes last gets it.
    pub(crate) fn close(&self, jobs: u64) -> Option<Block> {
        let mut state = self.state.lock().expect("no lane panics");
        assert!(state.next_job <= jobs && state.jobs.is_none());
        state.jobs = Some(jobs);
        if state.next_job == jobs { state.open.take().and_then(SharedBlock::seal) } else { None }
    }

    /// The end of the stream.
    pub(crate) fn end(&self) -> u64 {
        self.state.lock().expect("no lane panics").end
    }
}

impl Cursor {
    /// Writes up to `len` bytes from the start of `bytes` and returns how many it wrote. It stops early when a block
    /// is full: the caller must then take the block with `drain_finished`.
    #[inline(always)]
    pub(crate) fn push_start(&mut self, bytes: &[u8], len: usize) -> usize {
        if sabotage::breaks("early-proof") {
            self.prove_ahead(len);
        }
        let (took, full) = match self.segments.front_mut().expect("a job writes what it reserved") {
            Segment::Shared(place) => {
                let n = place.push_start(bytes, len);
                (n, place.left() == 0)
            }
            Segment::Own { offset, block } => {
                let block = block.get_or_insert_with(|| {
                    let mut block = self.pool.try_take().expect("the pool holds what all lanes need");
                    block.set_offset(*offset);
                    block
                });
                let at = block.len();
                let n = len.min(block.capacity() - at);
                block.set_len(at + n);
                copy_start(&mut block.whole_mut()[at..], bytes, n);
                (n, at + n == block.capacity())
            }
        };
        if full {
            self.end_segment();
        }
        took
    }

    /// Adds everything written so far to the proof.
    pub(crate) fn prove_written(&mut self) {
        if self.proving {
            self.prove();
        }
    }

    fn written(&self) -> &[u8] {
        match self.segments.front() {
            Some(Segment::Shared(place)) => place.written(),
            Some(Segment::Own { block: Some(block), .. }) => block,
            _ => &[],
        }
    }

    fn prove(&mut self) {
        let mut prover = std::mem::replace(&mut self.prover, Prover::nothing());
        let written = self.written();
        prover.push(&written[self.proved..]);
        self.proved = written.len();
        self.prover = prover;
    }

    /// For a canary: adds the next bytes to the proof once before they are written.
    #[inline(never)]
    fn prove_ahead(&mut self, len: usize) {
        let Some(Segment::Own { block: Some(block), .. }) = self.segments.front_mut() else { return };
        let at = block.len();
        if at > 0 && at + len < block.capacity() && sabotage::strikes("early-proof") {
            block.set_len(at + len);
            self.prove();
            if let Some(Segment::Own { block: Some(block), .. }) = self.segments.front_mut() {
                block.set_len(at);
            }
        }
    }

    #[inline(never)]
    fn end_segment(&mut self) {
        self.prove_written();
        self.proved = 0;
        match self.segments.pop_front().expect("there is a segment to end") {
            Segment::Shared(place) => self.finished.extend(place.commit()),
            Segment::Own { block, .. } => self.finished.push(block.expect("a full block")),
        }
    }

    /// Whether there are full blocks to take.
    #[inline(always)]
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Takes the full blocks.
    pub(crate) fn drain_finished(&mut self) -> impl Iterator<Item = Block> {
        self.finished.drain(..).rev()
    }

    /// Ends the job after its whole stretch is written. Returns its proof and its end in the stream.
    pub(crate) fn finish(self) -> (Prover, u64) {
        assert!(self.segments.is_empty() && self.finished.is_empty(), "a job writes its whole stretch");
        (self.prover, self.end)
    }
}
