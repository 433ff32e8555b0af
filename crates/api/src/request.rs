//! Requests that open a stream: the name of a service, and a body for that service.
//!
//! ```text
//! {"service":"exec","body":{"run":{"job":"...","command":["uname"], ...}}}
//! ```
//!
//! Model: each service has its own type of body here. A node finds the service by the name, and the service parses the
//! body.
//! Non-goals: a list of all services; each node has a list of its own.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    CheckShare, ExecRequest, JobSpec, ProbeRequest, PumpRequest, RelayRequest, TableEntry, TableKind,
    VolumeLayout, VoteRequest, from_json, to_json,
};

/// A request to one service.
pub trait ServiceRequest: Serialize + DeserializeOwned {
    /// The name of the service.
    const SERVICE: &'static str;

    /// The text that opens a stream.
    fn text(&self) -> String {
        to_json(&Envelope { service: Self::SERVICE.into(), body: self })
    }
}

/// A request whose body is still text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the service.
    pub service: String,
    /// The body.
    pub body: String,
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    service: String,
    body: T,
}

impl Request {
    /// Parses the text that opened a stream.
    pub fn parse(text: &str) -> Result<Request, String> {
        let Envelope { service, body } = from_json::<Envelope<Box<RawValue>>>(text)?;
        Ok(Request { service, body: body.get().into() })
    }
}

/// Requests about membership of the cluster, which every node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostRequest {
    /// Keep this link: from now on either side may open streams on it.
    Keep,
    /// Answer with your cluster file; or take this one, if the authority has signed it and it is newer.
    Cluster(Option<String>),
    /// Answer with your process, a [`HostProcess`].
    Identify,
}

impl ServiceRequest for HostRequest {
    const SERVICE: &'static str = "host";
}

/// The process that serves a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostProcess {
    /// Its process id on the host.
    pub pid: u32,
    /// How long it has been running.
    pub seconds: f64,
    /// The epoch of its cluster file; 0 without one.
    pub epoch: u64,
}

/// Requests to the service `exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandRequest {
    /// Run a command. Channel 1 of the answer is its standard output, 2 its standard error; the result is an
    /// [`ExecEnd`](crate::ExecEnd).
    Run(ExecRequest),
    /// Do nothing, and answer with an [`ExecEnd`](crate::ExecEnd): measures the cost of a job without a process.
    Ping,
    /// Relay the request to other hosts over the links that this node keeps. Blocks of the answer have the host's index
    /// as their offset; channels 1 and 2 are as in [`CommandRequest::Run`], and channel 3 carries each host's
    /// [`HostEnd`](crate::HostEnd).
    Relay(RelayRequest),
}

impl ServiceRequest for CommandRequest {
    const SERVICE: &'static str = "exec";
}

/// Requests to the service `transfer`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferRequest {
    /// Be one end of a transfer, or both; this is its control stream. The link carries no other stream.
    Pump(Box<PumpRequest>),
    /// This stream is a lane of a transfer. The link carries no other stream.
    Lane {
        /// The transfer's id.
        id: String,
    },
}

impl ServiceRequest for TransferRequest {
    const SERVICE: &'static str = "transfer";
}

/// Requests to the service `job`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobRequest {
    /// Check files on this node, and report on this stream.
    Check(CheckShare),
    /// Take part in a job, which is coordinated on this stream.
    Sort(JobSpec),
    /// Coordinate a job, whether or not its client stays. The result is an [`ExecEnd`](crate::ExecEnd), sent at once.
    Coordinate(JobSpec),
    /// This stream carries river batches of a job, from the inlet of the node that opens it to this node.
    River {
        /// The job's id.
        job: String,
        /// The number of the attempt.
        attempt: u32,
        /// The number of the node that opens the stream.
        from: usize,
    },
    /// Vote on a job's attempt, or record a decision. The result is a [`VoteSaid`](crate::VoteSaid).
    Vote(Box<VoteRequest>),
    /// Report this node's rates, or measure them.
    Probe(ProbeRequest),
}

impl ServiceRequest for JobRequest {
    const SERVICE: &'static str = "job";
}

/// Requests to the service `volume`. Directories are absolute paths of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeRequest {
    /// This stream is a session with the manager in this directory, in the messages of docs/formats/volume.md.
    Manager {
        /// The manager's directory.
        directory: String,
        /// Whether a node asks that takes part in somebody's job.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        for_job: bool,
    },
    /// This stream is the only session with the manager in this directory, for work on the volume's stores.
    Maintain {
        /// The manager's directory.
        directory: String,
        /// The work, which the audit log names.
        work: VolumeWork,
    },
    /// This stream carries requests to the store in this directory, in the messages of docs/formats/volume.md.
    Store {
        /// The store's directory.
        directory: String,
        /// The id of its volume.
        volume: String,
        /// Its slot.
        slot: u32,
        /// The nodes that have stores of the volume: while this stream lasts, they may forward writes to the store.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        peers: Vec<String>,
    },
    /// This stream carries writes that a store of another node forwards to the store in this directory.
    Forward {
        /// The store's directory.
        directory: String,
        /// The id of its volume.
        volume: String,
        /// Its slot.
        slot: u32,
    },
    /// Make or remove a part of a volume.
    Change(VolumeChange),
}

/// Work on the stores of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeWork {
    /// Make copies equal.
    Repair,
    /// Add a store.
    AddStore,
    /// Replace a store.
    Replace,
}

impl VolumeWork {
    /// The name of its command.
    pub fn command(self) -> &'static str {
        match self {
            VolumeWork::Repair => "volume repair",
            VolumeWork::AddStore => "volume add-store",
            VolumeWork::Replace => "volume replace",
        }
    }
}

/// Changes of the parts of a volume on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeChange {
    /// Make a store. The result is its directory.
    MakeStore {
        /// The name of the volume.
        name: String,
        /// The directory in which the store's directory is made.
        directory: String,
        /// The id of the volume.
        volume: String,
        /// The slot of the store.
        slot: u32,
        /// The clients that may use it; all, if none are named.
        #[serde(default)]
        clients: Vec<String>,
    },
    /// Make the manager of a new volume. The result is its directory.
    MakeManager {
        /// The name of the volume.
        name: String,
        /// The directory in which the manager's directory is made.
        directory: String,
        /// The id of the volume.
        volume: String,
        /// The stores, each as `NODE:/DIRECTORY`, in the order of their slots.
        stores: Vec<String>,
        /// The layout of files that are made in the root.
        layout: VolumeLayout,
        /// The owner of the root.
        user: u32,
        /// Its group.
        group: u32,
        /// The clients that may use it; all, if none are named.
        #[serde(default)]
        clients: Vec<String>,
    },
    /// Go on with a manager although its stores know a later history, or it was moved.
    Adopt {
        /// The directory of the manager.
        directory: String,
        /// The id of the volume.
        volume: String,
    },
    /// Remove a directory of a volume and everything in it, unless it is in use.
    Remove {
        /// The directory of a store, or of the manager.
        directory: String,
        /// The id of the volume.
        volume: String,
        /// The slot of the store; none for the manager.
        slot: Option<u32>,
    },
}

impl ServiceRequest for VolumeRequest {
    const SERVICE: &'static str = "volume";
}

/// Requests to the service `table`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableRequest {
    /// This stream carries requests of a client and their replies, in the messages of docs/formats/table.md.
    Session,
    /// This stream carries messages of another node, and no replies.
    Peer,
    /// To the registrar: make a table. The result is its [`TableEntry`].
    Create {
        /// Its name.
        name: String,
        /// The most records of a bucket.
        capacity: u64,
        /// The most bytes of keys and values of a bucket.
        capacity_bytes: u64,
        /// Whether it has an index.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        index: bool,
        /// What it is for, if a Redis client makes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<TableKind>,
        /// Its parity, as `M+K`, if it has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parity: Option<String>,
    },
    /// To the registrar: list the tables. The result is a [`TableList`](crate::TableList).
    List,
    /// To the registrar: remove a table, or wait until one is removed. It is answered when all its buckets refuse its id.
    Drop {
        /// Its name.
        name: String,
    },
    /// From the registrar: create the first bucket of a new table.
    Begin(TableEntry),
    /// This stream carries the records of new buckets of a table, which the node removes if the stream ends before it
    /// is asked to keep them.
    Load(TableEntry),
    /// To the registrar: list a loaded table in place of the one without records that has this name.
    Loaded {
        /// The loaded table.
        entry: TableEntry,
        /// The id of the table that it replaces.
        replaces: String,
        /// The nodes that have its buckets.
        nodes: Vec<String>,
    },
    /// From the registrar: refuse changes of a table for some seconds, and report this node's share of it, a
    /// [`TableShare`](crate::TableShare).
    Freeze {
        /// Its id.
        id: String,
    },
    /// From the registrar: keep the buckets of a load after its stream has ended.
    Keep {
        /// The id of the loaded table.
        id: String,
    },
    /// To the registrar: the groups of a table with parity. The result is a [`TableGroups`](crate::TableGroups).
    Groups {
        /// Its id.
        id: String,
    },
    /// Report this node's share of a table. The result is a [`TableShare`](crate::TableShare).
    Share {
        /// Its id.
        id: String,
    },
}

impl ServiceRequest for TableRequest {
    const SERVICE: &'static str = "table";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_service_and_keeps_its_body_as_it_came() {
        let text = HostRequest::Cluster(Some("{}".into())).text();
        assert_eq!(text, r#"{"service":"host","body":{"cluster":"{}"}}"#);
        let request = Request::parse(&text).unwrap();
        assert_eq!((&*request.service, &*request.body), ("host", r#"{"cluster":"{}"}"#));
        for wrong in [r#"{"service":"host"}"#, r#"{"service":1,"body":1}"#, "\"ping\""] {
            assert!(Request::parse(wrong).is_err(), "{wrong}");
        }
    }
}
