//! Canaries: a sort with one mechanism broken on purpose must be detected as wrong.
//!
//! The test program starts itself again for each canary, with the mechanism's name in the environment. The last word
//! of its output is the result of the sort.
//! Invariant: without sabotage the same sort is right, so what is detected is the sabotage.

mod support;

use std::process::Command;

use support::cut_short::{SHARE_MAX, killed_after, share_after, spilling};
use support::{Case, MEMORY_MIN, Stage, Unwatched};
use thalweg_sort::Error;

const SABOTAGE: &str = "THALWEG_SABOTAGE";
/// Names the task of the process; without it, it does nothing.
const TASK: &str = "THALWEG_TEST_TASK";

/// The tasks.
#[test]
fn a_task_in_a_process_of_its_own() {
    let came = match std::env::var(TASK).as_deref() {
        Err(_) => return,
        Ok("sort") => sort(&spilling(1, 20_000_000)).to_string(),
        Ok("sort alike") => sort(&alike()).to_string(),
        Ok("shuffle") => shuffle().to_string(),
        Ok("resume") => {
            if share_after(0.8, false) <= SHARE_MAX { "right" } else { "too many bytes" }.to_string()
        }
        Ok("damage") => damage().to_string(),
        Ok(other) => panic!("no task is called {other}"),
    };
    println!("came: {came}");
}

/// Records that agree in more bytes than a proof keeps.
fn alike() -> Case {
    let record =
        |i: u32| [&[b'x'; 90_000][..], &i.wrapping_mul(0x9e37_79b9).to_be_bytes(), &[0; 9996]].concat();
    Case::fixed(100_000, (0..400).flat_map(record).collect())
}

fn sort(case: &Case) -> &'static str {
    let stage = Stage::simulated(1);
    match stage.attempt(&stage.set(case)) {
        Ok(receipt) => {
            assert!(receipt.io.scratch.written_bytes > 0, "nothing was spilled");
            let is_right = stage.get("out/sorted") == Some(case.expected().output);
            if is_right { "right" } else { "wrong" }
        }
        Err(_) if stage.get("out/sorted").is_some() => "wrong",
        Err(Error::Mismatch(_)) => "mismatch",
        Err(Error::Damaged { .. }) => "damaged",
        Err(error) => panic!("{error}"),
    }
}

/// Shuffles two files in little memory and in much.
fn shuffle() -> &'static str {
    let mut case = spilling(1, 20_000_000).shuffled(1);
    let second = case.inputs[0].split_off(1_000_000);
    case.inputs.push(second);
    let outputs = [MEMORY_MIN, 8 * MEMORY_MIN].map(|memory| {
        let stage = Stage::simulated(1);
        let case = case.clone().within(memory);
        let outcome = stage.run(&case, &stage.set(&case), &Unwatched);
        outcome.map(|_| stage.get("out/sorted"))
    });
    match outputs {
        [Ok(a), Ok(b)] => {
            if a == b {
                "right"
            } else {
                "another order"
            }
        }
        [Err(Error::Mismatch(_)), _] => "mismatch",
        [a, b] => panic!("{:?} {:?}", a.err(), b.err()),
    }
}

/// Resumes after a bit of the partial output was flipped.
fn damage() -> &'static str {
    let case = spilling(1, 20_000_000);
    let (stage, sort) = killed_after(&case, 1.8);
    let receipt = stage.twin().attempt(&sort).expect("it is gone on from");
    assert!(receipt.resumed_output_bytes > 0, "nothing was noted");
    let stage = stage.next_process();
    stage.disk().flip_bit(stage.path("out/.sorted.thalweg-partial"), 8 * (receipt.resumed_output_bytes - 1));
    stage.attempt(&sort).expect("it is gone on from");
    let is_right = stage.get("out/sorted") == Some(case.expected().output);
    if is_right { "right" } else { "wrong" }
}

/// The result of a task in a process with this sabotage.
fn came_of(task: &str, sabotage: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().expect("the test program has a name"));
    command.args(["a_task_in_a_process_of_its_own", "--exact", "--nocapture"]).env(TASK, task);
    match sabotage {
        Some(name) => command.env(SABOTAGE, name),
        None => command.env_remove(SABOTAGE),
    };
    let output = command.output().expect("it starts");
    let (said, cried) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{task} with {sabotage:?}:\n{said}\n{cried}");
    let came = said.lines().find_map(|line| line.split_once("came: "));
    came.expect("it says what came of it").1.to_string()
}

#[test]
fn canary_nothing_is_broken() {
    assert_eq!(came_of("sort", None), "right");
    assert_eq!(came_of("sort alike", None), "right");
    assert_eq!(came_of("shuffle", None), "right");
    assert_eq!(came_of("resume", None), "right");
    assert_eq!(came_of("damage", None), "right");
}

#[test]
fn canary_a_record_is_doubled_in_the_gather() {
    assert_eq!(came_of("sort", Some("double-record")), "mismatch");
    assert_eq!(came_of("shuffle", Some("double-record")), "mismatch");
}

#[test]
fn canary_a_record_is_lost_in_the_distribution() {
    assert_eq!(came_of("sort", Some("drop-record")), "mismatch");
    assert_eq!(came_of("shuffle", Some("drop-record")), "mismatch");
}

#[test]
fn canary_two_records_are_swapped() {
    assert_eq!(came_of("sort", Some("swap-order")), "mismatch");
    assert_eq!(came_of("sort alike", Some("swap-order")), "mismatch");
}

#[test]
fn canary_the_output_is_proved_before_it_is_there() {
    assert_eq!(came_of("sort", Some("early-proof")), "mismatch");
}

#[test]
fn canary_a_bit_of_a_page_flips_before_it_is_spilled() {
    assert_eq!(came_of("sort", Some("flip-page")), "damaged");
}

#[test]
fn canary_the_manifest_is_ignored() {
    assert_eq!(came_of("resume", Some("ignore-manifest")), "too many bytes");
}

/// A proof does not distinguish two random orders, but the outputs do.
#[test]
fn canary_tags_depend_on_how_memory_is_laid_out() {
    assert_eq!(came_of("shuffle", Some("tag-of-place")), "another order");
}

/// The only fault that the sort cannot detect: it resumes from what another process proved.
#[test]
fn canary_a_damaged_partial_output_is_trusted() {
    assert_eq!(came_of("damage", Some("trust-partial")), "wrong");
}
