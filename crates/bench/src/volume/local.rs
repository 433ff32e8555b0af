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
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::Usage;

use super::access::{Access, How, Moved, Task};
use super::mounts::{Mounts, NAME};
use crate::contenders::judge;
use crate::data_dir::DataDir;
use crate::floor::{Fio, Replays};
use crate::lab::cpu_seconds;
use crate::measure::{Series, whole_process};
use crate::table::traffic;
use crate::targets::{Target, Than};
use crate::{Asked, Error, Result, failed};

/// Names of the rows.
pub(super) const NAMES: [&str; 6] =
    ["mount-write", "mount-read", "mount-random", "mount-small", "library-write", "library-read"];
/// Bytes for each byte of `--size`.
const SCALE: u64 = 4;
/// The number of small files for a `--size` of 1 GB, and the bytes of each.
const SMALL: (u64, u64) = (20_000, 1000);
const RANDOM_CHUNK: u64 = 4096;
const CHUNK: u64 = 1 << 20;
/// Threads of a program that uses the library.
const THREADS: u64 = 4;
const STORES: u32 = 4;
const NULL: &str = "null FUSE";
/// Other file systems, by their names in `peers`.
const PEERS: [&str; 2] = ["gluster", "moosefs"];

/// Measures the rows that are asked for.
pub(super) fn measure(
    asked: &Asked<'_>,
    dir: &DataDir,
    access: &Access,
    report: &mut BenchReport,
) -> Result<()> {
    if !NAMES.iter().any(|name| asked.wants(name)) {
        return Ok(());
    }
    let mut notes = Vec::new();
    let bench = Bench::prepare(asked, dir, access, &mut notes)?;
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
        notes: &mut Vec<String>,
    ) -> Result<Bench<'a>> {
        let bytes = (asked.bytes * SCALE / CHUNK).max(2 * THREADS) * CHUNK;
        // The volume, the file for fio, and one file of each peer.
        dir.need(bytes * 5)?;
        let mut or_noted = |what: std::result::Result<PathBuf, String>| {
            what.map_err(|why| notes.push(format!("left out: {why}"))).ok()
        };
        let null = or_noted(null_fs(dir.path()));
        let mut peers = Vec::new();
        if asked.options.rivals {
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
        let (is_library, is_sequential) =
            (name.starts_with("library"), !name.ends_with("random") && !name.ends_with("small"));
        let bytes = match name {
            "mount-small" => 2 * self.small * SMALL.1,
            "mount-random" => self.random_bytes(),
            _ => self.bytes,
        };
        let work = match name {
            "mount-small" => {
                format!("{} files of {} bytes made, inspected, read and removed", self.small, SMALL.1)
            }
            "mount-random" => format!("{} at random, 4 KiB each, of {}", traffic(bytes), traffic(self.bytes)),
            _ => format!("{} in one file", traffic(bytes)),
        };
        let mut row = BenchRow { name: name.into(), work, bytes, ..BenchRow::default() };
        let (mut ours, mut null) = (Series::default(), Series::default());
        let mut peers: Vec<Series> = self.peers.iter().map(|_| Series::default()).collect();
        let mut floor =
            self.fio.as_ref().filter(|_| is_sequential).map(|fio| Replays::new(fio, vec![self.phase(name)]));
        let mut p99_us = 0;
        for _ in 0..self.asked.runs {
            self.asked.should_continue()?;
            let (moved, cpu_seconds) = if is_library { self.library(name)? } else { self.mounted(name)? };
            p99_us = p99_us.max(moved.p99_us);
            ours.add(moved.seconds, Usage { cpu_seconds, ..Usage::default() });
            if !is_library {
                for (peer, series) in self.peers.iter().zip(&mut peers) {
                    self.dir.cool()?;
                    peer.cool()?;
                    series.add(
                        self.access.run(None, &[self.task(name, &peer.mnt())?])?.seconds,
                        Usage::default(),
                    );
                }
                if let Some(program) = self.null.as_ref().filter(|_| is_sequential) {
                    null.add(self.on_null(program, name)?.seconds, Usage::default());
                }
            }
            if let Some(floor) = &mut floor {
                floor.once("floor-input")?;
            }
        }
        row.ours = ours.measure();
        row.floor = floor.map(Replays::floor);
        row.notes.push(format!("p99 of a request {p99_us} us"));
        for (peer, series) in self.peers.iter().zip(peers).filter(|(_, series)| !series.is_empty()) {
            row.others.push(BenchOther::measured(peer.name, series.measure()));
        }
        if !null.is_empty() {
            row.others.push(BenchOther::measured(NULL, null.measure()));
        }
        let targets: &[Target] = match name {
            "mount-write" | "mount-read" => {
                &[Target::Faster { than: Than::BestOf(&PEERS), times: 2.0, or_floor: None }]
            }
            "mount-small" => &[Target::Faster { than: Than::BestOf(&PEERS), times: 1.0, or_floor: None }],
            "library-write" | "library-read" => &[Target::WallOfFloor(1.0 / 0.85)],
            _ => &[],
        };
        judge(&mut row, targets, self.asked.tiny);
        if is_sequential && !is_library {
            let target = of_slower(&row, 0.6);
            row.targets.push(BenchTarget { met: target.met.filter(|_| !self.asked.tiny), ..target });
        }
        Ok(row)
    }

    fn random_bytes(&self) -> u64 {
        (self.bytes / 256 / RANDOM_CHUNK).max(10) * RANDOM_CHUNK
    }

    fn phase(&self, name: &str) -> BenchPhase {
        let depth = 4;
        if name.ends_with("write") {
            BenchPhase { written_bytes: self.bytes, depth, ..BenchPhase::default() }
        } else {
            BenchPhase { read_bytes: self.bytes, depth, ..BenchPhase::default() }
        }
    }

    /// The work of a row in a mounted file system. The order of the rows ensures that files are written before reads.
    fn task(&self, name: &str, mnt: &Path) -> Result<Task> {
        let file = mnt.join("file").display().to_string();
        let task = |how, chunk_bytes, first, bytes| Task {
            how,
            host: None,
            file: file.clone(),
            chunk_bytes,
            first,
            bytes,
        };
        if !name.ends_with("write") && !name.ends_with("small") && !Path::new(&file).exists() {
            self.access.run(None, &[task(How::Write, CHUNK, 0, self.bytes)])?;
        }
        Ok(match name {
            "mount-write" => task(How::Write, CHUNK, 0, self.bytes),
            "mount-read" => task(How::Read, CHUNK, 0, self.bytes),
            "mount-random" => task(How::Random, RANDOM_CHUNK, self.bytes, self.random_bytes()),
            _ => {
                let small = mnt.join("small");
                std::fs::create_dir_all(&small).map_err(|e| failed("make", &small, &e))?;
                Task { file: small.display().to_string(), ..task(How::Small, SMALL.1, 0, self.small) }
            }
        })
    }

    fn mounted(&self, name: &str) -> Result<(Moved, f64)> {
        // The files that a row needs are created in a mount of their own.
        let at = {
            let mounts = self.mount()?;
            self.task(name, mounts.at(1))?;
            mounts.at(1).to_path_buf()
        };
        let mounts = self.mount()?;
        self.dir.cool()?;
        let cpu = || mounts.ids().map(cpu_seconds).sum::<f64>();
        let before = cpu();
        let moved = self.access.run(None, &[self.task(name, &at)?])?;
        Ok((moved, cpu() - before))
    }

    fn on_null(&self, program: &Path, name: &str) -> Result<Moved> {
        let at = self.dir.path().join("null");
        std::fs::create_dir_all(&at).map_err(|e| failed("make", &at, &e))?;
        let mounts = Mounts::one(&at, Command::new(program).arg(&at))?;
        self.access.run(None, &[self.task(name, mounts.at(1))?])
    }

    /// Writes or reads a file in threads of this process.
    fn library(&self, name: &str) -> Result<(Moved, f64)> {
        let path = Path::new("/library");
        let registry = Registry::at(self.dir.path().join("settings/thalweg/volumes.json"));
        let told = |why: volume::Error| Error::Failed(why.to_string());
        let volume = Volume::open_of(&registry, NAME).map_err(told)?;
        let writes = name.ends_with("write");
        if !writes && volume.stat(path).is_err() {
            side_by_side(&volume, path, self.bytes, true).map_err(told)?;
        }
        self.dir.cool()?;
        let (watch, before) = (Stopwatch::start(), cpu_seconds(std::process::id()));
        side_by_side(&volume, path, self.bytes, writes).map_err(told)?;
        let moved = Moved { seconds: watch.seconds(), bytes: self.bytes, p99_us: 0 };
        Ok((moved, cpu_seconds(std::process::id()) - before))
    }
}

/// Each thread moves every fourth chunk of a file. Written data is durable at the end.
fn side_by_side(volume: &Volume, path: &Path, bytes: u64, writes: bool) -> volume::Result<()> {
    let file = volume.create(path)?;
    let each = |thread: u64| -> volume::Result<()> {
        let mut chunk = vec![thread as u8; CHUNK as usize];
        for at in (0..bytes / CHUNK).skip(thread as usize).step_by(THREADS as usize) {
            if writes {
                file.write_at(at * CHUNK, &chunk)?;
            } else {
                file.read_at(at * CHUNK, &mut chunk)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || each(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    if writes { file.sync() } else { Ok(()) }
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
