//! `bench pump`: transfers on one host, each beside its floor and its rivals.
//!
//! Model: sources are made once. Contenders run in turn, round by round, each as processes of its own on cold caches,
//! until what they wrote is durable: a rival's time includes the `sync` that ours does by itself.
//! Law: what each wrote is compared with the source in the first round.
//! Law: outputs of many files stay until all rows are done. ext4 looks at every file number that was freed in the last
//! minutes before it gives one out: 100,000 files written after as many were removed took 7 to 35 s instead of 4.

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_api::{BenchOther, BenchPhase, BenchReport, BenchRow, PumpReceipt, from_json};
use thalweg_io::process::Usage;

use crate::data::Data;
use crate::floor::{Fio, Replays};
use crate::measure::{Series, whole_process};
use crate::place::Place;
use crate::table::traffic;
use crate::targets::{Target, Than};
use crate::{Asked, alone, digest, failed, far};
use crate::{Error, Result};

/// Bytes of a small file.
pub(crate) const SMALL_BYTES: u64 = 4096;
/// Of a `--size` of 4 GB there are 100,000 small files.
const BYTES_FOR_A_FILE: u64 = 40_000;
/// Reads that fio has in flight, and as many writes: what two streams of ours have.
pub(crate) const DEPTH: u32 = 32;
/// Files of a directory.
const FILES_OF_A_DIRECTORY: u64 = 1000;

/// One kind of work.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    what: What,
    /// More words for our command line.
    words: &'static [&'static str],
    beside: &'static [Beside],
    pub(crate) targets: &'static [Target],
}

/// What is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// One file, disk to disk.
    File,
    /// Many of 4 KiB.
    Files,
    /// Memory to nowhere.
    Memory,
}

impl What {
    /// What of it the disk and the kernel do alone.
    fn alone(self) -> &'static str {
        match self {
            What::Files => "the system's calls alone",
            What::File | What::Memory => "fio reading alone",
        }
    }
}

/// What is measured beside ours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// fio, reading one file while it writes another.
    Floor,
    /// What the disk and the kernel take whoever asks them, told in a line below the row.
    Alone,
    /// A program, by a line of shell in which `$1` is the source and `$2` the output.
    Shell(&'static str, &'static str),
    /// Ours with other words.
    Otherwise(&'static str, &'static [&'static str]),
}

const CP: Beside = Beside::Shell("cp + sync", r#"cp -a "$1" "$2" && sync -f "$2""#);
const RSYNC: &str = "rsync + sync";
const RSYNCED: Beside = Beside::Shell(RSYNC, r#"rsync -a "$1" "$2" && sync -f "$2""#);
pub(crate) const UNSUMMED: &str = "--no-checksum";

/// What is measured. The many files come last: what they leave behind slows down whoever makes files next.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "disk",
        what: What::File,
        words: &[],
        beside: &[Beside::Floor, Beside::Alone, CP, RSYNCED],
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
        beside: &[Beside::Alone, RSYNCED, CP],
        targets: &[Target::Faster { than: Than::Named(RSYNC), times: 3.0, or_floor: None }],
    },
];

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).chain(far::ROWS.iter().map(|row| row.name)).collect()
}

/// Measures the rows that are asked for.
pub(crate) fn measure(asked: &Asked<'_>, place: &Place, report: &mut BenchReport) -> Result<()> {
    let fio = Fio::find(place.path()).map_err(|why| report.notes.push(why)).ok();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| asked.wants(row.name)).collect();
    let bench = Bench { asked, place, fio };
    for (i, row) in rows.iter().enumerate() {
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        let measured = bench.row(row);
        asked.go_on()?;
        report
            .rows
            .push(measured.unwrap_or_else(|error| lost(bench.unmeasured(row), row.targets, place, &error)));
    }
    far::measure(asked, place, bench.fio.as_ref(), report)
}

/// A row that could not be measured: all its targets are missed.
pub(crate) fn lost(unmeasured: BenchRow, targets: &[Target], place: &Place, error: &Error) -> BenchRow {
    let place = format!("{}/", place.path().display());
    let mut lost = BenchRow { failed: error.to_string().replace(&place, ""), ..unmeasured };
    lost.targets = targets.iter().map(|target| target.of(&lost)).collect();
    for target in &mut lost.targets {
        (target.measured, target.met) = ("failed".to_string(), Some(false));
    }
    lost
}

/// How many files there are of a `--size`.
pub(crate) fn files(asked: &Asked<'_>) -> u64 {
    (asked.bytes / BYTES_FOR_A_FILE).max(1)
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    place: &'a Place,
    fio: Option<Fio>,
}

/// Who moves, and what came of it so far.
struct Contender {
    name: &'static str,
    who: Who,
    series: Series,
    right: Option<bool>,
    note: String,
}

#[derive(Clone, Copy)]
enum Who {
    Ours(&'static [&'static str]),
    Shell(&'static str),
}

impl Contender {
    fn new(name: &'static str, who: Who) -> Contender {
        Contender { name, who, series: Series::default(), right: None, note: String::new() }
    }

    fn finish(self) -> BenchOther {
        let whole = !self.series.is_empty() && self.note.is_empty();
        let measure = whole.then(|| self.series.measure());
        BenchOther { name: self.name.to_string(), measure, right: self.right, note: self.note }
    }
}

impl Bench<'_> {
    fn row(&self, row: &Row) -> Result<BenchRow> {
        let (bytes, source) = self.source(row)?;
        let mut measured = self.unmeasured(row);
        let mut contenders = vec![Contender::new("thalweg", Who::Ours(row.words))];
        for beside in row.beside {
            contenders.extend(match *beside {
                Beside::Floor | Beside::Alone => None,
                Beside::Shell(name, line) => Some(Contender::new(name, Who::Shell(line))),
                Beside::Otherwise(name, words) => Some(Contender::new(name, Who::Ours(words))),
            });
        }
        let mut replays = self.replays(row, bytes)?;
        let mut alone = Series::default();
        for round in 0..self.asked.runs {
            for contender in &mut contenders {
                self.asked.go_on()?;
                self.turn(row, contender, &source, round, &mut measured)?;
            }
            if let Some(replays) = replays.as_mut().filter(|_| round == 0 || !self.asked.tiny) {
                self.place.cool()?;
                replays.once(&Data::Binary.name())?;
            }
            if row.beside.contains(&Beside::Alone) {
                self.alone(row.what, &source, round, &mut alone)?;
            }
        }
        if !alone.is_empty() {
            let (what, measure) = (row.what.alone(), alone.measure());
            let (seconds, cpu) = (measure.seconds, measure.cpu_seconds);
            measured.notes.push(format!("{what}: {seconds:.2} s, {cpu:.2} CPU-s"));
        }
        measured.floor = replays.map(Replays::floor);
        let mut contenders = contenders.into_iter();
        measured.ours = contenders.next().expect("ours comes first").series.measure();
        measured.others.extend(contenders.map(Contender::finish));
        measured.targets = row.targets.iter().map(|target| target.of(&measured)).collect();
        if self.asked.tiny {
            measured.targets.iter_mut().for_each(|target| target.met = None);
        }
        Ok(measured)
    }

    /// What the disk and the kernel take, whoever asks them.
    fn alone(&self, what: What, source: &Path, round: usize, series: &mut Series) -> Result<()> {
        self.place.cool()?;
        if what == What::File {
            let ended =
                self.fio.as_ref().map(|_| whole_process(&mut alone::reading(source, self.asked.bytes)));
            if let Some(ended) = ended.transpose()? {
                series.add(ended.seconds, ended.usage);
            }
            return Ok(());
        }
        let output = self.place.path().join(format!("moved-alone-{round}"));
        let made = series.run(|| alone::making(source, &output));
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

    fn source(&self, row: &Row) -> Result<(u64, PathBuf)> {
        let outputs = self.asked.runs as u64 * (1 + row.beside.len() as u64);
        source(self.asked, self.place, row.what, outputs)
    }

    fn replays(&self, row: &Row, bytes: u64) -> Result<Option<Replays<'_>>> {
        let Some(fio) = self.fio.as_ref().filter(|_| row.beside.contains(&Beside::Floor)) else {
            return Ok(None);
        };
        let phase = BenchPhase { read_bytes: bytes, written_bytes: bytes, depth: DEPTH, seconds: 0.0 };
        Ok(Some(Replays::new(fio, vec![phase])))
    }

    fn output(&self, row: &Row, contender: &Contender, round: usize) -> PathBuf {
        let name = match row.what {
            What::Files => format!("moved-{}-{}-{round}", row.name, contender.name.replace(' ', "")),
            What::File | What::Memory => "moved".to_string(),
        };
        self.place.path().join(name)
    }

    fn turn(
        &self,
        row: &Row,
        who: &mut Contender,
        source: &Path,
        round: usize,
        measured: &mut BenchRow,
    ) -> Result<()> {
        if !who.note.is_empty() {
            return Ok(());
        }
        let output = self.output(row, who, round);
        if row.what != What::Memory {
            self.place.cool()?;
        }
        match self.run(row, who.who, source, &output) {
            Ok((seconds, usage)) => who.series.add(seconds, usage),
            Err(error) if matches!(who.who, Who::Ours(_)) => return Err(error),
            Err(error) => {
                who.note = error.to_string().replace(&format!("{}/", self.place.path().display()), "")
            }
        }
        if round == 0 && row.what != What::Memory && who.note.is_empty() {
            let right = is_same(row.what, source, &output, measured)?;
            who.right = Some(right);
            if !right {
                who.note = "its output differs from the source".to_string();
            }
        }
        if row.what == What::File { remove(&output) } else { Ok(()) }
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
                // To rsync a name without a slash is a directory to be made in the other.
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
            let receipt: PumpReceipt = from_json(ended.out.trim())
                .map_err(|e| Error::Failed(format!("the receipt of a pump cannot be read: {e}")))?;
            if !receipt.holds {
                return Err(Error::Wrong("a pump's output is not its input; see its receipt".to_string()));
            }
        }
        Ok((ended.seconds, ended.usage))
    }
}

/// What is moved, made if it is not there, and its bytes. Of many files there is to be room for so many outputs.
pub(crate) fn source(asked: &Asked<'_>, place: &Place, what: What, outputs: u64) -> Result<(u64, PathBuf)> {
    match what {
        What::Memory => Ok((asked.bytes, PathBuf::new())),
        What::File => {
            let path = place.path().join(Data::Binary.name());
            if !path.exists() {
                place.need(asked.bytes * 3)?;
                Data::Binary.make(&path, asked.bytes)?;
            }
            Ok((path.metadata().map_err(|e| failed("inspect", &path, &e))?.len(), path))
        }
        What::Files => {
            let path = place.path().join("small");
            place.need(files(asked) * SMALL_BYTES * 2 * (1 + outputs))?;
            make_files(&path, files(asked))?;
            Ok((files(asked) * SMALL_BYTES, path))
        }
    }
}

/// Whether an output is what its source is.
pub(crate) fn is_same(what: What, source: &Path, output: &Path, measured: &mut BenchRow) -> Result<bool> {
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
                    Beside::Alone => false,
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
