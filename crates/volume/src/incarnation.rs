//! The incarnations of a volume's manager: plain data.
//!
//! Model: each opening of a manager that changes something is an *incarnation* of it, with a higher number than the one
//! before, and random bits. See hold.rs.

use std::fmt;

use thalweg_io::hidden;

use crate::codec::record;
use crate::{Error, Result};

/// The most bytes of a place.
pub(crate) const PLACE_BYTES_MAX: usize = 400;
/// An inode's number has the number of the incarnation that made it above this many bits, so no two incarnations make
/// the same.
const INODE_BITS: u32 = 36;
/// The first number that would not fit.
const NUMBER_END: u64 = 1 << (63 - INODE_BITS);

/// An incarnation of a volume's manager; the default is that of a volume that was never changed, or by a version that
/// knew of none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Incarnation {
    pub(crate) number: u64,
    pub(crate) bits: [u64; 2],
}

/// Without the bits, which would differ in the trace of each run of a simulation.
impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incarnation {}", self.number)
    }
}

/// An incarnation, and where its manager is: `NODE:/DIR`, or a directory of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) incarnation: Incarnation,
    pub(crate) place: String,
}

/// What a store says of its holder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) holder: Holder,
    /// Its manager is connected now, and is not in the place of the one who asks.
    pub(crate) is_served: bool,
}

record!(Incarnation { number, bits });
record!(Holder { incarnation, place });
record!(Held { holder, is_served });

impl Incarnation {
    /// A new one, with this number.
    pub(crate) fn new(number: u64) -> Result<Incarnation> {
        match number < NUMBER_END {
            true => Ok(Incarnation { number, bits: [hidden::random(), hidden::random()] }),
            false => Err(Error::Refused(format!(
                "the manager was opened {number} times, and no more are possible; pump its files to a new volume"
            ))),
        }
    }

    /// The first number of an inode that it makes.
    pub(crate) fn first_inode(&self) -> u64 {
        self.number << INODE_BITS
    }
}

impl Holder {
    /// Whether its manager is on this node. Of a long place, only the end is known.
    pub(crate) fn is_on(&self, node: &str) -> bool {
        let is_whole = self.place.len() < PLACE_BYTES_MAX;
        !is_whole || self.place.strip_prefix(node).is_some_and(|rest| rest.starts_with(':'))
    }

    /// Of a store whose file cannot be understood. It is unknown to every manager.
    pub(crate) fn unknown() -> Holder {
        Holder {
            incarnation: Incarnation { number: 0, bits: [u64::MAX; 2] },
            place: "an unknown place".into(),
        }
    }
}
