//! Sorts on a simulated disk that are ended by a crash, and resumed by the next process.
//!
//! Invariant: nothing is checked before the last process has ended, because until then files may be left.

use thalweg_api::Receipt;
use thalweg_io::sim::{Faults, Sim};
use thalweg_sort::{Error, Result, Sort, Watch, run};

use super::data::{Shape, as_prefixed, records};
use super::{After, Case, Expected, Stage, Unwatched, up};

/// Each of two passes reads and writes the input. After 80 % of the first pass 0.6 of that remains; the rest is for
/// records after the last checkpoint.
pub(crate) const SHARE_MAX: f64 = 0.65;

/// Slightly more than fits, so that the sort is fast and has checkpoints.
pub(crate) const SMALL_BYTES: usize = 20_000_000;

/// A case of `bytes` bytes that spills.
pub(crate) fn spilling(seed: u64, bytes: usize) -> Case {
    let input = records(Shape::Uniform, seed, bytes / 100, |_| 100).concat();
    Case::fixed(100, input).by(&[up(0, 10)])
}

/// The same with prefixed records of different lengths.
pub(crate) fn spilling_prefixed(seed: u64) -> Case {
    let input = records(Shape::Uniform, seed, SMALL_BYTES / 100, |rng| rng.below(193) as usize);
    Case::prefixed(as_prefixed(&input)).by(&[up(0, 10)])
}

impl Stage {
    /// The simulated disk of this stage.
    pub(crate) fn disk(&self) -> &Sim {
        self.sim.as_ref().expect("a simulated stage")
    }

    /// What the next process finds.
    pub(crate) fn next_process(self) -> Stage {
        self.twin()
    }

    /// The same for one of several processes; the earlier one is gone.
    pub(crate) fn twin(&self) -> Stage {
        let sim = self.disk().restart();
        let scratch_directories = self.scratch_directories;
        Stage { io: sim.io(), sim: Some(sim), root: self.root.clone(), scratch_directories }
    }

    /// Sorts, and ignores the result.
    pub(crate) fn attempt(&self, sort: &Sort) -> Result<Receipt> {
        self.attempt_watched(sort, &Unwatched)
    }

    pub(crate) fn attempt_watched(&self, sort: &Sort, watch: &dyn Watch) -> Result<Receipt> {
        run(&self.here(sort), watch)
    }

    /// What the next process finds if a sort of `case` is killed after this fraction of the first pass; above 1 it is
    /// in the second.
    pub(crate) fn killed_after(self, case: &Case, sort: &Sort, share: f64) -> Stage {
        let bytes = (case.inputs[0].len() as f64 * share) as usize;
        let watch = After::bytes(bytes, false, || self.disk().kill());
        let error = self.attempt_watched(sort, &watch).expect_err("it was killed");
        assert!(matches!(&error, Error::Io(e) if Sim::is_crash(e)), "{error}");
        self.next_process()
    }

    /// Bytes that this process read and wrote, as counted by the disk.
    pub(crate) fn traffic(&self) -> u64 {
        self.disk().bytes_read(&self.root) + self.disk().bytes_written(&self.root)
    }

    /// Checks that the output is the model's and nothing else is left.
    #[track_caller]
    pub(crate) fn ends_well(&self, case: &Case, receipt: &Receipt) {
        self.ends_as(case, &case.expected(), receipt);
    }

    /// The same with a given expected output.
    #[track_caller]
    pub(crate) fn ends_as(&self, case: &Case, expected: &Expected, receipt: &Receipt) {
        expected.is(&self.get("out/sorted").expect("there is an output"), receipt);
        self.holds_inputs(case);
        assert_eq!(self.names(), ["in/0", "out/sorted"], "what is left");
        assert_eq!(self.disk().open_files(), 0, "files left open");
    }

    #[track_caller]
    pub(crate) fn holds_inputs(&self, case: &Case) {
        assert!(self.get("in/0").as_ref() == Some(&case.inputs[0]), "the input is not what it was");
    }
}

/// How the first process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The process is killed.
    Kill,
    /// The machine crashes.
    PowerLoss,
}

/// The results of the later processes.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// It ended before the crash.
    pub(crate) whole: u64,
    /// It resumed from a checkpoint.
    pub(crate) resumed: u64,
    /// Of these: it found some of the output.
    pub(crate) noted: u64,
    /// It had to start over.
    pub(crate) fresh: u64,
    /// It found a page that the power loss had torn, reported that, and started over when it was run again.
    pub(crate) torn: u64,
}

/// Crashes a sort at boundary `at`, resumes in the next process, and checks the result.
pub(crate) fn crash_at(case: &Case, expected: &Expected, at: u64, end: End, seen: &mut Seen) {
    let stage = Stage::simulated(at);
    let sort = stage.set(case);
    stage.disk().set_faults(Faults { crash_at: Some(at), ..Faults::default() });
    match stage.attempt(&sort) {
        // The sort is cleaning up, where a crash has no effect.
        Ok(_) if stage.disk().boundaries() == at => {}
        Ok(receipt) => {
            seen.whole += 1;
            return stage.ends_as(case, expected, &receipt);
        }
        Err(Error::Io(e)) if Sim::is_crash(&e) => {}
        Err(e) => panic!("{end:?} at {at}: {e}"),
    }
    if end == End::PowerLoss {
        stage.disk().power_loss();
    }
    let stage = stage.next_process();
    stage.holds_inputs(case);
    if let Some(output) = stage.get("out/sorted") {
        assert!(output == expected.output, "{end:?} at {at}: a half output has the output's name");
    }
    let sort = Sort { resume: true, ..sort };
    let result = match stage.attempt(&sort) {
        Err(Error::Damaged { path, .. }) if end == End::PowerLoss => {
            seen.torn += 1;
            let is_within = path == stage.path("out/.sorted.thalweg-partial");
            assert!(
                if case.within { is_within } else { path.starts_with(stage.path("scratch0")) },
                "{path:?}"
            );
            stage.attempt(&sort)
        }
        result => result,
    };
    let receipt = result.unwrap_or_else(|e| panic!("{end:?} at {at}, gone on: {e}"));
    let resumed = receipt.resumed_bytes + receipt.resumed_output_bytes > 0;
    *(if resumed { &mut seen.resumed } else { &mut seen.fresh }) += 1;
    seen.noted += u64::from(receipt.resumed_output_bytes > 0);
    stage.ends_as(case, expected, &receipt);
}

/// The number of boundaries in the sort of a case. Lanes race, so it varies.
pub(crate) fn boundaries(case: &Case) -> u64 {
    let stage = Stage::simulated(0);
    let receipt = stage.attempt(&stage.set(case)).unwrap();
    stage.ends_well(case, &receipt);
    assert!(receipt.io.scratch.written_bytes > 0, "nothing was spilled");
    stage.disk().boundaries()
}

/// A stage on which a sort of `case` was killed after this fraction of the first pass; above 1 it is in the second.
pub(crate) fn killed_after(case: &Case, share: f64) -> (Stage, Sort) {
    let stage = Stage::simulated(1);
    let sort = stage.set(case);
    (stage.killed_after(case, &sort, share), Sort { resume: true, ..sort })
}

/// The fraction of a fresh sort's bytes that a sort moves which resumes after this fraction of the first pass; above
/// 1 it is in the second.
pub(crate) fn share_after(share: f64, within: bool) -> f64 {
    let case = Case { within, ..spilling(3, 32_000_000) };
    let (stage, sort) = killed_after(&case, share);
    let receipt = stage.attempt(&sort).unwrap_or_else(|e| panic!("{e}"));
    stage.ends_well(&case, &receipt);
    let fresh = Stage::simulated(1);
    fresh.set(&case);
    let receipt = fresh.attempt(&Sort { resume: false, ..sort }).unwrap_or_else(|e| panic!("{e}"));
    fresh.ends_well(&case, &receipt);
    stage.traffic() as f64 / fresh.traffic() as f64
}
