//! Imports run left: a room may depend only on rooms before it in the order of the stream.

use super::Finding;
use crate::tree::{File, Tree};

/// The order of the stream; DESIGN's law.
const ROOMS: &[&str] = &[
    "base", "api", "block", "record", "io", "pump", "wire", "transfer", "river", "merge", "sort", "volume",
    "table", "engine", "job", "node", "thalweg", "cli", "py", "bench", "xtask",
];

/// The one import to the right: `thalweg bench` is a command.
const EXCEPT: &[(&str, &str)] = &[("cli", "bench")];

/// What depends on a room that is not to its left, and rooms that the order does not name.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter_map(|file| Some((room_of(&file.path)?, file)));
    manifests.flat_map(|(room, file)| check_room(room, file)).collect()
}

fn room_of(path: &str) -> Option<&str> {
    let room = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!room.contains('/')).then_some(room)
}

fn check_room(room: &str, manifest: &File) -> Vec<Finding> {
    let finding = |line, what| Finding { path: manifest.path.clone(), line, what };
    let Some(place) = ROOMS.iter().position(|name| *name == room) else {
        return vec![finding(0, format!("'{room}' has no place in the order of rooms"))];
    };
    let mut found = Vec::new();
    let mut inside = false;
    for (i, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        }
        let Some(other) = imported(line).filter(|_| inside) else { continue };
        let is_left = ROOMS.iter().position(|name| *name == other).is_some_and(|at| at < place);
        if !is_left && !EXCEPT.contains(&(room, other)) {
            found.push(finding(i + 1, format!("{room} imports {other}, which is not to its left")));
        }
    }
    found
}

/// The room that a line of dependencies names, in either way of writing it.
fn imported(line: &str) -> Option<&str> {
    let line = line.strip_prefix("[dependencies.").unwrap_or(line);
    let name = line.split([' ', '=', '.', ']']).next()?;
    match name.strip_prefix("thalweg-") {
        Some(room) => Some(room),
        None => (name == "thalweg" || name == "xtask").then_some(name),
    }
}
