//! How fast nodes are, what a sort on them will do, and what they are asked to measure.

use serde::{Deserialize, Serialize};

use crate::Hardware;

/// How fast one node is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRates {
    /// Its disk and its cores.
    pub hardware: Hardware,
    /// Memory that was available then.
    pub memory_bytes: u64,
    /// Bytes per second that it sends to another node while as much comes; 0 if there was no other.
    pub send_bytes_per_second: f64,
    /// Bytes per second that it receives while as much goes; 0 if there was no other.
    pub receive_bytes_per_second: f64,
    /// Bytes per second between the first half of the hosts and the others, each way, if that is less than what all
    /// their links carry.
    pub trunk_bytes_per_second: Option<f64>,
}

/// What a node is asked about its rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ProbeRequest {
    /// Those that it keeps. Answered with [`ProbeSaid::Rates`].
    Kept,
    /// Measure the disk now. Answered with [`ProbeSaid::Rates`], of which cores are assumed and links are 0.
    Disk {
        /// Whether to take its time.
        thorough: bool,
    },
    /// Measure the cores now. Answered with [`ProbeSaid::Rates`], of which disks are assumed and links are 0.
    Cores,
    /// Send to this host for so long, and say what arrived. Answered with [`ProbeSaid::Sent`].
    Send {
        /// The host.
        to: String,
        /// How long.
        milliseconds: u64,
    },
    /// Take what comes on this stream. Answered with [`ProbeSaid::Sent`].
    Take,
    /// Keep these from now on. Answered with [`ProbeSaid::Rates`].
    Keep(NodeRates),
    /// Take part in an exchange. One byte is said when the node is ready, one to it for each round, and one by it when
    /// that round is over.
    Exchange(ExchangeAsk),
    /// Take what comes on this stream in each round, and say one byte when it is all there.
    TakeRounds {
        /// Bytes of a round.
        bytes: u64,
        /// How many rounds.
        rounds: u32,
    },
}

/// An exchange, as one node is asked to take part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeAsk {
    /// The hosts.
    pub hosts: Vec<String>,
    /// Which of them is asked.
    pub index: usize,
    /// Bytes that each sends to each other in a round.
    pub bytes: u64,
    /// How many rounds.
    pub rounds: u32,
    /// In which order.
    pub schedule: Schedule,
}

/// The order in which a node sends to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// To all at once.
    Together,
    /// To one after the other, everybody from the first host on.
    Same,
    /// To one after the other, from the host behind its own on.
    Shifted,
    /// As shifted, and to the next only when one has everything.
    Paced,
}

/// How long an exchange took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExchangeReport {
    /// The hosts, in the order of the cluster file.
    pub hosts: Vec<String>,
    /// Bytes that each sent to each other in a round.
    pub bytes: u64,
    /// In which order.
    pub schedule: Schedule,
    /// Wall-clock seconds of each round, as whoever asked saw it.
    pub seconds: Vec<f64>,
}

/// What a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ProbeSaid {
    /// Its rates, if it has any.
    Rates(Option<NodeRates>),
    /// So many bytes arrived behind the first block, and so long after it the last of them.
    Sent {
        /// Bytes.
        bytes: u64,
        /// Seconds.
        seconds: f64,
    },
}

/// What was measured of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<ProbedHost>,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
}

/// What was measured of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbedHost {
    /// The host.
    pub host: String,
    /// Its rates.
    pub rates: NodeRates,
}

/// Where the rates of a plan come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RatesFrom {
    /// All nodes keep those that `cluster probe` measured.
    Probe,
    /// They were measured in short for this plan.
    Now,
    /// They were typed.
    Simulated,
}

/// What a sort on several nodes will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterPlan {
    /// One for each node, in the order of their ranges.
    pub nodes: Vec<NodePlan>,
    /// Where their rates come from.
    pub rates_from: RatesFrom,
    /// Input bytes of all nodes.
    pub input_bytes: u64,
    /// Bytes of a record; of lines, what they are taken for.
    pub record_bytes: u32,
    /// How often every byte that does not fit is read: 1 if all fits.
    pub passes: u32,
    /// Bytes per second between the halves of the hosts, if that is less than what their links carry.
    pub trunk_bytes_per_second: Option<f64>,
    /// Stages in order, of the names that the receipt uses.
    pub stages: Vec<ClusterStage>,
    /// Seconds of all stages.
    pub seconds: f64,
    /// The stage that takes most of the time, and what limits it.
    pub bottleneck: String,
}

/// What a node of several is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    /// It reads, and has hardly a range.
    Io,
    /// It has a range, and reads hardly anything.
    Sort,
    /// It reads, and has a range.
    Both,
    /// It does hardly anything.
    Spare,
}

/// What one node of several will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodePlan {
    /// The host.
    pub host: String,
    /// What it is for.
    pub role: NodeRole,
    /// How fast it is.
    pub rates: NodeRates,
    /// Bytes of the inputs that it reads.
    pub read_bytes: u64,
    /// Bytes of its range.
    pub range_bytes: u64,
    /// Memory of its share.
    pub memory_bytes: u64,
    /// Bytes of its range that do not fit in memory.
    pub spilled_bytes: u64,
}

/// One stage of a sort on several nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStage {
    /// The stage's name; the receipt uses the same.
    pub name: String,
    /// Bytes that all disks read.
    pub read_bytes: u64,
    /// Bytes that go from node to node.
    pub crossing_bytes: u64,
    /// Bytes that all disks write.
    pub written_bytes: u64,
    /// Seconds it should take.
    pub seconds: f64,
    /// What limits it: `n3's disk`, `all disks`, `all links`, `trunk` and so on.
    pub bottleneck: String,
}
