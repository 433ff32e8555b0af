//! Recorded commands: the output of about 200 of them is compared with the recorded output.
//!
//! A file `NAME.txt` beside this one holds cases. A case begins with `== TITLE`. bash runs each line `$ COMMAND` in a
//! directory that only the commands of this case share, with `$T` for the program. Below a command are its standard
//! output (`1> `), its standard error (`2> `) and its exit status if that is not 0. Below the last command is every
//! file that is left, with its size and the XXH3 sum of its bytes. `~` stands for values that differ from run to run
//! (times, rates, memory, process ids).
//!
//! `THALWEG_RECORD=1 cargo test -p thalweg-cli --test recorded` records the commands again; `git diff` shows what
//! changed.
#![allow(clippy::disallowed_methods)] // Cases are files of the checkout, not of the product.

mod steady;
#[path = "../support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use support::Place;
use support::nodes::Nodes;
use xxhash_rust::xxh3::xxh3_64;

use steady::steady;

/// A title and its commands.
struct Case {
    title: String,
    commands: Vec<String>,
}

/// The cases of a file, without the recorded output.
fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("== ") {
            cases.push(Case { title: title.into(), commands: Vec::new() });
        } else if let Some(command) = line.strip_prefix("$ ") {
            cases.last_mut().expect("a title comes first").commands.push(command.into());
        }
    }
    cases
}

/// Appends each line of a text after a mark.
fn marked(shown: &mut String, mark: &str, text: &str) {
    for line in text.lines() {
        writeln!(shown, "{}", format!("{mark} {line}").trim_end()).unwrap();
    }
}

/// All files below a directory, in the order of their names.
fn files(of: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = of.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// A case in its recorded form: runs its commands in a new place, as the owner of the cluster if there is one.
fn shown(case: &Case, cluster: Option<&Nodes>) -> String {
    let (place, identity) = (&Place::new(), cluster.map(|nodes| nodes.place.0.join("own")));
    let mut places = vec![(&*place.0, "PLACE")];
    let mut variables = "unset XDG_CONFIG_HOME; export HOME=$PWD; ".to_string();
    if let Some(identity) = &identity {
        places.push((identity, "IDENTITY"));
        write!(variables, "export THALWEG_IDENTITY={}; ", identity.display()).unwrap();
    }
    let mut shown = format!("== {}\n", case.title);
    for command in &case.commands {
        let told = place.shell(&format!("{variables}{command}"));
        writeln!(shown, "$ {command}").unwrap();
        marked(&mut shown, "1>", &steady(&told.out, &places));
        marked(&mut shown, "2>", &steady(&told.err, &places));
        if told.status != Some(0) {
            writeln!(shown, "status {}", told.status.map_or("by a signal".into(), |s| s.to_string()))
                .unwrap();
        }
    }
    let mut left = Vec::new();
    files(&place.0, &mut left);
    for path in left {
        let name = path.strip_prefix(&place.0).unwrap().to_string_lossy();
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            writeln!(shown, "file {name} {} {:016x}", bytes.len(), xxh3_64(&bytes)).unwrap();
        } else if kind.is_symlink() {
            writeln!(shown, "link {name} {}", std::fs::read_link(&path).unwrap().display()).unwrap();
        } else {
            writeln!(shown, "special {name}").unwrap();
        }
    }
    shown
}

/// Runs the cases of a file and compares them, or records them.
fn replay(name: &str, mut run: impl FnMut(&Case) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(format!("{name}.txt"));
    let recorded = std::fs::read_to_string(&path).unwrap();
    let cases = cases(&recorded);
    assert!(!cases.is_empty(), "{name} has no cases");
    let now: Vec<String> = cases.iter().map(&mut run).collect();
    if std::env::var_os("THALWEG_RECORD").is_some() {
        std::fs::write(&path, now.join("\n")).unwrap();
        return;
    }
    let before: Vec<String> =
        recorded.split("\n== ").map(|case| case.trim_start_matches("== ").into()).collect();
    let mut differ = String::new();
    for (before, now) in before.iter().zip(&now) {
        let now = now.trim_start_matches("== ");
        if before.trim_end() != now.trim_end() {
            writeln!(differ, "\n{name}: {}", now.lines().next().unwrap_or_default()).unwrap();
            let (was, is): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
            was.iter()
                .filter(|line| !is.contains(line))
                .for_each(|line| writeln!(differ, "- {line}").unwrap());
            is.iter()
                .filter(|line| !was.contains(line))
                .for_each(|line| writeln!(differ, "+ {line}").unwrap());
        }
    }
    assert!(differ.is_empty(), "not as recorded (- was, + is):{differ}");
}

/// Cases on this machine alone, each in an empty directory.
fn alone(name: &str) {
    replay(name, |case| shown(case, None));
}

macro_rules! alone {
    ($($name:ident),*) => { $(#[test] fn $name() { alone(stringify!($name)); })* };
}
alone!(sort, shuffle, merge, join, partition, pump, volume, gen_and_check, plan, documents, refusals);

/// Cases on a cluster of three nodes, which they share.
#[test]
fn cluster() {
    let nodes = Nodes::start(3);
    replay("cluster", |case| shown(case, Some(&nodes)));
}
