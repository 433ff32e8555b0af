//! Counters of bytes read and written, and of the time that lanes spent waiting.

use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_api::{Disk, IoReceipt, MemoryReceipt, Receipt};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process;

/// Counters of one purpose, shared by the lanes.
#[derive(Debug, Default)]
pub struct Meter {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Meter {
    /// Counts bytes read.
    pub fn read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes written.
    pub fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes read and written so far.
    pub fn totals(&self) -> (u64, u64) {
        (self.read_bytes.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed))
    }
}

/// Seconds that the lanes of a stage waited.
#[derive(Debug, Default)]
pub struct StageMeter {
    waited_read_ns: AtomicU64,
    waited_write_ns: AtomicU64,
}

impl StageMeter {
    /// Runs `wait` and counts its time as waiting for reads.
    pub fn for_read<T>(&self, wait: impl FnOnce() -> T) -> T {
        let watch = Stopwatch::start();
        let value = wait();
        self.waited_read_ns.fetch_add(watch.ns(), Ordering::Relaxed);
        value
    }

    /// Runs `wait` and counts its time as waiting for writes or free blocks.
    pub fn for_write<T>(&self, wait: impl FnOnce() -> T) -> T {
        let watch = Stopwatch::start();
        let value = wait();
        self.waited_write_ns.fetch_add(watch.ns(), Ordering::Relaxed);
        value
    }

    /// Seconds waited for reads and for writes since the last call.
    pub fn take_seconds(&self) -> (f64, f64) {
        let take = |a: &AtomicU64| a.swap(0, Ordering::Relaxed) as f64 / 1e9;
        (take(&self.waited_read_ns), take(&self.waited_write_ns))
    }
}

/// All meters of a job.
#[derive(Debug, Default)]
pub struct Meters {
    /// Traffic on inputs.
    pub input: Meter,
    /// Traffic on scratch files.
    pub scratch: Meter,
    /// Traffic on the output.
    pub output: Meter,
    /// Input bytes taken from the page cache.
    pub cached: Meter,
    /// Waiting in the current stage.
    pub stage: StageMeter,
}

impl Meters {
    /// A receipt of this verb with the traffic so far, and the CPU time and memory of this process. The caller adds
    /// proofs, bytes of files, seconds and stages.
    pub fn receipt(&self, verb: &str, memory_limit_bytes: u64) -> Receipt {
        let disk = |meter: &Meter| {
            let (read_bytes, written_bytes) = meter.totals();
            Disk { read_bytes, written_bytes }
        };
        let usage = process::usage();
        Receipt {
            verb: verb.into(),
            proved: true,
            holds: true,
            cpu_seconds: usage.cpu_seconds,
            io: IoReceipt {
                cached_input_bytes: self.cached.totals().0,
                input: disk(&self.input),
                scratch: disk(&self.scratch),
                output: disk(&self.output),
                ..IoReceipt::default()
            },
            memory: MemoryReceipt {
                limit_bytes: memory_limit_bytes,
                peak_bytes: usage.peak_bytes,
                huge_page_bytes: process::huge_page_bytes(),
            },
            ..Receipt::default()
        }
    }
}
