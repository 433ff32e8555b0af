//! What a node offers to its peers: services, each of which owns the streams that name it.
//!
//! Model: a peer opens a stream with the name of a service and a body ([`thalweg_api::Request`]). The node looks at the
//! name and at the peer's rights, and hands the stream over. A service may also offer routes of the node's HTTP port and
//! rows of its metrics, and is told when the node goes down.
//! Non-goals: HTTP itself; who is let in.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::May;

use crate::audit::{Audit, Entry};
use crate::{Incoming, Link, Outgoing};

/// A stream that a peer has opened: what goes to it, and what comes from it.
pub type Streams = (Outgoing, Incoming);

/// A named owner of streams.
pub trait Service: Send + Sync {
    /// The name by which requests ask for it.
    fn name(&self) -> &'static str;

    /// Serves a stream, at once or on a thread of its own; false if its link is of no more use.
    fn serve(self: Arc<Self>, peer: &Peer<'_>, body: &str, streams: Streams) -> bool;

    /// Whether a peer that may only look may ask this.
    fn is_harmless(&self, _body: &str) -> bool {
        false
    }

    /// What it offers over HTTP.
    fn routes(self: Arc<Self>) -> Vec<Route> {
        Vec::new()
    }

    /// What it counts.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    /// Ends what it runs, because the node goes down; waits for that at most so long.
    fn stop(&self, _patience: Duration) {}
}

/// Who opened a stream, and what it may ask.
pub struct Peer<'a> {
    /// The link that the stream came over.
    pub link: &'a Arc<Link>,
    /// What the cluster file allows the peer.
    pub may: May,
    /// Where its requests are recorded.
    pub audit: &'a Arc<Audit>,
}

impl Peer<'_> {
    /// A new entry of the audit log, about something that this peer asks.
    pub fn entry(&self, what: &str, words: &[String]) -> Entry {
        self.audit.begin(self.audit.who(self.link), what, words)
    }
}

/// How a route is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// It only looks.
    Get,
    /// It changes something.
    Post,
}

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever the cluster file lists.
    Listed,
    /// Clients that may do everything.
    Owner,
}

/// A path of the node's HTTP port, which may hold one `{id}`.
pub struct Route {
    /// How it is asked for.
    pub method: Method,
    /// The path.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    /// Answers, on a thread that may block, for this id.
    pub answer: Box<dyn Fn(&str) -> Reply + Send + Sync>,
}

/// What a route answers.
pub enum Reply {
    /// An object.
    Json(String),
    /// There is nothing of that id, and what it would be.
    Missing(String),
    /// Objects as server-sent events, each sent when the iterator has it.
    Events(Box<dyn Iterator<Item = String> + Send>),
}

/// A row of the metrics.
pub struct Metric {
    /// Its name without the program's.
    pub name: &'static str,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// The value now.
    pub value: f64,
}
