//! Jobs that go on without their client: a node coordinates them, and when it is lost another takes its place.
//!
//! Model: of the hosts of the last attempt, in their order, the first whose node lives takes the job up, as the next
//! attempt, as soon as it misses the coordinator; the others wait to be asked, and step in only when none before them
//! answers.
//! Law: whoever coordinates has more than half of the hosts, or half with the first of them ([`Coordinator`] sees to
//! that), so two halves of a cluster that is cut do not both go on. Who was left out learns it from those before it. Each
//! node knows how the job ended, or says in one line why it does not, after [`FOLLOW_SECONDS`] at most.

use std::sync::Arc;
use std::time::Duration;

use thalweg::Progress;
use thalweg_api::{JobReport, JobState, NodeRequest, ShareView, SortEnd, SortJob, SortStands, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::{LinkError, What};

use crate::attempts::{Coordinator, Reach};
use crate::daemon::Node;
use crate::job::Job;
use crate::talk::answer;
use crate::threads::spawn;

/// How long a node waits for another to take a job up.
const FOLLOW_SECONDS: f64 = 30.0;
/// How long those before it may take to ask, before it asks them how the job stands.
const TURN_SECONDS: f64 = 2.0;
/// The longest reason that it tells others.
const WHY_BYTES_MAX: usize = 1 << 10;
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
    let before = request.hosts.iter().take_while(|host| *host != node.name());
    let before: Vec<String> = before.filter(|host| **host != lost).cloned().collect();
    // The host that is asked next, and whether one before it has answered.
    let (mut next, mut anybody) = (0, false);
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
        if before.is_empty() {
            break true;
        }
        if asked.seconds() <= TURN_SECONDS {
            std::thread::park_timeout(LOOK);
            continue;
        }
        // One after the other: who does not answer takes seconds. Whoever coordinated may only have been out of reach.
        let Some(host) = std::iter::once(&lost).chain(&before).nth(next) else {
            if !anybody {
                break true;
            }
            (next, anybody, asked) = (0, false, Stopwatch::start());
            continue;
        };
        next += 1;
        if let Some(stands) = ask_how_it_stands(node, host, &request.job) {
            anybody = true;
            let failed_there = |stands: &SortStands| stands.state == JobState::Failed && *host == lost;
            let end = stands.and_then(|stands| match failed_there(&stands) && !stands.left_out {
                true => Some(failed(&stands.why)),
                false => end_by(stands),
            });
            if let Some(end) = end {
                return node.jobs.end_sort(job, end);
            }
        }
    };
    if !takes_up {
        let line = format!("{lost}, which coordinated, is gone ({why}), and no other node took the sort up");
        return node.jobs.end_sort(job, failed(&line));
    }
    request.coordinator = Some(node.name().to_string());
    job.show(|view| view.coordinator.clone_from(&request.coordinator));
    coordinate(node, job, request, Some(&lost));
}

/// How a job stands at the node of a host, if it knows of it; nothing if it does not answer.
fn ask_how_it_stands(node: &Arc<Node>, host: &str, job: &str) -> Option<Option<SortStands>> {
    let ask = NodeRequest::Stands { job: job.to_string(), host: node.name().to_string() };
    let told = node.link_with(host).ok().and_then(|link| answer(&link, &ask).ok())?;
    from_json(&told).ok()
}

/// What there is to say of a job on several nodes to the host that asks.
pub(crate) fn stands(report: JobReport, host: &str) -> Option<SortStands> {
    let ShareView { hosts, failed, .. } = report.share?;
    let left_out = !hosts.iter().any(|other| other == host);
    let of_host = |line: &String| line.split_once(": ").is_some_and(|(first, _)| first == host);
    let why = if left_out { failed.into_iter().find(of_host) } else { report.why };
    let mut why = why.unwrap_or_else(|| host.to_string());
    why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
    Some(SortStands { state: report.state, left_out, why })
}

/// How a job that stands so elsewhere ends for a host. Nothing if that is not known: that it failed elsewhere may be
/// because it went on without whoever says so.
fn end_by(SortStands { state, left_out, why }: SortStands) -> Option<SortEnd> {
    match state {
        _ if left_out => Some(failed(&format!("{why}; the others go on with the sort, or have ended it"))),
        JobState::Done => Some(SortEnd { state, why: None, receipt: None }),
        JobState::Cancelled => Some(SortEnd { state, why: Some(why), receipt: None }),
        JobState::Running | JobState::Failed => None,
    }
}

fn failed(why: &str) -> SortEnd {
    SortEnd { state: JobState::Failed, why: Some(why.to_string()), receipt: None }
}
