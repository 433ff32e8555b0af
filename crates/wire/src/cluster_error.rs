//! Errors of clusters and of their hosts.

use std::fmt;
use std::path::PathBuf;

use crate::cluster::{CLIENTS_MAX, HOSTS_MAX};
use crate::{IdentityError, LinkError};

/// The result of an operation on a cluster.
pub type ClusterResult<T> = std::result::Result<T, ClusterError>;

/// Why an operation on a cluster failed. Each message is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClusterError {
    /// An identity cannot be read, made or used.
    Identity(IdentityError),
    /// A link broke or was refused.
    Link(LinkError),
    /// A file cannot be read or written.
    Io(thalweg_io::Error),
    /// A new host was described wrongly.
    BadHost(BadHost),
    /// A client cannot have this name.
    BadClientName(String),
    /// The address of a host cannot be resolved on this machine.
    UnknownAddress {
        /// The host.
        host: String,
        /// Its address in the cluster file.
        address: String,
    },
    /// Another user owns the directory, and could replace the identities in it.
    NotOwned(PathBuf),
    /// The directory contains a cluster already.
    Exists(PathBuf),
    /// The cluster has a host of this name already.
    HostExists {
        /// The host.
        host: String,
        /// The cluster.
        cluster: String,
        /// The address of the host.
        address: String,
    },
    /// The owner's own certificate cannot be dropped. This is its name.
    OwnersCertificate(&'static str),
    /// The cluster has no host of this name.
    UnknownHost {
        /// The name that was given.
        host: String,
        /// The cluster.
        cluster: String,
        /// Its hosts.
        hosts: Vec<String>,
    },
    /// No host of the cluster has this role.
    UnknownRole {
        /// The role that was given.
        role: String,
        /// The cluster.
        cluster: String,
        /// The roles of its hosts.
        roles: Vec<String>,
    },
    /// The identity in a directory belongs to another cluster than the one that was named.
    OtherCluster {
        /// The directory.
        directory: PathBuf,
        /// The cluster of the identity.
        cluster: String,
        /// The cluster that was named.
        named: String,
    },
    /// A node was given the identity of a client.
    ClientIdentity,
    /// A node without an identity belongs to no cluster.
    NoIdentity,
    /// A cluster file contradicts itself or exceeds a limit.
    BadFile(BadFile),
    /// A cluster file that a peer sent cannot replace the present one.
    Rejected(Rejected),
    /// A file is not text.
    NotText(PathBuf),
    /// An identifier or a certificate cannot be parsed.
    Malformed(String),
    /// A file or directory of an identity cannot be used.
    Unusable {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: Box<ClusterError>,
    },
    /// The system has no thread left for a link.
    NoThread,
    /// An exchange or a probe between nodes failed; the text says how.
    Asked(String),
}

/// What is wrong with the description of a host, `NAME=ADDRESS:PORT@WORD,WORD`. Each variant holds the wrong word.
#[derive(Debug)]
#[non_exhaustive]
pub enum BadHost {
    /// Not an absolute directory.
    Data(String),
    /// Not an amount of memory.
    Memory(String),
    /// Not a role.
    Role(String),
    /// Not a host name.
    Name(String),
    /// A word that begins paths of another kind, such as `volume:`.
    Reserved(String),
    /// Not an address.
    Address(String),
}

/// What is wrong with the list of hosts and clients in a cluster file.
#[derive(Debug)]
#[non_exhaustive]
pub enum BadFile {
    /// Two hosts or clients have names that differ at most in case.
    SameName(String, String),
    /// Two hosts have this address.
    SameAddress(String),
    /// There are no hosts, or too many.
    Hosts(usize),
    /// There are too many clients.
    Clients(usize),
}

/// Why a cluster file that a peer sent was rejected.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejected {
    /// It is not signed by the authority, or not a cluster file.
    NotVerified(String),
    /// It describes the cluster with this id.
    OtherCluster(String),
    /// Its epoch is smaller than that of the present file.
    Older {
        /// The epoch of the file.
        epoch: u64,
        /// The epoch of the present file.
        present: u64,
    },
    /// It differs from the present file and has the same epoch.
    SameEpoch(u64),
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterError::Identity(why) => write!(f, "{why}"),
            ClusterError::Link(why) => write!(f, "{why}"),
            ClusterError::Io(why) => write!(f, "{why}"),
            ClusterError::BadHost(why) => write!(f, "{why}"),
            ClusterError::BadClientName(name) => {
                write!(f, "'{name}' is not a name for a client: use letters, digits, '-' and '.'")
            }
            ClusterError::UnknownAddress { host, address } => {
                write!(f, "{host}: the address '{address}' is not known here")
            }
            ClusterError::NotOwned(directory) => {
                write!(f, "{} belongs to another user; choose another directory", directory.display())
            }
            ClusterError::Exists(directory) => write!(
                f,
                "{} holds a cluster already; thalweg cluster add adds hosts to it",
                directory.display()
            ),
            ClusterError::HostExists { host, cluster, address } => write!(
                f,
                "'{host}' is a host of cluster {cluster} already, at {address}; give the new one another name, or \
                 thalweg cluster drop {host} first"
            ),
            ClusterError::OwnersCertificate(name) => write!(
                f,
                "'{name}' is the owner's own certificate, and the cluster cannot be changed without it; thalweg cluster \
                 renew makes a new one"
            ),
            ClusterError::UnknownHost { host, cluster, hosts } => {
                write!(f, "'{host}' is not a host of cluster {cluster}, which has {}", hosts.join(", "))
            }
            ClusterError::UnknownRole { role, cluster, roles } => {
                let roles = if roles.is_empty() { "none".into() } else { roles.join(", ") };
                write!(f, "'{role}' is not a role of cluster {cluster}, which has {roles}")
            }
            ClusterError::OtherCluster { directory, cluster, named } => {
                write!(f, "the identity in {} is of cluster {cluster}, not of {named}", directory.display())
            }
            ClusterError::ClientIdentity => f.write_str(
                "that is a client's identity, and a node needs a host's: cluster init puts these in hosts/",
            ),
            ClusterError::NoIdentity => f.write_str("a node without identity is of no cluster"),
            ClusterError::BadFile(why) => write!(f, "{why}"),
            ClusterError::Rejected(why) => write!(f, "{why}"),
            ClusterError::NotText(path) => write!(f, "{} is not readable text", path.display()),
            ClusterError::Malformed(why) => f.write_str(why),
            ClusterError::Unusable { path, why } => write!(f, "{} cannot be used: {why}", path.display()),
            ClusterError::NoThread => f.write_str("the system has no thread left for a link"),
            ClusterError::Asked(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for BadHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHost::Data(word) => write!(f, "'{word}' is not a directory for data: write data=/DIR"),
            BadHost::Memory(word) => write!(f, "'{word}' is not an amount of memory: write memory=2GiB"),
            BadHost::Role(word) => write!(
                f,
                "'{word}' is not a role: write letters, digits and '-', or data=/DIR, or memory=SIZE"
            ),
            BadHost::Name(name) => write!(
                f,
                "'{name}' is not a name for a host: write NAME or NAME=ADDRESS:PORT, perhaps followed by @ROLE, with \
                 letters, digits, '-' and '.'"
            ),
            BadHost::Reserved(name) => {
                write!(
                    f,
                    "a host cannot be called '{name}': paths that begin with {name}: mean something else"
                )
            }
            BadHost::Address(address) => write!(
                f,
                "'{address}' is not an address: write a name or an address, perhaps followed by :PORT, and other words \
                 behind an @"
            ),
        }
    }
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadFile::SameName(one, other) => {
                let too = if one == other { String::new() } else { format!(", as '{other}' too") };
                write!(
                    f,
                    "'{one}' is there twice{too}; names of hosts and clients must differ in more than case, and \
                     thalweg cluster drop frees one"
                )
            }
            BadFile::SameAddress(address) => {
                write!(f, "two hosts are at {address}; give each a port of its own")
            }
            BadFile::Hosts(hosts) => write!(f, "{hosts} hosts, and a cluster has 1 to {HOSTS_MAX}"),
            BadFile::Clients(clients) => {
                write!(f, "{clients} clients, and a cluster has at most {CLIENTS_MAX}")
            }
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::NotVerified(why) => write!(f, "the cluster file is rejected: {why}"),
            Rejected::OtherCluster(id) => write!(f, "the cluster file is of another cluster, {id}"),
            Rejected::Older { epoch, present } => {
                write!(f, "the cluster file has epoch {epoch}, and this node has epoch {present} already")
            }
            Rejected::SameEpoch(epoch) => write!(
                f,
                "another cluster file has the same epoch {epoch}; any change by the owner, such as thalweg cluster \
                 renew, makes a newer one"
            ),
        }
    }
}

impl std::error::Error for ClusterError {}

impl From<IdentityError> for ClusterError {
    fn from(e: IdentityError) -> ClusterError {
        ClusterError::Identity(e)
    }
}

impl From<LinkError> for ClusterError {
    fn from(e: LinkError) -> ClusterError {
        ClusterError::Link(e)
    }
}

impl From<thalweg_io::Error> for ClusterError {
    fn from(e: thalweg_io::Error) -> ClusterError {
        ClusterError::Io(e)
    }
}

impl From<BadHost> for ClusterError {
    fn from(e: BadHost) -> ClusterError {
        ClusterError::BadHost(e)
    }
}

impl From<BadFile> for ClusterError {
    fn from(e: BadFile) -> ClusterError {
        ClusterError::BadFile(e)
    }
}

impl From<Rejected> for ClusterError {
    fn from(e: Rejected) -> ClusterError {
        ClusterError::Rejected(e)
    }
}
