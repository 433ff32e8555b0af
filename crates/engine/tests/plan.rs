//! The verb `plan` from outside: what it says about files, and that it does not change them.
//!
//! Invariant: what a plan says about passes, bytes and scratch is what a run then does. Predicted times are tested as
//! arithmetic, with invented rates, because the speed of a shared machine varies.
#![allow(clippy::disallowed_methods)] // A test looks at files from outside.

mod place;

use std::sync::{Mutex, MutexGuard, PoisonError};

use place::Place;
use thalweg_api::{Hardware, Plan, Receipt};
use thalweg_base::units::{MIB, Size};
use thalweg_engine::{
    Endpoint, GenOptions, IoChoice, KeyPart, Layout, Progress, Work, WorkOptions, generate, plan,
};
use thalweg_sort::{Facts, forecast};

/// A plan counts the memory of its process; tests in parallel would change it for each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn records(place: &Place, name: &str, count: u128) -> Endpoint {
    let output = place.end(name);
    let options = GenOptions { count, output, ascii: false, skewed: false, start: 0, io: IoChoice::Auto };
    generate(&options, &Progress::default()).unwrap();
    place.end(name)
}

fn options(input: Endpoint, output: Endpoint, memory_bytes: u64) -> WorkOptions {
    WorkOptions {
        keys: vec![KeyPart { offset: 0, length: 10, descending: false }],
        memory: Some(Size::Bytes(memory_bytes)),
        threads: Some(2),
        ..WorkOptions::new(Work::Sort, vec![input], output, Layout::Fixed(100))
    }
}

fn run(options: &WorkOptions) -> Receipt {
    thalweg_engine::run(options, &Progress::default()).unwrap()
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.stages.iter().map(|stage| stage.name.as_str()).collect()
}

fn refusal(options: &WorkOptions) -> String {
    let error = plan(options).unwrap_err();
    assert_eq!(error.exit_status(), 2);
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn small_files_take_one_pass_and_nothing_is_run() {
    let (_alone, place) = (alone(), Place::new());
    let output = place.write("out", b"old");
    for count in [0, 1, 1000, 100_000] {
        let asked = options(records(&place, "in", count), output.clone(), 128 * MIB);
        let plan = plan(&asked).unwrap();
        assert_eq!((plan.passes, plan.scratch_bytes, plan.method.as_str()), (1, 0, "in memory"));
        assert_eq!((u128::from(plan.records), u128::from(plan.input_bytes)), (count, count * 100));
        assert_eq!(names(&plan), ["read+distribute", "load+sort+write", "sync"]);
        assert_eq!(place.names(), ["in", "out"], "a plan runs nothing");
        assert_eq!(place.read("out"), b"old");
    }
}

#[test]
fn what_is_said_of_two_passes_is_what_a_run_then_does() {
    let (_alone, place) = (alone(), Place::new());
    let asked = options(records(&place, "in", 2_000_000), place.end("out"), 96 * MIB);
    let plan = plan(&asked).unwrap();
    assert_eq!(place.names(), ["in"], "a plan runs nothing");
    assert_eq!((plan.passes, plan.method.as_str(), plan.memory_bytes), (2, "distribute", 96 * MIB));
    let receipt = run(&asked);
    let near = |said: u64, done: u64| said.abs_diff(done) <= done / 10;
    assert!(near(plan.scratch_bytes, receipt.scratch_peak_bytes), "{plan:?} {receipt:?}");
    assert_eq!(names(&plan), receipt.stages.iter().map(|s| s.name.as_str()).collect::<Vec<_>>());
    for (said, done) in plan.stages.iter().zip(&receipt.stages) {
        assert!(near(said.read_bytes, done.read_bytes), "{said:?} {done:?}");
        assert!(near(said.written_bytes, done.written_bytes), "{said:?} {done:?}");
    }
}

#[test]
fn what_the_rates_were_measured_on_is_far_smaller_than_what_is_predicted() {
    let (_alone, place) = (alone(), Place::new());
    let asked = options(records(&place, "in", 1_000_000), place.end("out"), 512 * MIB);
    let plan = plan(&asked).unwrap();
    assert_eq!(plan.hardware.measured_bytes, thalweg_engine::calibration_bytes(), "{:?}", plan.hardware);
    assert!(plan.hardware.measured_bytes * 4 <= plan.input_bytes);
    assert!(plan.seconds > 0.0 && plan.seconds < 600.0, "{plan:?}");
}

#[test]
fn rates_measured_once_are_not_measured_again() {
    let (_alone, place) = (alone(), Place::new());
    let asked = options(records(&place, "in", 1000), place.end("out"), 128 * MIB);
    let [first, second] = [(); 2].map(|()| plan(&asked).unwrap().hardware);
    assert_eq!(first, second);
}

#[test]
fn what_a_sort_would_refuse_a_plan_refuses() {
    let (_alone, place) = (alone(), Place::new());
    let told = |input: Endpoint, output: &str| refusal(&options(input, place.end(output), 64 * MIB));
    assert!(told(place.end("missing"), "out").contains("missing"));
    let ragged = told(place.write("ragged", &[0; 150]), "out");
    assert!(ragged.contains("ragged") && ragged.contains("50 left over"), "{ragged}");
    assert!(told(place.end(""), "out").contains("is a directory"));
    let input = place.write("in", &[0; 100]);
    assert!(told(input.clone(), "nowhere/out").contains("there is no directory"));
    assert!(told(place.pipe("pipe"), "out").contains("is a stream"));
    let small = refusal(&options(input.clone(), place.end("out"), MIB));
    assert!(small.contains("too small"), "{small}");
    let scratch = vec![place.at("in")];
    let asked = WorkOptions { scratch, ..options(input, place.end("out"), 64 * MIB) };
    assert!(refusal(&asked).contains("is not a directory"));
    assert_eq!(place.names(), ["in", "pipe", "ragged"]);
}

/// The reference machine of the documentation, and its sorts of 1 GB in memory and of 10 GB in 1 GiB.
#[test]
fn the_model_tells_what_limits_the_sorts_of_the_documentation() {
    let hardware = Hardware {
        measured_bytes: 20_000_000,
        measured_at_seconds: 1,
        cores: 2,
        read_bytes_per_second: 1.5e9,
        write_bytes_per_second: 1.5e9,
        mixed_bytes_per_second: 1.8e9,
        sync_seconds: 0.01,
        distribute_records_per_second: 10e6,
        sort_records_per_second: 9e6,
    };
    let fits = Facts {
        input_bytes: 1_000_000_000,
        records: 10_000_000,
        page_bytes: MIB,
        ranges: 80,
        lanes: 2,
        ..Facts::default()
    };
    let spills = Facts {
        input_bytes: 10_000_000_000,
        records: 100_000_000,
        excess_bytes: 9_100_000_000,
        ranges: 300,
        ..fits
    };
    let told = |facts: &Facts| forecast(facts, &hardware);
    assert!((1.3..1.4).contains(&told(&fits).seconds), "{:?}", told(&fits));
    assert!((20.0..22.5).contains(&told(&spills).seconds), "{:?}", told(&spills));
    assert_eq!(told(&spills).stages[0].bottleneck, "disk read+write");
}
