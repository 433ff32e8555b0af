//! Every check there is, one after the other, and a last line that adds them up.
//!
//! Law: a step that fails does not keep the next from running, and nothing that ran is left out of the sum: a
//! step counts as one, tests count each.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{docs, tidy};

/// How many passed, failed, and were left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

/// Where tests say that they could not run here, each on a line with its name and why.
const SKIPPED: &str = "target/skipped";

/// One step.
enum Step {
    /// A program that is to end well.
    Program(&'static [&'static str]),
    /// Tests, counted one by one: what follows [`CARGO_TEST`].
    Tests(&'static [&'static str]),
    /// A check of this crate's own.
    Own(fn(&Path) -> bool),
}

/// A program of tests that hangs is ended after 15 minutes, and has failed; its last lines say which test it was.
const CARGO_TEST: &[&str] =
    &["cargo", "--config", "target.'cfg(unix)'.runner = ['timeout', '--foreground', '900']", "test"];

const STEPS: &[(&str, Step)] = &[
    ("format", Step::Program(&["cargo", "fmt", "--all", "--check"])),
    ("tidy", Step::Own(tidy::run)),
    (
        "lints",
        Step::Program(&[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]),
    ),
    ("documents", Step::Own(docs::check)),
    ("tests", Step::Tests(&["--workspace", "--no-fail-fast"])),
    ("canaries", Step::Tests(&["--package", "thalweg-sort", "--features", "sabotage", "--test", "canaries"])),
    (
        "canaries of a river",
        Step::Tests(&[
            "--package",
            "thalweg-engine",
            "--features",
            "sabotage",
            "--test",
            "partition",
            "canaries",
        ]),
    ),
    (
        "canaries of merge and join",
        Step::Tests(&["--package", "thalweg-engine", "--features", "sabotage", "--test", "canaries"]),
    ),
];

/// Runs every step; true if all passed.
pub(crate) fn run(root: &Path) -> bool {
    let mut sum = Tally::default();
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        println!("== {name}");
        let tally = match step {
            Step::Program(words) => one(program(root, words)),
            Step::Tests(words) => tests(root, &[CARGO_TEST, words].concat(), &mut std::io::stdout()),
            Step::Own(check) => one(check(root)),
        };
        if tally.failed > 0 {
            failed.push(*name);
        }
        sum.passed += tally.passed;
        sum.failed += tally.failed;
        sum.skipped += tally.skipped;
    }
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
    sum.failed == 0
}

fn one(good: bool) -> Tally {
    Tally { passed: good.into(), failed: (!good).into(), skipped: 0 }
}

fn command(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(root).stdin(Stdio::null());
    command
}

fn program(root: &Path, words: &[&str]) -> bool {
    command(root, words).status().is_ok_and(|status| status.success())
}

/// Shows what the tests print, and counts.
fn tests(root: &Path, words: &[&str], shown: &mut impl Write) -> Tally {
    let skipped = root.join(SKIPPED);
    let _ = std::fs::remove_file(&skipped);
    let mut tests = command(root, words);
    tests.env("THALWEG_SKIPPED", &skipped).stdout(Stdio::piped());
    let Ok(mut child) = tests.spawn() else { return one(false) };
    let mut tally = Tally::default();
    let out = BufReader::new(child.stdout.take().expect("a pipe was asked for"));
    for line in out.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        let _ = writeln!(shown, "{line}");
        if let Some(one) = result_of(&line) {
            tally.passed += one.passed;
            tally.failed += one.failed;
            tally.skipped += one.skipped;
        }
    }
    // A test that could not run has passed, as far as its program knows.
    for (test, why) in reasons(&std::fs::read_to_string(&skipped).unwrap_or_default()) {
        let _ = writeln!(shown, "skipped {test}: {why}");
        tally.skipped += 1;
        tally.passed = tally.passed.saturating_sub(1);
    }
    let ended_well = child.wait().is_ok_and(|status| status.success());
    if !ended_well && tally.failed == 0 {
        // It did not build, or a test took the whole program down.
        tally.failed = 1;
    }
    tally
}

/// What a `test result:` line counts.
fn result_of(line: &str) -> Option<Tally> {
    let rest = line.strip_prefix("test result: ")?;
    let count = |what: &str| {
        let (before, _) = rest.split_once(what)?;
        before.split_whitespace().next_back()?.parse().ok()
    };
    Some(Tally { passed: count(" passed;")?, failed: count(" failed;")?, skipped: count(" ignored")? })
}

/// The tests that could not run, each with all it said of that.
fn reasons(lines: &str) -> BTreeMap<&str, String> {
    let mut reasons: BTreeMap<&str, String> = BTreeMap::new();
    for (test, why) in lines.lines().filter_map(|line| line.split_once(' ')) {
        let said = reasons.entry(test).or_default();
        if !said.contains(why) {
            said.push_str(if said.is_empty() { "" } else { "; " });
            said.push_str(why);
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 34 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(result_of(line), Some(Tally { passed: 34, failed: 2, skipped: 0 }));
        assert_eq!(result_of("running 3 tests"), None);
    }

    #[test]
    fn a_test_that_could_not_run_is_counted_once_with_its_reasons() {
        let told = reasons("a::b no root\na::b no root\nc no disk, none\na::b no sshd\n");
        let expected = [("a::b", "no root; no sshd".to_string()), ("c", "no disk, none".to_string())];
        assert_eq!(told, BTreeMap::from(expected));
    }

    #[test]
    fn tests_that_do_not_even_start_count_as_one_that_failed() {
        let count = |words: &[&str]| tests(Path::new("."), words, &mut Vec::new());
        assert_eq!(count(&["false"]), Tally { passed: 0, failed: 1, skipped: 0 });
        assert_eq!(count(&["/nonexistent/program"]), Tally { passed: 0, failed: 1, skipped: 0 });
        let two = count(&["echo", "test result: ok. 5 passed; 0 failed; 0 ignored"]);
        assert_eq!(two, Tally { passed: 5, failed: 0, skipped: 0 });
    }
}
