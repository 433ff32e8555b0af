//! What cannot be asked of nodes, and what goes wrong in a job on several nodes.

use std::fmt;
use std::path::PathBuf;

use thalweg_base::units::Bytes;

use crate::Endpoint;

/// Why nodes, mostly those of a cluster, refuse what they were asked. Nothing was touched.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskedOfCluster {
    /// This verb was to resume, to go without proofs or to use a certain I/O back end.
    Options(&'static str),
    /// A check was to merge summaries or to use a certain I/O back end.
    CheckOptions,
    /// This verb was given no input.
    NoInput(&'static str),
    /// Some inputs, but not all, begin with this prefix.
    SomeInputs(&'static str),
    /// A check was given a file that is not one of the nodes' own.
    CheckedFile(Endpoint),
    /// A prefix without the name of a file.
    NoName(Endpoint),
    /// Standard input or output.
    Standard,
    /// An end that is not a file of nodes.
    NotAFile(Endpoint),
    /// Parts were to be written to the client.
    ClientParts,
    /// A plan for files of the client.
    ClientPlan,
    /// A client was to leave a job that reads or writes its files.
    ClientLeaves,
    /// A file of the client that cannot be read twice.
    ClientStream(PathBuf),
    /// A limit of scratch space in percent.
    ScratchPercent,
    /// A pattern that is not text.
    PatternNotText(PathBuf),
    /// A pattern that cannot be understood, and why.
    BadPattern(PathBuf, String),
    /// A pattern that no file matches.
    NoMatch(PathBuf),
}

impl fmt::Display for AskedOfCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use AskedOfCluster::*;
        match self {
            Options(verb) => write!(
                f,
                "a {verb} on the nodes of a cluster cannot resume, go without proofs or choose its I/O back end"
            ),
            CheckOptions => f.write_str(
                "a check on the nodes of a cluster cannot merge summaries or choose its I/O back end",
            ),
            NoInput(verb) => write!(f, "say what the nodes are to {verb}: files, or nodes:FILES"),
            SomeInputs(prefix) => {
                write!(f, "either all inputs have {prefix} before their names, or none has")
            }
            CheckedFile(end) => write!(
                f,
                "'{end}' is not a file of the nodes' own, which they check with nodes: before every name; check other \
                 files without"
            ),
            NoName(end) => write!(f, "{end} comes before the name of a file"),
            Standard => f.write_str("nodes read and write files, and '-' is a stream of this process"),
            NotAFile(end @ Endpoint::Volume(_)) => write!(
                f,
                "nodes of a cluster read and write no files of volumes yet, as '{end}' is one; do it on this machine"
            ),
            NotAFile(end) => write!(f, "nodes read and write files, and '{end}' is none"),
            ClientParts => f.write_str(
                "parts are written where nodes are; name them as all nodes see them, or with nodes:, and pump them here",
            ),
            ClientPlan => f.write_str(
                "nobody has measured how fast a client's files come to the nodes or go back; plan for files that nodes \
                 have",
            ),
            ClientLeaves => f.write_str(
                "a client whose files the nodes read or write has to stay; wait for the end, or pump the files to the \
                 nodes",
            ),
            ClientStream(path) => write!(f, "{} is no file that nodes could read twice", path.display()),
            ScratchPercent => f.write_str("the scratch limit of a cluster's nodes is in bytes"),
            PatternNotText(path) => write!(f, "{} is no text, and a pattern must be", path.display()),
            BadPattern(path, why) => write!(f, "{} is no pattern: {why}", path.display()),
            NoMatch(path) => write!(f, "nothing matches {}; check the name", path.display()),
        }
    }
}

/// What went wrong in a job on several nodes.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobFault {
    /// Split points that cannot divide the ranges.
    SplitPoints {
        /// How many came.
        count: usize,
        /// How many ranges there are.
        ranges: usize,
    },
    /// Split points that cannot be decoded, in so many bytes.
    Packed(usize),
    /// Another number of inputs than the job has.
    Inputs {
        /// How many came.
        came: usize,
        /// How many there are.
        expected: usize,
    },
    /// The pages of an input are not dealt to the nodes as they should be.
    Pages {
        /// How many pages there are.
        pages: u64,
        /// How many nodes there are.
        nodes: usize,
        /// How many pages each gets.
        dealt: Vec<u64>,
    },
    /// Nodes describe their inputs in ways that do not agree, or a node samples inputs that have no page.
    Described,
    /// No file was made for all nodes to write to.
    NoSharedOutput,
    /// A path that cannot be decoded.
    Path(String),
    /// A place among so many nodes that there is not.
    Place(usize, usize),
    /// A lost range is to be sorted, and nothing of the attempt before is left.
    NothingKept,
    /// The stream to the coordinator was given up.
    GivenUp,
    /// The job was cancelled on this node.
    Cancelled(String),
    /// These two nodes see different inputs under the same names.
    DifferentInputs(String, String),
    /// These hosts cannot be reached: a line for each.
    Unreached(Vec<String>),
    /// An attempt failed that may not be followed by another, and what became of the outputs, where that is known.
    Failed(String, Option<&'static str>),
    /// The last attempt that a job may have failed.
    Attempts {
        /// Why.
        last: String,
        /// How many there may be.
        max: usize,
    },
    /// Outputs that cannot have their names: a line for each.
    Unnamed(Vec<String>),
    /// The coordinator cannot take part in the vote on an attempt, for this reason.
    Vote(String),
    /// The system has no thread left to do this.
    Thread(&'static str, std::io::Error),
    /// No node is heard any more.
    Silence,
    /// This host ended a stream before it had said all.
    Ended(String),
    /// This node runs as many checks as it may.
    ChecksMax(usize),
    /// A first or last record that is too long for nodes to compare.
    LongEnd {
        /// Its bytes.
        bytes: u64,
        /// The most it may have.
        max: u64,
    },
    /// The result of a node's check.
    Check {
        /// The node.
        host: String,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for JobFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobFault::SplitPoints { count, ranges } => {
                write!(f, "{count} split points cannot divide {ranges} ranges")
            }
            JobFault::Packed(bytes) => write!(f, "no split points can be decoded from {bytes} bytes"),
            JobFault::Inputs { came, expected } => {
                write!(f, "{came} inputs were described, and there are {expected}")
            }
            JobFault::Pages { pages, nodes, dealt } => {
                write!(f, "{pages} pages cannot be dealt to {nodes} nodes as {dealt:?}")
            }
            JobFault::Described => f.write_str("the nodes' descriptions of their inputs do not agree"),
            JobFault::NoSharedOutput => f.write_str("no file was made for all nodes to write to"),
            JobFault::Path(word) => write!(f, "'{word}' is no path"),
            JobFault::Place(place, nodes) => write!(f, "there is no place {place} among {nodes} nodes"),
            JobFault::NothingKept => f.write_str("nothing of the attempt before is left"),
            JobFault::GivenUp => f.write_str("the stream was given up"),
            JobFault::Cancelled(why) | JobFault::Vote(why) => f.write_str(why),
            JobFault::DifferentInputs(one, other) => write!(
                f,
                "{one} and {other} do not see the same files; give what each has as nodes:FILES, what only you have as \
                 client:FILES"
            ),
            JobFault::Unreached(lines) | JobFault::Unnamed(lines) => f.write_str(&lines.join("; ")),
            JobFault::Failed(why, None) => f.write_str(why),
            JobFault::Failed(why, Some(outputs)) => write!(f, "{why}; {outputs}"),
            JobFault::Attempts { last, max } => {
                write!(f, "{last}; that was attempt {max}, and the last")
            }
            JobFault::Thread(what, why) => write!(f, "no thread to {what} with: {why}"),
            JobFault::Silence => f.write_str("no node is heard any more"),
            JobFault::Ended(host) => write!(f, "{host} said nothing more"),
            JobFault::ChecksMax(max) => {
                write!(f, "this node already runs {max} checks, the maximum; wait for one to end")
            }
            JobFault::LongEnd { bytes, max } => write!(
                f,
                "its first or last record has {}, and {} is the most that nodes compare; check its files there, with exec",
                Bytes(*bytes),
                Bytes(*max)
            ),
            JobFault::Check { host, why } => write!(f, "the result of {host}'s check is impossible: {why}"),
        }
    }
}
