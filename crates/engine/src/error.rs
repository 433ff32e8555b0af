//! What can go wrong with a verb: the errors of the rooms below, and those of the verbs themselves.

use std::fmt;
use std::path::{Path, PathBuf};

use thalweg_base::units::Bytes;
use thalweg_pump::InputsError;
use thalweg_record::Layout;

use crate::asked::{Asked, BadPath, Needs, TooLittleMemory};
use crate::job_fault::{AskedOfCluster, JobFault};

/// Results of the verbs.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb did not succeed. Each message is one line: what, where, how much, and the remedy if there is one.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be done as it was asked. Nothing was touched.
    Asked(Asked),
    /// The memory is too small. Nothing was touched.
    Memory(TooLittleMemory),
    /// The system refused an operation on a file.
    Io(thalweg_io::Error),
    /// An input cannot be read, or is not what it should be.
    Input(InputsError),
    /// The key does not fit the records.
    Key(thalweg_record::KeyError),
    /// Memory could not be mapped.
    Pool(thalweg_block::PoolError),
    /// A sort failed.
    Sort(thalweg_sort::Error),
    /// A merge or a join failed.
    Merge(thalweg_merge::Error),
    /// A river failed.
    River(thalweg_river::Error),
    /// A transfer failed.
    Transfer(thalweg_transfer::Error),
    /// A volume could not be used.
    Volume(thalweg_volume::Error),
    /// A cluster, an identity or a link with a host could not be used.
    Cluster(thalweg_wire::ClusterError),
    /// A record is longer than the verb has room for.
    RecordTooLong {
        /// The input, if one is known.
        path: Option<PathBuf>,
        /// The byte at which the record begins, if that is known.
        at: Option<u64>,
        /// The most bytes that a record may have.
        limit: u64,
        /// How the records lie in the input.
        layout: Layout,
    },
    /// An input ends inside a record.
    CutShort {
        /// The input.
        path: PathBuf,
        /// Bytes of the record that are there.
        bytes: u64,
    },
    /// There is no room for the output.
    OutputFull {
        /// The output.
        path: PathBuf,
        /// Bytes that it takes.
        needed: u64,
        /// Its directory.
        directory: PathBuf,
        /// Bytes that are free there; nothing if the limit is that of one file.
        available: Option<u64>,
    },
    /// Only some parts of a partition have their names.
    SomeParts {
        /// Why the others have not.
        why: Box<Error>,
        /// The first of those that have.
        first: PathBuf,
        /// The last of those that have.
        last: PathBuf,
        /// How many have.
        named: usize,
        /// How many parts there are.
        all: usize,
    },
    /// The process may not have as many files open as the parts take.
    OpenFiles {
        /// How many parts there are.
        parts: usize,
        /// How many files would be open.
        needed: u64,
        /// How many may be.
        limit: u64,
    },
    /// Another node writes the same output.
    SameOutput(PathBuf),
    /// io_uring was asked for and is not available.
    NoUring(thalweg_io::Error),
    /// The rates that were measured cannot be right.
    Rates,
    /// A merge's output is not its inputs in order.
    MergeMismatch {
        /// Records of the inputs.
        read: u64,
        /// Records of the output.
        written: u64,
        /// Records that were dropped.
        dropped: u64,
        /// Records of the output that are less than the one before.
        unordered: u64,
    },
    /// A join's output is not what its inputs promise.
    JoinMismatch {
        /// Records with a right part that should have come.
        promised: u64,
        /// Records with a right part that came.
        came: u64,
        /// All records that came.
        records: u64,
    },
    /// What a check is to add up is not a summary.
    BadSummary {
        /// The file.
        path: PathBuf,
        /// The byte at which the summary begins.
        at: u64,
        /// What is wrong with it; nothing if it is missing.
        why: Option<String>,
    },
    /// Summaries count more records or bytes than fit in a number.
    SummaryTooLarge(u128),
    /// A job on several nodes failed.
    Job(JobFault),
    /// A link with a node broke or was refused.
    Link(thalweg_wire::LinkError),
    /// Another process, or the way to it, failed; the text says how.
    Node {
        /// What it says.
        why: String,
        /// Whether it found data that is wrong.
        wrong: bool,
    },
    /// A signal of this number stopped the verb; leftovers are removed.
    Interrupted(i32),
    /// Another participant is gone and knows why: the one at this place, if that is known.
    Gone(String, Option<usize>),
}

impl Error {
    /// The exit status with which a command should end: 1 if data is wrong, 128 + the number of a signal, 2 otherwise.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Interrupted(signal) => 128 + (*signal as u8 & 0x7f),
            error if error.is_wrong() => 1,
            _ => 2,
        }
    }

    /// Whether the data was examined and is wrong: unordered, damaged, or what came out is not what went in.
    pub fn is_wrong(&self) -> bool {
        use thalweg_river::Error::{Damaged, Fault};
        match self {
            Error::Sort(thalweg_sort::Error::Mismatch(_))
            | Error::River(Fault(_) | Damaged(..))
            | Error::MergeMismatch { .. }
            | Error::JoinMismatch { .. } => true,
            Error::Transfer(why) => why.is_wrong(),
            Error::Volume(why) => why.is_damage(),
            Error::Node { wrong, .. } => *wrong,
            _ => false,
        }
    }

    /// Whether a disk is full.
    pub fn is_full(&self) -> bool {
        match self {
            Error::Io(why) => why.is_full(),
            Error::OutputFull { .. } => true,
            Error::Sort(why) => {
                use thalweg_sort::Error::{OutputFull, ScratchFull};
                matches!(why, ScratchFull { limit: None, .. } | OutputFull { .. })
            }
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Asked(why) => write!(f, "{why}"),
            Error::Memory(why) => write!(f, "{why}"),
            Error::Io(why) => write!(f, "{why}{}", remedy(why)),
            Error::Input(why) => write!(f, "{why}"),
            Error::Key(why) => write!(f, "{why}"),
            Error::Pool(why) => write!(f, "{why}"),
            Error::Sort(why) => write!(f, "{why}"),
            Error::Merge(why) => write!(f, "{why}"),
            Error::River(why) => write!(f, "{why}"),
            Error::Transfer(why) => write!(f, "{why}"),
            Error::Volume(why) => write!(f, "{why}"),
            Error::Cluster(why) => write!(f, "{why}"),
            Error::RecordTooLong { path, at, limit, .. } => {
                write_record_too_long(f, path.as_deref(), *at, Bytes(*limit))
            }
            Error::CutShort { path, bytes } => write_cut_short(f, path, *bytes),
            Error::OutputFull { path, needed, directory, available } => {
                write_output_full(f, path, Bytes(*needed), directory, *available)
            }
            Error::SomeParts { why, first, last, named, all } => {
                let (first, last) = (first.display(), last.display());
                match named {
                    1 => write!(f, "{why}; of {all} parts only {first} is in place"),
                    _ => write!(f, "{why}; of {all} parts the first {named} are in place, {first} to {last}"),
                }
            }
            Error::OpenFiles { parts, needed, limit } => write!(
                f,
                "{parts} parts take {needed} open files, and {limit} are allowed; raise ulimit -n, or make fewer parts"
            ),
            Error::SameOutput(path) => write!(
                f,
                "another node writes {} too, in a directory that both see; put {{}} into the name for each node's number",
                path.display()
            ),
            Error::NoUring(why) => {
                write!(f, "io_uring is not available: {why}; allow it with sysctl kernel.io_uring_disabled=0")
            }
            Error::Rates => f.write_str("the measured rates cannot be right; measure again"),
            Error::MergeMismatch { read, written, dropped, unordered } => write!(
                f,
                "the output is not the inputs in order: {read} records in, {written} out, {dropped} dropped, {unordered} out \
                 of order; no file was made"
            ),
            Error::JoinMismatch { promised, came, records } => write!(
                f,
                "the output is not the sum over keys of left x right: {promised} records with a right part were expected, \
                 {came} came, {records} records in all; no file was made"
            ),
            Error::BadSummary { path, at, why: Some(why) } => {
                write!(f, "{} from byte {at} on is not a summary: {why}", path.display())
            }
            Error::BadSummary { path, .. } => {
                write!(f, "{} is empty; it should be a summary", path.display())
            }
            Error::SummaryTooLarge(value) => write!(f, "{value} records or bytes are too many to be counted"),
            Error::Job(why) => write!(f, "{why}"),
            Error::Link(why) => write!(f, "{why}"),
            Error::Node { why, .. } | Error::Gone(why, _) => f.write_str(why),
            Error::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
        }
    }
}

fn write_record_too_long(
    f: &mut fmt::Formatter<'_>,
    path: Option<&Path>,
    at: Option<u64>,
    limit: Bytes,
) -> fmt::Result {
    let of = path.map_or(String::new(), |path| format!(" of {}", path.display()));
    let at = at.map_or(String::new(), |at| format!(" at byte {at}"));
    write!(f, "a record{of}{at} is longer than {limit}, the most that there is room for")
}

fn write_cut_short(f: &mut fmt::Formatter<'_>, path: &Path, bytes: u64) -> fmt::Result {
    write!(f, "{} ends after {bytes} bytes of a record", path.display())
}

fn write_output_full(
    f: &mut fmt::Formatter<'_>,
    path: &Path,
    needed: Bytes,
    directory: &Path,
    available: Option<u64>,
) -> fmt::Result {
    let (path, directory) = (path.display(), directory.display());
    match available.map(Bytes) {
        Some(free) => write!(
            f,
            "cannot create {path}: it takes {needed} and {directory} has {free} left; free some, or choose another place"
        ),
        None => write!(
            f,
            "cannot create {path}: {needed} is more than one file may have in {directory}; see ulimit -f, or choose \
             another place"
        ),
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(why) | Error::NoUring(why) => Some(why),
            Error::Input(why) => Some(why),
            Error::Key(why) => Some(why),
            Error::Pool(why) => Some(why),
            Error::Sort(why) => Some(why),
            Error::Merge(why) => Some(why),
            Error::River(why) => Some(why),
            Error::Transfer(why) => Some(why),
            Error::Volume(why) => Some(why),
            Error::Cluster(why) => Some(why),
            Error::Link(why) => Some(why),
            Error::SomeParts { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// The usual remedy of a failed operation on a file, where there is one.
fn remedy(error: &thalweg_io::Error) -> &'static str {
    /// The process has as many files open as it may.
    const EMFILE: i32 = 24;
    use std::io::ErrorKind::*;
    match error.source.kind() {
        _ if error.errno() == Some(EMFILE) => "; raise ulimit -n",
        NotFound => "; check the name",
        StorageFull | QuotaExceeded => "; free some room there, or choose another place",
        FileTooLarge => "; see ulimit -f, or choose another place",
        _ if error.is_out_of_files() => "; raise the limit of open files (ulimit -n)",
        PermissionDenied => "; allow it with chmod, or choose another place",
        ReadOnlyFilesystem => "; choose another place",
        _ => "",
    }
}

impl From<Asked> for Error {
    fn from(why: Asked) -> Error {
        Error::Asked(why)
    }
}

impl From<BadPath> for Error {
    fn from(why: BadPath) -> Error {
        Error::Asked(Asked::Path(why))
    }
}

impl From<TooLittleMemory> for Error {
    fn from(why: TooLittleMemory) -> Error {
        Error::Memory(why)
    }
}

impl From<AskedOfCluster> for Error {
    fn from(why: AskedOfCluster) -> Error {
        Error::Asked(Asked::Cluster(why))
    }
}

impl From<thalweg_wire::LinkError> for Error {
    fn from(why: thalweg_wire::LinkError) -> Error {
        Error::Link(why)
    }
}

impl From<JobFault> for Error {
    fn from(why: JobFault) -> Error {
        Error::Job(why)
    }
}

/// The reader of a pipe that has gone ends a verb as the signal for that ends other programs.
impl From<thalweg_io::Error> for Error {
    fn from(why: thalweg_io::Error) -> Error {
        const SIGPIPE: i32 = 13;
        match why.source.kind() {
            std::io::ErrorKind::BrokenPipe => Error::Interrupted(SIGPIPE),
            _ => Error::Io(why),
        }
    }
}

impl From<InputsError> for Error {
    fn from(why: InputsError) -> Error {
        match why {
            InputsError::Io(why) => why.into(),
            other => Error::Input(other),
        }
    }
}

impl From<thalweg_record::KeyError> for Error {
    fn from(why: thalweg_record::KeyError) -> Error {
        Error::Key(why)
    }
}

impl From<thalweg_block::PoolError> for Error {
    fn from(why: thalweg_block::PoolError) -> Error {
        Error::Pool(why)
    }
}

impl From<thalweg_transfer::Error> for Error {
    fn from(why: thalweg_transfer::Error) -> Error {
        Error::Transfer(why)
    }
}

impl From<thalweg_wire::ClusterError> for Error {
    fn from(why: thalweg_wire::ClusterError) -> Error {
        Error::Cluster(why)
    }
}

impl From<thalweg_sort::Error> for Error {
    fn from(why: thalweg_sort::Error) -> Error {
        match why {
            thalweg_sort::Error::Io(why) => why.into(),
            thalweg_sort::Error::Key(why) => why.into(),
            thalweg_sort::Error::Pool(why) => why.into(),
            thalweg_sort::Error::MemoryTooSmall { given, needed } => {
                Error::Memory(TooLittleMemory { given, by: Needs::Sort, needed: Some(needed) })
            }
            other => Error::Sort(other),
        }
    }
}

impl From<thalweg_merge::Error> for Error {
    fn from(why: thalweg_merge::Error) -> Error {
        match why {
            thalweg_merge::Error::Io(why) => why.into(),
            thalweg_merge::Error::Input(why) => why.into(),
            other => Error::Merge(other),
        }
    }
}

impl From<thalweg_river::Error> for Error {
    fn from(why: thalweg_river::Error) -> Error {
        match why {
            gone if gone.is_gone() => Error::Gone(gone.to_string(), gone.missed()),
            thalweg_river::Error::Memory(why) => why.into(),
            other => Error::River(other),
        }
    }
}

impl From<thalweg_volume::Error> for Error {
    fn from(why: thalweg_volume::Error) -> Error {
        match why {
            thalweg_volume::Error::Io(why) => why.into(),
            other => Error::Volume(other),
        }
    }
}
