//! Errors of clusters and of their hosts.

use std::path::PathBuf;

use crate::cluster::{CLIENTS_MAX, CLUSTER_NAME_BYTES_MAX, DEAD_MS, HOSTS_MAX};
use crate::members::NotVerified;
use crate::{IdentityError, LinkError};

/// The result of an operation on a cluster.
pub type ClusterResult<T> = std::result::Result<T, ClusterError>;

/// Why an operation on a cluster failed. Each message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// An identity cannot be read, made or used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A link broke or was refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] thalweg_io::Error),
    /// A new host was described wrongly.
    #[error(transparent)]
    BadHost(#[from] BadHost),
    /// A cluster cannot have this name.
    #[error(
        "'{0}' is not a name for a cluster: write at most {CLUSTER_NAME_BYTES_MAX} letters, digits, dots, dashes and \
         underscores, a letter or digit first"
    )]
    BadClusterName(String),
    /// A client cannot have this name.
    #[error("'{0}' is not a name for a client: use letters, digits, '-' and '.'")]
    BadClientName(String),
    /// The address of a host cannot be resolved on this machine.
    #[error("{host}: the address '{address}' is not known here")]
    UnknownAddress {
        /// The host.
        host: String,
        /// Its address in the cluster file.
        address: String,
    },
    /// Another user owns the directory, and could replace the identities in it.
    #[error("{} belongs to another user; choose another directory", .0.display())]
    NotOwned(PathBuf),
    /// The directory contains a cluster already.
    #[error("{} holds a cluster already; thalweg cluster add adds hosts to it", .0.display())]
    Exists(PathBuf),
    /// The cluster has a host of this name already.
    #[error(
        "'{host}' is a host of cluster {cluster} already, at {address}; give the new one another name, or thalweg \
         cluster drop {host} first"
    )]
    HostExists {
        /// The host.
        host: String,
        /// The cluster.
        cluster: String,
        /// The address of the host.
        address: String,
    },
    /// The owner's own certificate cannot be dropped. This is its name.
    #[error(
        "'{0}' is the owner's own certificate, and the cluster cannot be changed without it; thalweg cluster renew \
         makes a new one"
    )]
    OwnersCertificate(&'static str),
    /// The cluster has no host of this name.
    #[error("'{host}' is not a host of cluster {cluster}, which has {}", .hosts.join(", "))]
    UnknownHost {
        /// The name that was given.
        host: String,
        /// The cluster.
        cluster: String,
        /// Its hosts.
        hosts: Vec<String>,
    },
    /// No host of the cluster has this role.
    #[error(
        "'{role}' is not a role of cluster {cluster}, which has {}",
        if .roles.is_empty() { "none".to_string() } else { .roles.join(", ") }
    )]
    UnknownRole {
        /// The role that was given.
        role: String,
        /// The cluster.
        cluster: String,
        /// The roles of its hosts.
        roles: Vec<String>,
    },
    /// A list of hosts leaves all of them out.
    #[error("'{0}' leaves no host: what follows a ! is left out, wherever it stands")]
    NoHostLeft(String),
    /// The identity in a directory belongs to another cluster than the one that was named.
    #[error("the identity in {} is of cluster {cluster}, not of {named}", .directory.display())]
    OtherCluster {
        /// The directory.
        directory: PathBuf,
        /// The cluster of the identity.
        cluster: String,
        /// The cluster that was named.
        named: String,
    },
    /// A node was given the identity of a client.
    #[error("that is a client's identity, and a node needs a host's: cluster init puts these in hosts/")]
    ClientIdentity,
    /// A node without an identity belongs to no cluster.
    #[error("a node without identity is of no cluster")]
    NoIdentity,
    /// A cluster file contradicts itself or exceeds a limit.
    #[error(transparent)]
    BadFile(#[from] BadFile),
    /// A cluster file that a peer sent cannot replace the present one.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// A file is not text.
    #[error("{} is not readable text", .0.display())]
    NotText(PathBuf),
    /// An identifier or a certificate cannot be parsed.
    #[error("{0}")]
    Malformed(String),
    /// A file or directory of an identity cannot be used.
    #[error("{} cannot be used: {why}", .path.display())]
    Unusable {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: Box<ClusterError>,
    },
    /// The system has no thread left for a link.
    #[error("the system has no thread left for a link")]
    NoThread,
    /// An exchange or a probe between nodes failed; the text says how.
    #[error("{0}")]
    Asked(String),
}

/// What is wrong with the description of a host, `NAME=ADDRESS:PORT@WORD,WORD`. Each variant holds the wrong part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadHost {
    /// Not an absolute directory.
    #[error("'{0}' is not a directory for data: write data=/DIR")]
    Data(String),
    /// Not an amount of memory.
    #[error("'{0}' is not an amount of memory: write memory=2GiB")]
    Memory(String),
    /// Not a port for Redis clients.
    #[error("'{0}' is not a port for Redis clients: write resp=6379")]
    Resp(String),
    /// The port for Redis clients is that of the node.
    #[error("the node itself listens on port {0}; choose another for Redis clients, as in resp=6379")]
    RespOfNode(u16),
    /// Not a role.
    #[error("'{0}' is not a role: write letters, digits and '-', or data=/DIR, memory=SIZE or resp=PORT")]
    Role(String),
    /// Not a host name.
    #[error(
        "'{0}' is not a name for a host: write NAME or NAME=ADDRESS:PORT, perhaps followed by @ROLE, with letters, \
         digits, '-' and '.'"
    )]
    Name(String),
    /// A prefix of paths of another kind, such as `volume:`.
    #[error("a host cannot be called '{0}': paths that begin with {0}: mean something else")]
    Reserved(String),
    /// Not an address.
    #[error(
        "'{0}' is not an address: write a name or an address, perhaps followed by :PORT, and other words behind an @"
    )]
    Address(String),
}

/// What is wrong with the list of hosts and clients in a cluster file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadFile {
    /// Two hosts or clients have names that differ at most in case.
    #[error(
        "'{}' is there twice{}; names of hosts and clients must differ in more than case, and thalweg cluster drop \
         frees one",
        .0,
        if .0 == .1 { String::new() } else { format!(", as '{}' too", .1) }
    )]
    SameName(String, String),
    /// Two hosts have this address.
    #[error("two hosts are at {0}; give each a port of its own")]
    SameAddress(String),
    /// There are no hosts, or too many.
    #[error("{0} hosts, and a cluster has 1 to {HOSTS_MAX}")]
    Hosts(usize),
    /// There are too many clients.
    #[error("{0} clients, and a cluster has at most {CLIENTS_MAX}")]
    Clients(usize),
    /// The silence after which a peer counts as dead is too short or too long.
    #[error(
        "a host cannot count as dead after {ms} ms; write a time from {}ms to {}m",
        DEAD_MS.start(),
        DEAD_MS.end() / 60_000
    )]
    DeadAfter {
        /// The silence in milliseconds.
        ms: u64,
    },
}

/// Why a cluster file that a peer sent was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// It is not signed by the authority, or not a cluster file.
    #[error("the cluster file is rejected: {0}")]
    NotVerified(NotVerified),
    /// It describes the cluster with this id.
    #[error("the cluster file is of another cluster, {0}")]
    OtherCluster(String),
    /// Its epoch is smaller than that of the present file.
    #[error("the cluster file has epoch {epoch}, and this node has epoch {present} already")]
    Older {
        /// The epoch of the file.
        epoch: u64,
        /// The epoch of the present file.
        present: u64,
    },
    /// It differs from the present file and has the same epoch.
    #[error(
        "another cluster file has the same epoch {0}; any change by the owner, such as thalweg cluster renew, makes \
         a newer one"
    )]
    SameEpoch(u64),
}
