//! Sorts on a simulated disk that a crash cuts short, and that the next process goes on from.
//!
//! Invariant: nothing is judged before the last process has ended: until then leftovers are what it is about.

use thalweg_api::Receipt;
use thalweg_io::sim::{Faults, Sim};
use thalweg_sort::{Error, Result, Sort, Watch, run};

use super::data::{Shape, as_prefixed, records};
use super::{After, Case, Expected, Stage, Unwatched, up};

/// Two passes read and write the input twice each; after 80 % of the first pass 0.6 of that is left. The rest
/// is for what was not at a checkpoint.
pub(crate) const SHARE_MAX: f64 = 0.65;

/// A little more than fits, so that the sort is quick, and enough for checkpoints.
pub(crate) const SMALL_BYTES: usize = 20_000_000;

/// A case of `bytes` bytes that spills.
pub(crate) fn spilling(seed: u64, bytes: usize) -> Case {
    let input = records(Shape::Uniform, seed, bytes / 100, |_| 100).concat();
    Case::fixed(100, input).by(&[up(0, 10)])
}

/// The same of prefixed records of different lengths.
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

    /// The same for one of several processes that find it; the one that had it is gone then.
    pub(crate) fn twin(&self) -> Stage {
        let sim = self.disk().restart();
        let scratch_directories = self.scratch_directories;
        Stage { io: sim.io(), sim: Some(sim), root: self.root.clone(), scratch_directories }
    }

    /// Sorts, whatever comes of it.
    pub(crate) fn attempt(&self, sort: &Sort) -> Result<Receipt> {
        self.attempt_watched(sort, &Unwatched)
    }

    pub(crate) fn attempt_watched(&self, sort: &Sort, watch: &dyn Watch) -> Result<Receipt> {
        run(&self.here(sort), watch)
    }

    /// What the next process finds when a sort of `case` is killed after so much of the first pass; from 1 on it is the
    /// second.
    pub(crate) fn killed_after(self, case: &Case, sort: &Sort, share: f64) -> Stage {
        let bytes = (case.inputs[0].len() as f64 * share) as usize;
        let watch = After::bytes(bytes, false, || self.disk().kill());
        let error = self.attempt_watched(sort, &watch).expect_err("it was killed");
        assert!(matches!(&error, Error::Io(e) if Sim::is_crash(e)), "{error}");
        self.next_process()
    }

    /// Bytes that this process read and wrote, as the disk counts them.
    pub(crate) fn traffic(&self) -> u64 {
        self.disk().bytes_read(&self.root) + self.disk().bytes_written(&self.root)
    }

    /// Looks that the output is the model's and that nothing else is left.
    #[track_caller]
    pub(crate) fn ends_well(&self, case: &Case, receipt: &Receipt) {
        self.ends_as(case, &case.expected(), receipt);
    }

    /// The same, where the model's answer is known.
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
    /// It alone.
    Kill,
    /// The machine with it.
    PowerLoss,
}

/// What came of the processes after the first.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Ended before the crash was due.
    pub(crate) whole: u64,
    /// Went on from a checkpoint.
    pub(crate) resumed: u64,
    /// Of these: found that some of the output was there.
    pub(crate) noted: u64,
    /// Had to begin again.
    pub(crate) fresh: u64,
    /// Found that the power had torn a page, said so, and began again when asked again.
    pub(crate) torn: u64,
}

/// Crashes one sort at boundary `at`, goes on in the next process, and judges.
pub(crate) fn crash_at(case: &Case, expected: &Expected, at: u64, end: End, seen: &mut Seen) {
    let stage = Stage::simulated(at);
    let sort = stage.set(case);
    stage.disk().set_faults(Faults { crash_at: Some(at), ..Faults::default() });
    match stage.attempt(&sort) {
        // It ends by clearing up, and nobody hears of a crash there.
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

/// Boundaries of the sort of a case. Lanes race, so it is not the same each time.
pub(crate) fn boundaries(case: &Case) -> u64 {
    let stage = Stage::simulated(0);
    let receipt = stage.attempt(&stage.set(case)).unwrap();
    stage.ends_well(case, &receipt);
    assert!(receipt.io.scratch.written_bytes > 0, "nothing was spilled");
    stage.disk().boundaries()
}

/// A stage on which a sort of `case` was killed when so much of the first pass was done; from 1 on it is the second
/// pass.
pub(crate) fn killed_after(case: &Case, share: f64) -> (Stage, Sort) {
    let stage = Stage::simulated(1);
    let sort = stage.set(case);
    (stage.killed_after(case, &sort, share), Sort { resume: true, ..sort })
}

/// What share of a fresh sort's bytes one reads and writes that goes on after so much of the first pass; from 1 on it
/// is the second pass.
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
