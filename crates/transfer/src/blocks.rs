//! The blocks of a transfer, and how many a lane holds.

use thalweg_base::units::MIB;

/// The size of a block, which is read or written in one operation.
pub const BLOCK_BYTES: usize = MIB as usize;
/// How many reads each lane has in flight, and how many writes.
pub const DEPTH: usize = 16;
/// The blocks that a lane can hold: those in flight, the one that it works on, and one to read files back.
pub(crate) const LANE_BLOCKS: usize = 2 * DEPTH + 2;
/// The blocks with data from a peer that a lane can hold: those with credits, those being written, and the one that it
/// works on.
pub(crate) const RECEIVE_BLOCKS: usize = 2 * DEPTH;
