//! How the hosts of a detached job agree on the outcome of an attempt: requests, answers, and the durable record of
//! each host.

use serde::{Deserialize, Serialize};

use crate::{JobState, Receipt};

/// An attempt of a job. A majority of its hosts decides its outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptId {
    /// Its number, from 1.
    pub number: u32,
    /// The host whose node coordinates it.
    pub coordinator: String,
    /// The hosts that vote, in the order of their ranges.
    pub hosts: Vec<String>,
}

/// The number of a proposal. Later ones are greater; those of round 0 belong to the attempt's coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    /// The number of rounds before it.
    pub round: u32,
    /// The host that makes the proposal.
    pub host: String,
}

/// The outcome of an attempt. Each attempt has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// It is committed: its outputs get their names.
    Committed {
        /// The output that all hosts wrote to, if there is one.
        shared: Option<ReadyFile>,
        /// The receipt of the job.
        receipt: Option<Box<Receipt>>,
    },
    /// It is abandoned, and this attempt follows.
    Superseded {
        /// The attempt that follows.
        next: AttemptId,
        /// Why.
        why: String,
    },
    /// It is abandoned, and no attempt follows.
    Ended {
        /// Failed or cancelled.
        state: JobState,
        /// Why.
        why: String,
    },
}

/// A complete and durable output under a temporary name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyFile {
    /// Its temporary name, as a string with escapes.
    pub hidden: String,
    /// Its final name, as a string with escapes.
    pub name: String,
    /// The file itself.
    pub file: FileStamp,
    /// The file that had that name when the output was ready, if there was one.
    pub before: Option<FileStamp>,
}

/// The identity of a file and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// Its inode number.
    pub inode: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// When its contents last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// A question of one host to another about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VoteRequest {
    /// The job's id.
    pub job: String,
    /// The host that asks.
    pub from: String,
    /// The attempt in question.
    pub attempt: AttemptId,
    /// The question.
    pub ask: VoteAsk,
}

/// The questions of a proposal (Lamport, "Paxos Made Simple", 2001: phases 1a, 2a and the learners).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VoteAsk {
    /// Promise to accept nothing below this ballot.
    Prepare(Ballot),
    /// Accept this decision.
    Accept(Ballot, Decision),
    /// A decision was made.
    Learn {
        /// The decision.
        decision: Decision,
        /// Whether the host gives the shared output its name. It always names its own outputs.
        names_shared: bool,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VoteSaid {
    /// Promised, and the decision that was accepted with the greatest ballot below it.
    Promised(Option<(Ballot, Decision)>),
    /// Accepted.
    Accepted,
    /// Recorded. Outputs that kept their temporary names, each in one line with the reason.
    Learned(Vec<String>),
    /// The ballot is below one that was promised.
    Outbid(Ballot),
    /// The host is still in contact with this coordinator.
    Hears(String),
    /// The host knows of a later attempt, or of a decision.
    Knows {
        /// The last attempt that it knows of.
        attempt: AttemptId,
        /// The decision about it, if the host knows it.
        decision: Option<Decision>,
    },
    /// The host has no vote, for this reason.
    Abstains(String),
}

/// The durable record of a host about a job. It is synced before any answer that depends on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VoteRecord {
    /// The job's id.
    pub job: String,
    /// The last attempt that the host knows of.
    pub attempt: AttemptId,
    /// The greatest ballot that it promised.
    pub promised: Ballot,
    /// The last decision that it accepted.
    pub accepted: Option<(Ballot, Decision)>,
    /// The decision, if it knows it.
    pub decided: Option<Decision>,
    /// Its own outputs of this attempt that are ready.
    pub ready: Vec<ReadyFile>,
}
