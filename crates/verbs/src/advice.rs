//! Which options help after an error. The errors of the library do not name options.

use thalweg::nodes::{ClusterError, IdentityError};
use thalweg::{Error, SshFault, TransferError};
use thalweg_api::FailureKind;
use thalweg_base::units::Bytes;
use thalweg_merge::{Broken, Error as MergeError};
use thalweg_record::KeyError;
use thalweg_river::Error as RiverError;
use thalweg_sort::Error as SortError;

/// The option that continues from what an earlier run left.
pub const RESUME: &str = " (--resume)";

/// The message of an error of a verb, with the options that help.
pub fn advised(error: &Error) -> String {
    match error {
        Error::Memory(why) => format!("--memory {} is too small{}", Bytes(why.given), why.need()),
        why => format!("{why}{}", advice(why)),
    }
}

/// The options that help after an error of a verb; empty if there are none.
pub fn advice(error: &Error) -> &'static str {
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

/// The options that help after an error of a command about nodes; empty if there are none.
pub fn node_advice(error: &thalweg::nodes::Error) -> &'static str {
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
