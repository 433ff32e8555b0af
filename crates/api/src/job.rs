//! Messages of a job on several nodes, between its coordinator and each participant.
//!
//! ```text
//! coordinator:  Sort(JobSpec) Attempt       Sample         Go       Start      Ready       Publish           End
//! participant:                        Found        Sampled    Range       Done       Ready         Published
//! ```
//!
//! After a participant fails ([`FromParticipant::Failed`]) or loses contact with another, the coordinator sends all
//! [`ToParticipant::Stop`], and each answers with [`FromParticipant::Stopped`]; then comes another attempt, or the end.
//! Data that grows with the inputs, such as samples and split points, follows a message as bytes.

use serde::{Deserialize, Serialize};

use crate::{
    AttemptId, IoReceipt, JobOptions, JobState, NodeRates, PartReceipt, Proof, ReadyFile, Receipt, Sides,
    Stage, hex,
};

/// A volume of a cluster in which a job has files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobVolume {
    /// Its name in paths of the job.
    pub name: String,
    /// Its id, which its stores know: 32 hexadecimal digits.
    pub volume: String,
    /// The directory of its manager, written `NODE:/DIR`.
    pub manager: String,
}

/// A job, as its coordinator sends it to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The job's id: 32 hexadecimal digits.
    pub job: String,
    /// The client or node that requested it.
    pub by: String,
    /// The work.
    pub ask: JobOptions,
    /// The hosts that should take part, in the order of their ranges.
    pub hosts: Vec<String>,
    /// The host whose node coordinates it, if it continues without the client.
    pub coordinator: Option<String>,
    /// Why each earlier attempt failed.
    pub failed: Vec<String>,
    /// The files that earlier attempts wrote to, as strings with escapes. They must not get their final names any more.
    pub lost: Vec<String>,
}

/// An attempt, as one participant sees it. Its number is one more than the number of failed attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobAttempt {
    /// The hosts that take part, in the order of their ranges.
    pub hosts: Vec<String>,
    /// The index of the host that receives this message.
    pub index: usize,
    /// As in [`JobSpec`].
    pub failed: Vec<String>,
    /// As in [`JobSpec`].
    pub lost: Vec<String>,
    /// The range to sort, if it is that of a node that was lost after all others had written theirs: their files stay,
    /// and get their names together with those of this attempt.
    pub range: Option<LostRange>,
    /// The attempt whose hosts vote on the outcome, if the job continues without its client.
    pub vote: Option<AttemptId>,
}

/// The keys after one bound, up to and including another. A missing bound is open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// The exclusive lower bound.
    pub low: Option<KeyBound>,
    /// The inclusive upper bound.
    pub high: Option<KeyBound>,
}

/// A bound of a range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyBound {
    /// The key in its normal form.
    #[serde(with = "hex::bytes")]
    pub key: Vec<u8>,
    /// Among equal keys, the origin of the last record before the bound.
    pub origin: u64,
}

impl JobAttempt {
    /// The number of the attempt, from 1.
    pub fn number(&self) -> u32 {
        self.failed.len() as u32 + 1
    }
}

/// A message from the coordinator to a participant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToParticipant {
    /// Begin an attempt.
    Attempt(JobAttempt),
    /// Sample the node's part of the inputs.
    Sample {
        /// Bytes of the inputs of the nodes before it, if each has its own.
        before_bytes: u64,
        /// Memory of the node that has the least; the rivers are sized for it.
        least_bytes: u64,
        /// Bytes of all inputs.
        all_bytes: u64,
    },
    /// Sort. The split points follow, and after them a sample of the node's range if it may be of use.
    Go {
        /// For each side, the pages of each node's own inputs; if inputs are shared, the pages that each node reads.
        pages: Vec<Vec<u64>>,
        /// The expected bytes of the node's range.
        range_bytes: u64,
        /// The file that all write to, under its temporary name.
        shared: Option<String>,
        /// Bytes of the split points that follow.
        cuts_bytes: u64,
    },
    /// The offset of the node's range in the shared output.
    Start(u64),
    /// All nodes have written. Complete your outputs and make them durable under their temporary names, then reply.
    Ready {
        /// Bytes of the file.
        bytes: u64,
        /// Bytes that do not fill a sector, of this node's range or, in a shared file, of all nodes' ranges.
        edges: Vec<Edge>,
    },
    /// The attempt is committed. Name your outputs, if you have not done so.
    Publish,
    /// This attempt is stopped. Remove everything that it left, then reply.
    Stop,
    /// The job has ended.
    End(Box<AttemptEnd>),
    /// The job was only a plan. Remember nothing of it.
    Forget,
}

/// How a job on several nodes ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// Done, failed or cancelled.
    pub state: JobState,
    /// Why, if it is not done.
    pub why: Option<String>,
    /// The receipt, if it is done.
    pub receipt: Option<Receipt>,
}

/// A message from a participant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromParticipant {
    /// What it found.
    Found {
        /// Bytes of its inputs.
        input_bytes: u64,
        /// The memory that it will use.
        memory_bytes: u64,
        /// Its rates, if it has stored any.
        #[serde(default)]
        rates: Option<NodeRates>,
    },
    /// A sample follows.
    Sampled {
        /// For each side, pages of its inputs, and bytes of each.
        pages: Vec<(u64, u64)>,
        /// The file that all nodes write to, if this node created it.
        shared: Option<String>,
    },
    /// Bytes of its inputs that have gone into the river, and bytes of its range that have been written.
    Progress(u64, u64),
    /// The bytes of its range.
    Range(u64),
    /// Everything is written, under temporary names.
    Done(Box<ParticipantEnd>),
    /// Its outputs are complete and durable under temporary names, with the shared one if it created that.
    Ready(Option<ReadyFile>),
    /// Its outputs are named, except those in these lines, which say where they are.
    Published(Vec<String>),
    /// Its part of the job failed.
    Failed {
        /// The kind of failure.
        trouble: Trouble,
        /// The cause, in one line.
        why: String,
        /// Whether its link with the participant that it misses is still open: that one has then only ended its streams.
        #[serde(default)]
        is_linked: bool,
    },
    /// Nothing is left of the attempt that was stopped.
    Stopped,
}

/// Why a participant failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// The node lost contact with another, perhaps the one of this index. The other node knows the cause.
    Follows(Option<usize>),
    /// There is no room on a disk of the node.
    Full,
    /// The job was cancelled on the node.
    Cancelled,
    /// The node is shutting down.
    Leaves,
    /// Any other cause, which would recur in another attempt.
    Asked,
}

/// A job that continues without its client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detached {
    /// The job's id.
    pub job: String,
    /// The host whose node coordinates it.
    pub coordinator: String,
}

/// The progress of one participant in a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ParticipantView {
    /// The host whose node coordinates it, if it continues without its client.
    pub coordinator: Option<String>,
    /// The hosts of this attempt.
    pub hosts: Vec<String>,
    /// Why each earlier attempt failed.
    pub failed: Vec<String>,
    /// `sample`, `read+river`, `sort+write`, `publish`; empty before.
    pub stage: String,
    /// Seconds since it began.
    pub stage_seconds: f64,
    /// Bytes of inputs that the node has read.
    pub read_bytes: u64,
    /// Bytes of its range that it has written.
    pub written_bytes: u64,
    /// Bytes of all inputs.
    pub all_bytes: u64,
    /// The receipt of the whole job, when it is done.
    pub receipt: Option<Receipt>,
}

/// A request of a node to a client that serves files, on a stream that the node opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientFileRequest {
    /// Describe the input of this index: the answer is a [`ClientFile`].
    Look(usize),
    /// Read bytes of an input.
    Read {
        /// The index of the input.
        file: usize,
        /// The first byte.
        at: u64,
        /// The number of bytes. Fewer are returned at the end of the file.
        bytes: u64,
    },
    /// The bytes after this message belong to the output.
    Write {
        /// The attempt whose output it is.
        attempt: u32,
        /// The offset of the first byte.
        at: u64,
    },
}

/// A file that a client serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientFile {
    /// Bytes.
    pub bytes: u64,
    /// The device that holds it.
    pub device: u64,
    /// Its inode number on that device.
    pub inode: u64,
    /// When its contents last changed, in nanoseconds of the client's clock.
    pub modified_ns: i64,
}

/// Bytes that do not fill a sector, and their offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// The offset in the file.
    pub at: u64,
    /// The bytes.
    #[serde(with = "hex::bytes")]
    pub bytes: Vec<u8>,
}

/// The first or last record of a piece, shortened if it is long.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PieceEnd {
    /// The record, if it is short enough to keep.
    #[serde(with = "hex::bytes")]
    pub record: Vec<u8>,
    /// For a longer record, the first bytes of its key's normal form and a hash.
    pub long: Option<LongEnd>,
}

/// The shortened form of a long record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LongEnd {
    /// The first bytes of its key's normal form.
    #[serde(with = "hex::bytes")]
    pub normal: Vec<u8>,
    /// The hash of the whole normal form.
    #[serde(with = "hex")]
    pub hash: u128,
}

/// The result of one participant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ParticipantEnd {
    /// Proof of what it put into the river.
    pub input: Proof,
    /// Proof of what it wrote.
    pub output: Proof,
    /// Proof of what `--unique` dropped.
    pub dropped: Proof,
    /// The first and the last record that it wrote.
    pub ends: [PieceEnd; 2],
    /// The bytes of its range that do not fill a sector.
    pub edges: Vec<Edge>,
    /// Its entry in the receipt.
    pub node: NodeReceipt,
    /// What each of its stages moved and waited for. The seconds are in its entry.
    #[serde(default)]
    pub stages: Vec<Stage>,
    /// How it moved bytes.
    pub io: IoReceipt,
}

/// What one of several nodes did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeReceipt {
    /// The host.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Records and bytes that it read.
    pub input: (u64, u64),
    /// Records and bytes that it wrote.
    pub output: (u64, u64),
    /// Bytes of frames that it sent to other nodes and received from them, on all its links in that time.
    pub link_bytes: (u64, u64),
    /// Seconds until its sample was taken, until its range had arrived, and until everything was written.
    pub seconds: [f64; 3],
    /// CPU seconds of its process in that time.
    pub cpu_seconds: f64,
    /// Memory that its part of the job had.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The peak memory of its process.
    pub peak_bytes: u64,
    /// Anonymous memory of its process in huge pages when all was written.
    #[serde(default)]
    pub huge_page_bytes: u64,
    /// The most scratch space in use at once.
    pub scratch_peak_bytes: u64,
    /// Bytes of its inputs that were read for a sample.
    #[serde(default)]
    pub sampled_bytes: u64,
    /// The inputs of its join, and what it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sides: Option<Sides>,
    /// The parts that it wrote, if the output is in parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartReceipt>,
}
