//! Validates a manifest: whether its contents can be true for this sort.
//!
//! Invariant: contents that pass cause no failed assertion later. Numbers are consistent, pages lie at possible places,
//! the next record begins at a possible place and agrees with the input, and all files have names of this sort.
//! Non-goals: whether the bytes in scratch are right; pages have hashes, and the output has a proof.

use std::path::Path;

use thalweg_io::ALIGN;
use thalweg_pump::{Input, Inputs};
use thalweg_record::counted;

use crate::assemble::Assembler;
use crate::geometry::Geometry;
use crate::manifest::{Checkpoint, Layout};
use crate::names::Names;
use crate::options::Sort;
use crate::range::{RangeStore, Stored};

/// The maximum number of lanes, and of operations in flight in one.
const SIDE_BY_SIDE_MAX: usize = 1 << 12;
/// The maximum number of ranges, and of buckets in one.
const PARTS_MAX: usize = 1 << 15;

/// What a manifest is validated against.
pub(crate) struct Validator<'a> {
    pub(crate) sort: &'a Sort,
    pub(crate) inputs: &'a Inputs,
    pub(crate) names: &'a Names,
}

impl Validator<'_> {
    /// Whether a sort of these inputs can have this layout.
    pub(crate) fn is_layout(&self, layout: &Layout) -> bool {
        let g = &layout.geometry;
        let small =
            g.lanes.max(g.depth) <= SIDE_BY_SIDE_MAX && g.ranges.max(g.buckets_per_range) <= PARTS_MAX;
        let entries = g.chunk_entries.checked_mul(16).is_some_and(|bytes| bytes <= g.page_bytes);
        small && entries && self.has_room(g) && layout.split_points.len() < g.ranges * g.buckets_per_range
    }

    /// Whether lanes cannot deadlock on pages, and everything fits in the memory limit.
    fn has_room(&self, g: &Geometry) -> bool {
        let memory = self.sort.memory_bytes;
        let main_bytes = (g.main_pages as u64).checked_mul(g.page_bytes as u64);
        let transfer_bytes = (g.transfer_blocks as u64).checked_mul(g.transfer_bytes as u64);
        let bulk = main_bytes.zip(transfer_bytes).and_then(|(main, transfer)| main.checked_add(transfer));
        bulk.is_some_and(|bulk| bulk <= memory.saturating_add((memory / 20).max(1 << 21)))
            && g.main_pages >= g.ranges + 2 * g.lanes * g.depth
            && g.transfer_blocks >= Assembler::blocks_needed(g.lanes, g.depth)
            && g.sample_bytes <= memory
            && g.excess_bytes <= self.inputs.bytes()
    }

    /// Whether this can be the state at the last checkpoint, with these ranges.
    pub(crate) fn is_state(&self, layout: &Layout, last: &Checkpoint, stores: &[RangeStore]) -> bool {
        let (records, bytes) = stores.iter().fold((0u64, 0u64), |(records, bytes), store| {
            (records.saturating_add(store.records), bytes.saturating_add(store.bytes))
        });
        let ranges = layout.split_points.len() / layout.geometry.buckets_per_range + 1;
        stores.len() <= ranges
            && stores.iter().all(|store| self.is_store(store, layout.geometry.page_bytes))
            && bytes <= self.inputs.bytes()
            && (!self.sort.hashing || self.is_proof_of(last, records, bytes))
            && self.follows_ranges(last, layout.geometry.transfer_bytes as u64, bytes)
            && last.files.iter().all(|path| self.is_ours(path))
    }

    fn is_store(&self, store: &RangeStore, page_bytes: usize) -> bool {
        let is_page = |page: &Stored| match page {
            Stored::Spilled(extent) => {
                (1..=page_bytes).contains(&(extent.len as usize))
                    && extent.offset().is_multiple_of(ALIGN as u64)
            }
            _ => false,
        };
        let of_records = match self.sort.layout.fixed_bytes() {
            Some(n) => store.records.checked_mul(n as u64) == Some(store.bytes),
            None => store.records <= store.bytes,
        };
        of_records && store.pages.iter().all(is_page)
    }

    fn is_proof_of(&self, last: &Checkpoint, records: u64, bytes: u64) -> bool {
        let counts = counted(self.sort.layout, records, bytes);
        (last.proof.records, last.proof.bytes) == (counts.records, counts.bytes)
    }

    /// Whether a record begins at page `next_page`, or the carry is the start of the record that continues there. If
    /// this cannot be determined from the file, the ranges must contain all bytes of the inputs before the carry.
    fn follows_ranges(&self, last: &Checkpoint, page_bytes: u64, bytes: u64) -> bool {
        let (mut first, mut before) = (0, 0);
        for input in self.inputs.files() {
            let pages = input.len().div_ceil(page_bytes);
            if last.next_page < first + pages {
                let placed = last.carry_place.checked_add(last.carry.len() as u64);
                let at = (last.next_page - first) * page_bytes;
                let is_all = before + at == bytes.saturating_add(last.carry.len() as u64);
                return (last.carry.is_empty() || placed == Some(last.next_page * page_bytes))
                    && (is_all || self.sort.layout.is_found_anywhere())
                    && self.is_carry_of(input, at, &last.carry);
            }
            first += pages;
            before += input.len();
        }
        last.next_page == first && last.carry.is_empty()
    }

    /// Whether the input has these bytes before byte `at`, and a record can begin with them. The carry is the only
    /// part of a manifest that goes into the output.
    fn is_carry_of(&self, input: &Input, at: u64, carry: &[u8]) -> bool {
        let Some(from) = at.checked_sub(carry.len() as u64) else { return false };
        // Also read the byte before them, if there is one.
        let before = from.min(1) as usize;
        let mut there = vec![0; before + carry.len()];
        let Ok(file) = input.file() else { return false };
        let whole = file.read_at(from - before as u64, &mut there).is_ok_and(|n| n == there.len());
        whole && self.sort.layout.may_begin(from, &there[..before], carry) && there[before..] == *carry
    }

    /// Files are removed when the sort ends, so only names of this sort are allowed.
    fn is_ours(&self, path: &Path) -> bool {
        path == self.names.partial.path || self.names.is_scratch(path)
    }
}
