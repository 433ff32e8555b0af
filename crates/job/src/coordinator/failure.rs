//! What follows when an attempt fails: its cause is found, all nodes stop, and others continue if that may help.

use thalweg_api::{AttemptEnd, FromParticipant, JobState, ToParticipant, Trouble, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_engine::{Error, JobFault, Result};
use thalweg_wire::{LinkError, What, message};

use crate::error::{DRAINS, SHUTTING_DOWN};

use super::{ATTEMPTS_MAX, Coordinator, LOOK};

/// How long to wait for a better cause when a node reports a failure: a node that only misses another one notices that
/// up to a second before the coordinator.
const CAUSE_SECONDS: f64 = 0.7;
const FOLLOWING_SECONDS: f64 = 1.3;
/// How long nodes may take to remove everything of an attempt; a node that takes longer is lost. No node waits for
/// another longer than the timeout of links.
const STOP_SECONDS: f64 = 12.0;

/// Why an attempt failed.
pub(super) enum Failure {
    /// Because of this node.
    Node(usize, Reason, String),
    /// Because of something that another attempt would not fix.
    Job(Error),
}

/// How a node caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Its link is gone, or silent.
    Lost,
    /// It reported the trouble itself.
    Said(Trouble),
    /// It stopped because the participant at this place had stopped, with which it has a link.
    Stopped(usize),
}

impl Reason {
    /// What a participant said.
    pub(super) fn said(trouble: Trouble, is_linked: bool) -> Reason {
        match trouble {
            Trouble::Follows(Some(place)) if is_linked => Reason::Stopped(place),
            trouble => Reason::Said(trouble),
        }
    }

    /// Whether another participant knows the cause.
    pub(super) fn follows(&self) -> bool {
        matches!(self, Reason::Said(Trouble::Follows(_)) | Reason::Stopped(_))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Job(error)
    }
}

impl Coordinator<'_> {
    /// Clears the failed attempt, and continues without the node that caused it; an error if that is impossible.
    pub(super) fn go_on_after(&mut self, failure: Failure) -> Result<()> {
        let (id, reason, why) = match failure {
            // A coordinator that was suspended has no nodes to stop any more.
            Failure::Job(error @ Error::Gone(..)) => return Err(error),
            Failure::Job(error) => {
                self.stop();
                return Err(error);
            }
            Failure::Node(id, reason, why) => (id, reason, why),
        };
        let name = self.peers[self.place_of(id).expect("it failed as one of them")].name.clone();
        let line = format!("{name}: {why}");
        if reason == Reason::Said(Trouble::Leaves) && self.job.coordinator.as_ref() == Some(&name) {
            return Err(Error::Gone(line, None));
        }
        let end = AttemptEnd { state: JobState::Failed, why: Some(line.clone()), receipt: None };
        if reason == Reason::Lost {
            self.part_with(id, None);
        }
        if self.spared.is_some() && self.kept.is_some() {
            // The others have written their ranges.
            self.part_with(id, Some(end));
            return self.again(line);
        }
        let lost = self.stop();
        let ended = match reason {
            Reason::Said(Trouble::Cancelled) => {
                self.cancelled = true;
                true
            }
            Reason::Said(Trouble::Asked) => true,
            // A full disk is the node's own problem; when a second node's disk is full, it may be one that all share.
            Reason::Said(Trouble::Full) => std::mem::replace(&mut self.full, true) || self.lent.is_some(),
            Reason::Said(Trouble::Follows(_) | Trouble::Leaves) | Reason::Stopped(_) | Reason::Lost => false,
        };
        if ended || self.job.ask.own_inputs || self.names {
            return Err(JobFault::Failed(line, self.outputs_after(reason)).into());
        }
        self.part_with(id, Some(end));
        let line = lost.into_iter().fold(line, |line, lost| format!("{line}; {lost}"));
        if self.peers.is_empty() {
            return Err(JobFault::Failed(line, self.outputs_after(reason)).into());
        }
        self.keep_what_has_an_output();
        self.again(line)
    }

    /// Prepares another attempt without the node that this line is about; in a job without its client only if the hosts
    /// agree.
    pub(super) fn again(&mut self, line: String) -> Result<()> {
        self.supersede(&line)?;
        self.job.failed.push(line.clone());
        self.job.hosts = self.names();
        let (number, rest) = (self.job.failed.len() + 1, self.job.hosts.join(", "));
        if number <= ATTEMPTS_MAX {
            let what = if self.kept.is_some() { "sorts the lost range" } else { "begins" };
            let note = format!("{line}; attempt {number} of at most {ATTEMPTS_MAX} {what} on {rest}");
            self.progress.note(&note);
        }
        Ok(())
    }

    /// Continues without a node, and tells it how the job ended for it, if it still listens.
    pub(super) fn part_with(&mut self, id: usize, end: Option<AttemptEnd>) {
        let Some(place) = self.place_of(id) else { return };
        let mut peer = self.peers.remove(place);
        if let Some(end) = end {
            let told = message::send(&mut peer.out, &to_json(&ToParticipant::End(Box::new(end))), &[]);
            let _ = told.and_then(|()| peer.out.end(&[]));
        } else if self.reach.own {
            peer.link.close();
        }
    }

    /// Has all nodes clear the attempt. Returns a line for each that was lost while it did.
    pub(super) fn stop(&mut self) -> Vec<String> {
        let mut lost: Vec<(usize, String)> = Vec::new();
        let mut waiting: Vec<usize> = Vec::new();
        for peer in &mut self.peers {
            match message::send(&mut peer.out, &to_json(&ToParticipant::Stop), &[]) {
                Ok(()) => waiting.push(peer.id),
                Err(why) => lost.push((peer.id, why.to_string())),
            }
        }
        let late = Stopwatch::start();
        while !waiting.is_empty() && late.seconds() < STOP_SECONDS {
            match self.said.recv_timeout(LOOK) {
                Ok((id, Ok((FromParticipant::Stopped, _)))) => waiting.retain(|other| *other != id),
                Ok((id, Err(why))) if waiting.contains(&id) => {
                    waiting.retain(|other| *other != id);
                    lost.push((id, why.to_string()));
                }
                _ => {}
            }
        }
        lost.extend(waiting.into_iter().map(|id| (id, format!("it did not stop within {STOP_SECONDS} s"))));
        let line = |(id, why): (usize, String)| {
            let name = self.place_of(id).map(|place| self.peers[place].name.clone());
            self.part_with(id, None);
            format!("{}: {why}", name.unwrap_or_default())
        };
        lost.into_iter().map(line).collect()
    }

    /// The best available explanation of this failure: a node that is lost explains more than one that failed, and a
    /// node that failed more than those that only miss another. If it is only known which node misses which, the cause
    /// is the node that most others miss, of those with which a link is gone if there are any.
    pub(super) fn cause(&self, id: usize, reason: (Reason, String)) -> Failure {
        let rank = |reason: &Reason| match reason {
            Reason::Said(Trouble::Follows(_)) | Reason::Stopped(_) => 2,
            Reason::Said(Trouble::Full | Trouble::Asked) => 1,
            Reason::Said(Trouble::Cancelled | Trouble::Leaves) | Reason::Lost => 0,
        };
        let mut missed: Vec<Vec<(bool, String)>> = vec![Vec::new(); self.peers.len()];
        let mut misses = vec![false; self.peers.len()];
        let mut best = (id, reason);
        let mut heard = |id: usize, (reason, why): &(Reason, String)| {
            let (whom, has_no_link) = match reason {
                Reason::Said(Trouble::Follows(whom)) => (*whom, true),
                Reason::Stopped(place) => (Some(*place), false),
                _ => return,
            };
            if let Some(place) = self.place_of(id) {
                misses[place] = true;
            }
            if let Some(of_it) = whom.and_then(|place| missed.get_mut(place)) {
                of_it.push((has_no_link, why.clone()));
            }
        };
        heard(id, &best.1);
        let late = Stopwatch::start();
        let patience = |rank| if rank > 1 { FOLLOWING_SECONDS } else { CAUSE_SECONDS };
        while rank(&best.1.0) > 0 && late.seconds() < patience(rank(&best.1.0)) {
            let (id, reason) = match self.said.recv_timeout(LOOK) {
                Ok((id, Err(why))) => (id, reason_of(&why)),
                Ok((id, Ok((FromParticipant::Failed { trouble, why, is_linked }, _)))) => {
                    (id, (Reason::said(trouble, is_linked), why))
                }
                _ => continue,
            };
            heard(id, &reason);
            if rank(&reason.0) < rank(&best.1.0) && self.place_of(id).is_some() {
                best = (id, reason);
            }
        }
        let (id, (reason, why)) = best;
        // A node that reports that it misses another is itself missed for that. Of several, the last: it is the least
        // likely to be the coordinator.
        let of_all =
            missed.into_iter().zip(misses).zip(&self.peers).filter(|((of_it, _), _)| !of_it.is_empty());
        let most = of_all.max_by_key(|((of_it, misses), _)| {
            (of_it.iter().any(|(has_no_link, _)| *has_no_link), !misses, of_it.len())
        });
        match most {
            Some(((of_it, _), missing)) if reason.follows() => {
                // Of the reports about it, one that names it.
                let names = |(_, why): &&(bool, String)| why.contains(&missing.name);
                let (_, why) = of_it.iter().find(names).unwrap_or(&of_it[0]);
                Failure::Node(missing.id, reason, format!("others miss it: {why}"))
            }
            _ => Failure::Node(id, reason, why),
        }
    }
}

/// What the end of a link or a stream shows about a node.
pub(super) fn reason_of(why: &LinkError) -> (Reason, String) {
    match &why.what {
        // It will not take part, and others can.
        What::Aborted(text) if [DRAINS, SHUTTING_DOWN].contains(&&**text) => (Reason::Lost, text.clone()),
        // It did not get as far as an attempt.
        What::Aborted(text) => (Reason::Said(Trouble::Asked), text.clone()),
        _ => (Reason::Lost, why.to_string()),
    }
}
