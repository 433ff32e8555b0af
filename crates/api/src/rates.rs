//! Rates of nodes, the plan of a job on them, and requests to measure.

use serde::{Deserialize, Serialize};

use crate::Hardware;

/// The rates of one node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NodeRates {
    /// Its disk and its cores.
    pub hardware: Hardware,
    /// Memory that was available at the time.
    pub memory_bytes: u64,
    /// Bytes per second that it sends to another node while it receives as much; 0 if there was no other.
    pub send_bytes_per_second: f64,
    /// Bytes per second that it receives while it sends as much; 0 if there was no other.
    pub receive_bytes_per_second: f64,
    /// Bytes per second between the first half of the hosts and the others, each way, if that is less than what all
    /// their links carry.
    pub trunk_bytes_per_second: Option<f64>,
}

/// A request about the rates of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeRequest {
    /// Return the stored rates. Answered with [`ProbeSaid::Rates`].
    Kept,
    /// Measure the disk now. Answered with [`ProbeSaid::Rates`], with assumed rates of cores, and 0 for links.
    Disk {
        /// Whether to measure thoroughly.
        thorough: bool,
    },
    /// Measure the cores now. Answered with [`ProbeSaid::Rates`], with assumed rates of disks, and 0 for links.
    Cores,
    /// Send to this host for this time, and report what arrived. Answered with [`ProbeSaid::Sent`].
    Send {
        /// The host.
        to: String,
        /// How long.
        milliseconds: u64,
    },
    /// Receive what arrives on this stream. Answered with [`ProbeSaid::Sent`].
    Take,
    /// Store these rates. Answered with [`ProbeSaid::Rates`].
    Keep(NodeRates),
    /// Take part in an exchange. The node sends one byte when it is ready, gets one byte for each round, and sends one
    /// when that round is over.
    Exchange(ExchangeAsk),
    /// Receive what arrives on this stream in each round, and send one byte when all of it has arrived.
    TakeRounds {
        /// Bytes of a round.
        bytes: u64,
        /// The number of rounds.
        rounds: u32,
    },
}

/// A request to take part in an exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExchangeAsk {
    /// The hosts.
    pub hosts: Vec<String>,
    /// The index of the host that receives this request.
    pub index: usize,
    /// Bytes that each sends to each other in a round.
    pub bytes: u64,
    /// The number of rounds.
    pub rounds: u32,
    /// The order in which nodes send.
    pub schedule: Schedule,
}

/// The order in which a node sends to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// To all at once.
    Together,
    /// To one after the other; all nodes begin with the first host.
    Same,
    /// To one after the other; each node begins with the host after itself.
    Shifted,
    /// As shifted, but to the next host only when the last one has received everything.
    Paced,
}

/// How long an exchange took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExchangeReport {
    /// The hosts, in the order of the cluster file.
    pub hosts: Vec<String>,
    /// Bytes that each sent to each other in a round.
    pub bytes: u64,
    /// The order in which nodes send.
    pub schedule: Schedule,
    /// Wall-clock seconds of each round, measured by the client.
    pub seconds: Vec<f64>,
}

/// An answer of a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeSaid {
    /// Its rates, if it has any.
    Rates(Option<NodeRates>),
    /// Bytes that arrived after the first block, and the seconds from that block to the last one.
    Sent {
        /// Bytes.
        bytes: u64,
        /// Seconds.
        seconds: f64,
    },
}

/// The measurements of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<ProbedHost>,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
}

/// The measurements of a host.
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
    /// All nodes have stored the rates that `cluster probe` measured.
    Probe,
    /// They were measured quickly for this plan.
    Now,
    /// They were given on the command line.
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
    /// Bytes of a record; for lines, an estimate.
    pub record_bytes: u32,
    /// How many times each byte that does not fit is read: 1 if all fits.
    pub passes: u32,
    /// Bytes per second between the halves of the hosts, if that is less than what their links carry.
    pub trunk_bytes_per_second: Option<f64>,
    /// Stages in order, with the names that the receipt uses.
    pub stages: Vec<ClusterStage>,
    /// Seconds of all stages.
    pub seconds: f64,
    /// The stage that takes most of the time, and what limits it.
    pub bottleneck: String,
    /// The words of the command that asks for the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<String>,
}

/// The role of a node in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    /// It reads and has almost no range.
    Io,
    /// It has a range and reads almost nothing.
    Sort,
    /// It reads and has a range.
    Both,
    /// It does almost nothing.
    Spare,
}

/// What one node of several will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodePlan {
    /// The host.
    pub host: String,
    /// Its role.
    pub role: NodeRole,
    /// Its rates.
    pub rates: NodeRates,
    /// Bytes of the inputs that it reads.
    pub read_bytes: u64,
    /// Bytes of its range.
    pub range_bytes: u64,
    /// Memory of its part of the job.
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
    /// Bytes that are sent between nodes.
    pub crossing_bytes: u64,
    /// Bytes that all disks write.
    pub written_bytes: u64,
    /// The expected seconds.
    pub seconds: f64,
    /// What limits it: `n3's disk`, `all disks`, `all links`, `trunk` and so on.
    pub bottleneck: String,
}
