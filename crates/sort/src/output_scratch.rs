//! Scratch in the output file: spilled pages lie where the output will be, and the output overwrites them.
//!
//! ```text
//! partial output  [  shift  |  region 0  |  region 1  | ... |  region n-1  ] tail
//! output          [ ranges of region 0 | ranges of region 1 | ...  | ... ]
//! ```
//!
//! Model: ranges are written in order. If every region lies after the end of the output of its ranges, the output
//! reaches a region only after the pages in it were read. A region is as large as the planned size of its ranges, and
//! the shift is the sum of three parts: one region, because all ranges of a region are written before it is reached;
//! the distance between two output notes, because pages may be overwritten only when the output of their ranges is
//! durable; and a margin for sampling errors. A page that does not fit in its region goes to a later one or the tail.
//! Invariant: no page that is still to be read is overwritten. `move_overtaken` checks this before the first byte of
//! output, when the true sizes of ranges are known.
//! Non-goals: separate disks for scratch; outputs of unknown size.

use crate::geometry::Geometry;
use crate::options::Sort;

/// The maximum number of regions. More regions mean a smaller shift, but more places that are written in turn.
const REGIONS_MAX: u64 = 128;
/// With this many pages in a region, the space lost at its end is small.
const REGION_PAGES_MIN: u64 = 32;
/// The margin for sampling errors is 1/`ERROR_SHARE` of the output.
const ERROR_SHARE: u64 = 32;

/// The regions of the output file for spilled pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputScratch {
    shift: u64,
    region_bytes: u64,
    regions: u64,
    ranges: u64,
}

impl OutputScratch {
    /// The regions for an output of this size, if the options allow scratch in the output. Tags take space in the
    /// regions but not in the output, which only increases the distance.
    pub(crate) fn asked(
        sort: &Sort,
        (bytes, records): (u64, u64),
        geometry: &Geometry,
    ) -> Option<OutputScratch> {
        let may = sort.within_output && !sort.output_is_stream && sort.header.is_empty();
        OutputScratch::of(bytes + records * sort.tag_bytes() as u64, geometry).filter(|_| may)
    }

    /// The regions for an output of `bytes` bytes, if this takes less disk space than separate scratch files.
    pub(crate) fn of(bytes: u64, geometry: &Geometry) -> Option<OutputScratch> {
        let (page_bytes, ranges) = (geometry.page_bytes as u64, geometry.ranges as u64);
        let regions = (bytes / (REGION_PAGES_MIN * page_bytes)).clamp(1, REGIONS_MAX.min(ranges));
        let region_bytes = bytes.div_ceil(regions).next_multiple_of(page_bytes);
        let behind = region_bytes + geometry.note_every(bytes) + bytes / ERROR_SHARE;
        let within =
            OutputScratch { shift: behind.next_multiple_of(page_bytes), region_bytes, regions, ranges };
        (within.room() < bytes.saturating_add(geometry.excess_bytes)).then_some(within)
    }

    /// Bytes of the output with all regions: the start of the tail.
    pub(crate) fn room(&self) -> u64 {
        self.end(self.regions as usize - 1)
    }

    /// The number of regions.
    pub(crate) fn regions(&self) -> usize {
        self.regions as usize
    }

    /// The start of a region.
    pub(crate) fn start(&self, region: usize) -> u64 {
        self.shift + self.region_bytes * region as u64
    }

    /// The end of a region.
    pub(crate) fn end(&self, region: usize) -> u64 {
        self.start(region + 1)
    }

    /// The region of a range.
    pub(crate) fn region_of(&self, range: usize) -> usize {
        (range as u64 * self.regions / self.ranges).min(self.regions - 1) as usize
    }

    /// The region at an offset of the file; none before the first region and in the tail.
    pub(crate) fn region_at(&self, offset: u64) -> Option<usize> {
        let region = offset.checked_sub(self.shift)? / self.region_bytes;
        (region < self.regions).then_some(region as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Given;
    use thalweg_base::units::{GIB, MIB};

    fn of(bytes: u64, memory_bytes: u64) -> Option<(OutputScratch, Geometry)> {
        let records = bytes / 100;
        let given = Given {
            memory_bytes,
            resident_bytes: 4 * MIB,
            lanes: 2,
            input_bytes: bytes,
            records,
            any_length: false,
            is_stream: false,
        };
        let geometry = Geometry::of(&given).unwrap();
        OutputScratch::of(bytes, &geometry).map(|within| (within, geometry))
    }

    /// With ranges of equal size, the output of each range ends before the first place of its pages, by more than the
    /// distance between two notes.
    #[test]
    fn the_output_stays_behind_what_is_still_to_be_read() {
        for (bytes, memory) in
            [(60 * MIB, 16 * MIB), (GIB, 512 * MIB), (10 * GIB, GIB), (100 * GIB, 64 * MIB)]
        {
            let (within, geometry) = of(bytes, memory).expect("it spills enough");
            let every = geometry.note_every(bytes);
            for range in 0..geometry.ranges {
                let end = (bytes as f64 / geometry.ranges as f64 * (range + 1) as f64) as u64;
                let start = within.start(within.region_of(range));
                assert!(
                    end + every < start,
                    "{bytes} in {memory}: range {range} ends at {end}, waits at {start}"
                );
            }
        }
    }

    #[test]
    fn regions_are_adjacent_and_take_little_more_than_the_output() {
        let (within, geometry) = of(10 * GIB, GIB).unwrap();
        for region in 0..within.regions() {
            let (start, end) = (within.start(region), within.end(region));
            assert!(start.is_multiple_of(geometry.page_bytes as u64));
            assert_eq!((within.region_at(start), within.region_at(end - 1)), (Some(region), Some(region)));
        }
        assert_eq!((within.region_at(within.room()), within.region_at(0)), (None, None));
        assert!(within.room() < 10 * GIB * 108 / 100, "{within:?}");
    }

    #[test]
    fn a_sort_that_spills_little_has_separate_scratch() {
        assert!(of(GIB, 2 * GIB).is_none());
        assert!(
            of(GIB, GIB / 4 * 3)
                .is_some_and(|(within, geometry)| within.room() < GIB + geometry.excess_bytes)
        );
    }
}
