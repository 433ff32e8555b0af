//! What can go wrong with a sort. Each message is one line: what, where, how much, the remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use thalweg_base::units::Bytes;
use thalweg_block::PoolError;
use thalweg_pump::InputsError;
use thalweg_record::KeyError;

use crate::options::{BLOCKS_HELD_MAX, SCRATCH_FILES_MAX};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a sort did not succeed. The inputs are whole in every case.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    Io(thalweg_io::Error),
    /// An input cannot be sorted.
    Input(InputsError),
    /// The key does not fit the layout.
    Key(KeyError),
    /// Memory could not be mapped.
    Pool(PoolError),
    /// Less memory than a sort can live in.
    MemoryTooSmall {
        /// What was allowed.
        given: u64,
        /// The least that would do.
        needed: u64,
    },
    /// A record that memory is too small for, of those that may have any length.
    RecordTooLong {
        /// What a record is called.
        what: &'static str,
        /// The input, if it is a file.
        path: Option<PathBuf>,
        /// Its byte where the record begins.
        at: u64,
        /// The most bytes that a record may have with this memory.
        limit: u64,
    },
    /// The input ends inside a record that says how long it is.
    CutOff {
        /// The byte of the input where the record begins.
        at: u64,
        /// Bytes of it that there are.
        bytes: u64,
    },
    /// Scratch space ran out, or would.
    ScratchFull {
        /// Bytes that were needed.
        needed: u64,
        /// Bytes that there are.
        available: u64,
        /// Bytes of the same disks that the output takes first.
        beside: u64,
        /// The limit that was set, if it is what ends the room, and not the disks.
        limit: Option<u64>,
        /// Where.
        directories: Vec<PathBuf>,
        /// Whether `--resume` can go on from what is there.
        resumable: bool,
    },
    /// Room for the output ran out, or would.
    OutputFull {
        /// The output.
        output: PathBuf,
        /// Bytes that were needed.
        needed: u64,
        /// Bytes that there are.
        available: u64,
        /// Whether `--resume` can go on from what is there.
        resumable: bool,
    },
    /// A page read back from scratch is not what was written.
    Damaged {
        /// The scratch file.
        path: PathBuf,
        /// Its byte where the page begins.
        offset: u64,
        /// The page's bytes.
        len: u64,
    },
    /// What came out is not what went in.
    Mismatch(Box<thalweg_api::Receipt>),
    /// Somebody asked to stop.
    Stopped,
    /// There were more records than the plan had room for; it has to be made again.
    Underestimated,
    /// There are more scratch directories, those of earlier runs included, than a sort may have.
    TooManyScratch {
        /// How many.
        count: usize,
    },
    /// The input is a stream and cannot be read again.
    NotResumable {
        /// What it needs.
        what: &'static str,
    },
    /// Another process is making the same output.
    Busy {
        /// The output under its hidden name.
        partial: PathBuf,
    },
    /// What was put into a sorter ends inside a record.
    CutShort {
        /// Bytes that were put.
        bytes: u64,
        /// Bytes of a record.
        record_bytes: u32,
    },
    /// A program holds as many blocks of a sorter as it may.
    BlocksHeld,
    /// The receipt was asked for before the end of the output.
    NotTaken {
        /// Bytes that were taken.
        bytes: u64,
    },
    /// The sorter has failed and said why.
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
                write!(f, "--memory {given} is too small: this sort needs at least {needed}")
            }
            Error::RecordTooLong { what, path, at, limit } => {
                let of = path.as_ref().map_or(String::new(), |path| format!(" of {}", path.display()));
                let limit = Bytes(*limit);
                write!(
                    f,
                    "the {what} at byte {at}{of} is longer than {limit}, an eighth of the memory; give more --memory"
                )
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
                 run again without --resume, and check the disk",
                path.display()
            ),
            Error::Mismatch(receipt) => write!(
                f,
                "the output is not the input in order: {} records in, {} out, {} unordered; nothing was written",
                receipt.input.records, receipt.output.records, receipt.output.unordered
            ),
            Error::TooManyScratch { count } => write_many(f, *count),
            Error::Stopped => write!(f, "stopped"),
            Error::Underestimated => write!(f, "there are more records than planned for; give more --memory"),
            Error::NotResumable { what } => write!(f, "--resume needs {what}"),
            Error::Busy { partial } => write!(
                f,
                "another sort is writing this output ({} is in use); wait for it, or give another -o",
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
            Error::Over => write!(f, "this sort has failed and said why; make a new one"),
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
    let remedy = if resumable {
        "go on with --resume and a larger one"
    } else {
        "give a larger one, or more --memory"
    };
    write!(
        f,
        "the --scratch-limit of {limit} is reached: {needed} of scratch needed, {available} of it left; {remedy}"
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
        "free some, or go on with --resume --scratch OTHER"
    } else {
        "free some, or give another --scratch"
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
    let remedy = if resumable { "and go on with --resume" } else { "or give another -o" };
    let name = output.display();
    write!(
        f,
        "the disk of {name} is full: {needed} needed for the output, {available} available; free some, {remedy}"
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
