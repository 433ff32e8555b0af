//! What a back end can do, in three traits: whoever uses one asks for no more of it than it needs.
//!
//! ```text
//! Backend          queues for open files       where an output may lie that somebody else makes and names
//!   ReadFiles      opens files to read them    where inputs may lie
//!     FileSystem   makes and names files       where a process keeps files of its own
//! ```
//!
//! Calls block; bulk data moves through queues. Each call is a point where a simulated disk may fail or crash.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Queue, Result};

/// The directory that holds a name: `.` for a bare one.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The path of a file by a directory without links; not that of what its own name leads to.
pub fn real_name(path: &Path) -> PathBuf {
    let real = match path.file_name() {
        Some(name) => std::fs::canonicalize(directory_of(path)).map(|directory| directory.join(name)),
        None => std::fs::canonicalize(path),
    };
    real.unwrap_or_else(|_| path.to_path_buf())
}

/// Looks for something now and again until it is there, for about so long: a file that nobody has any more, say. What a
/// killed process had asked of a ring holds its files a moment longer, and nobody tells when a mark goes.
pub fn look_until<T>(at_most: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
    let (mut pause, mut waited) = (PAUSES[0], Duration::ZERO);
    loop {
        let found = look();
        if found.is_some() || waited >= at_most {
            return found;
        }
        std::thread::park_timeout(pause);
        waited += pause;
        pause = (2 * pause).min(PAUSES[1]);
    }
}

/// Whether a file is read through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Through it.
    Cached,
    /// Past it, if the file system allows it.
    Direct,
}

/// How a file is opened to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A new file, for its owner's eyes only, to be written and read, past the page cache if the file system allows
    /// it. An error if anything has that name: a link is not followed.
    CreateDirect,
    /// The same through the page cache.
    Create,
    /// A file that an earlier process of this user made, to be written and read, past the page cache if the file system
    /// allows it. An error if it is a link, no regular file, has other names too, or belongs to another user than a file
    /// that is made in its directory now: on some shares that is not the user of this process.
    UpdateDirect,
    /// The same through the page cache.
    Update,
    /// Whatever is there (a pipe, a terminal, a device), to be written in order: at its own position,
    /// whatever offset is given. `/dev/stdout` and the like go on where their file is.
    WriteStream,
}

impl Access {
    /// Whether the file need not be there before.
    pub fn creates(self) -> bool {
        matches!(self, Access::Create | Access::CreateDirect)
    }

    /// Whether it goes past the page cache, if the file system allows it.
    pub fn is_direct(self) -> bool {
        matches!(self, Access::CreateDirect | Access::UpdateDirect)
    }
}

/// What a back end calls an open file (the operating system's descriptor, or an index).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId(pub i32);

/// What is known of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes.
    pub len: u64,
    /// A regular file, so that it can be read at any place and again.
    pub is_regular: bool,
    /// A directory.
    pub is_directory: bool,
    /// The device that holds it.
    pub device: u64,
    /// Its number on that device.
    pub inode: u64,
    /// When its contents last changed, in nanoseconds of the file system's clock. Whoever may write it may set that.
    pub modified_ns: i128,
    /// When anything about it last changed, which nobody can set.
    pub changed_ns: i128,
    /// The permission bits.
    pub mode: u32,
}

impl Metadata {
    /// Whether it is the same file, under whatever name.
    pub fn is_same(&self, other: &Metadata) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it is the same file with the same contents. It may have been renamed, or have got another mode or a further
    /// name, all of which change [`Metadata::changed_ns`].
    pub fn has_contents_of(&self, other: &Metadata) -> bool {
        self.is_same(other) && (self.len, self.modified_ns) == (other.len, other.modified_ns)
    }
}

/// Room on a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What an ordinary user may still use.
    pub available: u64,
    /// All there is.
    pub total: u64,
}

/// Moves the bytes of the files that it opened.
pub trait Backend: Send + Sync {
    /// Its name as the receipt shows it: `uring`, `threads`, `uring+threads` if it had to change, `sim`.
    fn name(&self) -> &'static str;

    /// Why it is not, or not only, what was hoped for.
    fn fallback(&self) -> Option<String> {
        None
    }

    /// A queue for the calling thread, with room for `depth` operations.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>>;

    /// Closes a file. Called once, when the last [`Handle`](crate::Handle) of it is dropped.
    fn close(&self, id: FileId);
}

/// A back end whose files can be read.
pub trait ReadFiles: Backend {
    /// Opens an existing file to read it; the second value tells whether it is direct (past the page cache). A pipe or
    /// terminal is read in order, whatever offset is given, and so are `/dev/stdin` and the like if they stand somewhere
    /// inside a file. A pipe with a name is open at once; its first [`ReadFiles::read_at`] or [`ReadFiles::read_some`]
    /// waits for whoever writes it, which a queue does not.
    fn open_to_read(&self, path: &Path, caching: Caching) -> Result<(FileId, bool)>;

    /// Facts about an open file.
    fn metadata(&self, id: FileId, path: &Path) -> Result<Metadata>;

    /// Facts about a name. `/dev/stdin` and the like are no regular files while they stand somewhere inside one:
    /// what they read begins there.
    fn stat(&self, path: &Path) -> Result<Metadata>;

    /// The share (0 to 1) of the file's first `len` bytes that the page cache holds.
    fn cached_share(&self, id: FileId, len: u64) -> f64;

    /// Reads at a byte into any buffer, blocking, through the page cache for files not opened direct. For
    /// small things (manifests, samples); returns less than asked only at the end of the file.
    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> Result<usize>;

    /// Like `read_at`, but of a stream returns what there is as soon as there is something, and `None` if
    /// there was nothing for about `patience`.
    fn read_some(
        &self,
        id: FileId,
        path: &Path,
        at: u64,
        into: &mut [u8],
        _patience: Duration,
    ) -> Result<Option<usize>> {
        self.read_at(id, path, at, into).map(Some)
    }
}

/// Makes, changes and names files.
pub trait FileSystem: ReadFiles {
    /// Opens a file to write it; the second value tells whether it is direct (past the page cache).
    fn open(&self, path: &Path, access: Access) -> Result<(FileId, bool)>;

    /// Like `open`, but does not wait for ever for whoever reads a pipe with a name that is to be written: `None` if
    /// nobody has come for about `patience`.
    fn open_some(&self, path: &Path, access: Access, _patience: Duration) -> Result<Option<(FileId, bool)>> {
        self.open(path, access).map(Some)
    }

    /// Sets the length.
    fn set_len(&self, id: FileId, path: &Path, len: u64) -> Result<()>;

    /// Reserves room for the first `len` bytes and sets the length to at least that; where the file
    /// system cannot reserve, only sets the length. A full disk is an error.
    fn allocate(&self, id: FileId, path: &Path, len: u64) -> Result<()>;

    /// Gives an open file the permission bits of the file named `like`, and its owner and group where this
    /// process may. If there is no such file, it gets the permission bits of a new one.
    fn resemble(&self, _id: FileId, _path: &Path, _like: &Path) -> Result<()> {
        Ok(())
    }

    /// Fails if this user may not rename another file to `path`: a directory for all users may let only its owner and the
    /// file's replace that.
    fn check_replace(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// Puts this process's mark on an open file, which is there until the file is closed, at the latest when the
    /// process ends. False if another open file has it, or the file system knows no such marks.
    fn mark(&self, _id: FileId) -> bool {
        true
    }

    /// Whether another open file has such a mark.
    fn is_marked_by_another(&self, _id: FileId) -> bool {
        false
    }

    /// Makes the file's bytes and length durable.
    fn sync(&self, id: FileId, path: &Path) -> Result<()>;

    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> Result<()>;

    /// Changes a name, replacing what had the new one.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> Result<()>;

    /// The names in a directory, sorted, each with the directory before it.
    fn list(&self, path: &Path) -> Result<Vec<PathBuf>>;

    /// Room on the file system that holds `path`.
    fn space(&self, path: &Path) -> Result<Space>;

    /// Writes all of `from` at a byte, blocking. For small things.
    fn write_at(&self, id: FileId, path: &Path, at: u64, from: &[u8]) -> Result<()>;
}
