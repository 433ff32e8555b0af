//! `bench incore`: records sorted in memory, compared with a plain copy of the same bytes.
//!
//! Model: a program puts its records into a [`Sorter`] before the clock starts. The clock covers the end of the input,
//! the sort, and taking every block of the sorted stream; each block is dropped at once. Nothing is read or written.
//! The row for one core keeps the calling thread, the lane and their threads on one core.
//! Invariant: copy and sort take turns in one run, in memory that was touched before. The copy is the fastest there is:
//! between blocks that were touched before, in huge pages where there are any. The output is checked in a run that is
//! not measured, and proved in every run of the row.
//! Non-goals: how the records came into memory, and giving the memory back.

use thalweg::{KeyPart, Layout, Sink, Size, Sorter, SorterOptions, Source};
use thalweg_api::{BenchOther, BenchReport, BenchRow, BenchTarget};
use thalweg_base::units::MIB;
use thalweg_block::{Block, Pool};
use thalweg_io::process;
use thalweg_record::{Generator, Kind, RECORD_BYTES};
use xxhash_rust::xxh3::Xxh3;

use crate::process::Series;
use crate::table::traffic;
use crate::{Asked, digest, machine, memory};
use crate::{Error, Result};

/// The rows, by the number of cores.
pub(crate) const NAMES: [&str; 2] = ["one", "two"];
/// The target of each, in copies.
const COPIES_MAX: [f64; 2] = [4.5, 2.6];
const BLOCK_BYTES: usize = MIB as usize;

/// Measures on one core, and on two if there are two.
pub(crate) fn measure(asked: &Asked<'_>, report: &mut BenchReport) -> Result<()> {
    let record_bytes = RECORD_BYTES as u64;
    let bytes = asked.bytes / record_bytes * record_bytes;
    // Both ends of the copy, and the sorter's.
    let needed = bytes * 2 + memory_of(bytes);
    let available = process::available_memory_bytes();
    if available < needed {
        return Err(Error::Failed(format!(
            "{available} bytes of memory are available, and this needs {needed}; give a smaller --size"
        )));
    }
    let mut copy = Copy::new(bytes)?;
    for (i, name) in NAMES.into_iter().enumerate().filter(|(_, name)| asked.wants(name)) {
        let lanes = i + 1;
        asked.progress.begin(name, lanes as u64, NAMES.len() as u64, 0);
        if lanes > machine::cores() {
            report.notes.push(format!("{name}: this machine has fewer cores"));
            continue;
        }
        // On a thread of its own, which may be bound to a core.
        let row = std::thread::scope(|scope| {
            let row = scope.spawn(|| measure_row(asked, &mut copy, lanes));
            row.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        report.rows.push(row?);
    }
    Ok(())
}

/// Measures with this many lanes; a single lane is bound to one core.
fn measure_row(asked: &Asked<'_>, copy: &mut Copy, lanes: usize) -> Result<BenchRow> {
    let (name, bytes) = (NAMES[lanes - 1], copy.bytes);
    let mut row = BenchRow {
        name: name.to_string(),
        work: format!("{} sorted in memory on {name}", traffic(bytes)),
        bytes,
        memory_bytes: memory_of(bytes),
        ..BenchRow::default()
    };
    if lanes == 1
        && let Err(e) = process::stay_on_one_core()
    {
        row.notes.push(format!("one lane, but not kept on one core: {e}"));
    }
    let mut hash = Xxh3::new();
    sort_in_memory(copy, lanes, true, &mut Series::default(), |block| hash.update(block))?;
    row.digest = digest::written(&hash);
    let (mut sorts, mut unproved, mut copies) = (Series::default(), Series::default(), Series::default());
    for _ in 0..asked.runs {
        asked.should_continue()?;
        copies.run(|| copy.run());
        for (proof, series) in [(true, &mut sorts), (false, &mut unproved)] {
            if !asked.tiny {
                memory::touch(memory_of(bytes))?;
            }
            sort_in_memory(copy, lanes, proof, series, |_| ())?;
        }
    }
    row.ours = sorts.measure();
    let copies = copies.measure();
    row.targets = vec![target(row.ours.seconds / copies.seconds, COPIES_MAX[lanes - 1], asked.tiny)];
    for (name, measure) in [("copy", copies), ("without proofs", unproved.measure())] {
        row.others.push(BenchOther::measured(name, measure));
    }
    Ok(row)
}

fn target(measured: f64, most: f64, tiny: bool) -> BenchTarget {
    let met = (!tiny).then_some(measured <= most);
    BenchTarget {
        target: format!("wall <= {most} x a copy on one core"),
        measured: format!("{measured:.2}"),
        met,
    }
}

/// Memory for a sort that spills nothing.
fn memory_of(bytes: u64) -> u64 {
    bytes * 3 / 2 + 256 * MIB
}

/// Puts benchmark records into a sorter, and measures the time from there to the last sorted block.
fn sort_in_memory(
    records: &Copy,
    lanes: usize,
    proof: bool,
    series: &mut Series,
    mut on_block: impl FnMut(&[u8]),
) -> Result<()> {
    let mut sorter = Sorter::new(&SorterOptions {
        layout: Layout::Fixed(RECORD_BYTES as u32),
        keys: vec![KeyPart { offset: 0, length: 10, descending: false }],
        memory: Some(Size::Bytes(memory_of(records.bytes))),
        scratch_limit: Some(Size::Bytes(0)),
        threads: Some(lanes),
        no_proof: !proof,
        ..SorterOptions::default()
    })?;
    for (from, _) in &records.pairs {
        let mut rest = &from[..];
        while !rest.is_empty() {
            let mut block = sorter.block()?;
            let (now, later) = rest.split_at(rest.len().min(block.capacity()));
            block.set_len(now.len());
            block.copy_from_slice(now);
            sorter.put(block)?;
            rest = later;
        }
    }
    // Dropped after the clock stops: the end of its threads and the release of its memory are not measured.
    let mut sorted = None;
    series.run(|| -> Result<()> {
        let sorted = sorted.insert(sorter.sorted()?);
        while let Some(block) = sorted.next()? {
            on_block(&block);
        }
        Ok(())
    })?;
    let receipt = sorted.as_mut().expect("it was made just now").receipt()?;
    assert!(receipt.holds, "a sort whose invariant does not hold gives no receipt");
    assert_eq!(receipt.scratch_peak_bytes, 0, "it was to stay in memory");
    Ok(())
}

/// Benchmark records, and the destination of their copy.
struct Copy {
    bytes: u64,
    pairs: Vec<(Block, Block)>,
}

impl Copy {
    fn new(bytes: u64) -> Result<Copy> {
        let count = (bytes as usize).div_ceil(BLOCK_BYTES).max(1);
        let pool = || Pool::new(BLOCK_BYTES, count).map_err(|e| Error::Failed(e.to_string()));
        let (from, to) = (pool()?, pool()?);
        let empty = |pool: &Pool, index: usize| {
            let mut block = pool.take();
            block.set_len(BLOCK_BYTES.min(bytes as usize - index * BLOCK_BYTES));
            block
        };
        let mut pairs: Vec<(Block, Block)> = (0..count).map(|i| (empty(&from, i), empty(&to, i))).collect();
        let mut generator = Generator::new(Kind::default(), 0);
        let mut piece = Vec::new();
        for (from, to) in &mut pairs {
            while piece.len() < from.len() {
                let at = piece.len();
                piece.resize(at + BLOCK_BYTES.next_multiple_of(RECORD_BYTES), 0);
                generator.fill(&mut piece[at..]);
            }
            let len = from.len();
            from.copy_from_slice(&piece[..len]);
            to.copy_from_slice(from);
            piece.drain(..len);
        }
        Ok(Copy { bytes, pairs })
    }

    fn run(&mut self) {
        for (from, to) in &mut self.pairs {
            to.copy_from_slice(from);
        }
        std::hint::black_box(&self.pairs);
    }
}
