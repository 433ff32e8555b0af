//! What is asked of a sort, and who watches it.
//!
//! Law: everything is definite here: sizes in bytes, directories that are there. Whoever asks has resolved it.

use std::path::PathBuf;

use thalweg_api::Hardware;
use thalweg_record::{KeyPart, Layout};

/// Whoever wants to know how far a sort is, and may stop it.
pub trait Watch: Sync {
    /// A stage begins.
    fn begin(&self, stage: &str, index: u64, stages: u64, total_bytes: u64);
    /// So many more bytes of the stage are done.
    fn advance(&self, bytes: u64);
    /// Whether to stop.
    fn stopped(&self) -> bool;
    /// What an earlier run left was to be gone on from and cannot be.
    fn begins_anew(&self) {}
}

/// What to sort, where and in what.
#[derive(Debug, Clone)]
pub struct Sort {
    /// Input files, in order. If one is not a regular file, all are read as streams.
    pub inputs: Vec<PathBuf>,
    /// The output's name, or a stream opened as such.
    pub output: PathBuf,
    /// Whether the output is a pipe, a terminal or a device.
    pub output_is_stream: bool,
    /// How records lie.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// The promise for the whole process, in bytes.
    pub memory_bytes: u64,
    /// Directories for what does not fit.
    pub scratch: Vec<PathBuf>,
    /// Where the output's own room may hold what is spilled, it does, and nothing lies in those directories.
    pub within_output: bool,
    /// The most scratch bytes to use.
    pub scratch_limit: u64,
    /// Lanes.
    pub lanes: usize,
    /// Keep only the first of equal keys.
    pub unique: bool,
    /// Go on from what an earlier run left.
    pub resume: bool,
    /// Whether to compute checksums; without them proofs are of counts alone.
    pub hashing: bool,
    /// The rates to forecast with; without them the receipt has no plan.
    pub hardware: Option<Hardware>,
}

impl Sort {
    /// The longest line that the memory allows.
    pub(crate) fn line_max(&self) -> u64 {
        self.memory_bytes / 8
    }
}
