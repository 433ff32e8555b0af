//! The errors of a sort. Each message is one line that says what, where and how much, and often what helps.

use std::fmt;
use std::path::PathBuf;

use thalweg_base::units::Bytes;
use thalweg_block::PoolError;
use thalweg_pump::InputsError;
use thalweg_record::KeyError;

use crate::options::{BLOCKS_HELD_MAX, SCRATCH_FILES_MAX};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a sort failed. The inputs are unchanged in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] thalweg_io::Error),
    /// An input cannot be sorted.
    #[error(transparent)]
    Input(InputsError),
    /// The key does not fit the layout.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The memory is too small for this sort.
    #[error("memory of {} is too small: this sort needs at least {}", Bytes(*.given), Bytes(*.needed))]
    MemoryTooSmall {
        /// The memory limit.
        given: u64,
        /// The least memory that is enough.
        needed: u64,
    },
    /// A variable-length record is too long for the memory.
    #[error(
        "the {what} at byte {at}{} is longer than {}, an eighth of the memory",
        .path.as_ref().map_or(String::new(), |path| format!(" of {}", path.display())),
        Bytes(*.limit)
    )]
    RecordTooLong {
        /// What a record of this layout is called.
        what: &'static str,
        /// The input, if it is a file.
        path: Option<PathBuf>,
        /// The offset of the record.
        at: u64,
        /// The longest record that this memory allows.
        limit: u64,
    },
    /// The header of the output does not fit in one of its blocks.
    #[error(
        "a header of {} is longer than a block in this memory, {}; give more memory",
        Bytes(*.bytes),
        Bytes(*.limit)
    )]
    HeaderTooLong {
        /// Bytes of the header.
        bytes: u64,
        /// Bytes of a block.
        limit: u64,
    },
    /// The input ends inside a prefixed record.
    #[error("the input ends inside the record at byte {at}, after {bytes} bytes of it")]
    CutOff {
        /// The offset of the record.
        at: u64,
        /// The number of its bytes before the end.
        bytes: u64,
    },
    /// There is not enough scratch space.
    #[error(fmt = write_scratch_full)]
    ScratchFull {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// Bytes on the same disks that are reserved for the output.
        beside: u64,
        /// The configured limit, if it is reached.
        limit: Option<u64>,
        /// The scratch directories.
        directories: Vec<PathBuf>,
        /// Whether a later run can resume.
        resumable: bool,
    },
    /// There is not enough disk space for the output.
    #[error(
        "the disk of {} is full: {} needed for the output, {} available; free some space, {}",
        .output.display(),
        Bytes(*.needed),
        Bytes(*.available),
        if *.resumable { "and resume" } else { "or choose another output" }
    )]
    OutputFull {
        /// The output.
        output: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// Whether a later run can resume.
        resumable: bool,
    },
    /// A page that was read from scratch is not what was written.
    #[error(
        "scratch {} is damaged: the {len} bytes at {offset} are not what was written; check the disk, and \
         sort again without --resume",
        .path.display()
    )]
    Damaged {
        /// The scratch file.
        path: PathBuf,
        /// The offset of the page.
        offset: u64,
        /// The length of the page.
        len: u64,
    },
    /// The output is not the input in order.
    #[error(
        "the output is not the input in order: {} records in, {} out, {} unordered; nothing was written",
        .0.input.records, .0.output.records, .0.output.unordered
    )]
    Mismatch(Box<thalweg_api::Receipt>),
    /// The sort was stopped.
    #[error("stopped")]
    Stopped,
    /// There were more records than planned, and the sort cannot be planned again.
    #[error("there are more records than planned; the sort needs more memory")]
    Underestimated,
    /// There are too many scratch directories, including those of earlier runs.
    #[error(
        "{count} scratch directories, those of the runs before included, and a sort has at most {SCRATCH_FILES_MAX}; \
         name fewer"
    )]
    TooManyScratch {
        /// Their number.
        count: usize,
    },
    /// This sort cannot resume.
    #[error("resuming needs {what}")]
    NotResumable {
        /// The missing requirement.
        what: &'static str,
    },
    /// Another process is writing the same output.
    #[error(
        "another sort is writing this output ({} is in use); wait for it, or choose another output",
        .partial.display()
    )]
    Busy {
        /// The partial output.
        partial: PathBuf,
    },
    /// The input of a sorter ends inside a fixed record.
    #[error(
        "the input ends inside a record: {bytes} bytes are not a multiple of the record's {record_bytes} ({} left \
         over); put whole records, or give their right length",
        .bytes % u64::from(*.record_bytes)
    )]
    CutShort {
        /// Bytes of the input.
        bytes: u64,
        /// Bytes of a record.
        record_bytes: u32,
    },
    /// A program already holds the maximum number of blocks of a sorter.
    #[error(
        "{BLOCKS_HELD_MAX} blocks of the sorter are held, the most that there is room for; put or drop some first"
    )]
    BlocksHeld,
    /// The receipt was requested before the end of the output.
    #[error(
        "a receipt is of the whole output: {bytes} bytes of it were taken and there are more; take the rest first"
    )]
    NotTaken {
        /// Bytes of the output that were taken.
        bytes: u64,
    },
    /// The sorter has failed before, with an error that says why.
    #[error("this sort has already failed; make a new one")]
    Over,
}

fn write_scratch_full(
    needed: &u64,
    available: &u64,
    beside: &u64,
    limit: &Option<u64>,
    directories: &[PathBuf],
    resumable: &bool,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (needed, available, beside) = (Bytes(*needed), Bytes(*available), Bytes(*beside));
    if let Some(limit) = limit.map(Bytes) {
        let remedy =
            if *resumable { "resume with a larger limit" } else { "raise the limit, or give more memory" };
        return write!(
            f,
            "the scratch limit of {limit} is reached: {needed} of scratch needed, {available} of it left; {remedy}"
        );
    }
    let names: Vec<_> = directories.iter().map(|d| d.display().to_string()).collect();
    let how = if *resumable { "resume with" } else { "use" };
    let beside = if beside.0 > 0 { format!(" beside the output's {beside}") } else { String::new() };
    write!(
        f,
        "scratch in {} is full: {needed} needed, {available} available{beside}; free some space, or {how} another \
         scratch directory",
        names.join(", ")
    )
}

impl From<InputsError> for Error {
    fn from(e: InputsError) -> Self {
        match e {
            InputsError::Io(e) => Error::Io(e),
            other => Error::Input(other),
        }
    }
}
