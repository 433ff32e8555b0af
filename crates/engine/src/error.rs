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
    /// It could not be done because there is no room on a disk. Nothing was touched. Exit status 2.
    Full(String),
    /// It was interrupted by a signal of this number; leftovers are removed. Exit status 128 + number.
    Interrupted(i32),
    /// Somebody else who took part has gone, and knows why: the one of this place, if that is known. Exit status 2.
    Gone(String, Option<usize>),
}

impl Error {
    /// The exit status that a command should end with.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Wrong(_) => 1,
            Error::CouldNot(_) | Error::Full(_) | Error::Gone(..) => 2,
            Error::Interrupted(signal) => 128 + (*signal as u8 & 0x7f),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Wrong(text) | Error::CouldNot(text) | Error::Full(text) | Error::Gone(text, _) => {
                f.write_str(text)
            }
            Error::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
        }
    }
}

impl std::error::Error for Error {}

/// Adds the remedy where there is a usual one.
impl From<thalweg_io::Error> for Error {
    fn from(e: thalweg_io::Error) -> Error {
        /// The signal that ends other programs whose reader has gone.
        const SIGPIPE: i32 = 13;
        /// As many files are open as may be.
        const EMFILE: i32 = 24;
        use std::io::ErrorKind::*;
        let remedy = match e.source.kind() {
            _ if e.errno() == Some(EMFILE) => "; raise ulimit -n",
            NotFound => "; check the name",
            BrokenPipe => return Error::Interrupted(SIGPIPE),
            StorageFull | QuotaExceeded => "; free some room there, or choose another place",
            FileTooLarge => "; see ulimit -f, or choose another place",
            _ if e.is_out_of_files() => "; raise the limit of open files (ulimit -n)",
            PermissionDenied => "; allow it with chmod, or choose another place",
            ReadOnlyFilesystem => "; choose another place",
            _ => "",
        };
        let text = format!("{e}{remedy}");
        if e.is_full() { Error::Full(text) } else { Error::CouldNot(text) }
    }
}

impl From<thalweg_record::KeyError> for Error {
    fn from(e: thalweg_record::KeyError) -> Error {
        Error::CouldNot(e.to_string())
    }
}

impl From<thalweg_block::PoolError> for Error {
    fn from(e: thalweg_block::PoolError) -> Error {
        Error::CouldNot(e.to_string())
    }
}

/// What is not what it should be is wrong, the rest could not be done.
impl From<thalweg_river::Error> for Error {
    fn from(e: thalweg_river::Error) -> Error {
        match e {
            gone if gone.is_gone() => Error::Gone(gone.to_string(), gone.missed()),
            wrong @ (thalweg_river::Error::Fault(_) | thalweg_river::Error::Damaged(..)) => {
                Error::Wrong(wrong.to_string())
            }
            other => Error::CouldNot(other.to_string()),
        }
    }
}

impl From<thalweg_pump::InputsError> for Error {
    fn from(e: thalweg_pump::InputsError) -> Error {
        match e {
            thalweg_pump::InputsError::Io(e) => e.into(),
            other => Error::CouldNot(other.to_string()),
        }
    }
}

impl From<thalweg_merge::Error> for Error {
    fn from(e: thalweg_merge::Error) -> Error {
        match e {
            thalweg_merge::Error::Io(e) => e.into(),
            thalweg_merge::Error::Input(e) => e.into(),
            other => Error::CouldNot(other.to_string()),
        }
    }
}

/// Damaged bytes are wrong; the rest could not be done.
impl From<thalweg_volume::Error> for Error {
    fn from(e: thalweg_volume::Error) -> Error {
        match e {
            thalweg_volume::Error::Io(e) => e.into(),
            wrong if wrong.is_damage() => Error::Wrong(wrong.to_string()),
            other => Error::CouldNot(other.to_string()),
        }
    }
}
