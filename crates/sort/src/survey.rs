//! The survey before a sort starts: opens and samples the inputs, lays out memory, chooses split points.
//!
//! Invariant: a plan and a run use the same survey.
//! Non-goals: allocating the memory of the sort; creating any file. The number of blocks touched in the pool is at
//! most the number of reads that the sample has in flight.

use thalweg_base::units::MIB;
use thalweg_block::Pool;
use thalweg_io::host;
use thalweg_pump::{Cuts, Inputs};
use thalweg_record::{Key, SplitPoint, Tags, choose_split_points};

use crate::forecast::Facts;
use crate::geometry::{
    Geometry, Given, HIDDEN_RECORD_BYTES, entry_pages, hidden_copies, least_memory, long_copies,
};
use crate::options::{Sort, record_max};
use crate::output_scratch::OutputScratch;
use crate::preflight::{DiskNeeds, preflight_of_plan};
use crate::sample::{add_sparse, guess_records, take_sample};
use crate::{Error, Result};

/// Reads in flight for the sample.
const SAMPLE_DEPTH: usize = 16;
/// With fewer keys than this, split points would be poor.
const SAMPLE_ENOUGH: usize = 64;
/// How much the resident memory at the start varies between runs.
const RESIDENT_VARIES_BYTES: u64 = MIB / 2;
/// Standard input, output and error.
const STANDARD_FILES: u64 = 3;

/// The results of the survey.
pub(crate) struct Survey {
    pub(crate) key: Key,
    pub(crate) inputs: Inputs,
    pub(crate) geometry: Geometry,
    /// Records, or an upper estimate.
    pub(crate) records: u64,
    /// The longest variable-length record that the layout has space for.
    pub(crate) record_room: u64,
    /// All split points, between ranges and between the buckets in them.
    pub(crate) split_points: Vec<SplitPoint>,
    /// The pool for reads and for the output, of the size in the geometry.
    pub(crate) transfer: Pool,
}

/// Facts that the sample did not show, from an earlier attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Where files that grow end.
    pub(crate) cuts: Cuts,
    /// There are at least this many records.
    pub(crate) records: u64,
    /// There is a variable-length record of at least this size.
    pub(crate) record_bytes: u64,
}

impl Survey {
    /// Opens and samples the inputs. `seen` has precedence over the sample.
    pub(crate) fn take(sort: &Sort, seen: &Seen) -> Result<Survey> {
        let resident_bytes = host::prepare_memory();
        let key = sort.stored_key()?;
        let mut inputs = Inputs::open_cut(&sort.inputs, sort.layout, &seen.cuts)?;
        let given = Given {
            memory_bytes: sort.memory_bytes,
            resident_bytes,
            lanes: sort.lanes,
            input_bytes: inputs.bytes(),
            any_length: sort.layout.fixed_bytes().is_none(),
            records: seen.records.max(guess_records(sort.layout, inputs.bytes(), 64.0)),
            is_stream: false,
        };
        // Fixed records need no estimate; for others the sample provides one.
        let mut asked =
            Request { sort, key: &key, given, record_bytes: seen.record_bytes, known_record_bytes: 0 };
        let rough = match given.any_length {
            false => asked.lay_out()?.1,
            true => asked.lay_out_roughly()?,
        };
        let transfer = Pool::new(rough.transfer_bytes, rough.transfer_blocks)?;
        inputs.set_page_bytes(rough.transfer_bytes);
        let mut queue = inputs.backends().queue(SAMPLE_DEPTH.min(rough.transfer_blocks))?;
        let page_bytes = rough.transfer_bytes as u64;
        let mut sample =
            take_sample(&inputs, page_bytes, sort.layout, &key, &transfer, &mut *queue, rough.sample_bytes)?;
        drop(queue);
        if sample.keys.len() < SAMPLE_ENOUGH && inputs.pages() > 1 {
            let limits = (sort.record_max(), rough.sample_bytes);
            add_sparse(&mut sample, &inputs, page_bytes, sort.layout, &key, limits)?;
        }
        if given.any_length {
            let records = guess_records(sort.layout, inputs.bytes(), sample.record_bytes());
            asked.given.records = seen.records.max(records);
            let usual = 4 * sample.record_bytes() as u64;
            asked.known_record_bytes = sample.longest_seen;
            asked.record_bytes = asked.record_bytes.max(sample.longest_seen).max(usual);
        }
        let (given, geometry) = asked.lay_out()?;
        let copies = long_copies(&key, given.lanes);
        let absorbed = given.memory_bytes / 20 / copies;
        let long = asked.longest(sort.memory_bytes);
        let record_room = long.max(HIDDEN_RECORD_BYTES).max(absorbed).min(sort.record_max());
        let split_points = split_points_of(sort, sample.keys, &geometry);
        let mut survey = Survey {
            key,
            inputs,
            geometry: rough,
            records: given.records,
            record_room,
            split_points: Vec::new(),
            transfer,
        };
        survey.adopt(geometry, split_points)?;
        Ok(survey)
    }

    /// Uses this geometry: the one chosen here, or that of the run from which this one resumes.
    pub(crate) fn adopt(&mut self, geometry: Geometry, split_points: Vec<SplitPoint>) -> Result<()> {
        let Geometry { transfer_bytes, transfer_blocks, .. } = geometry;
        if self.transfer.block_size() != transfer_bytes || self.transfer.capacity() != transfer_blocks {
            self.inputs.set_page_bytes(transfer_bytes);
            // No page of the new pool is touched before the old pool is dropped.
            self.transfer = Pool::new(transfer_bytes, transfer_blocks)?;
        }
        self.geometry = geometry;
        self.split_points = split_points;
        Ok(())
    }

    /// The facts that a forecast needs.
    pub(crate) fn facts(&self, sort: &Sort) -> Facts {
        let Survey { geometry, inputs, .. } = self;
        let page_bytes = geometry.page_bytes as u64;
        let input_bytes = inputs.bytes();
        let again_bytes = if self.has_third_pass() { input_bytes } else { 0 };
        let excess_bytes = if again_bytes > 0 { input_bytes } else { geometry.excess_bytes };
        let spilled_bytes = excess_bytes.next_multiple_of(page_bytes);
        // A range that is being distributed again is in scratch twice.
        let twice_bytes = again_bytes.div_ceil(geometry.ranges as u64);
        let queues = if sort.backends().name() == "uring" { 2 * geometry.lanes as u64 } else { 0 };
        // One in each scratch directory, and the manifest.
        let scratch_files = if excess_bytes > 0 { sort.scratch.len() as u64 + 1 } else { 0 };
        let cached = |input: &thalweg_pump::Input| {
            let len = input.metadata.len;
            let share =
                if input.is_direct() { 0.0 } else { input.file().map_or(0.0, |f| f.cached_share(len)) };
            (len as f64 * share) as u64
        };
        Facts {
            input_bytes,
            cached_bytes: inputs.files().iter().map(cached).sum(),
            records: self.records,
            records_estimated: sort.layout.fixed_bytes().is_none(),
            excess_bytes,
            again_bytes,
            page_bytes,
            transfer_bytes: geometry.transfer_bytes as u64,
            ranges: geometry.ranges as u64,
            lanes: geometry.lanes as u64,
            memory_bytes: sort.memory_bytes,
            scratch_bytes: if excess_bytes > 0 { spilled_bytes + twice_bytes } else { 0 },
            open_files: STANDARD_FILES + inputs.open_files() + scratch_files + 1 + queues,
            output_is_stream: sort.output_is_stream,
        }
    }

    /// Whether the average range is too large for memory, so that all are distributed again.
    fn has_third_pass(&self) -> bool {
        let Geometry { ranges, buckets_per_range, lanes, chunk_entries, page_bytes, main_pages, .. } =
            self.geometry;
        let records = self.records / ranges as u64;
        let entries = entry_pages(records, buckets_per_range, lanes, chunk_entries, page_bytes);
        self.inputs.bytes() / page_bytes as u64 / ranges as u64 + entries > main_pages as u64
    }
}

/// Lays out a sort without running it, for a plan. It fails in the same cases as [`run`](crate::run) would before it
/// starts.
pub fn lay_out(sort: &Sort) -> Result<Facts> {
    let survey = Survey::take(sort, &Seen::default())?;
    let output_bytes = survey.inputs.bytes();
    let (output_bytes, spilled_bytes) =
        match OutputScratch::asked(sort, (output_bytes, survey.records), &survey.geometry) {
            Some(within) => (within.room(), 0),
            None => (output_bytes, survey.geometry.excess_bytes),
        };
    preflight_of_plan(sort, &DiskNeeds { output_bytes, spilled_bytes, ..DiskNeeds::default() })?;
    Ok(survey.facts(sort))
}

/// The sort to lay out.
struct Request<'a> {
    sort: &'a Sort,
    key: &'a Key,
    given: Given,
    /// The assumed maximum size of a variable-length record.
    record_bytes: u64,
    /// The size of the longest record that is known.
    known_record_bytes: u64,
}

impl Request<'_> {
    /// The longest record that a layout with this memory has space for.
    fn longest(&self, memory_bytes: u64) -> u64 {
        match self.sort.layout.fixed_bytes() {
            Some(n) => n as u64,
            None => self.record_bytes.min(record_max(memory_bytes)),
        }
    }

    /// The layout in `given.memory_bytes`, with the copies of long records counted as resident; `None` if memory is
    /// too small. Each lane holds some copies, so there may be fewer lanes.
    fn fitting(&self, given: &Given) -> Option<(Given, Geometry)> {
        let long = self.longest(given.memory_bytes);
        let input_bytes = given.input_bytes + given.records * self.sort.tag_bytes() as u64;
        let rough = Geometry::fitting(given)?;
        (1..=rough.lanes).rev().find_map(|lanes| {
            let is_long = long > rough.page_bytes as u64 / 4;
            let copies = if is_long { long_copies(self.key, lanes) * long } else { 0 };
            let resident_bytes =
                given.resident_bytes + copies.max(hidden_copies(self.key, self.sort.layout, lanes));
            let lanes = if lanes == rough.lanes { given.lanes } else { lanes };
            let given = Given { resident_bytes, lanes, input_bytes, ..*given };
            let geometry = Geometry::fitting(&given)?;
            let fits = !is_long || geometry.has_room_for(long.min(input_bytes));
            fits.then_some((Given { lanes: lanes.min(rough.lanes), ..given }, geometry))
        })
    }

    /// Whether this much memory has space for the records that were seen; see [`Error::RecordTooLong`].
    fn takes_records(&self, memory_bytes: u64) -> bool {
        self.known_record_bytes <= record_max(memory_bytes)
    }

    fn lay_out(&self) -> Result<(Given, Geometry)> {
        let fitting = self.fitting(&self.given).filter(|_| self.takes_records(self.given.memory_bytes));
        fitting.ok_or_else(|| self.too_small(|given| self.fitting(given).is_some()))
    }

    /// Ignores long records.
    fn lay_out_roughly(&self) -> Result<Geometry> {
        Geometry::fitting(&self.given).ok_or_else(|| self.too_small(|given| self.fitting(given).is_some()))
    }

    /// The error with the least memory that is enough, even if slightly more memory is resident at the start of the
    /// next run.
    fn too_small(&self, fits: impl Fn(&Given) -> bool) -> Error {
        let resident_bytes = self.given.resident_bytes + RESIDENT_VARIES_BYTES;
        // With less memory the next run would fail at a long record.
        let with = |memory_bytes| {
            self.takes_records(memory_bytes) && fits(&Given { memory_bytes, resident_bytes, ..self.given })
        };
        let given = self.given.memory_bytes;
        Error::MemoryTooSmall { given, needed: least_memory(given, with) }
    }
}

/// All split points of a geometry, between ranges and between the buckets in them. They come from a sample, except
/// those of a shuffle, whose keys are uniform.
pub(crate) fn split_points_of(
    sort: &Sort,
    mut keys: Vec<SplitPoint>,
    geometry: &Geometry,
) -> Vec<SplitPoint> {
    let wanted = geometry.ranges * geometry.buckets_per_range - 1;
    if sort.shuffle.is_some() { Tags::split_points(wanted) } else { choose_split_points(&mut keys, wanted) }
}
