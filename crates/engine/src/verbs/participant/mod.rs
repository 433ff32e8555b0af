//! What one node does of a job on several: a process of its own, or one of several in this process.
//!
//! Model: three pumps. The first puts the node's pages of the inputs into the river. The second puts what the river
//! brings into a sorter. The third writes the sorted records to the node's stretch of the output, which begins where
//! the stretch of the node before it ends. Split points are (key, origin), so the records of one frequent key can be
//! divided. The coordinator provides the ends of the river, and knows what the other nodes have reported.
//!
//! ```text
//! node i   pages i, i + N, ... -> inlet i ==river by range==> outlet i -> Sorter -> stretch i of the output
//! ```
//!
//! Invariant: files keep temporary names until [`ClientOutput::publish`], [`publish_parts`] or, after
//! [`PreparedParticipant::ready`], the caller renames them; a dropped participant leaves none.
//! Non-goals: who the others are, and how they are reached.

mod input_side;
mod join_stage;
mod memory;
mod receipt;
mod sort_stage;
mod stages;
mod stretch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::PartitionPick::{Hash, Range, Robin};
use thalweg_api::{Disk, Edge, IoReceipt, NodeReceipt, PartReceipt, ParticipantEnd, Proof, Receipt, Work};
use thalweg_base::clock::Stopwatch;
use thalweg_block::Pool;
use thalweg_io::{Access, File, FileSystem, Handle, Location, ReadFiles, process};
use thalweg_pump::{Meters, Output, WriteBehind};
use thalweg_record::{
    Key, KeyPart, Layout, SplitPoint, SplitPoints, TAG_PART, Tags, add_proof, choose_weighted_split_points,
    file_bytes, keep_every,
};
use thalweg_river::{Inlet, Outlet, Partitioner, RiverConfig, lanes_of};
use thalweg_sort::Expected;

use self::input_side::{LaidSide, Side, open};
use self::memory::Memory;
pub(crate) use self::memory::sorter_bytes;
pub use self::receipt::receipt;
pub use self::sort_stage::Starts;
use self::sort_stage::{SortStage, Written};
pub(super) use self::stages::add_spill;
use self::stages::{Spill, stages};
use self::stretch::{Stretch, write_edges};
use crate::machine::Disks;
use crate::output::{self, Target};
use crate::temporary;
use crate::verbs::partition::names;
use crate::verbs::partition::parts::{self, Writer, drain};
use crate::verbs::partition::preprocess::Preprocess;
use crate::verbs::partition::splits::{self, Splits};
use crate::verbs::partition::{sample, shape};
use crate::verbs::{join, sort};
use crate::{
    Asked, Endpoint, Error, JobFault, Needs, Progress, Result, Size, Sorted, TooLittleMemory, WorkOptions,
    check_options, machine,
};

/// Writes in flight of one node, and bytes of each.
const WRITES: usize = 4;
const WRITE_BYTES: usize = 1 << 20;
/// Space reserved for a part, as a fraction of its expected bytes: numerator and denominator.
const RESERVED: (u64, u64) = (103, 100);

/// The least bytes of a block of a part.
const WRITE_BYTES_MIN: u64 = 4 << 10;
/// Tags from which split points are chosen.
const TAGS_SAMPLED: usize = 1 << 14;
/// If a node's memory would hold this many of its ranges, its sample only serves to choose split points, and is
/// thinned.
const RANGES_FOR_MEMORY: u64 = 4;

/// The options of a participant.
#[derive(Debug, Clone)]
pub struct ParticipantOptions {
    /// What is done with the records, and how. The inputs are files: those that all nodes have, or this node's own.
    pub sort: WorkOptions,
    /// The node's index, and the number of nodes.
    pub node: (usize, usize),
    /// Whether all nodes are in this process, and share its memory and its cores.
    pub in_process: bool,
    /// Whether the inputs are this node's own.
    pub own_inputs: bool,
    /// Whether the output is this node's own.
    pub own_output: bool,
    /// The most memory that it may use, if limited.
    pub memory_most: Option<u64>,
    /// Identifies the attempt and its job. It is part of temporary names, so no other attempt on any host uses the same
    /// ones.
    pub number: u64,
    /// The files of earlier attempts, which no node may give a final name.
    pub lost: Vec<PathBuf>,
    /// The range of keys to process, if not all keys. The output of other nodes outside this range is kept.
    pub within: KeyRange,
}

impl ParticipantOptions {
    /// How many nodes share the memory and the cores of this process.
    fn sharing(&self) -> usize {
        if self.in_process { self.node.1 } else { 1 }
    }
}

/// The keys greater than the split point `low` and not greater than `high`; a missing bound does not limit them.
#[derive(Debug, Clone, Default)]
pub struct KeyRange {
    /// The split point that all keys are greater than.
    pub low: Option<SplitPoint>,
    /// The split point that no key is greater than.
    pub high: Option<SplitPoint>,
}

impl KeyRange {
    /// The range number `range` of those that split points make.
    pub fn range(split_points: &[SplitPoint], range: usize) -> KeyRange {
        let low = range.checked_sub(1).and_then(|before| split_points.get(before)).cloned();
        KeyRange { low, high: split_points.get(range).cloned() }
    }

    fn has(&self, key: &SplitPoint) -> bool {
        self.low.as_ref().is_none_or(|low| low < key) && self.high.as_ref().is_none_or(|high| key <= high)
    }

    /// All split points: the bounds, and those between them.
    pub fn around(&self, between: Vec<SplitPoint>) -> Vec<SplitPoint> {
        self.low.clone().into_iter().chain(between).chain(self.high.clone()).collect()
    }

    /// Puts the exact bounds back into split points that were shortened on their way here.
    fn restore(&self, split_points: &mut [SplitPoint]) {
        if let (Some(low), Some(first)) = (&self.low, split_points.first_mut()) {
            first.clone_from(low);
        }
        if let (Some(high), Some(last)) = (&self.high, split_points.last_mut()) {
            last.clone_from(high);
        }
    }
}

/// Files that a participant reads or writes through its client, or in a volume; all other files are on the node.
#[derive(Default)]
pub struct ClientDisks {
    /// The file system with the inputs.
    pub inputs: Option<Arc<dyn ReadFiles>>,
    /// The output, which the client makes and names.
    pub output: Option<Handle>,
    /// The disk with an output that the client makes and names, and that the node writes to itself.
    pub files: Option<Arc<dyn FileSystem>>,
}

/// A participant whose inputs are open.
pub struct Participant {
    base: Base,
    /// The inputs; for a join, those of the left side and of the right side.
    sides: Vec<Side>,
}

/// A participant whose memory is laid out.
pub struct PreparedParticipant {
    base: Base,
    sides: Vec<LaidSide>,
    /// Memory that is left beside the river: for the sorters, or for the blocks of parts.
    rest_bytes: u64,
    sampled: (f64, u64),
    output: Option<Output>,
    parts: Vec<parts::Part>,
    /// The sorted records, until the output has its name.
    sorted: Option<Sorted>,
}

/// The parts of a participant that last from its beginning to its end.
struct Base {
    options: ParticipantOptions,
    io: Arc<dyn FileSystem>,
    scratch: Arc<dyn FileSystem>,
    /// The files that the client serves.
    lent: ClientDisks,
    memory_bytes: u64,
    fallback: Option<String>,
    /// The paths that it writes: those of its parts, or one.
    paths: Vec<PathBuf>,
    meters: Meters,
    watch: Stopwatch,
    cpu_seconds: f64,
}

impl Base {
    /// Memory of `bytes` bytes, divided as nodes share it here.
    fn memory(&self, bytes: u64) -> Memory {
        Memory { bytes, nodes: self.options.sharing() }
    }

    /// Threads of a sorter.
    fn threads(&self) -> usize {
        (machine::lanes(self.options.sort.threads) / self.options.sharing()).max(1)
    }

    /// The layout of records in files, and their key there.
    fn records(&self) -> Result<(Layout, Key)> {
        let WorkOptions { layout, keys, .. } = &self.options.sort;
        Ok((*layout, Key::new(*layout, keys)?))
    }
}

/// Makes the inlet and the outlet of a side's river on demand: those of a join one after the other.
pub type Rivers<'a> = dyn FnMut(&PreparedParticipant, usize) -> Result<(Inlet, Outlet)> + 'a;

impl Participant {
    /// Opens the inputs, and checks whether the output can be created, unless the client serves it.
    pub fn open(options: ParticipantOptions, lent: ClientDisks) -> Result<Participant> {
        let watch = Stopwatch::start();
        let sort = &options.sort;
        let disks = Disks::of_work(sort)?;
        let io = lent.files.clone().unwrap_or_else(|| Arc::clone(&disks.output));
        let fallback = disks.fallback();
        let scratch = Arc::clone(&disks.scratch);
        let side = |inputs: &[Endpoint], layout: Layout, keys: &[KeyPart]| -> Result<Side> {
            Key::new(layout, keys)?;
            let travel = match options.sort.work {
                Work::Shuffle(_) => {
                    sort::has_room(layout)?;
                    (layout.tagged(), vec![TAG_PART])
                }
                _ => (layout, keys.to_vec()),
            };
            let files = |end: &Endpoint| lent.inputs.clone().unwrap_or_else(|| disks.of_input(end));
            let inputs = open(&files, inputs, layout)?;
            let (node, in_process, own) = (options.node, options.in_process, options.own_inputs);
            Ok(Side { inputs, layout, travel, node, in_process, own })
        };
        check_options(sort)?;
        let mut sides = vec![side(&sort.inputs, sort.layout, &sort.keys)?];
        if let Some(right) = &options.sort.right {
            join::keys([sort.layout, right.layout], [&sort.keys, &right.keys])?;
            sides.push(side(&right.inputs, right.layout, &right.keys)?);
        }
        let paths = match (options.sort.work, &sort.output) {
            (Work::Partition { parts, .. }, Endpoint::Path(_) | Endpoint::Volume(_)) => {
                let (node, nodes) = options.node;
                let mut names = names(&io, sort.output.file().expect("these are files"), parts)?;
                names.drain(lanes_of(node, nodes, parts)).map(|name| name.path).collect()
            }
            (_, Endpoint::Path(path)) if lent.output.is_some() || lent.files.is_some() => vec![path.clone()],
            (_, output) => match Target::of(&io, output)? {
                Target::File(file) => vec![file.path],
                Target::Stream(_) => {
                    return Err(Asked::StreamOutput(output.file().map(Path::to_path_buf)).into());
                }
            },
        };
        let cpu_seconds = process::usage().cpu_seconds;
        let meters = Meters::default();
        let most = options.memory_most.unwrap_or(u64::MAX);
        let asked = options.sort.memory.map(|size| match size {
            Size::Bytes(bytes) => Size::Bytes(bytes.min(most)),
            percent => percent,
        });
        let memory_bytes = machine::memory_of(asked)?.min(most);
        let base =
            Base { options, io, scratch, lent, memory_bytes, fallback, paths, meters, watch, cpu_seconds };
        Ok(Participant { base, sides })
    }

    /// The output of all nodes, for their coordinator in this process. Touches nothing.
    pub fn output(&self) -> ClientOutput {
        ClientOutput { name: Location::new(&self.base.io, &self.base.paths[0]), output: None }
    }

    /// Bytes of the inputs, and of the node's memory.
    pub fn found(&self) -> (u64, u64) {
        (self.sides.iter().map(|side| side.inputs.bytes()).sum(), self.base.memory_bytes)
    }

    /// Divides the memory, and takes this node's part of a sample of all inputs. Rivers get the same memory on every
    /// node, computed from `least_bytes`, that of the node with the least; what this node has beyond that goes to its
    /// sorters or parts. If each node has its own inputs, `before_bytes` are those of the nodes before this one.
    pub fn sample(
        self,
        least_bytes: u64,
        (before_bytes, all_bytes): (u64, u64),
    ) -> Result<(PreparedParticipant, Vec<SplitPoint>)> {
        let Participant { base, sides } = self;
        let options = &base.options;
        let (node, nodes) = options.node;
        let memory = base.memory(least_bytes);
        let (river_bytes, rest_bytes) = match options.sort.work {
            Work::Partition { .. } => memory.of_partition()?,
            Work::Join => memory.of_join()?,
            _ => memory.of_sort(all_bytes / nodes as u64)?,
        };
        let rest_bytes = rest_bytes + base.memory_bytes.saturating_sub(least_bytes);
        let lay = |side: Side| -> Result<LaidSide> {
            let preprocess = match options.sort.work {
                Work::Shuffle(seed) => Preprocess::Tagged(Tags::new(seed), before_bytes),
                Work::Merge => Preprocess::Ordered(Key::new(side.layout, &options.sort.keys)?),
                Work::Sort | Work::Join | Work::Partition { .. } => Preprocess::Nothing,
            };
            side.lay(river_bytes, lanes(options.sort.work, nodes), preprocess)
        };
        let sides = sides.into_iter().map(lay).collect::<Result<Vec<LaidSide>>>()?;
        let (mut keys, mut read) = (Vec::new(), 0);
        if !matches!(options.sort.work, Work::Shuffle(_) | Work::Partition { pick: Hash | Robin, .. }) {
            for side in &sides {
                let (its, bytes) = side.sample(all_bytes)?;
                keys.extend(its);
                read += bytes;
            }
        }
        // A node whose range takes much of its memory also needs the sampled keys of that range, so nothing is thinned.
        let are_for_cuts = matches!(options.sort.work, Work::Partition { .. });
        if are_for_cuts || all_bytes / nodes as u64 <= memory.of_node() / RANGES_FOR_MEMORY {
            let lanes = lanes(options.sort.work, nodes);
            let of_side = |side: &LaidSide| sample::keys_for_one(all_bytes, side.travel().0, lanes, nodes);
            let of = sides.iter().map(of_side).min().unwrap_or(1);
            keys.sort_unstable();
            keep_every(&mut keys, of, of * node as u64 / nodes as u64);
        }
        let sampled = (base.watch.seconds(), read);
        let (output, parts, sorted) = (None, Vec::new(), None);
        let prepared = PreparedParticipant { base, sides, rest_bytes, sampled, output, parts, sorted };
        Ok((prepared, keys))
    }
}

/// Lanes of the river: one for each part, or for each node's range.
fn lanes(work: Work, nodes: usize) -> usize {
    match work {
        Work::Partition { parts, .. } => parts,
        _ => nodes,
    }
}

/// Chooses split points for ranges in the ratio of `weights`, one range for each node, or for equal parts. `sample`
/// unites the samples of all nodes, with origins from [`origins`]. It is reduced to the keys `within` these bounds, and
/// sorted; the split points lie within the bounds too.
pub fn split_points(
    sort: &WorkOptions,
    sample: &mut Vec<SplitPoint>,
    weights: &[u64],
    within: &KeyRange,
) -> Result<Vec<SplitPoint>> {
    let key = Key::new(sort.layout, &sort.keys)?;
    sample.retain(|key| within.has(key));
    let (weights, split_keys) = match sort.work {
        Work::Shuffle(_) => {
            // Tags are uniform.
            let mut tags = Tags::split_points(TAGS_SAMPLED);
            tags.retain(|tag| within.has(tag));
            return Ok(between(choose_weighted_split_points(&mut tags, weights), within));
        }
        Work::Partition { pick: Range, parts, split_keys } => (vec![1; parts], split_keys),
        Work::Partition { .. } => return Ok(Vec::new()),
        // Records that can replace each other, or match, must be in one range.
        Work::Sort | Work::Merge | Work::Join => (weights.to_vec(), !sort.unique && sort.work != Work::Join),
    };
    Ok(between(sample::choose(&key, sample, &weights, split_keys).split_points().to_vec(), within))
}

/// Drops the last split point if it is the upper bound of `within`, where the last range ends.
fn between(mut split_points: Vec<SplitPoint>, within: &KeyRange) -> Vec<SplitPoint> {
    if split_points.last() == within.high.as_ref() {
        split_points.pop();
    }
    split_points
}

/// Divides a sorted sample at the split points into at least `ranges` ranges, of which the last may be empty.
pub fn by_range(
    mut sample: Vec<SplitPoint>,
    split_points: &[SplitPoint],
    ranges: usize,
) -> Vec<Vec<SplitPoint>> {
    let mut of_ranges = vec![Vec::new(); ranges.max(split_points.len() + 1)];
    for (split_point, range) in split_points.iter().zip(&mut of_ranges[1..]).rev() {
        *range = sample.split_off(sample.partition_point(|key| key < split_point));
    }
    of_ranges[0] = sample;
    of_ranges
}

/// Divides `pages` pages of inputs that all nodes see among the nodes, in the ratio of `weights`.
pub fn deal(pages: u64, weights: &[u64]) -> Vec<u64> {
    splits::deal(pages, weights)
}

/// Converts the place of a record in the inputs of node `node`, which has its own, to the record's origin in the river.
pub fn origins(node: usize, pages: &[u64], page_bytes: u64) -> impl FnMut(u64) -> u64 {
    let splits = Splits::Own { inlet: node, pages: pages.to_vec() };
    let mut splits_of: HashMap<u64, u64> = HashMap::new();
    move |at| {
        let page = at / page_bytes;
        *splits_of.entry(page).or_insert_with(|| splits.of_page(page)) * page_bytes + at % page_bytes
    }
}

impl PreparedParticipant {
    /// For each side, the pages of its inputs, and the bytes of a page.
    pub fn pages(&self) -> Vec<(u64, u64)> {
        self.sides.iter().map(LaidSide::pages).collect()
    }

    /// Creates the file that all nodes write to, and returns its temporary name. First removes what earlier attempts
    /// wrote, so that a node that was suspended until now has no file to rename.
    pub fn make_shared(&mut self) -> Result<PathBuf> {
        for lost in &self.base.options.lost {
            match self.base.io.remove(lost) {
                Err(e) if e.source.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        let bytes = self.base.options.sort.work.output_bytes(self.sides[0].inputs().bytes());
        let output = self.create(&self.base.paths[0], bytes)?;
        let name = output.file().path().to_path_buf();
        self.output = Some(output);
        Ok(name)
    }

    fn create(&self, path: &PathBuf, bytes: u64) -> Result<Output> {
        Ok(self.create_all(std::slice::from_ref(path), bytes)?.remove(0))
    }

    fn create_all(&self, paths: &[PathBuf], bytes: u64) -> Result<Vec<Output>> {
        let outputs: Vec<_> = paths.iter().map(|path| Location::new(&self.base.io, path)).collect();
        let options = &self.base.options;
        output::create_all(&outputs, (!options.in_process).then_some(options.number), bytes)
    }

    /// Sets the file to write to, which the coordinator made.
    pub fn write_to(&mut self, output: Handle) {
        self.base.lent.output = Some(output);
    }

    /// The river of a side as this node has it. `pages` are those of each node's inputs.
    pub fn river(
        &self,
        side: usize,
        river: u64,
        mut split_points: Vec<SplitPoint>,
        pages: &[u64],
    ) -> Result<Arc<RiverConfig>> {
        let (work, within) = (self.base.options.sort.work, &self.base.options.within);
        let lanes = lanes(work, self.base.options.node.1);
        within.restore(&mut split_points);
        let (first, beyond) = (usize::from(within.low.is_some()), usize::from(within.high.is_some()));
        let ranges = first..(split_points.len() + 1).saturating_sub(beyond);
        if ranges.is_empty() || ranges.len() > lanes || !split_points.is_sorted_by(|a, b| a < b) {
            return Err(JobFault::SplitPoints { count: split_points.len(), ranges: lanes }.into());
        }
        let pick = |key: &Key| match work {
            Work::Partition { pick: Hash, .. } => Partitioner::Hash,
            Work::Partition { pick: Robin, .. } => Partitioner::RoundRobin,
            _ if ranges.len() > split_points.len() => Partitioner::Range(SplitPoints::new(key, split_points)),
            _ => Partitioner::Among(SplitPoints::new(key, split_points), ranges),
        };
        self.sides[side].river(river, pick, pages)
    }

    /// Runs the participant: puts its pages into inlets, and writes what the outlets give. `pages` has the page counts
    /// of each side and node; `range_bytes` and `range_keys` are the expected size and the sampled keys of its range.
    /// `shared` is the file that all nodes write to, if there is one. The first progress counts bytes read and can
    /// cancel; the second, written.
    pub fn run(
        &mut self,
        rivers: &mut Rivers<'_>,
        (pages, range_bytes, range_keys): (&[Vec<u64>], u64, Vec<SplitPoint>),
        shared: Option<&Path>,
        starts: &dyn Starts,
        progress: (&Progress, &Progress),
    ) -> Result<ParticipantEnd> {
        if pages.len() != self.sides.len() {
            return Err(JobFault::Inputs { came: pages.len(), expected: self.sides.len() }.into());
        }
        let reserved = range_bytes / RESERVED.1 * RESERVED.0;
        let end = match self.base.options.sort.work {
            Work::Partition { .. } => self.part(rivers, (&pages[0], reserved), starts, progress)?,
            work => {
                let reserved = work.output_bytes(reserved);
                if self.base.options.own_output {
                    self.output = Some(self.create(&self.base.paths[0], reserved)?);
                }
                // The maker of the file does not know what this host's kernel may still hold.
                let mut others = None;
                let file: &Handle = match (&self.output, &self.base.lent.output, shared) {
                    (Some(output), ..) => output.file(),
                    (None, Some(lent), _) => lent,
                    (None, None, Some(path)) => {
                        others.insert(File::open(&self.base.io, path, Access::UpdateDirect)?)
                    }
                    (None, None, None) => return Err(JobFault::NoSharedOutput.into()),
                };
                let end = match &self.base.options.sort.right {
                    Some(right) => self.join(right, rivers, pages, (file, starts), progress)?,
                    None => {
                        let ends = rivers(self, 0)?;
                        let expected = Expected::new(range_bytes, range_keys);
                        let pages = (&pages[0][..], expected);
                        let (input, written) = self.sort(ends, pages, (file, starts), progress)?;
                        self.end_of_sort(input, written)
                    }
                };
                if let Some(file) = &others {
                    file.sync()?;
                }
                end
            }
        };
        self.sides.iter().try_for_each(|side| side.inputs().check_unchanged())?;
        Ok(end)
    }

    fn sort(
        &self,
        ends: (Inlet, Outlet),
        (pages, expected): (&[u64], Expected),
        (file, starts): (&Handle, &dyn Starts),
        (progress, written): (&Progress, &Progress),
    ) -> Result<(Proof, Written)> {
        let Base { meters, options, paths, .. } = &self.base;
        let pool = Pool::new(WRITE_BYTES, WRITES + 1)?;
        let threads = self.base.threads();
        let tagged = matches!(options.sort.work, Work::Shuffle(_));
        let mut sorter = sort_stage::sorter_options(&options.sort, self.rest_bytes, threads, &paths[0]);
        let (layout, key) = self.base.records()?;
        (sorter.layout, sorter.keys) = self.sides[0].travel();
        self.sides[0].pump(ends, pages, (meters, progress), |outlet, should_continue| {
            let stretch = Stretch::new(file, file.backend().queue(WRITES)?, &pool, meters);
            let stage = SortStage {
                options: &sorter,
                scratch: &self.base.scratch,
                layout,
                key: &key,
                tagged,
                expected,
            };
            sort_stage::run(outlet, stretch, stage, starts, (written, should_continue))
        })
    }

    /// Writes what the outlet gives to this node's parts, each with space reserved for its share of the expected bytes.
    fn part(
        &mut self,
        rivers: &mut Rivers<'_>,
        (pages, reserved): (&[u64], u64),
        starts: &dyn Starts,
        (progress, written): (&Progress, &Progress),
    ) -> Result<ParticipantEnd> {
        let (node, nodes) = self.base.options.node;
        let (layout, key) = self.base.records()?;
        let first = lanes_of(node, nodes, lanes(self.base.options.sort.work, nodes)).start;
        let count = self.base.paths.len();
        let blocks = count + shape::WRITES;
        let write_bytes = (self.rest_bytes / blocks as u64).checked_ilog2().map_or(0, |log| 1 << log);
        if write_bytes < WRITE_BYTES_MIN {
            return Err(
                TooLittleMemory { given: self.rest_bytes, by: Needs::Parts(count), needed: None }.into()
            );
        }
        let pool = Pool::new(write_bytes.min(WRITE_BYTES as u64) as usize, blocks)?;
        let files = self.create_all(&self.base.paths, reserved / count.max(1) as u64)?;
        let part = |(file, path): (_, &PathBuf)| parts::Part::of(file, path.clone(), layout, &key);
        let mut parts: Vec<_> = files.into_iter().zip(&self.base.paths).map(part).collect();
        let ends = rivers(self, 0)?;
        let meters = &self.base.meters;
        let (input, parts) =
            self.sides[0].pump(ends, pages, (meters, progress), |outlet, should_continue| {
                let writer =
                    Writer::new(WriteBehind::new(self.base.io.queue(shape::WRITES)?, meters), &pool, meters);
                Ok(drain(outlet, (&mut parts, first), writer, should_continue)?.then_some(parts))
            })?;
        let mut output = Proof::default();
        parts.iter().for_each(|part| add_proof(&mut output, &part.proof()));
        let told: Vec<PartReceipt> = parts.iter().map(parts::Part::receipt).collect();
        let bytes = told.iter().map(|part| part.file_bytes).sum();
        written.advance(bytes);
        starts.crossed();
        starts.say(bytes)?;
        self.parts = parts;
        let mut end = self.end(input, (output, bytes), &[]);
        end.io.direct_output = self.parts.iter().all(parts::Part::is_direct);
        end.node.parts = told;
        Ok(end)
    }

    fn end_of_sort(&mut self, input: Proof, written: Written) -> ParticipantEnd {
        let output = (*written.prover.proof(), written.bytes);
        let mut end = self.end(input, output, std::slice::from_ref(&*written.receipt));
        end.dropped = written.receipt.dropped;
        end.ends = written.prover.piece_ends();
        end.edges = written.edges;
        self.sorted = Some(written.sorted);
        end
    }

    /// The report of a participant, from what it read and wrote and from its sorters' receipts.
    fn end(&self, input: Proof, (output, bytes): (Proof, u64), sorters: &[Receipt]) -> ParticipantEnd {
        let (sides, Base { meters, watch, io, options, .. }) = (&self.sides, &self.base);
        let usage = process::usage();
        let (read_bytes, _) = meters.input.totals();
        let spill = Spill::of(sorters);
        ParticipantEnd {
            input,
            output,
            dropped: Proof::default(),
            ends: Default::default(),
            edges: Vec::new(),
            node: NodeReceipt {
                pid: std::process::id(),
                input: (input.records, sides.iter().map(|side| side.inputs().file_bytes()).sum()),
                output: (output.records, bytes),
                seconds: [self.sampled.0, self.sampled.0, watch.seconds()],
                cpu_seconds: usage.cpu_seconds - self.base.cpu_seconds,
                memory_bytes: self.base.memory_bytes,
                peak_bytes: usage.peak_bytes,
                huge_page_bytes: spill.huge_page_bytes,
                scratch_peak_bytes: spill.peak_bytes,
                sampled_bytes: self.sampled.1,
                ..NodeReceipt::default()
            },
            stages: stages(options.sort.work, self.sampled.1, meters, sorters),
            io: IoReceipt {
                backend: io.name().into(),
                fallback: self.base.fallback.clone().or_else(|| io.fallback()),
                // No cache on this host has what the client serves.
                cached_input_bytes: match self.base.lent.inputs {
                    Some(_) => 0,
                    None => meters.cached.totals().0,
                },
                direct_output: self.base.lent.output.is_none(),
                input: Disk { read_bytes: read_bytes + self.sampled.1, written_bytes: 0 },
                scratch: spill.disk,
                output: Disk { read_bytes: 0, written_bytes: meters.output.totals().1 },
            },
        }
    }

    /// Fails unless all bytes of the only side came; `input` is their proof.
    pub fn check_all_came(&self, input: &Proof) -> Result<()> {
        let side = &self.sides[0];
        Ok(side.inputs().check_all_came(file_bytes(self.base.options.sort.layout, input))?)
    }

    /// Drops all but the output, which is to get its name later.
    pub fn settle(&mut self) {
        (self.sorted, self.sides) = (None, Vec::new());
    }

    /// Completes the output or the parts, and makes them durable under temporary names. `bytes` is the length of the
    /// output, `edges` its bytes outside whole sectors. Returns the temporary and the final path of each file. An error
    /// if another node writes an output of the same name into the same directory.
    pub fn ready(mut self, bytes: u64, edges: Vec<Edge>) -> Result<Vec<(PathBuf, PathBuf)>> {
        let mut files: Vec<(PathBuf, PathBuf)> =
            self.parts.drain(..).map(parts::Part::ready).collect::<Result<_>>()?;
        let Some(output) = self.output.take() else { return Ok(files) };
        let path = &self.base.paths[0];
        if self.base.options.own_output
            && temporary::another(&Location::new(&self.base.io, path), self.base.options.number)
        {
            return Err(Error::SameOutput(path.clone()));
        }
        write_edges(output.file(), edges)?;
        files.push((output::ready(output, path, bytes)?, path.clone()));
        Ok(files)
    }
}

/// Renames the parts that the participants of this process wrote to their final names: all of them, or none.
pub fn publish_parts(participants: Vec<PreparedParticipant>) -> Result<()> {
    parts::publish(&participants.into_iter().flat_map(|one| one.parts).collect::<Vec<_>>())
}

/// Writes the edges of an output, which are not whole sectors, and gives it its name.
fn name(output: Output, path: &Path, (bytes, edges): (u64, Vec<Edge>)) -> Result<()> {
    write_edges(output.file(), edges)?;
    output::publish(output, path, bytes).map(drop)
}

/// An output on the disk of the coordinator, which the nodes write to.
pub struct ClientOutput {
    name: Location,
    /// The output of the running attempt.
    output: Option<Output>,
}

impl ClientOutput {
    /// Checks whether an output of this name can be made. Touches nothing.
    pub fn of(io: &Arc<dyn FileSystem>, output: &Endpoint) -> Result<ClientOutput> {
        match Target::of(io, output)? {
            Target::File(name) => Ok(ClientOutput { name, output: None }),
            Target::Stream(stream) => Err(Asked::StreamOutput(Some(stream.path)).into()),
        }
    }

    /// The file for an attempt that writes `bytes` bytes: the file of the attempt before it if that `stays`, else a new
    /// one.
    pub fn begin(&mut self, bytes: u64, stays: bool) -> Result<File> {
        if !stays {
            self.output = None;
        }
        let output = match self.output.take() {
            Some(output) => output,
            None => output::create(&self.name, bytes)?,
        };
        Ok(self.output.insert(output).file().clone())
    }

    /// Writes `edges`, the bytes outside whole sectors of any range, and renames the output, of `bytes` bytes, to its
    /// final name.
    pub fn publish(&mut self, bytes: u64, edges: Vec<Edge>) -> Result<()> {
        let output = self.output.take().expect("an attempt has begun");
        name(output, &self.name.path, (bytes, edges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_record::{pack_sample, unpack_sample};

    proptest! {
        /// Split points are shortened before they are sent, to what distinguishes them from their neighbours. A node
        /// that sorts a lost range gets other neighbours of its bounds than the nodes of the attempt before had.
        #[test]
        fn a_lost_range_ends_where_it_did(
            keys in prop::collection::vec(("[ab]{0,30}", 0u64..3), 1..40),
            range in 0usize..40,
            of in 1usize..5,
        ) {
            let split_point = |(key, origin): (String, u64)| SplitPoint { normal: key.into_bytes(), origin };
            let mut keys: Vec<SplitPoint> = keys.into_iter().map(split_point).collect();
            keys.sort();
            keys.dedup();
            let travelled = |mut split_points: Vec<SplitPoint>| unpack_sample(&pack_sample(&mut split_points), 4000).unwrap();
            let split_points = travelled(keys.iter().step_by(3).cloned().collect());
            let within = KeyRange::range(&split_points, range % (split_points.len() + 1));
            let inner: Vec<SplitPoint> = keys.into_iter().filter(|key| within.has(key)).step_by(of).collect();
            let mut all = travelled(within.around(between(inner, &within)));
            within.restore(&mut all);
            prop_assert!(all.is_sorted_by(|a, b| a < b), "{:?} of {:?}", all, within);
            prop_assert!(within.low.is_none() || all.first() == within.low.as_ref());
            prop_assert!(within.high.is_none() || all.last() == within.high.as_ref());
        }
    }
}
