//! I/O errors: the operation, the file, the offset, and what the system reported.

use std::fmt;
use std::path::{Path, PathBuf};

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Opening an existing file.
    Open,
    /// Creating a new file.
    Create,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making data or names durable.
    Sync,
    /// Setting the length, or reserving space.
    Allocate,
    /// Renaming.
    Rename,
    /// Removing a name.
    Remove,
    /// Copying permissions from another file.
    Protect,
    /// Reading attributes of a file or a file system.
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
    /// The operation.
    pub action: Action,
    /// The file.
    pub path: PathBuf,
    /// The offset, for reads and writes.
    pub offset: Option<u64>,
    /// What the system reported.
    pub source: std::io::Error,
}

impl Error {
    /// An error without an offset.
    pub fn new(action: Action, path: impl AsRef<Path>, source: std::io::Error) -> Error {
        Error { action, path: path.as_ref().to_path_buf(), offset: None, source }
    }

    /// An error at an offset.
    pub fn at(action: Action, path: impl AsRef<Path>, offset: u64, source: std::io::Error) -> Error {
        Error { action, path: path.as_ref().to_path_buf(), offset: Some(offset), source }
    }

    /// Marks the error of a sync that failed after the output at `path` got its name.
    pub fn undoable(self, path: &Path) -> Error {
        let source = std::io::Error::new(self.source.kind(), Undoable(path.to_path_buf(), self.source));
        Error { source, ..self }
    }

    /// Whether the output has its name in spite of the error; see [`Error::undoable`].
    pub fn is_undoable(&self) -> bool {
        self.source.get_ref().is_some_and(|why| why.is::<Undoable>())
    }

    /// The system's error number, if it gave one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// True if the process or the machine has too many open files; also for an error of [`Error::undoable`].
    pub fn is_out_of_files(&self) -> bool {
        let inner = || self.source.get_ref()?.downcast_ref::<Undoable>()?.1.raw_os_error();
        matches!(self.errno().or_else(inner), Some(libc::EMFILE | libc::ENFILE))
    }

    /// True if the whole process or the whole file system is affected, and not only this file: too many open files, no
    /// memory, or a device or server that is gone.
    pub fn is_of_everything(&self) -> bool {
        let gone = [libc::ENOMEM, libc::ENODEV, libc::ENOTCONN, libc::ESHUTDOWN];
        self.is_out_of_files() || self.errno().is_some_and(|errno| gone.contains(&errno))
    }

    /// True if the name, its directory or the size of the file is the reason, so that others may well succeed. A full, damaged or
    /// read-only file system is not such a reason.
    pub fn is_of_one_name(&self) -> bool {
        use std::io::ErrorKind::*;
        matches!(
            self.source.kind(),
            NotFound
                | PermissionDenied
                | AlreadyExists
                | IsADirectory
                | NotADirectory
                | DirectoryNotEmpty
                | InvalidFilename
                | InvalidInput
                | ResourceBusy
                | ExecutableFileBusy
                | TooManyLinks
                | Unsupported
                | FileTooLarge
        ) || self.errno() == Some(libc::ELOOP)
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

/// Why the name of an output is not durable.
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
