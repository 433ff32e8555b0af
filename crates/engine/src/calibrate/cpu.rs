//! The cores' rates, measured by running the engine on generated records.
//!
//! Model: the records are in a file in the page cache, and the output is discarded, so all of a stage's time
//! that is not spent waiting is work. The median of three runs counts, because the first run also touches
//! code and memory for the first time.
//! Non-goals: records of other lengths, which the forecast computes from these.

use std::sync::Arc;

use thalweg_api::{Receipt, Stage};
use thalweg_base::units::MIB;
use thalweg_io::{Access, FileSystem, Location, hidden, host};
use thalweg_pump::Unwatched;
use thalweg_record::{Generator, KEY_BYTES, KeyPart, Kind, Layout, RECORD_BYTES};
use thalweg_sort::{Result, Sort};

/// 20 MB: the rates were within an eighth of those at 400 MB, and three runs take 0.15 s.
pub(super) const RECORDS: u64 = 200_000;
const RUNS: usize = 3;

/// Records of 100 bytes that one core handles per second.
pub(super) struct Rates {
    pub(super) distribute: f64,
    pub(super) sort: f64,
}

/// Measures both rates, with `lanes` lanes at once.
pub(super) fn measure(io: &Arc<dyn FileSystem>, lanes: usize) -> Result<Rates> {
    let records = Records::make(io)?;
    let sort = records.sort(lanes);
    let (mut distribute, mut gather) = ([0.0; RUNS], [0.0; RUNS]);
    for (distribute, gather) in distribute.iter_mut().zip(&mut gather) {
        let receipt = thalweg_sort::run(&sort, &Unwatched)?;
        *distribute = busy_seconds(&receipt, "read+distribute", lanes);
        *gather = busy_seconds(&receipt, "load+sort+write", lanes);
    }
    let rate = |mut seconds: [f64; RUNS]| {
        seconds.sort_by(f64::total_cmp);
        RECORDS as f64 / seconds[RUNS / 2].max(1e-9) / lanes as f64
    };
    Ok(Rates { distribute: rate(distribute), sort: rate(gather) })
}

/// Seconds of a stage, less the mean wait of its lanes.
fn busy_seconds(receipt: &Receipt, name: &str, lanes: usize) -> f64 {
    let of = |s: &Stage| s.seconds - (s.waited_read_seconds + s.waited_write_seconds) / lanes as f64;
    receipt.stages.iter().filter(|stage| stage.name == name).map(of).sum()
}

/// A file of records, removed when dropped.
struct Records(Location);

impl Records {
    fn make(io: &Arc<dyn FileSystem>) -> Result<Records> {
        let records = Records(Location::new(io, std::env::temp_dir().join(hidden::unique("calibration"))));
        let file = records.0.open(Access::Create)?;
        let mut bytes = vec![0; RECORDS as usize * RECORD_BYTES];
        Generator::new(Kind { ascii: false, skewed: false }, 0).fill(&mut bytes);
        file.write_at(0, &bytes)?;
        Ok(records)
    }

    fn sort(&self, lanes: usize) -> Sort {
        Sort {
            within_output: false,
            inputs: vec![self.0.as_input()],
            output: self.0.at("/dev/null"),
            output_is_stream: true,
            header: Vec::new(),
            layout: Layout::Fixed(RECORD_BYTES as u32),
            keys: vec![KeyPart { offset: 0, length: KEY_BYTES as u32, descending: false }],
            // Everything fits.
            memory_bytes: host::prepare_memory() + 256 * MIB,
            scratch: vec![self.0.directory()],
            scratch_limit: 0,
            lanes,
            shuffle: None,
            unique: false,
            resume: false,
            hashing: true,
            hardware: None,
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // If this fails, the file stays in the directory for temporary files, which the system cleans up.
        let _ = self.0.remove();
    }
}
