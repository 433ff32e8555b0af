//! Errors of benchmarks.

/// The result of a benchmark.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A measured verb failed.
    #[error(transparent)]
    Verb(#[from] thalweg::Error),
    /// A measured program gave a wrong result.
    #[error("{0}")]
    Wrong(String),
    /// Another requirement of a benchmark failed.
    #[error("{0}")]
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

impl From<thalweg_io::Error> for Error {
    fn from(why: thalweg_io::Error) -> Error {
        Error::Verb(why.into())
    }
}

/// An error that names a file and what could not be done to it.
pub fn failed(what: &str, path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::Failed(format!("cannot {what} {}: {error}", path.display()))
}
