//! `bench river`: records distributed to lanes in memory, compared with a plain copy, and partitions of files, compared
//! with fio.
//!
//! Model: in memory, there are an inlet and an outlet for each core, each on a thread of its own. Inlets put records
//! from blocks, outlets take batches and drop them. No checksums are computed, and no disk is used. The copy has one
//! thread for each core, and copies the same blocks to others that were touched before. Partitions of files are whole
//! processes that take turns with fio.
//! Invariant: in every run the bytes that came out are counted, and are as many as went in.

use std::process::Command;

use thalweg::{Layout, Partitioner, River, RiverBuilder, Sink, Source};
use thalweg_api::{BenchOther, BenchPhase, BenchReport, BenchRow, BenchTarget};
use thalweg_block::{Block, Pool};
use thalweg_record::{Generator, Key, KeyPart, Kind, RECORD_BYTES, SplitPoint, SplitPoints};

use crate::contenders::judge;
use crate::data::Data;
use crate::data_dir::DataDir;
use crate::floor::{Fio, Replays};
use crate::process::{Series, whole_process};
use crate::table::traffic;
use crate::targets::Target;
use crate::{Asked, failed, machine};
use crate::{Error, Result};

/// The rows: three partitioners in memory, two between files.
pub(crate) const NAMES: [&str; 5] = ["range", "hash", "robin", "file-range", "file-hash"];
const MEMORY_ROWS: usize = 3;
/// A size that is a multiple of records and of pages.
const BLOCK_BYTES: usize = 10_240 * RECORD_BYTES;
/// Lanes in memory, and parts on disk.
const LANES: usize = 16;
/// The target for the rate, relative to that of a copy by one thread for each core.
const RATE_MIN: f64 = 0.35;
const WALL_OF_FLOOR: f64 = 1.15;
/// The reads that fio has in flight, and the writes; on two cores ours has 6 and 12.
const DEPTH: u32 = 8;

/// Measures the rows that are asked for.
pub(crate) fn measure(asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
    let memory: Vec<&str> = NAMES[..MEMORY_ROWS].iter().copied().filter(|name| asked.wants(name)).collect();
    if !memory.is_empty() {
        let mut blocks = Blocks::new(asked.bytes)?;
        for name in memory {
            asked.progress.begin(name, 1, 1, 0);
            report.rows.push(in_memory(asked, name, &mut blocks)?);
        }
    }
    let fio = Fio::find(dir.path()).map_err(|why| report.notes.push(why)).ok();
    for name in NAMES[MEMORY_ROWS..].iter().copied().filter(|name| asked.wants(name)) {
        asked.progress.begin(name, 1, 1, 0);
        report.rows.push(on_disk(asked, dir, name, fio.as_ref())?);
    }
    Ok(())
}

/// Records, and the destination of their copy, in equal shares for each thread.
struct Blocks {
    bytes: u64,
    shares: Vec<Vec<(Block, Block)>>,
}

impl Blocks {
    fn new(bytes: u64) -> Result<Blocks> {
        let count = (bytes as usize).div_ceil(BLOCK_BYTES).max(machine::cores());
        let pool = || Pool::new(BLOCK_BYTES, count).map_err(|e| Error::Failed(e.to_string()));
        let (from, to) = (pool()?, pool()?);
        let mut generator = Generator::new(Kind::default(), 0);
        let mut shares: Vec<Vec<(Block, Block)>> = (0..machine::cores()).map(|_| Vec::new()).collect();
        for i in 0..count {
            let mut pair = (from.take(), to.take());
            for block in [&mut pair.0, &mut pair.1] {
                block.set_len(BLOCK_BYTES);
            }
            generator.fill(&mut pair.0);
            pair.1.copy_from_slice(&pair.0);
            let share = i % shares.len();
            shares[share].push(pair);
        }
        Ok(Blocks { bytes: (count * BLOCK_BYTES) as u64, shares })
    }

    fn copy(&mut self) {
        std::thread::scope(|scope| {
            for share in &mut self.shares {
                scope.spawn(|| share.iter_mut().for_each(|(from, to)| to.copy_from_slice(from)));
            }
        });
        std::hint::black_box(&self.shares);
    }

    /// Runs the records through a river, and compares their bytes at both ends.
    fn flow(&self, builder: RiverBuilder) -> Result<()> {
        let could_not = |e: &dyn std::fmt::Display| Error::Failed(e.to_string());
        let river = builder.build().map_err(|e| could_not(&e))?;
        let bytes = std::thread::scope(|scope| {
            let outlets = river.outlets.into_iter().map(|mut outlet| {
                scope.spawn(move || -> std::result::Result<u64, String> {
                    let mut bytes = 0;
                    while let Some(batch) = outlet.next().map_err(|e| e.to_string())? {
                        bytes += batch.records().len() as u64;
                    }
                    Ok(bytes)
                })
            });
            let outlets: Vec<_> = outlets.collect();
            for (mut inlet, share) in river.inlets.into_iter().zip(&self.shares) {
                scope.spawn(move || {
                    let put = share.iter().try_for_each(|(from, _)| inlet.put_bytes(from));
                    put.and_then(|()| Sink::<Block>::finish(&mut inlet))
                });
            }
            let mut sum = 0;
            for outlet in outlets {
                sum += outlet.join().expect("an outlet does not panic").map_err(|e| could_not(&e))?;
            }
            Ok::<u64, Error>(sum)
        })?;
        if bytes != self.bytes {
            return Err(Error::Wrong(format!(
                "{bytes} bytes came out of a river into which {} went",
                self.bytes
            )));
        }
        Ok(())
    }
}

fn partitioner(name: &str, key: &Key) -> Partitioner {
    let split_point = |lane: usize| SplitPoint { normal: vec![(lane * 256 / LANES) as u8, 0], origin: 0 };
    match name {
        "range" => Partitioner::Range(SplitPoints::new(key, (1..LANES).map(split_point).collect())),
        "hash" => Partitioner::Hash,
        _ => Partitioner::RoundRobin,
    }
}

fn in_memory(asked: &Asked<'_>, name: &str, blocks: &mut Blocks) -> Result<BenchRow> {
    let threads = blocks.shares.len();
    let layout = Layout::Fixed(RECORD_BYTES as u32);
    let part = KeyPart { offset: 0, length: 10, descending: false };
    let key = Key::new(layout, &[part]).expect("the key lies inside the record");
    let mut row = BenchRow {
        name: name.to_string(),
        work: format!(
            "{} through {threads} x {threads} ends, {LANES} lanes, in memory",
            traffic(blocks.bytes)
        ),
        bytes: blocks.bytes,
        ..BenchRow::default()
    };
    let (mut ours, mut copies) = (Series::default(), Series::default());
    for _ in 0..asked.runs {
        asked.should_continue()?;
        copies.run(|| blocks.copy());
        let builder = River::builder()
            .inlets(threads)
            .outlets(threads)
            .lanes(LANES)
            .records(layout, key.clone())
            .partitioner(partitioner(name, &key));
        ours.run(|| blocks.flow(builder))?;
    }
    row.ours = ours.measure();
    let copies = copies.measure();
    let ratio = copies.seconds / row.ours.seconds.max(1e-9);
    row.targets = vec![BenchTarget {
        target: format!("rate >= {RATE_MIN} x a copy on {threads} threads"),
        measured: format!("{ratio:.2}"),
        met: (!asked.tiny).then_some(ratio >= RATE_MIN),
    }];
    row.others.push(BenchOther::measured("copy", copies));
    Ok(row)
}

fn on_disk(asked: &Asked<'_>, dir: &DataDir, name: &str, fio: Option<&Fio>) -> Result<BenchRow> {
    let source = dir.path().join(Data::Binary.name());
    if !source.exists() {
        dir.need(asked.bytes * 3)?;
        Data::Binary.make(&source, asked.bytes)?;
    }
    let bytes = source.metadata().map_err(|e| failed("inspect", &source, &e))?.len();
    let pick = name.strip_prefix("file-").expect("rows on disk are called so");
    let mut row = BenchRow {
        name: name.to_string(),
        work: format!("{} parted among {LANES} files by {pick}, durable", traffic(bytes)),
        bytes,
        ..BenchRow::default()
    };
    let phase = BenchPhase { read_bytes: bytes, written_bytes: bytes, depth: DEPTH, seconds: 0.0 };
    let mut replays = fio.map(|fio| Replays::new(fio, vec![phase]));
    let mut ours = Series::default();
    for round in 0..asked.runs {
        asked.should_continue()?;
        dir.cool()?;
        let mut command = Command::new(&asked.options.program);
        command.args(["partition", "--json", "--progress", "never", "--datamation", "--pick", pick]);
        command.arg("--parts").arg(LANES.to_string()).arg(&source).arg("-o").arg(dir.path().join("part-{}"));
        let ended = whole_process(&mut command)?;
        let receipt = ended.receipt()?;
        ours.add(ended.seconds, ended.usage);
        for part in receipt.partition.iter().flat_map(|made| &made.parts) {
            std::fs::remove_file(&part.path).map_err(|e| failed("remove", part.path.as_ref(), &e))?;
        }
        if let Some(replays) = replays.as_mut().filter(|_| round == 0 || !asked.tiny) {
            dir.cool()?;
            replays.once(&Data::Binary.name())?;
        }
    }
    row.ours = ours.measure();
    row.floor = replays.map(Replays::floor);
    judge(&mut row, &[Target::WallOfFloor(WALL_OF_FLOOR)], asked.tiny);
    Ok(row)
}
