//! Errors of tables on a cluster: what failed, where, and the remedy if there is one.

use std::fmt;

use super::client::Failed;
use super::message::Refused;
use crate::slab::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Results of tables.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a table of a cluster failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The request is not possible, or a node cannot be reached for it.
    Refused(String),
    /// The memory of this node is full, and no other has room.
    Full(String),
    /// This node neither has these records nor knows which node does: the node that had them was restarted.
    Lost(String),
    /// The node with the records cannot be reached.
    Unreachable(String),
    /// This node has too many answers to send or to store at the moment.
    Busy(String),
    /// No node answered for ten seconds. A change may have been made.
    Silent(String),
    /// The key or the value is too long.
    Long,
    /// The client may only read.
    ReadOnly,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(why) => f.write_str(why),
            Error::Full(node) => {
                write!(
                    f,
                    "the memory for tables on {node} is full, and no other node has room; delete records, or add a node"
                )
            }
            Error::Lost(node) => write!(
                f,
                "{node} does not know where these records are: a node that had them has been restarted, and they are lost; thalweg table status says which"
            ),
            Error::Unreachable(node) => {
                write!(f, "{node} has these records, and cannot be reached; start it, or repair the network")
            }
            Error::Busy(node) => write!(f, "{node} was asked for too much at a time; try again"),
            Error::Silent(node) => {
                write!(
                    f,
                    "{node} did not answer within ten seconds; a change that was asked for may have been done"
                )
            }
            Error::Long => {
                write!(f, "a key has at most {KEY_BYTES_MAX} bytes, and a value at most {VALUE_BYTES_MAX}")
            }
            Error::ReadOnly => f.write_str("this certificate may only look, not change records"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn refused(why: impl fmt::Display) -> Error {
        Error::Refused(why.to_string())
    }
}

impl From<Refused> for Error {
    fn from(why: Refused) -> Error {
        match why {
            Refused::Full(node) => Error::Full(node.to_string()),
            Refused::Lost(node) => Error::Lost(node.to_string()),
            Refused::Unreachable(node) => Error::Unreachable(node.to_string()),
            Refused::Busy(node) | Refused::Far(node) => Error::Busy(node.to_string()),
            Refused::Long => Error::Long,
            Refused::ReadOnly => Error::ReadOnly,
            Refused::Underway(node) => Error::Refused(format!(
                "{node} is still sending the bucket to another node; thalweg table status shows when it is done"
            )),
            Refused::NoRoom(Some(node)) => Error::Refused(format!(
                "{node} has no room for the bucket, or cannot be reached; thalweg table status shows the memory of each node"
            )),
            Refused::NoRoom(None) => Error::Refused(
                "no other node has room for the bucket; thalweg table status shows the memory of each node"
                    .into(),
            ),
            Refused::Here(node) => {
                Error::Refused(format!("{node} has the bucket with this key already; name another node"))
            }
        }
    }
}

impl From<Failed> for Error {
    fn from(why: Failed) -> Error {
        match why {
            Failed::Refused(why) => why.into(),
            Failed::Silent(node) => Error::Silent(node.to_string()),
        }
    }
}
