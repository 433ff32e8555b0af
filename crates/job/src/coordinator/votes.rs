//! What a coordinator without a client does only with the agreement of the job's hosts.
//!
//! Invariant: no attempt begins, and none ends the job, except by a decision of the hosts of the attempt before it.
//! Non-goal: how they agree ([`crate::agreement`]).

use std::sync::Arc;

use thalweg_api::{AttemptEnd, AttemptId, Decision};
use thalweg_engine::{Error, Result};

use crate::agreement;
use crate::local::Local;
use crate::vote::{GaveUp, Proposal};

use super::{Coordinator, outputs};

impl Coordinator<'_> {
    /// Has the hosts of the last attempt agree that none follows. If they cannot, the end says so.
    pub(super) fn have_ended(&self, end: &mut AttemptEnd) {
        let Some(node) = &self.node else { return };
        let Some((attempt, None)) = node.votes.known(&self.job.job) else { return };
        let why = end.why.clone().unwrap_or_default();
        match self.vote(node, Proposal::End(end.state, why.clone())) {
            Ok(decision @ Decision::Ended { .. }) => {
                agreement::tell(node, ((&self.job.job, &attempt), &decision), (&attempt.hosts, false));
            }
            Ok(other) => end.why = Some(format!("{why}; {}", outputs::superseded(&other))),
            Err(GaveUp::Other(next)) => end.why = Some(format!("{why}; {}", outputs::followed_by(&next))),
            // The job ended for this reason.
            Err(GaveUp::NoVote(cause)) if why.contains(&cause) => {}
            Err(GaveUp::NoVote(cause)) => end.why = Some(format!("{why}; {cause}")),
            Err(_) => {
                let few = "too few of its hosts answer to know whether others continue it";
                end.why = Some(format!("{why}; {few}"));
            }
        }
    }

    /// The running attempt, as its hosts vote on it. Its coordinator always has a vote.
    pub(super) fn attempt_id(&self) -> AttemptId {
        let coordinator = self.job.coordinator.clone().unwrap_or_default();
        let mut hosts = self.names();
        if !hosts.contains(&coordinator) {
            hosts.push(coordinator.clone());
        }
        AttemptId { number: self.number(), coordinator, hosts }
    }

    /// The attempt that begins: the first, or the one that the previous attempt's hosts decided on. It may have more
    /// hosts than those that take part, in the same order as before.
    pub(super) fn voted_for(&self, node: &Local) -> AttemptId {
        let known = node.votes.known(&self.job.job).map(|(attempt, _)| attempt);
        known.filter(|attempt| attempt.number == self.number()).unwrap_or_else(|| self.attempt_id())
    }

    /// The number of the running attempt.
    fn number(&self) -> u32 {
        self.job.failed.len() as u32 + 1
    }

    /// What the hosts of the running attempt decide about it.
    fn vote(&self, node: &Arc<Local>, want: Proposal) -> std::result::Result<Decision, GaveUp> {
        agreement::decide(node, (&self.job.job, self.number()), want)
    }

    /// The running attempt as its hosts know it, unless this host has moved on.
    pub(super) fn voted_on(&self, node: &Local) -> Result<AttemptId> {
        let gone = |why: String| Error::Gone(why, None);
        match node.votes.known(&self.job.job) {
            Some((attempt, _)) if attempt.number == self.number() => Ok(attempt),
            Some((other, _)) => Err(gone(outputs::followed_by(&other))),
            None => Err(gone(format!("{} does not know job {} any more", node.name(), self.job.job))),
        }
    }

    /// What the hosts of the attempt decide about it. An error if too few of them answer, or another host proposed
    /// more.
    pub(super) fn decide(&self, node: &Arc<Local>, want: Proposal) -> Result<Decision> {
        self.vote(node, want).map_err(|why| {
            let why = match why {
                GaveUp::Few(have, of) => {
                    format!("{have} of {of} hosts cannot know whether the others continue the sort")
                }
                GaveUp::NoVote(why) => why,
                GaveUp::Other(next) => outputs::followed_by(&next),
                GaveUp::Outbid | GaveUp::Hears(_) => "another host has taken the sort over".into(),
            };
            Error::Gone(why, None)
        })
    }

    /// Has the hosts agree that another attempt follows, coordinated by this node, on the remaining hosts. Leaves out
    /// hosts that do not answer.
    pub(super) fn supersede(&mut self, line: &str) -> Result<()> {
        let Some(node) = self.node.clone() else { return Ok(()) };
        let want = Proposal::Supersede(self.attempt_id().hosts, line.to_string());
        let told = |why: Error| match why {
            Error::Gone(why, place) => Error::Gone(format!("{line}; {why}"), place),
            other => other,
        };
        let before = self.voted_on(&node).map_err(told)?;
        let decision = self.decide(&node, want).map_err(told)?;
        // The hosts that are left out are told too.
        agreement::tell(&node, ((&self.job.job, &before), &decision), (&before.hosts, false));
        match decision {
            Decision::Superseded { next, .. } if next.coordinator == node.name() => {
                self.peers.retain(|peer| next.hosts.contains(&peer.name));
            }
            other => return Err(Error::Gone(format!("{line}; {}", outputs::superseded(&other)), None)),
        }
        Ok(())
    }
}
