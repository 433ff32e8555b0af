//! What is asked of a sort, and who watches it.
//!
//! Invariant: everything is definite here: sizes in bytes, directories that are there. Whoever asks has resolved it.

use std::sync::Arc;

use thalweg_api::Hardware;
use thalweg_io::{Backends, InputLocation, Location};
use thalweg_record::{Key, KeyError, KeyPart, Layout, Prover, TAG_BYTES, TAG_PART, Tags};

/// The most scratch files of one sort, those that it adopts included: an extent has eight bits for their number.
pub const SCRATCH_FILES_MAX: usize = 1 << 8;

/// The most blocks of a sorter that a program may hold at once, those to be filled and those that came out.
pub const BLOCKS_HELD_MAX: usize = 8;

/// How much of a record a proof keeps for its joints: there is one for every lane and one for the whole.
const PROVE_KEEP_BYTES: usize = 64 << 10;

/// Whoever wants to know how far a sort is, and may stop it.
pub trait Watch: Sync {
    /// A stage begins.
    fn begin(&self, _stage: &str, _index: u64, _stages: u64, _total_bytes: u64) {}
    /// So many more bytes of the stage are done.
    fn advance(&self, _bytes: u64) {}
    /// Whether to stop.
    fn stopped(&self) -> bool {
        false
    }
    /// What an earlier run left was to be gone on from and cannot be.
    fn starts_over(&self, _why: CannotResume) {}
}

/// Why what an earlier run left is nothing to go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CannotResume {
    /// It is not what that run wrote.
    Damaged,
    /// That run was killed before its first checkpoint.
    Early,
    /// That run had so much memory, give or take a KiB.
    Memory(u64),
    /// It has part of an output with each key once, or with all of them, which is not asked for now.
    Unique,
    /// It is of other inputs, or of other records or keys.
    Other,
}

/// What to sort, where and in what.
#[derive(Debug, Clone)]
pub struct Sort {
    /// Input files, in order. If one is not a regular file, all are read as streams.
    pub inputs: Vec<InputLocation>,
    /// The output's name, or a stream opened as such.
    pub output: Location,
    /// Whether the output is a pipe, a terminal or a device.
    pub output_is_stream: bool,
    /// How records lie.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// The promise for the whole process, in bytes.
    pub memory_bytes: u64,
    /// Directories for what does not fit.
    pub scratch: Vec<Location>,
    /// Where the output's own room may hold what is spilled, it does, and nothing lies in those directories.
    pub within_output: bool,
    /// The most scratch bytes to use.
    pub scratch_limit: u64,
    /// Lanes.
    pub lanes: usize,
    /// Instead of sorting by `keys`: the random permutation of this seed.
    pub shuffle: Option<u64>,
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
    /// Of whole records, ascending, in one lane; its inputs and its output are still to be named.
    pub fn new(layout: Layout, memory_bytes: u64, scratch: Vec<Location>) -> Sort {
        Sort {
            inputs: Vec::new(),
            output: scratch[0].at(""),
            output_is_stream: false,
            layout,
            keys: Vec::new(),
            memory_bytes,
            scratch,
            within_output: false,
            scratch_limit: u64::MAX,
            lanes: 1,
            shuffle: None,
            unique: false,
            resume: false,
            hashing: true,
            hardware: None,
        }
    }

    /// The back ends of all its files.
    pub(crate) fn backends(&self) -> Backends {
        let inputs = self.inputs.iter().map(|input| Arc::clone(&input.fs) as _);
        let own = [&self.output].into_iter().chain(&self.scratch).map(|own| Arc::clone(&own.fs) as _);
        inputs.chain(own).collect()
    }

    /// What is put in front of records while they are shuffled.
    pub(crate) fn tags(&self) -> Option<Tags> {
        self.shuffle.map(Tags::new)
    }

    /// Bytes of it.
    pub(crate) fn tag_bytes(&self) -> usize {
        if self.shuffle.is_some() { TAG_BYTES } else { 0 }
    }

    /// How records lie once they are distributed, tags included.
    pub(crate) fn stored(&self) -> Layout {
        if self.shuffle.is_some() { self.layout.tagged() } else { self.layout }
    }

    /// What orders them then.
    pub(crate) fn stored_key(&self) -> Result<Key, KeyError> {
        match self.shuffle {
            Some(_) => Key::new(self.stored(), &[TAG_PART]),
            None => Key::new(self.layout, &self.keys),
        }
    }

    /// Of nothing yet, for what comes out. A shuffle has no keys, so its proof compares whole records.
    pub(crate) fn prover(&self) -> Prover {
        let key =
            Key::new(self.layout, &self.keys).expect("the keys were looked at before anything was done");
        Prover::new(self.layout, key, self.hashing).keeping(PROVE_KEEP_BYTES)
    }

    /// The longest record of any length that the memory allows.
    pub(crate) fn record_max(&self) -> u64 {
        record_max(self.memory_bytes)
    }
}

/// The longest record of any length that so much memory allows.
pub(crate) fn record_max(memory_bytes: u64) -> u64 {
    memory_bytes / 8
}
