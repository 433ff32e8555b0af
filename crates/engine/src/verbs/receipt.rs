//! The receipt of a verb of one stage.

use thalweg_api::{Disk, IoReceipt, MemoryReceipt, Proof, Receipt, Stage};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process;
use thalweg_pump::{Meter, Meters};

use crate::machine::Disks;

/// What a verb has done, when its invariant was found to hold.
pub(super) struct Done {
    pub(super) verb: &'static str,
    pub(super) input: Proof,
    pub(super) output: Proof,
    pub(super) dropped: Proof,
    pub(super) input_file_bytes: u64,
    pub(super) output_file_bytes: u64,
    pub(super) direct_output: bool,
    /// The promise of memory, if there was one.
    pub(super) memory_bytes: u64,
}

/// The receipt of that.
pub(super) fn receipt(done: Done, disks: &Disks, meters: &Meters, watch: &Stopwatch) -> Receipt {
    let (waited_read_seconds, waited_write_seconds) = meters.stage.take_seconds();
    let disk = |meter: &Meter| {
        let (read_bytes, written_bytes) = meter.totals();
        Disk { read_bytes, written_bytes }
    };
    let usage = process::usage();
    let seconds = watch.seconds();
    Receipt {
        verb: done.verb.into(),
        input: done.input,
        output: done.output,
        dropped: done.dropped,
        input_file_bytes: done.input_file_bytes,
        output_file_bytes: done.output_file_bytes,
        proved: true,
        holds: true,
        seconds,
        cpu_seconds: usage.cpu_seconds,
        stages: vec![Stage {
            waited_read_seconds,
            waited_write_seconds,
            read_bytes: meters.input.totals().0,
            written_bytes: meters.output.totals().1,
            ..Stage::new(done.verb, seconds)
        }],
        io: IoReceipt {
            backend: disks.name(),
            fallback: disks.fallback(),
            cached_input_bytes: meters.cached.totals().0,
            direct_output: done.direct_output,
            input: disk(&meters.input),
            scratch: disk(&meters.scratch),
            output: disk(&meters.output),
        },
        memory: MemoryReceipt {
            limit_bytes: done.memory_bytes,
            peak_bytes: usage.peak_bytes,
            huge_page_bytes: process::huge_page_bytes(),
        },
        ..Receipt::default()
    }
}
