//! The errors of a river. Each message is one line that says what, where and how much, and often the remedy.

use thalweg_base::units::Bytes;
use thalweg_record::Layout;

use crate::core::Fault;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a river failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The protocol was violated, or a proof does not hold.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A batch does not agree with its head: split and lane.
    #[error("a batch of split {0} for lane {1} is not what its head says; run again")]
    Damaged(u64, u32),
    /// An outlet disconnected before the end.
    #[error("outlet {0} has gone before the river's end; run again")]
    Gone(usize),
    /// The input ends inside a record.
    #[error("the input ends after {bytes} bytes of a record that begins at {at}")]
    Unfinished {
        /// Where the record begins.
        at: u64,
        /// The bytes of it that exist.
        bytes: usize,
        /// The layout of the records.
        layout: Layout,
    },
    /// A record is longer than the maximum: its offset, and the maximum.
    #[error("a record that begins at {} is longer than {}, the most that memory has room for", .0, Bytes(*.1))]
    TooLong(u64, u64),
    /// The partitioner returned a lane that does not exist: the lane, and the number of lanes.
    #[error("the partitioner chose lane {0}, and there are {1}")]
    NoLane(usize, usize),
    /// A block does not follow the one before: its offset, and the expected one.
    #[error("a block at {0} was put where {1} follows")]
    Gap(u64, u64),
    /// This end was stopped.
    #[error("it was stopped")]
    Stopped,
    /// The configuration is invalid.
    #[error("{0}")]
    Shape(&'static str),
    /// Memory could not be mapped.
    #[error(transparent)]
    Memory(#[from] thalweg_block::PoolError),
    /// The link to another process failed. The number is that of the end in the other process.
    #[error("{1}")]
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
