//! Errors of volumes: the cause, the file or store, and the remedy if there is one.

use std::fmt;
use std::path::PathBuf;

use crate::store::Strip;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a volume failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A local file of a store or of the manager could not be used.
    Io(thalweg_io::Error),
    /// The error number that a system call on a file system would return, and its subject.
    System(i32, String),
    /// The bytes at an offset of a strip are not those that were written.
    Damaged {
        /// The strip's file.
        path: PathBuf,
        /// The offset in the strip at which the damaged block begins.
        at: u64,
    },
    /// A strip that its inode lists is missing from its store, or the store is.
    Missing(Strip, String),
    /// The request is for a file that has been truncated since.
    Stale(Strip),
    /// Bytes of a file could not be read or written.
    At {
        /// The path of the file in its volume.
        file: PathBuf,
        /// The offset in the file.
        at: u64,
        /// The cause.
        why: Box<Error>,
    },
    /// The manager's database failed.
    Database(PathBuf, rusqlite::Error),
    /// This user has no volume of this name.
    NoVolume(String),
    /// The request cannot be carried out, or the volume cannot be used.
    Refused(String),
}

impl Error {
    /// An error of the system, such as ENOENT for a file that does not exist.
    pub(crate) fn system(errno: i32, about: impl Into<String>) -> Error {
        Error::System(errno, about.into())
    }

    /// The error number that a file system returns.
    pub fn errno(&self) -> i32 {
        match self {
            Error::System(errno, _) => *errno,
            Error::Io(e) => e.errno().unwrap_or(libc::EIO),
            Error::At { why, .. } => why.errno(),
            Error::Database(_, e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
                libc::ENOSPC
            }
            Error::NoVolume(_) => libc::ENOENT,
            _ => libc::EIO,
        }
    }

    /// Whether bytes are damaged or missing.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Damaged { .. } | Error::Missing(..) => true,
            Error::At { why, .. } => why.is_damage(),
            _ => false,
        }
    }

    /// Whether the name does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::System(libc::ENOENT, _))
    }

    /// Whether the name exists already.
    pub fn exists_already(&self) -> bool {
        matches!(self, Error::System(libc::EEXIST, _))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => e.fmt(f),
            Error::System(errno, about) => {
                let why = std::io::Error::from_raw_os_error(*errno).to_string();
                // The report of another process or node may already contain it.
                if about.contains(&why) { f.write_str(about) } else { write!(f, "{about}: {why}") }
            }
            Error::Damaged { path, at } => write!(
                f,
                "{} is damaged at byte {at}: the checksum of the block there does not match",
                path.display()
            ),
            Error::Missing(strip, why) => write!(f, "{strip} is not available: {why}"),
            Error::Stale(strip) => write!(f, "{strip} was truncated after this request was made"),
            Error::At { file, at, why } => write!(f, "{} at byte {at}: {why}", file.display()),
            Error::Database(path, e) => write!(f, "the manager's database {} failed: {e}", path.display()),
            Error::NoVolume(name) => {
                write!(f, "there is no volume '{name}'; thalweg volume list shows those there are")
            }
            Error::Refused(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(e) => Some(e),
            Error::Database(_, e) => Some(e),
            Error::At { why, .. } => Some(&**why),
            _ => None,
        }
    }
}

impl From<thalweg_io::Error> for Error {
    fn from(e: thalweg_io::Error) -> Error {
        Error::Io(e)
    }
}
