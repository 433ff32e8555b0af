//! `bench pump`: transfers on one host, each compared with its floor and its rivals.
//!
//! Model: sources are created once. Contenders run in turn, round by round, each as a process of its own with cold
//! caches, until its output is durable. The time of a rival therefore includes a `sync`, which ours does itself.
//! Invariant: the output of each contender is compared with the source in the first round.
//! Invariant: outputs of many files stay until all rows are done. Before ext4 reuses an inode number, it looks at all
//! those that were freed in the last minutes: writing 100,000 files after removing as many took 7 to 35 s instead of 4.

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_api::{BenchPhase, BenchReport, BenchRow};
use thalweg_io::process::Usage;

use crate::contenders::{self, Contender, finish};
use crate::data::Data;
use crate::data_dir::DataDir;
use crate::floor::{Fio, Replays};
use crate::process::{Series, whole_process};
use crate::table::traffic;
use crate::targets::{Target, Than};
use crate::{Asked, digest, failed, lower_bound};
use crate::{Error, Result};

/// Bytes of a small file.
pub const SMALL_BYTES: u64 = 4096;
/// This many bytes of `--size` stand for one small file: `--size 4GB` has 100,000 files.
const BYTES_FOR_A_FILE: u64 = 40_000;
/// The reads that fio has in flight, and the writes: as many as two of our streams.
const DEPTH: u32 = 32;
/// The files of a directory.
const FILES_OF_A_DIRECTORY: u64 = 1000;

/// One row.
struct Row {
    name: &'static str,
    what: What,
    /// Further flags for our command line.
    words: &'static [&'static str],
    beside: &'static [Beside],
    targets: &'static [Target],
}

/// The data to move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// One file, disk to disk.
    File,
    /// Many of 4 KiB.
    Files,
    /// Memory to nowhere.
    Memory,
}

impl What {
    /// What the lower bound measures, as the line below the row says it.
    fn lower_bound(self) -> &'static str {
        match self {
            What::Files => "the system calls alone",
            What::File | What::Memory => "fio reading alone",
        }
    }
}

/// The comparison of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// fio, reading one file while it writes another.
    Floor,
    /// The lower bound of the disk and the kernel, shown in a line below the row.
    LowerBound,
    /// A program, by a line of shell in which `$1` is the source and `$2` the output.
    Shell(&'static str, &'static str),
    /// Our program with other arguments.
    Otherwise(&'static str, &'static [&'static str]),
}

const CP: Beside = Beside::Shell("cp + sync", r#"cp -a "$1" "$2" && sync -f "$2""#);
const RSYNC: &str = "rsync + sync";
const RSYNCED: Beside = Beside::Shell(RSYNC, r#"rsync -a "$1" "$2" && sync -f "$2""#);
/// The flag that leaves out checksums.
pub const UNSUMMED: &str = "--no-checksum";

/// The rows. Those of many files come last, because they slow down whatever creates files next.
const ROWS: &[Row] = &[
    Row {
        name: "disk",
        what: What::File,
        words: &[],
        beside: &[Beside::Floor, Beside::LowerBound, CP, RSYNCED],
        targets: &[
            Target::WallOfFloor(1.053),
            Target::Faster { than: Than::BestRival, times: 1.5, or_floor: None },
            Target::LessCpu { than: Than::BestRival, times: 1.333 },
        ],
    },
    Row {
        name: "threads",
        what: What::File,
        words: &["--io", "threads"],
        beside: &[Beside::Otherwise("--io uring", &["--io", "uring"])],
        targets: &[Target::NoSlower { than: "--io uring", times: 1.15 }],
    },
    Row {
        name: "checksum",
        what: What::File,
        words: &[],
        beside: &[Beside::Otherwise(UNSUMMED, &[UNSUMMED])],
        targets: &[Target::NoSlower { than: UNSUMMED, times: 1.05 }],
    },
    Row {
        name: "no-disk",
        what: What::Memory,
        words: &["--streams", "1"],
        beside: &[Beside::Otherwise(UNSUMMED, &["--streams", "1", UNSUMMED])],
        targets: &[Target::ClocksPerByte(2.5)],
    },
    Row {
        name: "small",
        what: What::Files,
        words: &[],
        beside: &[Beside::LowerBound, RSYNCED, CP],
        targets: &[Target::Faster { than: Than::Named(RSYNC), times: 3.0, or_floor: None }],
    },
];

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// Measures the rows that are asked for.
pub(crate) fn measure(asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
    let fio = Fio::find(dir.path()).map_err(|why| report.notes.push(why)).ok();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| asked.wants(row.name)).collect();
    let bench = Bench { asked, dir, fio };
    for (i, row) in rows.iter().enumerate() {
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        let measured = bench.row(row);
        asked.should_continue()?;
        report.rows.push(measured.unwrap_or_else(|error| {
            contenders::failed(bench.unmeasured(row), row.targets, plain(dir, &error))
        }));
    }
    Ok(())
}

/// The text of an error without the path of the benchmark's directory, which must not appear in results.
pub fn plain(dir: &DataDir, error: &Error) -> String {
    error.to_string().replace(&format!("{}/", dir.path().display()), "")
}

/// The number of small files for a `--size`.
pub fn files(asked: &Asked<'_>) -> u64 {
    (asked.bytes / BYTES_FOR_A_FILE).max(1)
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    fio: Option<Fio>,
}

#[derive(Clone, Copy)]
enum Who {
    Ours(&'static [&'static str]),
    Shell(&'static str),
}

/// The data of a row, and the order of its contenders.
pub struct Rounds<'a> {
    /// What was asked for.
    pub asked: &'a Asked<'a>,
    /// Where the data is.
    pub dir: &'a DataDir,
    /// What measures the floor, if the row has one.
    pub fio: Option<&'a Fio>,
    /// The data to move.
    pub what: What,
    /// Where it comes from.
    pub source: &'a Path,
}

impl Rounds<'_> {
    /// Runs all contenders in each round, ours first, then the floor and `after`. `run` moves the source to the output
    /// that it is given.
    pub fn run<W>(
        &self,
        row: &mut BenchRow,
        contenders: &mut [Contender<W>],
        mut run: impl FnMut(&W, &Path, &mut BenchRow) -> Result<(f64, Usage)>,
        mut after: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let phase =
            BenchPhase { read_bytes: row.bytes, written_bytes: row.bytes, depth: DEPTH, seconds: 0.0 };
        let mut replays = self.fio.map(|fio| Replays::new(fio, vec![phase]));
        for round in 0..self.asked.runs {
            for (i, contender) in contenders.iter_mut().enumerate().filter(|(_, who)| who.note.is_empty()) {
                self.asked.should_continue()?;
                let output = self.output(row, &contender.name, round);
                if self.what != What::Memory {
                    self.dir.cool()?;
                }
                match run(&contender.who, &output, row) {
                    Ok((seconds, usage)) => contender.series.add(seconds, usage),
                    Err(error) if i == 0 => return Err(error),
                    Err(error) => contender.note = plain(self.dir, &error),
                }
                if round == 0 && self.what != What::Memory && contender.note.is_empty() {
                    let right = is_same(self.what, self.source, &output, row)?;
                    contender.right = Some(right);
                    if !right {
                        contender.note = "its output differs from the source".to_string();
                    }
                }
                // Outputs of many files stay: see the head of this file.
                if self.what == What::File {
                    remove(&output)?;
                }
            }
            if let Some(replays) = replays.as_mut().filter(|_| round == 0 || !self.asked.tiny) {
                self.dir.cool()?;
                replays.once(&Data::Binary.name())?;
            }
            after(round)?;
        }
        row.floor = replays.map(Replays::floor);
        Ok(())
    }

    fn output(&self, row: &BenchRow, contender: &str, round: usize) -> PathBuf {
        self.dir.path().join(match self.what {
            What::Files => format!("moved-{}-{}-{round}", row.name, contender.replace(' ', "")),
            What::File | What::Memory => "moved".to_string(),
        })
    }
}

impl Bench<'_> {
    fn row(&self, row: &Row) -> Result<BenchRow> {
        let outputs = self.asked.runs as u64 * (1 + row.beside.len() as u64);
        let source = source(self.asked, self.dir, row.what, outputs)?;
        let mut measured = self.unmeasured(row);
        let mut contenders = vec![Contender::new("thalweg", Who::Ours(row.words))];
        for beside in row.beside {
            contenders.extend(match *beside {
                Beside::Floor | Beside::LowerBound => None,
                Beside::Shell(name, line) => Some(Contender::new(name, Who::Shell(line))),
                Beside::Otherwise(name, words) => Some(Contender::new(name, Who::Ours(words))),
            });
        }
        let fio = self.fio.as_ref().filter(|_| row.beside.contains(&Beside::Floor));
        let rounds = Rounds { asked: self.asked, dir: self.dir, fio, what: row.what, source: &source };
        let mut bound = Series::default();
        rounds.run(
            &mut measured,
            &mut contenders,
            |who, output, _| self.run(row, *who, &source, output),
            |round| match row.beside.contains(&Beside::LowerBound) {
                true => self.lower_bound(row.what, &source, round, &mut bound),
                false => Ok(()),
            },
        )?;
        if !bound.is_empty() {
            let (what, measure) = (row.what.lower_bound(), bound.measure());
            let (seconds, cpu) = (measure.seconds, measure.cpu_seconds);
            measured.notes.push(format!("{what}: {seconds:.2} s, {cpu:.2} CPU-s"));
        }
        finish(&mut measured, contenders, row.targets, self.asked.tiny);
        Ok(measured)
    }

    /// Measures the lower bound.
    fn lower_bound(&self, what: What, source: &Path, round: usize, series: &mut Series) -> Result<()> {
        self.dir.cool()?;
        if what == What::File {
            let ended =
                self.fio.as_ref().map(|_| whole_process(&mut lower_bound::read(source, self.asked.bytes)));
            if let Some(ended) = ended.transpose()? {
                series.add(ended.seconds, ended.usage);
            }
            return Ok(());
        }
        let output = self.dir.path().join(format!("moved-alone-{round}"));
        let made = series.run(|| lower_bound::make_files(source, &output));
        made.map_err(|e| failed("make files in", &output, &e))
    }

    fn unmeasured(&self, row: &Row) -> BenchRow {
        let bytes = match row.what {
            What::Files => files(self.asked) * SMALL_BYTES,
            What::File | What::Memory => self.asked.bytes,
        };
        let work = match row.what {
            What::File => format!("{} disk to disk, durable", traffic(bytes)),
            What::Files => format!("{} files of 4 KiB, durable", files(self.asked)),
            What::Memory => format!("{} of noise, no disk, one stream", traffic(bytes)),
        };
        BenchRow { name: row.name.to_string(), work, bytes, ..BenchRow::default() }
    }

    fn run(&self, row: &Row, who: Who, source: &Path, output: &Path) -> Result<(f64, Usage)> {
        let mut command = match who {
            Who::Ours(words) => {
                let mut command = Command::new(&self.asked.options.program);
                command.arg("pump").args(["--json", "--progress", "never"]).args(words);
                match row.what {
                    What::Memory => command.arg("--no-disk").arg(self.asked.bytes.to_string()),
                    What::File | What::Files => command.arg(source).arg(output),
                };
                command
            }
            Who::Shell(line) => {
                let mut command = Command::new("sh");
                command.args(["-c", line, "sh"]);
                // Without a slash at the end of the source, rsync would create that directory inside the output.
                let source = if row.what == What::Files && line.starts_with("rsync") {
                    source.join("")
                } else {
                    source.to_path_buf()
                };
                command.arg(source).arg(output);
                command
            }
        };
        let ended = whole_process(&mut command)?;
        if let Who::Ours(_) = who {
            ended.pump_receipt()?;
        }
        Ok((ended.seconds, ended.usage))
    }
}

/// The source, created if it does not exist. For many files there must be space for this many outputs.
pub fn source(asked: &Asked<'_>, dir: &DataDir, what: What, outputs: u64) -> Result<PathBuf> {
    match what {
        What::Memory => Ok(PathBuf::new()),
        What::File => {
            let path = dir.path().join(Data::Binary.name());
            if !path.exists() {
                dir.need(asked.bytes * 3)?;
                Data::Binary.make(&path, asked.bytes)?;
            }
            Ok(path)
        }
        What::Files => {
            let path = dir.path().join("small");
            dir.need(files(asked) * SMALL_BYTES * 2 * (1 + outputs))?;
            make_files(&path, files(asked))?;
            Ok(path)
        }
    }
}

/// Whether an output equals its source.
fn is_same(what: What, source: &Path, output: &Path, measured: &mut BenchRow) -> Result<bool> {
    if what == What::Files {
        return Ok(whole_process(Command::new("diff").arg("-r").arg(source).arg(output)).is_ok());
    }
    if measured.digest.is_empty() {
        measured.digest = digest::of_file(source)?;
    }
    Ok(digest::of_file(output)? == measured.digest)
}

fn make_files(path: &Path, files: u64) -> Result<()> {
    let mut rng = thalweg_base::rng::Rng::new(crate::SEED);
    for file in 0..files {
        let directory = path.join((file / FILES_OF_A_DIRECTORY).to_string());
        if file % FILES_OF_A_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory).map_err(|e| failed("make", &directory, &e))?;
        }
        let bytes: Vec<u8> = (0..SMALL_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        let path = directory.join(file.to_string());
        std::fs::write(&path, bytes).map_err(|e| failed("write", &path, &e))?;
    }
    Ok(())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_only_what_is_measured_beside_its_row() {
        for row in ROWS {
            let has = |name: &str| {
                row.beside.iter().any(|beside| match beside {
                    Beside::Floor => name == "floor",
                    Beside::LowerBound => false,
                    Beside::Shell(other, _) | Beside::Otherwise(other, _) => name == *other,
                })
            };
            for target in row.targets {
                let fits = match target {
                    Target::WallOfFloor(_) => has("floor"),
                    Target::NoSlower { than, .. } => has(than),
                    Target::Faster { than: Than::Named(name), .. } => has(name),
                    _ => true,
                };
                assert!(fits, "{}: {target:?}", row.name);
            }
        }
    }
}
