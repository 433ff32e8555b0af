//! Text that no tracked file may contain: marks of unfinished work, and paths and hosts of one machine.

use super::finding::Finding;
use crate::tree::Tree;

/// Each text is split in two, so that this file does not contain it.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("TO", "DO", "left to do: do it, or open an issue"),
    ("FIX", "ME", "left to do: do it, or open an issue"),
    ("/ho", "me/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("/wo", "rk/", "a path of one machine"),
    ("/Use", "rs/", "a path of one machine"),
    ("index.", "crates.io", "a registry's host"),
    ("static.", "crates.io", "a registry's host"),
    ("pypi", ".org", "a registry's host"),
    ("python", "hosted.org", "a registry's host"),
    ("npmjs", ".org", "a registry's host"),
    ("artifac", "tory", "a registry's host"),
    ("pkg", ".dev", "a registry's host"),
];

/// The only source in the lock file.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Lines with forbidden text.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        for (i, line) in file.text.lines().enumerate() {
            let mut say = |what: String| found.push(Finding { path: file.path.clone(), line: i + 1, what });
            for (a, b, why) in FORBIDDEN {
                if holds(line, &format!("{a}{b}")) {
                    say(format!("'{a}{b}': {why}"));
                }
            }
            if file.path == "Cargo.lock" && line.starts_with("source = ") && !line.contains(SOURCE) {
                say("a package that is not from the public registry".into());
            }
        }
    }
    found
}

/// Whether the line contains the text as a whole word, or as the beginning of a path.
fn holds(line: &str, text: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    line.match_indices(text).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + text.len()..].chars().next();
        !before.is_some_and(goes_on) && (text.ends_with('/') || !after.is_some_and(char::is_alphanumeric))
    })
}
