//! The agreement of a detached job's hosts on what becomes of each attempt, as one host takes part in it.
//!
//! ```text
//! attempt 1 of n1 n2 n3 n4 --superseded--> attempt 2 of n1 n3 n4 --committed--> its outputs get their names
//!           3 of 4 accept                            2 of 3 accept
//! ```
//!
//! Model: every attempt is one instance of single-decree consensus among its own hosts (Lamport, "Paxos Made Simple",
//! 2001). Its decision is that it is committed, that a given attempt with fewer hosts follows, or that none does. So
//! the electorate shrinks only by a decision of the electorate before. [`Core::apply`] takes an event and returns what
//! to do, in order; it has no clock, no disk and no socket.
//! Invariant: an attempt has at most one decision, so at most one attempt of a job is committed. [`Effect::Keep`]
//! precedes every answer that depends on it. Outputs are named only after the decision "committed", and cleared only
//! after another.
//! Non-goals: when a host should propose, and what an attempt does.

use std::collections::BTreeMap;

use thalweg_api::{AttemptId, Ballot, Decision, JobState, ReadyFile, VoteAsk, VoteRecord, VoteSaid};

/// What happens to a host.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// It has restarted, with the record that it had kept.
    Restarted,
    /// The coordinator of an attempt has it take part.
    Enter(AttemptId),
    /// Whether the host hears the attempt's coordinator. While it does, it makes no promise to any other host.
    Hears(bool),
    /// Its own outputs of the attempt with this number are complete, durable, and only need their final names.
    Ready(u32, Vec<ReadyFile>),
    /// The outputs of the last [`Effect::Name`] have been dealt with.
    Named,
    /// It should propose this for the attempt with this number.
    Propose(u32, Proposal),
    /// Another host sends a request.
    Asked(String, AttemptId, VoteAsk),
    /// Another host answers.
    Said(String, Question, VoteSaid),
    /// Another host does not answer.
    Silent(String, Question),
    /// The proposing thread no longer waits for an outcome.
    Withdraw,
}

/// What an answer is for: a late answer to another question is no vote for this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// The attempt's number.
    number: u32,
    ballot: Ballot,
    /// Whether it asks to accept, or to promise.
    accepts: bool,
}

impl Question {
    /// The question of a proposal, if this is one.
    pub(crate) fn of(attempt: &AttemptId, ask: &VoteAsk) -> Option<Question> {
        let (ballot, accepts) = match ask {
            VoteAsk::Prepare(ballot) => (ballot, false),
            VoteAsk::Accept(ballot, _) => (ballot, true),
            VoteAsk::Learn { .. } => return None,
        };
        Some(Question { number: attempt.number, ballot: ballot.clone(), accepts })
    }
}

/// What a host proposes.
#[derive(Debug, Clone)]
pub(crate) enum Proposal {
    /// The attempt is fully written: it is to be committed.
    Commit(Decision),
    /// An attempt is to follow, on those of these hosts that can be reached, coordinated by this one.
    Supersede(Vec<String>, String),
    /// No attempt is to follow.
    End(JobState, String),
}

/// An action for the host to carry out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Make the record durable before any later effect.
    Keep,
    /// Ask all other hosts of the attempt.
    Ask(AttemptId, VoteAsk),
    /// Send this answer.
    Answer(VoteSaid),
    /// Give these files their names.
    Name(Vec<ReadyFile>),
    /// Remove these files.
    Clear(Vec<ReadyFile>),
    /// The proposal has ended: this was decided about its attempt, perhaps as another host proposed.
    Decided(Decision),
    /// The proposal has ended without a decision, for this reason. It is unknown what will be decided.
    GaveUp(GaveUp),
}

/// Why a proposal failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GaveUp {
    /// Others still hear this coordinator.
    Hears(String),
    /// Another host's ballot is greater; a proposal with a greater one may be tried.
    Outbid,
    /// Only this many of this many hosts voted, which is no quorum.
    Few(usize, usize),
    /// The host has moved on: this is the job's last attempt that it knows.
    Other(AttemptId),
    /// This host has no vote itself, for this reason.
    NoVote(String),
}

/// A running proposal.
struct Open {
    ballot: Ballot,
    want: Proposal,
    /// What is proposed, once a quorum has promised.
    decision: Option<Decision>,
    /// The hosts that have answered the present question, and whether with a vote.
    answers: BTreeMap<String, bool>,
    /// The accepted decision with the greatest ballot among the answers.
    accepted: Option<(Ballot, Decision)>,
    why: Option<GaveUp>,
}

/// One host's part in the agreement.
pub(crate) struct Core {
    me: String,
    record: VoteRecord,
    hears: bool,
    open: Option<Open>,
}

/// Whether these are enough of an attempt's hosts to decide: more than half, or half with the first of them.
pub(crate) fn is_quorum<'a>(hosts: &[String], some: impl Iterator<Item = &'a String> + Clone) -> bool {
    let count = some.clone().filter(|host| hosts.contains(host)).count();
    let first = hosts.first().is_some_and(|first| some.clone().any(|host| host == first));
    2 * count > hosts.len() || (2 * count == hosts.len() && first)
}

impl Core {
    /// The state for a job's first attempt.
    pub(crate) fn new(me: &str, job: &str, attempt: AttemptId) -> Core {
        let record = VoteRecord {
            job: job.to_string(),
            promised: first_ballot(&attempt),
            attempt,
            accepted: None,
            decided: None,
            ready: Vec::new(),
        };
        Core::load(me, record)
    }

    /// The state from a stored record.
    pub(crate) fn load(me: &str, record: VoteRecord) -> Core {
        Core { me: me.to_string(), record, hears: false, open: None }
    }

    /// The host's name.
    pub(crate) fn me(&self) -> &str {
        &self.me
    }

    /// The record to be stored.
    pub(crate) fn record(&self) -> &VoteRecord {
        &self.record
    }

    /// The present question of the running proposal, if there is one.
    pub(crate) fn asks(&self) -> Option<Question> {
        let Open { ballot, decision, .. } = self.open.as_ref()?;
        let (number, accepts) = (self.record.attempt.number, decision.is_some());
        Some(Question { number, ballot: ballot.clone(), accepts })
    }

    /// Whether the host has no part in the job's last attempt that it knows.
    pub(crate) fn is_left_out(&self) -> bool {
        matches!(&self.record.decided, Some(Decision::Superseded { .. }))
    }

    /// Handles an event. Returns the effects to carry out.
    pub(crate) fn apply(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Restarted => {
                if let Some(decision @ Decision::Committed { .. }) = self.record.decided.clone() {
                    self.learn(decision, false, &mut effects);
                }
            }
            Event::Enter(attempt) => self.enter(attempt, &mut effects),
            Event::Hears(hears) => self.hears = hears,
            Event::Ready(number, files) => self.ready(number, files, &mut effects),
            Event::Named => {
                self.record.ready.clear();
                effects.push(Effect::Keep);
            }
            Event::Propose(number, want) => self.propose(number, want, &mut effects),
            Event::Asked(from, attempt, ask) => self.asked(&from, attempt, ask, &mut effects),
            Event::Said(from, asked, said) => self.said(from, asked, said, &mut effects),
            Event::Silent(from, asked) if self.asks() == Some(asked.clone()) => {
                self.answered(from, false, &mut effects)
            }
            Event::Silent(..) => {}
            Event::Withdraw => self.open = None,
        }
        effects
    }

    fn enter(&mut self, attempt: AttemptId, effects: &mut Vec<Effect>) {
        self.catch_up(&attempt, effects);
        let said = if self.record.attempt == attempt && self.record.decided.is_none() {
            self.hears = true;
            effects.push(Effect::Keep);
            VoteSaid::Accepted
        } else {
            self.knows()
        };
        effects.push(Effect::Answer(said));
    }

    fn ready(&mut self, number: u32, files: Vec<ReadyFile>, effects: &mut Vec<Effect>) {
        if self.record.attempt.number == number && self.record.decided.is_none() {
            self.record.ready = files;
            effects.extend([Effect::Keep, Effect::Answer(VoteSaid::Accepted)]);
        } else {
            effects.extend([Effect::Clear(files), Effect::Answer(self.knows())]);
        }
    }

    /// What it knows about the job's last attempt.
    fn knows(&self) -> VoteSaid {
        match &self.record.decided {
            Some(Decision::Superseded { next, .. }) => {
                VoteSaid::Knows { attempt: next.clone(), decision: None }
            }
            decision => VoteSaid::Knows { attempt: self.record.attempt.clone(), decision: decision.clone() },
        }
    }

    /// A message about a later attempt shows what was decided about ours.
    fn catch_up(&mut self, attempt: &AttemptId, effects: &mut Vec<Effect>) {
        if attempt.number > self.record.attempt.number {
            let why = format!("{} coordinates attempt {}", attempt.coordinator, attempt.number);
            self.learn(Decision::Superseded { next: attempt.clone(), why }, false, effects);
        }
    }

    /// Learns what was decided about the attempt of our record.
    fn learn(&mut self, decision: Decision, names_shared: bool, effects: &mut Vec<Effect>) {
        let ready = std::mem::take(&mut self.record.ready);
        if let Some(open) = self.open.take() {
            drop(open);
            effects.push(Effect::Decided(decision.clone()));
        }
        match &decision {
            Decision::Committed { shared, .. } => {
                self.record.ready.clone_from(&ready);
                let shared = shared.iter().filter(|_| names_shared).cloned();
                let files: Vec<ReadyFile> = ready.into_iter().chain(shared).collect();
                self.record.decided = Some(decision);
                effects.push(Effect::Keep);
                if !files.is_empty() {
                    effects.push(Effect::Name(files));
                }
            }
            Decision::Superseded { next, .. } => {
                if next.hosts.contains(&self.me) {
                    self.record.attempt = next.clone();
                    self.record.promised = first_ballot(next);
                    (self.record.accepted, self.record.decided) = (None, None);
                    self.hears = false;
                } else {
                    self.record.decided = Some(decision);
                }
                effects.push(Effect::Keep);
                effects.extend((!ready.is_empty()).then_some(Effect::Clear(ready)));
            }
            Decision::Ended { .. } => {
                self.record.decided = Some(decision);
                effects.push(Effect::Keep);
                effects.extend((!ready.is_empty()).then_some(Effect::Clear(ready)));
            }
        }
    }

    fn propose(&mut self, number: u32, want: Proposal, effects: &mut Vec<Effect>) {
        assert!(self.open.is_none(), "one proposal after the other");
        if number != self.record.attempt.number {
            // A proposal for one attempt is not made for another.
            return effects.push(Effect::GaveUp(GaveUp::Other(self.record.attempt.clone())));
        }
        if let Some(decision) = &self.record.decided {
            return effects.push(Effect::Decided(decision.clone()));
        }
        let VoteRecord { attempt, promised, accepted, .. } = self.record.clone();
        // Round 0 needs no promises: no other host may propose in it, and this host has not yet.
        let is_first =
            attempt.coordinator == self.me && promised == first_ballot(&attempt) && accepted.is_none();
        let round = if is_first { 0 } else { promised.round + 1 };
        let ballot = Ballot { round, host: self.me.clone() };
        let open = Open { ballot, want, decision: None, answers: BTreeMap::new(), accepted, why: None };
        self.record.promised = open.ballot.clone();
        if is_first {
            let decision = self.decision_of(&open.want, &attempt.hosts);
            self.accept(open, decision, effects);
        } else {
            effects.extend([Effect::Keep, Effect::Ask(attempt, VoteAsk::Prepare(open.ballot.clone()))]);
            self.open = Some(open);
            self.answered(self.me.clone(), true, effects);
        }
    }

    /// The decision to propose once these hosts have promised.
    fn decision_of(&self, want: &Proposal, promised: &[String]) -> Decision {
        match want {
            Proposal::Commit(decision) => decision.clone(),
            Proposal::Supersede(hosts, why) => {
                let AttemptId { number, hosts: all, .. } = &self.record.attempt;
                let stay = all.iter().filter(|host| hosts.contains(host) && promised.contains(host));
                let (number, coordinator) = (number + 1, self.me.clone());
                let next = AttemptId { number, coordinator, hosts: stay.cloned().collect() };
                Decision::Superseded { next, why: why.clone() }
            }
            Proposal::End(state, why) => Decision::Ended { state: *state, why: why.clone() },
        }
    }

    /// Votes for the decision, and asks the others to accept it.
    fn accept(&mut self, mut open: Open, decision: Decision, effects: &mut Vec<Effect>) {
        self.record.accepted = Some((open.ballot.clone(), decision.clone()));
        effects.extend([
            Effect::Keep,
            Effect::Ask(self.record.attempt.clone(), VoteAsk::Accept(open.ballot.clone(), decision.clone())),
        ]);
        open.answers.clear();
        open.decision = Some(decision);
        self.open = Some(open);
        self.answered(self.me.clone(), true, effects);
    }

    fn asked(&mut self, from: &str, attempt: AttemptId, ask: VoteAsk, effects: &mut Vec<Effect>) {
        self.catch_up(&attempt, effects);
        let said = match ask {
            _ if self.record.attempt != attempt || self.is_left_out() => self.knows(),
            VoteAsk::Learn { decision, names_shared } => {
                self.learn(decision, names_shared, effects);
                VoteSaid::Learned(Vec::new())
            }
            _ if self.record.decided.is_some() => self.knows(),
            VoteAsk::Prepare(_) if self.hears && from != attempt.coordinator => {
                VoteSaid::Hears(attempt.coordinator)
            }
            VoteAsk::Prepare(ballot) | VoteAsk::Accept(ballot, _) if ballot < self.record.promised => {
                VoteSaid::Outbid(self.record.promised.clone())
            }
            VoteAsk::Prepare(ballot) => {
                self.record.promised = ballot;
                effects.push(Effect::Keep);
                VoteSaid::Promised(self.record.accepted.clone())
            }
            VoteAsk::Accept(ballot, decision) => {
                self.record.promised = ballot.clone();
                self.record.accepted = Some((ballot, decision));
                effects.push(Effect::Keep);
                VoteSaid::Accepted
            }
        };
        effects.push(Effect::Answer(said));
    }

    fn said(&mut self, from: String, asked: Question, said: VoteSaid, effects: &mut Vec<Effect>) {
        let is_open = self.asks() == Some(asked);
        let Some(open) = self.open.as_mut().filter(|_| is_open) else { return };
        let votes = match said {
            VoteSaid::Promised(accepted) => {
                let is_later = |(ballot, _): &(Ballot, Decision)| {
                    open.accepted.as_ref().is_none_or(|(before, _)| before < ballot)
                };
                if let Some(accepted) = accepted.filter(is_later) {
                    open.accepted = Some(accepted);
                }
                true
            }
            VoteSaid::Accepted => true,
            VoteSaid::Learned(_) => false,
            VoteSaid::Knows { attempt, decision } => {
                self.catch_up(&attempt, effects);
                if let Some(decision) =
                    decision.filter(|_| self.record.attempt == attempt && !self.is_left_out())
                {
                    self.learn(decision, false, effects);
                }
                false
            }
            VoteSaid::Outbid(_) => {
                open.why = Some(GaveUp::Outbid);
                false
            }
            VoteSaid::Hears(coordinator) => {
                open.why = Some(GaveUp::Hears(coordinator));
                false
            }
            VoteSaid::Abstains(_) => false,
        };
        self.answered(from, votes, effects);
    }

    /// Handles another host's answer, with a vote or without.
    fn answered(&mut self, from: String, votes: bool, effects: &mut Vec<Effect>) {
        let hosts = &self.record.attempt.hosts;
        let Some(mut open) = self.open.take_if(|_| hosts.contains(&from)) else { return };
        open.answers.entry(from).or_insert(votes);
        let have: Vec<String> =
            open.answers.iter().filter(|(_, votes)| **votes).map(|(host, _)| host.clone()).collect();
        let (is_quorum, all_answered) = (is_quorum(hosts, have.iter()), open.answers.len() == hosts.len());
        match open.decision.clone() {
            Some(decision) if is_quorum => {
                effects.push(Effect::Decided(decision.clone()));
                self.learn(decision, false, effects);
            }
            // Every host that can be reached is to be part of the next attempt.
            None if is_quorum && all_answered => {
                if self.record.promised != open.ballot {
                    return effects.push(Effect::GaveUp(GaveUp::Outbid));
                }
                let decision = match &open.accepted {
                    Some((_, decision)) => decision.clone(),
                    None => self.decision_of(&open.want, &have),
                };
                self.accept(open, decision, effects);
            }
            _ if all_answered => {
                let few = GaveUp::Few(have.len(), hosts.len());
                effects.push(Effect::GaveUp(open.why.unwrap_or(few)));
            }
            _ => self.open = Some(open),
        }
    }
}

/// The ballot that only the attempt's coordinator proposes with.
fn first_ballot(attempt: &AttemptId) -> Ballot {
    Ballot { round: 0, host: attempt.coordinator.clone() }
}
