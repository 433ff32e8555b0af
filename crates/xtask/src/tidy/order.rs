//! Imports go left: a crate may depend only on crates before it in the order of the stream.

use super::finding::Finding;
use crate::tree::{File, Tree};

/// The crates in the order of the stream.
const CRATES: &[&str] = &[
    "base", "api", "block", "record", "io", "pump", "wire", "transfer", "river", "merge", "sort", "volume",
    "mount", "table", "engine", "job", "node", "thalweg", "verbs", "measure", "cli", "py", "bench", "xtask",
];

/// The one import to the right: tests of the command start the servers that benchmarks start.
const EXCEPT: &[(&str, &str)] = &[("cli", "bench")];

/// Dependencies on crates that are not to the left, and crates without a place in the order.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter_map(|file| Some((name_of(&file.path)?, file)));
    manifests.flat_map(|(name, file)| check_crate(name, file)).collect()
}

fn name_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!name.contains('/')).then_some(name)
}

fn check_crate(name: &str, manifest: &File) -> Vec<Finding> {
    let finding = |line, what| Finding { path: manifest.path.clone(), line, what };
    let place_of = |name: &str| CRATES.iter().position(|other| *other == name);
    let Some(place) = place_of(name) else {
        return vec![finding(0, format!("'{name}' has no place in the order of crates"))];
    };
    let mut found = Vec::new();
    let mut inside = false;
    for (i, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        }
        let Some(other) = imported(line).filter(|_| inside) else { continue };
        let is_left = place_of(other).is_some_and(|at| at < place);
        if !is_left && !EXCEPT.contains(&(name, other)) {
            found.push(finding(i + 1, format!("{name} imports {other}, which is not to its left")));
        }
    }
    found
}

/// The crate that a line of a manifest depends on, in either notation.
fn imported(line: &str) -> Option<&str> {
    let line = line.strip_prefix("[dependencies.").unwrap_or(line);
    let name = line.split([' ', '=', '.', ']']).next()?;
    match name.strip_prefix("thalweg-") {
        Some(name) => Some(name),
        None => (name == "thalweg" || name == "xtask").then_some(name),
    }
}
