//! The rules of style that are checked automatically.
//!
//! Invariant: each rule is a function from the files to findings. `fixtures/bad` is a small repository that breaks each
//! rule, and the findings there are compared with `fixtures/bad.txt`.
//! Non-goal: what rustfmt and clippy check.

mod cycles;
mod fences;
mod finding;
mod lengths;
mod links;
mod order;
mod places;

use std::path::Path;

use self::finding::{Finding, RATCHET};
use crate::tree::Tree;

/// All findings, in the order of the files.
fn findings(tree: &Tree) -> Vec<Finding> {
    let ratchet = tree.file(RATCHET).map_or("", |file| &file.text);
    let mut found = Vec::new();
    found.extend(order::check(tree));
    found.extend(fences::check(tree));
    found.extend(places::check(tree));
    found.extend(links::check(tree));
    found.extend(cycles::check(tree));
    found.extend(lengths::check(tree, ratchet));
    found.sort();
    found
}

/// Prints all findings. Returns whether there are none.
pub(crate) fn run(root: &Path) -> bool {
    let tree = Tree::of_repository(root);
    let found = findings(&tree);
    for finding in &found {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", tree.files.len(), found.len());
    found.is_empty()
}

/// Updates the ratchet for files and functions that became shorter. Those that grew remain findings.
pub(crate) fn tighten(root: &Path) -> bool {
    let tree = Tree::of_repository(root);
    let ratchet = tree.file(RATCHET).map_or("", |file| &file.text);
    let tightened = lengths::tightened(&tree, ratchet);
    std::fs::write(root.join(RATCHET), tightened).is_ok() && run(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::File;

    fn fixture(folder: &str) -> Tree {
        Tree::of_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder))
    }

    fn found_in(tree: &Tree) -> String {
        findings(tree).iter().map(|finding| format!("{finding}\n")).collect()
    }

    /// A function with this many lines.
    fn function(name: &str, lines: usize) -> String {
        format!("\nfn {name}() {{\n{}}}\n", "    let _ = 0;\n".repeat(lines - 2))
    }

    /// Files around the limits of length, which are too long to keep as fixtures.
    fn long_files() -> Vec<File> {
        let file = |name: &str, text| File { path: format!("crates/pump/src/{name}.rs"), text };
        let of_lines = |lines: usize| "//! Lengths.\n".to_string() + &"const _: u8 = 0;\n".repeat(lines - 1);
        let functions = [("just_short_enough", 70), ("too_long", 71), ("has_grown", 82), ("has_shrunk", 82)];
        let functions: String = functions.map(|(name, lines)| function(name, lines)).concat();
        vec![
            file("lib", "//! Lengths.\n".to_string() + &functions),
            file("long", of_lines(801)),
            file("longest", of_lines(1501)),
        ]
    }

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let expected = include_str!("../../fixtures/bad.txt");
        let mut bad = fixture("bad");
        bad.files.extend(long_files());
        let found = found_in(&bad);
        assert_eq!(found, expected, "found:\n{found}");
    }

    #[test]
    fn what_keeps_the_rules_is_left_alone() {
        assert_eq!(found_in(&fixture("good")), "");
    }

    #[test]
    fn this_repository_keeps_the_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = findings(&Tree::of_repository(&root));
        let found: Vec<String> = found.iter().map(Finding::to_string).collect();
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }
}
