//! `unsafe` and printing are allowed in a few places only, and every file begins with a header.

use super::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;

/// A word in code, and the files where it is allowed.
struct Fence {
    word: &'static str,
    places: &'static [&'static str],
    why: &'static str,
}

const PRINTS: &[&str] = &["crates/cli/", "crates/bench/", "crates/xtask/"];

const FENCES: &[Fence] = &[
    Fence {
        word: "unsafe",
        places: &[
            "crates/block/",
            "crates/io/src/uring.rs",
            "crates/io/src/os.rs",
            "crates/io/src/process.rs",
            "crates/io/src/standard.rs",
            "crates/py/src/buffer.rs",
        ],
        why: "unsafe has three addresses: block, the system calls of io, and the buffers that py lends",
    },
    Fence { word: "println", places: PRINTS, why: "only the command prints" },
    Fence { word: "eprintln", places: PRINTS, why: "only the command prints" },
    Fence { word: "print", places: PRINTS, why: "only the command prints" },
    Fence { word: "eprint", places: PRINTS, why: "only the command prints" },
];

/// Words outside their allowed files, and files without a header.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let finding = |line, what: &str| Finding { path: file.path.clone(), line, what: what.to_string() };
        if !file.text.starts_with("//!") {
            found.push(finding(
                1,
                "a file begins with a //! header: what it is, its invariant, what it refuses",
            ));
        }
        // A test may print: the test harness shows it only if the test fails.
        let is_test = file.path.contains("/tests/");
        let source = Source::of(&file.text);
        for fence in
            FENCES.iter().filter(|fence| !fence.places.iter().any(|place| file.path.starts_with(place)))
        {
            if is_test && fence.word != "unsafe" {
                continue;
            }
            let lines = source.code.lines().enumerate().filter(|(_, line)| is_used(line, fence.word));
            found.extend(lines.map(|(i, _)| finding(i + 1, fence.why)));
        }
    }
    found
}

/// Whether the line uses the word: `unsafe` anywhere, the other words only as macros.
fn is_used(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let is_whole = !before.is_some_and(is_name) && !after.is_some_and(is_name);
        is_whole && (word == "unsafe" || after == Some('!'))
    })
}
