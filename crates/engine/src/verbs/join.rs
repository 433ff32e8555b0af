//! The verb `join`: records of two inputs that have equal keys.
//!
//! ```text
//! left  --> sorter --> side \
//!                            join --> left part, right part --> stretch --> output
//! right --> sorter --> side /
//! ```
//!
//! Model: both sides are sorted by their keys, each in its half of the memory, and walked together. A record of the
//! output is the left record followed by the right one; with lines, the separator is between them. Where `left` finds
//! no right record there are zeros, or nothing for lines.
//! Invariant: out = the sum over keys of left x right. The expected output is known from the sorted sides: its records,
//! and the sums over all left and all right parts. It is compared with the parts of each record that was made, and the
//! records that were made with those in the blocks that were handed to the write.
//! Non-goals: keys that are not bytes; columns.

use thalweg_api::{Proof, Receipt, Sides, Stage};
use thalweg_base::clock::Stopwatch;
use thalweg_base::sabotage::strikes;
use thalweg_base::units::{KIB, MIB, Size};
use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Access, Caching, File, InputFile, Location, hidden, host};
use thalweg_merge::{Broken, ExpectedJoin, Failed, Group, Join, Kind, Side, Stretch, close};
use thalweg_pump::{FileLane, InputLane, Inputs, Meters, Sink, Source, StreamLane};
use thalweg_record::{Key, KeyPart, Layout, Prover, add_proof, add_record, file_bytes, same_records};

use super::participant::add_spill;
use super::receipt::Ran;
use super::sort::{MEMORY_BYTES_MIN, scratch_limit, scratch_of};
use crate::machine::{self, Disks};
use crate::output::{self, Target};
use crate::{
    Asked, Endpoint, Error, JoinKind, Needs, Progress, Result, RightSide, Sorted, Sorter, SorterOptions,
    TooLittleMemory, WorkOptions,
};

/// Reads and writes in flight.
const DEPTH: usize = 4;
/// Blocks of the output: in flight, the one that is filled, and one at its end.
const OUT_BLOCKS: usize = DEPTH + 2;
/// 1/`OWN_SHARE` of the memory is not the sorters': blocks, and records that match several others.
const OWN_SHARE: u64 = 8;
/// A block is 1/`BLOCK_SHARE` of the memory, within bounds.
const BLOCK_SHARE: u64 = 512;
const BLOCK_BYTES: (u64, u64) = (32 * KIB, MIB);
/// Code, stacks and small things that become resident while a join runs.
const PROCESS_GROWS_BYTES: u64 = 3 * MIB;
/// Records that are made between two checks whether to stop.
const LOOK_RECORDS: u64 = 4096;
/// How long to wait for a pipe before such a check.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);

/// Joins two inputs. The receipt's invariant: out = the sum over keys of left x right.
pub(super) fn join(options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    join_on(&Disks::of_work(options)?, options, progress)
}

pub(super) fn join_on(disks: &Disks, options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    let watch = Stopwatch::start();
    let (right, layouts, keys) = sides(options)?;
    let target = Target::of(&disks.output, &options.output)?;
    let room = Room::of(options)?;
    let scratch = scratch_of(&options.scratch, &target, &disks.scratch)?;
    let job = Job { options, disks, room: &room, scratch, progress, meters: Meters::default() };
    let mut stages = Vec::with_capacity(3);
    let mut left = job.sorted(0, "sort left", &options.inputs, (layouts[0], &options.keys))?;
    stages.push(job.stage("sort left", &watch, &stages));
    let mut right_sorted = job.sorted(1, "sort right", &right.inputs, (layouts[1], &right.keys))?;
    stages.push(job.stage("sort right", &watch, &stages));
    progress.begin("join", 3, 3, 0);
    let pool = Pool::new(room.block_bytes, OUT_BLOCKS)?;
    let form = Form::of(layouts, right);
    let prover = Prover::new(form.layout, Key::new(form.layout, &[]).expect("whole records"), true);
    let joining = Joining {
        layouts,
        keys,
        kind: right.kind,
        form,
        group_bytes: room.group_bytes,
        line_max: room.line_max,
        scratch: &job.scratch[0],
        meters: &job.meters,
    };
    let sorted = (&mut left, &mut right_sorted);
    let mut not_kept = Vec::new();
    let (direct_output, (made, output, written)) = match &target {
        Target::File(name) => {
            let file = output::create(name, 0)?;
            let sink = FileLane::new(file.file(), name.fs.queue(DEPTH)?, &job.meters);
            let joined = job.join(&joining, sorted, Stretch::new(sink, &pool, prover, 0))?;
            let direct = file.file().is_direct();
            not_kept = output::publish(file, &name.path, joined.2)?;
            (direct, joined)
        }
        Target::Stream(stream) => {
            let file = output::open_stream(stream, progress)?;
            let sink = StreamLane::new(&file, &job.meters);
            (false, job.join(&joining, sorted, Stretch::new(sink, &pool, prover, 0))?)
        }
    };
    let sides = [left.receipt()?, right_sorted.receipt()?];
    let mut input = sides[0].input;
    add_proof(&mut input, &sides[1].input);
    stages.push(job.stage("join", &watch, &stages));
    for (i, side) in sides.iter().enumerate() {
        job.meters.scratch.wrote(side.io.scratch.written_bytes);
        job.meters.scratch.read(side.io.scratch.read_bytes);
        add_spill(&mut stages, i, side);
    }
    let scratch_peak_bytes = sides.iter().map(|side| side.scratch_peak_bytes).sum();
    let input_file_bytes = sides.iter().map(|side| side.input_file_bytes).sum();
    let [left, right] = sides.map(|side| side.input);
    let memory_bytes = room.memory_bytes;
    let ran = Ran { disks, meters: &job.meters, watch: &watch, direct_output, memory_bytes };
    Ok(Receipt {
        input,
        output,
        sides: Some(made.sides(left, right, &output)),
        input_file_bytes,
        output_file_bytes: written,
        stages,
        scratch_peak_bytes,
        not_kept,
        ..ran.receipt("join", "join")
    })
}

/// The right side, the layouts of both sides, and their keys.
fn sides(options: &WorkOptions) -> Result<(&RightSide, [Layout; 2], [Key; 2])> {
    let right = options.right.as_ref().ok_or(Asked::RightSide)?;
    let layouts = [options.layout, right.layout];
    Ok((right, layouts, keys(layouts, [&options.keys, &right.keys])?))
}

/// The keys of both sides, which must be comparable.
pub(super) fn keys(layouts: [Layout; 2], keys: [&[KeyPart]; 2]) -> Result<[Key; 2]> {
    let shape = |parts: &[KeyPart]| parts.iter().map(|p| (p.length, p.descending)).collect::<Vec<_>>();
    if shape(keys[0]) != shape(keys[1]) {
        return Err(Asked::JoinKeys.into());
    }
    match layouts.map(Layout::fixed_bytes) {
        [Some(a), Some(b)] if keys[0].is_empty() && a != b => {
            return Err(Asked::JoinRecords(a as u32, b as u32).into());
        }
        [Some(a), Some(b)] if u32::try_from(a + b).is_err() => {
            return Err(Asked::JoinedTooLong(a as u32, b as u32).into());
        }
        [Some(_), Some(_)] => {}
        _ if layouts[0] == layouts[1] => {}
        _ => return Err(Asked::JoinLayouts.into()),
    }
    Ok([Key::new(layouts[0], keys[0])?, Key::new(layouts[1], keys[1])?])
}

/// How memory is laid out.
struct Room {
    memory_bytes: u64,
    /// The memory of each sorter.
    sorter_bytes: u64,
    /// Bytes of a chunk of a group; two chunks are in memory.
    group_bytes: usize,
    block_bytes: usize,
    line_max: u64,
}

impl Room {
    fn of(options: &WorkOptions) -> Result<Room> {
        let memory_bytes = machine::memory_of(options.memory)?;
        let block = (memory_bytes / BLOCK_SHARE).clamp(BLOCK_BYTES.0, BLOCK_BYTES.1) as usize / ALIGN * ALIGN;
        let own = memory_bytes / OWN_SHARE;
        let blocks = ((OUT_BLOCKS + DEPTH + 1) * block) as u64;
        let beside = host::prepare_memory() + PROCESS_GROWS_BYTES + own + blocks;
        let sorter_bytes = memory_bytes.saturating_sub(beside) / 2;
        if sorter_bytes < MEMORY_BYTES_MIN {
            let least = (2 * MEMORY_BYTES_MIN + beside - own) * OWN_SHARE / (OWN_SHARE - 1);
            return Err(TooLittleMemory {
                given: memory_bytes,
                by: Needs::Join,
                needed: Some(least.next_multiple_of(MIB)),
            }
            .into());
        }
        // Two chunks; each flow copies two lines, and one is held.
        let (group_bytes, line_max) = ((own / 4) as usize, own / 2 / 5);
        Ok(Room { memory_bytes, sorter_bytes, group_bytes, block_bytes: block, line_max })
    }
}

struct Job<'a> {
    options: &'a WorkOptions,
    disks: &'a Disks,
    room: &'a Room,
    scratch: Vec<Location>,
    progress: &'a Progress,
    meters: Meters,
}

/// What was made, and what was expected.
#[derive(Default)]
pub(super) struct Made {
    pub(super) parts: Parts,
    promised: ExpectedJoin,
}

/// Sums over the left parts, the right parts and the whole of all records that were made.
#[derive(Default)]
pub(super) struct Parts {
    left: Proof,
    pub(super) right: Proof,
    whole: Proof,
}

impl Made {
    /// Fails if the parts are not those expected, or the records not those of the output, of `written` bytes.
    pub(super) fn look_at(&self, output: &Proof, (layout, written): (Layout, u64)) -> Result<()> {
        let Made { parts, promised } = self;
        let is_made =
            same_records(&promised.left, &parts.left) && same_records(&promised.right, &parts.right);
        if is_made && same_records(&parts.whole, output) && file_bytes(layout, output) == written {
            return Ok(());
        }
        Err(Error::JoinMismatch {
            promised: promised.right.records,
            came: parts.right.records,
            records: output.records,
        })
    }

    /// The sides for the receipt; `left` and `right` are the proofs of the inputs.
    pub(super) fn sides(&self, left: Proof, right: Proof, output: &Proof) -> Sides {
        let pairs = self.parts.right.records;
        Sides { left, right, pairs, unmatched: output.records - pairs }
    }
}

impl Job<'_> {
    /// Reads and sorts a side.
    fn sorted(
        &self,
        side: u64,
        stage: &str,
        inputs: &[Endpoint],
        (layout, keys): (Layout, &[KeyPart]),
    ) -> Result<Sorted> {
        let WorkOptions { threads, scratch_limit: limit, io, .. } = self.options;
        let [input] = inputs else {
            return Err(Asked::OneInputPerSide.into());
        };
        let options = SorterOptions {
            layout,
            keys: keys.to_vec(),
            memory: Some(Size::Bytes(self.room.sorter_bytes)),
            scratch: self.scratch.iter().map(|directory| directory.path.clone()).collect(),
            scratch_limit: Some(Size::Bytes(scratch_limit(*limit, &self.scratch) / 2)),
            threads: *threads,
            unique: false,
            io: *io,
            no_proof: false,
        };
        let mut sorter = Sorter::on(&options, &self.disks.scratch, None)?;
        let input = Location::new(&self.disks.of_input(input), input.input_path()?);
        if input.is_stream() {
            self.progress.begin(stage, side + 1, 3, 0);
            self.feed(&input.open(Caching::Cached)?, &mut sorter)?;
            return sorter.sorted();
        }
        let mut files = Inputs::open(&[input], layout)?;
        files.set_page_bytes(self.room.block_bytes);
        self.progress.begin(stage, side + 1, 3, files.bytes());
        let pool = Pool::new(self.room.block_bytes, DEPTH + 1)?;
        let pages = (0, files.pages());
        let mut source =
            InputLane::new(&files, files.backends().queue(DEPTH)?, &pool, &self.meters, (0, 1), pages);
        while let Some(block) = source.next()? {
            self.should_continue(block.len() as u64)?;
            sorter.put(block)?;
        }
        files.check_unchanged()?;
        sorter.sorted()
    }

    /// The work since the stages `before`, without what sorters spill.
    fn stage(&self, name: &str, watch: &Stopwatch, before: &[Stage]) -> Stage {
        let mut stage = Stage::new(name, watch.seconds());
        (stage.waited_read_seconds, stage.waited_write_seconds) = self.meters.stage.take_seconds();
        stage.read_bytes = self.meters.input.totals().0;
        stage.written_bytes = self.meters.output.totals().1;
        for earlier in before {
            stage.seconds -= earlier.seconds;
            stage.read_bytes -= earlier.read_bytes;
            stage.written_bytes -= earlier.written_bytes;
        }
        stage
    }

    /// Reads a stream to its end.
    fn feed(&self, file: &InputFile, sorter: &mut Sorter) -> Result<()> {
        let mut at = 0;
        loop {
            let mut block = sorter.block()?;
            block.set_len(block.capacity());
            let read = self.meters.stage.for_read(|| file.read_some(at, &mut block, PATIENCE))?;
            let bytes = read.unwrap_or(0);
            self.should_continue(bytes as u64)?;
            if read == Some(0) {
                return Ok(());
            }
            self.meters.input.read(bytes as u64);
            at += bytes as u64;
            block.set_len(bytes);
            sorter.put(block)?;
        }
    }

    fn should_continue(&self, bytes: u64) -> Result<()> {
        self.progress.advance(bytes);
        self.progress.cancelled().map_or(Ok(()), |signal| Err(Error::Interrupted(signal)))
    }

    /// Joins the sorted sides into `out`. Returns what was made, the proof of the output, and its bytes.
    fn join<K: Sink<Error = thalweg_io::Error>>(
        &self,
        joining: &Joining<'_>,
        sorted: (&mut Sorted, &mut Sorted),
        mut out: Stretch<'_, K>,
    ) -> Result<(Made, Proof, u64)> {
        let made = joining.run(sorted, |record, count| {
            out.push(record)?;
            if count.is_multiple_of(LOOK_RECORDS) { self.should_continue(0) } else { Ok(()) }
        })?;
        let (prover, written) = close(vec![out.finish(true)?], |_| unreachable!("it was the last"))?;
        let output = *prover.proof();
        made.look_at(&output, (joining.form.layout, written))?;
        Ok((made, output, written))
    }
}

/// Two sorted sides, and how their records are put together.
pub(super) struct Joining<'a> {
    pub(super) layouts: [Layout; 2],
    pub(super) keys: [Key; 2],
    pub(super) kind: JoinKind,
    pub(super) form: Form<'a>,
    /// Bytes of a chunk of a group, of which two are in memory, and of the longest line.
    pub(super) group_bytes: usize,
    pub(super) line_max: u64,
    /// For groups of records of one key that do not fit in memory.
    pub(super) scratch: &'a Location,
    pub(super) meters: &'a Meters,
}

impl Joining<'_> {
    /// Calls `emit` with each record that is made, its terminator included, and with the number of records so far.
    pub(super) fn run(
        &self,
        (left, right): (&mut Sorted, &mut Sorted),
        mut emit: impl FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<Made> {
        let make = || self.scratch_file();
        let mut group = Group::new(self.group_bytes, &make, self.meters);
        let whole = |block: Option<Block>| block.map(|block| (block, 0));
        let ([left_key, right_key], [left_layout, right_layout]) = (self.keys.clone(), self.layouts);
        let broken = |failed: Failed<Error>| failed.or(|what| too_long(what, left_layout));
        let line_max = self.line_max;
        let mut join = Join {
            left: Side::new(left_layout, left_key, line_max, || left.next().map(whole)).map_err(broken)?,
            right: Side::new(right_layout, right_key, line_max, || right.next().map(whole))
                .map_err(broken)?,
            kind: match self.kind {
                JoinKind::Inner => Kind::Inner,
                JoinKind::Left => Kind::Left,
                JoinKind::Anti => Kind::Anti,
            },
            group: &mut group,
        };
        let mut record = Vec::new();
        let mut made = Made::default();
        made.promised = thalweg_merge::join(&mut join, |left, right| -> Result<()> {
            self.form.make(&mut record, left, right, &mut made.parts);
            emit(&record, made.parts.whole.records)
        })
        .map_err(broken)?;
        Ok(made)
    }

    /// A file without a name.
    fn scratch_file(&self) -> thalweg_io::Result<File> {
        let location = self.scratch.at(self.scratch.path.join(hidden::unique("join")));
        let file = location.open(Access::Create)?;
        location.remove()?;
        Ok(file)
    }
}

fn too_long(what: Broken, layout: Layout) -> Error {
    let Broken::TooLong { limit, .. } = what else { unreachable!("a sorter gives whole records") };
    Error::RecordTooLong { path: None, at: None, limit, layout }
}

/// How a record of the output is made.
pub(super) struct Form<'a> {
    pub(super) layout: Layout,
    /// Between the left and the right part.
    between: &'a [u8],
    /// Whether whole records are nested in others, which keeps the two parts of prefixed records apart.
    nests: bool,
}

impl<'a> Form<'a> {
    pub(super) fn of(layouts: [Layout; 2], right: &'a RightSide) -> Form<'a> {
        let pairs = right.kind != JoinKind::Anti;
        let layout = if pairs { layouts[0].joined(layouts[1]) } else { layouts[0] };
        let between = if layout.end_bytes() > 0 { &right.between[..] } else { &[] };
        Form { layout, between, nests: pairs && layout.prefix(0).is_some() }
    }

    /// Makes a record, with its terminator, from its parts, and adds the parts to `made`.
    fn make(&self, record: &mut Vec<u8>, left_record: &[u8], right: Option<&[u8]>, made: &mut Parts) {
        record.clear();
        if self.nests {
            let contents = left_record.len() + right.map_or(0, <[u8]>::len);
            record.extend(self.layout.prefix(contents).into_iter().flatten());
        }
        let left = record.len()..record.len() + left_record.len();
        record.extend_from_slice(left_record);
        if right.is_some() {
            record.extend_from_slice(self.between);
        }
        let from = record.len();
        record.extend_from_slice(right.unwrap_or(&[]));
        if strikes("join-other") {
            record[0] ^= 1;
        }
        if right.is_some() {
            add_record(&mut made.right, &record[from..]);
        } else if let Some(n) = self.layout.fixed_bytes() {
            record.resize(n, 0);
        }
        add_record(&mut made.left, &record[left]);
        add_record(&mut made.whole, record);
        record.extend_from_slice(self.layout.end());
    }
}
