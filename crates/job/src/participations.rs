//! The jobs that a node takes part in, each with the streams that other nodes have opened for its attempt.
//!
//! Invariant: at most [`SORTS_MAX`] jobs at once, each with one coordinator at a time. Only streams of the running
//! attempt are taken.
//! Non-goals: what goes over the streams.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{JobAttempt, JobSpec};
use thalweg_base::clock::Stopwatch;
use thalweg_block::begin_work;
use thalweg_engine::{Error, Missed, Result, Size};
use thalweg_io::host;
use thalweg_wire::{Link, Streams};

use crate::error::{Refused, SIGTERM};

/// How much memory of a sort's pools a node keeps for the next sort unless the kernel needs it, and the smallest
/// `memory` of a sort for which it does. With less, the kept memory would exceed the limit of the sort.
const KEPT_BYTES: usize = 256 << 20;
const KEEPS_FROM_BYTES: u64 = 128 << 20;
/// The most sorts that a node takes part in at once.
const SORTS_MAX: usize = 16;
/// How long a job's new coordinator waits for this node to finish with the one before.
const ENTER: Duration = Duration::from_secs(12);
/// How long the streams of the other nodes may take to arrive.
const STREAMS_SECONDS: f64 = 10.0;
/// The most rivers of an attempt: those of a join's two sides.
const SIDES: usize = 2;
/// How often a waiting thread checks whether to continue.
const LOOK: Duration = Duration::from_millis(50);

/// A stream of another node, and its link.
pub(crate) type Came = (Streams, Arc<Link>);

/// The jobs that a node takes part in.
#[derive(Default)]
pub(crate) struct Participations {
    table: Mutex<HashMap<String, Attempt>>,
    changed: Condvar,
}

#[derive(Default)]
struct Attempt {
    number: u32,
    came: Vec<Option<Came>>,
}

impl Participations {
    /// Takes a stream of a river that another node has opened.
    pub(crate) fn river(&self, (job, attempt): (&str, u32), from: usize, streams: Streams, link: &Arc<Link>) {
        let mut table = self.table.lock().expect("no holder panics");
        let here = table.get_mut(job).filter(|here| here.number == attempt);
        let Some(here) = here.filter(|here| here.came.get(from).is_some_and(Option::is_none)) else {
            // Sending may block, so not under the lock.
            drop(table);
            return drop(streams.0.abort("a stream of a sort that is not known here"));
        };
        here.came[from] = Some((streams, Arc::clone(link)));
        // The thread that waits needs the streams of all other nodes of a side.
        let nodes = here.came.len() / SIDES;
        let side = &here.came[from / nodes * nodes..][..nodes];
        if side.iter().filter(|came| came.is_none()).count() <= 1 {
            self.changed.notify_all();
        }
    }

    /// Whether a coordinator of this job is connected.
    pub(crate) fn knows(&self, job: &str) -> bool {
        self.table.lock().expect("no holder panics").contains_key(job)
    }

    /// Enters a job into the table, once its earlier coordinator has disconnected.
    pub(crate) fn enter(
        &self,
        JobSpec { job, ask, .. }: &JobSpec,
    ) -> std::result::Result<Place<'_>, Refused> {
        let table = self.table.lock().expect("no holder panics");
        let is_here = |table: &mut HashMap<String, Attempt>| table.contains_key(job);
        let (mut table, late) =
            self.changed.wait_timeout_while(table, ENTER, is_here).expect("no holder panics");
        if late.timed_out() {
            return Err(Refused::Running(job.clone()));
        }
        if table.len() >= SORTS_MAX {
            return Err(Refused::Full(SORTS_MAX, "sorts"));
        }
        // The resident memory of sorts that run at the same time is measured together.
        if table.is_empty() {
            let (memory, kept_bytes) = match ask.spec.memory {
                Some(Size::Bytes(bytes)) => (bytes, if bytes < KEEPS_FROM_BYTES { 0 } else { KEPT_BYTES }),
                // The bits of a percentage are never equal to an amount of memory.
                Some(Size::Percent(percent)) => (percent.to_bits(), KEPT_BYTES),
                None => (0, KEPT_BYTES),
            };
            begin_work(memory, kept_bytes);
            host::reset_peak();
        }
        table.insert(job.to_string(), Attempt::default());
        Ok(Place { participations: self, job: job.to_string() })
    }
}

/// A job's place in the table, as long as its coordinator is connected.
pub(crate) struct Place<'n> {
    participations: &'n Participations,
    job: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let last = self.participations.table.lock().expect("no holder panics").remove(&self.job);
        self.participations.changed.notify_all();
        drop(last);
    }
}

impl Place<'_> {
    /// From now on only streams of this attempt are taken; those of another are aborted.
    pub(crate) fn begin(&self, number: u32, nodes: usize) {
        let attempt = Attempt { number, came: (0..SIDES * nodes).map(|_| None).collect() };
        let before =
            self.participations.table.lock().expect("no holder panics").insert(self.job.clone(), attempt);
        // Aborting its streams may block, so not under the lock.
        drop(before);
    }

    /// Waits for the streams of all other nodes.
    pub(crate) fn streams(
        &self,
        (attempt, side): (&JobAttempt, usize),
        should_continue: &dyn Fn() -> bool,
    ) -> Result<Vec<Option<Came>>> {
        let late = Stopwatch::start();
        let nodes = attempt.hosts.len();
        let mut table = self.participations.table.lock().expect("no holder panics");
        loop {
            let all = &mut table.get_mut(&self.job).expect("it is there until this goes").came;
            let came = &mut all[side * nodes..(side + 1) * nodes];
            let is_missing = |i: &usize| *i != attempt.index && came[*i].is_none();
            let Some(missing) = (0..nodes).find(is_missing) else {
                return Ok(came.iter_mut().map(Option::take).collect());
            };
            if late.seconds() > STREAMS_SECONDS {
                let why = format!("no stream of {} came within {STREAMS_SECONDS} s", attempt.hosts[missing]);
                return Err(Error::Gone(why, Some(Missed { place: missing, is_linked: false })));
            }
            if !should_continue() {
                return Err(Error::Interrupted(SIGTERM));
            }
            table = self.participations.changed.wait_timeout(table, LOOK).expect("no holder panics").0;
        }
    }
}
