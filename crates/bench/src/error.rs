//! Errors of benchmarks.

use std::fmt;

/// The result of a benchmark.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a benchmark has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A measured verb failed.
    Verb(thalweg::Error),
    /// A measured program gave a wrong result.
    Wrong(String),
    /// Another requirement of a benchmark failed.
    Failed(String),
}

impl Error {
    /// The exit status of the command.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Verb(why) => why.exit_status(),
            Error::Wrong(_) => 1,
            Error::Failed(_) => 2,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Verb(why) => write!(f, "{why}"),
            Error::Wrong(why) | Error::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<thalweg::Error> for Error {
    fn from(why: thalweg::Error) -> Error {
        Error::Verb(why)
    }
}

impl From<thalweg_io::Error> for Error {
    fn from(why: thalweg_io::Error) -> Error {
        Error::Verb(why.into())
    }
}
