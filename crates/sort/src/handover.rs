//! The handover between a program and its sort: pages of the input go in, blocks of the sorted stream come out, both
//! in order.
//!
//! ```text
//! program => [ pages of the input ] =>                        FeedLanes
//! program <= [ blocks of the output, a window of them ] <=    HandoverLanes
//! ```
//!
//! Invariant: each block leaves once, in the order of the stream. Lanes finish blocks out of order. A lane whose
//! block is beyond the window waits for the program. The next block is always inside the window, so there is no
//! deadlock while the program takes blocks.
//! Invariant: pages and blocks here belong to the pools of the sort. Output blocks never exceed the window.
//! Non-goals: counting the blocks that the program holds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use thalweg_api::Receipt;
use thalweg_block::Block;
use thalweg_pump::{Meters, Sink, Watch};

use crate::{Error, Result};

/// How long a lane waits before it checks whether another lane has failed.
const PATIENCE: Duration = Duration::from_millis(20);

/// What a program and the lanes of its sort share.
pub(crate) struct Handover {
    /// Output bytes that may wait to be taken.
    window_bytes: u64,
    state: Mutex<State>,
    /// Wakes the program.
    for_program: Condvar,
    /// Wakes lanes.
    for_lanes: Condvar,
    stopped: AtomicBool,
}

struct State {
    input: VecDeque<Block>,
    input_ended: bool,
    /// Output blocks by offset.
    output: BTreeMap<u64, Block>,
    /// Output bytes that the program has taken.
    taken_bytes: u64,
    outcome: Outcome,
}

enum Outcome {
    Running,
    Done(Box<Receipt>),
    Failed(Error),
    /// The sort failed, and the program got the error.
    Reported,
}

impl State {
    /// The error if the sort failed: the original one the first time, then [`Error::Over`].
    fn failed(&mut self) -> Option<Error> {
        if !matches!(self.outcome, Outcome::Failed(_) | Outcome::Reported) {
            return None;
        }
        match std::mem::replace(&mut self.outcome, Outcome::Reported) {
            Outcome::Failed(error) => Some(error),
            _ => Some(Error::Over),
        }
    }
}

impl Handover {
    /// A handover with a window of `window_bytes` bytes of output.
    pub(crate) fn new(window_bytes: u64) -> Handover {
        let state = State {
            input: VecDeque::new(),
            input_ended: false,
            output: BTreeMap::new(),
            taken_bytes: 0,
            outcome: Outcome::Running,
        };
        Handover {
            window_bytes,
            state: Mutex::new(state),
            for_program: Condvar::new(),
            for_lanes: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Requests that the sort stop.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // A lane checks the flag under the lock, so it sees the flag or is woken.
        drop(self.lock());
        self.for_lanes.notify_all();
    }

    /// Program: passes the next page of the input.
    pub(crate) fn put_input(&self, page: Block) -> Result<()> {
        let mut state = self.lock();
        if let Some(error) = state.failed() {
            return Err(error);
        }
        assert!(!state.input_ended, "a page after the end of the input");
        state.input.push_back(page);
        drop(state);
        self.for_lanes.notify_one();
        Ok(())
    }

    /// Program: ends the input.
    pub(crate) fn end_input(&self) {
        self.lock().input_ended = true;
        self.for_lanes.notify_all();
    }

    /// Program: returns the error if the sort has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.lock().failed().map_or(Ok(()), Err)
    }

    /// Program: waits for the next output block. `None` after the last one, when the proof holds.
    pub(crate) fn next_output(&self) -> Result<Option<Block>> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.failed() {
                return Err(error);
            }
            let next = state.taken_bytes;
            if let Some(block) = state.output.remove(&next) {
                state.taken_bytes += block.len() as u64;
                drop(state);
                self.for_lanes.notify_all();
                return Ok(Some(block));
            }
            if matches!(state.outcome, Outcome::Done(_)) {
                assert!(state.output.is_empty(), "the output has a hole at {next}");
                return Ok(None);
            }
            state = self.for_program.wait(state).expect("no holder panics");
        }
    }

    /// Program: waits at most `patience` for the next output block, the end or an error. Returns whether there is one.
    pub(crate) fn wait_output(&self, patience: Duration) -> bool {
        let waits = |state: &mut State| {
            matches!(state.outcome, Outcome::Running) && !state.output.contains_key(&state.taken_bytes)
        };
        let waited = self.for_program.wait_timeout_while(self.lock(), patience, waits);
        !waited.expect("no holder panics").1.timed_out()
    }

    /// Program: waits for the receipt. An error if some blocks were not taken.
    pub(crate) fn receipt(&self) -> Result<Receipt> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.failed() {
                return Err(error);
            }
            if !state.output.is_empty() {
                return Err(Error::NotTaken { bytes: state.taken_bytes });
            }
            if let Outcome::Done(receipt) = &state.outcome {
                return Ok(receipt.as_ref().clone());
            }
            state = self.for_program.wait(state).expect("no holder panics");
        }
    }

    /// Lane: waits for the next page of the input; `None` at its end.
    pub(crate) fn next_input(&self, stopped: &dyn Fn() -> bool) -> Result<Option<Block>> {
        let mut state = self.lock();
        loop {
            if let Some(page) = state.input.pop_front() {
                return Ok(Some(page));
            }
            if state.input_ended {
                return Ok(None);
            }
            if stopped() {
                return Err(Error::Stopped);
            }
            state = self.for_lanes.wait_timeout(state, PATIENCE).expect("no holder panics").0;
        }
    }

    /// Lane: passes an output block, and waits while it is beyond the window.
    fn put_output(&self, block: Block, stopped: &dyn Fn() -> bool) -> Result<()> {
        let mut state = self.lock();
        while block.offset() >= state.taken_bytes + self.window_bytes {
            if stopped() {
                return Err(Error::Stopped);
            }
            state = self.for_lanes.wait_timeout(state, PATIENCE).expect("no holder panics").0;
        }
        let is_next = block.offset() == state.taken_bytes;
        let before = state.output.insert(block.offset(), block);
        assert!(before.is_none(), "a block comes twice");
        drop(state);
        if is_next {
            self.for_program.notify_all();
        }
        Ok(())
    }

    /// Sort: sets the outcome, and drops blocks that will not be taken.
    pub(crate) fn end(&self, outcome: Result<Receipt>) {
        let mut state = self.lock();
        if matches!(state.outcome, Outcome::Running) {
            state.input.clear();
            state.outcome = match outcome {
                Ok(receipt) => Outcome::Done(Box::new(receipt)),
                Err(error) => {
                    state.output.clear();
                    Outcome::Failed(error)
                }
            };
        }
        drop(state);
        self.for_program.notify_all();
    }
}

/// The sort checks its handover to see whether to stop.
impl Watch for Handover {
    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// A lane of the output: a sink whose blocks the program takes.
pub(crate) struct HandoverLane<'a> {
    pub(crate) handover: &'a Handover,
    pub(crate) meters: &'a Meters,
    pub(crate) stopped: &'a (dyn Fn() -> bool + Sync),
}

impl Sink for HandoverLane<'_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        self.meters.stage.for_write(|| self.handover.put_output(block, self.stopped))
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
