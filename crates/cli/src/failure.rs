//! Why a command failed: its message, the flag that helps, and its exit status.
//!
//! The library's errors do not name flags. This module adds the advice for users of the command.

use std::path::PathBuf;

use thalweg::nodes::{ClusterError, IdentityError};
use thalweg::{Error, SshFault, TransferError};
use thalweg_api::{FailureKind, Note};
use thalweg_base::units::Bytes;
use thalweg_merge::{Broken, Error as MergeError};
use thalweg_record::KeyError;
use thalweg_river::Error as RiverError;
use thalweg_sort::Error as SortError;

/// The exit status of a command that succeeded.
pub(crate) const DONE: u8 = 0;
/// The exit status of a check that found something wrong.
pub(crate) const WRONG: u8 = 1;
/// The exit status of a command that failed.
pub(crate) const COULD_NOT: u8 = 2;
/// The exit status of a command that may have made its change, or not.
pub(crate) const UNCERTAIN: u8 = 3;

/// The exit status of a transfer that left something out.
pub(crate) const LEFT_OUT: u8 = 4;

/// The flag that continues from what an earlier run left.
const RESUME: &str = " (--resume)";

/// A note, with the flag that helps.
pub(crate) fn noted(note: &Note) -> String {
    format!("{}{}", note.text, if note.resumable { RESUME } else { "" })
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A verb failed.
    #[error("{}", with_advice(.0))]
    Verb(#[from] Error),
    /// A command about nodes failed.
    #[error("{}{}", .0, node_advice(.0))]
    Node(#[from] thalweg::nodes::Error),
    /// An upgrade of a cluster cannot begin, for this reason.
    #[error("{0}")]
    Upgrade(String),
    /// A server of tables could not be started, or failed.
    #[error("{0}")]
    Table(#[from] thalweg::table::ServerError),
    /// An operation on a table failed.
    #[error("{0}")]
    ClusterTable(#[from] thalweg::table::Error),
    /// It is not known whether a table was changed; the last part is the command that shows it.
    #[error("{0}{1}: thalweg table {2} shows it")]
    Uncertain(String, thalweg::table::Error, &'static str),
    /// A file for a server of tables could not be read.
    #[error("{0}")]
    Served(thalweg_io::Error),
    /// Other users may read the file with the key, or the password.
    #[error("{}: others may read this {}: chmod 600 it", .1.display(), .0)]
    Open(&'static str, PathBuf),
    /// What should be the file with the key, or the password, is none.
    #[error("{} is no file; name the one with the {}", .1.display(), .0)]
    NoFile(&'static str, PathBuf),
    /// A certificate and a key cannot be used.
    #[error("{} and {}: {}", .0.display(), .1.display(), .2)]
    Tls(PathBuf, PathBuf, String),
    /// The first line of the file has no password.
    #[error("{}: the first line is empty; a password belongs there", .0.display())]
    NoPassword(PathBuf),
    /// A volume could not be mounted.
    #[error("{0}")]
    Mount(#[from] thalweg::mount::Error),
    /// A benchmark failed.
    #[error("{0}")]
    Bench(#[from] thalweg_measure::Error),
    /// The receipt of this verb shows that its invariant does not hold.
    #[error("{0}: the output is not the input; see the receipt")]
    NotProved(String),
    /// A watched job failed, for this reason.
    #[error("{0}")]
    Job(String),
    /// The kernel refuses to deliver signals to this process.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    /// The program cannot start itself again.
    #[error("cannot start this program once more: {0}")]
    Program(std::io::Error),
    /// Text could not be written.
    #[error("{0}: {1}")]
    Output(&'static str, std::io::Error),
    /// The receipt could not be written, but the output is complete.
    #[error("{0}; only the receipt is missing: the output is complete")]
    Receipt(Box<Failure>),
}

impl Failure {
    /// The exit status of the command.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Failure::Verb(why) => why.exit_status(),
            Failure::Bench(why) => why.exit_status(),
            Failure::NotProved(_) => WRONG,
            Failure::Uncertain(..) => UNCERTAIN,
            _ => COULD_NOT,
        }
    }

    /// Whether the signal with this number ended the command.
    pub(crate) fn is_signal(&self, number: i32) -> bool {
        let of = |why: &Error| matches!(why, Error::Interrupted(signal) if *signal == number);
        match self {
            Failure::Verb(why) | Failure::Bench(thalweg_measure::Error::Verb(why)) => of(why),
            _ => false,
        }
    }
}

fn with_advice(error: &Error) -> String {
    match error {
        Error::Memory(why) => format!("--memory {} is too small{}", Bytes(why.given), why.need()),
        why => format!("{why}{}", advice(why)),
    }
}

/// The flags that help; empty if there are none.
fn advice(error: &Error) -> &'static str {
    use thalweg::{Asked, AskedOfCluster, BadPath};
    match error {
        Error::RecordTooLong { layout: thalweg::Layout::Prefixed, .. } => "; give more --memory",
        Error::RecordTooLong { .. } => "; give more --memory, or --record BYTES if records are not lines",
        Error::CutShort { .. } => "; give the right --record",
        Error::NoUring(_) => ", or use --io threads",
        Error::Cluster(why) => cluster_advice(why),
        Error::Transfer(why) => transfer_advice(why),
        Error::Table(thalweg::table::Error::Duplicate(_)) => {
            "; --on-duplicate first or last takes one of them"
        }
        Error::Node { kind: FailureKind::Resumable, .. } => RESUME,
        Error::Pool(_) => "; give a smaller --memory",
        Error::Key(KeyError::Outside { .. }) => "; give --by a part inside the record",
        Error::Key(KeyError::EmptyRecord) => "; give --record at least 1",
        Error::Sort(why) => sort_advice(why),
        Error::Merge(why) => merge_advice(why),
        Error::River(RiverError::Unfinished { layout, .. }) if layout.fixed_bytes().is_some() => {
            "; give the right --record"
        }
        Error::River(RiverError::TooLong(..)) => "; give more --memory",
        Error::Asked(why) => match why {
            Asked::JoinKeys | Asked::JoinRecords(..) => " (--by, --right-by)",
            Asked::JoinLayouts | Asked::JoinedTooLong(..) => " (--record, --right-record)",
            Asked::Nodes { .. } | Asked::StreamInput => " (--nodes)",
            Asked::StreamOutput(_) | Asked::PartsAreFiles | Asked::Path(BadPath::PartPattern(_)) => " (-o)",
            Asked::Path(BadPath::ScratchNotDirectory(_)) | Asked::TooManyScratch { .. } => " (--scratch)",
            Asked::ShuffledRecord { .. } => " (--record)",
            Asked::Path(BadPath::RangesOfStream(_)) => " (--pick)",
            Asked::Parts { .. } => " (--parts)",
            Asked::Summary => "; give --datamation, or leave out --summary",
            Asked::TooManyRecords { .. } | Asked::PastLastRecord { .. } => {
                "; give a smaller COUNT or --start"
            }
            Asked::NodesOfCluster => "; leave out --nodes",
            Asked::Cluster(AskedOfCluster::Options(_)) => "; leave out --resume, --no-proof and --io",
            Asked::Cluster(AskedOfCluster::CheckOptions) => "; leave out --merge and --io",
            Asked::Cluster(AskedOfCluster::ScratchPercent) => " (--scratch-limit)",
            Asked::Cluster(AskedOfCluster::ClientLeaves) => " (--detach)",
            Asked::NoRate => " (--limit)",
            Asked::Streams { .. } => " (--streams)",
            Asked::SimulatedNodes { .. } | Asked::SimulatedMemory => " (--simulate)",
            _ => "",
        },
        _ => "",
    }
}

fn cluster_advice(error: &ClusterError) -> &'static str {
    match error {
        ClusterError::Identity(IdentityError::None(_)) => {
            "; --identity names another directory, and a host without a cluster is ssh://HOST/PATH"
        }
        ClusterError::NotOwned(_) => " (--identity)",
        ClusterError::Exists(_) => ", or give another --identity",
        ClusterError::ClientIdentity => "; give its directory with --identity",
        ClusterError::OtherCluster { .. } => "; give the directory of the other with --cluster",
        _ => "",
    }
}

fn sort_advice(error: &SortError) -> &'static str {
    use SortError::{Busy, Damaged, NotResumable, OutputFull, RecordTooLong, ScratchFull};
    match error {
        RecordTooLong { .. } => "; give more --memory",
        SortError::Underestimated => " (--memory)",
        ScratchFull { limit: Some(_), resumable: true, .. } => " (--resume, --scratch-limit)",
        ScratchFull { limit: Some(_), .. } => " (--scratch-limit, --memory)",
        ScratchFull { resumable: true, .. } => " (--resume, --scratch)",
        ScratchFull { .. } | SortError::TooManyScratch { .. } => " (--scratch)",
        OutputFull { resumable: true, .. } | Damaged { .. } | NotResumable { .. } => RESUME,
        OutputFull { .. } | Busy { .. } => " (-o)",
        _ => "",
    }
}

fn node_advice(error: &thalweg::nodes::Error) -> &'static str {
    use thalweg::nodes::Error;
    match error {
        Error::Cluster(why) => cluster_advice(why),
        Error::Listen { .. } => "; give another address with --listen",
        Error::HostName(_) => "; give it with --listen ADDRESS:0",
        Error::NoSshCommand => " (--ssh)",
        _ => "",
    }
}

fn merge_advice(error: &MergeError) -> &'static str {
    match error {
        MergeError::Unordered { .. } => "; give the --record and --by that it is sorted by, or sort it",
        MergeError::Broken { what: Broken::TooLong { .. }, .. } => "; give more --memory",
        MergeError::Broken { what: Broken::CutShort { .. }, .. } => "; give the right --record",
        _ => "",
    }
}

fn transfer_advice(error: &TransferError) -> &'static str {
    match error {
        TransferError::Ssh(why) => match why.what {
            SshFault::NoCommand => " (--ssh)",
            SshFault::Start { .. } => ", or name its ssh with --ssh",
            SshFault::NoProgram { .. } => ", or name it with --there",
            SshFault::Ended { .. } => RESUME,
            _ => "",
        },
        _ if error.kind() == FailureKind::Resumable => RESUME,
        _ => "",
    }
}

impl From<ClusterError> for Failure {
    fn from(why: ClusterError) -> Failure {
        Failure::Node(why.into())
    }
}

impl From<thalweg::volume::Error> for Failure {
    fn from(why: thalweg::volume::Error) -> Failure {
        Failure::Verb(why.into())
    }
}
