//! A sort from files to a file: sample, distribute if it does not fit, gather, prove, publish.
//!
//! Every pass is a pump in each lane: input -> part, or input -> ranges, then sorted -> output.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_api::{IoReceipt, MemoryReceipt, Proof, Receipt, Stage};
use thalweg_base::clock::Stopwatch;
use thalweg_block::{Block, Pool};
use thalweg_io::{Access, File, Io, process};
use thalweg_pump::{FileLane, InputLane, Inputs, Meters, Output, Sink, Source, StreamLane, pump};
use thalweg_record::{Cut, Cuts, Key, KeyPart, Layout, choose_cuts, same_records};

use crate::distribute::{self, Distribution};
use crate::entry::LINES_BYTES_MAX;
use crate::geometry::{Geometry, Given};
use crate::pages::Pages;
use crate::part::{self, Part};
use crate::sample::{Sample, take_sample};
use crate::scratch::Scratch;
use crate::sorted::{self, Range, Sorted, skips};
use crate::{Error, Result};

/// Whoever wants to know how far a sort is, and may stop it.
pub trait Watch: Sync {
    /// A stage begins.
    fn begin(&self, stage: &str, index: u64, stages: u64, total_bytes: u64);
    /// So many more bytes of the stage are done.
    fn advance(&self, bytes: u64);
    /// Whether to stop.
    fn stopped(&self) -> bool;
}

/// What to sort, where and in what.
#[derive(Debug, Clone)]
pub struct Sort {
    /// Input files, in order.
    pub inputs: Vec<PathBuf>,
    /// The output's name, or a stream opened as such.
    pub output: PathBuf,
    /// Whether the output is a pipe, a terminal or a device.
    pub output_is_stream: bool,
    /// How records lie.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// The promise for the whole process, in bytes.
    pub memory_bytes: u64,
    /// Directories for what does not fit.
    pub scratch: Vec<PathBuf>,
    /// The most scratch bytes to use.
    pub scratch_limit: u64,
    /// Lanes.
    pub lanes: usize,
    /// Keep only the first of equal keys.
    pub unique: bool,
    /// Go on from what an earlier run left.
    pub resume: bool,
    /// Whether to compute checksums.
    pub hashing: bool,
}

/// Runs a sort.
pub fn run(sort: &Sort, io: &Arc<dyn Io>, watch: &dyn Watch) -> Result<Receipt> {
    let mut records_seen = 0;
    loop {
        let run = Run::new(sort, io, watch, records_seen)?;
        match run.run() {
            // There are more and shorter lines than the sample said: plan again for more.
            Err(Error::Underestimated) => records_seen = run.planned_records * 3 / 2,
            other => return other,
        }
    }
}

struct Run<'a> {
    sort: &'a Sort,
    io: &'a Arc<dyn Io>,
    watch: &'a dyn Watch,
    key: Key,
    inputs: Inputs,
    geometry: Geometry,
    planned_records: u64,
    cuts: Vec<Cut>,
    transfer: Pool,
    main: Pool,
    meters: Meters,
    stop: AtomicBool,
    stages: Mutex<Vec<Stage>>,
    clock: Stopwatch,
}

impl<'a> Run<'a> {
    fn new(sort: &'a Sort, io: &'a Arc<dyn Io>, watch: &'a dyn Watch, records_seen: u64) -> Result<Run<'a>> {
        let clock = Stopwatch::start();
        let key = Key::new(sort.layout, &sort.keys)?;
        let paths: Vec<&std::path::Path> = sort.inputs.iter().map(PathBuf::as_path).collect();
        let mut inputs = Inputs::open(io, &paths, sort.layout)?;
        let mut given = Given {
            memory_bytes: sort.memory_bytes,
            resident_bytes: process::resident_bytes(),
            lanes: sort.lanes,
            input_bytes: inputs.bytes(),
            records: records_seen.max(guess_records(sort.layout, inputs.bytes(), 64.0)),
            input_files: inputs.files().len() as u64,
        };
        let rough = Geometry::of(&given)?;
        let transfer = Pool::new(rough.page_bytes, rough.transfer_pages)?;
        inputs.set_page_bytes(rough.page_bytes);
        let sample = {
            let mut queue = io.queue(16.min(rough.transfer_pages))?;
            let page_bytes = rough.page_bytes as u64;
            take_sample(&inputs, page_bytes, sort.layout, &key, &transfer, &mut *queue, rough.sample_bytes)?
        };
        if sort.layout == Layout::Lines {
            given.records = records_seen.max(guess_records(sort.layout, inputs.bytes(), sample.line_bytes()));
        }
        let geometry = Geometry::of(&given)?;
        let transfer =
            if geometry.page_bytes == rough.page_bytes && geometry.transfer_pages == rough.transfer_pages {
                transfer
            } else {
                drop(transfer);
                inputs.set_page_bytes(geometry.page_bytes);
                Pool::new(geometry.page_bytes, geometry.transfer_pages)?
            };
        let cuts = cuts_of(sample, &geometry, sort.unique);
        let main = Pool::new(geometry.page_bytes, geometry.main_pages.max(1))?;
        Ok(Run {
            sort,
            io,
            watch,
            key,
            inputs,
            geometry,
            planned_records: given.records,
            cuts,
            transfer,
            main,
            meters: Meters::default(),
            stop: AtomicBool::new(false),
            stages: Mutex::new(Vec::new()),
            clock,
        })
    }

    fn run(&self) -> Result<Receipt> {
        if self.geometry.ranges == 1 { self.in_memory() } else { self.distributed() }
    }

    /// One pass: pages of the input are the pages of one part.
    fn in_memory(&self) -> Result<Receipt> {
        let geometry = &self.geometry;
        let lens = (0..self.inputs.pages()).map(|p| self.inputs.page_len(p));
        let recipe = part::Recipe {
            key: &self.key,
            layout: self.sort.layout,
            skips: skips(&self.cuts, None, None),
            cuts: Cuts::new(&self.key, self.cuts.clone()),
            chunk_entries: geometry.chunk_entries,
            lanes: geometry.lanes,
            hashing: self.sort.hashing,
        };
        let part = Part::new(recipe, Pages::new(geometry.page_bytes, lens));
        self.stage("read", 1, 2, self.inputs.bytes(), |lane| {
            let mut source = self.input_lane(lane)?;
            let mut sink = PartLane { part: &part, lane, pool: &self.main, page_bytes: geometry.page_bytes };
            self.pump_lane(&mut source, &mut sink)
        })?;
        let underestimated = |_| Error::Underestimated;
        let input = part.seal(&self.main).map_err(underestimated)?;
        self.inputs.check_unchanged()?;
        let sorted = Sorted::of_part(self.sorted_recipe(None), self.transfer.clone(), part);
        self.write(sorted, "sort+write", input, None)
    }

    /// Two passes: to ranges, then range by range.
    fn distributed(&self) -> Result<Receipt> {
        let geometry = &self.geometry;
        let scratch = Scratch::open(
            self.io,
            &self.sort.scratch,
            &scratch_name(&self.sort.output),
            geometry.excess_bytes,
            self.sort.scratch_limit,
            &[],
        )?;
        let per_range = geometry.buckets_per_range;
        let range_cuts: Vec<Cut> = self.cuts.iter().skip(per_range - 1).step_by(per_range).cloned().collect();
        let cuts = Cuts::new(&self.key, range_cuts.clone());
        let file_start = |page: u64| self.inputs.file_of(page).first_page;
        let distribution = Distribution::new(distribute::Recipe {
            key: &self.key,
            layout: self.sort.layout,
            cuts: &cuts,
            pool: &self.main,
            scratch: &scratch,
            meters: &self.meters,
            stop: &self.stop,
            hashing: self.sort.hashing,
            record_max: self.record_max(),
            excess: geometry.excess_bytes,
            file_start: &file_start,
        });
        self.stage("read+distribute", 1, 2, self.inputs.bytes(), |lane| {
            let mut source = self.input_lane(lane)?;
            let mut sink = distribution.lane(self.io.queue(geometry.depth)?);
            self.pump_lane(&mut source, &mut sink)
        })?;
        self.inputs.check_unchanged()?;
        let (stores, input) = distribution.finish();
        let ranges = self.ranges_of(stores, &range_cuts);
        let sorted = Sorted::of_ranges(self.sorted_recipe(Some(&scratch)), self.transfer.clone(), ranges);
        self.write(sorted, "load+sort+write", input, Some(&scratch))
    }

    /// Puts each range together with the cuts inside it. Origins of those cuts become places in the range.
    fn ranges_of(&self, stores: Vec<distribute::RangeStore>, range_cuts: &[Cut]) -> Vec<Range> {
        let per_range = self.geometry.buckets_per_range;
        let total = (self.inputs.pages() * self.geometry.page_bytes as u64).max(1);
        let bound = |i: usize| range_cuts.get(i).cloned();
        stores
            .into_iter()
            .enumerate()
            .map(|(i, store)| {
                let from = (i * per_range).min(self.cuts.len());
                let to = (from + per_range - 1).min(self.cuts.len());
                let mut cuts = self.cuts[from..to].to_vec();
                for cut in &mut cuts {
                    if cut.origin != u64::MAX {
                        cut.origin =
                            (u128::from(cut.origin) * u128::from(store.bytes) / u128::from(total)) as u64;
                    }
                }
                cuts.dedup();
                Range { store, cuts, low: i.checked_sub(1).and_then(bound), high: bound(i) }
            })
            .collect()
    }

    /// The last pass: the sorted stream to the output.
    fn write(
        &self,
        sorted: Sorted<'_>,
        name: &str,
        input: Proof,
        scratch: Option<&Scratch>,
    ) -> Result<Receipt> {
        let bytes = self.inputs.bytes();
        let output = self.open_output(bytes)?;
        let lanes = if output.is_some() { self.geometry.lanes } else { 1 };
        self.stage_lanes(name, 2, 2, bytes, lanes, |lane| {
            let mut source = sorted.lane(lane, self.io.queue(self.geometry.depth)?);
            match &output {
                Some(output) => {
                    let queue = self.io.queue(self.geometry.depth)?;
                    self.pump_lane(&mut source, &mut FileLane::new(output.file(), queue, &self.meters))
                }
                None => {
                    let file = File::open(self.io, &self.sort.output, Access::WriteStream)?;
                    self.pump_lane(&mut source, &mut StreamLane::new(&file, &self.meters))
                }
            }
        })?;
        let (proof, dropped, written) = sorted.finish();
        let direct = output.as_ref().is_some_and(|o| o.file().is_direct());
        let mut receipt = self.receipt(input, proof, dropped, scratch, direct);
        if !receipt.holds {
            return Err(Error::Mismatch(Box::new(receipt)));
        }
        let publishing = Stopwatch::start();
        if let Some(output) = output {
            output.publish(written)?;
        }
        self.stages.lock().expect("no lane panics").push(Stage {
            name: "sync".to_string(),
            seconds: publishing.seconds(),
            predicted_seconds: None,
            waited_read_seconds: 0.0,
            waited_write_seconds: 0.0,
            read_bytes: 0,
            written_bytes: 0,
        });
        receipt.stages = self.stages.lock().expect("no lane panics").clone();
        receipt.seconds = self.clock.seconds();
        Ok(receipt)
    }

    fn open_output(&self, bytes: u64) -> Result<Option<Output>> {
        if self.sort.output_is_stream {
            return Ok(None);
        }
        let path = &self.sort.output;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.thalweg-partial"));
        Ok(Some(Output::create(self.io, path, &partial, bytes)?))
    }

    fn receipt(
        &self,
        input: Proof,
        output: Proof,
        dropped: Proof,
        scratch: Option<&Scratch>,
        direct: bool,
    ) -> Receipt {
        let usage = process::usage();
        let mut out = output;
        thalweg_record::add_proof(&mut out, &dropped);
        let disk = |m: &thalweg_pump::Meter| {
            let (read_bytes, written_bytes) = m.totals();
            thalweg_api::Disk { read_bytes, written_bytes }
        };
        let same = if self.sort.hashing { same_records(&input, &out) } else { true };
        Receipt {
            verb: "sort".to_string(),
            holds: same && output.unordered == 0 && (!self.sort.unique || output.duplicates == 0),
            input,
            output,
            dropped,
            seconds: self.clock.seconds(),
            cpu_seconds: usage.cpu_seconds,
            stages: Vec::new(),
            io: IoReceipt {
                backend: self.io.name().to_string(),
                fallback: None,
                cached_input_bytes: self.meters.cached.totals().0,
                direct_output: direct,
                input: disk(&self.meters.input),
                scratch: disk(&self.meters.scratch),
                output: disk(&self.meters.output),
            },
            memory: MemoryReceipt {
                limit_bytes: self.sort.memory_bytes,
                peak_bytes: usage.peak_bytes,
                huge_page_bytes: process::huge_page_bytes(),
            },
            scratch_peak_bytes: scratch.map_or(0, Scratch::used),
            resumed_bytes: 0,
            plan: None,
        }
    }

    fn sorted_recipe<'s>(&'s self, scratch: Option<&'s Scratch>) -> sorted::Recipe<'s> {
        sorted::Recipe {
            key: &self.key,
            layout: self.sort.layout,
            unique: self.sort.unique,
            proving: self.sort.hashing,
            lanes: self.geometry.lanes,
            chunk_entries: self.geometry.chunk_entries,
            job_bytes: self.geometry.job_bytes,
            job_entries: self.geometry.job_entries,
            pool: &self.main,
            scratch,
            meters: &self.meters,
            stop: &self.stop,
        }
    }

    /// The longest line: an eighth of the memory. Fixed records are what they are.
    fn record_max(&self) -> u64 {
        match self.sort.layout {
            Layout::Fixed(_) => u64::MAX,
            Layout::Lines => self.sort.memory_bytes / 8,
        }
    }

    fn input_lane(&self, lane: usize) -> Result<InputLane<'_>> {
        let pool = if self.geometry.ranges == 1 { &self.main } else { &self.transfer };
        let queue = self.io.queue(self.geometry.depth)?;
        let lanes = (lane, self.geometry.lanes);
        Ok(InputLane::new(&self.inputs, queue, pool, &self.meters, lanes, (0, self.inputs.pages())))
    }

    fn pump_lane<S: Source, K: Sink>(&self, source: &mut S, sink: &mut K) -> Result<()>
    where
        Error: From<S::Error> + From<K::Error>,
    {
        pump(source, sink, |bytes| {
            self.watch.advance(bytes as u64);
            if self.watch.stopped() || self.stop.load(Ordering::Relaxed) {
                Err(Error::Stopped)
            } else {
                Ok(())
            }
        })
    }

    fn stage(
        &self,
        name: &str,
        index: u64,
        stages: u64,
        bytes: u64,
        lane: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        self.stage_lanes(name, index, stages, bytes, self.geometry.lanes, lane)
    }

    /// Runs one closure in each lane and notes the time. The first error stops all lanes.
    fn stage_lanes(
        &self,
        name: &str,
        index: u64,
        stages: u64,
        bytes: u64,
        lanes: usize,
        lane: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        self.watch.begin(name, index, stages, bytes);
        let watch = Stopwatch::start();
        let before = self.disk_totals();
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            let one = |i: usize| {
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
        self.stages.lock().expect("no lane panics").push(Stage {
            name: name.to_string(),
            seconds: watch.seconds(),
            predicted_seconds: None,
            waited_read_seconds,
            waited_write_seconds,
            read_bytes: after.0 - before.0,
            written_bytes: after.1 - before.1,
        });
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

/// Records of an input, or an estimate of them with a margin.
fn guess_records(layout: Layout, bytes: u64, line_bytes: f64) -> u64 {
    match layout {
        Layout::Fixed(n) => bytes / u64::from(n),
        Layout::Lines => ((bytes as f64 / line_bytes.max(1.0) * 1.03) as u64 + 64).min(bytes),
    }
}

/// All cuts of a geometry from a sample: between ranges and, inside them, between buckets.
fn cuts_of(mut sample: Sample, geometry: &Geometry, unique: bool) -> Vec<Cut> {
    let wanted = geometry.ranges * geometry.buckets_per_range - 1;
    if unique {
        // Equal keys must meet in one bucket: cuts do not part them.
        for cut in &mut sample.keys {
            cut.origin = u64::MAX;
        }
    }
    choose_cuts(&mut sample.keys, wanted)
}

fn scratch_name(output: &std::path::Path) -> String {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.thalweg-scratch")
}

/// A part as a sink for the pages of the input.
struct PartLane<'p, 'a> {
    part: &'p Part<'a>,
    lane: usize,
    pool: &'p Pool,
    page_bytes: usize,
}

impl Sink for PartLane<'_, '_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        let index = (block.offset() / self.page_bytes as u64) as usize;
        let underestimated = |_| Error::Underestimated;
        self.part.take_page(self.lane, index, block, self.pool).map_err(underestimated)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

const _: () = assert!(LINES_BYTES_MAX > 1 << 30);
