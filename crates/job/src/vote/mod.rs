//! The stored votes of a host: on which attempt of each detached job it voted, how, and what was decided.
//!
//! Model: a node has a [`Seat`] for each job that it has a vote in. [`core`] decides, this module acts. The record
//! is a small file in the directory `votes` of the node's identity, which outlives the process and the certificate.
//! Invariant: the record is durable before what depends on it is answered or done; a seat whose record cannot be
//! written never votes again. A node that does not know a job has no vote in it.
//! Non-goals: asking other hosts ([`crate::agreement`]); when to propose.

pub(crate) mod core;
mod files;
#[cfg(test)]
mod sim_test;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use thalweg_api::{AttemptId, Decision, ReadyFile, VoteAsk, VoteRecord, VoteSaid, from_json, to_json};
use thalweg_base::clock::{Stopwatch, wall_seconds};
use thalweg_io::small;

use self::core::{Core, Effect, Event};
use crate::error::Refused;

pub(crate) use self::core::{GaveUp, Proposal};
pub(crate) use self::files::{clear, name, ready_file};

/// Where records are, in the directory of an identity.
pub(crate) const DIRECTORY: &str = "votes";
/// The most jobs that a node has a vote in. The oldest settled ones are forgotten first; then undecided ones without
/// outputs, once they are older than [`UNDECIDED_SECONDS`].
pub(crate) const JOBS_MAX: usize = 1024;
const UNDECIDED_SECONDS: u64 = 86_400;
/// The jobs that a node has a vote in.
#[derive(Default)]
pub(crate) struct Votes {
    directory: Option<PathBuf>,
    table: Mutex<BTreeMap<String, Arc<Seat>>>,
}

/// A node's part in the votes of one job.
pub(crate) struct Seat {
    pub(crate) state: Mutex<State>,
    /// Held by the thread that proposes.
    pub(crate) proposing: Mutex<()>,
}

pub(crate) struct State {
    pub(crate) core: Core,
    /// How the last proposal ended.
    outcome: Option<Result<Decision, GaveUp>>,
    /// Own outputs that kept their temporary names, a line each.
    kept: Vec<String>,
    /// Why the record can no longer be written.
    broken: Option<String>,
    /// Time since another host asked for a vote.
    asked: Option<Stopwatch>,
    /// Why its outputs wait for a decision, as last logged.
    pub(crate) doubt: Option<GaveUp>,
}

/// What follows from an event, besides the effects carried out.
#[derive(Default)]
pub(crate) struct Carried {
    pub(crate) answer: Option<VoteSaid>,
    pub(crate) ask: Option<(AttemptId, VoteAsk)>,
}

impl Votes {
    /// Loads the records that a node of this name stored in the directory of its identity.
    pub(crate) fn load(name: &str, identity: Option<&Path>) -> Votes {
        let Some(directory) = identity.map(|identity| identity.join(DIRECTORY)) else {
            return Votes::default();
        };
        // If it cannot be made no vote can be stored, which is reported at the first vote.
        let _ = small::make_durable_directory(&directory);
        let _ = small::remove_unfinished(&directory);
        let mut table = BTreeMap::new();
        for path in small::list(&directory).unwrap_or_default() {
            let text = small::read(&path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let record = text.and_then(|text| from_json::<VoteRecord>(&text).ok());
            // A record that is unreadable or a copy under another name is a lost vote: the node does not know the job.
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

    pub(crate) fn seats(&self) -> Vec<Arc<Seat>> {
        self.table.lock().expect("no holder panics").values().cloned().collect()
    }

    pub(crate) fn seat(&self, job: &str) -> Option<Arc<Seat>> {
        self.table.lock().expect("no holder panics").get(job).cloned()
    }

    /// Takes part in an attempt that its coordinator begins. A node that does not know the job takes part in the first
    /// only.
    pub(crate) fn enter(
        &self,
        me: &str,
        job: &str,
        attempt: &AttemptId,
        runs: impl Fn(&str) -> bool,
    ) -> Result<(), Refused> {
        if job.len() != 32 || !job.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Refused::Id(job.to_string()));
        }
        let (number, job_id) = (attempt.number, || job.to_string());
        let seat = match self.seat(job) {
            Some(seat) => seat,
            None if attempt.number == 1 => {
                self.make_room(runs)?;
                let seat = Arc::new(Seat::of(Core::new(me, job, attempt.clone())));
                self.table.lock().expect("no holder panics").insert(job.to_string(), seat.clone());
                seat
            }
            None => return Err(Refused::NotFirst { node: me.to_string(), job: job_id(), number }),
        };
        match self.apply(&seat, Event::Enter(attempt.clone())).answer {
            Some(VoteSaid::Accepted) => Ok(()),
            Some(VoteSaid::Abstains(why)) => Err(Refused::NoVote(why)),
            _ => Err(Refused::Decided { job: job_id(), number }),
        }
    }

    /// Records whether the node still hears the job's coordinator.
    pub(crate) fn hears(&self, job: &str, hears: bool) {
        if let Some(seat) = self.seat(job) {
            self.apply(&seat, Event::Hears(hears));
        }
    }

    /// Records that the node's own outputs of this attempt only need their final names.
    pub(crate) fn ready(&self, job: &str, number: u32, files: Vec<ReadyFile>) -> Result<(), Refused> {
        let seat = self.seat(job).ok_or_else(|| Refused::Unknown(job.to_string()))?;
        files::sync(&files)?;
        match self.apply(&seat, Event::Ready(number, files)).answer {
            Some(VoteSaid::Accepted) => Ok(()),
            _ => Err(Refused::Decided { job: job.to_string(), number }),
        }
    }

    /// Seconds since another host asked for a vote about the job, if one did.
    pub(crate) fn asked_seconds(&self, job: &str) -> Option<f64> {
        let seat = self.seat(job)?;
        let state = seat.state.lock().expect("no holder panics");
        state.asked.map(|since| since.seconds())
    }

    /// The job's last known attempt, and what was decided about it, if known.
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
    pub(crate) fn make_room(&self, runs: impl Fn(&str) -> bool) -> Result<(), Refused> {
        let mut table = self.table.lock().expect("no holder panics");
        if table.len() < JOBS_MAX {
            return Ok(());
        }
        let path = |job: &str| Some(self.directory.as_ref()?.join(job));
        let long_ago = i128::from(wall_seconds().saturating_sub(UNDECIDED_SECONDS)) * 1_000_000_000;
        let rank = |job: &str, seat: &Seat| {
            // A seat that is in use is needed.
            let state = seat.state.try_lock().ok()?;
            let (record, modified) = (state.core.record(), path(job).and_then(|path| small::modified(&path)));
            let is_undecided = record.decided.is_none();
            let may_go = record.ready.is_empty()
                && (!is_undecided || modified.is_some_and(|modified| modified < long_ago));
            (may_go && !runs(job)).then_some((is_undecided, modified))
        };
        let may_go = table.iter().filter_map(|(job, seat)| Some((rank(job, seat)?, job)));
        let Some((_, job)) = may_go.min().map(|(rank, job)| (rank, job.clone())) else {
            return Err(Refused::Undecided(JOBS_MAX));
        };
        if let Some(path) = path(&job) {
            let _ = small::remove(&path);
        }
        table.remove(&job);
        Ok(())
    }

    fn keep(&self, record: &VoteRecord) -> thalweg_io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        small::make_durable_directory(directory)?;
        small::write(&directory.join(&record.job), to_json(record).as_bytes())
    }

    /// Lets a seat handle an event, and carries out the effects.
    pub(crate) fn apply(&self, seat: &Seat, event: Event) -> Carried {
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
    /// The result of any event without a vote. A proposal ends.
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

    pub(crate) fn take_outcome(&self) -> Option<Result<Decision, GaveUp>> {
        self.state.lock().expect("no holder panics").outcome.take()
    }
}
