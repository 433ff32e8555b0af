//! One sort, from files or a stream to a file or a stream: sample, distribute, sort and gather, prove, publish.
//!
//! In each pass every lane runs a pump: input -> ranges in the first, sorted ranges -> output in the last.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_api::{IoReceipt, Plan, Proof, Receipt, Stage};
use thalweg_base::clock::Stopwatch;
use thalweg_base::unwinding::OnPanic;
use thalweg_block::Pool;
use thalweg_io::{Caching, InputFile, InputLocation, Location, host};
use thalweg_pump::{FileLane, InputLane, Inputs, InputsError, Meters, Output, Sink, Source, Watch, pump};
use thalweg_record::{
    Key, SplitPoint, SplitPoints, choose_split_points_by_bytes, counted, file_bytes, same_records,
};

use crate::distribute::{self, Checkpoints, Distribution, RecordRoom, Resumed, Tagging};
use crate::entry;
use crate::forecast::forecast;
use crate::geometry::{Geometry, KeepFree, entry_pages, long_copies};
use crate::handover::HandoverLane;
use crate::leftover::{self, Claim, Leftover};
use crate::manifest::{self, Manifest};
use crate::names::Names;
use crate::options::{CannotResume, Sort};
use crate::output_notes::{Notes, OutputLane, ResumePoint};
use crate::output_scratch::OutputScratch;
use crate::pages::segment_starts;
use crate::preflight::{self, DiskNeeds};
use crate::range::{Range, RangeStore, Stored, needed_within, ranges_of};
use crate::replay::{Replay, ReplayLane};
use crate::resample::{self, Resample};
use crate::scratch::Scratch;
use crate::sorted::{self, Sorted};
use crate::spill::{evict, move_overtaken};
use crate::stream::{self, Feed, FeedLane, Filled, KEEP_FREE_PAGES, OutputStream, OutputStreamLane, Room};
use crate::survey::{Seen, Survey, split_points_of};
use crate::validate::Validator;
use crate::{Error, Result};

/// Runs a sort.
pub fn run(sort: &Sort, watch: &dyn Watch) -> Result<Receipt> {
    let fresh = Sort { resume: false, ..sort.clone() };
    let mut sort = sort;
    let mut seen = Seen::default();
    loop {
        let names = Names::of(sort);
        let (run, left) = Run::new(sort, watch, names, &seen)?;
        // A stream cannot be read or written twice.
        let reads_files = run.feed.is_none();
        let may_run_again = reads_files && !sort.output_is_stream;
        match run.run(left, &mut None) {
            // There are more and shorter lines than the sample showed: plan again for more records.
            Err(Error::Underestimated) if may_run_again => seen.records = run.planned_records * 3 / 2,
            // Files grow, which is noticed before anything is written: read them without their incomplete last records.
            Err(Error::Input(InputsError::Growing { cuts, .. })) if reads_files => seen.cuts.extend(cuts),
            // There are longer lines than the sample showed: plan again with space for them.
            Err(Error::RecordTooLong { limit, .. }) if may_run_again && limit < sort.record_max() => {
                seen.record_bytes = limit * 2;
            }
            // The files of the earlier run are damaged, for example after a power loss: start over.
            Err(Error::Damaged { .. }) if sort.resume => watch.note(&CannotResume::Damaged),
            other => return other,
        }
        sort = &fresh;
    }
}

/// Sorts a stream that a program hands over, and hands over the result. The scratch files are moved to `spilled`, to be
/// freed later: that can take as long as writing them.
pub(crate) fn run_handed(
    sort: &Sort,
    watch: &dyn Watch,
    filled: Filled,
    clock: Stopwatch,
    spilled: &mut Option<Scratch>,
) -> Result<Receipt> {
    Run::of_filled(sort, watch, (Names::of(sort), None), filled, (Meters::default(), clock))?
        .run(None, spilled)
}

struct Run<'a> {
    sort: &'a Sort,
    watch: &'a dyn Watch,
    key: Key,
    inputs: Inputs,
    /// The input if it is a stream; `inputs` is then empty.
    feed: Option<Feed>,
    /// The number of pages that the distribution keeps free.
    keep_free: KeepFree,
    geometry: Geometry,
    planned_records: u64,
    record_room: RecordRoom,
    /// The forecast; `None` for a stream.
    plan: Option<Plan>,
    names: Names,
    /// The exclusive claim to the output's hidden names; none if the output is a stream.
    claim: Option<Claim>,
    /// Identifies the options and inputs. Only a run with the same identity may resume from this one.
    identity: u128,
    split_points: Vec<SplitPoint>,
    transfer: Pool,
    main: Pool,
    meters: Meters,
    stop: AtomicBool,
    stages: Mutex<Vec<Stage>>,
    clock: Stopwatch,
}

impl<'a> Run<'a> {
    fn new(
        sort: &'a Sort,
        watch: &'a dyn Watch,
        names: Names,
        seen: &Seen,
    ) -> Result<(Run<'a>, Option<Leftover>)> {
        let clock = Stopwatch::start();
        if sort.resume && sort.output_is_stream {
            return Err(Error::NotResumable {
                what: "a file as the output: what went into a pipe cannot be taken back",
            });
        }
        if sort.resume && !sort.header.is_empty() {
            return Err(Error::NotResumable { what: "records without a header" });
        }
        let was_left = !leftover::files(&sort.scratch, &names).is_empty();
        let mut claim = match sort.output_is_stream {
            true => None,
            false => Some(Claim::take(sort, &names)?),
        };
        if sort.inputs.iter().any(Location::is_stream) {
            if sort.resume {
                return Err(Error::NotResumable { what: "input files: a stream cannot be read again" });
            }
            return Run::of_stream(sort, watch, (names, claim), clock).map(|run| (run, None));
        }
        let mut survey = Survey::take(sort, seen)?;
        let plan = sort.hardware.map(|hardware| forecast(&survey.facts(sort), &hardware));
        let identity = leftover::identity(sort, &survey.inputs);
        let judge = Validator { sort, inputs: &survey.inputs, names: &names };
        let left = if sort.resume { Some(leftover::find(&judge, identity)?) } else { None };
        if let (Some(Err(why)), true) = (&left, was_left) {
            watch.note(why);
        }
        let left = left.and_then(|found| found.ok());
        if left.is_none() {
            claim = leftover::start_over(claim, sort, &names)?;
        }
        if let Some(left) = &left {
            survey.adopt(left.geometry, left.split_points.clone())?;
        }
        let Survey { key, inputs, geometry, records: planned_records, record_room, split_points, transfer } =
            survey;
        let most = if sort.output_is_stream { sort.record_max() } else { record_room };
        let record_room = RecordRoom::new(record_room, most, long_copies(&key, geometry.lanes));
        let main = Pool::new(geometry.page_bytes, geometry.main_pages.max(1))?;
        let run = Run {
            sort,
            watch,
            key,
            inputs,
            feed: None,
            keep_free: KeepFree::always(2 * geometry.lanes),
            geometry,
            planned_records,
            record_room,
            plan,
            names,
            claim,
            identity,
            split_points,
            transfer,
            main,
            meters: Meters::default(),
            stop: AtomicBool::new(false),
            stages: Mutex::new(Vec::new()),
            clock,
        };
        Ok((run, left))
    }

    /// Fills memory from a stream, and lays out the sort for what was read.
    fn of_stream(
        sort: &'a Sort,
        watch: &'a dyn Watch,
        (names, claim): (Names, Option<Claim>),
        clock: Stopwatch,
    ) -> Result<Run<'a>> {
        sort.stored_key()?;
        let claim = leftover::start_over(claim, sort, &names)?;
        let open = |input: &InputLocation| input.open(Caching::Cached);
        let files = sort.inputs.iter().map(open).collect::<thalweg_io::Result<Vec<InputFile>>>()?;
        let feed = Feed::new(files, sort.layout);
        let meters = Meters::default();
        let room = Room::of(sort, host::prepare_memory())?;
        let main = Pool::new(room.rough.page_bytes, room.rough.main_pages)?;
        watch.begin("fill memory", 1, 3, 0);
        let filling = Stopwatch::start();
        let ended = feed.fill(&main, room.pages(), &meters, || watch.stopped())?;
        let mut stage = Stage::new("fill memory", filling.seconds());
        (stage.waited_read_seconds, stage.waited_write_seconds) = meters.stage.take_seconds();
        stage.read_bytes = meters.input.totals().0;
        let transfer = Pool::new(room.rough.transfer_bytes, room.rough.transfer_blocks)?;
        let filled = Filled { feed, room, main, transfer, ended };
        let run = Run::of_filled(sort, watch, (names, claim), filled, (meters, clock))?;
        Ok(Run { stages: Mutex::new(vec![stage]), ..run })
    }

    /// Lays out the sort of a stream whose beginning is in memory.
    fn of_filled(
        sort: &'a Sort,
        watch: &'a dyn Watch,
        (names, claim): (Names, Option<Claim>),
        filled: Filled,
        (meters, clock): (Meters, Stopwatch),
    ) -> Result<Run<'a>> {
        let Filled { feed, room, main, transfer, ended } = filled;
        let key = sort.stored_key()?;
        let (ranges_max, least_bytes, rough) = (room.ranges_max(), room.least_bytes(), room.rough);
        let (given, keys) = room.seen(&feed, ended, sort, &key);
        let mut geometry = rough.with_ranges_for(&given, ranges_max);
        if !ended && sort.shuffle.is_none() {
            // Prefer more ranges to more buckets: a bucket that is too large can be split in memory, a range cannot.
            let keys_of_range = (keys.len() / geometry.ranges).max(1);
            geometry.buckets_per_range = geometry.buckets_per_range.min(keys_of_range);
        }
        let keep_free = match ended {
            true => KeepFree::always(KEEP_FREE_PAGES),
            false => KeepFree::of_stream(&geometry, &given, least_bytes),
        };
        let inputs = Inputs::open(&[], sort.layout)?;
        let copies = long_copies(&key, geometry.lanes);
        Ok(Run {
            sort,
            watch,
            key,
            inputs,
            feed: Some(feed),
            keep_free,
            geometry: Geometry { excess_bytes: 0, ..geometry },
            planned_records: given.records,
            record_room: RecordRoom::new(stream::RECORD_BYTES, sort.record_max(), copies),
            plan: None,
            names,
            claim,
            identity: 0,
            split_points: split_points_of(sort, keys, &geometry),
            transfer,
            main,
            meters,
            stop: AtomicBool::new(false),
            stages: Mutex::new(Vec::new()),
            clock,
        })
    }

    /// Bytes of the input that are known so far.
    fn input_bytes(&self) -> u64 {
        self.feed.as_ref().map_or(self.inputs.bytes(), Feed::bytes)
    }

    /// Runs both passes. Records that fit in memory stay there between them; the others go to `spilled`.
    fn run(&self, left: Option<Leftover>, spilled: &mut Option<Scratch>) -> Result<Receipt> {
        let geometry = &self.geometry;
        let mut scratch = Scratch::new(
            &self.sort.scratch,
            &self.names.scratch,
            geometry.excess_bytes,
            self.sort.scratch_limit,
        )
        .nameless(self.sort.output_is_stream);
        let within = OutputScratch::asked(self.sort, (self.inputs.bytes(), self.planned_records), geometry);
        if let Some(within) = within.filter(|_| left.is_none() && self.feed.is_none()) {
            scratch = scratch.within(&self.names.partial, within);
        }
        let (manifest, resumed, start) = self.resume_from(left, &mut scratch)?;
        let scratch = &*spilled.insert(scratch);
        let manifest = manifest.as_ref();
        let excess = self.excess(&resumed, &start);
        let (output, outcome) = match self.prepare(scratch, excess, &resumed, &start) {
            Ok(output) => {
                let outcome = self.run_with(scratch, manifest, output.as_ref(), (resumed, start));
                (output, outcome)
            }
            Err(error) => (None, Err(error)),
        };
        let may_last = matches!(
            outcome,
            Err(Error::ScratchFull { .. } | Error::OutputFull { .. } | Error::Io(_) | Error::Stopped)
        );
        // If the output is already published, there is nothing to resume.
        let is_named = output.as_ref().is_some_and(Output::is_named);
        let resumable =
            self.sort.resume && may_last && !is_named && manifest.is_some_and(Manifest::is_of_use);
        if resumable {
            scratch.keep(manifest.is_some_and(Manifest::has_own_checkpoint));
            manifest.into_iter().for_each(|manifest| manifest.keep(true));
            let is_needed = scratch.is_within() || manifest.is_some_and(Manifest::has_note);
            output.iter().filter(|_| is_needed).for_each(Output::keep);
        }
        outcome.map_err(|error| {
            let output_bytes = self.input_bytes().saturating_sub(self.meters.output.totals().1);
            let spilled_bytes = excess.saturating_sub(self.meters.scratch.totals().1);
            let takes = DiskNeeds { output_bytes, spilled_bytes, resumable, ..DiskNeeds::default() };
            match error {
                Error::RecordTooLong { what, at, limit, .. } if self.feed.is_none() => {
                    let (input, at) = self.inputs.place(at);
                    Error::RecordTooLong { what, path: Some(input.path().to_path_buf()), at, limit }
                }
                Error::CutOff { at, bytes } if self.feed.is_none() => {
                    self.inputs.place(at).0.ends_inside(self.sort.layout, bytes).into()
                }
                other => preflight::with_figures(other, self.sort, &self.names, &takes),
            }
        })
    }

    /// Bytes that are still to be spilled. Ranges that are already in the output need no spilling.
    fn excess(&self, resumed: &Resumed, start: &ResumePoint) -> u64 {
        let unseen = start.unseen_bytes(self.sort.layout, &resumed.stores).expect("the leftover was judged");
        self.geometry.excess_bytes.saturating_sub(resumed.spilled_bytes()).saturating_sub(unseen)
    }

    /// Checks the free disk space, creates the partial output or opens an existing one, and reserves its space,
    /// before anything is read.
    fn prepare(
        &self,
        scratch: &Scratch,
        excess: u64,
        resumed: &Resumed,
        start: &ResumePoint,
    ) -> Result<Option<Output>> {
        let spilled = resumed.spilled_bytes() > 0;
        let is_there = start.ranges() > 0 || scratch.is_within() && spilled;
        let is_new = !self.sort.output_is_stream && !is_there;
        let (output_bytes, spilled_bytes) = match scratch.room_within() {
            Some(room) => (room, 0),
            None => (self.inputs.bytes(), excess),
        };
        let takes = DiskNeeds {
            output_bytes: if is_new { output_bytes } else { 0 },
            spilled_bytes,
            scratch_used: scratch.used(),
            resumable: self.sort.resume && spilled,
        };
        preflight::preflight(self.sort, &scratch.directories(), &takes)?;
        let (bytes, limit) = (self.sort.header.len() as u64, self.transfer.block_size() as u64);
        if bytes >= limit {
            return Err(Error::HeaderTooLong { bytes, limit });
        }
        let Some(claim) = &self.claim else { return Ok(None) };
        let output = Output::of(claim.file().clone(), &self.sort.output.path);
        if is_new {
            output.file().set_len(0)?;
            output.file().allocate(output_bytes)?;
        }
        scratch.settle(output.file());
        Ok(Some(output))
    }

    fn run_with(
        &self,
        scratch: &Scratch,
        manifest: Option<&Manifest>,
        output: Option<&Output>,
        (resumed, start): (Resumed, ResumePoint),
    ) -> Result<Receipt> {
        let geometry = &self.geometry;
        let per_range = geometry.buckets_per_range;
        let range_cuts: Vec<SplitPoint> =
            self.split_points.iter().skip(per_range - 1).step_by(per_range).cloned().collect();
        let split_points = SplitPoints::new(&self.key, range_cuts);
        let file_start =
            |page: u64| if self.feed.is_some() { 0 } else { self.inputs.file_of(page).first_page };
        let first_page = resumed.next_page;
        let spilled = resumed.spilled_bytes();
        let excess = self.excess(&resumed, &start);
        // A checkpoint covers all ranges, but the pages of finished ranges are gone.
        let noting = manifest.filter(|_| start.ranges() == 0);
        let checkpoints = noting.map(|m| Checkpoints::new(m, self.checkpoint_pages()));
        let resumed = Some((checkpoints, resumed));
        let distribution = self.distribution(&split_points, scratch, &file_start, excess, resumed);
        let bytes = self.inputs.bytes().saturating_sub(spilled);
        self.stage("read+distribute", (1, 2), bytes, geometry.lanes, |lane| {
            let mut sink = distribution.lane(scratch.queue(geometry.depth)?);
            match &self.feed {
                None => self.pump_lane(&mut self.input_lane(lane, first_page)?, &mut sink),
                Some(feed) => {
                    let stopped = &|| self.is_stopped();
                    let mut source = FeedLane { feed, pool: &self.transfer, meters: &self.meters, stopped };
                    self.pump_lane(&mut source, &mut sink)
                }
            }
        })?;
        self.inputs.check_unchanged()?;
        let (stores, mut input) = distribution.finish()?;
        if !self.sort.hashing {
            let sum = |of: fn(&RangeStore) -> u64| stores.iter().map(of).sum();
            let (records, bytes) = (sum(|s| s.records), sum(|s| s.bytes));
            input = counted(self.sort.layout, records, bytes - records * self.sort.tag_bytes() as u64);
        }
        if self.feed.is_none() {
            self.inputs.check_all_came(file_bytes(self.sort.layout, &input))?;
        }
        let mut ranges = ranges_of(stores, &Arc::default(), &self.split_points, per_range);
        drop(ranges.drain(..start.ranges()));
        let mut ranges = self.refine(ranges, scratch, manifest)?;
        let (queue, tag_bytes) = (&mut *scratch.queue(1)?, self.sort.tag_bytes() as u64);
        let end = start.note.bytes;
        move_overtaken(&mut ranges, end, tag_bytes, scratch, &self.transfer, queue, &self.meters)?;
        if let Some(output) = output.filter(|_| self.feed.is_some()) {
            output.file().allocate(self.input_bytes())?;
        }
        let mut receipt = self.write(ranges, scratch, manifest, output, (&start, input))?;
        receipt.resumed_bytes = spilled;
        receipt.resumed_output_bytes = start.note.bytes;
        Ok(receipt)
    }

    /// Pages between checkpoints: few, to lose little in a crash, but enough to make closing all pages cheap.
    fn checkpoint_pages(&self) -> u64 {
        let Geometry { ranges, page_bytes, transfer_bytes, .. } = self.geometry;
        (self.inputs.pages() / 32).max((2 * ranges * page_bytes / transfer_bytes) as u64).max(1)
    }

    /// Resumes from the files of an earlier run, or creates a manifest if this run will write to it.
    fn resume_from(
        &self,
        left: Option<Leftover>,
        scratch: &mut Scratch,
    ) -> Result<(Option<Manifest>, Resumed, ResumePoint)> {
        let Some(left) = left else {
            let is_noted =
                !self.sort.output_is_stream && self.sort.shuffle.is_none() && self.sort.header.is_empty();
            if self.geometry.excess_bytes == 0 || !is_noted {
                return Ok((None, Resumed::default(), ResumePoint::default()));
            }
            let layout = manifest::Layout {
                identity: self.identity,
                geometry: self.geometry,
                split_points: self.split_points.clone(),
            };
            let manifest = Manifest::create(&self.names.manifest, &layout)?;
            return Ok((Some(manifest), Resumed::default(), ResumePoint::default()));
        };
        let within = |path: &Path| {
            let within = OutputScratch::of(self.inputs.bytes(), &self.geometry);
            within.filter(|_| path == self.names.partial.path)
        };
        let extents = left.resumed.stores.iter().flat_map(RangeStore::extents);
        scratch.adopt(&left.files, extents, within)?;
        left.manifest.keep(false);
        Ok((Some(left.manifest), left.resumed, left.start))
    }

    /// Distributes every range again that is too large for memory. This is a third pass if memory is small, or a
    /// correction if the sample was wrong.
    fn refine(
        &self,
        mut ranges: Vec<Range>,
        scratch: &Scratch,
        manifest: Option<&Manifest>,
    ) -> Result<Vec<Range>> {
        let geometry = &self.geometry;
        let page_bytes = geometry.page_bytes;
        let needed = |range: &Range| {
            let (records, buckets) = (range.store.records, range.split_points.len() + 1);
            let entries = entry_pages(records, buckets, geometry.lanes, geometry.chunk_entries, page_bytes);
            range.store.pages.len() + entries as usize
        };
        // Long lines may have taken some pages of the pool.
        let capacity = self.main.capacity();
        let is_too_large = |range: &Range| {
            let addressed = range.store.pages.len() as u64 * page_bytes as u64;
            needed(range) > capacity || addressed > entry::addressable_bytes(self.sort.layout)
        };
        // Whether the last sample had too few distinct keys.
        let mut is_stuck = false;
        while let Some(at) = ranges.iter().position(is_too_large) {
            // From here on extents are freed, so the manifest is no longer valid.
            manifest.map_or(Ok(()), Manifest::void)?;
            let stores = ranges.iter_mut().map(|r| &mut r.store);
            evict(stores, usize::MAX, scratch, &self.meters, &mut *scratch.queue(geometry.depth)?)?;
            let range = ranges.remove(at);
            let before = needed(&range);
            let count = before.div_ceil(capacity / 4).clamp(2, capacity / 3);
            let parts = self.distribute_again(range, count, is_stuck, scratch)?;
            let was_stuck = is_stuck;
            is_stuck = parts.iter().any(|p| needed(p) > before * 9 / 10);
            if is_stuck && was_stuck {
                let given = self.sort.memory_bytes;
                return Err(Error::MemoryTooSmall { given, needed: (before * page_bytes) as u64 + given });
            }
            ranges.splice(at..at, parts);
        }
        Ok(ranges)
    }

    /// Divides one range into about `count` ranges. With `sample_whole`, the whole range is sampled.
    fn distribute_again(
        &self,
        range: Range,
        count: usize,
        sample_whole: bool,
        scratch: &Scratch,
    ) -> Result<Vec<Range>> {
        let geometry = &self.geometry;
        let page_bytes = geometry.page_bytes;
        let (store, pool, meters) = (&range.store, &self.transfer, &self.meters);
        let replay = Replay { store, page_bytes, scratch, pool, meters };
        let per_range = (range.split_points.len() + 1).div_ceil(count).max(1);
        let asked = resample::Request {
            replay,
            queue: &|| scratch.queue(geometry.depth),
            layout: self.sort.stored(),
            key: &self.key,
            keys_bytes_max: geometry.sample_bytes,
        };
        let Resample { base, mut keys } = asked.sample(8 * count, sample_whole)?;
        let all_cuts = choose_split_points_by_bytes(&mut keys, count * per_range - 1);
        drop(keys);
        let range_cuts = all_cuts.iter().skip(per_range - 1).step_by(per_range).cloned().collect();
        let split_points = SplitPoints::behind(&self.key, Arc::clone(&base), range_cuts);
        let starts = segment_starts(page_bytes, range.store.pages.iter().map(Stored::len));
        let file_start = |page: u64| u64::from(starts[page as usize]);
        let distribution = self.distribution(&split_points, scratch, &file_start, u64::MAX, None);
        self.stage("distribute again", (2, 3), range.store.bytes, geometry.lanes, |lane| {
            let queue = scratch.queue(geometry.depth)?;
            let mut source = ReplayLane::new(replay, queue, lane, geometry.lanes);
            let mut sink = distribution.lane(scratch.queue(geometry.depth)?);
            self.pump_lane(&mut source, &mut sink)
        })?;
        let (stores, _) = distribution.finish()?;
        range.store.extents().for_each(|extent| scratch.release(extent));
        let mut parts = ranges_of(stores, &base, &all_cuts, per_range);
        if base == range.base {
            parts.first_mut().into_iter().for_each(|first| first.low = range.low.clone());
            parts.last_mut().into_iter().for_each(|last| last.high = range.high.clone());
        }
        Ok(parts)
    }

    fn distribution<'d>(
        &'d self,
        split_points: &'d SplitPoints,
        scratch: &'d Scratch,
        file_start: &'d (dyn Fn(u64) -> u64 + Sync),
        excess: u64,
        first_pass: Option<(Option<Checkpoints<'d>>, Resumed)>,
    ) -> Distribution<'d> {
        let is_first = first_pass.is_some();
        let Geometry { page_bytes, transfer_bytes, .. } = self.geometry;
        let (checkpoints, resumed) = first_pass.unwrap_or_default();
        let tags = self.sort.tags().filter(|_| is_first);
        let config = distribute::Config {
            key: &self.key,
            layout: if is_first { self.sort.layout } else { self.sort.stored() },
            split_points,
            pool: &self.main,
            scratch,
            meters: &self.meters,
            stop: &self.stop,
            hashing: self.sort.hashing && is_first,
            is_first,
            record_room: &self.record_room,
            input_page_bytes: if is_first { transfer_bytes } else { page_bytes } as u64,
            excess,
            keep_free: &self.keep_free,
            ahead: self.feed.as_ref().filter(|_| is_first),
            file_start,
            tagging: tags.map(|tags| Tagging { tags, inputs: self.feed.is_none().then_some(&self.inputs) }),
            checkpoints,
        };
        Distribution::new(config, resumed)
    }

    /// The last pass: writes the sorted stream to the output.
    fn write(
        &self,
        ranges: Vec<Range>,
        scratch: &Scratch,
        manifest: Option<&Manifest>,
        output: Option<&Output>,
        (start, input): (&ResumePoint, Proof),
    ) -> Result<Receipt> {
        let notes = output.zip(manifest.filter(|m| !m.is_void())).map(|(output, manifest)| {
            let (unique, whole) = (self.sort.unique, (start, self.input_bytes()));
            let needed = needed_within(&ranges, scratch);
            Notes::new(manifest, output.file(), &self.meters, &self.geometry, unique, whole, needed)
        });
        let config = self.sorted_recipe(scratch, notes.as_ref());
        let sorted = Sorted::new(config, self.transfer.clone(), ranges, start);
        let bytes = self.input_bytes() - start.note.bytes;
        let handover = self.feed.as_ref().and_then(Feed::handover);
        let stream = match (output, handover) {
            (None, None) => Some(self.open_stream()?),
            _ => None,
        };
        let stopped = &|| self.is_stopped();
        self.stage("load+sort+write", (2, 2), bytes, self.geometry.lanes, |lane| {
            let mut source = sorted.lane(lane, scratch.queue(self.geometry.depth)?);
            let meters = &self.meters;
            if let Some(output) = output {
                let queue = output.file().backend().queue(self.geometry.depth)?;
                let lane = FileLane::new(output.file(), queue, meters);
                self.pump_lane(&mut source, &mut OutputLane::new(lane, notes.as_ref(), &self.stop))
            } else if let Some(handover) = handover {
                self.pump_lane(&mut source, &mut HandoverLane { handover, meters, stopped })
            } else {
                let stream = stream.as_ref().expect("opened above");
                self.pump_lane(&mut source, &mut OutputStreamLane { stream, meters, stopped })
            }
        })?;
        // A shuffled output has no order to check.
        let ordered = output.filter(|_| self.sort.shuffle.is_none());
        let (proof, dropped, written) = sorted.finish(ordered.map(Output::file))?;
        let direct = output.is_some_and(|o| o.file().is_direct());
        let mut receipt = self.receipt(input, proof, dropped, scratch, direct);
        if !receipt.holds {
            return Err(Error::Mismatch(Box::new(receipt)));
        }
        let publishing = Stopwatch::start();
        if let Some(output) = output {
            receipt.not_kept = output.publish(written)?;
        }
        self.stages.lock().expect("no lane panics").push(Stage::new("sync", publishing.seconds()));
        receipt.stages = self.stages.lock().expect("no lane panics").clone();
        for stage in &mut receipt.stages {
            let planned = self.plan.iter().flat_map(|plan| &plan.stages).find(|p| p.name == stage.name);
            stage.predicted_seconds = planned.map(|planned| planned.seconds);
        }
        receipt.seconds = self.clock.seconds();
        Ok(receipt)
    }

    fn open_stream(&self) -> Result<OutputStream> {
        // As many blocks as the sinks of all lanes would hold.
        let window_bytes = (self.geometry.lanes * self.geometry.depth * self.transfer.block_size()) as u64;
        OutputStream::open(&self.sort.output, window_bytes, || self.watch.stopped())
    }

    fn receipt(
        &self,
        input: Proof,
        output: Proof,
        dropped: Proof,
        scratch: &Scratch,
        direct: bool,
    ) -> Receipt {
        let mut out = output;
        thalweg_record::add_proof(&mut out, &dropped);
        let verb = if self.sort.shuffle.is_some() { "shuffle" } else { "sort" };
        let receipt = self.meters.receipt(verb, self.sort.memory_bytes);
        Receipt {
            input_file_bytes: match &self.feed {
                Some(feed) => feed.file_bytes(&self.meters),
                None => self.inputs.file_bytes(),
            },
            output_file_bytes: self.sort.header.len() as u64 + file_bytes(self.sort.layout, &output),
            proved: self.sort.hashing,
            holds: same_records(&input, &out)
                && (output.unordered == 0 || self.sort.shuffle.is_some())
                && (!self.sort.unique || output.duplicates == 0),
            input,
            output,
            dropped,
            seconds: self.clock.seconds(),
            io: IoReceipt { backend: self.sort.backends().name(), direct_output: direct, ..receipt.io },
            scratch_peak_bytes: scratch.peak(),
            grown: self.inputs.grown(),
            plan: self.plan.clone(),
            ..receipt
        }
    }

    fn sorted_recipe<'s>(&'s self, scratch: &'s Scratch, notes: Option<&'s Notes<'s>>) -> sorted::Config<'s> {
        sorted::Config {
            key: &self.key,
            layout: self.sort.stored(),
            tag_bytes: self.sort.tag_bytes(),
            unique: self.sort.unique,
            header: &self.sort.header,
            proving: self.sort.hashing,
            prover: self.sort.prover(),
            lanes: self.geometry.lanes,
            chunk_entries: self.geometry.chunk_entries,
            job_bytes: self.geometry.job_bytes,
            job_entries: self.geometry.job_entries,
            sample_bytes: self.geometry.sample_bytes,
            pool: &self.main,
            scratch,
            meters: &self.meters,
            stop: &self.stop,
            notes,
        }
    }

    fn input_lane(&self, lane: usize, first_page: u64) -> Result<InputLane<'_>> {
        let (pool, queue) = (&self.transfer, self.inputs.backends().queue(self.geometry.depth)?);
        let lanes = (lane, self.geometry.lanes);
        Ok(InputLane::new(&self.inputs, queue, pool, &self.meters, lanes, (first_page, self.inputs.pages())))
    }

    fn pump_lane<S: Source, K: Sink>(&self, source: &mut S, sink: &mut K) -> Result<()>
    where
        Error: From<S::Error> + From<K::Error>,
    {
        pump(source, sink, |bytes| {
            self.watch.advance(bytes);
            if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
        })
    }

    fn is_stopped(&self) -> bool {
        self.watch.stopped() || self.stop.load(Ordering::Relaxed)
    }

    /// Runs a closure in each lane and records the time. The first error stops all lanes.
    fn stage(
        &self,
        name: &str,
        (index, stages): (u64, u64),
        bytes: u64,
        lanes: usize,
        lane: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        if let Some(percent) = self.plan.as_ref().and_then(|plan| behind(plan, name)) {
            self.watch.behind_next(percent);
        }
        self.watch.begin(name, index, stages, bytes);
        let watch = Stopwatch::start();
        let before = self.disk_totals();
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            let one = |i: usize| {
                let _tells = OnPanic(|| self.stop.store(true, Ordering::Relaxed));
                if let Err(error) = lane(i) {
                    self.stop.store(true, Ordering::Relaxed);
                    let mut first = first_error.lock().expect("no lane panics");
                    if first.is_none() || matches!(*first, Some(Error::Stopped)) {
                        *first = Some(error);
                    }
                }
            };
            for i in 1..lanes {
                scope.spawn(move || one(i));
            }
            one(0);
        });
        let (waited_read_seconds, waited_write_seconds) = self.meters.stage.take_seconds();
        let after = self.disk_totals();
        let stage = Stage {
            waited_read_seconds,
            waited_write_seconds,
            read_bytes: after.0 - before.0,
            written_bytes: after.1 - before.1,
            ..Stage::new(name, watch.seconds())
        };
        let mut stages = self.stages.lock().expect("no lane panics");
        match stages.last_mut() {
            // The same stage again, for another range.
            Some(last) if last.name == stage.name => {
                last.seconds += stage.seconds;
                last.add_traffic(&stage);
            }
            _ => stages.push(stage),
        }
        drop(stages);
        match first_error.into_inner().expect("no lane panics") {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn disk_totals(&self) -> (u64, u64) {
        let all = [&self.meters.input, &self.meters.scratch, &self.meters.output].map(|m| m.totals());
        (all.iter().map(|t| t.0).sum(), all.iter().map(|t| t.1).sum())
    }
}

/// How long the stages of a plan after this one take, in percent of this one.
fn behind(plan: &Plan, name: &str) -> Option<u64> {
    let at = plan.stages.iter().position(|stage| stage.name == name)?;
    let (this, later) = (plan.stages[at].seconds, plan.stages[at + 1..].iter().map(|stage| stage.seconds));
    (this > 0.0).then(|| (100.0 * later.sum::<f64>() / this) as u64)
}
