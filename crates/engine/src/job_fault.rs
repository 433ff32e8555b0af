//! Requests that nodes refuse, and what goes wrong in a job on several nodes.

use std::path::PathBuf;

use thalweg_base::units::Bytes;

use crate::Endpoint;

/// Why nodes, mostly those of a cluster, refuse a request. Nothing was touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskedOfCluster {
    /// This verb was given an option to resume, to skip proofs or to choose the I/O back end.
    #[error("a {0} on the nodes of a cluster cannot resume, go without proofs or choose its I/O back end")]
    Options(&'static str),
    /// A job has options that this node does not know: their names.
    #[error("this node is older than the client and does not know {0}; upgrade it, or leave that out")]
    NotKnown(String),
    /// A check was given an option to merge summaries or to choose the I/O back end.
    #[error("a check on the nodes of a cluster cannot merge summaries or choose its I/O back end")]
    CheckOptions,
    /// This verb was given no input.
    #[error("say what the nodes are to {0}: files, or nodes:FILES")]
    NoInput(&'static str),
    /// Some inputs, but not all, begin with this prefix.
    #[error("either all inputs have {0} before their names, or none has")]
    SomeInputs(&'static str),
    /// A check was given what nodes cannot read.
    #[error(
        "nodes check files that all of them see, those of their own, with nodes: before every name, files of a volume, \
         and tables; check '{0}' without --cluster"
    )]
    CheckedFile(Endpoint),
    /// A prefix without the name of a file.
    #[error("{0} comes before the name of a file")]
    NoName(Endpoint),
    /// Standard input or output.
    #[error("nodes read and write files, and '-' is a stream of this process")]
    Standard,
    /// An endpoint that is not a file of nodes.
    #[error("nodes read and write files, and '{0}' is none")]
    NotAFile(Endpoint),
    /// A partition was to write its parts to the client.
    #[error(
        "parts are written where nodes are; name them as all nodes see them, or with nodes:, and pump them here"
    )]
    ClientParts,
    /// Inputs in several volumes, or some in a volume and some not.
    #[error("either all inputs are in one volume, or none is in a volume")]
    VolumeInputs,
    /// Parts, or a file for each node, were to be written to a volume.
    #[error("nodes write one file together in a volume; write parts with nodes:, and pump them into it")]
    VolumeParts,
    /// A volume of this name is not on this cluster.
    #[error("volume {0} is not on the nodes of cluster {1}, so they cannot open it; do it without --cluster")]
    OtherVolume(String, String),
    /// A plan was requested for files in a volume, or for tables.
    #[error(
        "nobody has measured how fast files of a volume, or tables, come to the nodes; plan for files that nodes have"
    )]
    VolumePlan,
    /// A client was to leave a job that writes to a volume.
    #[error("the client names what nodes write to a volume, so it has to stay; do it without --detach")]
    VolumeLeaves,
    /// A plan was requested for files of the client.
    #[error(
        "nobody has measured how fast a client's files come to the nodes or go back; plan for files that nodes have"
    )]
    ClientPlan,
    /// A job that reads or writes files of its client was to run without the client.
    #[error(
        "a client whose files the nodes read or write has to stay; wait for the end, or pump the files to the nodes"
    )]
    ClientLeaves,
    /// A file of the client that cannot be read twice.
    #[error("{} is no file that nodes could read twice", .0.display())]
    ClientStream(PathBuf),
    /// A limit of scratch space in percent.
    #[error("the scratch limit of a cluster's nodes is in bytes")]
    ScratchPercent,
    /// A pattern that is not text.
    #[error("{} is no text, and a pattern must be", .0.display())]
    PatternNotText(PathBuf),
    /// A pattern that cannot be parsed, and why.
    #[error("{} is no pattern: {}", .0.display(), .1)]
    BadPattern(PathBuf, String),
    /// A pattern that no file matches.
    #[error("nothing matches {}; check the name", .0.display())]
    NoMatch(PathBuf),
}

/// What went wrong in a job on several nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobFault {
    /// Split points that cannot divide the ranges.
    #[error("{count} split points cannot divide {ranges} ranges")]
    SplitPoints {
        /// How many arrived.
        count: usize,
        /// How many ranges there are.
        ranges: usize,
    },
    /// This many bytes cannot be decoded to split points.
    #[error("no split points can be decoded from {0} bytes")]
    Packed(usize),
    /// The number of inputs is not that of the job.
    #[error("{came} inputs were described, and there are {expected}")]
    Inputs {
        /// How many arrived.
        came: usize,
        /// How many there are.
        expected: usize,
    },
    /// The pages of an input are not dealt to the nodes as they should be.
    #[error("{pages} pages cannot be dealt to {nodes} nodes as {dealt:?}")]
    Pages {
        /// How many pages there are.
        pages: u64,
        /// How many nodes there are.
        nodes: usize,
        /// How many pages each gets.
        dealt: Vec<u64>,
    },
    /// The nodes' descriptions of their inputs do not agree, or a node samples inputs that have no page.
    #[error("the nodes' descriptions of their inputs do not agree")]
    Described,
    /// No file was made for all nodes to write to.
    #[error("no file was made for all nodes to write to")]
    NoSharedOutput,
    /// A path that cannot be decoded.
    #[error("'{0}' is no path")]
    Path(String),
    /// A place that does not exist among this many nodes.
    #[error("there is no place {0} among {1} nodes")]
    Place(usize, usize),
    /// A lost range is to be sorted, but nothing of the previous attempt is left.
    #[error("nothing of the attempt before is left")]
    NothingKept,
    /// The stream to the coordinator was given up.
    #[error("the stream was given up")]
    GivenUp,
    /// The job was cancelled on this node.
    #[error("{0}")]
    Cancelled(String),
    /// These two nodes see different inputs under the same names.
    #[error(
        "{0} and {1} do not see the same files; give what each has as nodes:FILES, what only you have as \
         client:FILES"
    )]
    DifferentInputs(String, String),
    /// These hosts cannot be reached: a line for each.
    #[error("{}", .0.join("; "))]
    Unreached(Vec<String>),
    /// An attempt failed and no other may follow; and what became of the outputs, if known.
    #[error("{}{}", .0, .1.map_or(String::new(), |outputs| format!("; {outputs}")))]
    Failed(String, Option<&'static str>),
    /// The last attempt that a job is allowed has failed.
    #[error("{last}; that was attempt {max}, and the last")]
    Attempts {
        /// Why it failed.
        last: String,
        /// The most attempts that are allowed.
        max: usize,
    },
    /// Outputs that cannot get their final names: a line for each.
    #[error("{}", .0.join("; "))]
    Unnamed(Vec<String>),
    /// An output that was ready is no longer at its temporary name.
    #[error("{} is gone", .0.display())]
    OutputGone(PathBuf),
    /// A complete output did not get its final name.
    #[error(
        "{}; the output is whole, at {}",
        .why.as_ref().map_or_else(
            || format!("{} has changed since the output was ready", .name.display()),
            ToString::to_string
        ),
        .hidden.display()
    )]
    NotNamed {
        /// The name.
        name: PathBuf,
        /// Where the output is.
        hidden: PathBuf,
        /// The system's error; `None` if the file of that name has changed.
        why: Option<thalweg_io::Error>,
    },
    /// The coordinator cannot take part in the vote on an attempt, for this reason.
    #[error("{0}")]
    Vote(String),
    /// The system has no thread left to do this.
    #[error("no thread to {0} with: {1}")]
    Thread(&'static str, std::io::Error),
    /// No more messages can arrive from any node.
    #[error("no node is heard any more")]
    Silence,
    /// This host ended a stream before it had sent everything.
    #[error("{0} said nothing more")]
    Ended(String),
    /// This host is being measured.
    #[error("it is being measured already; try again when that has ended")]
    Measuring,
    /// This node already runs the maximum number of checks.
    #[error("this node already runs {0} checks, the maximum; wait for one to end")]
    ChecksMax(usize),
    /// A first or last record that is too long for nodes to compare.
    #[error(
        "its first or last record has {}, and {} is the most that nodes compare; check its files there, with exec",
        Bytes(*.bytes), Bytes(*.max)
    )]
    LongEnd {
        /// Its bytes.
        bytes: u64,
        /// The most it may have.
        max: u64,
    },
    /// The result of a node's check is impossible.
    #[error("the result of {host}'s check is impossible: {why}")]
    Check {
        /// The node.
        host: String,
        /// What is wrong with it.
        why: String,
    },
}
