//! The errors of a river. Each message is one line that says what, where and how much, and often what helps.

use std::fmt;

use thalweg_base::units::Bytes;
use thalweg_record::Layout;

use crate::core::Fault;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a river failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The protocol was violated, or a proof does not hold.
    Fault(Fault),
    /// A batch does not agree with its head: split and lane.
    Damaged(u64, u32),
    /// An outlet disconnected before the end.
    Gone(usize),
    /// The input ends inside a record.
    Unfinished {
        /// Where the record begins.
        at: u64,
        /// The bytes of it that exist.
        bytes: usize,
        /// The layout of the records.
        layout: Layout,
    },
    /// A record is longer than the maximum: its offset, and the maximum.
    TooLong(u64, u64),
    /// The partitioner returned a lane that does not exist: the lane, and the number of lanes.
    NoLane(usize, usize),
    /// A block does not follow the one before: its offset, and the expected one.
    Gap(u64, u64),
    /// This end was stopped.
    Stopped,
    /// The configuration is invalid.
    Shape(&'static str),
    /// Memory could not be mapped.
    Memory(thalweg_block::PoolError),
    /// The link to another process failed. The number is that of the end there.
    Link(usize, thalweg_wire::LinkError),
}

impl Error {
    /// Whether another end disconnected or cannot be reached. That end knows why.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Gone(_) | Error::Link(..) | Error::Fault(Fault::Lost(_)))
    }

    /// The number of the end that disconnected, if it is known.
    pub fn missed(&self) -> Option<usize> {
        match self {
            Error::Gone(end) | Error::Link(end, _) | Error::Fault(Fault::Lost(end)) => Some(*end),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Fault(fault) => write!(f, "{fault}"),
            Error::Stopped => write!(f, "it was stopped"),
            Error::Damaged(split, lane) => {
                write!(f, "a batch of split {split} for lane {lane} is not what its head says; run again")
            }
            Error::Gone(outlet) => write!(f, "outlet {outlet} has gone before the river's end; run again"),
            Error::Unfinished { at, bytes, .. } => {
                write!(f, "the input ends after {bytes} bytes of a record that begins at {at}")
            }
            Error::TooLong(at, most) => write!(
                f,
                "a record that begins at {at} is longer than {}, the most that memory has room for",
                Bytes(*most)
            ),
            Error::NoLane(lane, lanes) => {
                write!(f, "the partitioner chose lane {lane}, and there are {lanes}")
            }
            Error::Gap(at, expected) => write!(f, "a block at {at} was put where {expected} follows"),
            Error::Shape(why) => f.write_str(why),
            Error::Memory(error) => write!(f, "{error}"),
            Error::Link(_, error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Fault(fault)
    }
}

impl From<thalweg_block::PoolError> for Error {
    fn from(error: thalweg_block::PoolError) -> Error {
        Error::Memory(error)
    }
}
