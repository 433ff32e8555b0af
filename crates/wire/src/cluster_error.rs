//! What can go wrong with a cluster or its nodes.

use std::fmt;

use crate::{IdentityError, LinkError};

/// Results of what is done with a cluster or its nodes.
pub type ClusterResult<T> = std::result::Result<T, ClusterError>;

/// Why something could not be done with a cluster or its nodes. One line each.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClusterError {
    /// An identity cannot be read, made or used.
    Identity(IdentityError),
    /// A link broke or was refused.
    Link(LinkError),
    /// A file cannot be read or written.
    Io(thalweg_io::Error),
    /// What was asked for cannot be.
    Asked(String),
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterError::Identity(why) => write!(f, "{why}"),
            ClusterError::Link(why) => write!(f, "{why}"),
            ClusterError::Io(why) => write!(f, "{why}"),
            ClusterError::Asked(why) => f.write_str(why),
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
