//! How the hosts of a detached job agree on which attempt's outputs get their names: [`core`] decides, this carries out.
//!
//! Model: a node has a [`Seat`] for each job that it has a vote in. Its record is a small file in the directory `votes` of the
//! node's identity, which outlives the process and the certificate. Another node asks with one request and has one answer.
//! Invariant: the record is durable before what depends on it is said or done; a seat whose record cannot be written never
//! votes again. A node that does not know a job has no vote in it.
//! Non-goals: when to propose.

mod core;
mod files;
mod settle;
#[cfg(test)]
mod sim_test;
#[cfg(test)]
mod votes_test;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{
    AttemptId, Decision, JobState, NodeRequest, ReadyFile, SortEnd, VoteAsk, VoteRecord, VoteRequest,
    VoteSaid, from_json, to_json,
};
use thalweg_base::clock::{Stopwatch, wall_seconds};
use thalweg_io::small;
use thalweg_wire::{Link, Role};

use self::core::{Core, Effect, Event, Question};
pub(crate) use self::core::{GaveUp, Proposal};
pub(crate) use self::files::{clear, name, ready_file};
pub(crate) use self::settle::settle;
use crate::daemon::Node;
use crate::talk::answer;
use crate::threads::spawn;

/// Where records are, in the directory of an identity.
const DIRECTORY: &str = "votes";
/// The most jobs that a node has a vote in. Of those that are settled the oldest go first, and of those that are not decided,
/// and that nobody can have waited for since, those without outputs.
const JOBS_MAX: usize = 1024;
const UNDECIDED_SECONDS: u64 = 86_400;
/// How long a host may take to vote; who takes longer is counted as silent, though what it answers later is not wrong.
pub(crate) const VOTE_SECONDS: f64 = 2.0;
/// How long the host that made the shared output has to name it, before another one does.
const NAMING_SECONDS: f64 = 8.0;
/// How often a proposal looks whether somebody else has ended it.
const LOOK: Duration = Duration::from_millis(20);
/// How long a host that cannot be reached is left in peace before it is told again.
const NAMES_AGAIN: Duration = Duration::from_secs(1);

/// The jobs that a node has a vote in.
#[derive(Default)]
pub(crate) struct Votes {
    directory: Option<PathBuf>,
    table: Mutex<BTreeMap<String, Arc<Seat>>>,
}

/// A node's part in the votes of one job.
struct Seat {
    state: Mutex<State>,
    /// Held by whoever proposes.
    proposing: Mutex<()>,
}

struct State {
    core: Core,
    /// How the last proposal ended.
    outcome: Option<Result<Decision, GaveUp>>,
    /// Own outputs that kept their temporary names, a line each.
    kept: Vec<String>,
    /// Why the record cannot be written any more.
    broken: Option<String>,
    /// Since another host asked for a vote.
    asked: Option<Stopwatch>,
    /// Why its outputs wait for a decision, as the log was told last.
    doubt: Option<GaveUp>,
}

/// What follows from an event beside what was done.
#[derive(Default)]
struct Carried {
    answer: Option<VoteSaid>,
    ask: Option<(AttemptId, VoteAsk)>,
}

impl Votes {
    /// With the records that a node of this name kept in the directory of its identity.
    pub(crate) fn load(name: &str, identity: Option<&Path>) -> Votes {
        let Some(directory) = identity.map(|identity| identity.join(DIRECTORY)) else {
            return Votes::default();
        };
        // Where it cannot be made no vote can be kept, which is said when there is one.
        let _ = small::make_durable_directory(&directory);
        let _ = small::remove_unfinished(&directory);
        let mut table = BTreeMap::new();
        for path in small::list(&directory).unwrap_or_default() {
            let text = small::read(&path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let record = text.and_then(|text| from_json::<VoteRecord>(&text).ok());
            // What cannot be read, or is a copy under another name, is a lost vote: the node does not know the job.
            let is_its = |record: &VoteRecord| path.file_name().is_some_and(|name| name == &*record.job);
            let Some(record) = record.filter(is_its) else { continue };
            table.insert(record.job.clone(), Arc::new(Seat::of(Core::load(name, record))));
        }
        let votes = Votes { directory: Some(directory), table: Mutex::new(table) };
        for seat in votes.seats() {
            votes.apply(&seat, Event::Restarted);
        }
        votes
    }

    fn seats(&self) -> Vec<Arc<Seat>> {
        self.table.lock().expect("no holder panics").values().cloned().collect()
    }

    fn seat(&self, job: &str) -> Option<Arc<Seat>> {
        self.table.lock().expect("no holder panics").get(job).cloned()
    }

    /// Takes part in an attempt that its coordinator begins. A node that does not know the job takes part in the first only.
    pub(crate) fn enter(&self, node: &Node, job: &str, attempt: &AttemptId) -> Result<(), String> {
        let me = node.name();
        if job.len() != 32 || !job.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!(
                "a job's id has 32 hexadecimal digits, and '{}' is none",
                job.escape_debug()
            ));
        }
        let unknown =
            || format!("{me} does not know job {job}, and its attempt {} is not the first", attempt.number);
        let seat = match self.seat(job) {
            Some(seat) => seat,
            None if attempt.number == 1 => {
                self.make_room(|job| runs(node, job))?;
                let seat = Arc::new(Seat::of(Core::new(me, job, attempt.clone())));
                self.table.lock().expect("no holder panics").insert(job.to_string(), seat.clone());
                seat
            }
            None => return Err(unknown()),
        };
        match self.apply(&seat, Event::Enter(attempt.clone())).answer {
            Some(VoteSaid::Accepted) => Ok(()),
            Some(VoteSaid::Abstains(why)) => Err(why),
            _ => Err(format!("attempt {} of job {job} was decided before", attempt.number)),
        }
    }

    /// Whether the node still hears whoever coordinates the job.
    pub(crate) fn hears(&self, job: &str, hears: bool) {
        if let Some(seat) = self.seat(job) {
            self.apply(&seat, Event::Hears(hears));
        }
    }

    /// The node's own outputs of this attempt lack only their names.
    pub(crate) fn ready(&self, job: &str, number: u32, files: Vec<ReadyFile>) -> Result<(), String> {
        let seat = self.seat(job).ok_or_else(|| format!("job {job} is not known here"))?;
        files::sync(&files)?;
        match self.apply(&seat, Event::Ready(number, files)).answer {
            Some(VoteSaid::Accepted) => Ok(()),
            _ => Err(format!("attempt {number} of job {job} was decided before")),
        }
    }

    /// Seconds since another host asked for a vote about the job, if one did.
    pub(crate) fn asked_seconds(&self, job: &str) -> Option<f64> {
        let seat = self.seat(job)?;
        let state = seat.state.lock().expect("no holder panics");
        state.asked.map(|since| since.seconds())
    }

    /// What is known to be decided about the job's last attempt, and which it is.
    pub(crate) fn known(&self, job: &str) -> Option<(AttemptId, Option<Decision>)> {
        let seat = self.seat(job)?;
        let state = seat.state.lock().expect("no holder panics");
        let record = state.core.record();
        Some((record.attempt.clone(), record.decided.clone()))
    }

    /// The node's own outputs that kept their temporary names, a line each.
    pub(crate) fn kept(&self, job: &str) -> Vec<String> {
        let kept = |seat: Arc<Seat>| seat.state.lock().expect("no holder panics").kept.clone();
        self.seat(job).map_or(Vec::new(), kept)
    }

    /// Forgets the oldest job that may be forgotten, if there are too many.
    fn make_room(&self, runs: impl Fn(&str) -> bool) -> Result<(), String> {
        let mut table = self.table.lock().expect("no holder panics");
        if table.len() < JOBS_MAX {
            return Ok(());
        }
        let path = |job: &str| Some(self.directory.as_ref()?.join(job));
        let long_ago = i128::from(wall_seconds().saturating_sub(UNDECIDED_SECONDS)) * 1_000_000_000;
        let rank = |job: &str, seat: &Seat| {
            // One that is busy is needed.
            let state = seat.state.try_lock().ok()?;
            let (record, modified) = (state.core.record(), path(job).and_then(|path| small::modified(&path)));
            let is_undecided = record.decided.is_none();
            let may_go = record.ready.is_empty()
                && (!is_undecided || modified.is_some_and(|modified| modified < long_ago));
            (may_go && !runs(job)).then_some((is_undecided, modified))
        };
        let may_go = table.iter().filter_map(|(job, seat)| Some((rank(job, seat)?, job)));
        let Some((_, job)) = may_go.min().map(|(rank, job)| (rank, job.clone())) else {
            return Err(format!(
                "this node has {JOBS_MAX} jobs that are not decided, the maximum; bring their hosts back"
            ));
        };
        if let Some(path) = path(&job) {
            let _ = small::remove(&path);
        }
        table.remove(&job);
        Ok(())
    }

    fn keep(&self, record: &VoteRecord) -> Result<(), String> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let kept = small::make_durable_directory(directory)
            .and_then(|()| small::write(&directory.join(&record.job), to_json(record).as_bytes()));
        kept.map_err(|why| why.to_string())
    }

    /// Has a seat take note of an event, and does what is to be done.
    fn apply(&self, seat: &Seat, event: Event) -> Carried {
        let mut state = seat.state.lock().expect("no holder panics");
        let mut carried = Carried::default();
        if let Some(why) = state.broken.clone() {
            return state.has_no_vote(why);
        }
        if matches!(&event, Event::Asked(_, _, VoteAsk::Prepare(_) | VoteAsk::Accept(..))) {
            state.asked = Some(Stopwatch::start());
        }
        let mut effects = state.core.apply(event);
        while !effects.is_empty() {
            let mut was_named = false;
            for effect in effects {
                match effect {
                    Effect::Keep => {
                        if let Err(why) = self.keep(state.core.record()) {
                            let me = state.core.me();
                            let why =
                                format!("{me} cannot keep its vote: {why}; mend that, and restart the node");
                            state.broken = Some(why.clone());
                            return state.has_no_vote(why);
                        }
                    }
                    Effect::Ask(attempt, ask) => carried.ask = Some((attempt, ask)),
                    Effect::Answer(VoteSaid::Learned(_)) => {
                        carried.answer = Some(VoteSaid::Learned(state.kept.clone()));
                    }
                    Effect::Answer(said) => carried.answer = Some(said),
                    Effect::Name(ready) => {
                        state.kept = files::name(&ready);
                        was_named = true;
                    }
                    Effect::Clear(ready) => ready.iter().for_each(files::clear),
                    Effect::Decided(decision) => state.outcome = Some(Ok(decision)),
                    Effect::GaveUp(why) => state.outcome = Some(Err(why)),
                }
            }
            effects = if was_named { state.core.apply(Event::Named) } else { Vec::new() };
        }
        carried
    }
}

impl State {
    /// What follows from any event. A proposal ends.
    fn has_no_vote(&mut self, why: String) -> Carried {
        self.outcome = Some(Err(GaveUp::NoVote(why.clone())));
        Carried { answer: Some(VoteSaid::Abstains(why)), ask: None }
    }
}

impl Seat {
    fn of(core: Core) -> Seat {
        let state = State { core, outcome: None, kept: Vec::new(), broken: None, asked: None, doubt: None };
        Seat { state: Mutex::new(state), proposing: Mutex::new(()) }
    }

    fn take_outcome(&self) -> Option<Result<Decision, GaveUp>> {
        self.state.lock().expect("no holder panics").outcome.take()
    }
}

/// Has the hosts of an attempt decide what becomes of it; what is returned is about that attempt, whatever has followed it.
/// Other hosts' proposals may be decided instead. It has an end: there are at most two questions, and who does not answer one
/// within [`VOTE_SECONDS`] is counted as silent.
pub(crate) fn decide(
    node: &Arc<Node>,
    (job, number): (&str, u32),
    want: Proposal,
) -> Result<Decision, GaveUp> {
    let unknown = || GaveUp::NoVote(format!("{} does not know job {job}", node.name()));
    let seat = node.votes.seat(job).ok_or_else(unknown)?;
    let _only = seat.proposing.lock().expect("no holder panics");
    seat.take_outcome();
    let mut carried = node.votes.apply(&seat, Event::Propose(number, want));
    let (tell, said) = channel();
    // Those who have not answered the present question, and since when it is asked.
    let (mut unanswered, mut asked): (VecDeque<VoteRequestTo>, Stopwatch) =
        (VecDeque::new(), Stopwatch::start());
    loop {
        if let Some(outcome) = seat.take_outcome() {
            return outcome;
        }
        if let Some((attempt, ask)) = carried.ask.take() {
            asked = Stopwatch::start();
            let others = attempt.hosts.iter().filter(|host| *host != node.name());
            unanswered = others.map(|host| (host.clone(), request(node, job, &attempt, &ask))).collect();
            for (host, request) in &unanswered {
                ask_one(node, host, request.clone(), tell.clone());
            }
        }
        let (host, request, answer) = match said.recv_timeout(LOOK) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) if asked.seconds() > VOTE_SECONDS => {
                match unanswered.pop_front() {
                    Some((host, request)) => (host, request, None),
                    // All have answered, or are counted as silent, and whoever did so last has ended the proposal.
                    None => {
                        node.votes.apply(&seat, Event::Withdraw);
                        return seat.take_outcome().unwrap_or(Err(GaveUp::Outbid));
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => unreachable!("one end is ours"),
        };
        unanswered.retain(|(other, asked)| (other, asked) != (&host, &request));
        let question = Question::of(&request.attempt, &request.ask).expect("a proposal asks questions");
        carried = node.votes.apply(
            &seat,
            match answer {
                Some(said) => Event::Said(host, question, said),
                None => Event::Silent(host, question),
            },
        );
    }
}

fn request(node: &Node, job: &str, attempt: &AttemptId, ask: &VoteAsk) -> VoteRequest {
    VoteRequest { job: job.into(), from: node.name().into(), attempt: attempt.clone(), ask: ask.clone() }
}

/// A host, and what it is asked.
type VoteRequestTo = (String, VoteRequest);
/// The host that was asked, what, and its answer, if there was one.
type Answer = (String, VoteRequest, Option<VoteSaid>);

/// Asks a host on a thread of its own.
fn ask_one(node: &Arc<Node>, host: &str, request: VoteRequest, tell: Sender<Answer>) {
    let (asking, to, asked, told) = (node.clone(), host.to_string(), request.clone(), tell.clone());
    let asks = spawn("vote", move || {
        let link = asking.link_with(&to).ok();
        let answered = link.and_then(|link| answer(&link, &NodeRequest::Vote(Box::new(asked.clone()))).ok());
        // Whoever asked may have enough answers.
        let _ = told.send((to, asked, answered.and_then(|text| from_json(&text).ok())));
    });
    if !asks {
        let _ = tell.send((host.to_string(), request, None));
    }
}

/// A decision, and the job and the attempt that it is about.
pub(crate) type Told<'a> = ((&'a str, &'a AttemptId), &'a Decision);

/// Tells these hosts what was decided about an attempt; nobody waits for their answers.
pub(crate) fn tell(node: &Arc<Node>, about: Told<'_>, (hosts, names_shared): (&[String], bool)) {
    let (tell, _) = channel();
    hosts.iter().for_each(|host| tell_one(node, about, (host, names_shared), &tell));
}

/// Each answers with the outputs that kept their temporary names, or not at all.
fn tell_one(
    node: &Arc<Node>,
    ((job, attempt), decision): Told<'_>,
    (host, names_shared): (&str, bool),
    tell: &Sender<Answer>,
) {
    let request = request(node, job, attempt, &VoteAsk::Learn { decision: decision.clone(), names_shared });
    if host != node.name() {
        return ask_one(node, host, request, tell.clone());
    }
    // Names wait for the disk, as those of another host do.
    let (here, asked, told) = (node.clone(), request.clone(), tell.clone());
    let learns = spawn("vote", move || {
        let said = learn(&here, asked.clone());
        let _ = told.send((here.name().to_string(), asked, Some(said)));
    });
    if !learns {
        let _ = tell.send((host.to_string(), request, None));
    }
}

/// Has the outputs of a committed attempt named: the one that all wrote to by who made it, or else by this node or another
/// one; those of each host's own by all of them. That takes as long as it takes, unless the job is cancelled. Returns what
/// kept its temporary name, and what may have.
pub(crate) fn name_all(node: &Arc<Node>, about: Told<'_>, maker: Option<&str>) -> Vec<String> {
    let hosts = &about.0.1.hosts;
    let Some(maker) = maker else { return name_own(node, about) };
    let others = hosts.iter().map(String::as_str).filter(|host| *host != maker && *host != node.name());
    let mut namers: Vec<&str> = [maker, node.name()].into_iter().chain(others).collect();
    namers.dedup();
    let kept = name_shared(node, about, &namers);
    tell(node, about, (hosts, false));
    kept
}

/// The output that all wrote to, by the first of these who can.
fn name_shared(node: &Arc<Node>, about: Told<'_>, namers: &[&str]) -> Vec<String> {
    let (tell, said) = channel();
    let mut told = BTreeSet::new();
    loop {
        for namer in namers {
            // Who has not answered yet is not told again.
            if told.insert(namer.to_string()) {
                tell_one(node, about, (namer, true), &tell);
            }
            let asked = Stopwatch::start();
            while asked.seconds() < NAMING_SECONDS && !goes(node, about.0.0) {
                let Ok((host, _, answer)) = said.recv_timeout(LOOK) else { continue };
                if let Some(VoteSaid::Learned(kept)) = answer {
                    return kept;
                }
                told.remove(&host);
                if host == *namer {
                    break;
                }
            }
            show_waiting(node, about.0.0, namers[0]);
        }
        if goes(node, about.0.0) || node.bell.wait(NAMES_AGAIN) {
            let Decision::Committed { shared: Some(shared), .. } = about.1 else { return Vec::new() };
            let ReadyFile { hidden, name, .. } = shared;
            return vec![format!(
                "nobody has said that {name} has its name; else it is whole, at {hidden}, and {} names it when it can be reached",
                namers[0]
            )];
        }
    }
}

/// Outputs of the hosts' own.
fn name_own(node: &Arc<Node>, about: Told<'_>) -> Vec<String> {
    let (tell, said) = channel();
    let (mut kept, mut told) = (Vec::new(), BTreeSet::new());
    let mut waiting = about.0.1.hosts.clone();
    while !waiting.is_empty() && !goes(node, about.0.0) {
        for host in &waiting {
            // Who has not answered yet is not told again.
            if told.insert(host.clone()) {
                tell_one(node, about, (host, false), &tell);
            }
        }
        let round = Stopwatch::start();
        while !waiting.is_empty() && round.seconds() < NAMES_AGAIN.as_secs_f64() {
            let Ok((host, _, answer)) = said.recv_timeout(LOOK) else { continue };
            told.remove(&host);
            match answer {
                Some(VoteSaid::Learned(lines)) => kept.extend(lines),
                Some(VoteSaid::Abstains(why)) => kept.push(why),
                _ => continue,
            }
            waiting.retain(|other| *other != host);
        }
        if !waiting.is_empty() {
            show_waiting(node, about.0.0, &waiting.join(", "));
        }
    }
    let late = |host: String| {
        format!("{host} has not given its output its name yet, and will when it can be reached")
    };
    kept.extend(waiting.into_iter().map(late));
    kept
}

/// Whether the job goes on here.
fn runs(node: &Node, job: &str) -> bool {
    node.sorts.knows(job) || node.jobs.find(job).is_some_and(|job| !job.has_ended())
}

/// Whether nobody waits for a job's names any more.
fn goes(node: &Node, job: &str) -> bool {
    node.bell.wait(Duration::ZERO) || node.jobs.find(job).is_some_and(|job| job.cancelled().is_some())
}

fn show_waiting(node: &Node, job: &str, hosts: &str) {
    if let Some(job) = node.jobs.find(job) {
        job.show(|view| view.stage = format!("committed, waiting for {hosts}"));
    }
}

fn learn(node: &Arc<Node>, request: VoteRequest) -> VoteSaid {
    let Some(seat) = node.votes.seat(&request.job) else {
        return VoteSaid::Abstains(format!("{} does not know job {}", node.name(), request.job));
    };
    let carried = node.votes.apply(&seat, Event::Asked(request.from, request.attempt, request.ask));
    carried.answer.expect("whoever asks is answered")
}

/// Answers another host.
pub(crate) fn serve(node: &Arc<Node>, link: &Link, request: VoteRequest) -> VoteSaid {
    if link.hello().role != Role::Node || link.peer() != request.from {
        return VoteSaid::Abstains(format!("{} asks in the name of {}", link.peer(), request.from));
    }
    let (job, is_told) = (request.job.clone(), matches!(request.ask, VoteAsk::Learn { .. }));
    let said = learn(node, request);
    if is_told {
        end_as_decided(node, &job);
    }
    said
}

/// Ends a job of this node as its hosts decided, if they did.
pub(crate) fn end_as_decided(node: &Node, job: &str) {
    let Some(here) = node.jobs.find(job).filter(|job| !job.has_ended()) else { return };
    let Some((_, Some(decision))) = node.votes.known(job) else { return };
    let kept = node.votes.kept(job);
    node.jobs.end_sort(&here, end_of(decision, &kept));
}

/// How a job ended about which this was decided. `kept` are outputs that kept their temporary names.
pub(crate) fn end_of(decision: Decision, kept: &[String]) -> SortEnd {
    match decision {
        Decision::Committed { receipt, .. } if kept.is_empty() => {
            SortEnd { state: JobState::Done, why: None, receipt: receipt.map(|receipt| *receipt) }
        }
        Decision::Committed { receipt, .. } => SortEnd {
            state: JobState::Failed,
            why: Some(kept.join("; ")),
            receipt: receipt.map(|receipt| *receipt),
        },
        Decision::Superseded { why, .. } => SortEnd {
            state: JobState::Failed,
            why: Some(format!("{why}; the others go on with the sort, or have ended it")),
            receipt: None,
        },
        Decision::Ended { state, why } => SortEnd { state, why: Some(why), receipt: None },
    }
}
