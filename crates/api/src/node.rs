//! What nodes and their clients say to each other about jobs, and what a node says of itself.

use serde::{Deserialize, Serialize};

use crate::{CommandRequest, Finding, ShareView};

/// What is to be asked of other hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayRequest {
    /// The hosts, by their names.
    pub on: Vec<String>,
    /// What each is asked; no relay itself.
    pub ask: Box<CommandRequest>,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The job's id, the same on all nodes that run it: 32 hexadecimal digits.
    pub job: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Added to the node's own environment.
    pub env: Vec<(String, String)>,
    /// Whether channel 0 of the request is its standard input; else it has none.
    pub stdin: bool,
    /// Goes on without the client; its output is kept, not sent.
    pub detach: bool,
    /// It is killed after so many milliseconds.
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

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It goes on.
    Running,
    /// It ended well: a command with status 0.
    Done,
    /// It could not be started, or ended otherwise.
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
    /// Who asked for it: a client or a node, by the name in its certificate.
    #[serde(default)]
    pub by: String,
    /// The program and its arguments, or the verb and what it was asked.
    pub command: Vec<String>,
    /// Where it is in its life.
    pub state: JobState,
    /// Its exit status, if it exited.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Why it was not started, or was ended.
    pub why: Option<String>,
    /// Whether it goes on without its client.
    pub detached: bool,
    /// The process, which leads its own group.
    pub pid: Option<u32>,
    /// When it began, in seconds since 1970.
    pub began_seconds: u64,
    /// How long it ran, or has run.
    pub seconds: f64,
    /// Bytes of output so far.
    pub output_bytes: u64,
    /// The end of the output of a job that goes on without its client, as text.
    pub tail: String,
    /// Of a sort on several nodes: this one's share.
    pub share: Option<ShareView>,
}

/// The jobs of a node, or of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobList {
    /// One for each job and host.
    pub jobs: Vec<JobReport>,
    /// What could not be asked, one line each.
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
    /// Where it listens.
    pub address: String,
    /// The cluster; empty without an identity.
    pub cluster: String,
    /// The process.
    pub pid: u32,
}

/// What a node says of itself.
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
    /// Of the program.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// How long it has run.
    pub seconds: f64,
    /// Links that are open.
    pub links: u64,
    /// Jobs that run.
    pub jobs_running: u64,
    /// Jobs that have ended since it began.
    pub jobs_ended: u64,
    /// Connections that were refused since it began.
    pub refused: u64,
    /// Memory that is resident, in bytes.
    pub resident_bytes: u64,
    /// When its certificate ends, in seconds since 1970; 0 without an identity.
    #[serde(default)]
    pub certificate_ends: u64,
    /// Hosts whose certificate two processes showed to it in the last minute.
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
    /// Certificates that end soon and hosts that are there twice, a line each with the remedy.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// One for each host.
    pub hosts: Vec<HostReport>,
}

/// A host, asked just now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// Where its node should listen.
    pub address: String,
    /// What it said, if it answered.
    pub status: Option<NodeStatus>,
    /// Why it did not.
    pub error: Option<String>,
    /// How long the answer took.
    pub seconds: f64,
}

/// What `exec` did on each host.
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
    /// How it ended there, if the node said so.
    pub end: Option<ExecEnd>,
    /// Why it did not.
    pub error: Option<String>,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// What its command wrote to standard output, where that was gathered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
    /// The same of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<String>,
}

/// What every host offers and lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterDoctor {
    /// Certificates that end soon and hosts that are there twice, a line each with the remedy.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<HostDoctor>,
}

/// What a host offers and lacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostDoctor {
    /// The host.
    pub host: String,
    /// One finding for each thing that its node looked at.
    pub findings: Vec<Finding>,
    /// Why its node did not look.
    pub error: Option<String>,
}

/// What was done to each host of a cluster, over ssh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSteps {
    /// One for each host, in the order of the cluster file.
    pub hosts: Vec<HostStep>,
}

/// What was done to a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostStep {
    /// The host.
    pub host: String,
    /// What was done, or was so already.
    pub done: Option<String>,
    /// Why it could not be done.
    pub error: Option<String>,
    /// How long it took.
    pub seconds: f64,
}
