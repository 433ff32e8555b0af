//! Jobs that go on without their client: a node coordinates them, and when it is lost another takes its place.
//!
//! Model: of the hosts of the last attempt, in their order, the first whose node lives takes the job up, as the next
//! attempt, as soon as it misses the coordinator; the others wait to be asked, and step in only when none before them
//! answers.
//! Law: whoever coordinates has more than half of the hosts, or half with the first of them ([`Coordinator`] sees to
//! that), so two halves of a cluster that is cut do not both go on. Each node knows how the job ended, or says in one line
//! why it does not, after [`FOLLOW_SECONDS`] at most.

use std::sync::Arc;
use std::time::Duration;

use thalweg::Progress;
use thalweg_api::{JobState, NodeRequest, SortEnd, SortJob};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::{LinkError, What};

use crate::attempts::{Coordinator, Reach};
use crate::daemon::Node;
use crate::job::Job;
use crate::talk::answer;
use crate::threads::spawn;

/// How long a node waits for another to take a job up.
const FOLLOW_SECONDS: f64 = 30.0;
/// How long those before it may take to ask, before it asks whether they live.
const TURN_SECONDS: f64 = 2.0;
/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);

/// Coordinates a job that a client asks for, on a thread of its own.
pub(crate) fn begin(node: &Arc<Node>, request: SortJob) -> Result<(), String> {
    if request.coordinator.as_deref() != Some(node.name()) {
        return Err("another node is to coordinate it".into());
    }
    let job = node.jobs.begin_sort(&request, node.name())?;
    let (coordinating, begun) = (node.clone(), job.clone());
    if spawn("coordinator", move || coordinate(&coordinating, &begun, request, None)) {
        return Ok(());
    }
    let why = "no thread to coordinate it with is left";
    node.jobs.end_sort(&job, failed(why));
    Err(why.into())
}

/// Coordinates it to its end. `lost` is who did before.
fn coordinate(node: &Arc<Node>, job: &Arc<Job>, request: SortJob, lost: Option<&str>) {
    let to = |host: &str| match lost.filter(|lost| *lost == host) {
        Some(_) => Err(LinkError::new(host, What::Cut("it coordinated, and is not heard any more".into()))),
        None => node.link_with(host).map_err(|why| match why {
            crate::Error::Link(why) => why,
            other => LinkError::new(host, What::Cut(other.to_string())),
        }),
    };
    let progress = Progress::default();
    let all = node.hosts();
    let coordinator = Coordinator::new(request, Reach { to: &to, own: false, all: &all }, &progress);
    let end = match coordinator {
        Ok(coordinator) if lost.is_some() => coordinator.succeeding().run().1,
        Ok(coordinator) => coordinator.run().1,
        Err(why) => failed(&why.to_string()),
    };
    // Its own share has said so already, if it was asked for one.
    node.jobs.end_sort(job, end);
}

/// Follows a job whose coordinator is not heard any more: until another has taken it up, here or elsewhere.
pub(crate) fn follow(node: &Arc<Node>, job: &Arc<Job>, mut request: SortJob, why: &str) {
    let lost = request.coordinator.take().unwrap_or_default();
    if lost == node.name() {
        // Whoever coordinates here says how it ended.
        return;
    }
    let before: Vec<String> = request.hosts.iter().take_while(|host| *host != node.name()).cloned().collect();
    let missed = Stopwatch::start();
    let mut asked = Stopwatch::start();
    let takes_up = loop {
        if node.sorts.knows(&request.job) || job.has_ended() {
            return;
        }
        if let Some(why) = job.cancelled() {
            let end = SortEnd { state: JobState::Cancelled, why: Some(why), receipt: None };
            return node.jobs.end_sort(job, end);
        }
        if missed.seconds() > FOLLOW_SECONDS {
            break false;
        }
        let mut rest = before.iter().filter(|host| **host != lost).peekable();
        if rest.peek().is_none() {
            break true;
        }
        if asked.seconds() > TURN_SECONDS {
            if !rest.any(|host| lives(node, host)) {
                break true;
            }
            asked = Stopwatch::start();
        }
        std::thread::park_timeout(LOOK);
    };
    if !takes_up {
        let line = format!("{lost}, which coordinated, is gone ({why}), and no other node took the sort up");
        return node.jobs.end_sort(job, failed(&line));
    }
    request.coordinator = Some(node.name().to_string());
    job.show(|view| view.coordinator.clone_from(&request.coordinator));
    coordinate(node, job, request, Some(&lost));
}

/// Whether the node of a host answers.
fn lives(node: &Arc<Node>, host: &str) -> bool {
    node.link_with(host).is_ok_and(|link| answer(&link, &NodeRequest::Ping).is_ok())
}

fn failed(why: &str) -> SortEnd {
    SortEnd { state: JobState::Failed, why: Some(why.to_string()), receipt: None }
}
