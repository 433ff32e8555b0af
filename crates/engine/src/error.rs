//! The errors of the verbs: those of the crates below, and their own.

use std::path::{Path, PathBuf};

use thalweg_api::FailureKind;
use thalweg_base::units::Bytes;
use thalweg_io::directory_of;
use thalweg_pump::InputsError;
use thalweg_record::Layout;

use crate::asked::{Asked, BadPath, Needs, TooLittleMemory};
use crate::job_fault::{AskedOfCluster, JobFault};
use crate::temporary;

/// Results of the verbs.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb did not succeed. Each message is one line: what, where, how much, and the remedy if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request cannot be carried out. Nothing was touched.
    #[error(transparent)]
    Asked(#[from] Asked),
    /// The memory is too small. Nothing was touched.
    #[error(transparent)]
    Memory(#[from] TooLittleMemory),
    /// The system refused an operation on a file.
    #[error("{}{}", .0, remedy(.0))]
    Io(thalweg_io::Error),
    /// An input cannot be read, or is not what it should be.
    #[error("{0}")]
    Input(InputsError),
    /// The key does not fit the records.
    #[error(transparent)]
    Key(#[from] thalweg_record::KeyError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Pool(#[from] thalweg_block::PoolError),
    /// A sort failed.
    #[error("{0}")]
    Sort(thalweg_sort::Error),
    /// A merge or a join failed.
    #[error("{0}")]
    Merge(thalweg_merge::Error),
    /// A river failed.
    #[error("{0}")]
    River(thalweg_river::Error),
    /// A transfer failed.
    #[error(transparent)]
    Transfer(#[from] thalweg_transfer::Error),
    /// A volume could not be used.
    #[error("{0}")]
    Volume(thalweg_volume::Error),
    /// A table could not be read or loaded.
    #[error(transparent)]
    Table(#[from] thalweg_table::cluster::Error),
    /// A cluster, an identity or a link with a host could not be used.
    #[error(transparent)]
    Cluster(#[from] thalweg_wire::ClusterError),
    /// A record is longer than the verb has room for.
    #[error(
        "a record{}{} is longer than {}, the most that there is room for",
        .path.as_ref().map_or(String::new(), |path| format!(" of {}", path.display())),
        .at.map_or(String::new(), |at| format!(" at byte {at}")),
        Bytes(*.limit)
    )]
    RecordTooLong {
        /// The input, if one is known.
        path: Option<PathBuf>,
        /// The byte at which the record begins, if that is known.
        at: Option<u64>,
        /// The most bytes that a record may have.
        limit: u64,
        /// The layout of the records in the input.
        layout: Layout,
    },
    /// An input ends inside a record.
    #[error("{} ends after {bytes} bytes of a record", .path.display())]
    CutShort {
        /// The input.
        path: PathBuf,
        /// Bytes of the record that are there.
        bytes: u64,
    },
    /// There is no room for the output.
    #[error("cannot create {}: {}", .path.display(), no_room(Bytes(*.needed), .directory, *.available))]
    OutputFull {
        /// The output.
        path: PathBuf,
        /// Bytes that it takes; if that is not known, bytes that it has taken.
        needed: u64,
        /// Its directory.
        directory: PathBuf,
        /// Bytes that are free there; `None` if the limit is the size of one file.
        available: Option<u64>,
    },
    /// Only some parts of a partition have their final names.
    #[error("{why}; of {all} parts {}", in_place(.first, .last, *.named))]
    SomeParts {
        /// Why the others do not.
        why: Box<Error>,
        /// The first part that has its name.
        first: PathBuf,
        /// The last part that has its name.
        last: PathBuf,
        /// How many have their names.
        named: usize,
        /// How many parts there are.
        all: usize,
    },
    /// The parts need more open files than the process may have.
    #[error(
        "{parts} parts take {needed} open files, and {limit} are allowed; raise ulimit -n, or make fewer parts"
    )]
    OpenFiles {
        /// How many parts there are.
        parts: usize,
        /// How many files would be open.
        needed: u64,
        /// How many may be open.
        limit: u64,
    },
    /// Another node writes the same output.
    #[error(
        "another node writes {} too, in a directory that both see; put {{}} into the name for each node's number",
        .0.display()
    )]
    SameOutput(PathBuf),
    /// io_uring was asked for and is not available.
    #[error("io_uring is not available: {0}; allow it with sysctl kernel.io_uring_disabled=0")]
    NoUring(thalweg_io::Error),
    /// The rates that were measured cannot be right.
    #[error("the measured rates cannot be right; measure again")]
    Rates,
    /// A merge's output is not its inputs in order.
    #[error(
        "the output is not the inputs in order: {read} records in, {written} out, {dropped} dropped, {unordered} out \
         of order; no file was made"
    )]
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
    #[error(
        "the output is not the sum over keys of left x right: {promised} records with a right part were expected, \
         {came} came, {records} records in all; no file was made"
    )]
    JoinMismatch {
        /// Records with a right part that should have come.
        promised: u64,
        /// Records with a right part that came.
        came: u64,
        /// All records that came.
        records: u64,
    },
    /// An input of a check that adds up summaries is not a summary.
    #[error("{} {}", .path.display(), not_a_summary(*.at, .why.as_deref()))]
    BadSummary {
        /// The file.
        path: PathBuf,
        /// The byte at which the summary begins.
        at: u64,
        /// What is wrong with it; `None` if it is missing.
        why: Option<String>,
    },
    /// Summaries count more records or bytes than fit in a number.
    #[error("{0} records or bytes are too many to be counted")]
    SummaryTooLarge(u128),
    /// A job on several nodes failed.
    #[error(transparent)]
    Job(#[from] JobFault),
    /// A link with a node broke or was refused.
    #[error(transparent)]
    Link(#[from] thalweg_wire::LinkError),
    /// Another process, or the connection to it, failed; the text says how.
    #[error("{why}")]
    Node {
        /// Its message.
        why: String,
        /// The kind of its failure.
        kind: FailureKind,
    },
    /// A signal of this number stopped the verb; leftovers are removed.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// Another participant is gone, and knows why; which one, if known.
    #[error("{0}")]
    Gone(String, Option<Missed>),
}

/// A participant that another one misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// Its place.
    pub place: usize,
    /// Whether the link with it is open: it has only stopped, perhaps because it misses another one itself.
    pub is_linked: bool,
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

    /// Whether the data was examined and is wrong: unordered, damaged, or not the same in the output as in the input.
    pub fn is_wrong(&self) -> bool {
        use thalweg_river::Error::{Damaged, Fault};
        match self {
            Error::River(why) if why.is_gone() => false,
            Error::Sort(thalweg_sort::Error::Mismatch(_))
            | Error::River(Fault(_) | Damaged(..))
            | Error::MergeMismatch { .. }
            | Error::JoinMismatch { .. } => true,
            Error::Transfer(why) => why.kind() == FailureKind::Wrong,
            Error::Volume(why) => why.is_damage(),
            Error::Node { kind, .. } => *kind == FailureKind::Wrong,
            _ => false,
        }
    }

    /// Whether another participant is gone and knows why.
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Gone(..) => true,
            Error::River(why) => why.is_gone(),
            _ => false,
        }
    }

    /// The kind of the error, as another process is told.
    pub fn kind(&self) -> FailureKind {
        match self {
            Error::Transfer(why) => why.kind(),
            Error::Node { kind, .. } => *kind,
            why if why.is_wrong() => FailureKind::Wrong,
            _ => FailureKind::Operating,
        }
    }

    /// An error of writing this output, whose size was not known before, or not reserved.
    pub(crate) fn of_output(why: thalweg_io::Error, output: &Path) -> Error {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        match why.source.kind() {
            StorageFull | QuotaExceeded => Error::OutputFull {
                path: output.to_path_buf(),
                needed: why.offset.unwrap_or(0),
                directory: directory_of(output).to_path_buf(),
                available: Some(0),
            },
            _ => Error::Io(why),
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

fn no_room(needed: Bytes, directory: &Path, available: Option<u64>) -> String {
    let directory = directory.display();
    match available.map(Bytes) {
        Some(Bytes(0)) => {
            format!(
                "it takes more than {needed} and {directory} has nothing left; free some, or choose another place"
            )
        }
        Some(free) => {
            format!("it takes {needed} and {directory} has {free} left; free some, or choose another place")
        }
        None => format!(
            "{needed} is more than one file may have in {directory}; see ulimit -f, or choose another place"
        ),
    }
}

fn in_place(first: &Path, last: &Path, named: usize) -> String {
    let (first, last) = (first.display(), last.display());
    match named {
        1 => format!("only {first} is in place"),
        _ => format!("the first {named} are in place, {first} to {last}"),
    }
}

fn not_a_summary(at: u64, why: Option<&str>) -> String {
    match why {
        Some(why) => format!("from byte {at} on is not a summary: {why}"),
        None => "is empty; it should be a summary".into(),
    }
}

/// The usual remedy of a failed operation on a file, where there is one.
fn remedy(error: &thalweg_io::Error) -> &'static str {
    /// The process has as many open files as it may.
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

impl From<BadPath> for Error {
    fn from(why: BadPath) -> Error {
        Error::Asked(Asked::Path(why))
    }
}

impl From<AskedOfCluster> for Error {
    fn from(why: AskedOfCluster) -> Error {
        Error::Asked(Asked::Cluster(why))
    }
}

/// If the reader of a pipe has closed it, a verb ends as other programs do on SIGPIPE.
impl From<thalweg_io::Error> for Error {
    fn from(why: thalweg_io::Error) -> Error {
        const SIGPIPE: i32 = 13;
        match why.source.kind() {
            std::io::ErrorKind::BrokenPipe => Error::Interrupted(SIGPIPE),
            _ => match temporary::output_of(&why.path) {
                Some(output) => Error::of_output(why, &output),
                None => Error::Io(why),
            },
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
