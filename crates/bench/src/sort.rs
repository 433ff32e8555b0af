//! `bench sort`: whole sorts, each beside its floor and its rivals.
//!
//! Model: a row's input is made once. Ours runs once before anything is timed: its receipt says what the
//! floor replays, its output is digested. Then all contenders run in turn, round by round, each as a process
//! of its own on cold caches and in memory that was touched before, so that what drifts in the machine drifts for all
//! of them.
//! Law: outputs that must be equal are compared byte by byte, through their digests, in the first round.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thalweg_api::{BenchOther, BenchReport, BenchRow};
use thalweg_io::process::Usage;

use crate::data::Data;
use crate::floor::{Fio, Replays, phases};
use crate::measure::{OurSort, Series};
use crate::place::Place;
use crate::rivals::{CLUSTERS, ENGINES, Engines, Gnu, Share, usage_of};
use crate::rows::{Beside, GNU, Memory, ROWS, Row};
use crate::{Asked, digest, failed, memory};
use crate::{Error, Result};

/// Input, output, what is spilled and the floor's files, in bytes of the input.
const ROOM: u64 = 4;

/// Measures the rows that are asked for.
pub(crate) fn measure(asked: &Asked<'_>, place: &Place, report: &mut BenchReport) -> Result<()> {
    let chosen = |row: &&Row| asked.wants(row.name) && (asked.options.rivals || !row.is_rivals());
    let rows: Vec<&Row> = ROWS.iter().filter(chosen).collect();
    let beside = |wanted: Beside| rows.iter().any(|row| row.beside.contains(&wanted));
    let mut bench = Bench {
        asked,
        place,
        fio: wanted(beside(Beside::Floor), || Fio::find(place.path()), report),
        gnu: wanted(beside(Beside::Gnu), Gnu::find, report),
        engines: wanted(rows.iter().any(|row| row.is_rivals()), Engines::find, report),
        inputs: BTreeMap::new(),
    };
    if !asked.tiny {
        report.notes.push(memory::cost()?);
    }
    for (i, row) in rows.iter().enumerate() {
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        bench.forget_inputs_but(row)?;
        let measured = bench.row(row);
        // Who interrupts us interrupts the sort that we measure too, and that is no failure of the row.
        asked.go_on()?;
        report.rows.push(measured.unwrap_or_else(|error| lost(row, asked, bench.plain(&error))));
    }
    Ok(())
}

/// A tool, if some row needs it; a note in the report if it is not here.
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

/// A row that could not be measured: all its targets are missed.
fn lost(row: &Row, asked: &Asked<'_>, failed: String) -> BenchRow {
    let bytes = row.bytes(asked.bytes);
    let mut lost = BenchRow {
        name: row.name.to_string(),
        work: row.said(bytes, asked.bytes),
        bytes,
        memory_bytes: row.memory_bytes(asked.bytes),
        failed,
        ..BenchRow::default()
    };
    lost.targets = row.targets.iter().map(|target| target.of(&lost)).collect();
    for target in &mut lost.targets {
        (target.measured, target.met) = ("failed".to_string(), Some(false));
    }
    lost
}

/// An input that was made.
struct Input {
    path: PathBuf,
    bytes: u64,
}

/// What all rows share.
struct Bench<'a> {
    asked: &'a Asked<'a>,
    place: &'a Place,
    fio: Option<Fio>,
    gnu: Option<Gnu>,
    engines: Option<Engines>,
    inputs: BTreeMap<(Data, u64), Input>,
}

/// Who sorts, and what came of it so far.
struct Contender<'a> {
    name: String,
    who: Who<'a>,
    input: (Data, u64),
    /// Whether its output must be that of the first one.
    same: bool,
    series: Series,
    right: Option<bool>,
    note: String,
}

enum Who<'a> {
    Ours(&'a [&'a str]),
    Gnu(&'a Gnu),
    Engine(&'a Engines, &'static str, Share),
}

impl Bench<'_> {
    /// Measures one row.
    fn row(&mut self, row: &Row) -> Result<BenchRow> {
        let bytes = row.bytes(self.asked.bytes);
        self.place.need(bytes * ROOM)?;
        let own = self.input(row.data, bytes)?;
        let mut contenders = vec![Contender::new("thalweg", Who::Ours(row.words), own, true)];
        for beside in row.beside {
            if let Beside::Otherwise { data, .. } = beside {
                self.input(*data, bytes)?;
            }
        }
        contenders.extend(self.contenders(row, own));
        let mut measured = BenchRow {
            name: row.name.to_string(),
            work: row.said(self.inputs[&own].bytes, self.asked.bytes),
            bytes: self.inputs[&own].bytes,
            memory_bytes: row.memory_bytes(self.asked.bytes),
            ..BenchRow::default()
        };
        let spilled = self.rehearse(row, &contenders[0], &mut measured)?;
        let mut replays = self.replays(row, &measured, spilled, own)?;
        for round in 0..self.asked.runs {
            // Whoever is first may find the machine otherwise than the next, so each is in turn.
            let last = contenders.len() - 1;
            for place in 0..=last {
                let who = if round % 2 == 0 { place } else { last - place };
                self.asked.go_on()?;
                self.turn(row, &mut contenders[who], &measured, round == 0)?;
            }
            if let Some(replays) = &mut replays {
                // A tiny run only shows that the replay works.
                if round == 0 || !self.asked.tiny {
                    self.place.cool()?;
                    replays.once(&own.0.name())?;
                }
            }
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

    /// Everyone but ours.
    fn contenders<'b>(&'b self, row: &'b Row, own: (Data, u64)) -> Vec<Contender<'b>> {
        let mut all = Vec::new();
        for beside in row.beside {
            match beside {
                Beside::Floor => {}
                Beside::Gnu => {
                    all.extend(self.gnu.as_ref().map(|gnu| Contender::new(GNU, Who::Gnu(gnu), own, true)))
                }
                Beside::Otherwise { name, data, words } => {
                    let input = (*data, own.1);
                    all.push(Contender::new(name, Who::Ours(words), input, input == own));
                }
                Beside::Rivals => all.extend(self.engines(&ENGINES, Share::Cores, own)),
                Beside::Clusters => all.extend(self.engines(&CLUSTERS, Share::Nodes, own)),
            }
        }
        all
    }

    fn engines<'b>(
        &'b self,
        names: &'static [&'static str],
        share: Share,
        own: (Data, u64),
    ) -> impl Iterator<Item = Contender<'b>> {
        let contender =
            move |engines, name| Contender::new(name, Who::Engine(engines, name, share), own, false);
        self.engines.iter().flat_map(move |engines| names.iter().map(move |name| contender(engines, *name)))
    }

    /// The run before the timed ones; returns how many bytes it spilled.
    fn rehearse(&self, row: &Row, ours: &Contender<'_>, measured: &mut BenchRow) -> Result<u64> {
        let Who::Ours(words) = ours.who else { unreachable!("ours comes first") };
        let output = self.output();
        let (_, receipt) = self.our_sort(ours.input, &output, measured.memory_bytes, words).run()?;
        measured.digest = digest::of_file(&output)?;
        remove(&output)?;
        let spilled = receipt.io.scratch.written_bytes;
        if row.memory == Memory::Holds && spilled > 0 {
            measured.notes.push(format!("{spilled} bytes were spilled, though all was to fit"));
        }
        let limit = measured.memory_bytes.max(receipt.memory.limit_bytes);
        let most = (limit + limit / 20).max(limit + (2 << 20));
        if receipt.memory.peak_bytes > most {
            let peak = receipt.memory.peak_bytes;
            measured.notes.push(format!("{peak} bytes were resident, with {limit} promised"));
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
        let Some(fio) = self.fio.as_ref().filter(|_| row.beside.contains(&Beside::Floor)) else {
            return Ok(None);
        };
        let mut phases = phases(measured.bytes, spilled, measured.memory_bytes, !row.data.is_lines());
        self.place.cool()?;
        fio.search(&own.0.name(), &mut phases, self.asked.tiny)?;
        Ok(Some(Replays::new(fio, phases)))
    }

    /// One contender's run in one round. Ours must succeed; a rival that does not is measured no more.
    fn turn(&self, row: &Row, who: &mut Contender<'_>, ours: &BenchRow, first: bool) -> Result<()> {
        if !who.note.is_empty() {
            return Ok(());
        }
        if row.cold {
            self.place.cool()?;
        } else {
            digest::of_file(&self.inputs[&who.input].path)?; // Reading it is what warms it.
        }
        if !self.asked.tiny {
            memory::touch(ours.memory_bytes + 2 * ours.bytes)?; // For what the page cache is to hold, too.
        }
        let output = self.output();
        match self.run(who, &output, ours.memory_bytes) {
            Ok((seconds, usage)) => who.series.add(seconds, usage),
            Err(error) if matches!(who.who, Who::Ours(_)) => return Err(error),
            Err(error) => who.note = self.plain(&error),
        }
        if first && who.same && who.note.is_empty() {
            let right = digest::of_file(&output)? == ours.digest;
            who.right = Some(right);
            if !right {
                who.note = "its output differs from ours".to_string();
            }
        }
        remove(&output)
    }

    fn run(&self, who: &mut Contender<'_>, output: &Path, memory_bytes: u64) -> Result<(f64, Usage)> {
        let input = &self.inputs[&who.input].path;
        match who.who {
            Who::Ours(words) => {
                let (ended, _) = self.our_sort(who.input, output, memory_bytes, words).run()?;
                Ok((ended.seconds, ended.usage))
            }
            Who::Gnu(gnu) => {
                let ended = gnu.sort(input, output, memory_bytes)?;
                Ok((ended.seconds, ended.usage))
            }
            Who::Engine(engines, name, share) => {
                let lines = who.input.0.is_lines();
                let run = engines.sort((name, share), input, output, memory_bytes, lines)?;
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

    /// An error without this machine's paths, which have no place in results.
    fn plain(&self, error: &Error) -> String {
        let place = self.place.path().to_string_lossy();
        let program = self.asked.options.program.to_string_lossy();
        error.to_string().replace(&format!("{place}/"), "").replace(&*program, "thalweg")
    }

    fn output(&self) -> PathBuf {
        self.place.path().join("sorted")
    }

    /// Makes an input if it is not there.
    fn input(&mut self, data: Data, bytes: u64) -> Result<(Data, u64)> {
        let key = (data, bytes);
        if !self.inputs.contains_key(&key) {
            self.asked.go_on()?;
            let path = self.place.path().join(data.name());
            let bytes = data.make(&path, bytes)?;
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

impl<'a> Contender<'a> {
    fn new(name: &str, who: Who<'a>, input: (Data, u64), same: bool) -> Contender<'a> {
        let name = name.to_string();
        Contender { name, who, input, same, series: Series::default(), right: None, note: String::new() }
    }

    fn finish(self) -> BenchOther {
        // What was measured before it failed is not a median.
        let whole = !self.series.is_empty() && (self.note.is_empty() || self.right == Some(false));
        let measure = whole.then(|| self.series.measure());
        BenchOther { name: self.name, measure, right: self.right, note: self.note }
    }
}

/// Removes a file or, where a rival writes one, a directory.
fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", path, &e)),
        _ => Ok(()),
    }
}
