//! The jobs of a node: which run, which have ended, and how.
//!
//! Invariant: at most [`RUNNING_MAX`] run at once. Of those that have ended the last [`ENDED_MAX`] are remembered for
//! [`ENDED_SECONDS`], each with its receipt, or with the last [`TAIL_BYTES`] of its output if there was no client to
//! take it.
//! Non-goals: starting processes, sorting.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{AttemptEnd, ExecEnd, ExecRequest, JobReport, JobSpec, JobState, ParticipantView};
use thalweg_base::clock::{Stopwatch, wall_seconds};

use crate::error::{Refused, SHUTTING_DOWN};

/// The most jobs that run at once.
pub const RUNNING_MAX: usize = 256;
/// How many ended jobs are remembered.
pub const ENDED_MAX: usize = 256;
/// How long they are remembered.
pub const ENDED_SECONDS: f64 = 86_400.0;
/// How long after the last request to drain a node takes no new jobs. Whoever wants to restart it repeats the request;
/// if that one fails, the node soon works again as before.
const DRAIN_SECONDS: f64 = 10.0;
/// The most bytes of a command in lists of jobs.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// The bytes at the end of the output that are kept for a job that continues without its client.
const TAIL_BYTES: usize = 64 << 10;

/// One job, shared by the threads that run it and those that answer questions about it.
pub struct Job {
    /// The request.
    pub request: ExecRequest,
    host: String,
    by: String,
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
    share: Option<ParticipantView>,
    /// Since its current stage began.
    stage: Stopwatch,
}

impl Job {
    /// The host on which it runs.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Asks the thread that runs it to end it.
    pub fn cancel(&self, why: &str) {
        self.live.lock().expect("no holder panics").cancelled.get_or_insert(why.to_string());
    }

    /// Why it should end, if it was cancelled.
    pub fn cancelled(&self) -> Option<String> {
        self.live.lock().expect("no holder panics").cancelled.clone()
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.watch.seconds()
    }

    /// Sets the process that runs it.
    pub fn runs_as(&self, pid: u32) {
        self.live.lock().expect("no holder panics").pid = Some(pid);
    }

    /// Changes the report of this node's part in it.
    pub(crate) fn show(&self, change: impl FnOnce(&mut ParticipantView)) {
        let mut live = self.live.lock().expect("no holder panics");
        let view = live.share.get_or_insert_default();
        let before = view.stage.clone();
        change(view);
        if view.stage != before {
            live.stage = Stopwatch::start();
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.live.lock().expect("no holder panics").end.is_some()
    }

    /// Whether it ended too long ago to be remembered.
    fn is_old(&self) -> bool {
        let live = self.live.lock().expect("no holder panics");
        live.end.as_ref().is_some_and(|(_, seconds)| self.watch.seconds() - seconds > ENDED_SECONDS)
    }

    /// Counts output, and keeps the end of it if no client takes it.
    pub fn said(&self, bytes: &[u8]) {
        let mut live = self.live.lock().expect("no holder panics");
        live.output_bytes += bytes.len() as u64;
        if self.request.detach {
            live.tail.extend(bytes);
            let beyond = live.tail.len().saturating_sub(TAIL_BYTES);
            live.tail.drain(..beyond);
        }
    }

    /// Waits a while for a change. Returns the report after it.
    pub fn wait(&self, seen: &JobReport, patience: Duration) -> JobReport {
        let live = self.live.lock().expect("no holder panics");
        let same = |live: &mut Live| live.end.is_none() && live.output_bytes == seen.output_bytes;
        drop(self.changed.wait_timeout_while(live, patience, same).expect("no holder panics"));
        self.report()
    }

    /// Its report.
    pub fn report(&self) -> JobReport {
        let live = self.live.lock().expect("no holder panics");
        let end = live.end.as_ref().map(|(end, _)| end);
        let (first, second) = live.tail.as_slices();
        let mut share = live.share.clone();
        if let Some(share) = share.as_mut().filter(|_| end.is_none()) {
            share.stage_seconds = live.stage.seconds();
        }
        JobReport {
            id: self.request.job.clone(),
            host: self.host.clone(),
            by: self.by.clone(),
            command: shown(&self.request.command),
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
            share,
        }
    }
}

/// The answer to the request for a job that continues without its client: that it runs, or why it does not begin.
pub fn begun(begun: Result<(), Refused>) -> ExecEnd {
    let running = ExecEnd { state: JobState::Running, status: None, signal: None, why: None };
    begun.map_or_else(failed, |()| running)
}

/// The end of a failed job without a process.
pub fn failed(why: impl ToString) -> ExecEnd {
    ExecEnd { state: JobState::Failed, status: None, signal: None, why: Some(why.to_string()) }
}

/// A command as lists show it, without the last arguments of a very long one.
fn shown(command: &[String]) -> Vec<String> {
    let mut bytes = 0;
    let fits = |word: &&String| {
        bytes += word.len();
        bytes <= COMMAND_BYTES_MAX
    };
    let mut words: Vec<String> = command.iter().take_while(fits).cloned().collect();
    if words.len() < command.len() {
        words.push(format!("... ({} words more)", command.len() - words.len()));
    }
    words
}

/// All jobs of a node.
#[derive(Default)]
pub struct Jobs {
    table: Mutex<Table>,
    emptied: Condvar,
}

#[derive(Default)]
struct Table {
    running: Vec<Arc<Job>>,
    ended: VecDeque<Arc<Job>>,
    ended_count: u64,
    closed: bool,
    /// Since the last request to drain.
    drained: Option<Stopwatch>,
}

impl Jobs {
    /// Begins a new job, if there is room for it.
    pub fn begin(&self, request: ExecRequest, host: &str, by: &str) -> Result<Arc<Job>, Refused> {
        self.begin_in(&mut self.table.lock().expect("no holder panics"), request, host, by)
    }

    /// Begins a sort on several nodes that this node is to coordinate. It must not have begun here before.
    pub(crate) fn begin_coordinated(&self, request: &JobSpec, host: &str) -> Result<Arc<Job>, Refused> {
        let mut table = self.table.lock().expect("no holder panics");
        let is_it = |job: &Arc<Job>| job.request.job == request.job;
        if table.running.iter().chain(&table.ended).any(is_it) {
            return Err(Refused::Begun(request.job.clone()));
        }
        self.begin_sort_in(&mut table, request, host)
    }

    /// Begins a sort on several nodes, or returns it if it runs here already because another node coordinated it.
    pub(crate) fn begin_sort(&self, request: &JobSpec, host: &str) -> Result<Arc<Job>, Refused> {
        let mut table = self.table.lock().expect("no holder panics");
        let is_it = |job: &&Arc<Job>| job.request.job == request.job;
        if let Some(job) = table.running.iter().find(is_it) {
            let is_sort = job.live.lock().expect("no holder panics").share.is_some();
            return if is_sort {
                job.show(|view| view.coordinator.clone_from(&request.coordinator));
                Ok(job.clone())
            } else {
                Err(Refused::Running(request.job.clone()))
            };
        }
        // A job that failed here only because it lost contact may begin again.
        let has_ended = |job: &Arc<Job>| {
            let live = job.live.lock().expect("no holder panics");
            let has_receipt = live.share.as_ref().is_some_and(|share| share.receipt.is_some());
            live.end.as_ref().is_some_and(|(end, _)| end.state != JobState::Failed || has_receipt)
        };
        if table.ended.iter().any(|job| is_it(&job) && has_ended(job)) {
            return Err(Refused::Ended(request.job.clone()));
        }
        table.ended.retain(|job| !is_it(&job));
        self.begin_sort_in(&mut table, request, host)
    }

    fn begin_sort_in(&self, table: &mut Table, request: &JobSpec, host: &str) -> Result<Arc<Job>, Refused> {
        let command = ExecRequest {
            job: request.job.clone(),
            command: request.ask.words(),
            env: Vec::new(),
            stdin: false,
            detach: request.coordinator.is_some(),
            timeout_ms: None,
        };
        let job = self.begin_in(table, command, host, &request.by)?;
        job.show(|view| {
            view.coordinator.clone_from(&request.coordinator);
            view.hosts.clone_from(&request.hosts);
            view.failed.clone_from(&request.failed);
        });
        Ok(job)
    }

    fn begin_in(
        &self,
        table: &mut Table,
        request: ExecRequest,
        host: &str,
        by: &str,
    ) -> Result<Arc<Job>, Refused> {
        if table.closed {
            return Err(Refused::GoesDown);
        }
        if table.drained.as_ref().is_some_and(|since| since.seconds() < DRAIN_SECONDS) {
            return Err(Refused::Drains);
        }
        if table.running.len() >= RUNNING_MAX {
            return Err(Refused::Full(RUNNING_MAX, "jobs"));
        }
        if table.running.iter().any(|job| job.request.job == request.job) {
            return Err(Refused::Running(request.job));
        }
        let job = Arc::new(Job {
            request,
            host: host.to_string(),
            by: by.to_string(),
            began_seconds: wall_seconds(),
            watch: Stopwatch::start(),
            live: Mutex::new(Live {
                pid: None,
                cancelled: None,
                end: None,
                output_bytes: 0,
                tail: VecDeque::new(),
                share: None,
                stage: Stopwatch::start(),
            }),
            changed: Condvar::new(),
        });
        table.running.push(job.clone());
        Ok(job)
    }

    /// Ends a sort on several nodes. Only the first call counts.
    pub(crate) fn end_sort(&self, job: &Arc<Job>, end: AttemptEnd) {
        if end.receipt.is_some() {
            job.show(|view| view.receipt = end.receipt);
        }
        self.end(job, ExecEnd { state: end.state, status: None, signal: None, why: end.why });
    }

    /// Ends a job. Only the first call counts.
    pub fn end(&self, job: &Arc<Job>, end: ExecEnd) {
        let mut guard = job.live.lock().expect("no holder panics");
        let live = &mut *guard;
        if live.end.is_some() {
            return;
        }
        live.end = Some((end, job.watch.seconds()));
        if let Some(share) = &mut live.share {
            share.stage_seconds = live.stage.seconds();
        }
        drop(guard);
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

    /// Removes a job that was only a request for a plan.
    pub(crate) fn forget(&self, job: &Arc<Job>) {
        let mut table = self.table.lock().expect("no holder panics");
        table.running.retain(|other| !Arc::ptr_eq(other, job));
        self.emptied.notify_all();
    }

    /// The job with this id; if several have it, the one that runs, or else the last one.
    pub fn find(&self, id: &str) -> Option<Arc<Job>> {
        let table = self.table.lock().expect("no holder panics");
        let mut all = table.running.iter().chain(table.ended.iter().rev().filter(|job| !job.is_old()));
        all.find(|job| job.request.job == id).cloned()
    }

    /// All that are remembered, in the order in which they began.
    pub fn all(&self) -> Vec<JobReport> {
        let table = self.table.lock().expect("no holder panics");
        table.ended.iter().filter(|job| !job.is_old()).chain(&table.running).map(|job| job.report()).collect()
    }

    /// For a while, begins no new jobs. Returns those that run.
    pub(crate) fn drain(&self) -> Vec<JobReport> {
        let mut table = self.table.lock().expect("no holder panics");
        table.drained = Some(Stopwatch::start());
        table.running.iter().map(|job| job.report()).collect()
    }

    /// How many run, and how many have ended.
    pub fn counts(&self) -> (u64, u64) {
        let table = self.table.lock().expect("no holder panics");
        (table.running.len() as u64, table.ended_count)
    }

    /// Ends them all, takes no more, and waits until they have ended.
    pub(crate) fn close(&self, patience: Duration) {
        let mut table = self.table.lock().expect("no holder panics");
        table.closed = true;
        table.running.iter().for_each(|job| job.cancel(SHUTTING_DOWN));
        let some = |table: &mut Table| !table.running.is_empty();
        drop(self.emptied.wait_timeout_while(table, patience, some).expect("no holder panics"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_api::from_json;

    /// A coordinator that had been cut off began a job again on a node where it had ended, and the node lost its
    /// record of that end.
    #[test]
    fn a_job_that_is_done_is_not_begun_again() {
        let request = r#"{"job": "j", "by": "", "hosts": [], "coordinator": "n1", "failed": [], "lost": [], "ask": {"inputs": [],
            "own_inputs": false, "output": "out", "own_output": false, "record": 100, "keys": [], "unique": false,
            "memory_bytes": null, "scratch": [], "scratch_limit": null, "threads": null}}"#;
        let request = from_json::<JobSpec>(request).unwrap();
        for (state, may) in [(JobState::Done, false), (JobState::Cancelled, false), (JobState::Failed, true)]
        {
            let jobs = Jobs::default();
            let job = jobs.begin_sort(&request, "n1").unwrap();
            jobs.end_sort(&job, AttemptEnd { state, why: None, receipt: None });
            assert_eq!(jobs.begin_sort(&request, "n1").is_ok(), may, "{state:?}");
            let kept = jobs.find("j").unwrap().report().state;
            assert_eq!(kept, if may { JobState::Running } else { state });
        }
    }
}
