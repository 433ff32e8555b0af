//! Errors of transfers. Each message is one line: what, where, how much, and the remedy.

use std::ffi::OsStr;
use std::path::PathBuf;

use thalweg_api::{FailureKind, PumpVerdict};
use thalweg_block::PoolError;
use thalweg_io::Action;
use thalweg_io::tree::Dir;
use thalweg_wire::LinkError;

use crate::refused::Refused;
use crate::ssh_error::{SshError, SshFault};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a transfer failed. The source is unchanged; files that were complete before may have their names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] thalweg_io::Error),
    /// Memory could not be mapped.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The arguments contradict each other or the destination.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A source changed while it was read.
    #[error("{} changed while it was read; run again", .0.display())]
    Changed(PathBuf),
    /// A further name of a file that was left out under its first name.
    #[error("{} is a further name of {}, which was left out", .path.display(), .first.display())]
    FirstLeftOut {
        /// The further name.
        path: PathBuf,
        /// The first name.
        first: PathBuf,
    },
    /// A path that was asked for is not below any source.
    #[error("{} is not below a source", .0.display())]
    NotFound(PathBuf),
    /// The directory of an entry could not be created, and was left out.
    #[error("{}: its directory was left out", .0.display())]
    NoDirectory(PathBuf),
    /// The next host of a chain names the sources otherwise, or takes another number of lanes.
    #[error(
        "at {0} the destination is not what it is at the host before, such as a directory only at one of them; make it \
         the same everywhere, or run one transfer for each host"
    )]
    Differs(String),
    /// The data that was written is not the data that was read.
    #[error(
        "{}: {} has checksum {written:032x}, and the data read from the source {read:032x}; no file has that name \
         now; check the memory and the disk of this machine",
        .path.display(), if *.read_back { "the data .read back" } else { "the data written" }
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The checksum of the data that was read.
        read: u128,
        /// The checksum of the data that was written, or that was read back.
        written: u128,
        /// Whether the file was read back.
        read_back: bool,
    },
    /// The entries that were found are not those that were moved or left out.
    #[error(
        "{peer} accounts for {accounted} of {found} entries; run again, and report this if it happens again"
    )]
    Miscounted {
        /// The other end.
        peer: String,
        /// The entries that were found.
        found: u64,
        /// The entries that were moved or left out.
        accounted: u64,
    },
    /// Another process writes this file or tree.
    #[error("another process is writing {}; wait for it, or choose another DEST", .0.display())]
    Busy(PathBuf),
    /// The link to the other end broke.
    #[error(
        "{}{}",
        .0,
        // If the peer refused, nothing arrived that could be kept.
        if .0.is_refusal() { "" } else { "; what arrived is kept, and a transfer can resume from it" }
    )]
    Link(#[from] LinkError),
    /// The process at the other end failed.
    #[error("{peer}: {why}")]
    Peer {
        /// Its host.
        peer: String,
        /// Its error.
        why: String,
        /// The kind of that error.
        kind: FailureKind,
    },
    /// The process at the other end, on this host, sent a message that cannot be understood.
    #[error("{0} sent a message that cannot be understood; bring both sides to one version of thalweg")]
    Protocol(String),
    /// ssh, or the program that it should start, failed.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// Its kind.
    pub fn kind(&self) -> FailureKind {
        match self {
            Error::Mismatch { .. } | Error::Miscounted { .. } | Error::Changed(_) => FailureKind::Wrong,
            Error::Link(why) if !why.is_refusal() => FailureKind::Resumable,
            Error::Refused(Refused::NotListed(_)) => FailureKind::Resumable,
            Error::Ssh(SshError { what: SshFault::Ended { .. }, .. }) => FailureKind::Resumable,
            Error::Peer { kind, .. } => *kind,
            _ => FailureKind::Operating,
        }
    }

    /// The error for the file `name` if its hidden file could not be created. The hidden name is named only if it is the
    /// obstacle itself.
    pub(crate) fn on_create(self, dir: &dyn Dir, name: &OsStr) -> Error {
        match self {
            Error::Io(e) if e.action == Action::Create => {
                Error::Io(thalweg_io::Error { path: dir.path().join(name), ..e })
            }
            other => other,
        }
    }

    /// The peer sent a message that cannot be understood.
    pub(crate) fn protocol(peer: impl Into<String>) -> Error {
        Error::Protocol(peer.into())
    }

    /// The message that reports it to the other end.
    pub(crate) fn verdict(&self) -> PumpVerdict {
        PumpVerdict::failed(self, self.kind())
    }
}
