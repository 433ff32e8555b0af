//! `thalweg-bench volume`: the experiments of paper 001 on a lab of eight hosts, small files on one of four, and a mount on
//! one machine beside its rivals.
//!
//! Model: each host of the lab has a store, and one to seven of them read or write files of 838-byte records, each
//! through a mount and by the same program. NFS serves the same file from n8. The ideal is the time that the links need
//! at the rate of iperf3, an eighth of each file being local to its reader.
//! Invariant: before each run, caches are dropped and volumes are mounted again, unless the row says otherwise.

mod access;
mod library;
mod local;
mod mounts;
mod nfs;
mod small;
pub(crate) mod suites;

use thalweg_api::{BenchMeasure, BenchOther, BenchReport, BenchRow, BenchTarget};
use thalweg_io::process::Usage;

use crate::cluster::{IDEAL, NARROW, of_ideal};
use crate::lab::{Lab, Wanted, cpu_seconds};
use crate::pump_lab::{Served, iperf_one_way};
use access::{Access, How, Moved, Task};
use mounts::{NAME, Striped};
use nfs::Nfs;
use thalweg_measure::contenders::judge;
use thalweg_measure::data::Data;
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::process::{Series, median};
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Asked, Error, Result, failed};

/// Bytes of a record of the paper.
const RECORD_BYTES: u64 = 838;
/// The hosts with stores; the last one also serves NFS.
const HOSTS: u32 = 8;
/// The most hosts that read.
const READERS: u32 = 7;
/// Chunks of the figures, in records.
const CHUNKS: [u64; 5] = [1, 10, 50, 150, 350];
/// The chunk, in records, of rows that do not vary it.
const LARGE: u64 = 350;
/// The file, for a `--size` of 1 GB.
const FILE_BYTES: u64 = 128 << 20;
/// The bytes that each reader reads at random offsets, for a `--size` of 1 GB.
const RANDOM_BYTES: u64 = 20_000_000;
const NFS: &str = "NFS";
const NFS_PLAIN: &str = "NFS, no cache";
/// Our mount without cache and read-ahead, like the paper's PVFS.
const PLAIN: &str = "no cache, no read-ahead";
const HEALTHY: &str = "all stores there";
/// The rate of a slow store's link.
const SLOW: &str = "1mbit";

/// The accesses of the readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Each reads all of one file.
    Whole,
    /// Each reads its part of one file.
    Global,
    /// Each reads records at random offsets of one file.
    Random,
    /// Each writes a file of its own.
    Write,
}

/// The fault of the store of n8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Dead,
    Slow,
}

/// One row.
#[derive(Debug, Clone, Copy)]
struct Row {
    pattern: Pattern,
    readers: u32,
    chunk_records: u64,
    /// The directory of its file, which determines the layout.
    directory: &'static str,
    beside: &'static [&'static str],
    fault: Fault,
    targets: &'static [Target],
    paper: &'static str,
}

/// Directories, and the layout of the files in them.
const DIRECTORIES: &[(&str, &[&str])] = &[
    ("plain", &["--stripe", "1MiB"]),
    ("records", &["--stripe", "1MiB", "--record", "838"]),
    ("s8", &["--stripe", "8KiB"]),
    ("s64", &["--stripe", "64KiB"]),
    ("s64-records", &["--stripe", "64KiB", "--record", "838"]),
    ("two", &["--stripe", "1MiB", "--copies", "2"]),
];

const WHOLE: Row = Row {
    pattern: Pattern::Whole,
    readers: READERS,
    chunk_records: LARGE,
    directory: "plain",
    beside: &[],
    fault: Fault::None,
    targets: &[],
    paper: "",
};
const GLOBAL: Row = Row { pattern: Pattern::Global, ..WHOLE };
const RANDOM: Row = Row { pattern: Pattern::Random, ..WHOLE };
const WRITE: Row = Row { pattern: Pattern::Write, ..WHOLE };
const BESIDE: &[&str] = &[PLAIN, NFS, NFS_PLAIN];
/// Two copies, compared with a run without a fault.
const FAULTY: Row = Row {
    directory: "two",
    beside: &[HEALTHY],
    targets: &[Target::NoSlower { than: HEALTHY, times: 1.333 }],
    ..WHOLE
};

/// The rows with targets.
const HEADLINES: &[(&str, Row)] = &[
    (
        "one-reader",
        Row {
            readers: 1,
            beside: BESIDE,
            targets: &[of_ideal(0.95)],
            paper: "paper 001: 9.45 of 12.5 MB/s",
            ..WHOLE
        },
    ),
    (
        "whole",
        Row {
            beside: BESIDE,
            targets: &[Target::Rate(78e6), faster(NFS, 6.0)],
            paper: "paper 001, figure 3: PVFS 48.23 MB/s, NFS 11.76",
            ..WHOLE
        },
    ),
    (
        "global",
        Row {
            beside: BESIDE,
            targets: &[Target::Rate(78e6), faster(NFS, 6.0)],
            paper: "paper 001, figure 6: PVFS 50.06 MB/s, NFS 9.09",
            ..GLOBAL
        },
    ),
    (
        "one-record",
        Row {
            chunk_records: 1,
            beside: &[LARGE_CHUNKS, PLAIN, NFS],
            targets: &[Target::NoSlower { than: LARGE_CHUNKS, times: 1.111 }],
            paper: "paper 001, figure 2: PVFS is far below NFS",
            ..WHOLE
        },
    ),
    (
        "random",
        Row {
            chunk_records: 1,
            beside: BESIDE,
            targets: &[faster(NFS, 4.0), faster(NFS_PLAIN, 1.2)],
            paper: "paper 001, figure 7: PVFS is above NFS",
            ..RANDOM
        },
    ),
    ("again", Row { beside: &[AGAIN], ..WHOLE }),
    ("write-1", Row { readers: 1, targets: &[of_ideal(0.85)], ..WRITE }),
    ("write-1-copies", Row { readers: 1, directory: "two", targets: &[of_ideal(0.85)], ..WRITE }),
    ("write-7-copies", Row { directory: "two", targets: &[Target::Rate(40e6)], ..WRITE }),
    ("stripe-8k", Row { directory: "s8", ..WHOLE }),
    ("stripe-64k", Row { directory: "s64", ..WHOLE }),
    ("stripe-64k-records", Row { directory: "s64-records", ..WHOLE }),
    ("stripe-1m-records", Row { directory: "records", ..WHOLE }),
    ("slow-store", Row { fault: Fault::Slow, ..FAULTY }),
    ("dead-store", Row { fault: Fault::Dead, ..FAULTY }),
];
/// The name that selects the points of the paper's figures.
const FIGURES: &str = "figures";

const LARGE_CHUNKS: &str = "350 records";
const AGAIN: &str = "first pass";

const fn faster(than: &'static str, times: f64) -> Target {
    Target::Faster { than: Than::Named(than), times, or_floor: None }
}

/// The points of the paper's figures, with names such as `whole-350-7`: pattern, records of a chunk, readers.
fn figures() -> Vec<(String, Row)> {
    let mut rows = Vec::new();
    for (what, pattern) in [("whole", WHOLE), ("global", GLOBAL), ("random", RANDOM)] {
        for chunk_records in CHUNKS {
            for readers in 1..=READERS {
                let name = format!("{what}-{chunk_records}-{readers}");
                rows.push((name, Row { readers, chunk_records, beside: &[PLAIN, NFS], ..pattern }));
            }
        }
    }
    rows
}

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    let measured =
        local::NAMES.into_iter().chain(HEADLINES.iter().map(|(name, _)| *name)).chain([FIGURES, small::NAME]);
    measured.collect()
}

/// Measures the rows that are asked for, or says why there are none.
pub(crate) fn measure(
    asked: &Asked<'_>,
    dir: &DataDir,
    rivals: bool,
    report: &mut BenchReport,
) -> Result<()> {
    let access = match Access::build(dir.path()) {
        Ok(access) => access,
        Err(why) => {
            report.notes.push(format!("left out: {why}"));
            return Ok(());
        }
    };
    local::measure(asked, dir, &access, rivals, report)?;
    small::measure(asked, dir, &access, report)?;
    let mut rows: Vec<(String, Row)> = Vec::new();
    if asked.wants(FIGURES) && !(asked.tiny && asked.options.rows.is_empty()) {
        rows.extend(figures());
    }
    let headlines = HEADLINES.iter().filter(|(name, _)| asked.wants(name));
    rows.extend(headlines.map(|(name, row)| (name.to_string(), *row)));
    if rows.is_empty() {
        return Ok(());
    }
    let lab =
        match Lab::up(&asked.options.program, Wanted { hosts: HOSTS, words: NARROW, ..Wanted::default() }) {
            Ok(lab) => lab,
            Err(why) => {
                report.notes.push(format!("left out: all rows of the lab: {why}"));
                return Ok(());
            }
        };
    let bench = Bench::prepare(asked, dir, &access, &lab, &rows, &mut report.notes)?;
    for (i, (name, row)) in rows.iter().enumerate() {
        asked.progress.begin(name, i as u64 + 1, rows.len() as u64, 0);
        report.rows.push(bench.measured(name, row)?);
    }
    Ok(())
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    access: &'a Access,
    lab: &'a Lab,
    volume: Striped<'a>,
    nfs: Option<Nfs>,
    iperf: Option<Served>,
    file_bytes: u64,
    random_bytes: u64,
}

/// One run of all readers.
#[derive(Default)]
struct Run {
    moved: Moved,
    /// The CPU time of nodes and mounts.
    cpu_seconds: f64,
    /// Bytes that the links carried.
    crossed: u64,
}

impl Run {
    fn usage(&self) -> Usage {
        Usage { cpu_seconds: self.cpu_seconds, ..Usage::default() }
    }
}

impl<'a> Bench<'a> {
    /// Creates the volume, with a file in each directory that a row needs, and the NFS server with the same file.
    fn prepare(
        asked: &'a Asked<'a>,
        dir: &'a DataDir,
        access: &'a Access,
        lab: &'a Lab,
        rows: &[(String, Row)],
        notes: &mut Vec<String>,
    ) -> Result<Bench<'a>> {
        let scaled = |bytes: u64| {
            let bytes = (bytes as f64 * asked.bytes as f64 / 1e9) as u64;
            (bytes / RECORD_BYTES).max(u64::from(READERS) * LARGE) * RECORD_BYTES
        };
        let nfs = if rows.iter().any(|(_, row)| row.beside.iter().any(|who| [NFS, NFS_PLAIN].contains(who))) {
            match (access.has_nfs, Nfs::start(lab, HOSTS)) {
                (false, _) => Err("NFS: no libnfs (apt-get install libnfs-dev)".to_string()),
                (true, nfs) => nfs,
            }
        } else {
            Err(String::new())
        };
        let nfs = nfs
            .map_err(|why| {
                if !why.is_empty() {
                    notes.push(format!("left out: {why}"))
                }
            })
            .ok();
        let bench = Bench {
            asked,
            dir,
            access,
            lab,
            volume: Striped::create(asked, lab)?,
            nfs,
            iperf: Served::iperf(lab).map_err(|why| notes.push(format!("left out: {why}"))).ok(),
            file_bytes: scaled(FILE_BYTES),
            random_bytes: scaled(RANDOM_BYTES),
        };
        let source = dir.path().join("records");
        Data::Binary.make(&source, bench.file_bytes)?;
        if let Some(nfs) = &bench.nfs {
            let copy = nfs.local("records");
            std::fs::copy(&source, &copy).map_err(|e| failed("write", &copy, &e))?;
        }
        for (name, layout) in DIRECTORIES {
            let needs = |of: fn(&Row) -> bool| rows.iter().any(|(_, row)| row.directory == *name && of(row));
            if needs(|_| true) {
                bench.volume.directory(name, layout)?;
            }
            if needs(|row| row.pattern != Pattern::Write) {
                let to = format!("volume:{NAME}/{name}/records");
                bench.volume.run(&["pump", "-q", &source.display().to_string(), &to])?;
            }
        }
        Ok(bench)
    }

    fn measured(&self, name: &str, row: &Row) -> Result<BenchRow> {
        let mut measured = BenchRow {
            name: name.into(),
            work: self.work(row),
            bytes: self.bytes(row),
            ..BenchRow::default()
        };
        let mut ours = Series::default();
        let mut others: Vec<(&str, Series)> =
            row.beside.iter().map(|who| (*who, Series::default())).collect();
        let (mut ideal, mut crossed) = (Vec::new(), Vec::new());
        let mut p99_us = 0;
        for round in 0..self.asked.runs {
            self.asked.should_continue()?;
            // The run without a fault comes before the one with a fault that it is compared with.
            for (who, series) in &mut others {
                if let Some(run) = self.beside(row, who, round)? {
                    series.add(run.moved.seconds, run.usage());
                }
            }
            let run = self.with_fault(row.fault, || self.ours(row, round))?;
            crossed.push(run.crossed as f64);
            p99_us = p99_us.max(run.moved.p99_us);
            ours.add(run.moved.seconds, run.usage());
            if let Some(seconds) = self.ideal(row)? {
                ideal.push(seconds);
            }
        }
        measured.ours = ours.measure();
        measured.notes.push(format!(
            "{:.1} MB/s; {:.0} bytes crossed the links for each 838; p99 of a request {p99_us} us",
            measured.bytes as f64 / measured.ours.seconds / 1e6,
            median(&crossed) / (measured.bytes as f64 / RECORD_BYTES as f64),
        ));
        if !row.paper.is_empty() {
            measured.notes.push(row.paper.into());
        }
        for (who, series) in others {
            if !series.is_empty() {
                measured.others.push(BenchOther::measured(who, series.measure()));
            }
        }
        if !ideal.is_empty() {
            let measure =
                BenchMeasure { seconds: median(&ideal), all_seconds: ideal, ..BenchMeasure::default() };
            measured.others.push(BenchOther::measured(IDEAL, measure));
        }
        judge(&mut measured, row.targets, self.asked.tiny);
        measured.targets.extend(self.crossing(name, measured.bytes, median(&crossed)));
        Ok(measured)
    }

    /// The targets about bytes that cross the links.
    fn crossing(&self, name: &str, bytes: u64, crossed: f64) -> Option<BenchTarget> {
        let of_all = crossed / bytes as f64;
        let (target, value, most) = match name {
            "again" => ("at most 1 % of the bytes cross", 100.0 * of_all, 1.0),
            "random" => ("at most 5 KiB cross for a record", of_all * RECORD_BYTES as f64 / 1024.0, 5.0),
            _ => return None,
        };
        let met = (!self.asked.tiny).then_some(value <= most);
        Some(BenchTarget { target: target.into(), measured: format!("{value:.2}"), met })
    }

    fn work(&self, row: &Row) -> String {
        let Row { readers, chunk_records, directory, .. } = *row;
        let what = match row.pattern {
            Pattern::Whole => "read all of a file",
            Pattern::Global => "each read a part of a file",
            Pattern::Random => "read records of a file at random",
            Pattern::Write => "each write a file",
        };
        let fault = match row.fault {
            Fault::None => "",
            Fault::Dead => ", the store of n8 being dead",
            Fault::Slow => ", the link of n8 carrying 1 Mbit/s",
        };
        let layout =
            DIRECTORIES.iter().find(|(name, _)| *name == directory).map_or(&[][..], |(_, words)| words);
        format!("{readers} {what} ({}) in chunks of {chunk_records} records{fault}", layout.join(" "))
    }

    /// The bytes that all readers move.
    fn bytes(&self, row: &Row) -> u64 {
        let readers = u64::from(row.readers);
        match row.pattern {
            Pattern::Whole | Pattern::Write => readers * self.file_bytes,
            Pattern::Global => readers * self.part(row),
            Pattern::Random => readers * self.random_bytes(row),
        }
    }

    /// The part that each reads of a shared file.
    fn part(&self, row: &Row) -> u64 {
        let chunk = row.chunk_records * RECORD_BYTES;
        (self.file_bytes / u64::from(row.readers) / chunk).max(1) * chunk
    }

    fn random_bytes(&self, row: &Row) -> u64 {
        let chunk = row.chunk_records * RECORD_BYTES;
        (self.random_bytes / chunk).max(1) * chunk
    }

    /// The tasks of a row; `file` names the file for each reader.
    fn tasks(&self, row: &Row, file: impl Fn(u32) -> String) -> Vec<Task> {
        let task = |host: u32| {
            let (how, first, bytes) = match row.pattern {
                Pattern::Whole => (How::Read, 0, self.file_bytes),
                Pattern::Global => (How::Read, u64::from(host - 1) * self.part(row), self.part(row)),
                Pattern::Random => (How::Random, self.file_bytes, self.random_bytes(row)),
                Pattern::Write => (How::Write, 0, self.file_bytes),
            };
            let chunk_bytes = row.chunk_records * RECORD_BYTES;
            Task { how, host: Some(host), file: file(host), chunk_bytes, first, bytes }
        };
        (1..=row.readers).map(task).collect()
    }

    /// One run through mounts.
    fn ours(&self, row: &Row, round: usize) -> Result<Run> {
        self.through_mounts(row, round, &[])
    }

    /// One run through mounts with these flags.
    fn through_mounts(&self, row: &Row, round: usize, flags: &[&str]) -> Result<Run> {
        let mounts = self.volume.mount(row.readers, flags)?;
        self.dir.cool()?;
        let tasks = self.tasks(row, |host| {
            let name = match row.pattern {
                Pattern::Write => format!("written-{round}-{host}"),
                _ => "records".into(),
            };
            mounts.at(host).join(row.directory).join(name).display().to_string()
        });
        if row.beside.contains(&AGAIN) {
            self.access.run(Some(self.lab), &tasks)?;
        }
        let processes: Vec<u32> =
            (1..=HOSTS).map(|host| self.lab.host(host).pid).chain(mounts.ids()).collect();
        let cpu = || processes.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
        let (before, carried) = (cpu(), self.lab.carried(1..=HOSTS));
        let moved = self.access.run(Some(self.lab), &tasks)?;
        let crossed = self.lab.carried(1..=HOSTS).since(carried).bytes;
        Ok(Run { moved, cpu_seconds: cpu() - before, crossed })
    }

    /// One run of a row's rival or variant, if it is available.
    fn beside(&self, row: &Row, who: &str, round: usize) -> Result<Option<Run>> {
        let alone = Row { beside: &[], ..*row };
        let nfs = |cache| {
            let Some(nfs) = &self.nfs else { return Ok(None) };
            self.dir.cool()?;
            let url = nfs.url("records", cache);
            let moved = self.access.run(Some(self.lab), &self.tasks(row, |_| url.clone()))?;
            Ok(Some(Run { moved, ..Run::default() }))
        };
        match who {
            NFS => nfs(true),
            NFS_PLAIN => nfs(false),
            LARGE_CHUNKS => self.ours(&Row { chunk_records: LARGE, ..alone }, round).map(Some),
            HEALTHY => self.ours(row, round).map(Some),
            PLAIN => self.through_mounts(&alone, round, &["--cache", "0"]).map(Some),
            AGAIN => self.ours(&alone, round).map(Some),
            _ => Err(Error::Failed(format!("nobody knows what '{who}' is"))),
        }
    }

    /// The time that the links need, if iperf3 is installed.
    fn ideal(&self, row: &Row) -> Result<Option<f64>> {
        if self.iperf.is_none() || row.targets.is_empty() {
            return Ok(None);
        }
        let over_link =
            self.bytes(row) as f64 / f64::from(row.readers) * f64::from(HOSTS - 1) / f64::from(HOSTS);
        Ok(Some(over_link / iperf_one_way(self.lab)?))
    }

    /// Runs with the store of n8 in this state.
    fn with_fault<T>(&self, fault: Fault, run: impl FnOnce() -> Result<T>) -> Result<T> {
        match fault {
            Fault::None => run(),
            Fault::Dead => {
                let program = &self.asked.options.program;
                self.lab.script(program, "kill", &["n8"])?;
                let ran = run();
                self.lab.script(program, "revive", &["n8"])?;
                ran
            }
            Fault::Slow => {
                self.lab.shape(HOSTS, SLOW)?;
                let ran = run();
                self.lab.shape(HOSTS, NARROW[1])?;
                ran
            }
        }
    }
}
