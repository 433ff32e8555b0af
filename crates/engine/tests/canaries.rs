//! Canaries: merges and joins with one mechanism broken on purpose must be detected as wrong.
//!
//! The test program starts itself again for each canary, with the mechanism's name in the environment.
//! Invariant: without sabotage the same verb succeeds, so what is detected is the sabotage; and a wrong output gets no
//! name.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use std::process::Command;

use place::Place;
use thalweg_engine::{JoinKind, KeyPart, Layout, Progress, RightSide, Size, Work, WorkOptions, run};

const SABOTAGE: &str = "THALWEG_SABOTAGE";
/// Names the task of the process; without it, it does nothing.
const TASK: &str = "THALWEG_TEST_TASK";
const LAYOUT: Layout = Layout::Fixed(4);
const KEY: KeyPart = KeyPart { offset: 0, length: 4, descending: false };

/// The tasks.
#[test]
fn a_task_in_a_process_of_its_own() {
    let Ok(task) = std::env::var(TASK) else { return };
    let place = Place::new();
    let records = |step: u32| (0..1000).map(|i| i * step).flat_map(u32::to_be_bytes).collect::<Vec<u8>>();
    let inputs = [place.write("a", &records(2)), place.write("b", &records(3))];
    let output = place.end("out");
    let memory = Some(Size::Bytes(64 << 20));
    let options = match task.as_str() {
        "merge" => {
            let options = WorkOptions::new(Work::Merge, inputs.to_vec(), output, LAYOUT);
            WorkOptions { keys: vec![KEY], memory, ..options }
        }
        "join" => {
            // With a key of two of the bytes, many records on either side have the same key.
            let keys = vec![KeyPart { length: 3, ..KEY }];
            let [left, right] = inputs.map(|input| vec![input]);
            let right = RightSide {
                inputs: right,
                layout: LAYOUT,
                keys: keys.clone(),
                kind: JoinKind::Left,
                between: Vec::new(),
                ..RightSide::default()
            };
            let options = WorkOptions::new(Work::Join, left, output, LAYOUT);
            WorkOptions { keys, right: Some(right), memory, ..options }
        }
        other => panic!("no task is called {other}"),
    };
    let outcome = run(&options, &Progress::default());
    let has_name = place.names().contains(&"out".to_string());
    println!(
        "came: {}",
        match outcome {
            Ok(_) if has_name => "right",
            Err(why) if why.is_wrong() && !has_name => "noticed",
            other => panic!("{other:?}, {has_name}"),
        }
    );
}

/// The result of a task in a process with this sabotage.
#[track_caller]
fn came_of(task: &str, sabotage: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["a_task_in_a_process_of_its_own", "--exact", "--nocapture"]).env(TASK, task);
    match sabotage {
        Some(name) => command.env(SABOTAGE, name),
        None => command.env_remove(SABOTAGE),
    };
    let output = command.output().unwrap();
    let (said, cried) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{task} with {sabotage:?}:\n{said}\n{cried}");
    let came = said.lines().find_map(|line| line.split_once("came: "));
    came.expect("it says what came of it").1.to_string()
}

#[test]
fn canary_nothing_is_broken() {
    assert_eq!(came_of("merge", None), "right");
    assert_eq!(came_of("join", None), "right");
}

#[test]
fn canary_a_record_is_lost_in_the_merge() {
    assert_eq!(came_of("merge", Some("merge-drop")), "noticed");
}

#[test]
fn canary_an_input_is_not_read_to_its_end() {
    assert_eq!(came_of("merge", Some("merge-lose")), "noticed");
}

#[test]
fn canary_the_wrong_record_leaves() {
    assert_eq!(came_of("merge", Some("merge-unordered")), "noticed");
}

#[test]
fn canary_a_match_is_lost() {
    assert_eq!(came_of("join", Some("join-drop")), "noticed");
}

#[test]
fn canary_a_record_is_joined_with_another() {
    assert_eq!(came_of("join", Some("join-other")), "noticed");
}
