//! The errors of merges and joins.

use std::fmt;
use std::path::PathBuf;

use thalweg_base::units::Bytes;
use thalweg_pump::InputsError;

use crate::Broken;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a merge or join failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    Io(thalweg_io::Error),
    /// An input cannot be read.
    Input(InputsError),
    /// A record is less than the one before it.
    Unordered {
        /// The input.
        path: PathBuf,
        /// The record, counted from 0.
        record: u64,
    },
    /// A record is invalid.
    Broken {
        /// The input.
        path: PathBuf,
        /// What is wrong with it.
        what: Broken,
    },
    /// The merge was stopped.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "{e}"),
            Error::Input(e) => write!(f, "{e}"),
            Error::Unordered { path, record } => write!(
                f,
                "{} is not in order: record {record} (the first is 0) is less than the one before it",
                path.display()
            ),
            Error::Broken { path, what: Broken::TooLong { what, limit } } => write!(
                f,
                "{} has a {what} of more than {}, the most that memory has room for",
                path.display(),
                Bytes(*limit)
            ),
            Error::Broken { path, what: Broken::CutShort { bytes } } => {
                write!(f, "{} ends after {bytes} bytes of a record", path.display())
            }
            Error::Broken { path, what: Broken::CutOff { at, bytes } } => {
                let bytes = *bytes as u64;
                write!(f, "{}", InputsError::CutOff { path: path.display().to_string(), at: *at, bytes })
            }
            Error::Stopped => write!(f, "stopped"),
        }
    }
}

impl std::error::Error for Error {}

impl From<thalweg_io::Error> for Error {
    fn from(e: thalweg_io::Error) -> Error {
        Error::Io(e)
    }
}

impl From<InputsError> for Error {
    fn from(e: InputsError) -> Error {
        Error::Input(e)
    }
}
