//! Errors of tables in memory and on a cluster: what failed, where, and the remedy if there is one.

use std::fmt;

use thalweg_api::TableForm;

use super::client::Failed;
use super::message::Refused;
use crate::slab::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The most names of nodes in a message.
const NAMED_MAX: usize = 5;

/// Results of tables.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a table failed.
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
    /// These nodes did not answer for ten seconds.
    Silent {
        /// The node that has the key, if that is known; or else those that may have it.
        nodes: Vec<String>,
        /// The nodes that answered that they do not have it, if it is not known which node has.
        without: Vec<String>,
    },
    /// It is not known whether a change was made, for this reason: no node has said so, and one may still make it. A
    /// later read shows. A change of a record that fails with any other error than this and [`Error::Lost`] was not made.
    Uncertain(Box<Error>),
    /// The memory of this process for the table is full; its limit is this many bytes.
    MemoryFull(usize),
    /// The memory for a table in this process is too little.
    LittleMemory {
        /// The bytes that were given.
        given: usize,
        /// The least bytes.
        least: usize,
    },
    /// Records can only be loaded into a table without records.
    NotEmpty {
        /// The table.
        table: String,
        /// The records that it has.
        records: u64,
    },
    /// Two records of a load have this key.
    Duplicate(String),
    /// The record with this key is before another with a greater key.
    Unordered(String),
    /// A record of a loaded table has the wrong length.
    WrongForm {
        /// The bytes of a key of this table, and of a value.
        of: [usize; 2],
        /// Those of the record.
        given: [usize; 2],
    },
    /// The records of this table are keys with values, not records of one length.
    NoForm(String),
    /// A key is too long; it has this many bytes.
    LongKey(usize),
    /// A value is too long; it has this many bytes.
    LongValue(usize),
    /// The client may only read.
    ReadOnly,
    /// The table was dropped, or loaded, since it was opened.
    Dropped,
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
            Error::Silent { nodes, without } => {
                match &nodes[..] {
                    [] => f.write_str("no node answered within ten seconds that has the key")?,
                    nodes => write!(f, "{} did not answer within ten seconds", names(nodes))?,
                }
                match &without[..] {
                    [] => Ok(()),
                    without => write!(f, "; {} answered, without having the key", names(without)),
                }
            }
            Error::Uncertain(why) => write!(f, "{why}; the change may have been made"),
            Error::MemoryFull(bytes) => {
                let remedy = "delete records, or give it more";
                write!(f, "the {bytes} bytes of memory of this table are full; {remedy}")
            }
            Error::LittleMemory { given, least } => {
                write!(f, "{given} bytes of memory are too little for a table; the least is {least}")
            }
            Error::NotEmpty { table, records } => write!(
                f,
                "the table '{table}' has {records} records, and only a table without records is loaded; drop it and create it again, or load another"
            ),
            Error::Duplicate(key) => write!(f, "two records have the key '{key}'"),
            Error::Unordered(key) => {
                write!(
                    f,
                    "the record with the key '{key}' comes after one with a greater key; sort the records by the key"
                )
            }
            Error::WrongForm { of: [key, value], given } => write!(
                f,
                "a record of this table has a key of {key} bytes and a value of {value}, not of {} and {}",
                given[0], given[1]
            ),
            Error::NoForm(table) => write!(
                f,
                "the table '{table}' was not loaded, so its records are keys with values, not records of one length; read them with thalweg table range"
            ),
            Error::LongKey(bytes) => {
                write!(f, "a key of {bytes} bytes is too long; a key has at most {KEY_BYTES_MAX} bytes")
            }
            Error::LongValue(bytes) => {
                write!(f, "a value of {bytes} bytes is too long; a value has at most {VALUE_BYTES_MAX} bytes")
            }
            Error::ReadOnly => f.write_str("this certificate may only look, not change records"),
            Error::Dropped => {
                f.write_str("the table was dropped or loaded since it was opened; open it again")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Names in a message; of many, the first ones and the number of the others.
fn names(nodes: &[String]) -> String {
    match nodes {
        [one] => one.clone(),
        [all @ .., last] if all.len() < NAMED_MAX => format!("{} and {last}", all.join(", ")),
        many => format!("{} and {} others", many[..NAMED_MAX].join(", "), many.len() - NAMED_MAX),
    }
}

impl Error {
    /// The key and the value do not make a record of this form.
    pub(crate) fn wrong_form(form: &TableForm, key: &[u8], value: &[u8]) -> Error {
        let of = [form.key_bytes, form.record_bytes - form.key_bytes].map(|bytes| bytes as usize);
        Error::WrongForm { of, given: [key.len(), value.len()] }
    }

    /// The table of this name is being dropped.
    pub(crate) fn dropping(name: &str) -> Error {
        let when = "its name is free when all nodes that may have a part of it have confirmed that";
        Error::Refused(format!("the table '{name}' is being dropped; {when}"))
    }

    /// A drop that is not finished, as these nodes have not confirmed it.
    pub(crate) fn not_dropped(name: &str, nodes: &[String]) -> Error {
        let nodes = if nodes.is_empty() { "a node".into() } else { names(nodes) };
        Error::Refused(format!(
            "the table '{name}' is not dropped yet: {nodes} did not confirm it, and may serve a part of it; start what has \
ended, repair the network, or remove it from the cluster, and the drop is finished by itself"
        ))
    }

    /// A load into an empty table that these nodes have not given up.
    pub(crate) fn not_replaced(name: &str, nodes: &[String]) -> Error {
        let nodes = if nodes.is_empty() { "a node".into() } else { names(nodes) };
        Error::Refused(format!(
            "the table '{name}' is loaded, but {nodes} did not confirm that the empty one from before is gone: what programs \
that have it open put into it is lost; they have to open the table again"
        ))
    }

    pub(crate) fn refused(why: impl fmt::Display) -> Error {
        Error::Refused(why.to_string())
    }
}

/// Checks that a key and a value are within their limits.
///
/// # Errors
/// If one of them is too long.
pub(crate) fn fits(key: &[u8], value: &[u8]) -> Result<()> {
    match (key.len(), value.len()) {
        (bytes, _) if bytes > KEY_BYTES_MAX => Err(Error::LongKey(bytes)),
        (_, bytes) if bytes > VALUE_BYTES_MAX => Err(Error::LongValue(bytes)),
        _ => Ok(()),
    }
}

impl From<Refused> for Error {
    fn from(why: Refused) -> Error {
        match why {
            Refused::Full(node) => Error::Full(node.to_string()),
            Refused::Lost(node) => Error::Lost(node.to_string()),
            Refused::Unreachable(node) => Error::Unreachable(node.to_string()),
            Refused::Busy(node) | Refused::Far(node) => Error::Busy(node.to_string()),
            Refused::Long => Error::Refused("a node found the request too long, or malformed".into()),
            Refused::ReadOnly => Error::ReadOnly,
            Refused::Dropped => Error::Dropped,
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
            Failed::Silent { silent, without } => {
                let names = |nodes: Vec<_>| nodes.iter().map(ToString::to_string).collect();
                Error::Silent { nodes: names(silent), without: names(without) }
            }
            Failed::Uncertain(why) => Error::Uncertain(Box::new((*why).into())),
        }
    }
}
