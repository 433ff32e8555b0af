//! Runs all checks one after the other, and prints a last line with the totals.
//!
//! Invariant: after a failed step the next one still runs, and the totals include everything that ran. A step counts as
//! one, and so does each test. Failures are shown again at the end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::test_programs::{self, Outcome, Tally, result_of};
use crate::{command, docs, tidy};

/// One step.
enum Step {
    /// A program that must succeed.
    Program(&'static [&'static str]),
    /// All test programs.
    Tests,
    /// The examples in documentation, which cargo runs.
    Examples,
    /// A check of this crate.
    Own(fn(&Path) -> bool),
}

const CLIPPY: &[&str] =
    &["cargo", "clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];

const STEPS: &[(&str, Step)] = &[
    ("format", Step::Program(&["cargo", "fmt", "--all", "--check"])),
    ("tidy", Step::Own(tidy::run)),
    ("lints", Step::Program(CLIPPY)),
    ("documents", Step::Own(docs::check)),
    ("tests", Step::Tests),
    ("examples", Step::Examples),
];

/// Runs all steps. Returns whether everything passed.
pub(crate) fn run(root: &Path) -> bool {
    let mut sum = Tally::default();
    let mut failed = Vec::new();
    let mut tests = Outcome::default();
    let mut times = Vec::new();
    for (name, step) in STEPS {
        println!("== {name}");
        let start = Instant::now();
        let tally = match step {
            Step::Program(words) => one(program(root, words)),
            Step::Own(check) => one(check(root)),
            Step::Examples => examples(root),
            Step::Tests => {
                tests = test_programs::run(root, &mut std::io::stdout());
                tests.tally
            }
        };
        times.push(format!("{name} {:.0} s", start.elapsed().as_secs_f64()));
        if tally.failed > 0 {
            failed.push(*name);
        }
        sum += tally;
    }
    for (name, output) in &tests.failed {
        println!("== {name}\n{output}");
    }
    for test in &tests.flaky {
        println!(
            "flaky {test} (failed once, passed alone; the next time it is a failure, see crates/xtask/flaky.txt)"
        );
    }
    println!("times: {}", times.join(", "));
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
    sum.failed == 0
}

fn one(good: bool) -> Tally {
    Tally { passed: good.into(), failed: (!good).into(), skipped: 0 }
}

fn program(root: &Path, words: &[&str]) -> bool {
    let mut program = command(root, words[0]);
    program.args(&words[1..]).stdin(Stdio::null());
    program.status().is_ok_and(|status| status.success())
}

/// Runs the examples with cargo, shows its output, and returns the counts.
fn examples(root: &Path) -> Tally {
    let mut cargo = command(root, "cargo");
    cargo.args(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
    let Ok(mut child) = cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else { return one(false) };
    let mut tally = Tally::default();
    let out = BufReader::new(child.stdout.take().expect("a pipe was asked for"));
    for line in out.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(counted) = result_of(&line) {
            tally += counted;
        }
    }
    let ended_well = child.wait().is_ok_and(|status| status.success());
    if !ended_well && tally.failed == 0 {
        // The examples did not build.
        tally.failed = 1;
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_that_do_not_even_build_count_as_one_that_failed() {
        // A missing directory, and one without a manifest.
        for root in ["/nonexistent", "/"] {
            assert_eq!(examples(Path::new(root)), Tally { passed: 0, failed: 1, skipped: 0 }, "{root}");
        }
    }
}
