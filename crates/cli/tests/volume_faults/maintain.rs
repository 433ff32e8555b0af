//! `repair` and `replace` on the nodes of a cluster, while a host fails: the one whose copies are made anew, one whose
//! copies are read, the manager's, or that of the command.
//!
//! Invariant, for every cell: the command succeeds, or fails with one line within [`ENDS_SECONDS_MAX`]. When everything
//! works again, the same command completes the work; then no copy is stale, and everything reads back.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};

use thalweg_api::{VolumeStatus, from_json};
use thalweg_base::clock::Stopwatch;

use crate::bed::{BASE, Bed};
use crate::support::{Outcome, Running, until, until_within};
use crate::{FROZEN, Fault, RETURN_SECONDS_MAX, Whom};

/// The longest that a command may take which cannot complete: several requests, each of which has 10 s.
const ENDS_SECONDS_MAX: f64 = 60.0;
/// So many bytes that copying a store's part of them takes a while.
const BYTES: usize = 48 << 20;

/// Work on the store of [`Whom::Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Copies that missed writes while their host was down are brought up to date.
    Repair,
    /// The store moves to another directory of its host.
    Replace,
}

/// What happens to whom during which work.
pub(crate) type Cell = (Whom, Fault, Verb);

/// What came of a cell.
pub(crate) struct Row {
    cell: Cell,
    seconds: f64,
    /// The line that the command ended with, if it failed.
    error: Option<String>,
    /// What should not have been.
    pub(crate) wrong: Vec<String>,
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (whom, fault, verb) = self.cell;
        let (whom, fault, verb) = (format!("{whom:?}"), format!("{fault:?}"), format!("{verb:?}"));
        write!(f, "{whom:<9} {fault:<13} {verb:<7} {:>7.2} s {:>9}  ", self.seconds, "")?;
        f.write_str(self.error.as_deref().unwrap_or("completes"))?;
        if !self.wrong.is_empty() {
            write!(f, "; WRONG: {}", self.wrong.join("; "))?;
        }
        Ok(())
    }
}

/// The directory of a store's parent on this machine, where the labs' hosts are.
fn here(place: &str) -> &Path {
    Path::new(place.split_once(':').expect("it names its node").1)
}

/// The strips of a store in this directory.
fn strips(dir: &Path) -> usize {
    let files = fs::read_dir(dir.join("films.thalweg-store")).into_iter().flatten().flatten();
    files.filter(|file| file.path().extension().is_some_and(|end| end == "strip")).count()
}

impl Bed {
    fn at_client(&self, words: &[&str]) -> Running {
        Running::start(&mut self.in_network_of(Whom::Client.host(), words))
    }

    /// Where the store is now, as commands name it.
    fn store(&self) -> String {
        let told = self.run(&["volume", "status", "films", "--json"]);
        let status: VolumeStatus = from_json(told.is_done()).unwrap();
        let of_host = format!("{}:", Whom::Store.host());
        let store = status.stores.into_iter().find(|store| store.directory.starts_with(&of_host)).unwrap();
        store.directory.strip_suffix("/films.thalweg-store").unwrap().into()
    }

    /// Runs the work to its end, which a fault may have come before; a new store gets a directory of its own.
    fn again(&self, verb: Verb, old: &str, new: &str) -> Outcome {
        match verb {
            Verb::Repair => self.run(&["volume", "repair", "films"]),
            Verb::Replace => self.run(&["volume", "replace", "films", old, new]),
        }
    }

    fn new_directory(&self, name: &str) -> String {
        let dir: PathBuf = self.dir(Whom::Store.host()).join(name);
        fs::create_dir(&dir).unwrap();
        format!("{}:{}", Whom::Store.host(), dir.display())
    }

    /// One cell, after which everything is as it was before.
    pub(crate) fn maintained(&self, cell: Cell) -> Row {
        let (whom, fault, verb) = cell;
        let name = format!("{whom:?}-{fault:?}-{verb:?}");
        fs::write(self.dir(&name), (0..BYTES).map(|i| (i >> 12) as u8).collect::<Vec<_>>()).unwrap();
        let pump = || self.run(&["pump", "-q", &name, &format!("volume:films/{name}")]).is_done().len();
        let old = self.store();
        let new = self.new_directory(&format!("{name}-new"));
        let (words, into) = match verb {
            Verb::Repair => {
                self.does(Whom::Store, Fault::Kill);
                pump();
                self.heal(Whom::Store, Fault::Kill);
                (vec!["volume", "repair", "films"], here(&old))
            }
            Verb::Replace => {
                pump();
                (vec!["volume", "replace", "films", &old, &new], here(&new))
            }
        };
        let before = strips(into);
        let running = self.at_client(&words);
        until("the first strip", || strips(into) > before);
        let watch = Stopwatch::start();
        match (whom, fault) {
            (Whom::Client, Fault::Kill) => running.signal("-KILL"),
            (Whom::Client, Fault::Freeze) => {
                running.signal("-STOP");
                // Nobody tells when the nodes have given the client up.
                std::thread::park_timeout(FROZEN);
                running.signal("-CONT");
            }
            _ => self.does(whom, fault),
        }
        let ended = running.ends_within(ENDS_SECONDS_MAX, &name);
        let seconds = watch.seconds();
        if whom != Whom::Client || !matches!(fault, Fault::Kill | Fault::Freeze) {
            self.heal(whom, fault);
        }
        let mut row = Row { cell, seconds, error: None, wrong: Vec::new() };
        match ended.status {
            Some(0) => {}
            // The check that follows a replacement finds the stores lost.
            Some(1) if (whom, verb) == (Whom::Machine, Verb::Replace) && ended.out.contains("is lost") => {}
            Some(2) if ended.err.trim().lines().count() == 1 => row.error = Some(ended.err.trim().into()),
            None if (whom, fault) == (Whom::Client, Fault::Kill) => row.error = Some("is killed".into()),
            _ => row.wrong.push(format!("{name}: {ended:?}")),
        }
        self.completes(&name, (verb, &old), ended.status.is_some_and(|status| status < 2));
        self.is_whole(&name, &mut row);
        row
    }

    /// Gives the command again until it completes.
    fn completes(&self, name: &str, (verb, old): (Verb, &str), was_done: bool) {
        let (mut is_done, mut tries) = (was_done, 0);
        let again = || {
            if !is_done {
                tries += 1;
                let told = self.again(verb, old, &self.new_directory(&format!("{name}-{tries}")));
                // The one before may have completed without being able to tell.
                is_done = told.status == Some(0) || told.err.contains("is no store of volume");
            }
            is_done && self.run(&["volume", "repair", "films"]).status == Some(0)
        };
        until_within(RETURN_SECONDS_MAX, &format!("{name}: the command that completes"), again);
    }

    /// Notes what is not as it should be when the work is complete.
    fn is_whole(&self, name: &str, row: &mut Row) {
        match self.check() {
            Ok(0) => {}
            Ok(stale) => row.wrong.push(format!("{name}: {stale} copies are stale")),
            Err(problems) => row.wrong.push(format!("{name}: {problems:?}")),
        }
        for file in [BASE, name] {
            let back = self.dir("back");
            let copied = self.run(&["pump", "-q", &format!("volume:films/{file}"), "back"]);
            if copied.status != Some(0) || fs::read(&back).unwrap() != fs::read(self.dir(file)).unwrap() {
                row.wrong.push(format!("{name}: {file} is not as it was: {}", copied.err));
            }
            let _ = fs::remove_file(back);
        }
        fs::remove_file(self.dir(name)).unwrap();
        self.run(&["volume", "status", "films"]).is_done();
    }
}
