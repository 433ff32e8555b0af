//! Errors of nodes and of commands about them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use thalweg_block::PoolError;
use thalweg_wire::frame::PAYLOAD_BYTES_MAX;
use thalweg_wire::{ClusterError, LinkError};

/// The result of an operation on nodes.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a node could not run, or a command about nodes failed. Each message is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The cluster, an identity or a link cannot be used.
    Cluster(ClusterError),
    /// Memory could not be mapped.
    Pool(PoolError),
    /// The system refused a thread, or the asynchronous runtime.
    Thread(std::io::Error),
    /// A word of a command contains a NUL byte.
    NulByte(String),
    /// A command and its environment have so many bytes, more than fit in a request.
    CommandTooLong(usize),
    /// A node sent an answer that cannot be understood.
    BadAnswer {
        /// The host.
        host: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// A node did not answer, or refused; the text says why.
    NoAnswer(String),
    /// The node cannot listen.
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        why: std::io::Error,
    },
    /// A node without a certificate was to listen on an address that other machines reach.
    NoCertificate(SocketAddr),
    /// No host knows a job with this id.
    UnknownJob(String),
    /// Several jobs have ids that begin with this text.
    AmbiguousJob {
        /// The text.
        id: String,
        /// How many jobs.
        jobs: usize,
    },
    /// The job with this id has ended already.
    JobEnded(String),
    /// A fleet has no host of this name.
    UnknownHost {
        /// The name.
        host: String,
        /// The hosts that it has.
        hosts: Vec<String>,
    },
    /// No node of this name runs in this process.
    NotRunning(String),
    /// The process that guards a node failed.
    Guard {
        /// What it was to do to the node.
        action: &'static str,
        /// What the system said.
        why: std::io::Error,
    },
    /// The command that should run ssh is empty.
    NoSshCommand,
    /// The checksum of the program that should be installed cannot be computed.
    Checksum {
        /// The program.
        program: PathBuf,
        /// What the system said; nothing if `sha256sum` itself failed.
        why: Option<std::io::Error>,
    },
    /// A step on a host failed; the text is what ssh, the host's shell or its node said.
    Step(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Cluster(why) => write!(f, "{why}"),
            Error::Pool(why) => write!(f, "{why}"),
            Error::Thread(why) => write!(f, "cannot start a thread: {why}"),
            Error::NulByte(word) => {
                write!(f, "the word '{}' contains a NUL byte, which no program accepts", word.escape_debug())
            }
            Error::CommandTooLong(bytes) => write!(
                f,
                "the command and its environment have {bytes} bytes, and at most {PAYLOAD_BYTES_MAX} are allowed; put the \
                 command into a file"
            ),
            Error::BadAnswer { host, why } => {
                write!(f, "{host}: its answer cannot be understood: {why}")
            }
            Error::NoAnswer(why) | Error::Step(why) => f.write_str(why),
            Error::Listen { address, why } => write!(f, "cannot listen on {address}: {why}"),
            Error::NoCertificate(address) => write!(
                f,
                "a node without a certificate listens on loopback only, and {address} is not; thalweg cluster init makes \
                 certificates"
            ),
            Error::UnknownJob(id) => write!(f, "no host knows a job {id}; thalweg job list shows them"),
            Error::AmbiguousJob { id, jobs } => {
                write!(f, "the ids of {jobs} jobs begin with '{id}'; write more of the id")
            }
            Error::JobEnded(id) => {
                write!(f, "job {} has ended; thalweg job show tells how", id.get(..8).unwrap_or(id))
            }
            Error::UnknownHost { host, hosts } => {
                write!(f, "'{host}' is none of the hosts, which are {}", hosts.join(", "))
            }
            Error::NotRunning(host) => write!(f, "no node {host} runs in this process"),
            Error::Guard { action, why } => write!(f, "cannot {action} the node: {why}"),
            Error::NoSshCommand => f.write_str("the command for ssh names no program"),
            Error::Checksum { why: Some(why), .. } => write!(f, "cannot run sha256sum: {why}"),
            Error::Checksum { program, why: None } => {
                write!(f, "sha256sum cannot read {}", program.display())
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<ClusterError> for Error {
    fn from(why: ClusterError) -> Error {
        Error::Cluster(why)
    }
}

impl From<LinkError> for Error {
    fn from(why: LinkError) -> Error {
        Error::Cluster(why.into())
    }
}

impl From<PoolError> for Error {
    fn from(why: PoolError) -> Error {
        Error::Pool(why)
    }
}
