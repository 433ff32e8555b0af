//! Faults of the hosts of a mirrored volume, seen through a mount: a host with one store, the host of the store that
//! forwards all writes, a host with two stores, the manager's host and the client are killed, frozen, cut off in both
//! directions or in one, or have a full disk, while a program creates, writes, syncs or replaces files, or while
//! `repair` or `replace` is at work (maintain.rs). Without root, FUSE or the programs of `lab/` each test says that it
//! was skipped.
//!
//! Invariant, for every cell: whatever was acknowledged reads back through another client; no strip is left that no
//! file has; without a store writes continue within [`WRITE_SECONDS_MAX`] and reads within [`READ_SECONDS_MAX`];
//! without the manager, or without anybody, a request fails within [`FAIL_SECONDS_MAX`], and the mount can be killed
//! and unmounted.
//!
//! `cargo test -p thalweg-cli --test volume_faults -- --include-ignored --nocapture` prints the whole matrix. With
//! `THALWEG_CELLS=Store-Kill-Write,Machine-Cut` it has only the cells whose names contain one of these words.
#![allow(clippy::disallowed_methods)] // Whoever uses a mount opens files by other means than ours.

mod bed;
mod local;
mod maintain;
#[path = "../support/mod.rs"]
mod support;
mod work;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Mutex;
use std::time::Duration;

use bed::Bed;
use maintain::Verb;
use support::until_within;
use thalweg_base::clock::Stopwatch;
use work::{Ended, Work, Worker};

/// Detecting a silent peer takes 5 s, and noting at the manager that a copy is stale a round trip.
const WRITE_SECONDS_MAX: f64 = 8.0;
/// How long a read may wait for the other copy.
const READ_SECONDS_MAX: f64 = 1.0;
/// The longest that a call may take which cannot succeed, on a busy machine: a request to a store has 10 s, and then
/// the manager, who has to hear that a copy missed it, another 5.
const FAIL_SECONDS_MAX: f64 = 20.0;
/// How long requests may fail after everything works again: a store that was silent is not asked for 20 s, say.
const RETURN_SECONDS_MAX: f64 = 40.0;
/// How long a client stands still: longer than nodes wait for a sign of life.
const FROZEN: Duration = Duration::from_secs(7);
/// The host with the second copies of what is on [`Whom::Forwarder`].
const MIRROR: &str = "n4";
/// Labs that exist at a time.
const LABS: usize = 3;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
    Cut,
    /// Only packets from the host are lost.
    CutOneWay,
    /// Only those to and from the host with the second copies, to which the host forwards writes.
    CutFromMirror,
    DiskFull,
}

/// To whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// A host with one store.
    Store,
    /// The same host, which has the first copy of all that is written, and forwards it to [`MIRROR`].
    Forwarder,
    /// A host with two stores.
    Machine,
    /// The host of the manager, which has no store.
    Manager,
    /// The process of the mount, alone on its host.
    Client,
}

const WORKS: [Work; 4] = [Work::Create, Work::Write, Work::Fsync, Work::Rename];

/// A cell: what happens to whom at which operation.
type Cell = (Whom, Fault, Work);

impl Whom {
    fn host(self) -> &'static str {
        match self {
            Whom::Manager => "n1",
            Whom::Store | Whom::Forwarder => "n2",
            Whom::Machine => MIRROR,
            Whom::Client => "n5",
        }
    }
}

/// One of each kind of fault, and all four whom it can happen to.
#[test]
fn one_fault_of_each_kind_costs_nothing_that_was_acknowledged() {
    matrix(&[
        (Whom::Store, Fault::Freeze, Work::Fsync),
        (Whom::Store, Fault::DiskFull, Work::Write),
        (Whom::Forwarder, Fault::CutFromMirror, Work::Write),
        (Whom::Machine, Fault::Kill, Work::Write),
        (Whom::Machine, Fault::Freeze, Work::Write),
        (Whom::Manager, Fault::Kill, Work::Rename),
        (Whom::Manager, Fault::CutOneWay, Work::Create),
        (Whom::Client, Fault::Cut, Work::Write),
    ]);
}

#[test]
fn repair_and_replace_survive_one_fault_of_each_kind() {
    maintained(&[
        (Whom::Store, Fault::Kill, Verb::Replace),
        (Whom::Store, Fault::Freeze, Verb::Repair),
        (Whom::Manager, Fault::Kill, Verb::Repair),
        (Whom::Client, Fault::Cut, Verb::Replace),
    ]);
}

/// What can happen to each.
fn faults() -> Vec<(Whom, Fault)> {
    let mut faults = Vec::new();
    for whom in [Whom::Store, Whom::Machine, Whom::Manager, Whom::Client] {
        for fault in [Fault::Kill, Fault::Freeze, Fault::Cut, Fault::CutOneWay, Fault::DiskFull] {
            // A client has no disk.
            if (whom, fault) != (Whom::Client, Fault::DiskFull) {
                faults.push((whom, fault));
            }
        }
    }
    faults
}

#[test]
#[ignore = "takes ten minutes; the selection in the test above is made of these"]
fn repair_and_replace_survive_whatever_happens_to_whom() {
    let verbs = |(whom, fault)| [Verb::Repair, Verb::Replace].map(|verb| (whom, fault, verb));
    maintained(&faults().into_iter().flat_map(verbs).collect::<Vec<_>>());
}

#[test]
#[ignore = "takes five minutes; the selection in the test above is made of these"]
fn whatever_happens_to_whom_costs_nothing_that_was_acknowledged() {
    let works = |(whom, fault)| WORKS.map(|work| (whom, fault, work));
    matrix(&faults().into_iter().flat_map(works).collect::<Vec<_>>());
}

#[test]
#[ignore = "takes a minute; the selection in the first test has one of these"]
fn whatever_happens_to_a_store_that_forwards_costs_nothing_that_was_acknowledged() {
    let faults = [Fault::Kill, Fault::Freeze, Fault::Cut, Fault::CutOneWay, Fault::CutFromMirror];
    matrix(&faults.map(|fault| WORKS.map(|work| (Whom::Forwarder, fault, work))).concat());
}

fn matrix(cells: &[Cell]) {
    let rows = in_labs(cells, Bed::row);
    show(rows.iter().map(|row| (row as &dyn Display, &row.wrong)));
}

fn maintained(cells: &[maintain::Cell]) {
    let rows = in_labs(cells, |bed, cell| bed.maintained(cell));
    show(rows.iter().map(|row| (row as &dyn Display, &row.wrong)));
}

/// Runs cells, those of the same fault in a lab of their own, and a few labs at a time: a row for each, in their order.
/// Each is also said as soon as it is there.
fn in_labs<W: Copy + Sync + fmt::Debug, R: Send + Display>(
    cells: &[(Whom, Fault, W)],
    run: impl Fn(&mut Bed, (Whom, Fault, W)) -> R + Sync,
) -> Vec<R> {
    let cells: Vec<_> = cells.iter().copied().filter(is_asked).enumerate().collect();
    let groups = Mutex::new(cells.chunk_by(|(_, a), (_, b)| (a.0, a.1) == (b.0, b.1)));
    let rows = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let Some(group) = groups.lock().unwrap().next() else { return };
            let (whom, fault, _) = group[0].1;
            let Some(mut bed) = Bed::new(whom, fault) else { return };
            for (place, cell) in group {
                let row = run(&mut bed, *cell);
                eprintln!("{row}");
                rows.lock().unwrap().insert(*place, row);
            }
        }
    };
    std::thread::scope(|scope| (0..LABS).for_each(|_| drop(scope.spawn(work))));
    rows.into_inner().unwrap().into_values().collect()
}

/// Whether a cell is one of those that `THALWEG_CELLS` names; all are, if it is not set.
fn is_asked<W: fmt::Debug>((whom, fault, work): &(Whom, Fault, W)) -> bool {
    let name = format!("{whom:?}-{fault:?}-{work:?}");
    std::env::var("THALWEG_CELLS").map_or(true, |words| words.split(',').any(|word| name.contains(word)))
}

/// Prints a row for each cell. None may have anything that should not have been.
fn show<'a>(rows: impl Iterator<Item = (&'a dyn Display, &'a Vec<String>)>) {
    println!("{:<9} {:<13} {:<7} {:>9} {:>9}  outcome", "whom", "fault", "at", "slowest", "read");
    let mut wrong = Vec::new();
    for (row, its) in rows {
        println!("{row}");
        wrong.extend(its);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What came of a cell.
struct Row {
    cell: Cell,
    worked: Ended,
    read: Ended,
    /// Copies that missed a write.
    stale: usize,
    /// What should not have been.
    wrong: Vec<String>,
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (whom, fault, work) = self.cell;
        let (whom, fault, work) = (format!("{whom:?}"), format!("{fault:?}"), format!("{work:?}"));
        let (slowest, read) = (self.worked.slowest_seconds, self.read.slowest_seconds);
        write!(f, "{whom:<9} {fault:<13} {work:<7} {slowest:>7.2} s {read:>7.2} s  ")?;
        match &self.worked.error {
            None => f.write_str("continues")?,
            Some(e) => write!(f, "{e}")?,
        }
        if self.stale > 0 {
            write!(f, "; {} copies missed a write", self.stale)?;
        }
        if !self.wrong.is_empty() {
            write!(f, "; WRONG: {}", self.wrong.join("; "))?;
        }
        Ok(())
    }
}

impl Row {
    /// Compares what programs saw with what they may see.
    fn judge(&mut self) {
        let (whom, fault, work) = self.cell;
        let Ended { error, slowest_seconds, .. } = &self.worked;
        let errno = error.as_ref().and_then(std::io::Error::raw_os_error);
        let mut wrong = Vec::new();
        let mut expect = |holds: bool, what: String| {
            if !holds {
                wrong.push(format!("{whom:?} {fault:?} {work:?}: {what}"));
            }
        };
        match whom {
            Whom::Store | Whom::Forwarder | Whom::Machine => {
                expect(error.is_none(), format!("{error:?}"));
                expect(*slowest_seconds < WRITE_SECONDS_MAX, format!("it took {slowest_seconds:.1} s"));
            }
            Whom::Manager => {
                // Who writes asks the manager only once, and a disk that is full may have room within its files.
                let may_continue = work == Work::Write || fault == Fault::DiskFull;
                expect(may_continue || error.is_some(), "it continued without the manager".into());
                let expected = if fault == Fault::DiskFull { libc::ENOSPC } else { libc::EIO };
                expect(errno.is_none_or(|errno| errno == expected), format!("{error:?}"));
                expect(*slowest_seconds < FAIL_SECONDS_MAX, format!("it took {slowest_seconds:.1} s"));
            }
            Whom::Client if fault == Fault::Freeze => {
                expect(errno.is_none_or(|errno| errno == libc::EIO), format!("{error:?}"));
            }
            Whom::Client => {
                expect(error.is_some(), "it continued without anybody".into());
                expect(*slowest_seconds < FAIL_SECONDS_MAX, format!("it took {slowest_seconds:.1} s"));
            }
        }
        if whom != Whom::Client {
            let Ended { error, slowest_seconds, .. } = &self.read;
            expect(error.is_none(), format!("a read: {error:?}"));
            expect(*slowest_seconds < READ_SECONDS_MAX, format!("a read took {slowest_seconds:.1} s"));
        }
        self.wrong.extend(wrong);
    }
}

impl Bed {
    /// One cell, after which everything is as it was before.
    fn row(&mut self, cell: Cell) -> Row {
        let (whom, fault, work) = cell;
        let name = format!("{whom:?}-{fault:?}-{work:?}");
        self.mount();
        let dir = self.at().join(&name);
        std::fs::create_dir(&dir).unwrap();
        let slot = (whom == Whom::Forwarder).then(|| self.forwards(&name));
        let (worker, reader) = (Worker::start(work, &dir, slot), Worker::reads(&self.at().join(bed::BASE)));
        worker.is_under_way();
        self.does(whom, fault);
        worker.had_fault();
        reader.had_fault();
        if (whom, fault) == (Whom::Client, Fault::Freeze) {
            // Nobody tells when the nodes have given the client up.
            std::thread::park_timeout(FROZEN);
            self.heal(whom, fault);
        }
        let (worked, read) = (worker.ends(), reader.ends());
        let hangs = worked.is_none() || read.is_none();
        if hangs || (whom == Whom::Client && fault != Fault::Freeze) {
            self.kill_mount(hangs);
            self.heal(whom, fault);
            self.mount();
        } else {
            self.heal(whom, fault);
        }
        let (worked, read) = (worked.unwrap_or_else(Ended::never), read.unwrap_or_else(Ended::never));
        let mut row = Row { cell, stale: 0, wrong: Vec::new(), worked, read };
        row.judge();
        let again = dir.join("again");
        until_within(RETURN_SECONDS_MAX, &format!("{name} works again"), || work.works(&again));
        self.unmount();
        let watch = Stopwatch::start();
        loop {
            let lost = self.lost(&name, work, row.worked.steps).map(|what| format!("{name}: {what}"));
            let checked = self.check().map_err(|problems| format!("{name}: {problems:?}"));
            match (lost, checked) {
                (None, Ok(stale)) => row.stale = stale,
                // The manager does not ask a store for a while that it could not reach.
                _ if whom == Whom::Manager && watch.seconds() < RETURN_SECONDS_MAX => continue,
                (lost, checked) => row.wrong.extend(lost.into_iter().chain(checked.err())),
            }
            break;
        }
        row
    }
}
