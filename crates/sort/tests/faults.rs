//! Sorts on a simulated disk with short and interrupted transfers, errors, a full disk, bit rot, and changes by
//! others.
//!
//! Invariant: the output is the model's, or there is an error and no output. The inputs are unchanged, and nothing is
//! left.

mod support;

use std::sync::Once;

use support::data::{Shape, as_lines, records};
use support::{After, Case, Stage, Unwatched, up};
use thalweg_io::Action;
use thalweg_io::sim::{Faults, Sim};
use thalweg_sort::{Error, Result, Watch};

/// Large enough to spill although this process, and with it the margin of the memory limit, is larger than the
/// command.
const INPUT_BYTES: usize = 48_000_000;

/// A case that spills.
fn spilling(seed: u64) -> Case {
    let record = |_: &mut _| 100;
    let input = records(Shape::Uniform, seed, INPUT_BYTES / 100, record).concat();
    let case = Case::fixed(100, input).by(&[up(0, 10)]);
    if seed.is_multiple_of(2) { case } else { case.lanes(1).unique() }
}

/// A case that fits.
fn small(seed: u64) -> Case {
    let lines = records(Shape::FewDistinct, seed, 2000, |rng| rng.below(200) as usize);
    Case::lines(as_lines(&lines, false))
}

/// Sorts with faults; a success must be right. Returns whether it succeeded.
fn sorts_or_fails(case: &Case, seed: u64, faults: &Faults) -> Result<u64> {
    let stage = Stage::simulated(seed);
    let sort = stage.set(case);
    let sim: &Sim = stage.sim.as_ref().expect("a simulated stage");
    sim.set_faults(faults.clone());
    let result = stage.run(case, &sort, &Unwatched);
    let output = stage.get("out/sorted");
    if output.is_some() && result.is_err() {
        // The output has its name; making that durable has failed.
        assert!(matches!(&result, Err(Error::Io(e)) if e.action == Action::Sync), "{result:?}");
        assert!(output.as_ref() == Some(&case.expected().output), "seed {seed}: a wrong output has a name");
    }
    let receipt = result?;
    case.expected().is(&output.expect("there is an output"), &receipt);
    Ok(receipt.io.scratch.written_bytes)
}

#[test]
fn short_and_interrupted_transfers_are_handled() {
    let faults = Faults { short_one_in: 3, eintr_one_in: 3, reorder: true, ..Faults::default() };
    for seed in 0..100 {
        sorts_or_fails(&small(seed), seed, &faults).unwrap();
    }
    let mut spilled = 0;
    for seed in 0..4 {
        let refuse_direct = seed == 3;
        let faults = Faults { refuse_direct, ..faults.clone() };
        spilled += sorts_or_fails(&spilling(seed), seed, &faults).unwrap();
    }
    assert!(spilled > 0, "nothing was spilled");
}

#[test]
fn a_disk_with_random_faults_gives_an_error_or_the_right_output() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..200 {
        let faults = Faults { eio_one_in: 1 + seed % 40, reorder: true, ..Faults::default() };
        match sorts_or_fails(&small(seed), seed, &faults) {
            Ok(_) => good += 1,
            Err(Error::Io(e)) => {
                assert!(e.to_string().contains("/stage/"), "{e}");
                bad += 1;
            }
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    assert!(good > 10 && bad > 10, "{good} good, {bad} bad");
}

#[test]
fn lines_that_fail_to_fit_between_spilled_pages_are_an_error() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..24 {
        let faults = Faults { eio_one_in: 100 << (seed % 8), ..Faults::default() };
        match sorts_or_fails(&spilling(seed), seed, &faults) {
            Ok(_) => good += 1,
            Err(Error::Io(_)) => bad += 1,
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    assert!(good > 0 && bad > 2, "{good} good, {bad} bad");
}

#[test]
fn full_disks_are_reported() {
    for (directory, room) in [("scratch0", 0), ("scratch0", 1 << 20), ("out", 8 << 20)] {
        let case = spilling(0);
        let stage = Stage::simulated(1);
        let sort = stage.set(&case);
        stage.sim.as_ref().unwrap().set_capacity(stage.path(directory), room);
        let error = stage.run(&case, &sort, &Unwatched).unwrap_err();
        assert!(error.to_string().contains(directory), "{directory} with {room}: {error}");
    }
}

#[test]
fn the_scratch_limit_is_kept() {
    let case = spilling(0);
    let stage = Stage::simulated(1);
    let mut sort = stage.set(&case);
    sort.scratch_limit = 1 << 20;
    let error = stage.run(&case, &sort, &Unwatched).unwrap_err();
    assert!(matches!(error, Error::ScratchFull { .. }), "{error}");
    assert!(stage.sim.as_ref().unwrap().bytes_written(stage.path("scratch0")) <= 1 << 20);
}

#[test]
fn a_full_scratch_directory_is_skipped() {
    let case = spilling(0);
    let mut stage = Stage::simulated(1);
    stage.scratch_directories = 2;
    let sort = stage.set(&case);
    stage.sim.as_ref().unwrap().set_capacity(stage.path("scratch0"), 1 << 20);
    let receipt = stage.run(&case, &sort, &Unwatched).unwrap();
    case.expected().is(&stage.get("out/sorted").unwrap(), &receipt);
}

/// The first stage reports bytes until all of the input was read, so this is after the spilled pages were written and
/// before most of them are read.
const BETWEEN_PASSES: usize = INPUT_BYTES + 1;

#[test]
fn a_flipped_bit_in_scratch_is_an_error() {
    for bit in [0, 8 * 4096 * 20 + 3, 8 * 1_000_000] {
        let case = spilling(0);
        let stage = Stage::simulated(2);
        let sort = stage.set(&case);
        let sim = stage.sim.clone().unwrap();
        let scratch = stage.path("scratch0");
        let rot = || {
            let names: Vec<_> = sim.names().into_iter().filter(|name| name.starts_with(&scratch)).collect();
            assert!(!names.is_empty(), "there is scratch");
            names.iter().for_each(|name| sim.flip_bit(name, bit));
        };
        let watch = After::bytes(INPUT_BYTES, false, rot);
        let result = stage.run(&case, &sort, &watch);
        assert!(watch.came());
        match result {
            Err(error @ Error::Damaged { .. }) => {
                assert!(error.to_string().contains("scratch0"), "{error}");
            }
            Err(error) => panic!("bit {bit}: {error}"),
            // The bit was in a page that had been read already, or in none.
            Ok(receipt) => case.expected().is(&stage.get("out/sorted").unwrap(), &receipt),
        }
    }
}

#[test]
fn a_truncated_scratch_file_is_an_error() {
    let case = spilling(0);
    let stage = Stage::simulated(2);
    let sort = stage.set(&case);
    let (sim, scratch) = (stage.sim.clone().unwrap(), stage.path("scratch0"));
    let cut = || {
        sim.names()
            .iter()
            .filter(|name| name.starts_with(&scratch))
            .for_each(|name| sim.truncate(name, 5000));
    };
    let error = stage.run(&case, &sort, &After::bytes(INPUT_BYTES, false, cut)).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn an_input_that_changes_meanwhile_is_refused() {
    let shorter = |case: &Case| case.inputs[0][100..].to_vec();
    let other = |case: &Case| vec![b'x'; case.inputs[0].len()];
    let changes: [fn(&Case) -> Vec<u8>; 2] = [shorter, other];
    for (i, change) in changes.iter().enumerate() {
        let mut case = spilling(0);
        let stage = Stage::real();
        let sort = stage.set(&case);
        let changed = change(&case);
        let watch = After::bytes(INPUT_BYTES / 2, false, || stage.put("in/0", &changed));
        case.inputs[0].clone_from(&changed);
        let error = stage.run(&case, &sort, &watch).expect_err("it was sorted").to_string();
        assert!(watch.came() && error.contains("in/0") && error.contains("changed"), "{i}: {error}");
    }
}

/// Does something when the first stage begins.
struct First<F: Fn() + Sync>(Once, F);

impl<F: Fn() + Sync> Watch for First<F> {
    fn begin(&self, _: &str, _: u64, _: u64, _: u64) {
        self.0.call_once(&self.1);
    }
}

/// If a last newline was overwritten without a change of the file's times, the process panicked.
#[test]
fn missing_input_bytes_are_an_error() {
    let mut case = small(1);
    case.inputs[0].push(b'\n');
    let stage = Stage::simulated(1);
    let (sort, last) = (stage.set(&case), case.inputs[0].len() - 1);
    let sim = stage.sim.clone().unwrap();
    case.inputs[0][last] ^= 1;
    let watch = First(Once::new(), || sim.flip_bit(stage.path("in/0"), 8 * last as u64));
    let told = stage.run(&case, &sort, &watch).expect_err("it was sorted").to_string();
    let came = 1 + case.inputs[0].iter().rposition(|byte| *byte == b'\n').unwrap();
    assert_eq!(
        told,
        format!("of {} bytes of the inputs {came} came; nothing was written, run again", last + 1)
    );
}

#[test]
fn a_sort_that_is_stopped_stops_and_leaves_nothing() {
    for (seed, bytes) in [(0, 1), (1, INPUT_BYTES / 2), (2, BETWEEN_PASSES), (3, INPUT_BYTES * 3 / 2)] {
        let case = spilling(seed);
        let stage = Stage::simulated(seed);
        stage.put("out/sorted", b"older");
        let sort = stage.set(&case);
        let watch = After::bytes(bytes, true, || ());
        match stage.run(&case, &sort, &watch) {
            Err(Error::Stopped) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(stage.get("out/sorted").unwrap(), b"older");
    }
}

/// The check itself must reject the output of other records.
#[test]
fn canary_the_comparison_bites() {
    let case = small(1);
    let stage = Stage::simulated(1);
    let receipt = stage.sorts(&case);
    let mut output = stage.get("out/sorted").unwrap();
    let at = output.len() / 2;
    output[at] ^= 1;
    let told = std::panic::catch_unwind(|| case.expected().is(&output, &receipt));
    assert!(told.is_err());
}
