//! Messages between nodes and clients about jobs, and the status of a node.

use serde::{Deserialize, Serialize};

use crate::{CommandRequest, Finding, ParticipantView};

/// A request that a node relays to other hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayRequest {
    /// The hosts, by their names.
    pub on: Vec<String>,
    /// The request for each of them, which must not be a relay.
    pub ask: Box<CommandRequest>,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The job's id, the same on all nodes that run it: 32 hexadecimal digits.
    pub job: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Added to the node's own environment.
    pub env: Vec<(String, String)>,
    /// Whether channel 0 of the request is its standard input; else it has none.
    pub stdin: bool,
    /// Whether it continues without the client. Its output is then kept and not sent.
    pub detach: bool,
    /// The command is killed after this many milliseconds, if given.
    pub timeout_ms: Option<u64>,
}

/// How a command ended on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// The job's state now.
    pub state: JobState,
    /// Its exit status, if it exited.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Why it was not started, or was ended.
    pub why: Option<String>,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It is running.
    Running,
    /// It succeeded: a command ended with status 0.
    Done,
    /// It could not be started, or failed.
    Failed,
    /// It was cancelled, or its client vanished.
    Cancelled,
}

/// A job on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// 32 hexadecimal digits.
    pub id: String,
    /// The host.
    pub host: String,
    /// The client or node that requested it, by the name in its certificate.
    #[serde(default)]
    pub by: String,
    /// The program and its arguments, or the verb and its arguments.
    pub command: Vec<String>,
    /// Its state.
    pub state: JobState,
    /// Its exit status, if it exited.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Why it was not started, or was ended.
    pub why: Option<String>,
    /// Whether it continues without its client.
    pub detached: bool,
    /// The process, which leads its own group.
    pub pid: Option<u32>,
    /// When it began, in seconds since 1970.
    pub began_seconds: u64,
    /// How long it ran, or has been running.
    pub seconds: f64,
    /// Bytes of output so far.
    pub output_bytes: u64,
    /// The end of the output, as text, of a job that continues without its client.
    pub tail: String,
    /// This node's part in a job on several nodes.
    pub share: Option<ParticipantView>,
}

/// The jobs of one node, or of all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobList {
    /// One for each job and host.
    pub jobs: Vec<JobReport>,
    /// A line for each host that could not be reached.
    pub errors: Vec<String>,
}

/// The line that a node prints when it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReady {
    /// The host's name; empty without an identity.
    pub name: String,
    /// The node's id; empty without an identity.
    #[serde(default)]
    pub id: String,
    /// The address on which it listens.
    pub address: String,
    /// The cluster; empty without an identity.
    pub cluster: String,
    /// The process.
    pub pid: u32,
}

/// The status of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The host's name.
    pub name: String,
    /// The node's id.
    pub id: String,
    /// The cluster's id.
    pub cluster: String,
    /// The epoch of its cluster file.
    pub epoch: u64,
    /// The version of its program.
    pub version: String,
    /// The build of its program: 16 hexadecimal digits, which differ if the sources do.
    #[serde(default)]
    pub build: String,
    /// The first and the last version of the protocol between nodes that it speaks.
    #[serde(default)]
    pub protocols: [u16; 2],
    /// The process.
    pub pid: u32,
    /// How long it has been running.
    pub seconds: f64,
    /// Open links.
    pub links: u64,
    /// Running jobs.
    pub jobs_running: u64,
    /// Jobs that have ended since it began.
    pub jobs_ended: u64,
    /// Connections that were refused since it began.
    pub refused: u64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// When its certificate expires, in seconds since 1970; 0 without an identity.
    #[serde(default)]
    pub certificate_ends: u64,
    /// Hosts whose certificate two processes used with it in the last minute.
    #[serde(default)]
    pub twice: Vec<String>,
}

/// A cluster, as its nodes see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Its name.
    pub name: String,
    /// Its id.
    pub cluster: String,
    /// The epoch of the cluster file here.
    pub epoch: u64,
    /// A line with the remedy for each certificate that expires soon and each host that runs twice.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// One for each host.
    pub hosts: Vec<HostReport>,
}

/// The answer of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// The address of its node.
    pub address: String,
    /// Its status, if it answered.
    pub status: Option<NodeStatus>,
    /// Why it did not answer, otherwise.
    pub error: Option<String>,
    /// How long the answer took.
    pub seconds: f64,
}

/// The results of `exec` on each host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecReport {
    /// The job's id.
    pub job: String,
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<HostEnd>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// How a command ended on a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostEnd {
    /// The host.
    pub host: String,
    /// How it ended there, if the node reported that.
    pub end: Option<ExecEnd>,
    /// Why it did not report that, otherwise.
    pub error: Option<String>,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The standard output of its command, if it was gathered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
    /// The standard error of its command, if it was gathered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<String>,
}

/// The findings of `doctor` for every host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterDoctor {
    /// A line with the remedy for each certificate that expires soon and each host that runs twice.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<HostDoctor>,
}

/// The findings of `doctor` for a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostDoctor {
    /// The host.
    pub host: String,
    /// One finding for each check of its node.
    pub findings: Vec<Finding>,
    /// Why its node did not answer.
    pub error: Option<String>,
}

/// The result of an installation step over ssh on each host of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSteps {
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<HostStep>,
}

/// The result on one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostStep {
    /// The host.
    pub host: String,
    /// What was done, or had been done before.
    pub done: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// How long it took.
    pub seconds: f64,
}
