//! The verb `partition`: files go through a river whose lanes are the parts.
//!
//! Model: every page of the inputs is a split of the river; inlets take pages in turn, outlets give out splits in
//! order, so a part holds its records in input order whatever the threads do. A stream is one split, put by one inlet.
//!
//! ```text
//! Inputs --InputLane--> splits::put --> Inlet ==river==> Outlet --> Writer --> Part, hidden --all whole--> names
//! ```
//!
//! Invariant: out = in, over all parts together; if it does not hold no part gets its name.
//! Non-goals: order inside a part other than the input's; parts of one stream by range, because it cannot be read
//! twice.

pub(super) mod parts;
pub(super) mod preprocess;
pub(super) mod sample;
pub(super) mod shape;
pub(super) mod splits;

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_api::{PartReceipt, PartitionReceipt, Proof, Receipt, Stage};
use thalweg_base::clock::Stopwatch;
use thalweg_block::{Block, Pool};
use thalweg_io::{FileSystem, InputLocation, Location, host, process};
use thalweg_pump::{Cuts, Inputs, InputsError, Meters, Sink, WriteBehind};
use thalweg_record::{Key, add_proof, file_bytes, same_records};
use thalweg_river::{Inlet, Outlet, Partitioner, lanes_of};

use self::parts::{Part, Writer, drain};
use self::preprocess::Preprocess;
pub(crate) use self::sample::sampled_bytes;
use self::shape::Shape;
use self::splits::{Pages, Splits};
use super::MEMORY_BYTES_MIN;
use super::check::read_along;
use super::receipt::Ran;
use super::sort::inputs_of;
use crate::lane_threads::Lanes;
use crate::machine::Disks;
use crate::output::{self, Target};
use crate::{
    Asked, BadPath, Endpoint, Error, Needs, PartitionPick, Progress, Result, TooLittleMemory, WorkOptions,
    machine,
};

/// More parts than this are a task for a sort.
const PARTS_MAX: usize = 4096;
/// Files that are open beside inputs and parts.
const FILES_BESIDE: u64 = 16;
/// Room that is reserved for a part beyond its share.
const RESERVED: (u64, u64) = (103, 100);
/// How long to wait for a silent stream before checking whether to stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// How records are partitioned: by what, into how many parts, and whether equal keys may be in several parts.
type How = (PartitionPick, usize, bool);

/// Partitions the records of files or of a stream among several files. The receipt's invariant: out = in.
pub(super) fn partition(options: &WorkOptions, how: How, progress: &Progress) -> Result<Receipt> {
    partition_on(&Disks::of_work(options)?, options, how, progress)
}

pub(super) fn partition_on(
    disks: &Disks,
    options: &WorkOptions,
    how: How,
    progress: &Progress,
) -> Result<Receipt> {
    let mut cuts = Cuts::default();
    loop {
        match attempt(disks, options, how, progress, &cuts) {
            Err(Error::Input(InputsError::Growing { cuts: more, .. })) => cuts.extend(more),
            done => return done,
        }
    }
}

fn attempt(
    disks: &Disks,
    options: &WorkOptions,
    how: How,
    progress: &Progress,
    cuts: &Cuts,
) -> Result<Receipt> {
    let watch = Stopwatch::start();
    let mut job = Job::new(options, how, disks, cuts)?;
    progress.begin("read+partition+write", 1, 1, job.input.bytes());
    let pick = job.pick()?;
    let sampled_bytes = job.sampled_bytes;
    let parts = job.run(pick, progress)?;
    let mut output = Proof::default();
    parts.iter().for_each(|part| add_proof(&mut output, &part.proof()));
    let part_receipts: Vec<PartReceipt> = parts.iter().map(Part::receipt).collect();
    let mut receipt = job.receipt(output, parts.iter().all(Part::is_direct), &watch);
    if receipt.holds {
        let written_seconds = receipt.seconds;
        parts::publish(&parts)?;
        receipt.seconds = watch.seconds();
        receipt.stages.push(Stage::new("sync", receipt.seconds - written_seconds));
    }
    let partition = Some(PartitionReceipt::new(how.0, part_receipts, sampled_bytes));
    Ok(Receipt { partition, ..receipt })
}

/// Where the records are.
enum Input {
    Files(Inputs),
    /// An input that can be read only once, from beginning to end.
    Stream(InputLocation),
}

impl Input {
    /// 0 if unknown.
    fn bytes(&self) -> u64 {
        match self {
            Input::Files(inputs) => inputs.bytes(),
            Input::Stream(_) => 0,
        }
    }
}

/// A partition, with its options resolved on this machine.
struct Job<'a> {
    options: &'a WorkOptions,
    how: How,
    disks: &'a Disks,
    key: Key,
    input: Input,
    names: Vec<Location>,
    memory_bytes: u64,
    shape: Shape,
    meters: Meters,
    sampled_bytes: u64,
    /// The proof of the input.
    proof: Proof,
}

impl<'a> Job<'a> {
    fn new(options: &'a WorkOptions, how: How, disks: &'a Disks, cuts: &Cuts) -> Result<Job<'a>> {
        let (layout, (_, parts, _)) = (options.layout, how);
        let key = Key::new(layout, &options.keys)?;
        let open_before = process::open_files();
        let mut input = open(disks, options, cuts)?;
        let Some(pattern) = options.output.file() else {
            return Err(Asked::PartsAreFiles.into());
        };
        let names = names(&disks.output, pattern, parts)?;
        let open_inputs = match &input {
            Input::Files(files) => files.open_files(),
            Input::Stream(_) => 1,
        };
        let needed = open_before + open_inputs + parts as u64 + FILES_BESIDE;
        let limit = host::allow_open_files(needed);
        if limit < needed {
            return Err(Error::OpenFiles { parts, needed, limit });
        }
        let memory_bytes = machine::memory_of(options.memory)?;
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(TooLittleMemory {
                given: memory_bytes,
                by: Needs::Partition,
                needed: Some(MEMORY_BYTES_MIN),
            }
            .into());
        }
        let mut shape = Shape::of(memory_bytes, parts, machine::lanes(options.threads), layout)?;
        match &mut input {
            Input::Files(inputs) => {
                inputs.set_page_bytes(shape.page_bytes);
                // No more inlets than pages.
                shape.inlets = shape.inlets.min(inputs.pages().max(1) as usize);
            }
            Input::Stream(_) => shape.inlets = 1,
        }
        let directory = names[0].directory();
        let room = directory.space().map_or(u64::MAX, |space| space.available);
        if room < input.bytes() {
            let (path, directory) = (pattern.to_path_buf(), directory.path.to_path_buf());
            return Err(Error::OutputFull { path, needed: input.bytes(), directory, available: Some(room) });
        }
        Ok(Job {
            options,
            how,
            disks,
            key,
            input,
            names,
            memory_bytes,
            shape,
            meters: Meters::default(),
            sampled_bytes: 0,
            proof: Proof::default(),
        })
    }

    fn pick(&mut self) -> Result<Partitioner> {
        let (layout, (pick, parts, split_keys)) = (self.options.layout, self.how);
        match (pick, &self.input) {
            (PartitionPick::Hash, _) => Ok(Partitioner::Hash),
            (PartitionPick::Robin, _) => Ok(Partitioner::RoundRobin),
            (PartitionPick::Range, Input::Stream(stream)) => {
                Err(BadPath::RangesOfStream(stream.path.clone()).into())
            }
            (PartitionPick::Range, Input::Files(inputs)) => {
                let memory = (self.shape.page_bytes as u64, self.shape.sample_bytes);
                let (split_points, _, read) =
                    sample::split_points(inputs, (layout, &self.key), (parts, split_keys), memory)?;
                self.sampled_bytes = read;
                Ok(Partitioner::Range(split_points))
            }
        }
    }

    /// Moves all records. The parts that it returns are complete and durable under temporary names.
    fn run(&mut self, pick: Partitioner, progress: &Progress) -> Result<Vec<Part>> {
        let Shape { inlets, outlets, .. } = self.shape;
        let pages = match &self.input {
            Input::Files(inputs) => inputs.pages(),
            Input::Stream(_) => 1,
        };
        let records = (self.options.layout, &self.key);
        let river = self.shape.river(records, pick, self.names.len(), pages).build()?;
        let share = self.input.bytes() / self.names.len() as u64 * RESERVED.0 / RESERVED.1;
        let files = output::create_all(&self.names, None, share)?.into_iter().zip(&self.names);
        let part =
            |(file, name): (_, &Location)| Part::of(file, name.path.clone(), self.options.layout, &self.key);
        let mut parts: Vec<Part> = files.map(part).collect();
        let blocks = parts.len() + outlets * shape::WRITES;
        let write_pool = Pool::new(self.shape.write_bytes, blocks)?;
        let read_pool = Pool::new(self.shape.page_bytes, inlets * (shape::READS + 1))?;
        let ends: Vec<Mutex<Option<End>>> = river
            .inlets
            .into_iter()
            .map(|inlet| End::In(Box::new(inlet)))
            .chain(of_outlets(river.outlets, &mut parts))
            .map(|end| Mutex::new(Some(end)))
            .collect();
        let done = Lanes::new(progress).run(ends.len(), |lanes, lane| {
            let end = ends[lane].lock().expect("no holder panics").take().expect("each lane takes its own");
            let outcome = match end {
                End::In(mut inlet) => {
                    let outcome = self.feed(lanes, progress, &mut inlet, lane, &read_pool);
                    // Recorded before the inlet is dropped, so that the others stop with this error.
                    outcome.map_err(|error| lanes.fail(error)).ok().map(Done::In)
                }
                End::Out(mut outlet, mut parts) => {
                    let outcome = self.drain(lanes, &mut outlet, &mut parts, &write_pool);
                    outcome.map_err(|error| lanes.fail(error)).ok().map(|()| Done::Out(parts))
                }
            };
            Ok(outcome)
        })?;
        let mut parts = Vec::with_capacity(self.names.len());
        for done in done.into_iter().flatten() {
            match done {
                Done::In(proof) => add_proof(&mut self.proof, &proof),
                Done::Out(its) => parts.extend(its),
            }
        }
        if let Input::Files(inputs) = &self.input {
            inputs.check_unchanged()?;
            inputs.check_all_came(file_bytes(self.options.layout, &self.proof))?;
        }
        Ok(parts)
    }

    /// Feeds one inlet with its pages, or with the whole stream.
    fn feed(
        &self,
        lanes: &Lanes<'_>,
        progress: &Progress,
        inlet: &mut Inlet,
        lane: usize,
        pool: &Pool,
    ) -> Result<Proof> {
        match &self.input {
            Input::Files(inputs) => {
                let (layout, meters, preprocess) = (self.options.layout, &self.meters, &Preprocess::Nothing);
                let pages = Pages { inputs, layout, shape: &self.shape, pool, meters, preprocess };
                let splits = Splits::Shared { inlet: (lane, self.shape.inlets) };
                return pages.put_all(inlet, &splits, lanes, progress);
            }
            Input::Stream(stream) => {
                let (blocks, _wanted) = read_along(stream.clone(), pool.clone());
                inlet.begin(0, 0);
                while lanes.should_continue() {
                    match blocks.recv_timeout(LOOK_UP) {
                        Ok(block) => {
                            let block = block?;
                            self.meters.input.read(block.len() as u64);
                            progress.advance(block.len() as u64);
                            inlet.put_bytes(&block)?;
                        }
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => {
                            Sink::<Block>::finish(inlet)?;
                            break;
                        }
                    }
                }
            }
        }
        Ok(*inlet.proof())
    }

    /// Drains one outlet into its parts.
    fn drain(&self, lanes: &Lanes<'_>, outlet: &mut Outlet, parts: &mut [Part], pool: &Pool) -> Result<()> {
        let first =
            parts.first().and_then(|part| self.names.iter().position(|name| name.path == part.path()));
        let behind = WriteBehind::new(self.disks.output.queue(shape::WRITES)?, &self.meters);
        let writer = Writer::new(behind, pool, &self.meters);
        drain(outlet, (parts, first.expect("an outlet has a part")), writer, &|| lanes.should_continue())
            .map(drop)
    }

    /// The receipt, without the parts.
    fn receipt(&self, output: Proof, direct_output: bool, watch: &Stopwatch) -> Receipt {
        let (disks, memory_bytes) = (self.disks, self.memory_bytes);
        let ran = Ran { disks, meters: &self.meters, watch, direct_output, memory_bytes };
        let mut receipt = ran.receipt("partition", "read+partition+write");
        let input_file_bytes = match &self.input {
            Input::Files(inputs) => inputs.file_bytes(),
            Input::Stream(_) => receipt.io.input.read_bytes,
        };
        receipt.io.input.read_bytes += self.sampled_bytes;
        receipt.stages[0].read_bytes += self.sampled_bytes;
        let output_file_bytes = file_bytes(self.options.layout, &output);
        let holds = same_records(&self.proof, &output);
        let grown = match &self.input {
            Input::Files(inputs) => inputs.grown(),
            Input::Stream(_) => None,
        };
        Receipt { input: self.proof, output, input_file_bytes, output_file_bytes, holds, grown, ..receipt }
    }
}

/// One lane's work.
enum End {
    In(Box<Inlet>),
    Out(Box<Outlet>, Vec<Part>),
}

/// The result of a lane's work.
enum Done {
    In(Proof),
    Out(Vec<Part>),
}

/// Pairs each outlet with the parts that are its lanes.
fn of_outlets(outlets: Vec<Outlet>, parts: &mut Vec<Part>) -> impl Iterator<Item = End> {
    let (count, all) = (outlets.len(), parts.len());
    let mut parts = std::mem::take(parts).into_iter();
    let mut ends = Vec::with_capacity(count);
    for (i, outlet) in outlets.into_iter().enumerate() {
        let its = lanes_of(i, count, all).len();
        ends.push(End::Out(Box::new(outlet), parts.by_ref().take(its).collect()));
    }
    ends.into_iter()
}

/// Inspects the inputs: files, or one stream.
fn open(disks: &Disks, options: &WorkOptions, cuts: &Cuts) -> Result<Input> {
    let inputs = inputs_of(disks, &options.inputs)?;
    match &inputs[..] {
        [input] if input.is_stream() => Ok(Input::Stream(input.clone())),
        inputs if inputs.iter().any(Location::is_stream) => Err(Asked::StreamWithOthers.into()),
        inputs => Ok(Input::Files(Inputs::open_cut(inputs, options.layout, cuts)?)),
    }
}

/// The names of the parts: the number, as wide as the last one's, where the pattern has `{}`.
pub(super) fn names(io: &Arc<dyn FileSystem>, pattern: &Path, parts: usize) -> Result<Vec<Location>> {
    let bytes = pattern.as_os_str().as_bytes();
    let places: Vec<usize> =
        (0..bytes.len().saturating_sub(1)).filter(|&at| &bytes[at..at + 2] == b"{}").collect();
    let [place] = places[..] else {
        return Err(BadPath::PartPattern(pattern.to_path_buf()).into());
    };
    if parts == 0 || parts > PARTS_MAX {
        return Err(Asked::Parts { parts, max: PARTS_MAX }.into());
    }
    let width = (parts - 1).to_string().len();
    let name = |part: usize| {
        let number = format!("{part:0width$}");
        PathBuf::from(std::ffi::OsString::from_vec(
            [&bytes[..place], number.as_bytes(), &bytes[place + 2..]].concat(),
        ))
    };
    let file = |part: usize| match Target::of(io, &Endpoint::Path(name(part)))? {
        Target::File(file) => Ok(file),
        Target::Stream(stream) => Err(BadPath::PartNotFile(stream.path).into()),
    };
    let names: Vec<Location> = (0..parts).map(file).collect::<Result<_>>()?;
    let mut different: Vec<&Path> = names.iter().map(|name| name.path.as_path()).collect();
    different.sort();
    different.dedup();
    if different.len() < names.len() {
        return Err(BadPath::SamePart(pattern.to_path_buf()).into());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_io::sim::Sim;

    const TEXT: &[u8] = b"b\na\nc\n";

    /// Runs a partition whose input `change` modifies after it was inspected.
    fn parted(change: impl FnOnce(&Sim)) -> Result<usize> {
        let sim = Sim::new(1);
        sim.put("/d/in", TEXT);
        let how = (PartitionPick::Hash, 2, false);
        let work = thalweg_api::Work::Partition { pick: how.0, parts: how.1, split_keys: how.2 };
        let [from, to] = ["/d/in", "/d/part-{}"].map(|name| Endpoint::Path(name.into()));
        let options = WorkOptions {
            memory: Some(thalweg_base::units::Size::Bytes(MEMORY_BYTES_MIN)),
            threads: Some(2),
            io: crate::IoChoice::Threads,
            ..WorkOptions::new(work, vec![from], to, thalweg_record::Layout::Lines)
        };
        let disks = Disks::apart(sim.io(), sim.io(), sim.io());
        let mut job = Job::new(&options, how, &disks, &Cuts::default())?;
        let pick = job.pick()?;
        change(&sim);
        let parts = job.run(pick, &Progress::default());
        let made = parts.map(|parts| parts.len());
        assert_eq!(sim.names(), [PathBuf::from("/d/in")], "no part has a name, and nothing is left of them");
        made
    }

    /// A last newline that became another byte got one more newline, and the receipt said that the invariant holds.
    #[test]
    fn others_than_all_bytes_of_the_input_are_an_error_and_no_part() {
        assert_eq!(parted(|_| {}).unwrap(), 2);
        let told = |change: &dyn Fn(&Sim)| match parted(change) {
            Err(told) => told.to_string(),
            other => panic!("{other:?}"),
        };
        let newline = 8 * (TEXT.len() as u64 - 1);
        let came = told(&|sim| sim.flip_bit("/d/in", newline));
        assert_eq!(came, "of 6 bytes of the inputs 7 came; nothing was written, run again");
        let changed = "/d/in changed while it was being read; nothing was written, run again";
        assert_eq!(told(&|sim| sim.truncate("/d/in", 4)), changed);
        assert_eq!(told(&|sim| sim.put("/d/in", b"b\na\nd\n")), changed);
        assert_eq!(parted(|sim| sim.put("/d/in", b"b\na\nc\nd\n")).unwrap(), 2, "it grew");
    }
}
