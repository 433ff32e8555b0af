//! `check`: whether files are one sorted sequence, and what is in it.
//!
//! Model: the files are parts of one sequence, in the order given. Each lane reads a stretch of
//! neighbouring pages and examines it; the stretches are joined from left to right. An input without
//! random access (a pipe, standard input) is one stretch, read by one thread and examined by
//! another. With `merge` the inputs are summaries that earlier checks wrote. Pieces that other processes examined are
//! joined in the same way.
//! Invariant: the result is that of reading from beginning to end, whatever the number of lanes.
//! Non-goals: repairing anything.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use thalweg_api::{Check, Examined, GrownInputs, NodeCheck, Proof, SharedFiles};
use thalweg_base::clock::Stopwatch;
use thalweg_base::units::MIB;
use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, Caching, InputLocation, ReadFiles};
use thalweg_pump::{Cuts, InputLane, Inputs, InputsError, Meters, Source};
use thalweg_record::{Key, Layout, RECORD_BYTES, SUMMARY_BYTES, StretchCheck, Summary, is_benchmark};
use thalweg_volume::VolumeFs;

use super::header;
use super::sort::inputs_of;
use crate::lane_threads::Lanes;
use crate::machine::Disks;
use crate::output::Target;
use crate::{Asked, CheckOptions, Endpoint, Error, JobFault, Progress, Result, machine};

/// Bytes of a read: whole sectors and, where records are the Sort Benchmark's, whole records.
const PAGE_BYTES: usize = 1_024_000;
const _: () = assert!(PAGE_BYTES.is_multiple_of(ALIGN) && PAGE_BYTES.is_multiple_of(RECORD_BYTES));
/// Reads in flight for each lane.
const DEPTH: usize = 8;
/// No disk keeps more lanes than this busy: one examines 2 GB/s.
const LANES_MAX: usize = 8;
/// Blocks of a stream: one is read, one is examined, two wait in between.
const STREAM_BLOCKS: usize = 4;
/// How often a wait for a silent stream checks whether the verb was cancelled.
const LOOK_UP: Duration = Duration::from_millis(100);
/// A record that crosses pages is held whole; one longer than this is more likely a wrong layout.
const RECORD_BYTES_MAX: usize = 256 * MIB as usize;

/// Checks that files are one sorted sequence.
pub fn check(options: &CheckOptions, progress: &Progress) -> Result<Check> {
    check_on(&Disks::of(options.io, &options.inputs, None)?, options, progress)
}

pub(super) fn check_on(disks: &Disks, options: &CheckOptions, progress: &Progress) -> Result<Check> {
    let watch = Stopwatch::start();
    let found = if options.merge {
        some_inputs(options)?;
        merge(disks, options, progress)?
    } else {
        let (whole, grown) = examine_on(disks, options, progress)?;
        let mut found = Found::of(&check_key(options)?, &whole);
        found.check.grown = grown;
        found
    };
    found.told(options, disks, &watch)
}

/// Examines files as one piece of a longer sequence; on `files`, if given, or else on this machine.
pub fn examine(
    options: &CheckOptions,
    files: Option<Arc<dyn ReadFiles>>,
    progress: &Progress,
) -> Result<StretchCheck> {
    let mut disks = Disks::of(options.io, &options.inputs, None)?;
    if let Some(files) = files {
        disks = disks.reading(files);
    }
    examine_on(&disks, options, progress).map(|(whole, _)| whole)
}

fn examine_on(
    disks: &Disks,
    options: &CheckOptions,
    progress: &Progress,
) -> Result<(StretchCheck, Option<GrownInputs>)> {
    some_inputs(options)?;
    let key = check_key(options)?;
    let mut inputs = inputs_of(disks, &options.inputs)?;
    if options.header > 0 && options.layout != Layout::Lines {
        return Err(Asked::HeaderOfLines.into());
    }
    header::take(&mut inputs, options.header, progress)?;
    let has_stream = inputs.iter().any(InputLocation::is_stream);
    let mut cuts = Cuts::default();
    loop {
        match examine_parts(&parts(&inputs, options, &cuts)?, options, &key, progress) {
            // A stream cannot be read again.
            Err(Error::Input(InputsError::Growing { cuts: more, .. })) if !has_stream => cuts.extend(more),
            examined => return examined,
        }
    }
}

fn examine_parts(
    parts: &[Part],
    options: &CheckOptions,
    key: &Key,
    progress: &Progress,
) -> Result<(StretchCheck, Option<GrownInputs>)> {
    let streams = parts.iter().any(|part| matches!(part, Part::Stream(_)));
    let bytes = parts.iter().map(Part::bytes).sum();
    progress.begin("check", 1, 1, if streams { 0 } else { bytes });
    let examination = Examination { layout: options.layout, key, progress };
    let mut whole = StretchCheck::first(options.layout, key);
    for part in parts {
        whole.join(&match part {
            Part::Files(inputs) => examination.files(inputs, 0..inputs.pages())?,
            Part::Stream(stream) => examination.stream(stream)?,
        });
        assert_eq!(whole.unfinished(), 0, "files end with a record");
    }
    // Only neighbouring files are one part.
    let grown = parts.iter().filter_map(Part::grown).reduce(GrownInputs::and);
    Ok((whole, grown))
}

/// Examines a share of files, in an open volume if one is given, as one piece of a longer sequence. If records cannot be
/// found from the middle, the first share is everything. Also returns the lengths of the files.
pub fn examine_share(
    options: &CheckOptions,
    volume: Option<VolumeFs>,
    share: &SharedFiles,
    progress: &Progress,
) -> Result<(StretchCheck, Vec<u64>)> {
    some_inputs(options)?;
    let key = check_key(options)?;
    let disks = match volume {
        Some(volume) => Disks::of_volume(options.io, volume)?,
        None => Disks::of(options.io, &options.inputs, None)?,
    };
    let mut inputs = Inputs::open(&inputs_of(&disks, &options.inputs)?, options.layout)?;
    inputs.set_page_bytes(PAGE_BYTES);
    let lengths = inputs.files().iter().map(|file| file.metadata.len).collect();
    let count = if options.layout.is_found_anywhere() { share.count.max(1) } else { 1 };
    let bound = |index: usize| (u128::from(inputs.pages()) * index.min(count) as u128 / count as u128) as u64;
    let pages = bound(share.index)..bound(share.index.saturating_add(1));
    let bytes = pages.clone().map(|page| inputs.page_len(page) as u64).sum();
    progress.begin("check", 1, 1, bytes);
    let stretch = Examination { layout: options.layout, key: &key, progress }.files(&inputs, pages)?;
    Ok((stretch, lengths))
}

/// The result for a sequence whose pieces were examined elsewhere, each given with the name of its host.
pub fn check_joined(
    options: &CheckOptions,
    pieces: Vec<(String, Examined)>,
    watch: &Stopwatch,
) -> Result<Check> {
    let key = check_key(options)?;
    let mut whole = StretchCheck::first(options.layout, &key);
    let mut nodes = Vec::with_capacity(pieces.len());
    for (host, told) in pieces {
        let (proof, name) = (told.proof, host.clone());
        let wrong = |why: String| JobFault::Check { host: name.clone(), why };
        let piece = StretchCheck::of_examined(options.layout, &key, told).map_err(wrong)?;
        if !whole.join_told(&piece) {
            return Err(wrong("it does not begin where the piece before it ends".into()).into());
        }
        let from = whole.proof().records - proof.records;
        nodes.push(NodeCheck { host, from, proof });
    }
    if let (1.., Some(last)) = (whole.unfinished(), nodes.last()) {
        let host = last.host.clone();
        return Err(JobFault::Check { host, why: "its last record does not end".into() }.into());
    }
    let found = Found::of(&key, &whole).told(options, &Disks::of(options.io, [], None)?, watch)?;
    Ok(Check { nodes, ..found })
}

/// The key, or an error if a summary is requested that records with this key cannot have.
pub fn check_key(options: &CheckOptions) -> Result<Key> {
    let key = Key::new(options.layout, &options.keys)?;
    if options.summary.is_some() && !is_benchmark(options.layout, &key) {
        return Err(Asked::Summary.into());
    }
    Ok(key)
}

fn some_inputs(options: &CheckOptions) -> Result<()> {
    if options.inputs.is_empty() {
        return Err(Asked::NoInput.into());
    }
    Ok(())
}

/// The result of a check, without its duration.
struct Found {
    check: Check,
    /// If the records are the Sort Benchmark's.
    summary: Option<Summary>,
}

impl Found {
    fn of(key: &Key, whole: &StretchCheck) -> Found {
        let check = Check {
            proof: *whole.proof(),
            crc_sum: whole.crc_sum(),
            first_unordered: whole.first_unordered().map(u128::from),
            ordered: whole.proof().unordered == 0,
            grown: None,
            nodes: Vec::new(),
            seconds: 0.0,
        };
        Found { check, summary: is_benchmark(whole.layout(), key).then(|| whole.summary()) }
    }

    /// Completes the result, and writes the summary if one was requested.
    fn told(self, options: &CheckOptions, disks: &Disks, watch: &Stopwatch) -> Result<Check> {
        if let (Some(path), Some(summary)) = (&options.summary, &self.summary) {
            Target::of(&disks.output, &Endpoint::Path(path.clone()))?.write_whole(&summary.to_bytes())?;
        }
        Ok(Check { seconds: watch.seconds(), ..self.check })
    }
}

/// Reads summaries, each file one or several of them, and merges them in order.
fn merge(disks: &Disks, options: &CheckOptions, progress: &Progress) -> Result<Found> {
    progress.begin("merge", 1, 1, 0);
    let mut whole = Summary::new();
    for input in inputs_of(disks, &options.inputs)? {
        let path = &input.path;
        let file = input.open(Caching::Cached)?;
        // Enough for many summaries, but not for a whole data file that was named by mistake.
        let mut bytes = vec![0; 1000 * SUMMARY_BYTES];
        let mut at = 0;
        loop {
            let read = file.read_at(at, &mut bytes)?;
            for (i, summary) in bytes[..read].chunks(SUMMARY_BYTES).enumerate() {
                let from = at + (i * SUMMARY_BYTES) as u64;
                let summary = Summary::from_bytes(summary).map_err(|why| Error::BadSummary {
                    path: path.to_path_buf(),
                    at: from,
                    why: Some(why.to_string()),
                })?;
                whole.merge(&summary);
            }
            at += read as u64;
            progress.advance(read as u64);
            if read < bytes.len() {
                break;
            }
        }
        if at == 0 {
            return Err(Error::BadSummary { path: path.to_path_buf(), at: 0, why: None });
        }
    }
    let narrow = |value: u128| u64::try_from(value).map_err(|_| Error::SummaryTooLarge(value));
    let proof = Proof {
        records: narrow(whole.records)?,
        bytes: narrow(whole.records * RECORD_BYTES as u128)?,
        checksum: 0, // Summaries know the other one only.
        unordered: narrow(whole.unordered)?,
        duplicates: narrow(whole.duplicates)?,
    };
    let check = Check {
        proof,
        crc_sum: whole.crc_sum,
        first_unordered: whole.first_unordered,
        ordered: whole.is_ordered(),
        grown: None,
        nodes: Vec::new(),
        seconds: 0.0,
    };
    Ok(Found { check, summary: Some(whole) })
}

/// Neighbouring inputs that are read in the same way.
enum Part {
    /// Files that can be read at any place.
    Files(Inputs),
    /// An input that can be read only once, from beginning to end. Opened in its turn: opening a pipe waits
    /// for its writer.
    Stream(InputLocation),
}

impl Part {
    fn bytes(&self) -> u64 {
        match self {
            Part::Files(inputs) => inputs.bytes(),
            Part::Stream(_) => 0,
        }
    }

    fn grown(&self) -> Option<GrownInputs> {
        match self {
            Part::Files(inputs) => inputs.grown(),
            Part::Stream(_) => None,
        }
    }
}

/// Inspects all inputs before the first is read, so that a problem with the last one shows now.
fn parts(inputs: &[InputLocation], options: &CheckOptions, cuts: &Cuts) -> Result<Vec<Part>> {
    // An input that cannot be inspected counts as a file here: opening it reports the error.
    let known = |input: &InputLocation| (input.is_stream(), input.clone());
    let inputs: Vec<(bool, InputLocation)> = inputs.iter().map(known).collect();
    let mut parts = Vec::new();
    for alike in inputs.chunk_by(|a, b| !a.0 && !b.0) {
        parts.push(match alike {
            [(true, stream)] => Part::Stream(stream.clone()),
            files => {
                let files: Vec<InputLocation> = files.iter().map(|file| file.1.clone()).collect();
                let mut inputs = Inputs::open_cut(&files, options.layout, cuts)?;
                inputs.set_page_bytes(PAGE_BYTES);
                Part::Files(inputs)
            }
        });
    }
    Ok(parts)
}

/// What all inputs of one check have in common.
struct Examination<'a> {
    layout: Layout,
    key: &'a Key,
    progress: &'a Progress,
}

impl Examination<'_> {
    /// Examines some pages of files, each lane reading a stretch of neighbouring ones.
    fn files(&self, inputs: &Inputs, pages: Range<u64>) -> Result<StretchCheck> {
        let count = pages.end - pages.start;
        if count == 0 {
            return Ok(StretchCheck::first(self.layout, self.key));
        }
        let lanes_max = if self.layout.is_found_anywhere() { LANES_MAX } else { 1 };
        let lanes = machine::cores().min(lanes_max).min(count as usize);
        let pool = Pool::new(PAGE_BYTES, lanes * (DEPTH + 1))?;
        let meters = Meters::default();
        let bound = |lane: usize| pages.start + count * lane as u64 / lanes as u64;
        let stretches = Lanes::new(self.progress).run(lanes, |lanes, lane| {
            let (first, end) = (bound(lane), bound(lane + 1));
            let at = (first - inputs.file_of(first).first_page) * PAGE_BYTES as u64;
            let mut stretch = StretchCheck::at(self.layout, self.key, at);
            let mut source =
                InputLane::new(inputs, inputs.backends().queue(DEPTH)?, &pool, &meters, (0, 1), (first, end));
            while lanes.should_continue() {
                let Some(block) = source.next()? else { break };
                self.check_end(inputs, block.offset() / PAGE_BYTES as u64, &stretch)?;
                self.take(&mut stretch, &block, || {
                    inputs.file_of(block.offset() / PAGE_BYTES as u64).path()
                })?;
            }
            Ok(stretch)
        })?;
        inputs.check_unchanged()?;
        let (first, others) = stretches.split_first().expect("there is a lane");
        let mut piece = first.clone();
        others.iter().for_each(|stretch| piece.join(stretch));
        self.check_end(inputs, pages.end, &piece)?;
        Ok(piece)
    }

    /// Fails if the file that ends before page `page` ends inside a record, for layouts where only reading it tells.
    fn check_end(&self, inputs: &Inputs, page: u64, stretch: &StretchCheck) -> Result<()> {
        let left = stretch.unfinished() as u64;
        if self.layout.is_found_anywhere() || left == 0 {
            return Ok(());
        }
        let file = inputs.file_of(page - 1);
        let ends = page == inputs.pages() || inputs.file_of(page).first_page == page;
        if ends { Err(file.ends_inside(self.layout, left).into()) } else { Ok(()) }
    }

    /// Examines a stream while it is being read.
    fn stream(&self, stream: &InputLocation) -> Result<StretchCheck> {
        let path = stream.path.as_path();
        let (blocks, _wanted) = read_along(stream.clone(), Pool::new(PAGE_BYTES, STREAM_BLOCKS)?);
        let mut stretch = StretchCheck::first(self.layout, self.key);
        let mut bytes = 0;
        loop {
            if let Some(signal) = self.progress.cancelled() {
                return Err(Error::Interrupted(signal));
            }
            match blocks.recv_timeout(LOOK_UP) {
                Ok(block) => {
                    let block = block?;
                    bytes += block.len() as u64;
                    self.take(&mut stretch, &block, || path)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        stretch.end_line();
        if stretch.unfinished() > 0 {
            let left = stretch.unfinished() as u64;
            if self.layout.fixed_bytes().is_none() {
                return Err(InputsError::cut_off(path, self.layout, bytes, left).into());
            }
            return Err(Error::CutShort { path: path.to_path_buf(), bytes: left });
        }
        Ok(stretch)
    }

    fn take<'p>(&self, stretch: &mut StretchCheck, block: &Block, path: impl Fn() -> &'p Path) -> Result<()> {
        stretch.push(block);
        self.progress.advance(block.len() as u64);
        if stretch.unfinished() > RECORD_BYTES_MAX {
            let (path, limit) = (Some(path().to_path_buf()), RECORD_BYTES_MAX as u64);
            return Err(Error::RecordTooLong { path, at: None, limit, layout: self.layout });
        }
        Ok(())
    }
}

/// Opens a stream and reads it to its end, on a thread of its own, as long as the `Arc` lives. Nothing joins that
/// thread: a pipe may have no writer, or stay silent, for ever, and a cancelled check must not wait for it.
pub(super) fn read_along(
    stream: InputLocation,
    pool: Pool,
) -> (mpsc::Receiver<thalweg_io::Result<Block>>, Arc<()>) {
    let (read, blocks) = mpsc::sync_channel(STREAM_BLOCKS);
    let wanted = Arc::new(());
    let is_wanted = Arc::downgrade(&wanted);
    let read_all = move || {
        let file = match stream.open(Caching::Cached) {
            Ok(file) => file,
            Err(why) => return drop(read.send(Err(why))),
        };
        let mut at = 0;
        loop {
            let mut block = pool.take();
            block.set_len(block.capacity());
            let (mut got, mut ended) = (0, false);
            while got < block.len() && !ended {
                match file.read_some(at, &mut block[got..], LOOK_UP) {
                    Ok(Some(bytes)) => (got, at, ended) = (got + bytes, at + bytes as u64, bytes == 0),
                    Ok(None) if is_wanted.strong_count() == 0 => return,
                    Ok(None) => {}
                    Err(why) => return drop(read.send(Err(why))),
                }
            }
            block.set_len(got);
            if read.send(Ok(block)).is_err() || ended {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("read a pipe".into())
        .spawn(read_all)
        .expect("there is room for a thread");
    (blocks, wanted)
}
