//! How memory is laid out for a partition: pages of the input, batches of the river, blocks of the parts.
//!
//! Invariant: pages depend on the memory and the number of parts only, so that what a part gets does not depend on the
//! number of threads. Where threads would not fit, there are fewer.

use thalweg_base::units::{KIB, MIB};
use thalweg_record::{Key, Layout};
use thalweg_river::{Builder as RiverBuilder, HEAD_BYTES, Partitioner, River, window};

use crate::{Needs, Result, TooLittleMemory};

/// Memory of a process beside its blocks.
const BASE_BYTES: u64 = 6 * MIB;
/// One page may take 1/`PAGE_SHARE` of the memory for blocks.
const PAGE_SHARE: u64 = 24;
/// Bytes of a page that each part should get: batches are about as large.
const PAGE_BYTES_FOR_PART: u64 = 256 * KIB;
const PAGE_BYTES: (u64, u64) = (16 * KIB, 4 * MIB);
/// The most and the least bytes that are written at once.
const WRITE_BYTES: (u64, u64) = (MIB, 4 * KIB);
const SECTOR: u64 = 4 * KIB;
/// Reads in flight for each inlet, and writes for each outlet.
pub(in crate::verbs) const READS: usize = 3;
pub(in crate::verbs) const WRITES: usize = 6;
/// Full batches that wait in an inlet: of one lane, and of all.
const QUEUED: (usize, usize) = (4, 8);
/// Credits of an inlet at an outlet.
const EXCLUSIVE: u64 = 2;
/// The most credits of one node at another: twice what a link holds in either direction.
const EXCLUSIVE_OF_NODE: u64 = 24;
/// With this many, credits are not scarce.
const EXCLUSIVE_OF_WIDE: u64 = 8;

/// Sizes of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::verbs) struct Shape {
    pub(in crate::verbs) inlets: usize,
    pub(in crate::verbs) outlets: usize,
    pub(in crate::verbs) page_bytes: usize,
    pub(in crate::verbs) batch_bytes: usize,
    pub(in crate::verbs) write_bytes: usize,
    pub(in crate::verbs) exclusive: u64,
    pub(in crate::verbs) float: u64,
    /// Blocks that each stream of a link has reserved at once.
    pub(in crate::verbs) window: usize,
    /// The longest record that may be held, and the room for a sample.
    pub(in crate::verbs) record_max: u64,
    pub(in crate::verbs) sample_bytes: u64,
}

impl Shape {
    /// The shape for this many parts in this much memory, on at most this many threads.
    pub(in crate::verbs) fn of(
        memory_bytes: u64,
        parts: usize,
        threads: usize,
        layout: Layout,
    ) -> Result<Shape> {
        let room = memory_bytes.saturating_sub(BASE_BYTES);
        let page_bytes = page_for(room, parts, layout);
        let with = |threads: usize| Shape::fitting(room, parts, (threads, threads.min(parts)), page_bytes);
        let too_little = TooLittleMemory { given: memory_bytes, by: Needs::Parts(parts), needed: None };
        (1..=threads).rev().find_map(with).ok_or(too_little.into())
    }

    /// The shape for all nodes of this process, each with an inlet and an outlet, and with `lanes` lanes. Pages are
    /// smaller if all of them would not fit with large ones.
    pub(in crate::verbs) fn of_process(
        memory_bytes: u64,
        (nodes, lanes): (usize, usize),
        layout: Layout,
    ) -> Result<Shape> {
        let room = memory_bytes.saturating_sub(BASE_BYTES);
        let mut page_bytes = page_for(room, lanes, layout);
        loop {
            if let Some(shape) = Shape::fitting(room, lanes, (nodes, nodes), page_bytes) {
                return Ok(Shape { sample_bytes: shape.sample_bytes / nodes as u64, ..shape });
            }
            let smaller = whole_records(page_bytes / 2, layout);
            if smaller >= page_bytes {
                return Err(
                    TooLittleMemory { given: memory_bytes, by: Needs::Nodes(nodes), needed: None }.into()
                );
            }
            page_bytes = smaller;
        }
    }

    /// The shape with these inlets, outlets and pages, if there is room for them.
    fn fitting(room: u64, parts: usize, (inlets, outlets): (usize, usize), page_bytes: u64) -> Option<Shape> {
        let block = block_for(page_bytes, parts);
        // While one inlet's page is given out, those of the others wait.
        let float = ((inlets - 1) * parts.div_ceil(outlets) * 3 / 2) as u64;
        let batches =
            inlets * (parts + QUEUED.1 + 1) + outlets * (inlets * EXCLUSIVE as usize + float as usize);
        let fixed = batches as u64 * block + (inlets * (READS + 1)) as u64 * page_bytes;
        let blocks = (parts + outlets * WRITES) as u64;
        let left = room.saturating_sub(room / 8).saturating_sub(fixed) / blocks;
        (left >= WRITE_BYTES.1).then(|| Shape {
            inlets,
            outlets,
            page_bytes: page_bytes as usize,
            batch_bytes: (block - HEAD_BYTES as u64) as usize,
            write_bytes: floor_of_two(left).min(WRITE_BYTES.0) as usize,
            exclusive: EXCLUSIVE,
            float,
            window: window(1),
            record_max: room / 16 / inlets as u64,
            sample_bytes: room / 4,
        })
    }

    /// The shape for one of `nodes` nodes, each with an inlet, an outlet and this much memory for both, and with
    /// `lanes` lanes. Pages depend only on the memory and these numbers, so they are the same on all nodes.
    pub(in crate::verbs) fn of_node(
        memory_bytes: u64,
        (nodes, lanes): (usize, usize),
        layout: Layout,
    ) -> Result<Shape> {
        let page_bytes = page_for(memory_bytes.saturating_sub(BASE_BYTES), lanes, layout);
        // Pages grow in steps, and just above a step there may be no room for everything.
        let with = |page_bytes| Shape::with_pages(memory_bytes, (nodes, lanes), page_bytes);
        with(page_bytes).or_else(|why| with(whole_records(page_bytes / 2, layout)).map_err(|_| why))
    }

    fn with_pages(memory_bytes: u64, (nodes, lanes): (usize, usize), page_bytes: u64) -> Result<Shape> {
        let room = memory_bytes.saturating_sub(BASE_BYTES);
        let block = block_for(page_bytes, lanes);
        // While one node's page is given out, those of the others wait.
        let float = (nodes as u64 - 1) * lanes.div_ceil(nodes) as u64 * 3 / 2;
        let fixed = |exclusive: u64, window: usize| {
            // Twice what an outlet holds: blocks that come from its own node are the inlet's.
            let outlet = 2 * (nodes as u64 * exclusive + float) + (nodes * (window + 1)) as u64;
            ((lanes + QUEUED.1 + 1) as u64 + outlet) * block + (READS as u64 + 1) * page_bytes
        };
        // Links have latency: as many credits as fit, so that a source need not wait for a round trip. If credits are
        // not scarce, twice the window, or at least three, which saves every other grant of blocks.
        let least = window(nodes);
        let wider = [(EXCLUSIVE_OF_WIDE, 2 * least), (2 * EXCLUSIVE, least.max(3))];
        let fitting = wider.into_iter().find(|&(exclusive, window)| fixed(exclusive, window) <= room);
        let window = fitting.map_or(least, |(_, window)| window);
        let fixed = |exclusive| fixed(exclusive, window);
        let exclusive = (EXCLUSIVE..=EXCLUSIVE_OF_NODE).rev().find(|&exclusive| fixed(exclusive) <= room);
        let Some(exclusive) = exclusive else {
            let needed = Some(fixed(EXCLUSIVE) + BASE_BYTES);
            return Err(TooLittleMemory { given: memory_bytes, by: Needs::River(nodes), needed }.into());
        };
        Ok(Shape {
            inlets: nodes,
            outlets: nodes,
            page_bytes: page_bytes as usize,
            batch_bytes: (block - HEAD_BYTES as u64) as usize,
            write_bytes: WRITE_BYTES.0 as usize,
            exclusive,
            float,
            window,
            record_max: room / 16,
            sample_bytes: room / 4,
        })
    }

    /// A river of this shape that gives out its splits in order, and proves what goes in.
    pub(in crate::verbs) fn river(
        &self,
        (layout, key): (Layout, &Key),
        pick: Partitioner,
        lanes: usize,
        splits: u64,
    ) -> RiverBuilder {
        River::builder()
            .inlets(self.inlets)
            .outlets(self.outlets)
            .lanes(lanes)
            .records(layout, key.clone())
            .partitioner(pick)
            .batch_bytes(self.batch_bytes)
            .credits(self.exclusive, self.float)
            .queued(QUEUED.0, QUEUED.1)
            .window(self.window)
            .splits(splits)
            .record_max(self.record_max)
            .ordered()
            .proved()
    }
}

/// Bytes of a page that has enough for each of `parts` parts, if there is room.
fn page_for(room: u64, parts: usize, layout: Layout) -> u64 {
    let page = (parts as u64 * PAGE_BYTES_FOR_PART).next_power_of_two();
    let page = page.clamp(PAGE_BYTES.0, PAGE_BYTES.1).min(floor_of_two(room / PAGE_SHARE));
    whole_records(page, layout)
}

/// Bytes of a block that holds what one part gets of a page, with a quarter to spare.
fn block_for(page_bytes: u64, parts: usize) -> u64 {
    let of_part = page_bytes.div_ceil(parts as u64);
    (of_part + of_part / 4 + HEAD_BYTES as u64).next_multiple_of(SECTOR).min(MIB)
}

fn floor_of_two(number: u64) -> u64 {
    if number == 0 { 0 } else { 1 << number.ilog2() }
}

/// The largest page that has whole sectors and, if possible, whole records; at least one sector.
fn whole_records(page_bytes: u64, layout: Layout) -> u64 {
    let unit = match layout.fixed_bytes() {
        None => SECTOR,
        Some(record) => {
            let record = record as u64;
            record << (SECTOR.ilog2() - record.trailing_zeros().min(SECTOR.ilog2()))
        }
    };
    let unit = if unit <= page_bytes { unit } else { SECTOR };
    (page_bytes / unit * unit).max(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_fit_and_pages_do_not_depend_on_threads() {
        for memory in [16, 20, 64, 256, 4096].map(|mib| mib * MIB) {
            for parts in [1, 2, 7, 16, 100, 1000] {
                let shapes = (1..=8).map(|threads| Shape::of(memory, parts, threads, Layout::Fixed(100)));
                let shapes: Vec<Shape> = shapes.filter_map(Result::ok).collect();
                assert!(
                    !shapes.is_empty() || (parts >= 1000 && memory < 64 * MIB),
                    "{parts} parts in {memory}"
                );
                for shape in shapes {
                    assert_eq!(
                        shape.page_bytes,
                        Shape::of(memory, parts, 1, Layout::Fixed(100)).unwrap().page_bytes
                    );
                    let block = (shape.batch_bytes + HEAD_BYTES) as u64;
                    let batches = shape.inlets * (parts + QUEUED.1 + 1)
                        + shape.outlets * (shape.inlets * 2 + shape.float as usize);
                    let all = batches as u64 * block
                        + (shape.inlets * (READS + 1) * shape.page_bytes) as u64
                        + ((parts + shape.outlets * WRITES) * shape.write_bytes) as u64;
                    assert!(all + BASE_BYTES <= memory, "{shape:?} of {memory}: {all}");
                }
            }
        }
        assert_eq!(whole_records(1 << 20, Layout::Fixed(100)), 1_024_000);
        assert_eq!(whole_records(1 << 20, Layout::Fixed(64)), 1 << 20);
        assert_eq!(whole_records(1 << 20, Layout::Fixed(1_000_003)), 1 << 20);
    }

    /// Pages fill blocks, so half of a page of whole records had to be rounded as well: records of 1000 bytes on 5
    /// nodes in 200 MiB ended with an internal error.
    #[test]
    fn pages_are_whole_sectors_for_records_of_any_length() {
        let records = [1, 3, 100, 1000, 1001, 3000, 4095, 4097, 6000, 65_000, 999_999, 6_000_000];
        for layout in records.map(Layout::Fixed) {
            for memory in (1..=64).map(|quarters| quarters * 4 * MIB + quarters * 999) {
                for count in [1, 2, 3, 5, 7, 16, 40] {
                    let shapes = [
                        Shape::of(memory, count, 2, layout),
                        Shape::of_process(memory, (count, 3 * count), layout),
                        Shape::of_node(memory, (count, 3 * count), layout),
                    ];
                    for shape in shapes.into_iter().flatten() {
                        let is_sectors = shape.page_bytes.is_multiple_of(SECTOR as usize);
                        assert!(is_sectors, "{layout:?} of {count} in {memory}: {shape:?}");
                    }
                }
            }
        }
    }

    /// If memory had no room for all nodes with large pages, there were fewer inlets and outlets than nodes.
    #[test]
    fn every_node_has_its_ends() {
        for layout in [Layout::Lines, Layout::Fixed(100), Layout::Fixed(1_000_003)] {
            for nodes in [1, 2, 3, 4, 8, 16] {
                for memory in
                    (1..=64).map(|eighths| eighths * 2 * MIB * nodes as u64).filter(|m| *m >= 16 * MIB)
                {
                    let shape = Shape::of_process(memory, (nodes, nodes), layout).unwrap();
                    assert_eq!((shape.inlets, shape.outlets), (nodes, nodes), "{memory} {shape:?}");
                }
            }
        }
        let refused = Shape::of_process(7 * MIB, (64, 64), Layout::Lines).unwrap_err().to_string();
        assert_eq!(refused, "memory of 7 MiB is too small for 64 nodes; give more, or fewer nodes");
    }
}
