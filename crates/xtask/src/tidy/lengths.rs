//! Limits of length: 70 lines for a function, 800 for a file, and 1,500 for a file in the ratchet.
//!
//! Invariant: every longer file or function is listed in the ratchet with its length, which may only shrink. A line
//! there is `PATH NAME LINES`; the name of a whole file is `file`.

use std::collections::BTreeMap;

use super::finding::{Finding, RATCHET};
use crate::source::Source;
use crate::tree::Tree;

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_SOFT: usize = 800;
const FILE_LINES_HARD: usize = 1500;
const WHOLE: &str = "file";

/// Lengths by path and name.
type Lengths = BTreeMap<(String, String), usize>;

/// Files and functions that are too long and not in the ratchet, and outdated entries of the ratchet.
pub(super) fn check(tree: &Tree, ratchet: &str) -> Vec<Finding> {
    let (long, listed) = (too_long(tree), read(ratchet));
    let mut found = Vec::new();
    for ((path, name), lines) in &long {
        let limit = if name == WHOLE { FILE_LINES_SOFT } else { FUNCTION_LINES_MAX };
        let allowed = listed.get(&(path.clone(), name.clone()));
        let mut say = |what| found.push(Finding { path: path.clone(), line: 0, what });
        match allowed {
            None => say(format!("{name} has {lines} lines, more than {limit}")),
            Some(allowed) if lines > allowed => {
                say(format!("{name} has grown from {allowed} lines to {lines}"))
            }
            Some(_) if name == WHOLE && *lines > FILE_LINES_HARD => {
                say(format!("{name} has {lines} lines, more than any file may have"));
            }
            Some(_) => {}
        }
    }
    for (key, allowed) in &listed {
        if long.get(key).is_none_or(|lines| lines < allowed) {
            let what = format!("{} {} is shorter now: cargo xtask tidy --ratchet", key.0, key.1);
            found.push(Finding { path: RATCHET.into(), line: 0, what });
        }
    }
    found
}

/// The ratchet with reduced lengths, and without entries that are no longer too long.
pub(super) fn tightened(tree: &Tree, ratchet: &str) -> String {
    let long = too_long(tree);
    let mut text: String =
        ratchet.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    for (key, allowed) in read(ratchet) {
        if let Some(lines) = long.get(&key) {
            text += &format!("{} {} {}\n", key.0, key.1, allowed.min(*lines));
        }
    }
    text
}

fn read(ratchet: &str) -> Lengths {
    let mut lengths = Lengths::new();
    for line in ratchet.lines().filter(|line| !line.starts_with('#')) {
        if let [path, name, lines] = line.split(' ').collect::<Vec<_>>()[..] {
            lengths.insert((path.into(), name.into()), lines.parse().unwrap_or(0));
        }
    }
    lengths
}

fn too_long(tree: &Tree) -> Lengths {
    let mut lengths = Lengths::new();
    for file in tree.rust() {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_SOFT {
            lengths.insert((file.path.clone(), WHOLE.into()), lines);
        }
        for function in Source::of(&file.text).functions() {
            if function.lines > FUNCTION_LINES_MAX {
                // If a file has two functions of one name, the longer one counts.
                let longest = lengths.entry((file.path.clone(), function.name)).or_default();
                *longest = function.lines.max(*longest);
            }
        }
    }
    lengths
}
