//! What a stream is opened for: the name of a service, and what is asked of that service.
//!
//! ```text
//! {"service":"exec","body":{"run":{"job":"...","command":["uname"], ...}}}
//! ```
//!
//! Model: each service of a node has its own type of bodies here, and whoever passes a request on reads the name alone.
//! Non-goal: a list of all services; a node has those that it was given.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    CheckShare, ExecRequest, ProbeRequest, PumpRequest, RelayRequest, SortJob, VoteRequest, from_json,
    to_json,
};

/// What can be asked of one service.
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
    /// What is asked of it.
    pub body: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    service: String,
    body: T,
}

impl Request {
    /// Reads the text that opened a stream.
    pub fn parse(text: &str) -> Result<Request, String> {
        let Envelope { service, body } = from_json::<Envelope<Box<RawValue>>>(text)?;
        Ok(Request { service, body: body.get().into() })
    }
}

/// What every node answers about its membership of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HostRequest {
    /// Keep this link: from now on either side may open streams on it.
    Keep,
    /// Answer with your cluster file; or take this one, if the authority has signed it and it is newer.
    Cluster(Option<String>),
    /// Say which process you are, with a [`HostProcess`].
    Identify,
}

impl ServiceRequest for HostRequest {
    const SERVICE: &'static str = "host";
}

/// The process that serves a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostProcess {
    /// Its number on the host.
    pub pid: u32,
    /// How long it has run.
    pub seconds: f64,
    /// The epoch of its cluster file; 0 without one.
    pub epoch: u64,
}

/// What can be asked about commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CommandRequest {
    /// Run a command. Channel 1 of the answer is its standard output, 2 its standard error; the result is an
    /// [`ExecEnd`](crate::ExecEnd).
    Run(ExecRequest),
    /// Do nothing, and answer with an [`ExecEnd`](crate::ExecEnd): what a job without a process costs.
    Ping,
    /// Ask other hosts over the links that this node keeps. Blocks of the answer have the host's place in the list as
    /// their offset; channels 1 and 2 are as in [`CommandRequest::Run`], on channel 3 comes its
    /// [`HostEnd`](crate::HostEnd).
    Relay(RelayRequest),
}

impl ServiceRequest for CommandRequest {
    const SERVICE: &'static str = "exec";
}

/// What can be asked about transfers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TransferRequest {
    /// Be one end of a transfer, whose control stream this is, or both. The link carries no other stream.
    Pump(Box<PumpRequest>),
    /// This stream is a lane of that transfer, and the link carries no other.
    Lane {
        /// The transfer's id.
        id: String,
    },
}

impl ServiceRequest for TransferRequest {
    const SERVICE: &'static str = "transfer";
}

/// What can be asked about jobs of several nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum JobRequest {
    /// Check files of yours, and report on this stream.
    Check(CheckShare),
    /// Take part in a job, which is coordinated on this stream.
    Sort(SortJob),
    /// Coordinate a job, whether or not its client stays. The result is an [`ExecEnd`](crate::ExecEnd), sent at once.
    Coordinate(SortJob),
    /// This stream is the river of that job, from the inlet of this number to the node that is asked.
    River {
        /// The job's id.
        job: String,
        /// Which attempt.
        attempt: u32,
        /// The number of the node that opens it.
        from: usize,
    },
    /// Vote on what becomes of a job's attempt, or take note of it. The result is a [`VoteSaid`](crate::VoteSaid).
    Vote(Box<VoteRequest>),
    /// Report how fast you are, or measure it.
    Probe(ProbeRequest),
}

impl ServiceRequest for JobRequest {
    const SERVICE: &'static str = "job";
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
        for wrong in [r#"{"service":"host"}"#, r#"{"service":"host","body":1,"more":2}"#, "\"ping\""] {
            assert!(Request::parse(wrong).is_err(), "{wrong}");
        }
    }
}
