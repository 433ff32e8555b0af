//! Errors of nodes and of commands about them.

use std::net::SocketAddr;
use std::path::PathBuf;

use hyper::StatusCode;
use rustls::pki_types::InvalidDnsNameError;
use thalweg_block::PoolError;
use thalweg_wire::frame::PAYLOAD_BYTES_MAX;
use thalweg_wire::{ClusterError, LinkError};

use crate::control::ANSWER_SECONDS;
use crate::join::JOIN_SECONDS;

/// The result of an operation on nodes.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a node could not run, or a command about nodes failed. Each message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster, an identity or a link cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The system refused a thread, or the asynchronous runtime.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// An argument of a command contains a NUL byte.
    #[error("the word '{}' contains a NUL byte, which no program accepts", .0.escape_debug())]
    NulByte(String),
    /// A command and its environment have this many bytes, more than fit in a request.
    #[error(
        "the command and its environment have {0} bytes, and at most {PAYLOAD_BYTES_MAX} are allowed; put the \
         command into a file"
    )]
    CommandTooLong(usize),
    /// A node sent an answer that cannot be understood.
    #[error("{host}: its answer cannot be understood: {why}")]
    BadAnswer {
        /// The host.
        host: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// A node did not answer over HTTP, or refused.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The node cannot listen.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        why: std::io::Error,
    },
    /// A service of the node cannot begin; the text says why.
    #[error("{0}")]
    Service(String),
    /// A node without a certificate was to listen on an address that other machines reach.
    #[error(
        "a node without a certificate listens on loopback only, and {0} is not; thalweg cluster init makes \
         certificates"
    )]
    NoCertificate(SocketAddr),
    /// The name of this host cannot be resolved, so others would not find its node.
    #[error("this host's name, '{0}', is not known here, and the other nodes need an address")]
    HostName(String),
    /// Not all processes have come to the directory in which they were to make a cluster.
    #[error(
        "{came} of {processes} processes came to {} within {JOIN_SECONDS} s; all hosts must see its files and locks",
        .directory.display()
    )]
    NotAllCame {
        /// The directory.
        directory: PathBuf,
        /// The processes that came.
        came: usize,
        /// The processes that were started.
        processes: usize,
    },
    /// A node of this name runs already in the directory's cluster.
    #[error("{name} of the cluster in {} runs already; give a new cluster another directory", .directory.display())]
    RunsAlready {
        /// The node.
        name: String,
        /// The directory.
        directory: PathBuf,
    },
    /// No host knows a job with this id.
    #[error("no host knows a job {0}; thalweg job list shows them")]
    UnknownJob(String),
    /// Several jobs have ids that begin with this text.
    #[error("the ids of {jobs} jobs begin with '{id}'; write more of the id")]
    AmbiguousJob {
        /// The text.
        id: String,
        /// How many jobs.
        jobs: usize,
    },
    /// The job with this id has ended already.
    #[error("job {} has ended; thalweg job show tells how", .0.get(..8).unwrap_or(.0))]
    JobEnded(String),
    /// A fleet has no host of this name.
    #[error("'{host}' is none of the hosts, which are {}", .hosts.join(", "))]
    UnknownHost {
        /// The name.
        host: String,
        /// The hosts that it has.
        hosts: Vec<String>,
    },
    /// No node of this name runs in this process.
    #[error("no node {0} runs in this process")]
    NotRunning(String),
    /// The process that guards a node failed.
    #[error("cannot {action} the node: {why}")]
    Guard {
        /// The operation on the node that failed.
        action: &'static str,
        /// What the system said.
        why: std::io::Error,
    },
    /// The command for ssh is empty.
    #[error("the command for ssh names no program")]
    NoSshCommand,
    /// The checksum of the program to install cannot be computed.
    #[error(
        "sha256sum cannot read {}{}",
        .program.display(),
        .why.as_ref().map_or(String::new(), |why| format!(": it cannot be run: {why}"))
    )]
    Checksum {
        /// The program.
        program: PathBuf,
        /// What the system said; nothing if `sha256sum` itself failed.
        why: Option<std::io::Error>,
    },
    /// This process was started as the other end of a transfer over ssh, but not by ssh.
    #[error(
        "only ssh starts this program so, at the other end of a transfer; write thalweg pump SOURCE ssh://HOST/PATH"
    )]
    NotBySsh,
    /// Standard input or output cannot be used.
    #[error("standard input and output cannot be used: {0}")]
    Standard(std::io::Error),
    /// The client at the other end of ssh disconnected, or did not answer within this many seconds.
    #[error("the client has gone, or did not answer within {0} s")]
    ClientSilent(f64),
    /// The answer of the client at the other end of ssh cannot be understood.
    #[error("the client's answer cannot be understood; bring both sides to one version of thalweg")]
    ClientAnswer,
    /// ssh cannot be started, or cannot be waited for.
    #[error("cannot start {program}: {why}")]
    Start {
        /// The program that was run as ssh.
        program: String,
        /// What the system said.
        why: std::io::Error,
    },
    /// The shell of this host did not run a script.
    #[error("the shell of {0} did not run the script; see what ssh {0} sh -s does")]
    NoScript(String),
    /// A step on a host failed.
    #[error("{program} {host}: {why}")]
    Step {
        /// The program that was run as ssh.
        program: String,
        /// The host.
        host: String,
        /// The last line that ssh or the host's shell printed.
        why: String,
    },
}

/// Why a node's answer to a request over HTTP is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// It took too long.
    #[error("no answer within {ANSWER_SECONDS} s")]
    Late,
    /// The node stopped reporting a running job.
    #[error("its node stopped reporting the job")]
    Silent,
    /// The host's address is not known.
    #[error(transparent)]
    Address(#[from] ClusterError),
    /// Nothing accepts connections at the address.
    #[error("cannot reach {address}: {why}")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        why: String,
    },
    /// The host's name cannot be in a certificate.
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
    /// One side's TLS rejects the other's certificate, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The request cannot be made.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The connection ended before an answer came.
    #[error(
        "it closed the connection without an answer: it is shutting down, or has as many connections as it allows; \
         try again"
    )]
    Closed,
    /// The answer cannot be received.
    #[error("its answer cannot be received: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not a success.
    #[error("{status}: {text}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The text of the answer.
        text: String,
    },
    /// The answer cannot be understood.
    #[error("its answer cannot be understood: {0}")]
    Json(String),
}

impl From<thalweg_io::Error> for Error {
    fn from(why: thalweg_io::Error) -> Error {
        Error::Cluster(why.into())
    }
}

impl From<LinkError> for Error {
    fn from(why: LinkError) -> Error {
        Error::Cluster(why.into())
    }
}
