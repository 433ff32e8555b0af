//! How the hosts of a detached job agree on what becomes of an attempt: requests, answers, and what each keeps on disk.

use serde::{Deserialize, Serialize};

use crate::{JobState, Receipt};

/// One attempt of a job. Its hosts decide, by a majority, what becomes of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct Ballot {
    /// How many rounds there were before it.
    pub round: u32,
    /// The host that proposes.
    pub host: String,
}

/// What becomes of an attempt. Each attempt has one decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Decision {
    /// Its outputs get their names.
    Committed {
        /// The output that all hosts wrote to, if there is one.
        shared: Option<ReadyFile>,
        /// The receipt of the job.
        receipt: Option<Box<Receipt>>,
    },
    /// It comes to nothing, and this attempt follows.
    Superseded {
        /// The attempt that follows.
        next: AttemptId,
        /// Why.
        why: String,
    },
    /// It comes to nothing, and none follows.
    Ended {
        /// Failed or cancelled.
        state: JobState,
        /// Why.
        why: String,
    },
}

/// A whole and durable output that has a temporary name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadyFile {
    /// Its temporary name, as a word with escapes.
    pub hidden: String,
    /// The name that it is to get, as a word with escapes.
    pub name: String,
    /// The file itself.
    pub file: FileStamp,
    /// The file that had that name when the output was ready, if there was one.
    pub before: Option<FileStamp>,
}

/// What tells a file from another one, and from itself after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileStamp {
    /// Its number on its file system.
    pub inode: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// When its contents last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// What a host asks another one about a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoteRequest {
    /// The job's id.
    pub job: String,
    /// The host that asks.
    pub from: String,
    /// The attempt that is asked about.
    pub attempt: AttemptId,
    /// What is asked.
    pub ask: VoteAsk,
}

/// The questions of a proposal (Lamport, "Paxos Made Simple", 2001: phases 1a, 2a and the learners).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum VoteAsk {
    /// Promise to accept nothing below this ballot.
    Prepare(Ballot),
    /// Accept this decision.
    Accept(Ballot, Decision),
    /// This was decided.
    Learn {
        /// What.
        decision: Decision,
        /// Whether the host gives the shared output its name. Outputs of its own it always names.
        names_shared: bool,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum VoteSaid {
    /// Promised, and the decision that was accepted with the greatest ballot below it.
    Promised(Option<(Ballot, Decision)>),
    /// Accepted.
    Accepted,
    /// Taken note of. Outputs that kept their temporary names, each in one line with the reason.
    Learned(Vec<String>),
    /// The ballot is below one that was promised.
    Outbid(Ballot),
    /// The host still hears this coordinator.
    Hears(String),
    /// The host knows of a later attempt, or of a decision.
    Knows {
        /// The last attempt that it knows of.
        attempt: AttemptId,
        /// What was decided about it, if it knows.
        decision: Option<Decision>,
    },
    /// The host has no vote, and why.
    Abstains(String),
}

/// What a host keeps about a job on its disk. It is durable before an answer that depends on it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoteRecord {
    /// The job's id.
    pub job: String,
    /// The last attempt that the host knows of.
    pub attempt: AttemptId,
    /// The greatest ballot that it promised.
    pub promised: Ballot,
    /// What it accepted last.
    pub accepted: Option<(Ballot, Decision)>,
    /// What it knows to be decided.
    pub decided: Option<Decision>,
    /// Its own outputs of this attempt that are ready.
    pub ready: Vec<ReadyFile>,
}
