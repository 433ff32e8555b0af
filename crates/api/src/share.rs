//! What is said about a sort on several nodes, between whoever coordinates it and each node.
//!
//! ```text
//! coordinator:  Sort(SortJob)  Told::Attempt         Told::Sample           Told::Go             Told::Start   Told::Ready   Told::Publish   Told::End
//! node:                                   Said::Found            Said::Sampled       Said::Range    Said::Done   Said::Ready     Said::Published
//! ```
//!
//! After [`ShareSaid::Failed`] of any node, or when it misses one, the coordinator tells all [`ShareTold::Stop`], which
//! each answers with [`ShareSaid::Stopped`]; then comes another attempt, or the end. Everything that grows with the data
//! goes behind a message: samples and cuts.

use serde::{Deserialize, Serialize};

use crate::{
    AttemptId, IoReceipt, JobState, NodeRates, PartReceipt, PartitionPick, Proof, ReadyFile, Receipt, Sides,
    Stage, hex,
};

/// What nodes do with the records that a river brings them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Work {
    /// Each puts its range in order.
    #[default]
    Sort,
    /// The same; every input has to be in order as it is.
    Merge,
    /// All get a random place, which is the same for the same seed and inputs on any number of nodes.
    Shuffle(u64),
    /// Each matches the records of two inputs that have keys of its range.
    Join,
    /// Each writes its share of so many parts.
    Partition {
        /// Which part a record belongs to.
        pick: PartitionPick,
        /// How many there are.
        parts: usize,
        /// Whether records of equal keys may go to several parts.
        split_keys: bool,
    },
}

impl Work {
    /// The verb.
    pub fn verb(&self) -> &'static str {
        match self {
            Work::Sort => "sort",
            Work::Merge => "merge",
            Work::Shuffle(_) => "shuffle",
            Work::Join => "join",
            Work::Partition { .. } => "partition",
        }
    }

    /// Bytes of what is made of so many, as far as that is known: how much a join makes nobody knows.
    pub fn output_bytes(&self, input_bytes: u64) -> u64 {
        if *self == Work::Join { 0 } else { input_bytes }
    }

    /// What its last stage is called.
    pub fn last_stage(&self) -> &'static str {
        match self {
            Work::Sort | Work::Merge | Work::Shuffle(_) => "sort+write",
            Work::Join => "join+write",
            Work::Partition { .. } => "write",
        }
    }
}

/// Which records a join gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinKind {
    /// A left record with each right record of its key.
    #[default]
    Inner,
    /// These, and left records without a right one.
    Left,
    /// Left records without a right one.
    Anti,
}

impl JoinKind {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            JoinKind::Inner => "inner",
            JoinKind::Left => "left",
            JoinKind::Anti => "anti",
        }
    }
}

/// What is said of a join beside what is said of its left side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinAsk {
    /// The inputs of the right side, as those of the left one.
    pub inputs: Vec<String>,
    /// Bytes of a right record; none means lines.
    pub record: Option<u32>,
    /// Whether records begin with their length; then there is no `record`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefixed: bool,
    /// The parts of its key.
    pub keys: Vec<(u32, u32, bool)>,
    /// Which records to give.
    pub kind: JoinKind,
    /// What stands between the parts of a line.
    #[serde(with = "hex::bytes")]
    pub between: Vec<u8>,
}

/// What is sorted, and how, by whichever nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SortAsk {
    /// What is done with the records.
    #[serde(default)]
    pub work: Work,
    /// The inputs, as words with escapes. If they are the nodes' own, patterns as in a shell.
    pub inputs: Vec<String>,
    /// Whether each node has inputs of its own; else all have the same.
    pub own_inputs: bool,
    /// Whether the inputs are the client's, who lends them to all nodes.
    #[serde(default)]
    pub lent_inputs: bool,
    /// The output, as a word with escapes.
    pub output: String,
    /// Whether each node has an output of its own, the part of its range; else all write to the same.
    pub own_output: bool,
    /// Whether the output is the client's, who lends it to all nodes to write to.
    #[serde(default)]
    pub lent_output: bool,
    /// Bytes of a record; none means lines.
    pub record: Option<u32>,
    /// Whether records begin with their length; then there is no `record`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefixed: bool,
    /// The parts of the key: offset, length, and whether it sorts downwards.
    pub keys: Vec<(u32, u32, bool)>,
    /// Keep only the first of records with equal keys.
    pub unique: bool,
    /// Memory of each node, if it was said.
    pub memory_bytes: Option<u64>,
    /// The same as percent of what each node has available.
    #[serde(default)]
    pub memory_percent: Option<f64>,
    /// Directories for what does not fit, as words with escapes.
    pub scratch: Vec<String>,
    /// The most scratch space of each node, in bytes.
    pub scratch_limit: Option<u64>,
    /// Lanes of each node's sort.
    pub threads: Option<usize>,
    /// Whether all nodes have equal shares, however fast they are.
    #[serde(default)]
    pub equal: bool,
    /// The right side, if there is one.
    #[serde(default)]
    pub join: Option<JoinAsk>,
}

impl SortAsk {
    /// Whether the client lends something, and so has to stay.
    pub fn lends(&self) -> bool {
        self.lent_inputs || self.lent_output
    }

    /// Whether all write to a file that one of them makes.
    pub fn writes_shared(&self) -> bool {
        !self.writes_own() && !self.lent_output
    }

    /// Whether each node writes files of its own: its range, or its parts.
    pub fn writes_own(&self) -> bool {
        self.own_output || matches!(self.work, Work::Partition { .. })
    }
}

/// A sort as a job, as whoever coordinates it offers it to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SortJob {
    /// The job's id: 32 hexadecimal digits.
    pub job: String,
    /// Who asked for it.
    pub by: String,
    /// What is asked for.
    pub ask: SortAsk,
    /// The hosts that are to take part, in the order of their ranges.
    pub hosts: Vec<String>,
    /// The host whose node coordinates it, if it goes on without the client.
    pub coordinator: Option<String>,
    /// Why each attempt before came to nothing.
    pub failed: Vec<String>,
    /// What attempts before wrote to, as words with escapes: nobody may give these files a name any more.
    pub lost: Vec<String>,
}

/// An attempt, as one node has part in it. The number is that of the attempts that failed, and one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SortAttempt {
    /// The hosts that take part, in the order of their ranges.
    pub hosts: Vec<String>,
    /// Which of them is told.
    pub index: usize,
    /// As in [`SortJob`].
    pub failed: Vec<String>,
    /// As in [`SortJob`].
    pub lost: Vec<String>,
    /// The range that is to be sorted, if it is that of a node that was lost when all others had theirs: what they wrote
    /// stays, and gets its name with what this attempt writes.
    pub range: Option<LostRange>,
    /// Whose hosts decide what becomes of it, if it goes on without its client.
    pub vote: Option<AttemptId>,
}

/// The keys behind one bound and up to another; all where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostRange {
    /// The bound that they are behind.
    pub low: Option<KeyBound>,
    /// The bound that they go up to.
    pub high: Option<KeyBound>,
}

/// Where a range of keys ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyBound {
    /// The key in its normal form.
    #[serde(with = "hex::bytes")]
    pub key: Vec<u8>,
    /// Of equal keys, the origin of the last one before it.
    pub origin: u64,
}

impl SortAttempt {
    /// Which attempt it is, from 1.
    pub fn number(&self) -> u32 {
        self.failed.len() as u32 + 1
    }
}

/// What a node is told then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ShareTold {
    /// Begin an attempt.
    Attempt(SortAttempt),
    /// Sample the node's part of inputs that have so many bytes in all.
    Sample {
        /// Bytes of the inputs of the nodes before it, if each has its own.
        before_bytes: u64,
        /// Memory of the node that has least: rivers are laid out for that.
        least_bytes: u64,
        /// Bytes of all inputs.
        all_bytes: u64,
    },
    /// Sort, with the cuts that follow, and behind them a sample of the node's range, if that may be of use.
    Go {
        /// For each side, pages of each node's inputs; of what all have, those that each reads.
        pages: Vec<Vec<u64>>,
        /// Bytes that the node's range should have.
        range_bytes: u64,
        /// The file that all write to, under the name that it has meanwhile.
        shared: Option<String>,
        /// How much of what follows are the cuts.
        cuts_bytes: u64,
    },
    /// The node's range begins here in the output that is shared.
    Start(u64),
    /// All have written: make your outputs whole and durable, so that only their names are missing, and say so.
    Ready {
        /// Bytes of the file.
        bytes: u64,
        /// What is no whole sector of the node's range, or of any node's if all write to one file.
        edges: Vec<Edge>,
    },
    /// The attempt is committed: give your outputs their names, if you are a client's and have not done so.
    Publish,
    /// This attempt comes to nothing: leave nothing of it, and say so.
    Stop,
    /// The job has ended.
    End(Box<SortEnd>),
    /// It was none, but a question: nobody need remember it.
    Forget,
}

/// How a sort on several nodes ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SortEnd {
    /// Done, failed or cancelled.
    pub state: JobState,
    /// Why, if it is not done.
    pub why: Option<String>,
    /// The receipt, if it is.
    pub receipt: Option<Receipt>,
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ShareSaid {
    /// What it found.
    Found {
        /// Bytes of its inputs.
        input_bytes: u64,
        /// What it takes for memory.
        memory_bytes: u64,
        /// How fast it is, if it keeps that.
        #[serde(default)]
        rates: Option<NodeRates>,
    },
    /// A sample follows.
    Sampled {
        /// For each side, pages of its inputs, and bytes of each.
        pages: Vec<(u64, u64)>,
        /// The file that all are to write to, if it is the one who made it.
        shared: Option<String>,
    },
    /// So many bytes of its inputs have gone into the river, and so many of its range have been written.
    Progress(u64, u64),
    /// Its range has so many bytes.
    Range(u64),
    /// All is written, and nothing has its name yet.
    Done(Box<ShareEnd>),
    /// Its outputs lack only their names; and the one that all write to, if it made that.
    Ready(Option<ReadyFile>),
    /// Its outputs have their names, but for those of these lines, which say where they lie.
    Published(Vec<String>),
    /// Its share came to nothing.
    Failed {
        /// What kind of thing it was.
        trouble: Trouble,
        /// In one line.
        why: String,
    },
    /// Nothing is left of the attempt that was stopped.
    Stopped,
}

/// Why a share came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Trouble {
    /// The node misses another, perhaps the one of this place, which knows why.
    Follows(Option<usize>),
    /// There is no room on a disk of the node.
    Full,
    /// Somebody cancelled the job there.
    Cancelled,
    /// The node goes down.
    Leaves,
    /// Anything else, which another attempt would meet again.
    Asked,
}

/// A sort that goes on without its client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detached {
    /// The job's id.
    pub job: String,
    /// The host whose node coordinates it.
    pub coordinator: String,
}

/// How far a node is with its share of a sort.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShareView {
    /// The host whose node coordinates it, if it goes on without its client.
    pub coordinator: Option<String>,
    /// The hosts of this attempt.
    pub hosts: Vec<String>,
    /// Why each attempt before came to nothing.
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
    /// What all of it did, when it is done.
    pub receipt: Option<Receipt>,
}

/// What a node asks a client that lends its files, on a stream that it opens to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LentAsk {
    /// What is known of the file of this place among the inputs: a [`LentFile`].
    Look(usize),
    /// Bytes of it.
    Read {
        /// Its place.
        file: usize,
        /// The first byte.
        at: u64,
        /// How many; fewer come where it ends.
        bytes: u64,
    },
    /// What goes behind this belongs to the output.
    Write {
        /// The attempt whose output it is.
        attempt: u32,
        /// Where its first byte goes.
        at: u64,
    },
}

/// What is known of a file that is lent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LentFile {
    /// Bytes.
    pub bytes: u64,
    /// The device that holds it.
    pub device: u64,
    /// Its number on that device.
    pub inode: u64,
    /// When its contents last changed, in nanoseconds of the client's clock.
    pub modified_ns: i64,
}

/// Bytes that are no whole sector, and where they belong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Where in the file.
    pub at: u64,
    /// The bytes.
    #[serde(with = "hex::bytes")]
    pub bytes: Vec<u8>,
}

/// The first or the last record of a piece, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceEnd {
    /// The record, if all of it is kept.
    #[serde(with = "hex::bytes")]
    pub record: Vec<u8>,
    /// Of a longer one, the first bytes of its key's normal form, and the record's hash.
    pub long: Option<LongEnd>,
}

/// What is kept of a long record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongEnd {
    /// The first bytes of its key's normal form.
    #[serde(with = "hex::bytes")]
    pub normal: Vec<u8>,
    /// The hash of all of that form.
    #[serde(with = "hex")]
    pub hash: u128,
}

/// What a node did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareEnd {
    /// What it put into the river.
    pub input: Proof,
    /// What it wrote.
    pub output: Proof,
    /// What `--unique` dropped.
    pub dropped: Proof,
    /// The first and the last record that it wrote.
    pub ends: [PieceEnd; 2],
    /// What of its range is no whole sector.
    pub edges: Vec<Edge>,
    /// What it did, for the receipt.
    pub node: NodeShare,
    /// What each of its stages moved and waited for, without seconds: those are the node's.
    #[serde(default)]
    pub stages: Vec<Stage>,
    /// How it moved bytes.
    pub io: IoReceipt,
}

/// What one node of several did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeShare {
    /// The host.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Records and bytes that it read.
    pub input: (u64, u64),
    /// Records and bytes that it wrote.
    pub output: (u64, u64),
    /// Bytes that it sent to other nodes, and that it received, as frames; of all its links meanwhile.
    pub link_bytes: (u64, u64),
    /// Seconds until its sample was taken, until its range had come, and until all was written.
    pub seconds: [f64; 3],
    /// CPU seconds of its process meanwhile.
    pub cpu_seconds: f64,
    /// Memory that its share had.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The most memory that its process ever had.
    pub peak_bytes: u64,
    /// Anonymous memory of its process in huge pages when all was written.
    #[serde(default)]
    pub huge_page_bytes: u64,
    /// The most scratch space in use at once.
    pub scratch_peak_bytes: u64,
    /// Bytes of its inputs that were read for a sample.
    #[serde(default)]
    pub sampled_bytes: u64,
    /// What went into its join, and what it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sides: Option<Sides>,
    /// The parts that it wrote, if there are to be parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartReceipt>,
}
