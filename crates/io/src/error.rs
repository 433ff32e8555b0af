//! I/O errors: what was attempted, on which file and at which byte, and what the system reported.

use std::fmt;
use std::path::{Path, PathBuf};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What was being done when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Opening an existing file.
    Open,
    /// Making a new file.
    Create,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making data or names durable.
    Sync,
    /// Setting the length, or reserving room.
    Allocate,
    /// Changing a name.
    Rename,
    /// Removing a name.
    Remove,
    /// Giving a file the permissions of another.
    Protect,
    /// Asking about a file or a file system.
    Stat,
    /// Setting up an I/O back end.
    Setup,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Open => "open",
            Action::Create => "create",
            Action::Read => "read",
            Action::Write => "write",
            Action::Sync => "sync",
            Action::Allocate => "reserve room in",
            Action::Rename => "rename",
            Action::Remove => "remove",
            Action::Protect => "set the permissions of",
            Action::Stat => "inspect",
            Action::Setup => "set up",
        })
    }
}

/// A failed operation on a file.
#[derive(Debug)]
pub struct Error {
    /// What was tried.
    pub action: Action,
    /// On what.
    pub path: PathBuf,
    /// At which byte, for reads and writes.
    pub offset: Option<u64>,
    /// What the system said.
    pub source: std::io::Error,
}

impl Error {
    /// An error without a place in the file.
    pub fn new(action: Action, path: impl AsRef<Path>, source: std::io::Error) -> Error {
        Error { action, path: path.as_ref().to_path_buf(), offset: None, source }
    }

    /// An error at a byte of the file.
    pub fn at(action: Action, path: impl AsRef<Path>, offset: u64, source: std::io::Error) -> Error {
        Error { action, path: path.as_ref().to_path_buf(), offset: Some(offset), source }
    }

    /// The same of a sync that failed when the output at `path` bore its name already.
    pub fn undoable(self, path: &Path) -> Error {
        let source = std::io::Error::new(self.source.kind(), Undoable(path.to_path_buf(), self.source));
        Error { source, ..self }
    }

    /// Whether an output bears its name in spite of it.
    pub fn is_undoable(&self) -> bool {
        self.source.get_ref().is_some_and(|why| why.is::<Undoable>())
    }

    /// The system's error number, if it gave one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// True where no more files may be open, in this process or on the machine; also if something is said beside.
    pub fn is_out_of_files(&self) -> bool {
        let inner = || self.source.get_ref()?.downcast_ref::<Undoable>()?.1.raw_os_error();
        matches!(self.errno().or_else(inner), Some(libc::EMFILE | libc::ENFILE))
    }

    /// True for a full disk or an exhausted quota.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.action, self.path.display())?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Why the name of an output that bears it already is not durable.
#[derive(Debug)]
struct Undoable(PathBuf, std::io::Error);

impl fmt::Display for Undoable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Undoable(path, why) = self;
        write!(f, "{why}; {} is in place and whole, but a power loss may undo that", path.display())
    }
}

impl std::error::Error for Undoable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.1)
    }
}
