//! What can go wrong with a verb, sorted by what the caller should do.

use std::fmt;

/// Results of the verbs.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb did not succeed. Each message is one line: what, where, how much, the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The data was looked at and is wrong: unordered, damaged, or what came out is not what went in.
    /// Exit status 1.
    Wrong(String),
    /// It could not be done. Nothing was touched. Exit status 2.
    CouldNot(String),
    /// It was interrupted by a signal of this number; leftovers are removed. Exit status 128 + number.
    Interrupted(i32),
}

impl Error {
    /// The exit status that a command should end with.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Wrong(_) => 1,
            Error::CouldNot(_) => 2,
            Error::Interrupted(signal) => 128 + (*signal as u8 & 0x7f),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Wrong(text) | Error::CouldNot(text) => f.write_str(text),
            Error::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
        }
    }
}

impl std::error::Error for Error {}
