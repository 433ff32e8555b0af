//! The receipt of a verb of one stage.

use thalweg_api::{IoReceipt, Receipt, Stage};
use thalweg_base::clock::Stopwatch;
use thalweg_pump::Meters;

use crate::machine::Disks;

/// How a verb of one stage ran.
pub(super) struct Ran<'a> {
    pub(super) disks: &'a Disks,
    pub(super) meters: &'a Meters,
    pub(super) watch: &'a Stopwatch,
    pub(super) direct_output: bool,
    /// The memory limit; 0 if there was none.
    pub(super) memory_bytes: u64,
}

impl Ran<'_> {
    /// Its receipt, to which the caller adds proofs and bytes of files.
    pub(super) fn receipt(&self, verb: &str, stage: &str) -> Receipt {
        let seconds = self.watch.seconds();
        let (waited_read_seconds, waited_write_seconds) = self.meters.stage.take_seconds();
        let receipt = self.meters.receipt(verb, self.memory_bytes);
        let stage = Stage {
            waited_read_seconds,
            waited_write_seconds,
            read_bytes: receipt.io.input.read_bytes,
            written_bytes: receipt.io.output.written_bytes,
            ..Stage::new(stage, seconds)
        };
        let io = IoReceipt {
            backend: self.disks.name(),
            fallback: self.disks.fallback(),
            direct_output: self.direct_output,
            ..receipt.io
        };
        Receipt { seconds, stages: vec![stage], io, ..receipt }
    }
}
