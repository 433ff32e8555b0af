//! The options of a sort.
//!
//! Invariant: every option is resolved: sizes are in bytes, directories exist.

use std::fmt;
use std::sync::Arc;

use thalweg_api::Hardware;
use thalweg_base::units::Bytes;
use thalweg_io::{Backends, InputLocation, Location};
use thalweg_record::{Key, KeyError, KeyPart, Layout, Prover, TAG_BYTES, TAG_PART, Tags};

/// The maximum number of scratch files of one sort, including files taken over from an earlier run. An extent has 8
/// bits for the file's number.
pub const SCRATCH_FILES_MAX: usize = 1 << 8;

/// The maximum number of blocks of a sorter that a program may hold at once, input and output blocks together.
pub const BLOCKS_HELD_MAX: usize = 8;

/// The maximum bytes that a proof keeps of a record, to compare neighbouring pieces. There is a proof for every lane
/// and one for the whole output.
const PROVE_KEEP_BYTES: usize = 64 << 10;

/// Why a sort cannot resume from the files of an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CannotResume {
    /// A file does not contain what the earlier run wrote.
    Damaged,
    /// The earlier run ended before its first checkpoint.
    Early,
    /// The earlier run used a different amount of memory: this many bytes, rounded to KiB.
    Memory(u64),
    /// The partial output was made with the opposite setting of `unique`.
    Unique,
    /// The inputs, the record layout or the keys are different.
    Other,
}

impl fmt::Display for CannotResume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing to resume: what an earlier run left ")?;
        match self {
            CannotResume::Damaged => f.write_str("is damaged")?,
            CannotResume::Early => f.write_str("has no checkpoint yet")?,
            CannotResume::Memory(bytes) => write!(f, "is of a sort in {} of memory", Bytes(*bytes))?,
            CannotResume::Unique => f.write_str("keeps other records of equal keys")?,
            CannotResume::Other => f.write_str("is of other inputs, keys or record lengths")?,
        }
        f.write_str("; beginning anew")
    }
}

/// The options of a sort.
#[derive(Debug, Clone)]
pub struct Sort {
    /// Input files, in order. If one of them is not a regular file, all are read as streams.
    pub inputs: Vec<InputLocation>,
    /// The name of the output, or a stream that is opened by that name.
    pub output: Location,
    /// Whether the output is a pipe, a terminal or a device.
    pub output_is_stream: bool,
    /// Bytes in front of the records of the output; they are not records. A sort with any cannot be resumed.
    pub header: Vec<u8>,
    /// The layout of the records.
    pub layout: Layout,
    /// The parts of the key; the whole record if empty.
    pub keys: Vec<KeyPart>,
    /// The memory limit of the whole process, in bytes.
    pub memory_bytes: u64,
    /// Directories for data that does not fit in memory.
    pub scratch: Vec<Location>,
    /// Spill into the output file instead of `scratch`, where that takes less disk space.
    pub within_output: bool,
    /// The maximum bytes of scratch space.
    pub scratch_limit: u64,
    /// The number of lanes.
    pub lanes: usize,
    /// Shuffle with this seed instead of sorting by `keys`.
    pub shuffle: Option<u64>,
    /// Keep only the first of records with equal keys.
    pub unique: bool,
    /// Resume from the files of an earlier run.
    pub resume: bool,
    /// Whether to compute checksums. Without them a proof only counts records and bytes.
    pub hashing: bool,
    /// Measured rates for a forecast. Without them the receipt has no plan.
    pub hardware: Option<Hardware>,
}

impl Sort {
    /// Sorts by whole records, ascending, in one lane. The caller sets the inputs and the output.
    pub fn new(layout: Layout, memory_bytes: u64, scratch: Vec<Location>) -> Sort {
        Sort {
            inputs: Vec::new(),
            output: scratch[0].at(""),
            output_is_stream: false,
            header: Vec::new(),
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

    /// The tags that are put in front of records during a shuffle.
    pub(crate) fn tags(&self) -> Option<Tags> {
        self.shuffle.map(Tags::new)
    }

    /// Bytes of a tag; 0 if this is not a shuffle.
    pub(crate) fn tag_bytes(&self) -> usize {
        if self.shuffle.is_some() { TAG_BYTES } else { 0 }
    }

    /// The layout of records after they are distributed, with their tags.
    pub(crate) fn stored(&self) -> Layout {
        if self.shuffle.is_some() { self.layout.tagged() } else { self.layout }
    }

    /// The key of records after they are distributed.
    pub(crate) fn stored_key(&self) -> Result<Key, KeyError> {
        match self.shuffle {
            Some(_) => Key::new(self.stored(), &[TAG_PART]),
            None => Key::new(self.layout, &self.keys),
        }
    }

    /// An empty proof of the output. A shuffle has no keys, so its proof compares whole records.
    pub(crate) fn prover(&self) -> Prover {
        let key =
            Key::new(self.layout, &self.keys).expect("the keys were looked at before anything was done");
        Prover::new(self.layout, key, self.hashing).keeping(PROVE_KEEP_BYTES)
    }

    /// The longest variable-length record that the memory allows.
    pub(crate) fn record_max(&self) -> u64 {
        record_max(self.memory_bytes)
    }
}

/// The longest variable-length record that `memory_bytes` allow.
pub(crate) fn record_max(memory_bytes: u64) -> u64 {
    memory_bytes / 8
}
