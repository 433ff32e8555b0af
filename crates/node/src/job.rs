//! The jobs of a node: what runs, what has ended, and how.
//!
//! Law: at most [`RUNNING_MAX`] run at once; of those that have ended the last [`ENDED_MAX`] are remembered, each with
//! the last [`TAIL_BYTES`] of its output if nobody was there to take it.
//! Non-goals: starting processes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{ExecEnd, ExecRequest, JobReport, JobState};
use thalweg_base::clock::{Stopwatch, wall_seconds};

/// The most jobs that run at once.
pub(crate) const RUNNING_MAX: usize = 256;
/// How many ended jobs are remembered.
pub(crate) const ENDED_MAX: usize = 256;
/// How much output of a job that goes on without its client is kept.
const TAIL_BYTES: usize = 64 << 10;

/// One job, as those who run it and those who ask about it share it.
pub(crate) struct Job {
    pub(crate) request: ExecRequest,
    host: String,
    began_seconds: u64,
    watch: Stopwatch,
    live: Mutex<Live>,
    changed: Condvar,
}

struct Live {
    pid: Option<u32>,
    cancelled: Option<String>,
    end: Option<(ExecEnd, f64)>,
    output_bytes: u64,
    tail: VecDeque<u8>,
}

impl Job {
    /// Asks whoever runs it to end it.
    pub(crate) fn cancel(&self, why: &str) {
        self.live.lock().expect("no holder panics").cancelled.get_or_insert(why.to_string());
    }

    /// Why it should end, if it should.
    pub(crate) fn cancelled(&self) -> Option<String> {
        self.live.lock().expect("no holder panics").cancelled.clone()
    }

    /// Seconds since it began.
    pub(crate) fn seconds(&self) -> f64 {
        self.watch.seconds()
    }

    pub(crate) fn runs_as(&self, pid: u32) {
        self.live.lock().expect("no holder panics").pid = Some(pid);
    }

    /// Counts output, and keeps the end of it if nobody else takes it.
    pub(crate) fn said(&self, bytes: &[u8]) {
        let mut live = self.live.lock().expect("no holder panics");
        live.output_bytes += bytes.len() as u64;
        if self.request.detach {
            live.tail.extend(bytes);
            let beyond = live.tail.len().saturating_sub(TAIL_BYTES);
            live.tail.drain(..beyond);
        }
    }

    /// Waits a while for a change; the report after it.
    pub(crate) fn wait(&self, seen: &JobReport, patience: Duration) -> JobReport {
        let live = self.live.lock().expect("no holder panics");
        let same = |live: &mut Live| live.end.is_none() && live.output_bytes == seen.output_bytes;
        drop(self.changed.wait_timeout_while(live, patience, same).expect("no holder panics"));
        self.report()
    }

    /// What there is to say about it.
    pub(crate) fn report(&self) -> JobReport {
        let live = self.live.lock().expect("no holder panics");
        let end = live.end.as_ref().map(|(end, _)| end);
        let (first, second) = live.tail.as_slices();
        JobReport {
            id: self.request.job.clone(),
            host: self.host.clone(),
            command: self.request.command.clone(),
            state: end.map_or(JobState::Running, |end| end.state),
            status: end.and_then(|end| end.status),
            signal: end.and_then(|end| end.signal),
            why: end.and_then(|end| end.why.clone()),
            detached: self.request.detach,
            pid: live.pid,
            began_seconds: self.began_seconds,
            seconds: live.end.as_ref().map_or_else(|| self.watch.seconds(), |(_, seconds)| *seconds),
            output_bytes: live.output_bytes,
            tail: String::from_utf8_lossy(&[first, second].concat()).into_owned(),
        }
    }
}

/// All jobs of a node.
#[derive(Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
    emptied: Condvar,
}

#[derive(Default)]
struct Table {
    running: Vec<Arc<Job>>,
    ended: VecDeque<Arc<Job>>,
    ended_count: u64,
    closed: bool,
}

impl Jobs {
    /// A new job, if there is room for it.
    pub(crate) fn begin(&self, request: ExecRequest, host: &str) -> Result<Arc<Job>, String> {
        let mut table = self.table.lock().expect("no holder panics");
        if table.closed {
            return Err("the node is going down".into());
        }
        if table.running.len() >= RUNNING_MAX {
            return Err(format!("{RUNNING_MAX} jobs run here, as many as may; wait for one to end"));
        }
        if table.running.iter().any(|job| job.request.job == request.job) {
            return Err(format!("job {} runs here already", request.job));
        }
        let job = Arc::new(Job {
            request,
            host: host.to_string(),
            began_seconds: wall_seconds(),
            watch: Stopwatch::start(),
            live: Mutex::new(Live {
                pid: None,
                cancelled: None,
                end: None,
                output_bytes: 0,
                tail: VecDeque::new(),
            }),
            changed: Condvar::new(),
        });
        table.running.push(job.clone());
        Ok(job)
    }

    /// A job has ended.
    pub(crate) fn end(&self, job: &Arc<Job>, end: ExecEnd) {
        job.live.lock().expect("no holder panics").end = Some((end, job.watch.seconds()));
        job.changed.notify_all();
        let mut table = self.table.lock().expect("no holder panics");
        table.running.retain(|other| !Arc::ptr_eq(other, job));
        table.ended.push_back(job.clone());
        table.ended_count += 1;
        if table.ended.len() > ENDED_MAX {
            table.ended.pop_front();
        }
        self.emptied.notify_all();
    }

    /// The job of this id, the one that runs before those that ran.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Job>> {
        let table = self.table.lock().expect("no holder panics");
        let mut all = table.running.iter().chain(table.ended.iter().rev());
        all.find(|job| job.request.job == id).cloned()
    }

    /// All that are remembered, in the order in which they began.
    pub(crate) fn all(&self) -> Vec<JobReport> {
        let table = self.table.lock().expect("no holder panics");
        table.ended.iter().chain(&table.running).map(|job| job.report()).collect()
    }

    /// How many run, and how many have ended.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let table = self.table.lock().expect("no holder panics");
        (table.running.len() as u64, table.ended_count)
    }

    /// Ends them all, takes no more, and waits until they have ended.
    pub(crate) fn close(&self, patience: Duration) {
        let mut table = self.table.lock().expect("no holder panics");
        table.closed = true;
        table.running.iter().for_each(|job| job.cancel("the node is going down"));
        let some = |table: &mut Table| !table.running.is_empty();
        drop(self.emptied.wait_timeout_while(table, patience, some).expect("no holder panics"));
    }
}
