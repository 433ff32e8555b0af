//! Why a transfer can fail. Each message is one line: what, where, how much, the remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use thalweg_api::PumpVerdict;
use thalweg_block::PoolError;
use thalweg_wire::{LinkError, What};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a transfer did not succeed. The source is whole in every case, and so is what DEST was before.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    Io(thalweg_io::Error),
    /// Memory could not be mapped.
    Pool(PoolError),
    /// The two ends do not go together.
    Refused(String),
    /// A source changed while it was read.
    Changed(PathBuf),
    /// What was written is not what was read.
    Mismatch {
        /// Where it was to go.
        path: PathBuf,
        /// The sum of what was read.
        read: u128,
        /// The sum of what was handed to the write, or of what was read back.
        written: u128,
        /// Whether it was read back.
        read_back: bool,
    },
    /// Another process writes there.
    Busy(PathBuf),
    /// A link with the other end broke.
    Link(LinkError),
    /// The other end could not do its part, and says why.
    Peer {
        /// Who it is.
        peer: String,
        /// What it says.
        why: String,
        /// Whether it found something wrong.
        wrong: bool,
    },
    /// Somebody asked to stop.
    Stopped,
}

impl Error {
    /// Whether something was found wrong that was looked at, and not something could not be done.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Error::Mismatch { .. } | Error::Changed(_) | Error::Peer { wrong: true, .. })
    }

    /// A file has no place where there is a directory.
    pub(crate) fn directory_there(path: &Path) -> Error {
        Error::Refused(format!("{} is a directory; a file cannot replace it", path.display()))
    }

    /// Somebody gave the name of a tree that was moved to something else meanwhile.
    pub(crate) fn replaced(path: &Path) -> Error {
        Error::Refused(format!(
            "{} is not the directory that was made there: somebody else gave the name away meanwhile; see who may write there, and choose another DEST",
            path.display()
        ))
    }

    /// The source gives a further name to what is none of its files.
    pub(crate) fn not_sent(path: &Path) -> Error {
        Error::Refused(format!(
            "the source gives {} one more name, and has not sent it as a file of several names; run again if the source was changed meanwhile, and trust it no more if not",
            path.display()
        ))
    }

    /// What has the hidden name of a tree is not known to be one.
    pub(crate) fn not_listed(path: &Path) -> Error {
        Error::Refused(format!(
            "{} is a directory that holds something, and no journal of this transfer lists it, so it was not touched; remove it, or complete with --resume the transfer that left it",
            path.display()
        ))
    }

    /// A directory has none where there is something else.
    pub(crate) fn no_directory_there(path: &Path) -> Error {
        Error::Refused(format!(
            "{} is there and is no directory; a directory cannot replace it",
            path.display()
        ))
    }

    /// What the other end is told of it.
    pub(crate) fn verdict(&self) -> PumpVerdict {
        PumpVerdict::failed(self, self.is_wrong())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "{e}"),
            Error::Pool(e) => write!(f, "{e}"),
            Error::Refused(why) => f.write_str(why),
            Error::Changed(path) => write!(f, "{} changed while it was read; run again", path.display()),
            Error::Mismatch { path, read, written, read_back } => write!(
                f,
                "{}: {} has checksum {written:032x}, and what was read from the source {read:032x}; nothing bears that \
                 name now; look at the memory and the disk of this machine",
                path.display(),
                if *read_back { "what was read back" } else { "what was handed to the disk" },
            ),
            Error::Busy(path) => {
                write!(
                    f,
                    "another process is writing {}; wait for it, or choose another DEST",
                    path.display()
                )
            }
            // It did not get as far as anything that could be kept.
            Error::Link(e @ LinkError { what: What::Aborted(_), .. }) => write!(f, "{e}"),
            Error::Link(e) => {
                write!(f, "{e}; what came is kept, and the same command with --resume goes on from it")
            }
            Error::Peer { peer, why, .. } => write!(f, "{peer}: {why}"),
            Error::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Error {}

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
