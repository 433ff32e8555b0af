//! The errors of a sort. Each message is one line that says what, where and how much, and often what helps.

use std::fmt;
use std::path::{Path, PathBuf};

use thalweg_base::units::Bytes;
use thalweg_block::PoolError;
use thalweg_pump::InputsError;
use thalweg_record::KeyError;

use crate::options::{BLOCKS_HELD_MAX, SCRATCH_FILES_MAX};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a sort failed. The inputs are unchanged in every case.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    Io(thalweg_io::Error),
    /// An input cannot be sorted.
    Input(InputsError),
    /// The key does not fit the layout.
    Key(KeyError),
    /// Memory could not be mapped.
    Pool(PoolError),
    /// The memory is too small for this sort.
    MemoryTooSmall {
        /// The memory limit.
        given: u64,
        /// The least memory that is enough.
        needed: u64,
    },
    /// A variable-length record is too long for the memory.
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
    /// The input ends inside a prefixed record.
    CutOff {
        /// The offset of the record.
        at: u64,
        /// The bytes of it that exist.
        bytes: u64,
    },
    /// There is not enough scratch space.
    ScratchFull {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// Bytes on the same disks that are reserved for the output.
        beside: u64,
        /// The configured limit, if that is what is exhausted.
        limit: Option<u64>,
        /// The scratch directories.
        directories: Vec<PathBuf>,
        /// Whether a later run can resume.
        resumable: bool,
    },
    /// There is not enough disk space for the output.
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
    Damaged {
        /// The scratch file.
        path: PathBuf,
        /// The offset of the page.
        offset: u64,
        /// The length of the page.
        len: u64,
    },
    /// The output is not the input in order.
    Mismatch(Box<thalweg_api::Receipt>),
    /// The sort was stopped.
    Stopped,
    /// There were more records than planned, and the sort cannot be planned again.
    Underestimated,
    /// There are too many scratch directories, including those of earlier runs.
    TooManyScratch {
        /// Their number.
        count: usize,
    },
    /// This sort cannot resume.
    NotResumable {
        /// What it would need.
        what: &'static str,
    },
    /// Another process is writing the same output.
    Busy {
        /// The partial output.
        partial: PathBuf,
    },
    /// The input of a sorter ends inside a fixed record.
    CutShort {
        /// Bytes of the input.
        bytes: u64,
        /// Bytes of a record.
        record_bytes: u32,
    },
    /// A program already holds the maximum number of blocks of a sorter.
    BlocksHeld,
    /// The receipt was asked for before the end of the output.
    NotTaken {
        /// Bytes of the output that were taken.
        bytes: u64,
    },
    /// The sorter has failed before, with an error that says why.
    Over,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "{e}"),
            Error::Input(e) => write!(f, "{e}"),
            Error::Key(e) => write!(f, "{e}"),
            Error::Pool(e) => write!(f, "{e}"),
            Error::MemoryTooSmall { given, needed } => {
                let (given, needed) = (Bytes(*given), Bytes(*needed));
                write!(f, "memory of {given} is too small: this sort needs at least {needed}")
            }
            Error::RecordTooLong { what, path, at, limit } => {
                let of = path.as_ref().map_or(String::new(), |path| format!(" of {}", path.display()));
                let limit = Bytes(*limit);
                write!(f, "the {what} at byte {at}{of} is longer than {limit}, an eighth of the memory")
            }
            Error::CutOff { at, bytes } => {
                write!(f, "the input ends inside the record at byte {at}, after {bytes} bytes of it")
            }
            Error::ScratchFull { needed, available, beside, limit, directories, resumable } => {
                let (needed, available) = (Bytes(*needed), Bytes(*available));
                match limit {
                    Some(limit) => write_limited(f, Bytes(*limit), needed, available, *resumable),
                    None => write_full(f, directories, needed, (available, Bytes(*beside)), *resumable),
                }
            }
            Error::OutputFull { output, needed, available, resumable } => {
                write_output_full(f, output, Bytes(*needed), Bytes(*available), *resumable)
            }
            Error::Damaged { path, offset, len } => write!(
                f,
                "scratch {} is damaged: the {len} bytes at {offset} are not what was written; \
                 start over instead of resuming, and check the disk",
                path.display()
            ),
            Error::Mismatch(receipt) => write!(
                f,
                "the output is not the input in order: {} records in, {} out, {} unordered; nothing was written",
                receipt.input.records, receipt.output.records, receipt.output.unordered
            ),
            Error::TooManyScratch { count } => write_many(f, *count),
            Error::Stopped => write!(f, "stopped"),
            Error::Underestimated => {
                write!(f, "there are more records than planned; the sort needs more memory")
            }
            Error::NotResumable { what } => write!(f, "resuming needs {what}"),
            Error::Busy { partial } => write!(
                f,
                "another sort is writing this output ({} is in use); wait for it, or choose another output",
                partial.display()
            ),
            Error::CutShort { bytes, record_bytes } => write!(
                f,
                "the input ends inside a record: {bytes} bytes are not a multiple of the record's {record_bytes} \
                 ({} left over); put whole records, or give their right length",
                bytes % u64::from(*record_bytes)
            ),
            Error::BlocksHeld => write!(
                f,
                "{BLOCKS_HELD_MAX} blocks of the sorter are held, the most that there is room for; put or drop some first"
            ),
            Error::NotTaken { bytes } => write!(
                f,
                "a receipt is of the whole output: {bytes} bytes of it were taken and there are more; take the rest first"
            ),
            Error::Over => write!(f, "this sort has already failed; make a new one"),
        }
    }
}

fn write_many(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    write!(
        f,
        "{count} scratch directories, those of the runs before included, and a sort has at most {SCRATCH_FILES_MAX}; name fewer"
    )
}

fn write_limited(
    f: &mut fmt::Formatter<'_>,
    limit: Bytes,
    needed: Bytes,
    available: Bytes,
    resumable: bool,
) -> fmt::Result {
    let remedy =
        if resumable { "resume with a larger limit" } else { "raise the limit, or give more memory" };
    write!(
        f,
        "the scratch limit of {limit} is reached: {needed} of scratch needed, {available} of it left; {remedy}"
    )
}

fn write_full(
    f: &mut fmt::Formatter<'_>,
    directories: &[PathBuf],
    needed: Bytes,
    (available, beside): (Bytes, Bytes),
    resumable: bool,
) -> fmt::Result {
    let names: Vec<_> = directories.iter().map(|d| d.display().to_string()).collect();
    let remedy = if resumable {
        "free some space, or resume with another scratch directory"
    } else {
        "free some space, or use another scratch directory"
    };
    let beside = if beside.0 > 0 { format!(" beside the output's {beside}") } else { String::new() };
    write!(
        f,
        "scratch in {} is full: {needed} needed, {available} available{beside}; {remedy}",
        names.join(", ")
    )
}

fn write_output_full(
    f: &mut fmt::Formatter<'_>,
    output: &Path,
    needed: Bytes,
    available: Bytes,
    resumable: bool,
) -> fmt::Result {
    let remedy = if resumable { "and resume" } else { "or choose another output" };
    let name = output.display();
    write!(
        f,
        "the disk of {name} is full: {needed} needed for the output, {available} available; free some space, {remedy}"
    )
}

impl std::error::Error for Error {}

impl From<thalweg_io::Error> for Error {
    fn from(e: thalweg_io::Error) -> Self {
        Error::Io(e)
    }
}

impl From<InputsError> for Error {
    fn from(e: InputsError) -> Self {
        match e {
            InputsError::Io(e) => Error::Io(e),
            other => Error::Input(other),
        }
    }
}

impl From<KeyError> for Error {
    fn from(e: KeyError) -> Self {
        Error::Key(e)
    }
}

impl From<PoolError> for Error {
    fn from(e: PoolError) -> Self {
        Error::Pool(e)
    }
}
