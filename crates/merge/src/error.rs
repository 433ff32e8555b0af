//! The errors of merges and joins.

use std::path::PathBuf;

use thalweg_pump::InputsError;

use crate::Broken;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a merge or join failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] thalweg_io::Error),
    /// An input cannot be read.
    #[error(transparent)]
    Input(#[from] InputsError),
    /// A record is less than the one before it.
    #[error("{} is not in order: record {record} (the first is 0) is less than the one before it", .path.display())]
    Unordered {
        /// The input.
        path: PathBuf,
        /// The record, counted from 0.
        record: u64,
    },
    /// A record is invalid.
    #[error("{} {what}", .path.display())]
    Broken {
        /// The input.
        path: PathBuf,
        /// What is wrong with it.
        what: Broken,
    },
    /// The merge was stopped.
    #[error("stopped")]
    Stopped,
}
