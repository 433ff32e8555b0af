//! Scratch within the output: what does not fit waits in the room that the output will take, and is overwritten by it.
//!
//! ```text
//! partial output  [  shift  |  region 0  |  region 1  | ... |  region n-1  ] tail
//! output          [ ranges of region 0 | ranges of region 1 | ...  | ... ]
//! ```
//!
//! Model: ranges leave in order, so the output reaches a region only after the ranges whose pages lie there have been
//! read, if every region lies behind the end of what they become. A region is as large as its ranges are planned to be,
//! and the shift keeps it behind: by one region, because a region's own ranges leave before it is reached; by what lies
//! between two output notes, so that what is overwritten is durable as output; and by what samples err.
//! What a region has no room for goes to a later one, or to the tail.
//! Invariant: no page that is still to be read is overwritten: `move_overtaken` in the job looks before the first byte of output,
//! when the ranges' true sizes are known.
//! Non-goals: disks of their own for scratch; outputs whose size nobody knows.

use crate::geometry::Geometry;
use crate::options::Sort;

/// More regions are a smaller shift, and more places that are written in turn.
const REGIONS_MAX: u64 = 128;
/// So many pages make the ends of regions, where a page may not fit, a small part of them.
const REGION_PAGES_MIN: u64 = 32;
/// The part of the output by which samples may err.
const ERROR_SHARE: u64 = 32;

/// Where in the output pages of a range may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputScratch {
    shift: u64,
    region_bytes: u64,
    regions: u64,
    ranges: u64,
}

impl OutputScratch {
    /// For what was asked of so many bytes and records, if that lets the output hold what is spilled. Tags take room in
    /// the regions, and none in the output, which stays the further behind.
    pub(crate) fn asked(
        sort: &Sort,
        (bytes, records): (u64, u64),
        geometry: &Geometry,
    ) -> Option<OutputScratch> {
        let may = sort.within_output && !sort.output_is_stream;
        OutputScratch::of(bytes + records * sort.tag_bytes() as u64, geometry).filter(|_| may)
    }

    /// For an output of `bytes` bytes, if it then takes less of the disk than with scratch beside it.
    pub(crate) fn of(bytes: u64, geometry: &Geometry) -> Option<OutputScratch> {
        let (page_bytes, ranges) = (geometry.page_bytes as u64, geometry.ranges as u64);
        let regions = (bytes / (REGION_PAGES_MIN * page_bytes)).clamp(1, REGIONS_MAX.min(ranges));
        let region_bytes = bytes.div_ceil(regions).next_multiple_of(page_bytes);
        let behind = region_bytes + geometry.note_every(bytes) + bytes / ERROR_SHARE;
        let within =
            OutputScratch { shift: behind.next_multiple_of(page_bytes), region_bytes, regions, ranges };
        (within.room() < bytes.saturating_add(geometry.excess_bytes)).then_some(within)
    }

    /// Bytes of the output with all regions: where the tail begins.
    pub(crate) fn room(&self) -> u64 {
        self.end(self.regions as usize - 1)
    }

    /// How many regions there are.
    pub(crate) fn regions(&self) -> usize {
        self.regions as usize
    }

    /// Where a region begins.
    pub(crate) fn start(&self, region: usize) -> u64 {
        self.shift + self.region_bytes * region as u64
    }

    /// Where it ends.
    pub(crate) fn end(&self, region: usize) -> u64 {
        self.start(region + 1)
    }

    /// The region of a range.
    pub(crate) fn region_of(&self, range: usize) -> usize {
        (range as u64 * self.regions / self.ranges).min(self.regions - 1) as usize
    }

    /// The region that a byte of the file lies in; none before the first and in the tail.
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

    /// Ranges are planned equal: each of them ends, as output, before the first of its pages could lie, by more than
    /// what lies between two notes.
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
    fn regions_stand_one_behind_the_other_and_take_little_more_than_the_output() {
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
    fn what_spills_little_has_scratch_beside_its_output() {
        assert!(of(GIB, 2 * GIB).is_none());
        assert!(
            of(GIB, GIB / 4 * 3)
                .is_some_and(|(within, geometry)| within.room() < GIB + geometry.excess_bytes)
        );
    }
}
