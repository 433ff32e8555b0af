//! A process dies during a sort, and the next one resumes.
//!
//! Invariant: wherever the first one died, the input is unchanged, no partial output has the output's name, and the
//! same sort with `resume` gives the model's output and leaves nothing else.

mod support;

use std::path::Path;

use support::cut_short::{
    End, SHARE_MAX, SMALL_BYTES, Seen, boundaries, crash_at, killed_after, share_after, spilling,
    spilling_prefixed,
};
use support::{Case, Stage, up};
use thalweg_base::rng::Rng;
use thalweg_io::sim::{Faults, Sim};
use thalweg_io::{Access, File};
use thalweg_sort::{Error, Sort};

/// The number of crashes in a normal run; `every_third_boundary` has twenty times as many.
const CRASHES: u64 = 150;

#[test]
fn a_sort_resumes_after_a_crash_at_any_boundary() {
    for (lanes, seed, within) in [(1, 1, false), (2, 2, false), (1, 3, true), (2, 4, true)] {
        let case = Case { within, ..spilling(seed, SMALL_BYTES).lanes(lanes) };
        let (expected, mut seen) = (case.expected(), Seen::default());
        let last = boundaries(&case);
        let mut rng = Rng::new(seed);
        // The first and the last boundaries create and name files; those between are similar.
        let near = 20;
        let ends = (0..near).chain(last - near..last);
        let between = (0..CRASHES / 2 - 2 * near).map(|_| rng.below(last));
        for (i, at) in ends.chain(between).enumerate() {
            crash_at(&case, &expected, at, if i % 2 == 0 { End::Kill } else { End::PowerLoss }, &mut seen);
        }
        println!("{lanes} lanes, {last} boundaries: {seen:?}");
        assert!(seen.resumed > 8 && seen.fresh > 8 && seen.noted > 0, "{seen:?}");
    }
}

/// Every third boundary, which takes ten minutes; all of them, with both ends, take an hour.
#[test]
#[ignore = "takes ten minutes; the selection in the test above is made of these"]
fn every_third_boundary() {
    let case = spilling(1, SMALL_BYTES).lanes(1);
    let (expected, mut seen) = (case.expected(), Seen::default());
    for (i, at) in (0..boundaries(&case)).step_by(3).enumerate() {
        let end = if i % 2 == 0 { End::Kill } else { End::PowerLoss };
        crash_at(&case, &expected, at, end, &mut seen);
    }
    println!("{seen:?}");
}

#[test]
fn a_sort_resumes_after_repeated_crashes() {
    for case in [spilling(5, SMALL_BYTES), spilling(5, SMALL_BYTES).in_output(), spilling_prefixed(5)] {
        let mut rng = Rng::new(5);
        let mut stage = Stage::simulated(5);
        let sort = Sort { resume: true, ..stage.set(&case) };
        for at in [2000, 2000, 2000, 2000, 3000].map(|most| 500 + rng.below(most)) {
            stage.disk().set_faults(Faults { crash_at: Some(at), ..Faults::default() });
            assert!(matches!(stage.attempt(&sort), Err(Error::Io(e)) if Sim::is_crash(&e)), "it has ended");
            stage = stage.next_process();
        }
        let receipt = stage.attempt(&sort).unwrap();
        assert!(receipt.resumed_bytes > 0);
        stage.ends_well(&case, &receipt);
    }
}

#[test]
fn resuming_after_80_percent_of_the_first_pass_costs_about_60_percent() {
    for within in [false, true] {
        let share = share_after(0.8, within);
        println!("{share:.3} of a fresh sort's bytes");
        assert!(share <= SHARE_MAX, "{share:.3} of a fresh sort's bytes, within the output: {within}");
    }
}

/// Resumes with another sort than the one that was killed: it starts over, and is right.
fn starts_afresh(case: &Case, change: impl Fn(&Stage, &mut Sort)) {
    let (stage, mut sort) = killed_after(case, 0.9);
    change(&stage, &mut sort);
    let now = Case { inputs: vec![stage.get("in/0").unwrap()], keys: sort.keys.clone(), ..case.clone() };
    let receipt = stage.attempt(&sort).unwrap();
    assert_eq!(receipt.resumed_bytes, 0, "the leftover of another sort was used");
    stage.ends_well(&now, &receipt);
}

/// Edits the input.
fn rewrite(stage: &Stage, bytes: &[u8]) {
    let file = File::open(&stage.io, &stage.path("in/0"), Access::Update).unwrap();
    file.write_at(0, bytes).unwrap();
}

#[test]
fn a_sort_does_not_resume_from_another_sort() {
    let case = spilling(7, SMALL_BYTES);
    let (stage, sort) = killed_after(&case, 0.9);
    let receipt = stage.attempt(&sort).unwrap();
    assert!(receipt.resumed_bytes > 0, "unchanged it is gone on from");
    drop(stage);
    starts_afresh(&case, |_, sort| sort.keys = vec![up(50, 10)]);
    starts_afresh(&case, |_, sort| sort.memory_bytes += 1 << 20);
    starts_afresh(&case, |stage, _| rewrite(stage, &spilling(8, SMALL_BYTES).inputs[0]));
    starts_afresh(&case, |stage, _| rewrite(stage, &case.inputs[0][100..]));
    starts_afresh(&case, |_, sort| sort.resume = false);
}

/// Flips one bit of every page from byte `from`.
fn flip_bits(sim: &Sim, path: &Path, from: usize) {
    let bytes = sim.get(path).expect("it was left").len();
    for at in (from..bytes).step_by(16 << 10) {
        sim.flip_bit(path, at as u64 * 8 + 3);
    }
}

#[test]
fn damaged_leftovers_are_an_error_or_redone() {
    let own = (spilling(9, SMALL_BYTES), None);
    let within = (spilling(9, SMALL_BYTES).in_output(), Some("out/.sorted.thalweg-partial"));
    let rot: [fn(&Sim, std::path::PathBuf); 3] = [
        |sim, path| flip_bits(sim, &path, 0),
        |sim, path| flip_bits(sim, &path, 1_000_000),
        |sim, path| sim.truncate(path, 5000),
    ];
    for (i, (rot, (case, scratch))) in rot.iter().flat_map(|rot| [(rot, &own), (rot, &within)]).enumerate() {
        let (stage, sort) = killed_after(case, 0.9);
        let own = stage.scratch(0);
        let scratch = scratch.unwrap_or(&own);
        rot(stage.disk(), stage.path(scratch));
        match stage.attempt(&sort) {
            Ok(receipt) => {
                assert_eq!(receipt.resumed_bytes, 0, "{i}: damage was gone on from");
                stage.ends_well(case, &receipt);
            }
            Err(Error::Damaged { path, .. }) => {
                assert_eq!((path, stage.get("out/sorted")), (stage.path(scratch), None), "{i}");
                let receipt = stage.attempt(&sort).unwrap();
                stage.ends_well(case, &receipt);
            }
            Err(e) => panic!("{i}: {e}"),
        }
    }
}

#[test]
fn a_damaged_manifest_is_used_up_to_the_damage() {
    let case = spilling(11, SMALL_BYTES);
    let manifest = "out/.sorted.thalweg-manifest";
    for seed in 0..12 {
        let (stage, sort) = killed_after(&case, 0.9);
        let bits = stage.get(manifest).expect("there is a manifest").len() as u64 * 8;
        stage.disk().flip_bit(stage.path(manifest), Rng::new(seed).below(bits));
        let receipt = stage.attempt(&sort).unwrap();
        stage.ends_well(&case, &receipt);
    }
}
