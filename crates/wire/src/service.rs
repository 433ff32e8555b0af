//! The services of a node: each owns the streams whose requests name it.
//!
//! Model: a peer opens a stream with the name of a service and a body ([`thalweg_api::Request`]). The node checks the
//! name and the peer's rights, and hands over the stream. A service may also add routes to the node's HTTP port and
//! rows to its metrics, and is notified when the node stops.
//! Non-goals: HTTP itself; authentication.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::May;

use crate::audit::{Audit, Entry};
use crate::{Incoming, Link, Outgoing};

/// The two directions of a stream that a peer has opened.
pub type Streams = (Outgoing, Incoming);

/// A service.
pub trait Service: Send + Sync {
    /// Its name in requests.
    fn name(&self) -> &'static str;

    /// Serves a stream, at once or on another thread; false if the link is of no further use.
    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, streams: Streams) -> bool;

    /// Whether a client with status rights may send this request.
    fn is_harmless(&self, _body: &str) -> bool {
        false
    }

    /// Its routes over HTTP.
    fn routes(self: Arc<Self>) -> Vec<Route> {
        Vec::new()
    }

    /// Its metrics.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    /// Gives to other hosts what would end with this one, and waits until it is done. [`Service::stop`] follows.
    ///
    /// # Errors
    /// If something is lost: what, and why.
    fn leave(self: Arc<Self>) -> Result<(), String> {
        Ok(())
    }

    /// Ends its work because the node stops; waits for at most `patience`.
    fn stop(&self, _patience: Duration) {}
}

/// The peer that opened a stream, and its rights.
pub struct Peer<'a> {
    /// The link of the stream.
    pub link: &'a Arc<Link>,
    /// The rights that the cluster file gives the peer.
    pub may: May,
    /// The audit log.
    pub audit: &'a Arc<Audit>,
}

impl Peer<'_> {
    /// A new entry of the audit log about a request of this peer.
    pub fn entry(&self, what: &str, words: &[String]) -> Entry {
        self.audit.begin(self.audit.who(self.link), what, words)
    }
}

/// The method of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// It changes nothing.
    Get,
    /// It changes something.
    Post,
}

/// The peers that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All peers that the cluster file lists.
    Listed,
    /// Clients with all rights.
    Owner,
}

/// A path of the node's HTTP port, which may contain one `{id}`.
pub struct Route {
    /// Its method.
    pub method: Method,
    /// The path.
    pub path: &'static str,
    /// The peers that may use it.
    pub access: Access,
    /// The function that answers for this id, on a thread that may block.
    pub answer: Box<dyn Fn(&str) -> Reply + Send + Sync>,
}

/// The answer of a route.
pub enum Reply {
    /// A JSON object.
    Json(String),
    /// Nothing has that id; the text says what was requested.
    Missing(String),
    /// JSON objects as server-sent events, each sent when the iterator returns it.
    Events(Box<dyn Iterator<Item = String> + Send>),
}

/// A row of the metrics.
pub struct Metric {
    /// Its name without the prefix.
    pub name: &'static str,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    /// Its description.
    pub help: &'static str,
    /// Its present value.
    pub value: f64,
}
