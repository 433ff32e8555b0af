//! The capabilities of a back end, in three traits, so that users require no more than they need.
//!
//! ```text
//! Backend          queues for open files       for outputs that are created and named elsewhere
//!   ReadFiles      opens files to read them    for inputs
//!     FileSystem   creates and names files     for a process's own files
//! ```
//!
//! Calls block; bulk data moves through queues. Each call is a point where a simulated disk may fail or crash.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Queue, Result};

/// The directory of a path: `.` for a bare name.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The path of a file through its canonical directory. A symbolic link at the end is not resolved.
pub fn real_name(path: &Path) -> PathBuf {
    let real = match path.file_name() {
        Some(name) => std::fs::canonicalize(directory_of(path)).map(|directory| directory.join(name)),
        None => std::fs::canonicalize(path),
    };
    real.unwrap_or_else(|_| path.to_path_buf())
}

/// Calls `look` until it returns something, for about `at_most`. There is no event to wait for: none reports a released
/// lock, and the ring of a killed process keeps its files open for a moment.
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

/// Whether a file uses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// It uses the page cache.
    Cached,
    /// It bypasses the page cache, if the file system allows it.
    Direct,
}

/// How to open a file for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A new file that only its owner may use, for writing and reading. It bypasses the page cache if possible. An
    /// error if the name exists; links are not followed.
    CreateDirect,
    /// Like `CreateDirect`, but through the page cache.
    Create,
    /// A file that an earlier process of this user created, for writing and reading. It bypasses the page cache if
    /// possible. An error if it is a link or not a regular file, has other names too, or does not have the owner that a
    /// new file in its directory would get (on some shares, that is not the user of this process).
    UpdateDirect,
    /// Like `UpdateDirect`, but through the page cache.
    Update,
    /// Anything that exists (a pipe, a terminal, a device), to be written in order at its own position, whatever offset
    /// is given. `/dev/stdout` and the like continue at the position of their file.
    WriteStream,
}

impl Access {
    /// Whether it creates the file.
    pub fn creates(self) -> bool {
        matches!(self, Access::Create | Access::CreateDirect)
    }

    /// Whether it bypasses the page cache, if possible.
    pub fn is_direct(self) -> bool {
        matches!(self, Access::CreateDirect | Access::UpdateDirect)
    }
}

/// A back end's id of an open file (the operating system's descriptor, or an index).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId(pub i32);

/// The attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Its length.
    pub len: u64,
    /// Whether it is a regular file, which can be read at any offset and repeatedly.
    pub is_regular: bool,
    /// A directory.
    pub is_directory: bool,
    /// The device.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// When its contents last changed, in nanoseconds of the file system's clock. Its owner can set this time.
    pub modified_ns: i128,
    /// When its contents or attributes last changed. No process can set this time.
    pub changed_ns: i128,
    /// The permission bits.
    pub mode: u32,
}

impl Metadata {
    /// Whether both describe the same file, under any name.
    pub fn is_same(&self, other: &Metadata) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether both describe the same file with the same contents. A rename, a new mode or a new name changes
    /// [`Metadata::changed_ns`], but not this.
    pub fn has_contents_of(&self, other: &Metadata) -> bool {
        self.is_same(other) && (self.len, self.modified_ns) == (other.len, other.modified_ns)
    }
}

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The space that an ordinary user may still use.
    pub available: u64,
    /// The total space.
    pub total: u64,
}

thalweg_base::record!(Space { available, total });

/// A back end: transfers data of the files that it opened.
pub trait Backend: Send + Sync {
    /// Its name in the receipt: `uring`, `threads`, `uring+threads` after a fallback, `sim`.
    fn name(&self) -> &'static str;

    /// The reason for a fallback.
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
    /// Opens an existing file for reading; the second value tells whether it bypasses the page cache. A pipe or
    /// terminal is read in order, whatever offset is given; so are `/dev/stdin` and the like at a position inside a
    /// file. Opening a named pipe does not wait; the first [`ReadFiles::read_at`] or [`ReadFiles::read_some`] waits for
    /// its writer, but a queue does not.
    fn open_to_read(&self, path: &Path, caching: Caching) -> Result<(FileId, bool)>;

    /// The attributes of an open file.
    fn metadata(&self, id: FileId, path: &Path) -> Result<Metadata>;

    /// The attributes of a path. `/dev/stdin` and the like at a position inside a file are not regular files, because
    /// reading begins there.
    fn stat(&self, path: &Path) -> Result<Metadata>;

    /// The fraction (0 to 1) of the file's first `len` bytes that is in the page cache.
    fn cached_share(&self, id: FileId, len: u64) -> f64;

    /// A blocking read at an offset, for small data such as manifests and samples. It uses the page cache unless the
    /// file bypasses it. Returns fewer bytes only at the end of the file.
    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> Result<usize>;

    /// Like `read_at`, but returns the available bytes of a stream as soon as there are some, and `None` if there were
    /// none for about `patience`.
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

    /// The next stretch of data at or after `at` in the first `len` bytes: its first byte, and the end; `None` if only
    /// a hole is left. A file system without holes reports one stretch.
    fn next_data(&self, _id: FileId, _path: &Path, at: u64, len: u64) -> Result<Option<(u64, u64)>> {
        Ok((at < len).then_some((at, len)))
    }

    /// The space on the disk that an open file takes, in bytes. A file system without holes reports the length.
    fn allocated(&self, id: FileId, path: &Path) -> Result<u64> {
        self.metadata(id, path).map(|about| about.len)
    }
}

/// Overwrites bytes of a file with zeros, up to its end.
pub(crate) fn write_zeros<F: FileSystem + ?Sized>(
    fs: &F,
    (id, path): (FileId, &Path),
    at: u64,
    len: u64,
) -> Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let end = fs.metadata(id, path)?.len.min(at.saturating_add(len));
    let mut ats = (at..end).step_by(ZEROS.len());
    ats.try_for_each(|at| fs.write_at(id, path, at, &ZEROS[..(end - at).min(ZEROS.len() as u64) as usize]))
}

/// A file system: creates, changes and names files.
pub trait FileSystem: ReadFiles {
    /// Opens a file for writing; the second value tells whether it bypasses the page cache.
    fn open(&self, path: &Path, access: Access) -> Result<(FileId, bool)>;

    /// Like `open`, but waits for the reader of a named pipe for at most about `patience`: `None` if none came.
    fn open_some(&self, path: &Path, access: Access, _patience: Duration) -> Result<Option<(FileId, bool)>> {
        self.open(path, access).map(Some)
    }

    /// Sets the length.
    fn set_len(&self, id: FileId, path: &Path, len: u64) -> Result<()>;

    /// Reserves space for the first `len` bytes and sets the length to at least that. A file system that cannot reserve
    /// space only sets the length. A full disk is an error.
    fn allocate(&self, id: FileId, path: &Path, len: u64) -> Result<()>;

    /// Makes `len` bytes from `at` on a hole, which reads as zeros and takes no space. The length stays the same. A file
    /// system without holes writes zeros.
    fn punch(&self, id: FileId, path: &Path, at: u64, len: u64) -> Result<()> {
        write_zeros(self, (id, path), at, len)
    }

    /// Gives an open file the mode, and if allowed the owner, group, access list and extended attributes, of the file
    /// named `like`; or the mode of a new file if there is none. Returns what the new file lacks of the old one, in
    /// words.
    fn resemble(&self, _id: FileId, _path: &Path, _like: &Path) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Fails if this user may not replace `path` by a rename, as in a sticky directory.
    fn check_replace(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// Locks an open file until it is closed. False if it is locked already, or if the file system has no locks.
    fn mark(&self, _id: FileId) -> bool {
        true
    }

    /// Whether another open file has it locked.
    fn is_marked_by_another(&self, _id: FileId) -> bool {
        false
    }

    /// Makes data and length durable.
    fn sync(&self, id: FileId, path: &Path) -> Result<()>;

    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> Result<()>;

    /// Makes everything durable that is on the file system of a directory.
    fn sync_file_system(&self, path: &Path) -> Result<()>;

    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> Result<()>;

    /// The entries of a directory as paths that begin with the directory, sorted.
    fn list(&self, path: &Path) -> Result<Vec<PathBuf>>;

    /// The space of the file system that holds `path`.
    fn space(&self, path: &Path) -> Result<Space>;

    /// A blocking write at an offset, for small data.
    fn write_at(&self, id: FileId, path: &Path, at: u64, from: &[u8]) -> Result<()>;
}
