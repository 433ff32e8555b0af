//! A process dies while it writes the output, and the next one resumes.
//!
//! Invariant: whatever happened to the partial output, the next run gives the model's output and leaves nothing else.
//! Valid noted bytes are not written again.

mod support;

use std::time::Duration;

use support::cut_short::{
    End, SMALL_BYTES, Seen, boundaries, crash_at, killed_after, share_after, spilling, spilling_prefixed,
};
use support::data::{Shape, as_lines, records};
use support::{After, Case, Stage, up};
use thalweg_base::rng::Rng;
use thalweg_io::sim::{Faults, Sim};
use thalweg_sort::{Error, Sort};

const PARTIAL: &str = "out/.sorted.thalweg-partial";

/// Let the input be 1, and s = 0.96 the spilled part; a fresh sort moves 2 (1 + s) = 3.92. It is killed after 0.8 of
/// the output: the last note is behind by at most the distance of two notes (0.14: a quarter of 18 MiB, in 32 MB), a
/// range and the blocks in flight (0.06), so 0.6 is noted. What remains is the input after the last checkpoint, namely
/// 1 - s + 2/32 = 0.1; spilling its part, 0.06; and 0.4 s from scratch and 0.4 to the output: 0.95 in all, 0.24 of a
/// fresh sort. Without notes it is 0.1 + 0.06 + s + 1, which is 0.54.
const SHARE_MAX: f64 = 0.25;

#[test]
fn resuming_after_80_percent_of_the_second_pass_costs_less_than_25_percent() {
    for within in [false, true] {
        let share = share_after(1.8, within);
        assert!(share <= SHARE_MAX, "{share:.3} of a fresh sort's bytes, within the output: {within}");
    }
}

/// While one lane writes a note, the other can write the rest of the output.
#[test]
fn a_fast_lane_does_not_overwrite_what_a_resumed_run_needs() {
    let case = spilling(3, 32_000_000).in_output();
    for share in [1.2, 1.5, 1.8] {
        let stage = Stage::simulated(1);
        let sort = stage.set(&case);
        let sync_takes = Duration::from_millis(100);
        stage.disk().set_faults(Faults { sync_takes, ..Faults::default() });
        let stage = stage.killed_after(&case, &sort, share);
        let receipt = stage.attempt(&Sort { resume: true, ..sort }).unwrap();
        println!("{share}: {} and {} bytes", receipt.resumed_bytes, receipt.resumed_output_bytes);
        assert!(receipt.resumed_bytes > 0 && receipt.resumed_output_bytes > 0, "{receipt:?}");
        stage.ends_well(&case, &receipt);
    }
}

/// Nothing can be noted without a proof, or after a record that is too long for a note: nobody may wait for it.
#[test]
fn a_sort_without_possible_notes_ends() {
    let long = records(Shape::Uniform, 4, 240, |_| 100_000);
    for (case, hashing) in [(spilling(3, SMALL_BYTES), false), (Case::fixed(100_000, long.concat()), true)] {
        let (case, stage) = (case.in_output(), Stage::simulated(1));
        let sync_takes = Duration::from_millis(20);
        stage.disk().set_faults(Faults { sync_takes, ..Faults::default() });
        let sort = Sort { hashing, ..stage.set(&case) };
        let receipt = stage.attempt(&sort).unwrap();
        assert!(receipt.io.scratch.written_bytes > 0, "{receipt:?}");
        assert!(stage.get("out/sorted") == Some(case.expected().output));
    }
}

/// Half of the records have the same key as another, so ranges end between equal keys, and some records are dropped.
fn with_equal_keys(seed: u64) -> Case {
    let mut all = records(Shape::Uniform, seed, SMALL_BYTES / 100, |_| 100);
    for i in (1..all.len()).step_by(2) {
        let (before, this) = all.split_at_mut(i);
        this[0][..10].copy_from_slice(&before[i / 2][..10]);
    }
    Case::fixed(100, all.concat()).by(&[up(0, 10)])
}

/// Lines, some of them empty.
fn of_lines(seed: u64) -> Case {
    let lines = records(Shape::Uniform, seed, SMALL_BYTES / 100, |rng| rng.below(200) as usize);
    Case::lines(as_lines(&lines, true))
}

#[test]
fn a_sort_resumes_after_a_crash_in_the_second_pass() {
    let cases: [fn() -> Case; 8] = [
        || spilling(21, SMALL_BYTES).lanes(1),
        || with_equal_keys(22).unique(),
        || with_equal_keys(23),
        || of_lines(24),
        || of_lines(25).unique().lanes(1),
        || with_equal_keys(26).in_output(),
        || of_lines(27).unique().lanes(1).in_output(),
        || spilling_prefixed(28).unique(),
    ];
    for (seed, case) in cases.into_iter().enumerate() {
        let case = case();
        let (expected, mut seen) = (case.expected(), Seen::default());
        let last = boundaries(&case);
        let mut rng = Rng::new(seed as u64);
        // Boundaries differ from run to run: 14 crashes, and more until the sort has resumed within the output 4
        // times, which about every third crash leads to.
        for i in 0..56 {
            if i >= 14 && seen.noted > 3 {
                break;
            }
            let at = last / 2 + rng.below(last - last / 2);
            let end = if i % 2 == 0 { End::Kill } else { End::PowerLoss };
            crash_at(&case, &expected, at, end, &mut seen);
        }
        println!("{seed}: {last} boundaries: {seen:?}");
        assert!(seen.noted > 3, "{seed}: {seen:?}");
    }
}

#[test]
fn a_sort_resumes_after_repeated_crashes_in_the_second_pass() {
    // One lane: of two, one may get no CPU until the kill, and then nothing is noted.
    let case = with_equal_keys(5).lanes(1);
    let (mut stage, sort) = killed_after(&case, 1.3);
    let mut there = Vec::new();
    for _ in 0..3 {
        // Another process finds the same state, and finishes.
        let twin = stage.twin();
        let receipt = twin.attempt(&sort).unwrap();
        twin.ends_well(&case, &receipt);
        there.push(receipt.resumed_output_bytes);
        let at = Some(twin.disk().boundaries() * 4 / 5);
        drop(twin);
        stage = stage.next_process();
        stage.disk().set_faults(Faults { crash_at: at, ..Faults::default() });
        let died = stage.attempt(&sort).is_err_and(|e| matches!(e, Error::Io(e) if Sim::is_crash(&e)));
        assert!(died, "it has ended");
        stage = stage.next_process();
    }
    assert!(there[0] > 0 && there.is_sorted() && there[2] > there[0], "{there:?}");
    let receipt = stage.attempt(&sort).unwrap();
    stage.ends_well(&case, &receipt);
}

#[test]
fn a_damaged_partial_output_is_written_again() {
    let case = spilling(9, SMALL_BYTES).lanes(1);
    let rot: [fn(&Stage, u64); 5] = [
        |stage, there| stage.disk().flip_bit(stage.path(PARTIAL), 8 * (there - 1)),
        |stage, there| stage.disk().flip_bit(stage.path(PARTIAL), 8 * (there - 4096) + 7),
        |stage, there| stage.disk().truncate(stage.path(PARTIAL), there - 1),
        |stage, _| stage.put(PARTIAL, &vec![0; SMALL_BYTES]),
        |stage, _| stage.io.remove(&stage.path(PARTIAL)).unwrap(),
    ];
    for (i, rot) in rot.iter().enumerate() {
        let (stage, sort) = killed_after(&case, 1.8);
        let there = stage.twin().attempt(&sort).unwrap().resumed_output_bytes;
        assert!(there > 0, "nothing was noted");
        let stage = stage.next_process();
        rot(&stage, there);
        // It is not used either after another kill, before it was written again.
        stage.disk().set_faults(Faults { crash_at: Some(300), ..Faults::default() });
        assert!(stage.attempt(&sort).is_err(), "{i}: it has ended");
        let stage = stage.next_process();
        let receipt = stage.attempt(&sort).unwrap();
        let (input, output) = (receipt.resumed_bytes, receipt.resumed_output_bytes);
        assert!(input > 0 && output == 0, "{i}: {input} and {output} bytes were gone on from");
        stage.ends_well(&case, &receipt);
    }
}

#[test]
fn a_sort_does_not_resume_from_another_output() {
    let case = with_equal_keys(11);
    let (stage, sort) = killed_after(&case, 1.8);
    let twin = stage.twin();
    let receipt = twin.attempt(&Sort { resume: false, ..sort.clone() }).unwrap();
    assert_eq!((receipt.resumed_bytes, receipt.resumed_output_bytes), (0, 0));
    twin.ends_well(&case, &receipt);
    drop(twin);
    let stage = stage.next_process();
    let receipt = stage.attempt(&Sort { unique: true, ..sort }).unwrap();
    assert!(receipt.resumed_bytes > 0 && receipt.resumed_output_bytes == 0, "{receipt:?}");
    stage.ends_well(&case.unique(), &receipt);
}

#[test]
fn a_stopped_sort_keeps_its_noted_output() {
    let case = spilling(13, SMALL_BYTES);
    for (share, resume, is_kept) in [(1.8, true, true), (1.02, true, false), (1.8, false, false)] {
        let stage = Stage::simulated(13);
        let sort = Sort { resume, ..stage.set(&case) };
        let watch = After::bytes((SMALL_BYTES as f64 * share) as usize, true, || ());
        let stopped = stage.attempt_watched(&sort, &watch);
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert_eq!(stage.get(PARTIAL).is_some(), is_kept, "after {share}");
        assert_eq!(stage.names().len() > 1, resume, "after {share}: {:?}", stage.names());
        // Stopped again before the second pass, it is still there.
        let sort = Sort { resume: true, ..sort };
        let again = stage.attempt_watched(&sort, &After::bytes(1, true, || ()));
        assert!(matches!(again, Err(Error::Stopped)), "{again:?}");
        assert_eq!(stage.get(PARTIAL).is_some(), is_kept, "after {share}");
        let receipt = stage.attempt(&sort).unwrap();
        assert_eq!(receipt.resumed_output_bytes > 0, is_kept, "after {share}");
        stage.ends_well(&case, &receipt);
    }
}
