//! How the hosts of a detached job agree on what becomes of its attempts: each asks the others, and answers them.
//!
//! Model: a host answers each request once; a host that does not answer within [`VOTE_SECONDS`] counts as silent.
//! The decision is then sent to all ([`crate::vote::core`] says what follows from an answer).
//! Invariant: a host asks in its own name only.
//! Non-goals: when to propose; what a host keeps of its votes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use thalweg_api::{
    AttemptEnd, AttemptId, Decision, JobRequest, JobState, ServiceRequest, VoteAsk, VoteRequest, VoteSaid,
    from_json,
};
use thalweg_base::clock::Stopwatch;
use thalweg_wire::threads::spawn;
use thalweg_wire::{Link, Role, message};

use crate::local::Local;
use crate::vote::core::{Event, Question};
use crate::vote::{GaveUp, Proposal};

/// How long a host may take to vote. A slower host counts as silent, though a late answer is still valid.
pub(crate) const VOTE_SECONDS: f64 = 2.0;
/// How often a proposal checks whether another host has ended it.
const LOOK: Duration = Duration::from_millis(20);

/// Lets the hosts of an attempt decide its outcome. The decision is about that attempt, even if others have followed
/// it, and may be another host's proposal. This ends: there are at most two questions, and a host that does not answer
/// one within [`VOTE_SECONDS`] counts as silent.
pub(crate) fn decide(
    local: &Arc<Local>,
    (job, number): (&str, u32),
    want: Proposal,
) -> Result<Decision, GaveUp> {
    let unknown = || GaveUp::NoVote(format!("{} does not know job {job}", local.name()));
    let seat = local.votes.seat(job).ok_or_else(unknown)?;
    let _only = seat.proposing.lock().expect("no holder panics");
    seat.take_outcome();
    let mut carried = local.votes.apply(&seat, Event::Propose(number, want));
    let (tell, said) = channel();
    // The hosts that have not answered the present question, and the time since it was asked.
    let (mut unanswered, mut asked): (VecDeque<VoteRequestTo>, Stopwatch) =
        (VecDeque::new(), Stopwatch::start());
    loop {
        if let Some(outcome) = seat.take_outcome() {
            return outcome;
        }
        if let Some((attempt, ask)) = carried.ask.take() {
            asked = Stopwatch::start();
            let others = attempt.hosts.iter().filter(|host| *host != local.name());
            unanswered = others.map(|host| (host.clone(), request(local, job, &attempt, &ask))).collect();
            for (host, request) in &unanswered {
                ask_one(local, host, request.clone(), tell.clone());
            }
        }
        let (host, request, answer) = match said.recv_timeout(LOOK) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) if asked.seconds() > VOTE_SECONDS => {
                match unanswered.pop_front() {
                    Some((host, request)) => (host, request, None),
                    // All hosts have answered or count as silent, so the proposal has ended.
                    None => {
                        local.votes.apply(&seat, Event::Withdraw);
                        return seat.take_outcome().unwrap_or(Err(GaveUp::Outbid));
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => unreachable!("one end is ours"),
        };
        unanswered.retain(|(other, asked)| (other, asked) != (&host, &request));
        let question = Question::of(&request.attempt, &request.ask).expect("a proposal asks questions");
        carried = local.votes.apply(
            &seat,
            match answer {
                Some(said) => Event::Said(host, question, said),
                None => Event::Silent(host, question),
            },
        );
    }
}

fn request(local: &Local, job: &str, attempt: &AttemptId, ask: &VoteAsk) -> VoteRequest {
    VoteRequest { job: job.into(), from: local.name().into(), attempt: attempt.clone(), ask: ask.clone() }
}

/// A host, and the request to it.
type VoteRequestTo = (String, VoteRequest);
/// The host that was asked, the request, and its answer, if there was one.
pub(crate) type Answer = (String, VoteRequest, Option<VoteSaid>);

/// Asks a host on a thread of its own.
fn ask_one(local: &Arc<Local>, host: &str, request: VoteRequest, tell: Sender<Answer>) {
    let (asking, to, asked, told) = (local.clone(), host.to_string(), request.clone(), tell.clone());
    let asks = spawn("vote", move || {
        let link = asking.node.link_with(&to).ok();
        let answered =
            link.and_then(|link| message::ask(&link, &JobRequest::Vote(Box::new(asked.clone())).text()).ok());
        // The proposal may have ended without this answer.
        let _ = told.send((to, asked, answered.and_then(|text| from_json(&text).ok())));
    });
    if !asks {
        let _ = tell.send((host.to_string(), request, None));
    }
}

/// A decision, and the job and the attempt that it is about.
pub(crate) type Told<'a> = ((&'a str, &'a AttemptId), &'a Decision);

/// Sends these hosts the decision about an attempt, without waiting for their answers.
pub(crate) fn tell(local: &Arc<Local>, about: Told<'_>, (hosts, names_shared): (&[String], bool)) {
    let (tell, _) = channel();
    hosts.iter().for_each(|host| tell_one(local, about, (host, names_shared), &tell));
}

/// Sends the decision to one host. It answers with the outputs that kept their temporary names, or not at all.
pub(crate) fn tell_one(
    local: &Arc<Local>,
    ((job, attempt), decision): Told<'_>,
    (host, names_shared): (&str, bool),
    tell: &Sender<Answer>,
) {
    let request = request(local, job, attempt, &VoteAsk::Learn { decision: decision.clone(), names_shared });
    if host != local.name() {
        return ask_one(local, host, request, tell.clone());
    }
    // Naming outputs waits for the disk, so it has a thread of its own.
    let (here, asked, told) = (local.clone(), request.clone(), tell.clone());
    let learns = spawn("vote", move || {
        let said = learn(&here, asked.clone());
        let _ = told.send((here.name().to_string(), asked, Some(said)));
    });
    if !learns {
        let _ = tell.send((host.to_string(), request, None));
    }
}

fn learn(local: &Arc<Local>, request: VoteRequest) -> VoteSaid {
    let Some(seat) = local.votes.seat(&request.job) else {
        return VoteSaid::Abstains(format!("{} does not know job {}", local.name(), request.job));
    };
    let carried = local.votes.apply(&seat, Event::Asked(request.from, request.attempt, request.ask));
    carried.answer.expect("whoever asks is answered")
}

/// Answers the request of another host.
pub(crate) fn serve(local: &Arc<Local>, link: &Link, request: VoteRequest) -> VoteSaid {
    if link.hello().role != Role::Node || link.peer() != request.from {
        return VoteSaid::Abstains(format!("{} asks in the name of {}", link.peer(), request.from));
    }
    let job = request.job.clone();
    let ends = match &request.ask {
        // Its coordinator reports the end: an output may have kept its temporary name.
        VoteAsk::Learn { decision: Decision::Committed { .. }, .. } => !local.participations.knows(&job),
        VoteAsk::Learn { .. } => true,
        VoteAsk::Prepare(_) | VoteAsk::Accept(..) => false,
    };
    let said = learn(local, request);
    if ends {
        end_as_decided(local, &job);
    }
    said
}

/// Ends a job of this node as its hosts decided, if they have decided.
pub(crate) fn end_as_decided(local: &Local, job: &str) {
    let Some(here) = local.jobs.find(job).filter(|job| !job.has_ended()) else { return };
    let Some((_, Some(decision))) = local.votes.known(job) else { return };
    let kept = local.votes.kept(job);
    local.jobs.end_sort(&here, end_of(decision, &kept));
}

/// The end of a job for this decision. `kept` are outputs that kept their temporary names.
pub(crate) fn end_of(decision: Decision, kept: &[String]) -> AttemptEnd {
    match decision {
        Decision::Committed { receipt, .. } if kept.is_empty() => {
            AttemptEnd { state: JobState::Done, why: None, receipt: receipt.map(|receipt| *receipt) }
        }
        Decision::Committed { receipt, .. } => AttemptEnd {
            state: JobState::Failed,
            why: Some(kept.join("; ")),
            receipt: receipt.map(|receipt| *receipt),
        },
        Decision::Superseded { why, .. } => AttemptEnd {
            state: JobState::Failed,
            why: Some(format!("{why}; the others continue the sort, or have ended it")),
            receipt: None,
        },
        Decision::Ended { state, why } => AttemptEnd { state, why: Some(why), receipt: None },
    }
}
