//! `bench sort`: whole sorts, each compared with its floor and its rivals.
//!
//! Model: the input of a row is generated once. Ours runs once before anything is timed: its receipt says what the
//! floor replays, and its output is digested. Then all contenders run in turn, round by round, each as a process of its
//! own, with cold caches and memory that was touched before. So a drift of the machine affects all of them.
//! Invariant: outputs that must be equal are compared by their digests in the first round.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thalweg_api::{BenchReport, BenchRow, RivalRun};
use thalweg_io::process::Usage;

use crate::contenders::{Contender, failed, finish};
use crate::data::Data;
use crate::data_dir::DataDir;
use crate::floor::{Fio, Replays, phases};
use crate::gnu::Gnu;
use crate::process::OurSort;
use crate::pump::remove;
use crate::sort_rows::{Beside, GNU, Memory, ROWS, Row};
use crate::{Asked, digest, memory};
use crate::{Error, Result};

/// Space for input, output, spilled data and the floor's files, in multiples of the input.
const ROOM: u64 = 4;
/// A smaller file of the user has no floor: fio wants whole blocks.
const FLOOR_BYTES_MIN: u64 = 256 << 10;

/// Engines on the same data as ours.
pub trait Rivals {
    /// The names of the engines that share the work in this way.
    fn names(&self, share: Share) -> &'static [&'static str];

    /// One run of an engine, with its own check of the output.
    fn sort(
        &self,
        rival: (&str, Share),
        input: &Path,
        output: &Path,
        memory_bytes: u64,
        lines: bool,
    ) -> Result<RivalRun>;
}

/// The number of workers of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// As many threads as there are cores, with the same memory as ours.
    Cores,
    /// As many as our row has nodes, with as much memory as they want.
    Nodes,
}

/// Names of the rows that are measured without rivals.
pub fn names() -> Vec<&'static str> {
    ROWS.iter().filter(|row| !row.is_rivals()).map(|row| row.name).collect()
}

/// Names of all rows.
pub fn names_with_rivals() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// Measures the rows that are asked for, those beside rivals only if there are rivals.
pub fn measure(
    asked: &Asked<'_>,
    dir: &DataDir,
    rivals: Option<&dyn Rivals>,
    report: &mut BenchReport,
) -> Result<()> {
    let own = own_rows(&asked.options.files)?;
    let chosen = |row: &&Row| asked.wants(row.name) && (rivals.is_some() || !row.is_rivals());
    let rows: Vec<(&Row, Asked<'_>)> = match own.is_empty() {
        true => ROWS.iter().filter(chosen).map(|row| (row, *asked)).collect(),
        // The memory of a row is in proportion to its file.
        false => own.iter().map(|(row, bytes)| (row, Asked { bytes: *bytes, ..*asked })).collect(),
    };
    let beside = |wanted: Beside| rows.iter().any(|(row, _)| row.beside.contains(&wanted));
    let mut bench = Bench {
        asked,
        dir,
        fio: wanted(beside(Beside::Floor), || Fio::find(dir.path()), report),
        gnu: wanted(beside(Beside::Gnu), Gnu::find, report),
        rivals,
        inputs: BTreeMap::new(),
    };
    if !asked.tiny {
        report.notes.push(memory::cost()?);
    }
    for (i, (row, asked)) in rows.iter().enumerate() {
        bench.asked = asked;
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        bench.forget_inputs_but(row)?;
        let measured = bench.row(row);
        // An interrupt of this process also interrupts the measured sort, which is not a failure of the row.
        asked.should_continue()?;
        report.rows.push(measured.unwrap_or_else(|error| {
            let bytes = row.bytes(asked.bytes);
            failed(row.unmeasured(bytes, asked.bytes), row.targets, bench.plain(&error))
        }));
        let name = asked.options.files.get(i).and_then(|file| file.file_name());
        if let (Some(name), Some(row)) = (name, report.rows.last_mut()) {
            row.name = name.to_string_lossy().into_owned();
        }
    }
    Ok(())
}

/// A row for each of the user's files, and the size of the file.
fn own_rows(files: &[PathBuf]) -> Result<Vec<(Row, u64)>> {
    let row = |(i, file): (usize, &PathBuf)| {
        let found = std::fs::metadata(file).map_err(|e| crate::failed("read", file, &e))?;
        if !found.is_file() || found.len() == 0 {
            return Err(Error::Failed(format!("{} is no file with lines", file.display())));
        }
        Ok((Row::of_own_file(i), found.len()))
    };
    files.iter().enumerate().map(row).collect()
}

/// A tool, if some row needs it. The report notes if it is not installed.
fn wanted<T>(
    needed: bool,
    find: impl FnOnce() -> std::result::Result<T, String>,
    report: &mut BenchReport,
) -> Option<T> {
    if !needed {
        return None;
    }
    find().map_err(|why| report.notes.push(why)).ok()
}

/// An input on disk.
struct Input {
    path: PathBuf,
    bytes: u64,
}

/// The state that all rows share.
struct Bench<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    fio: Option<Fio>,
    gnu: Option<Gnu>,
    rivals: Option<&'a dyn Rivals>,
    inputs: BTreeMap<(Data, u64), Input>,
}

/// How a contender sorts, and which data.
struct Sorts<'a> {
    how: How<'a>,
    input: (Data, u64),
    /// Whether its output must equal ours.
    same: bool,
}

enum How<'a> {
    Ours(&'a [&'a str]),
    Gnu(&'a Gnu),
    Rival(&'a dyn Rivals, &'static str, Share),
}

impl Bench<'_> {
    /// Measures one row.
    fn row(&mut self, row: &Row) -> Result<BenchRow> {
        let bytes = row.bytes(self.asked.bytes);
        self.dir.need(bytes * ROOM)?;
        let own = self.input(row.data, bytes)?;
        let mut contenders = vec![contender("thalweg", How::Ours(row.words), own, true)];
        for beside in row.beside {
            if let Beside::Otherwise { data, .. } = beside {
                self.input(*data, bytes)?;
            }
        }
        contenders.extend(self.contenders(row, own));
        let mut measured = row.unmeasured(self.inputs[&own].bytes, self.asked.bytes);
        let spilled = self.rehearse(row, &contenders[0].who, &mut measured)?;
        let mut replays = self.replays(row, &measured, spilled, own)?;
        for round in 0..self.asked.runs {
            // The first contender may find the machine in another state, so contenders take turns.
            let last = contenders.len() - 1;
            for turn in 0..=last {
                let who = if round % 2 == 0 { turn } else { last - turn };
                self.asked.should_continue()?;
                self.turn(row, &mut contenders[who], &measured, round == 0)?;
            }
            if let Some(replays) = &mut replays {
                // A tiny run only shows that the replay works.
                if round == 0 || !self.asked.tiny {
                    self.dir.cool()?;
                    replays.once(&own.0.name())?;
                }
            }
        }
        measured.floor = replays.map(Replays::floor);
        finish(&mut measured, contenders, row.targets, self.asked.tiny);
        Ok(measured)
    }

    /// All contenders but the first.
    fn contenders<'b>(&'b self, row: &'b Row, own: (Data, u64)) -> Vec<Contender<Sorts<'b>>> {
        let mut all = Vec::new();
        for beside in row.beside {
            match beside {
                Beside::Floor => {}
                Beside::Gnu => {
                    all.extend(self.gnu.as_ref().map(|gnu| contender(GNU, How::Gnu(gnu), own, true)))
                }
                Beside::Otherwise { name, data, words } => {
                    let input = (*data, own.1);
                    all.push(contender(name, How::Ours(words), input, input == own));
                }
                Beside::Rivals => all.extend(self.rivals(Share::Cores, own)),
                Beside::Clusters => all.extend(self.rivals(Share::Nodes, own)),
            }
        }
        all
    }

    fn rivals(&self, share: Share, own: (Data, u64)) -> impl Iterator<Item = Contender<Sorts<'_>>> {
        let of = move |rivals, name| contender(name, How::Rival(rivals, name, share), own, false);
        let names = move |rivals: &dyn Rivals| rivals.names(share);
        self.rivals.into_iter().flat_map(move |all| names(all).iter().map(move |name| of(all, *name)))
    }

    /// Runs ours once before the timed runs, and returns how many bytes it spilled.
    fn rehearse(&self, row: &Row, ours: &Sorts<'_>, measured: &mut BenchRow) -> Result<u64> {
        let How::Ours(words) = ours.how else { unreachable!("ours comes first") };
        let output = self.output();
        let (_, receipt) = self.our_sort(ours.input, &output, measured.memory_bytes, words).run()?;
        measured.digest = digest::of_file(&output)?;
        remove(&output)?;
        let spilled = receipt.io.scratch.written_bytes;
        if row.memory == Memory::Holds && spilled > 0 {
            measured.notes.push(format!("{spilled} bytes were spilled, although all should fit"));
        }
        let limit = measured.memory_bytes.max(receipt.memory.limit_bytes);
        let most = (limit + limit / 20).max(limit + (2 << 20));
        if receipt.memory.peak_bytes > most {
            let peak = receipt.memory.peak_bytes;
            measured.notes.push(format!("{peak} bytes were resident, more than the limit of {limit}"));
        }
        Ok(spilled)
    }

    fn replays(
        &self,
        row: &Row,
        measured: &BenchRow,
        spilled: u64,
        own: (Data, u64),
    ) -> Result<Option<Replays<'_>>> {
        let is_wanted = row.beside.contains(&Beside::Floor) && measured.bytes >= FLOOR_BYTES_MIN;
        let Some(fio) = self.fio.as_ref().filter(|_| is_wanted) else {
            return Ok(None);
        };
        let mut phases = phases(measured.bytes, spilled, measured.memory_bytes, !row.data.is_lines());
        self.dir.cool()?;
        fio.search(&own.0.name(), &mut phases, self.asked.tiny)?;
        Ok(Some(Replays::new(fio, phases)))
    }

    /// Runs one contender in one round.
    fn turn(&self, row: &Row, who: &mut Contender<Sorts<'_>>, ours: &BenchRow, first: bool) -> Result<()> {
        if !who.note.is_empty() {
            return Ok(());
        }
        if row.cold {
            self.dir.cool()?;
        } else {
            digest::of_file(&self.inputs[&who.who.input].path)?; // Reading it brings it into the cache.
        }
        if !self.asked.tiny {
            memory::touch(ours.memory_bytes + 2 * ours.bytes)?; // Also for the page cache.
        }
        let output = self.output();
        match self.run(who, &output, ours.memory_bytes) {
            Ok((seconds, usage)) => who.series.add(seconds, usage),
            Err(error) if matches!(who.who.how, How::Ours(_)) => return Err(error),
            Err(error) => who.note = self.plain(&error),
        }
        if first && who.who.same && who.note.is_empty() {
            let right = digest::of_file(&output)? == ours.digest;
            who.right = Some(right);
            if !right {
                who.note = "its output differs from ours".to_string();
            }
        }
        remove(&output)
    }

    fn run(&self, who: &mut Contender<Sorts<'_>>, output: &Path, memory_bytes: u64) -> Result<(f64, Usage)> {
        let input = &self.inputs[&who.who.input].path;
        match who.who.how {
            How::Ours(words) => {
                let (ended, _) = self.our_sort(who.who.input, output, memory_bytes, words).run()?;
                Ok((ended.seconds, ended.usage))
            }
            How::Gnu(gnu) => {
                let ended = gnu.sort(input, output, memory_bytes)?;
                Ok((ended.seconds, ended.usage))
            }
            How::Rival(rivals, name, share) => {
                let lines = who.who.input.0.is_lines();
                let run = rivals.sort((name, share), input, output, memory_bytes, lines)?;
                who.right = Some(run.ok);
                who.name = run.name.clone();
                Ok((run.wall_seconds, usage_of(&run)))
            }
        }
    }

    fn our_sort<'b>(
        &'b self,
        input: (Data, u64),
        output: &'b Path,
        memory_bytes: u64,
        words: &'b [&'b str],
    ) -> OurSort<'b> {
        OurSort {
            program: &self.asked.options.program,
            input: &self.inputs[&input].path,
            output,
            memory_bytes,
            layout: if input.0.is_lines() { &[] } else { &["--datamation"] },
            words,
        }
    }

    /// An error without paths of this machine, which do not belong into results.
    fn plain(&self, error: &Error) -> String {
        let dir = self.dir.path().to_string_lossy();
        let program = self.asked.options.program.to_string_lossy();
        error.to_string().replace(&format!("{dir}/"), "").replace(&*program, "thalweg")
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("sorted")
    }

    /// Generates an input if it does not exist.
    fn input(&mut self, data: Data, bytes: u64) -> Result<(Data, u64)> {
        let key = (data, bytes);
        if !self.inputs.contains_key(&key) {
            self.asked.should_continue()?;
            let path = self.dir.path().join(data.name());
            let bytes = match data {
                Data::Own(at) => link_to(&self.asked.options.files[at], &path, bytes)?,
                _ => data.make(&path, bytes)?,
            };
            self.inputs.insert(key, Input { path, bytes });
        }
        Ok(key)
    }

    /// Removes the inputs that a row does not use.
    fn forget_inputs_but(&mut self, row: &Row) -> Result<()> {
        let bytes = row.bytes(self.asked.bytes);
        let used = |data: Data| {
            row.data == data
                || row
                    .beside
                    .iter()
                    .any(|b| matches!(b, Beside::Otherwise { data: other, .. } if *other == data))
        };
        let unused: Vec<(Data, u64)> =
            self.inputs.keys().filter(|(data, size)| *size != bytes || !used(*data)).copied().collect();
        for key in unused {
            remove(&self.inputs.remove(&key).expect("it was listed just now").path)?;
        }
        Ok(())
    }
}

/// A link to a file of the user, which stands for it among the inputs. Returns the size of the file.
fn link_to(file: &Path, link: &Path, bytes: u64) -> Result<u64> {
    let whole = std::path::absolute(file).map_err(|e| crate::failed("find", file, &e))?;
    std::os::unix::fs::symlink(whole, link).map_err(|e| crate::failed("make", link, &e))?;
    Ok(bytes)
}

/// A contender for this input; `same` if its output must equal ours.
fn contender<'a>(name: &str, how: How<'a>, input: (Data, u64), same: bool) -> Contender<Sorts<'a>> {
    Contender::new(name, Sorts { how, input, same })
}

/// The usage of a rival, measured like that of our processes.
fn usage_of(run: &RivalRun) -> Usage {
    Usage { cpu_seconds: run.cpu_seconds, peak_bytes: run.peak_rss_bytes, ..Usage::default() }
}
