//! `bench incore`: records sorted and gathered in memory, beside a plain copy of the same bytes.
//!
//! Model: input and output are files in `/dev/shm`, and the whole verb runs between them in this process,
//! so what is measured is the sort plus reading from and writing to memory as if that were a disk: one copy
//! in and one copy out by the kernel. [`sort_in_memory`] is the only place that knows; a sort of records
//! that are in memory already would be called there and cost that much less.
//! Law: copy and sort take turns in one run; the copy is between blocks that were touched before, in huge
//! pages where there are any, which is the fastest copy there is.

use std::path::Path;
use std::sync::Arc;

use thalweg::{Error, Result};
use thalweg_api::{BenchOther, BenchReport, BenchRow, BenchTarget};
use thalweg_base::clock::Stopwatch;
use thalweg_base::units::MIB;
use thalweg_block::{Block, Pool};
use thalweg_io::Io;
use thalweg_io::process::{self, Usage};
use thalweg_record::{KeyPart, Layout};
use thalweg_sort::{Sort, Watch};

use crate::data::Data;
use crate::measure::Series;
use crate::table::traffic;
use crate::{Asked, digest, machine, place};

/// Names of the rows: cores that may be used.
pub(crate) const NAMES: [&str; 2] = ["one", "two"];
/// What each may cost, in copies.
const COPIES_MAX: [f64; 2] = [4.5, 2.6];
const BLOCK_BYTES: usize = MIB as usize;

/// Measures on one core, and on two if there are two.
pub(crate) fn measure(asked: &Asked<'_>, report: &mut BenchReport) -> Result<()> {
    let (io, place) = place::in_memory()?;
    let bytes = asked.bytes / 100 * 100;
    // Input and output in the file system, the sort's own memory, and both ends of the copy.
    let needed = bytes * 4 + bytes / 2;
    let available = process::available_memory_bytes();
    if available < needed {
        return Err(Error::CouldNot(format!(
            "{available} bytes of memory are available, and this needs {needed}; give a smaller --size"
        )));
    }
    let (input, output) = (place.path().join("records"), place.path().join("sorted"));
    Data::Binary.make(&input, bytes)?;
    let mut copy = Copy::new(bytes)?;
    for (i, name) in NAMES.into_iter().enumerate().filter(|(_, name)| asked.wants(name)) {
        let lanes = i + 1;
        asked.progress.begin(name, lanes as u64, NAMES.len() as u64, 0);
        if lanes > machine::cores() {
            report.notes.push(format!("{name}: there are not so many cores here"));
            continue;
        }
        let (mut sorts, mut copies) = (Series::default(), Series::default());
        let mut row = BenchRow {
            name: name.to_string(),
            work: format!("{} sorted in memory on {name}", traffic(bytes)),
            bytes,
            memory_bytes: memory_of(bytes),
            ..BenchRow::default()
        };
        for _ in 0..asked.runs {
            asked.go_on()?;
            measured(&mut copies, || copy.run());
            measured(&mut sorts, || sort_in_memory(&io, &input, &output, lanes))?;
            row.digest = digest::of_file(&output)?;
            io.remove(&output)?;
        }
        row.ours = sorts.measure();
        let copies = copies.measure();
        row.targets = vec![target(row.ours.seconds / copies.seconds, COPIES_MAX[i], asked.tiny)];
        row.others.push(BenchOther { name: "copy".into(), measure: Some(copies), ..BenchOther::default() });
        row.notes.push("from and to files in memory: a copy in and a copy out are in it".to_string());
        report.rows.push(row);
    }
    Ok(())
}

fn target(measured: f64, most: f64, tiny: bool) -> BenchTarget {
    let met = (!tiny).then_some(measured <= most);
    BenchTarget {
        target: format!("wall <= {most} x a copy on one core"),
        measured: format!("{measured:.2}"),
        met,
    }
}

/// Runs something in this process and adds what it took.
fn measured<T>(series: &mut Series, what: impl FnOnce() -> T) -> T {
    let before = process::usage();
    let watch = Stopwatch::start();
    let value = what();
    let seconds = watch.seconds();
    let cpu_seconds = process::usage().cpu_seconds - before.cpu_seconds;
    // What was resident before and since cannot be told apart.
    series.add(seconds, Usage { cpu_seconds, peak_bytes: 0 });
    value
}

/// Memory for a sort that is to spill nothing.
fn memory_of(bytes: u64) -> u64 {
    bytes * 3 / 2 + 256 * MIB
}

/// Sorts benchmark records from one file in memory to another, in so many lanes.
fn sort_in_memory(io: &Arc<dyn Io>, input: &Path, output: &Path, lanes: usize) -> Result<()> {
    let bytes = io.stat(input)?.len;
    let sort = Sort {
        inputs: vec![input.to_path_buf()],
        output: output.to_path_buf(),
        output_is_stream: false,
        layout: Layout::Fixed(100),
        keys: vec![KeyPart { offset: 0, length: 10, descending: false }],
        memory_bytes: memory_of(bytes),
        scratch: vec![output.parent().unwrap_or(Path::new(".")).to_path_buf()],
        scratch_limit: 0,
        lanes,
        unique: false,
        resume: false,
        hashing: true,
        hardware: None,
    };
    let receipt = thalweg_sort::run(&sort, io, &Unwatched).map_err(|e| Error::CouldNot(e.to_string()))?;
    assert!(receipt.holds, "a sort whose law does not hold gives no receipt");
    Ok(())
}

struct Unwatched;

impl Watch for Unwatched {
    fn begin(&self, _stage: &str, _index: u64, _stages: u64, _total_bytes: u64) {}

    fn advance(&self, _bytes: u64) {}

    fn stopped(&self) -> bool {
        false
    }
}

/// Two ends of a copy, touched.
struct Copy {
    pairs: Vec<(Block, Block)>,
}

impl Copy {
    fn new(bytes: u64) -> Result<Copy> {
        let count = (bytes as usize).div_ceil(BLOCK_BYTES);
        let pool = || Pool::new(BLOCK_BYTES, count).map_err(|e| Error::CouldNot(e.to_string()));
        let (from, to) = (pool()?, pool()?);
        let touched = |pool: &Pool, index: usize| {
            let mut block = pool.take();
            block.set_len(BLOCK_BYTES.min(bytes as usize - index * BLOCK_BYTES));
            block.fill(index as u8);
            block
        };
        Ok(Copy { pairs: (0..count).map(|i| (touched(&from, i), touched(&to, i))).collect() })
    }

    fn run(&mut self) {
        for (from, to) in &mut self.pairs {
            to.copy_from_slice(from);
        }
        std::hint::black_box(&self.pairs);
    }
}
