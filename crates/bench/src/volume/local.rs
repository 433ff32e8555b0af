//! A volume of four directories on this machine, mounted or opened in this process, compared with other file systems.
//!
//! Model: the floor is the slower of two: the disk, as fio reads and writes it with direct I/O, and, for a mount, a
//! FUSE file system that has no data (`bench/rivals/volume/nullfs.c`). GlusterFS and MooseFS have four directories too.
//! Non-goals: installing rivals; `bench/rivals/volume/peers` starts and ends them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thalweg::Volume;
use thalweg::volume::{self, Registry};
use thalweg_api::{BenchOther, BenchPhase, BenchReport, BenchRow, BenchTarget};
use thalweg_io::process::Usage;

use super::access::{Access, How, Moved, Task};
use super::library;
use super::mounts::{Mounts, NAME};
use crate::lab::cpu_seconds;
use thalweg_measure::contenders::judge;
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::floor::{Fio, Replays};
use thalweg_measure::process::{Series, median, whole_process};
use thalweg_measure::table::traffic;
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Asked, Error, Result, failed};

/// Names of the rows.
pub(super) const NAMES: [&str; 8] = [
    "mount-write",
    "mount-read",
    "mount-random",
    "mount-small",
    "library-write",
    "library-read",
    "library-random",
    "library-small",
];
/// Bytes for each byte of `--size`.
const SCALE: u64 = 4;
/// The number of small files for a `--size` of 1 GB, and the bytes of each.
pub(super) const SMALL: (u64, u64) = (20_000, 1000);
pub(super) const RANDOM_CHUNK: u64 = 4096;
pub(super) const CHUNK: u64 = 1 << 20;
const STORES: u32 = 4;
const NULL: &str = "null FUSE";
/// A directory of the file system that has the stores.
const LOCAL: &str = "local directory";
/// The rate at which one thread is to make small files.
const MADE_PER_SECOND: f64 = 2000.0;
/// Other file systems, by their names in `peers`.
const PEERS: [&str; 2] = ["gluster", "moosefs"];

/// The work of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Write,
    Read,
    Random,
    Small,
}

impl What {
    fn of(name: &str) -> What {
        match name.rsplit('-').next() {
            Some("write") => What::Write,
            Some("read") => What::Read,
            Some("random") => What::Random,
            _ => What::Small,
        }
    }

    fn is_sequential(self) -> bool {
        matches!(self, What::Write | What::Read)
    }
}

/// All runs of one file system.
#[derive(Default)]
struct Runs {
    series: Series,
    p99_us: u32,
    made_seconds: Vec<f64>,
}

impl Runs {
    fn first(moved: Moved) -> Runs {
        let mut runs = Runs::default();
        runs.add(moved, 0.0);
        runs
    }

    fn add(&mut self, moved: Moved, cpu_seconds: f64) {
        self.series.add(moved.seconds, Usage { cpu_seconds, ..Usage::default() });
        self.p99_us = self.p99_us.max(moved.p99_us);
        self.made_seconds.push(moved.made_seconds);
    }

    /// The p99 of a request, and the rate at which small files were made.
    fn note(&self, who: &str, files: u64) -> Option<String> {
        let made_seconds = median(&self.made_seconds);
        let made =
            (made_seconds > 0.0).then(|| format!(", {:.0} files made a second", files as f64 / made_seconds));
        let made = made.unwrap_or_default();
        (self.p99_us > 0).then(|| format!("{who}: p99 of a request {} us{made}", self.p99_us))
    }

    fn made_per_second(&self, files: u64) -> BenchTarget {
        let rate = files as f64 / median(&self.made_seconds);
        BenchTarget {
            target: format!("files made a second >= {MADE_PER_SECOND}"),
            measured: format!("{rate:.0}"),
            met: Some(rate >= MADE_PER_SECOND),
        }
    }
}

/// Measures the rows that are asked for.
pub(super) fn measure(
    asked: &Asked<'_>,
    dir: &DataDir,
    access: &Access,
    rivals: bool,
    report: &mut BenchReport,
) -> Result<()> {
    if !NAMES.iter().any(|name| asked.wants(name)) {
        return Ok(());
    }
    let mut notes = Vec::new();
    let bench = Bench::prepare(asked, dir, access, rivals, &mut notes)?;
    for name in NAMES.into_iter().filter(|name| asked.wants(name)) {
        asked.progress.begin(name, 0, 0, 0);
        report.rows.push(bench.measured(name)?);
    }
    report.notes.extend(notes);
    Ok(())
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    access: &'a Access,
    fio: Option<Fio>,
    null: Option<PathBuf>,
    peers: Vec<Peer>,
    bytes: u64,
    small: u64,
}

impl<'a> Bench<'a> {
    fn prepare(
        asked: &'a Asked<'a>,
        dir: &'a DataDir,
        access: &'a Access,
        rivals: bool,
        notes: &mut Vec<String>,
    ) -> Result<Bench<'a>> {
        let bytes = (asked.bytes * SCALE / CHUNK).max(2 * library::THREADS) * CHUNK;
        // Two files in the volume, one for fio, one in a local directory, and one of each peer.
        dir.need(bytes * 6)?;
        let mut or_noted = |what: std::result::Result<PathBuf, String>| {
            what.map_err(|why| notes.push(format!("left out: {why}"))).ok()
        };
        let null = or_noted(null_fs(dir.path()));
        let mut peers = Vec::new();
        if rivals {
            for name in PEERS {
                match Peer::start(name, &dir.path().join(name)) {
                    Ok(peer) => peers.push(peer),
                    Err(why) => notes.push(format!("left out: {name}: {why}")),
                }
            }
        }
        let fio = Fio::find(dir.path()).map_err(|why| notes.push(why)).ok();
        let small = (SMALL.0 * asked.bytes / 1_000_000_000).max(10);
        let bench = Bench { asked, dir, access, fio, null, peers, bytes, small };
        let stores: Vec<String> =
            (1..=STORES).map(|i| dir.path().join(format!("store{i}")).display().to_string()).collect();
        for store in &stores {
            std::fs::create_dir(store).map_err(|e| failed("make", Path::new(store), &e))?;
        }
        let mut create = bench.command();
        whole_process(create.args(["volume", "create", NAME, "--stores", &stores.join(",")]))?;
        Ok(bench)
    }

    /// Our command, with a registry of its own.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.asked.options.program);
        command.env("XDG_CONFIG_HOME", self.dir.path().join("settings"));
        command
    }

    fn mount(&self) -> Result<Mounts> {
        let at = self.dir.path().join("mnt");
        std::fs::create_dir_all(&at).map_err(|e| failed("make", &at, &e))?;
        let mut command = self.command();
        command.args(["mount", NAME]).arg(&at);
        Mounts::one(&at, &mut command)
    }

    fn measured(&self, name: &str) -> Result<BenchRow> {
        let (is_library, what) = (name.starts_with("library"), What::of(name));
        let (bytes, work) = match what {
            What::Small => (
                2 * self.small * SMALL.1,
                format!("{} files of {} bytes made, inspected, read and removed", self.small, SMALL.1),
            ),
            What::Random => {
                let bytes = self.random_bytes();
                (bytes, format!("{} at random, 4 KiB each, of {}", traffic(bytes), traffic(self.bytes)))
            }
            What::Write | What::Read => (self.bytes, format!("{} in one file", traffic(self.bytes))),
        };
        let mut row = BenchRow { name: name.into(), work, bytes, ..BenchRow::default() };
        let mut ours = Runs::default();
        let mut others: Vec<(&str, Runs)> = Vec::new();
        let fio = self.fio.as_ref().filter(|_| what.is_sequential());
        let mut floor = fio.map(|fio| Replays::new(fio, vec![self.phase(what)]));
        for _ in 0..self.asked.runs {
            self.asked.should_continue()?;
            let (moved, cpu_seconds) = if is_library { self.library(what)? } else { self.mounted(what)? };
            ours.add(moved, cpu_seconds);
            let beside = if is_library { Vec::new() } else { self.beside(what)? };
            for (who, moved) in beside {
                match others.iter_mut().find(|(name, _)| *name == who) {
                    Some((_, runs)) => runs.add(moved, 0.0),
                    None => others.push((who, Runs::first(moved))),
                }
            }
            if let Some(floor) = &mut floor {
                floor.once("floor-input")?;
            }
        }
        row.notes.extend(ours.note("ours", self.small));
        row.notes.extend(others.iter().filter_map(|(who, runs)| runs.note(who, self.small)));
        let made = ours.made_per_second(self.small);
        row.ours = ours.series.measure();
        row.floor = floor.map(Replays::floor);
        let measured = |(who, runs): (&str, Runs)| BenchOther::measured(who, runs.series.measure());
        row.others.extend(others.into_iter().map(measured));
        let targets: &[Target] = match (is_library, what) {
            (false, What::Write | What::Read) => {
                &[Target::Faster { than: Than::BestOf(&PEERS), times: 2.0, or_floor: None }]
            }
            (false, What::Small) => {
                &[Target::Faster { than: Than::BestOf(&PEERS), times: 1.0, or_floor: None }]
            }
            (true, What::Write | What::Read) => &[Target::WallOfFloor(1.0 / 0.85)],
            _ => &[],
        };
        judge(&mut row, targets, self.asked.tiny);
        let more = match (is_library, what) {
            (false, What::Write | What::Read) => Some(of_slower(&row, 0.6)),
            (_, What::Small) => Some(made),
            _ => None,
        };
        let more = more.map(|more| BenchTarget { met: more.met.filter(|_| !self.asked.tiny), ..more });
        row.targets.extend(more);
        Ok(row)
    }

    /// The same work on other file systems, each with its name.
    fn beside(&self, what: What) -> Result<Vec<(&'static str, Moved)>> {
        let mut all = Vec::new();
        for peer in &self.peers {
            let task = self.task(what, &peer.mnt())?;
            self.dir.cool()?;
            peer.cool()?;
            all.push((peer.name, self.access.run(None, &[task])?));
        }
        match (&self.null, what) {
            (Some(program), What::Write | What::Read) => all.push((NULL, self.on_null(program, what)?)),
            (_, What::Small | What::Random) => {
                let at = self.dir.path().join("local");
                std::fs::create_dir_all(&at).map_err(|e| failed("make", &at, &e))?;
                let task = self.task(what, &at)?;
                self.dir.cool()?;
                all.push((LOCAL, self.access.run(None, &[task])?));
            }
            _ => {}
        }
        Ok(all)
    }

    fn random_bytes(&self) -> u64 {
        (self.bytes / 256 / RANDOM_CHUNK).max(10) * RANDOM_CHUNK
    }

    fn phase(&self, what: What) -> BenchPhase {
        let depth = 4;
        if what == What::Write {
            BenchPhase { written_bytes: self.bytes, depth, ..BenchPhase::default() }
        } else {
            BenchPhase { read_bytes: self.bytes, depth, ..BenchPhase::default() }
        }
    }

    /// The work of a row in a mounted file system. A file that is read is written before.
    fn task(&self, what: What, mnt: &Path) -> Result<Task> {
        let file = mnt.join("file").display().to_string();
        let task = |how, chunk_bytes, first, bytes| Task {
            how,
            host: None,
            file: file.clone(),
            chunk_bytes,
            first,
            bytes,
        };
        if matches!(what, What::Read | What::Random) && !Path::new(&file).exists() {
            self.access.run(None, &[task(How::Write, CHUNK, 0, self.bytes)])?;
        }
        Ok(match what {
            What::Write => task(How::Write, CHUNK, 0, self.bytes),
            What::Read => task(How::Read, CHUNK, 0, self.bytes),
            What::Random => task(How::Random, RANDOM_CHUNK, self.bytes, self.random_bytes()),
            What::Small => {
                let small = mnt.join("small");
                std::fs::create_dir_all(&small).map_err(|e| failed("make", &small, &e))?;
                Task { file: small.display().to_string(), ..task(How::Small, SMALL.1, 0, self.small) }
            }
        })
    }

    fn mounted(&self, what: What) -> Result<(Moved, f64)> {
        // The files that a row needs are created in a mount of their own.
        let at = {
            let mounts = self.mount()?;
            self.task(what, mounts.at(1))?;
            mounts.at(1).to_path_buf()
        };
        let mounts = self.mount()?;
        self.dir.cool()?;
        let cpu = || mounts.ids().map(cpu_seconds).sum::<f64>();
        let before = cpu();
        let moved = self.access.run(None, &[self.task(what, &at)?])?;
        Ok((moved, cpu() - before))
    }

    fn on_null(&self, program: &Path, what: What) -> Result<Moved> {
        let at = self.dir.path().join("null");
        std::fs::create_dir_all(&at).map_err(|e| failed("make", &at, &e))?;
        let mounts = Mounts::one(&at, Command::new(program).arg(&at))?;
        self.access.run(None, &[self.task(what, mounts.at(1))?])
    }

    /// The work of a row in threads of this process.
    fn library(&self, what: What) -> Result<(Moved, f64)> {
        let path = Path::new("/library");
        let registry = Registry::at(self.dir.path().join("settings/thalweg/volumes.json"));
        let told = |why: volume::Error| Error::Failed(why.to_string());
        let volume = Volume::open_of(&registry, NAME).map_err(told)?;
        if matches!(what, What::Read | What::Random) && volume.stat(path).is_err() {
            library::sequential(&volume, path, self.bytes, true).map_err(told)?;
        }
        self.dir.cool()?;
        let before = cpu_seconds(std::process::id());
        let moved = match what {
            What::Write => library::sequential(&volume, path, self.bytes, true),
            What::Read => library::sequential(&volume, path, self.bytes, false),
            What::Random => library::random(&volume, path, self.bytes, self.random_bytes()),
            What::Small => library::small(&volume, self.small),
        };
        let moved = moved.map_err(told)?;
        Ok((moved, cpu_seconds(std::process::id()) - before))
    }
}

/// The target of a mount: a minimum rate relative to the slower of the disk and a FUSE file system without data.
fn of_slower(row: &BenchRow, least: f64) -> BenchTarget {
    let null = row.others.iter().find(|other| other.name == NULL).and_then(|other| other.measure.as_ref());
    let ratio =
        row.floor.as_ref().zip(null).map(|(disk, null)| disk.seconds.max(null.seconds) / row.ours.seconds);
    BenchTarget {
        target: format!(">= {least} x the slower of the disk and {NULL}"),
        measured: ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        met: ratio.map(|ratio| ratio >= least),
    }
}

/// Compiles the FUSE file system without data, or says why not.
fn null_fs(dir: &Path) -> std::result::Result<PathBuf, String> {
    let program = dir.join("nullfs");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "bench/rivals/volume/nullfs.c", "-I/usr/include/fuse3", "-lfuse3", "-o"]).arg(&program);
    match cc.stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(program),
        _ => Err(format!("{NULL}: no libfuse (apt-get install libfuse3-dev gcc)")),
    }
}

/// Another file system, stopped when this is dropped.
struct Peer {
    name: &'static str,
    dir: PathBuf,
}

impl Peer {
    fn start(name: &'static str, dir: &Path) -> std::result::Result<Peer, String> {
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let peer = Peer { name, dir: dir.to_path_buf() };
        peer.script("up").map(|()| peer).map_err(|why| why.to_string())
    }

    fn script(&self, what: &str) -> Result<()> {
        let mut script = Command::new("bench/rivals/volume/peers");
        // Servers that keep running would keep its pipes open.
        script.args([what, self.name]).arg(&self.dir).stdin(Stdio::null());
        let log = std::fs::File::create(self.dir.join("log")).map_err(|e| failed("make", &self.dir, &e))?;
        let told = log.try_clone().map_err(|e| failed("make", &self.dir, &e))?;
        let status = script.stdout(log).stderr(told).status();
        let said = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Error::Failed(said.trim().lines().last().unwrap_or("it failed").into())),
            Err(e) => Err(Error::Failed(format!("bench/rivals/volume/peers cannot be run: {e}"))),
        }
    }

    /// Drops the caches of its mount.
    fn cool(&self) -> Result<()> {
        self.script("cool")
    }

    fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.script("down");
    }
}
