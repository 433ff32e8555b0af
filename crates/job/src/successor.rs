//! Jobs that run without their client: a node coordinates them, and when it is lost another takes its place.
//!
//! Model: a node that misses the coordinator proposes to the hosts of the attempt, in turn with the others, that it
//! coordinates the next attempt ([`crate::vote`]). Hosts that still hear the coordinator refuse. So the decision is one
//! of four: this node continues, another one does, the attempt was committed, or the job has ended.
//! Invariant: no host coordinates an attempt except by such a decision. [`FOLLOW_SECONDS`] after it missed the
//! coordinator at the latest, a node knows how the job ended, or reports in one line why it does not.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{AttemptEnd, AttemptId, Decision, JobSpec, JobState};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::Progress;
use thalweg_wire::threads::{caught, spawn};

use crate::agreement::{self, VOTE_SECONDS};
use crate::coordinator::outputs::NONE_NAMED;
use crate::coordinator::{Coordinator, Reach};
use crate::error::Refused;
use crate::jobs::Job;
use crate::local::Local;
use crate::naming;
use crate::vote::{GaveUp, Proposal};

/// How long a node proposes to continue a job before it gives up.
const FOLLOW_SECONDS: f64 = 20.0;
/// The time for its own proposal of each host that is before this one in the attempt.
const TURN_SECONDS: f64 = 0.5;
/// How long another host's proposal may take: two questions, and the time between.
const PROPOSAL_SECONDS: f64 = 2.0 * VOTE_SECONDS + 0.5;
/// How long it waits before it proposes again.
const AGAIN_SECONDS: f64 = 1.0;
/// How often it checks.
const LOOK: Duration = Duration::from_millis(50);

/// Coordinates a job that a client requests, on a thread of its own.
pub(crate) fn begin(local: &Arc<Local>, request: JobSpec) -> Result<(), Refused> {
    if request.coordinator.as_deref() != Some(local.name()) {
        return Err(Refused::OtherCoordinator);
    }
    let job = local.jobs.begin_coordinated(&request, local.name())?;
    let (coordinating, begun) = (local.clone(), job.clone());
    let coordinates = move || {
        if let Err(why) = caught(|| coordinate(&coordinating, &begun, request)) {
            coordinating.jobs.end_sort(&begun, failed(&why));
        }
    };
    if spawn("coordinator", coordinates) {
        return Ok(());
    }
    local.jobs.end_sort(&job, failed(&Refused::NoThread.to_string()));
    Err(Refused::NoThread)
}

/// Coordinates the job to its end.
fn coordinate(local: &Arc<Local>, job: &Arc<Job>, request: JobSpec) {
    let to = |host: &str| local.node.link_with(host);
    let progress = Progress::default();
    let all = local.node.hosts();
    let coordinator = Coordinator::new(request, Reach { to: &to, own: false, all: &all }, &progress);
    let end = match coordinator {
        Ok(coordinator) => coordinator.of_node(local).run().1,
        Err(why) => failed(&why.to_string()),
    };
    // If this node takes part, its participant has reported the end already.
    local.jobs.end_sort(job, end);
}

/// Follows a job whose coordinator is lost, until its outcome is known.
pub(crate) fn follow(local: &Arc<Local>, job: &Arc<Job>, request: JobSpec, why: &str) {
    let lost = request.coordinator.clone().unwrap_or_default();
    if lost == local.name() {
        // The coordinator on this node reports how it ended.
        return;
    }
    let line = format!("{lost}: it coordinated, and is not heard any more");
    let mut gave_up = None;
    let missed = Stopwatch::start();
    let mut next_seconds = turn(local, &request, &lost);
    while missed.seconds() < FOLLOW_SECONDS {
        if local.participations.knows(&request.job) || job.has_ended() {
            return;
        }
        if let Some(why) = job.cancelled() {
            let end = AttemptEnd { state: JobState::Cancelled, why: Some(why), receipt: None };
            return local.jobs.end_sort(job, end);
        }
        // Two hosts that propose at the same time outbid each other.
        let is_asked =
            local.votes.asked_seconds(&request.job).is_some_and(|seconds| seconds < PROPOSAL_SECONDS);
        if missed.seconds() < next_seconds || is_asked {
            std::thread::park_timeout(LOOK);
            continue;
        }
        // If the attempt is not known here, the proposal fails and says so.
        let attempt = local.votes.known(&request.job).map(|(attempt, _)| attempt).unwrap_or_default();
        let about = (&*request.job, attempt.number);
        let want = match request.ask.own_inputs {
            // Only the lost host has its inputs.
            true => Proposal::End(JobState::Failed, format!("{line}; {NONE_NAMED}")),
            false => {
                let hosts = attempt.hosts.iter().filter(|host| **host != lost).cloned().collect();
                Proposal::Supersede(hosts, line.clone())
            }
        };
        match agreement::decide(local, about, want) {
            Ok(decision) => return should_continue(local, job, request, (attempt, decision), line),
            Err(GaveUp::NoVote(cause)) => {
                return local.jobs.end_sort(job, failed(&format!("{line} ({why}); {cause}")));
            }
            Err(why) => gave_up = Some(why),
        }
        next_seconds = missed.seconds() + AGAIN_SECONDS + turn(local, &request, &lost);
    }
    let why = match gave_up {
        Some(GaveUp::Few(have, of)) => {
            format!("{line} ({why}); {have} of {of} hosts cannot know whether the others continue the sort")
        }
        _ => format!("{line} ({why}), and no other node took the sort over"),
    };
    local.jobs.end_sort(job, failed(&why));
}

/// How many seconds the hosts before this one have for their proposals.
fn turn(local: &Local, request: &JobSpec, lost: &str) -> f64 {
    let others = request.hosts.iter().filter(|host| *host != lost);
    others.take_while(|host| *host != local.name()).count() as f64 * TURN_SECONDS
}

/// What follows from a decision about the attempt whose coordinator was lost.
fn should_continue(
    local: &Arc<Local>,
    job: &Arc<Job>,
    request: JobSpec,
    (attempt, decision): (AttemptId, Decision),
    line: String,
) {
    match decision {
        Decision::Superseded { next, .. } if next.coordinator == local.name() => {
            let hosts = next.hosts.clone();
            // One line for each earlier attempt, even if this node does not know all of them.
            let mut failed = request.failed;
            failed.resize(next.number as usize - 2, "superseded".to_string());
            failed.push(line);
            let request = JobSpec { coordinator: Some(next.coordinator), hosts, failed, ..request };
            job.show(|view| view.coordinator.clone_from(&request.coordinator));
            coordinate(local, job, request);
        }
        // Another node begins it, and opens a stream to this one if it takes part.
        Decision::Superseded { ref next, .. } if next.hosts.iter().any(|host| host == local.name()) => {
            let late = Stopwatch::start();
            while late.seconds() < FOLLOW_SECONDS
                && !local.participations.knows(&request.job)
                && !job.has_ended()
            {
                std::thread::park_timeout(LOOK);
            }
            if !local.participations.knows(&request.job) {
                agreement::end_as_decided(local, &request.job);
                local.jobs.end_sort(job, failed(&format!("{line}, and no other node took the sort over")));
            }
        }
        Decision::Committed { ref shared, .. } => {
            let namer = shared.as_ref().map(|_| local.name());
            let kept = naming::name_all(local, ((&request.job, &attempt), &decision), namer);
            local.jobs.end_sort(job, agreement::end_of(decision, &kept));
        }
        decision => {
            agreement::tell(local, ((&request.job, &attempt), &decision), (&attempt.hosts, false));
            local.jobs.end_sort(job, agreement::end_of(decision, &[]));
        }
    }
}

fn failed(why: &str) -> AttemptEnd {
    AttemptEnd { state: JobState::Failed, why: Some(why.to_string()), receipt: None }
}
