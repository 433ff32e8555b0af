//! The helpers of the tests: a case (inputs, layout, key, memory), the model's answer, and what a sort must leave.
//!
//! Invariant: the model is `slice::sort_by` over whole keys. It shares no code with the sort except the option types.
//! Invariant: a sort leaves nothing but the inputs and, if it succeeded, the output.
#![allow(dead_code)] // Each test program uses its part.
#![allow(clippy::disallowed_methods)] // Users of a sort create files in other ways.

pub(crate) mod alone;
pub(crate) mod cut_short;
pub(crate) mod data;

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use thalweg_api::Receipt;
use thalweg_io::host::Hooks;
use thalweg_io::sim::Sim;
use thalweg_io::threads::Threads;
use thalweg_io::uring::Uring;
use thalweg_io::{FileSystem, InputLocation, Location, host, process};
use thalweg_record::{KeyPart, Layout};
use thalweg_sort::{Error, Result, Sort, Watch, run};

/// The documented minimum of memory.
pub(crate) const MEMORY_MIN: u64 = 16 << 20;

/// What is resident in the command when a sort begins.
const COMMAND_BYTES: u64 = 5 << 20;

/// Makes every sort count what the command would have resident, whatever these tests hold.
fn count_as_command() {
    host::install(Hooks {
        allow_open_files: process::allow_open_files,
        prepare_memory: || COMMAND_BYTES,
        release_memory: || {},
        reset_peak: || {},
    });
}

/// A sort and its inputs.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) inputs: Vec<Vec<u8>>,
    pub(crate) layout: Layout,
    pub(crate) keys: Vec<KeyPart>,
    /// The memory limit of the command.
    pub(crate) memory_bytes: u64,
    pub(crate) lanes: usize,
    pub(crate) unique: bool,
    /// Whether to spill into the output.
    pub(crate) within: bool,
    /// The seed of a shuffle, which the model ignores.
    pub(crate) shuffle: Option<u64>,
}

impl Case {
    /// Records of `record_bytes` in the least memory, compared whole.
    pub(crate) fn fixed(record_bytes: u32, input: Vec<u8>) -> Case {
        Case::of(Layout::Fixed(record_bytes), input)
    }

    /// Lines in the least memory, compared whole.
    pub(crate) fn lines(input: Vec<u8>) -> Case {
        Case::of(Layout::Lines, input)
    }

    /// Prefixed records in the least memory, compared whole.
    pub(crate) fn prefixed(input: Vec<u8>) -> Case {
        Case::of(Layout::Prefixed, input)
    }

    fn of(layout: Layout, input: Vec<u8>) -> Case {
        Case {
            inputs: vec![input],
            layout,
            keys: vec![],
            memory_bytes: MEMORY_MIN,
            lanes: 2,
            unique: false,
            within: false,
            shuffle: None,
        }
    }

    pub(crate) fn by(self, keys: &[KeyPart]) -> Case {
        Case { keys: keys.to_vec(), ..self }
    }

    pub(crate) fn within(self, memory_bytes: u64) -> Case {
        Case { memory_bytes, ..self }
    }

    pub(crate) fn lanes(self, lanes: usize) -> Case {
        Case { lanes, ..self }
    }

    pub(crate) fn shuffled(self, seed: u64) -> Case {
        Case { shuffle: Some(seed), ..self }
    }

    pub(crate) fn unique(self) -> Case {
        Case { unique: true, ..self }
    }

    /// With scratch in the output file.
    pub(crate) fn in_output(self) -> Case {
        Case { within: true, ..self }
    }

    /// All records in input order, without terminators.
    fn records(&self) -> Vec<&[u8]> {
        self.inputs.iter().flat_map(|input| records_of(self.layout, input)).collect()
    }

    /// The expected output.
    pub(crate) fn expected(&self) -> Expected {
        let mut records = self.records();
        let (count, bytes) = (records.len() as u64, records.iter().map(|r| r.len() as u64).sum());
        let compare =
            |a: &[u8], b: &[u8]| compare(&self.keys, contents(self.layout, a), contents(self.layout, b));
        records.sort_by(|a, b| compare(a, b));
        let repeats = records.windows(2).filter(|p| compare(p[0], p[1]).is_eq()).count() as u64;
        if self.unique {
            records.dedup_by(|next, kept| compare(kept, next).is_eq());
        }
        let end: &[u8] = if self.layout == Layout::Lines { b"\n" } else { b"" };
        let mut output = Vec::with_capacity(self.inputs.iter().map(Vec::len).sum::<usize>() + 1);
        for record in &records {
            output.extend_from_slice(record);
            output.extend_from_slice(end);
        }
        Expected { output, records: count, bytes, repeats, unique: self.unique }
    }
}

/// The records in these bytes, without terminators but with prefixes.
pub(crate) fn records_of(layout: Layout, input: &[u8]) -> Vec<&[u8]> {
    match layout {
        Layout::Fixed(n) => {
            let records = input.chunks_exact(n as usize);
            assert!(records.remainder().is_empty(), "the test's input is whole records");
            records.collect()
        }
        Layout::Lines if input.is_empty() => Vec::new(),
        Layout::Lines => input.strip_suffix(b"\n").unwrap_or(input).split(|&b| b == b'\n').collect(),
        _ => {
            let (mut records, mut rest) = (Vec::new(), input);
            while let Some(length) = rest.first_chunk() {
                let (record, later) = rest.split_at(4 + u32::from_le_bytes(*length) as usize);
                records.push(record);
                rest = later;
            }
            assert!(rest.is_empty(), "the test's input is whole records");
            records
        }
    }
}

/// The contents of a record: a prefixed record without its prefix.
fn contents(layout: Layout, record: &[u8]) -> &[u8] {
    if layout == Layout::Prefixed { &record[4..] } else { record }
}

/// Compares two records part by part, by the bytes that exist.
fn compare(keys: &[KeyPart], a: &[u8], b: &[u8]) -> Ordering {
    fn part<'r>(key: &KeyPart, record: &'r [u8]) -> &'r [u8] {
        let from = record.len().min(key.offset as usize);
        let to = record.len().min(from + key.length as usize);
        &record[from..to]
    }
    if keys.is_empty() {
        return a.cmp(b);
    }
    let order_by = |key: &KeyPart| {
        let order = part(key, a).cmp(part(key, b));
        if key.descending { order.reverse() } else { order }
    };
    keys.iter().map(order_by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// A key part, ascending.
pub(crate) fn up(offset: u32, length: u32) -> KeyPart {
    KeyPart { offset, length, descending: false }
}

/// A key part, descending.
pub(crate) fn down(offset: u32, length: u32) -> KeyPart {
    KeyPart { offset, length, descending: true }
}

/// The model's answer.
pub(crate) struct Expected {
    pub(crate) output: Vec<u8>,
    records: u64,
    bytes: u64,
    /// The number of records with the same key as the one before.
    repeats: u64,
    unique: bool,
}

impl Expected {
    /// Checks the output of a sort and its receipt.
    #[track_caller]
    pub(crate) fn is(&self, output: &[u8], receipt: &Receipt) {
        if let Some(at) = first_difference(&self.output, output) {
            let (from, near) = (at.saturating_sub(20), |bytes: &[u8]| (at + 40).min(bytes.len()));
            panic!(
                "{} bytes are expected and {} came; they differ from byte {at}:\n  {:?}\n  {:?}",
                self.output.len(),
                output.len(),
                String::from_utf8_lossy(&self.output[from..near(&self.output)]),
                String::from_utf8_lossy(&output[from.min(output.len())..near(output)]),
            );
        }
        let dropped = if self.unique { self.repeats } else { 0 };
        let (input, output, gone) = (receipt.input, receipt.output, receipt.dropped);
        assert!(receipt.holds, "{receipt:?}");
        assert_eq!((input.records, input.bytes), (self.records, self.bytes), "in");
        assert_eq!((output.records, output.unordered), (self.records - dropped, 0), "out");
        assert_eq!(output.duplicates, self.repeats - dropped, "duplicates");
        assert_eq!((gone.records, gone.bytes), (dropped, self.bytes - output.bytes), "dropped");
        assert_eq!(output.checksum.wrapping_add(gone.checksum), input.checksum, "checksums");
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b {
        return None;
    }
    Some(a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len())))
}

/// Ignores everything.
pub(crate) struct Unwatched;

impl Watch for Unwatched {}

/// Does something once after this many bytes, and may then stop the sort.
pub(crate) struct After<F: Fn() + Sync> {
    bytes: AtomicUsize,
    act: F,
    stops: bool,
    done: std::sync::Once,
}

impl<F: Fn() + Sync> After<F> {
    pub(crate) fn bytes(bytes: usize, stops: bool, act: F) -> After<F> {
        After { bytes: AtomicUsize::new(bytes), act, stops, done: std::sync::Once::new() }
    }

    /// Whether that many bytes have gone by.
    pub(crate) fn came(&self) -> bool {
        self.done.is_completed()
    }
}

impl<F: Fn() + Sync> Watch for After<F> {
    fn advance(&self, bytes: u64) {
        let left = self.bytes.load(Relaxed).saturating_sub(bytes as usize);
        self.bytes.store(left, Relaxed);
        if left == 0 {
            self.done.call_once(&self.act);
        }
    }

    fn stopped(&self) -> bool {
        self.stops && self.came()
    }
}

/// A disk, real or simulated, with directories for inputs, output and scratch.
pub(crate) struct Stage {
    pub(crate) io: Arc<dyn FileSystem>,
    root: PathBuf,
    pub(crate) sim: Option<Sim>,
    pub(crate) scratch_directories: usize,
}

impl Stage {
    /// The real disk, with io_uring if it is available.
    pub(crate) fn real() -> Stage {
        Stage::on_disk(Stage::best_io())
    }

    fn best_io() -> Arc<dyn FileSystem> {
        Uring::new().map_or_else(|_| Stage::threads_io(), |uring| Arc::new(uring) as Arc<dyn FileSystem>)
    }

    /// The real disk, with threads.
    pub(crate) fn threads() -> Stage {
        Stage::on_disk(Stage::threads_io())
    }

    fn threads_io() -> Arc<dyn FileSystem> {
        Arc::new(Threads::new(4))
    }

    fn on_disk(io: Arc<dyn FileSystem>) -> Stage {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("sort-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        count_as_command();
        let stage = Stage { io, root, sim: None, scratch_directories: 1 };
        for directory in stage.directories() {
            std::fs::create_dir_all(directory).expect("the target directory can be written");
        }
        stage
    }

    /// A simulated disk.
    pub(crate) fn simulated(seed: u64) -> Stage {
        count_as_command();
        let sim = Sim::new(seed);
        let stage =
            Stage { io: sim.io(), root: "/stage".into(), sim: Some(sim.clone()), scratch_directories: 1 };
        stage.directories().iter().for_each(|directory| sim.make_dir(directory));
        stage
    }

    fn directories(&self) -> Vec<PathBuf> {
        ["in", "out", "scratch0", "scratch1"].iter().map(|name| self.root.join(name)).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A name on this stage's disk.
    pub(crate) fn at(&self, name: &str) -> Location {
        Location::new(&self.io, self.path(name))
    }

    /// The same sort on this stage's disk, which may be what another process left.
    pub(crate) fn here(&self, sort: &Sort) -> Sort {
        let here = |own: &Location| Location::new(&self.io, &own.path);
        let input = |input: &InputLocation| Location::new(&self.io, &input.path).as_input();
        Sort {
            inputs: sort.inputs.iter().map(input).collect(),
            output: here(&sort.output),
            scratch: sort.scratch.iter().map(here).collect(),
            ..sort.clone()
        }
    }

    /// The name of the scratch file of `out/sorted` in one of the scratch directories.
    pub(crate) fn scratch(&self, directory: usize) -> String {
        let name = thalweg_io::hidden::elsewhere(&self.path("out/sorted"), "scratch");
        format!("scratch{directory}/{}", name.display())
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        match &self.sim {
            Some(sim) => sim.put(self.path(name), bytes),
            None => std::fs::write(self.path(name), bytes).expect("the stage can be written"),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        match &self.sim {
            Some(sim) => sim.get(self.path(name)),
            None => std::fs::read(self.path(name)).ok(),
        }
    }

    /// The sorted names of all files, without the stage's own path.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<PathBuf> = match &self.sim {
            Some(sim) => sim.names(),
            None => {
                let entries =
                    |d: PathBuf| d.read_dir().expect("the stage can be read").map(|e| e.unwrap().path());
                self.directories().into_iter().flat_map(entries).collect()
            }
        };
        names.sort();
        let tail = |name: &PathBuf| name.strip_prefix(&self.root).unwrap().display().to_string();
        names.iter().map(tail).collect()
    }

    /// Creates the inputs and returns the sort.
    pub(crate) fn set(&self, case: &Case) -> Sort {
        let name = |i: usize| format!("in/{i}");
        for (i, input) in case.inputs.iter().enumerate() {
            self.put(&name(i), input);
        }
        let scratch = (0..self.scratch_directories).map(|i| self.at(&format!("scratch{i}"))).collect();
        Sort {
            inputs: (0..case.inputs.len()).map(|i| self.at(&name(i)).as_input()).collect(),
            output: self.at("out/sorted"),
            keys: case.keys.clone(),
            within_output: case.within,
            lanes: case.lanes,
            shuffle: case.shuffle,
            unique: case.unique,
            ..Sort::new(case.layout, case.memory_bytes, scratch)
        }
    }

    /// Runs a sort in this process.
    pub(crate) fn run(&self, case: &Case, sort: &Sort, watch: &dyn Watch) -> Result<Receipt> {
        let names = self.names();
        let result = run(&self.here(sort), watch);
        self.is_clean(case, sort, names, result.as_ref().err().map(ToString::to_string));
        if let Some(sim) = &self.sim {
            assert_eq!(sim.open_files(), 0, "files left open");
        }
        result
    }

    /// Checks that nothing is left but the unchanged inputs, what was there before, and the output if the sort
    /// succeeded.
    pub(crate) fn is_clean(&self, case: &Case, sort: &Sort, mut names: Vec<String>, error: Option<String>) {
        let output = sort.output.path.strip_prefix(&self.root).unwrap().display().to_string();
        // If a directory cannot be synced, the output already has its name.
        let is_named =
            error.as_ref().is_none_or(|e| e.starts_with("cannot sync") && self.get(&output).is_some());
        if is_named && !names.contains(&output) {
            names.push(output.clone());
            names.sort();
        }
        assert_eq!(self.names(), names, "what is left after {error:?}");
        for (i, input) in case.inputs.iter().enumerate() {
            let name = format!("in/{i}");
            let may_differ = name == output && error.is_none();
            assert!(may_differ || self.get(&name).as_ref() == Some(input), "input {i} is not what it was");
        }
    }

    /// Sorts a case and compares with the model.
    #[track_caller]
    pub(crate) fn sorts(&self, case: &Case) -> Receipt {
        let sort = self.set(case);
        let receipt = self.run(case, &sort, &Unwatched).unwrap_or_else(|e| panic!("{}: {e}", said(case)));
        case.expected().is(&self.get("out/sorted").expect("there is an output"), &receipt);
        receipt
    }

    /// Sorts a case that must fail.
    #[track_caller]
    pub(crate) fn refuses(&self, case: &Case) -> Error {
        let sort = self.set(case);
        match self.run(case, &sort, &Unwatched) {
            Ok(_) => panic!("{} was sorted", said(case)),
            Err(error) => error,
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.sim.is_none() {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// The case in one line.
pub(crate) fn said(case: &Case) -> String {
    let sizes: Vec<usize> = case.inputs.iter().map(Vec::len).collect();
    format!(
        "{:?} by {:?}, {sizes:?} bytes in {}, {} lanes",
        case.layout, case.keys, case.memory_bytes, case.lanes
    )
}
