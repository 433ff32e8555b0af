//! How a node's memory is divided between its rivers and what comes out of them.
//!
//! Invariant: the nodes of one process keep its memory limit together, as one node of a cluster keeps its own.

use thalweg_base::units::MIB;

use super::{WRITE_BYTES, WRITES};
use crate::verbs::MEMORY_BYTES_MIN;
use crate::{Needs, Result, TooLittleMemory};

/// Rivers have at least 1/`RIVER_SHARE` of the memory.
const RIVER_SHARE: u64 = 6;
/// The sorter has room for this many equal shares of the bytes before the river gets more than its least share: if
/// nodes are unequal, one may have several times an equal share.
const RANGE_ROOM: u64 = 4;
/// The river may have up to 1/`RIVER_SHARE_MAX` of the memory more.
const RIVER_SHARE_MAX: u64 = 3;
/// Code of a node, and small allocations of its services, that are resident beside what a sorter counts.
const NODE_BYTES: u64 = 3 * MIB;
/// The blocks of a partition's parts have 1/`PARTS_SHARE` of its memory.
const PARTS_SHARE: u64 = 4;

/// Memory, and how many nodes have it: one, or all of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) bytes: u64,
    pub(super) nodes: usize,
}

/// The part of a node's memory that is left for its sorter.
pub(crate) fn sorter_bytes(bytes: u64) -> Result<u64> {
    Memory { bytes, nodes: 1 }.of_sorter()
}

impl Memory {
    /// The memory of each node.
    pub(super) fn of_node(self) -> u64 {
        self.bytes / self.nodes as u64
    }

    /// The memory of the river in all, and of each node's sorter, for ranges of `range_bytes` bytes.
    pub(super) fn of_sort(self, range_bytes: u64) -> Result<(u64, u64)> {
        let sorter_bytes = self.of_sorter()?;
        if self.nodes > 1 {
            return Ok((self.river(), sorter_bytes));
        }
        // Memory that ranges do not need makes pages and batches larger, which costs less; ranges may differ in size.
        let spare = sorter_bytes.saturating_sub(RANGE_ROOM * range_bytes);
        let spare = spare.min(sorter_bytes - MEMORY_BYTES_MIN).min(self.bytes / RIVER_SHARE_MAX);
        Ok((self.river() + spare, sorter_bytes - spare))
    }

    /// The memory that is left for each node's sorter.
    fn of_sorter(self) -> Result<u64> {
        self.beside_rivers(MEMORY_BYTES_MIN)
    }

    /// The memory of each river of a join, and of each node's two sorters and the join itself.
    pub(super) fn of_join(self) -> Result<(u64, u64)> {
        // An eighth is for the join itself: for records that match several others.
        let rest_bytes = self.beside_rivers(2 * MEMORY_BYTES_MIN / 7 * 8)?;
        // Nodes of one process may still empty the first river while others fill the second.
        let rivers = self.nodes.min(2) as u64;
        Ok((self.river() / rivers, rest_bytes))
    }

    /// The memory of the river in all, and of the blocks of each node's parts.
    pub(super) fn of_partition(self) -> Result<(u64, u64)> {
        let left = self.bytes / PARTS_SHARE * (PARTS_SHARE - 1);
        if left < MEMORY_BYTES_MIN {
            return Err(self.too_little(MEMORY_BYTES_MIN / (PARTS_SHARE - 1) * PARTS_SHARE));
        }
        Ok((left, (self.bytes - left) / self.nodes as u64))
    }

    fn river(self) -> u64 {
        (self.bytes / RIVER_SHARE).max(MEMORY_BYTES_MIN)
    }

    /// The memory of each node beside the rivers and its writes; an error if it is less than `least`.
    fn beside_rivers(self, least: u64) -> Result<u64> {
        let nodes = self.nodes as u64;
        let writes = nodes * ((WRITES + 1) * WRITE_BYTES) as u64;
        let left = self.bytes.saturating_sub(self.river() + writes) / nodes;
        if left < least {
            let beside = writes + nodes * least;
            // The rivers' share is of all memory, so it grows too.
            let needed = (beside + MEMORY_BYTES_MIN).max((beside * RIVER_SHARE).div_ceil(RIVER_SHARE - 1));
            return Err(self.too_little(needed.next_multiple_of(MIB)));
        }
        Ok(if nodes == 1 { left.saturating_sub(NODE_BYTES).max(least) } else { left })
    }

    fn too_little(self, needed: u64) -> crate::Error {
        let by = if self.nodes == 1 { Needs::Node } else { Needs::Nodes(self.nodes) };
        TooLittleMemory { given: self.bytes, by, needed: Some(needed) }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two thirds more than the average went to scratch, with all of it in 160 MiB.
    #[test]
    fn a_node_that_is_faster_than_others_has_room_for_more_than_they() {
        let (bytes, average) = (160 * MIB, 150_000_000 / 4);
        let memory = Memory { bytes, nodes: 1 };
        let (river, sorter) = memory.of_sort(average).unwrap();
        assert!(river + sorter <= bytes && sorter >= average * 5 / 3 * 3 / 2, "{river} and {sorter}");
        let (more, _) = memory.of_sort(average / 8).unwrap();
        assert!(more > river, "what small ranges leave is the river's");
    }
}
