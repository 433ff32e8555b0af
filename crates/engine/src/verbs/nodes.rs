//! Sorting on several nodes inside this process: the cluster sort with nothing but memory between its nodes.
//!
//! Model: three pumps a node. Its share of the input's pages goes into the river, whose ranges are cut from a sample of
//! whole (key, origin), so that one hot key is split by position; what the river brings it goes to a sorter; what comes
//! out of that goes to the node's stretch of the output, which begins where those of the nodes before it end.
//!
//! ```text
//! node i   pages i, i + N, ... -> inlet i ==river by range==> outlet i -> Sorter -> stretch i of the output
//! ```
//!
//! Invariant: out (+ dropped) = in, proved at the ends: what is read as it goes into the river, what is written as it is
//! handed to the disk, in order also where stretches meet.
//! Invariant: the same bytes as one node's: the river gives out pages in their order, and sorters are stable.
//! Non-goals: streams, which cannot be sampled; going on from an earlier run.

mod input_side;
mod join_stage;
mod receipt;
pub mod share;
mod sort_stage;
mod stretch;

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thalweg_api::{Disk, Edge, IoReceipt, MemoryReceipt, Proof, Receipt, Stage, Work};
use thalweg_base::clock::Stopwatch;
use thalweg_base::units::MIB;
use thalweg_block::Pool;
use thalweg_io::{FileSystem, InputLocation, Location, ReadFiles, process};
use thalweg_pump::{Inputs, Meters, Output};
use thalweg_record::{Key, Layout, SplitPoint, add_proof, file_bytes, same_records};
use thalweg_river::{Inlet, Outlet, Partitioner, River};
use thalweg_sort::Expected;

use self::sort_stage::{SortStage, Written};
use self::stretch::{Stretch, write_edges};
use super::MEMORY_BYTES_MIN;
use super::partition::preprocess::Preprocess;
use super::partition::sample;
use super::partition::shape::{self, Shape};
use super::partition::splits::{Pages, Splits};
use crate::lane_threads::Lanes;
use crate::output::{self, Target};
use crate::{Asked, BadPath, Endpoint, Needs, Progress, Result, TooLittleMemory, WorkOptions, machine};

/// More nodes than this are rather machines of their own.
const NODES_MAX: usize = 256;
/// The part of the memory that the river has; sorters share the rest.
const RIVER_SHARE: u64 = 6;
/// Writes in flight of one node, and bytes of each.
const WRITES: usize = 4;
const WRITE_BYTES: usize = 1 << 20;
/// How often somebody who waits for the stretches before looks whether to stop.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Sorts files on so many nodes. The receipt's invariant: out + dropped = in, and out is in order.
pub(super) fn sort_on_nodes(options: &WorkOptions, nodes: usize, progress: &Progress) -> Result<Receipt> {
    let watch = Stopwatch::start();
    let (io, fallback) = machine::io(options.io)?;
    let job = Job::new(options, nodes, &io)?;
    progress.begin("read+river", 1, 2, job.inputs.bytes());
    let output = output::create(&job.output, job.inputs.bytes())?;
    let mut done = job.run(&output, progress)?;
    job.check_read(&done)?;
    let written = write_edges(output.file(), std::mem::take(&mut done.edges))?;
    let mut receipt = job.receipt(&done, written, &watch);
    if receipt.holds {
        let publishing = Stopwatch::start();
        receipt.io.direct_output = output.file().is_direct();
        output::publish(output, &job.output.path, written)?;
        receipt.stages.push(Stage::new("sync", publishing.seconds()));
        receipt.seconds = watch.seconds();
    }
    receipt.io.fallback = fallback.or_else(|| io.fallback());
    Ok(receipt)
}

/// What was asked, made definite on this machine.
struct Job<'a> {
    options: &'a WorkOptions,
    io: &'a Arc<dyn FileSystem>,
    nodes: usize,
    key: Key,
    inputs: Inputs,
    output: Location,
    memory_bytes: u64,
    sorter_bytes: u64,
    shape: Shape,
    meters: Meters,
}

/// What all nodes made.
#[derive(Default)]
struct Done {
    input: Proof,
    output: Proof,
    dropped: Proof,
    edges: Vec<Edge>,
    /// Seconds until the sample was taken, until the last record had crossed the river, and until all was written.
    seconds: [f64; 3],
    sampled_bytes: u64,
    /// What the sorters did.
    sorters: Vec<Receipt>,
}

/// One end of a node.
enum End {
    In(Box<Inlet>),
    Out(Box<Outlet>),
}

/// What it made.
enum Made {
    In(Proof),
    Out(Option<Written>),
}

impl<'a> Job<'a> {
    fn new(options: &'a WorkOptions, nodes: usize, io: &'a Arc<dyn FileSystem>) -> Result<Job<'a>> {
        let key = Key::new(options.layout, &options.keys)?;
        if nodes > NODES_MAX {
            return Err(Asked::Nodes { nodes, max: NODES_MAX }.into());
        }
        let Target::File(output) = Target::of(io, &options.output)? else {
            return Err(Asked::StreamOutput(None).into());
        };
        let mut inputs = files(&(Arc::clone(io) as _), &options.inputs, options.layout)?;
        let memory_bytes = options.memory.map_or_else(machine::default_memory_bytes, machine::memory_bytes);
        let river_bytes = (memory_bytes / RIVER_SHARE).max(MEMORY_BYTES_MIN);
        let writes_bytes = (nodes * (WRITES + 1) * WRITE_BYTES) as u64;
        let sorter_bytes = memory_bytes.saturating_sub(river_bytes + writes_bytes) / nodes as u64;
        if sorter_bytes < MEMORY_BYTES_MIN {
            let beside = writes_bytes + nodes as u64 * MEMORY_BYTES_MIN;
            // The river's share is of all, and with that larger.
            let needed = (beside + MEMORY_BYTES_MIN).max((beside * RIVER_SHARE).div_ceil(RIVER_SHARE - 1));
            let needed = Some(needed.next_multiple_of(MIB));
            return Err(TooLittleMemory { given: memory_bytes, by: Needs::Nodes(nodes), needed }.into());
        }
        let shape = Shape::of_all(river_bytes, nodes, options.layout)?;
        inputs.set_page_bytes(shape.page_bytes);
        Ok(Job {
            options,
            io,
            nodes,
            key,
            inputs,
            output,
            memory_bytes,
            sorter_bytes,
            shape,
            meters: Meters::default(),
        })
    }

    fn run(&self, output: &Output, progress: &Progress) -> Result<Done> {
        let watch = Stopwatch::start();
        let (river, expected, sampled_bytes) = self.river()?;
        let sampled_seconds = watch.seconds();
        let expected: Vec<Mutex<Expected>> = expected.into_iter().map(Mutex::new).collect();
        let read_pool = Pool::new(self.shape.page_bytes, self.nodes * (shape::READS + 1))?;
        let write_pool = Pool::new(WRITE_BYTES, self.nodes * (WRITES + 1))?;
        let into = river.inlets.into_iter().map(|inlet| End::In(Box::new(inlet)));
        let out = river.outlets.into_iter().map(|outlet| End::Out(Box::new(outlet)));
        let ends: Vec<Mutex<Option<End>>> = into.chain(out).map(|end| Mutex::new(Some(end))).collect();
        let starts = Starts::new(self.nodes);
        let threads = (machine::lanes(self.options.threads) / self.nodes).max(1);
        let options = sort_stage::sorter_options(self.options, self.sorter_bytes, threads, &self.output.path);
        let begins = || progress.begin("sort+write", 2, 2, self.inputs.bytes());
        let (inputs, layout, meters) = (&self.inputs, self.options.layout, &self.meters);
        let (pool, preprocess) = (&read_pool, &Preprocess::Nothing);
        let pages = Pages { inputs, layout, shape: &self.shape, pool, meters, preprocess };
        let made = Lanes::new(progress).run(2 * self.nodes, |lanes, lane| {
            match ends[lane].lock().expect("no holder panics").take().expect("each lane takes its own") {
                End::In(mut inlet) => {
                    let splits = Splits::Shared { inlet: (lane, self.nodes) };
                    let fed = pages.put_all(&mut inlet, &splits, lanes, progress);
                    // Said before the inlet goes, so that this is why the others stop.
                    Ok(Made::In(fed.map_err(|error| lanes.fail(error)).unwrap_or_default()))
                }
                End::Out(mut outlet) => {
                    let node = lane - self.nodes;
                    let stretch =
                        Stretch::new(output.file(), self.io.queue(WRITES)?, &write_pool, &self.meters);
                    let start = Start { starts: &starts, node, begins: &begins, watch: &watch };
                    let expected = std::mem::take(&mut *expected[node].lock().expect("no holder panics"));
                    let stage =
                        SortStage { options: &options, layout, key: &self.key, tagged: false, expected };
                    sort_stage::run(&mut outlet, stretch, stage, &start, (progress, &|| lanes.go_on()))
                        .map(Made::Out)
                }
            }
        })?;
        let seconds = [sampled_seconds, starts.crossed(), watch.seconds()];
        let mut done = Done { sampled_bytes, seconds, ..Done::default() };
        let mut output = sort_stage::prover(self.options.layout, &self.key);
        for made in made {
            match made {
                Made::In(proof) => add_proof(&mut done.input, &proof),
                Made::Out(written) => {
                    let written =
                        written.expect("a lane that was stopped is no lane of a sort that went well");
                    output.join(&written.prover);
                    add_proof(&mut done.dropped, &written.receipt.dropped);
                    done.edges.extend(written.edges);
                    done.sorters.push(*written.receipt);
                }
            }
        }
        done.output = *output.proof();
        Ok(done)
    }

    /// Fails unless the files are as they were, and all of their bytes were read.
    fn check_read(&self, done: &Done) -> Result<()> {
        self.inputs.check_unchanged()?;
        Ok(self.inputs.check_all_came(file_bytes(self.options.layout, &done.input))?)
    }

    /// The river, what each node has to expect of it, and how many bytes were read to know.
    fn river(&self) -> Result<(River, Vec<Expected>, u64)> {
        let WorkOptions { layout, unique, .. } = *self.options;
        // Records that may be dropped for one another have to meet.
        let (parts, memory) =
            ((self.nodes, !unique), (self.shape.page_bytes as u64, self.shape.sample_bytes));
        let (split_points, sample, read) =
            sample::split_points(&self.inputs, (layout, &self.key), parts, memory)?;
        let (all_bytes, sampled) = (u128::from(self.inputs.bytes()), sample.len().max(1) as u128);
        let bytes_of = |keys: &[SplitPoint]| (all_bytes * keys.len() as u128 / sampled) as u64;
        let keys = share::by_range(sample, split_points.split_points(), self.nodes).into_iter();
        let expected = keys.map(|keys| Expected::new(bytes_of(&keys), keys)).collect();
        let river = self.shape.river(
            (layout, &self.key),
            Partitioner::Range(split_points),
            self.nodes,
            self.inputs.pages(),
        );
        Ok((river.build()?, expected, read))
    }

    fn receipt(&self, done: &Done, written: u64, watch: &Stopwatch) -> Receipt {
        let usage = process::usage();
        let mut out = done.output;
        add_proof(&mut out, &done.dropped);
        let layout = self.options.layout;
        let (read_bytes, _) = self.meters.input.totals();
        let read = Disk { read_bytes: read_bytes + done.sampled_bytes, written_bytes: 0 };
        let mut stages = stages(Work::Sort, done.sampled_bytes, &self.meters, &done.sorters);
        took(&mut stages, done.seconds);
        let spill = Spill::of(&done.sorters);
        Receipt {
            verb: "sort".into(),
            input: done.input,
            output: done.output,
            dropped: done.dropped,
            input_file_bytes: self.inputs.file_bytes(),
            output_file_bytes: file_bytes(layout, &done.output),
            proved: true,
            holds: same_records(&done.input, &out)
                && done.output.unordered == 0
                && (!self.options.unique || done.output.duplicates == 0)
                && written == file_bytes(layout, &done.output),
            seconds: watch.seconds(),
            cpu_seconds: usage.cpu_seconds,
            stages,
            io: IoReceipt {
                backend: self.io.name().into(),
                cached_input_bytes: self.meters.cached.totals().0,
                input: read,
                scratch: spill.disk,
                output: Disk { read_bytes: 0, written_bytes: self.meters.output.totals().1 },
                ..IoReceipt::default()
            },
            memory: MemoryReceipt {
                limit_bytes: self.memory_bytes,
                peak_bytes: usage.peak_bytes,
                huge_page_bytes: spill.huge_page_bytes,
            },
            scratch_peak_bytes: spill.peak_bytes,
            ..Receipt::default()
        }
    }
}

/// The inputs, all of them files.
fn files(io: &Arc<dyn ReadFiles>, inputs: &[Endpoint], layout: Layout) -> Result<Inputs> {
    let mut files: Vec<InputLocation> = Vec::with_capacity(inputs.len());
    for endpoint in inputs {
        match endpoint {
            Endpoint::Path(path) if io.stat(path)?.is_regular && !path.as_os_str().as_bytes().is_empty() => {
                files.push(Location::new(io, path));
            }
            Endpoint::Path(path) if io.stat(path)?.is_directory => {
                return Err(BadPath::InputDirectory(path.clone()).into());
            }
            _ => files.clear(),
        }
        if files.is_empty() {
            break;
        }
    }
    if files.is_empty() {
        return Err(Asked::StreamInput.into());
    }
    Ok(Inputs::open(&files, layout)?)
}

/// What sorters had beside their memory.
struct Spill {
    disk: Disk,
    peak_bytes: u64,
    /// Of the process, while all memory of some of them stood.
    huge_page_bytes: u64,
}

impl Spill {
    fn of(sorters: &[Receipt]) -> Spill {
        let sum = |of: fn(&Receipt) -> u64| sorters.iter().map(of).sum();
        Spill {
            disk: Disk {
                read_bytes: sum(|sorter| sorter.io.scratch.read_bytes),
                written_bytes: sum(|sorter| sorter.io.scratch.written_bytes),
            },
            peak_bytes: sum(|sorter| sorter.scratch_peak_bytes),
            huge_page_bytes: sorters.iter().map(|s| s.memory.huge_page_bytes).max().unwrap_or(0),
        }
    }
}

/// The stages of such work.
fn stages_of(work: Work) -> [Stage; 3] {
    ["sample", "read+river", work.last_stage()].map(|name| Stage::new(name, 0.0))
}

/// The same with what they moved and waited for, as meters and sorters have it. That sorters wait for records, or for
/// somebody to take them, is no wait.
fn stages(work: Work, sampled_bytes: u64, meters: &Meters, sorters: &[Receipt]) -> Vec<Stage> {
    let mut stages = Vec::from(stages_of(work));
    let (waited_read_seconds, waited_write_seconds) = meters.stage.take_seconds();
    stages[0].read_bytes = sampled_bytes;
    (stages[1].read_bytes, stages[1].waited_read_seconds) = (meters.input.totals().0, waited_read_seconds);
    (stages[2].written_bytes, stages[2].waited_write_seconds) =
        (meters.output.totals().1, waited_write_seconds);
    sorters.iter().for_each(|sorter| add_spill(&mut stages, 1, sorter));
    stages
}

/// Adds what a sorter spilled: as its records came, in this stage, and as they were taken, in the last.
pub(super) fn add_spill(stages: &mut [Stage], came: usize, sorter: &Receipt) {
    let Some((distribute, others)) = sorter.stages.split_first() else { return };
    stages[came].waited_write_seconds += distribute.waited_write_seconds;
    stages[came].written_bytes += distribute.written_bytes;
    let last = stages.last_mut().expect("there are stages");
    for other in others {
        last.waited_read_seconds += other.waited_read_seconds;
        last.read_bytes += other.read_bytes;
        last.written_bytes += other.written_bytes;
    }
}

/// Says how long stages took that were over after so many seconds.
fn took(stages: &mut [Stage], over: [f64; 3]) {
    let mut begun = 0.0;
    for (stage, over) in stages.iter_mut().zip(over) {
        stage.seconds = over - begun;
        begun = over;
    }
}

/// Where each node's stretch of the output begins.
struct Starts {
    known: Mutex<Known>,
    said: Condvar,
}

struct Known {
    bytes: Vec<Option<u64>>,
    /// Seconds after which the last of them was known.
    seconds: f64,
    writes: bool,
}

impl Starts {
    fn new(nodes: usize) -> Starts {
        let known = Known { bytes: vec![None; nodes], seconds: 0.0, writes: false };
        Starts { known: Mutex::new(known), said: Condvar::new() }
    }

    fn crossed(&self) -> f64 {
        self.known.lock().expect("no lane panics").seconds
    }
}

/// The same for one node.
struct Start<'a, B> {
    starts: &'a Starts,
    node: usize,
    /// Called by the first that writes.
    begins: &'a B,
    watch: &'a Stopwatch,
}

impl<B: Fn() + Sync> sort_stage::Starts for Start<'_, B> {
    fn say(&self, bytes: u64) -> Result<()> {
        let mut known = self.starts.known.lock().expect("no lane panics");
        known.bytes[self.node] = Some(bytes);
        known.seconds = self.watch.seconds();
        self.starts.said.notify_all();
        Ok(())
    }

    fn wait(&self, go_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        let mut known = self.starts.known.lock().expect("no lane panics");
        while go_on() {
            if let Some(start) = known.bytes[..self.node].iter().copied().sum() {
                if !std::mem::replace(&mut known.writes, true) {
                    (self.begins)();
                }
                return Ok(Some(start));
            }
            known = self.starts.said.wait_timeout(known, LOOK_UP).expect("no lane panics").0;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_base::units::Size;
    use thalweg_io::sim::Sim;

    const TEXT: &[u8] = b"b\na\nc\n";

    /// What a sort does with a file that `change` changes behind its back, when it has been looked at.
    fn sorted(change: impl FnOnce(&Sim)) -> Result<u64> {
        let sim = Sim::new(1);
        sim.put("/d/in", TEXT);
        let path = |name: &str| Endpoint::Path(name.into());
        let options = WorkOptions {
            memory: Some(Size::Bytes(64 * MIB)),
            // Of sorters, which have the real disk.
            scratch: vec![std::env::temp_dir()],
            ..WorkOptions::new(Work::Sort, vec![path("/d/in")], path("/d/out"), Layout::Lines)
        };
        let (io, progress) = (sim.io(), Progress::default());
        let job = Job::new(&options, 2, &io)?;
        let output = output::create(&job.output, job.inputs.bytes())?;
        change(&sim);
        let done = job.run(&output, &progress)?;
        job.check_read(&done)?;
        Ok(done.output.records)
    }

    /// A last newline that became another byte was given a newline more, and the receipt said that the invariant holds.
    #[test]
    fn others_than_all_bytes_of_the_input_are_an_error() {
        assert_eq!(sorted(|_| {}).unwrap(), 3);
        let told = |change: &dyn Fn(&Sim)| match sorted(change) {
            Err(told) => told.to_string(),
            other => panic!("{other:?}"),
        };
        let newline = 8 * (TEXT.len() as u64 - 1);
        let came = told(&|sim| sim.flip_bit("/d/in", newline));
        assert_eq!(came, "of 6 bytes of the inputs 7 came; nothing was written, run again");
        let changed = "/d/in changed while it was being read; nothing was written, run again";
        assert_eq!(told(&|sim| sim.truncate("/d/in", 4)), changed);
        assert_eq!(told(&|sim| sim.put("/d/in", b"b\na\nc\nd\n")), changed);
    }
}
