//! What a node keeps of jobs: those that run and have ended, the rivers that it takes part in, its votes.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use thalweg_api::AttemptId;
use thalweg_wire::Host;

use crate::error::Refused;
use crate::jobs::Jobs;
use crate::node::Node;
use crate::participations::Participations;
use crate::vote::Votes;

/// This node's side of all jobs.
pub(crate) struct Local {
    pub(crate) node: Box<dyn Node>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) participations: Participations,
    pub(crate) votes: Votes,
    /// How many checks run.
    pub(crate) checks: AtomicUsize,
    /// Held by the thread that measures this host.
    pub(crate) probing: Mutex<()>,
}

impl Local {
    /// The side of a host, whose jobs are listed here.
    pub(crate) fn of(host: &Arc<Host>, jobs: &Arc<Jobs>) -> Local {
        Local {
            votes: Votes::load(host.name(), host.directory()),
            node: Box::new(host.clone()),
            jobs: jobs.clone(),
            participations: Participations::default(),
            checks: AtomicUsize::new(0),
            probing: Mutex::default(),
        }
    }

    /// The host's name; empty without an identity.
    pub(crate) fn name(&self) -> &str {
        self.node.name()
    }

    /// Takes part in the vote on an attempt that its coordinator begins.
    pub(crate) fn enter_vote(&self, job: &str, attempt: &AttemptId) -> Result<(), Refused> {
        self.votes.enter(self.name(), job, attempt, |job| self.runs(job))
    }

    /// Whether a job runs here.
    pub(crate) fn runs(&self, job: &str) -> bool {
        self.participations.knows(job) || self.jobs.find(job).is_some_and(|job| !job.has_ended())
    }
}
