//! Errors of transfers. Each message is one line: what, where, how much, and the remedy.

use std::fmt;
use std::path::PathBuf;

use thalweg_api::PumpVerdict;
use thalweg_block::PoolError;
use thalweg_wire::LinkError;

use crate::refused::Refused;
use crate::ssh_error::SshError;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a transfer failed. The source is never changed, and the destination is as it was before.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    Io(thalweg_io::Error),
    /// Memory could not be mapped.
    Pool(PoolError),
    /// The arguments contradict each other or what is at the destination.
    Refused(Refused),
    /// A source changed while it was read.
    Changed(PathBuf),
    /// The data that was written is not the data that was read.
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
    /// Another process writes this file or tree.
    Busy(PathBuf),
    /// A link with the other end broke.
    Link(LinkError),
    /// The process at the other end failed.
    Peer {
        /// Its host.
        peer: String,
        /// Its error.
        why: String,
        /// Whether it found wrong data.
        wrong: bool,
    },
    /// The process at the other end, on this host, sent a message that cannot be understood.
    Protocol(String),
    /// ssh, or the program that it should start, failed.
    Ssh(SshError),
    /// The caller asked to stop.
    Stopped,
}

impl Error {
    /// Whether data was examined and found wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Error::Mismatch { .. } | Error::Changed(_) | Error::Peer { wrong: true, .. })
    }

    /// The peer sent a message that cannot be understood.
    pub(crate) fn protocol(peer: impl Into<String>) -> Error {
        Error::Protocol(peer.into())
    }

    /// The message about it to the other end.
    pub(crate) fn verdict(&self) -> PumpVerdict {
        PumpVerdict::failed(self, self.is_wrong())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "{e}"),
            Error::Pool(e) => write!(f, "{e}"),
            Error::Refused(why) => write!(f, "{why}"),
            Error::Changed(path) => write!(f, "{} changed while it was read; run again", path.display()),
            Error::Mismatch { path, read, written, read_back } => write!(
                f,
                "{}: {} has checksum {written:032x}, and the data read from the source {read:032x}; no file has that name \
                 now; check the memory and the disk of this machine",
                path.display(),
                if *read_back { "the data read back" } else { "the data written" },
            ),
            Error::Busy(path) => {
                write!(
                    f,
                    "another process is writing {}; wait for it, or choose another DEST",
                    path.display()
                )
            }
            // The peer refused before anything arrived that could be kept.
            Error::Link(e) if e.is_refusal() => write!(f, "{e}"),
            Error::Link(e) => write!(f, "{e}; what arrived is kept for a resumed transfer"),
            Error::Peer { peer, why, .. } => write!(f, "{peer}: {why}"),
            Error::Protocol(peer) => write!(
                f,
                "{peer} sent a message that cannot be understood; bring both sides to one version of thalweg"
            ),
            Error::Ssh(why) => write!(f, "{why}"),
            Error::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Refused> for Error {
    fn from(why: Refused) -> Error {
        Error::Refused(why)
    }
}

impl From<SshError> for Error {
    fn from(why: SshError) -> Error {
        Error::Ssh(why)
    }
}

impl From<thalweg_io::Error> for Error {
    fn from(e: thalweg_io::Error) -> Error {
        Error::Io(e)
    }
}

impl From<PoolError> for Error {
    fn from(e: PoolError) -> Error {
        Error::Pool(e)
    }
}

impl From<LinkError> for Error {
    fn from(e: LinkError) -> Error {
        Error::Link(e)
    }
}
