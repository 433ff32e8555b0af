//! Disks without enough space: a plan and a run fail alike, and the message says how much was needed and available,
//! and what helps.

mod support;

use support::cut_short::{SMALL_BYTES, spilling};
use support::{After, Stage, Unwatched};
use thalweg_sort::{Error, Sort, lay_out};

/// Space for the output.
const OUTPUT_BYTES: u64 = SMALL_BYTES as u64 + (1 << 20);

/// A message without its numbers, which depend on what this process holds.
fn shape(error: &Error) -> String {
    error.to_string().replace(|c: char| c.is_ascii_digit() || c == '.', "")
}

/// A plan predicted the time of a sort that was then refused, and a refused sort with `resume` left a manifest from
/// which nothing could resume.
#[test]
fn a_plan_refuses_what_a_run_refuses_and_nothing_is_left() {
    type Change = fn(&Stage, &mut Sort);
    let cases: [(Change, &str); 5] = [
        (
            |stage, _| stage.disk().set_capacity(stage.path("scratch0"), 4096),
            "scratch in /stage/scratch is full:",
        ),
        (|stage, _| stage.disk().set_capacity(stage.path("scratch0"), 1 << 20), "another scratch directory"),
        (
            |stage, _| stage.disk().set_capacity(stage.path("out"), 8 << 20),
            "the disk of /stage/out/sorted is full:",
        ),
        (|_, sort| sort.scratch_limit = 1 << 20, "the scratch limit of  MiB is reached:"),
        (
            |stage, sort| {
                sort.scratch = vec![stage.at("out")];
                stage.disk().set_capacity(stage.path("out"), 2 * OUTPUT_BYTES);
            },
            "available beside the output's",
        ),
    ];
    for (change, holds) in cases {
        for resume in [false, true] {
            let case = support::Case { memory_bytes: support::MEMORY_MIN, ..spilling(1, 2 * SMALL_BYTES) };
            let stage = Stage::simulated(1);
            let mut sort = Sort { resume, ..stage.set(&case) };
            change(&stage, &mut sort);
            let planned = lay_out(&sort).expect_err("it was planned");
            // The plan checks that nothing is left.
            let refused = stage.run(&case, &sort, &Unwatched).expect_err("it was sorted");
            assert_eq!(shape(&planned), shape(&refused));
            assert!(shape(&refused).contains(holds), "{holds}: {refused}");
            assert!(refused.to_string().contains(" needed"), "{refused}");
        }
    }
}

#[test]
fn leftovers_count_as_free_space_for_a_plan_that_starts_over() {
    let case = spilling(2, SMALL_BYTES);
    let stage = Stage::simulated(2);
    let sort = stage.set(&case);
    stage.disk().set_capacity(stage.path("out"), OUTPUT_BYTES);
    stage.put("out/.sorted.thalweg-partial", &vec![0; SMALL_BYTES]);
    lay_out(&sort).expect("a run removes the partial output first");
    let receipt = stage.attempt(&sort).expect("it does");
    stage.ends_well(&case, &receipt);
}

#[test]
fn a_sort_with_full_scratch_resumes_in_another_directory() {
    for resume in [true, false] {
        let case = spilling(3, SMALL_BYTES);
        let stage = Stage::simulated(3);
        let sort = Sort { resume, ..stage.set(&case) };
        let (disk, scratch) = (stage.disk(), stage.path("scratch0"));
        disk.set_capacity(&scratch, 4 * OUTPUT_BYTES);
        let fills = After::bytes(SMALL_BYTES / 4, false, || disk.set_capacity(&scratch, 0));
        let error = stage.attempt_watched(&sort, &fills).expect_err("it was sorted");
        let Error::ScratchFull { needed, available, .. } = error else { panic!("{error}") };
        // More than a page, and less than everything.
        assert!(needed > 1 << 20 && needed < SMALL_BYTES as u64 && available == 0, "{error}");
        let remedy = if resume { "resume with another scratch" } else { "use another scratch" };
        assert!(error.to_string().contains(remedy), "{error}");
        assert_eq!(stage.names().len() > 1, resume, "{:?}", stage.names());
        let sort = Sort { scratch: vec![stage.at("scratch1")], ..sort };
        let receipt = stage.attempt(&sort).expect("there is room");
        assert_eq!(receipt.resumed_bytes > 0, resume, "{receipt:?}");
        stage.ends_well(&case, &receipt);
    }
}
