//! Open files, and locations where files are opened.
//!
//! Model: a [`Handle`] identifies an open file for queues. A [`File`] is a handle with the capabilities of its back
//! end: an input can be read, a file of this process can do everything. A [`Location`] is a path on a back end.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Access, Action, Backend, Caching, Error, FileId, FileSystem, Metadata, ReadFiles, Result, Space,
    directory_of,
};

/// An open file for queues. Cheap to clone; closed when the last clone is dropped.
#[derive(Clone)]
pub struct Handle(Arc<Inner>);

struct Inner {
    id: FileId,
    direct: bool,
    path: PathBuf,
    backend: Arc<dyn Backend>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.backend.close(self.id);
    }
}

impl Handle {
    /// A file that `backend` opened as `path`; `is_direct` tells whether it bypasses the page cache.
    pub fn new(backend: Arc<dyn Backend>, path: &Path, (id, direct): (FileId, bool)) -> Handle {
        Handle(Arc::new(Inner { id, direct, path: path.to_path_buf(), backend }))
    }

    /// The id that the back end gave it.
    pub fn id(&self) -> FileId {
        self.0.id
    }

    /// Whether it bypasses the page cache, so that offsets and lengths must be multiples of 4096.
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }

    /// The path with which it was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The back end that opened it.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({}, direct: {})", self.0.path.display(), self.0.direct)
    }
}

/// An open file with the capabilities of its back end. Cheap to clone; closed when the last clone is dropped.
pub struct File<F: ?Sized = dyn FileSystem> {
    handle: Handle,
    fs: Arc<F>,
}

/// A file that is only read.
pub type InputFile = File<dyn ReadFiles>;

impl<F: ?Sized> Clone for File<F> {
    fn clone(&self) -> Self {
        File { handle: self.handle.clone(), fs: Arc::clone(&self.fs) }
    }
}

impl<F: ?Sized> Deref for File<F> {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl<F: ?Sized> fmt::Debug for File<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

impl<F: ?Sized> File<F> {
    /// Its handle for queues.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its back end.
    pub fn fs(&self) -> &Arc<F> {
        &self.fs
    }
}

impl<F: ReadFiles + ?Sized> File<F> {
    /// See [`ReadFiles::metadata`].
    pub fn metadata(&self) -> Result<Metadata> {
        self.fs.metadata(self.id(), self.path())
    }

    /// See [`ReadFiles::cached_share`].
    pub fn cached_share(&self, len: u64) -> f64 {
        self.fs.cached_share(self.id(), len)
    }

    /// See [`ReadFiles::read_at`].
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.fs.read_at(self.id(), self.path(), at, into)
    }

    /// Reads exactly as many bytes as fit, or fails.
    pub fn read_exact_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if self.read_at(at, into)? == into.len() {
            return Ok(());
        }
        Err(Error::at(Action::Read, self.path(), at, std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// See [`ReadFiles::next_data`].
    pub fn next_data(&self, at: u64, len: u64) -> Result<Option<(u64, u64)>> {
        self.fs.next_data(self.id(), self.path(), at, len)
    }

    /// See [`ReadFiles::allocated`].
    pub fn allocated(&self) -> Result<u64> {
        self.fs.allocated(self.id(), self.path())
    }

    /// See [`ReadFiles::read_some`].
    pub fn read_some(&self, at: u64, into: &mut [u8], patience: Duration) -> Result<Option<usize>> {
        self.fs.read_some(self.id(), self.path(), at, into, patience)
    }
}

impl InputFile {
    /// See [`ReadFiles::open_to_read`].
    pub fn open_to_read(fs: Arc<dyn ReadFiles>, path: &Path, caching: Caching) -> Result<InputFile> {
        let opened = fs.open_to_read(path, caching)?;
        Ok(File { handle: Handle::new(Arc::clone(&fs) as _, path, opened), fs })
    }
}

impl File {
    /// See [`FileSystem::open`].
    pub fn open(fs: &Arc<dyn FileSystem>, path: &Path, access: Access) -> Result<File> {
        Ok(File::of(fs, path, fs.open(path, access)?))
    }

    /// See [`FileSystem::open_some`].
    pub fn open_some(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        access: Access,
        patience: Duration,
    ) -> Result<Option<File>> {
        Ok(fs.open_some(path, access, patience)?.map(|opened| File::of(fs, path, opened)))
    }

    /// A file that `fs` opened as `path`.
    pub fn of(fs: &Arc<dyn FileSystem>, path: &Path, opened: (FileId, bool)) -> File {
        File { handle: Handle::new(Arc::clone(fs) as _, path, opened), fs: Arc::clone(fs) }
    }

    /// Its location.
    pub fn location(&self) -> Location {
        Location::new(&self.fs, self.path())
    }

    /// See [`FileSystem::write_at`].
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<()> {
        self.fs.write_at(self.id(), self.path(), at, from)
    }

    /// See [`FileSystem::set_len`].
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.fs.set_len(self.id(), self.path(), len)
    }

    /// See [`FileSystem::allocate`].
    pub fn allocate(&self, len: u64) -> Result<()> {
        self.fs.allocate(self.id(), self.path(), len)
    }

    /// See [`FileSystem::punch`].
    pub fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.fs.punch(self.id(), self.path(), at, len)
    }

    /// See [`FileSystem::resemble`].
    pub fn resemble(&self, like: &Path) -> Result<Vec<String>> {
        self.fs.resemble(self.id(), self.path(), like)
    }

    /// See [`FileSystem::mark`].
    pub fn mark(&self) -> bool {
        self.fs.mark(self.id())
    }

    /// See [`FileSystem::is_marked_by_another`].
    pub fn is_marked_by_another(&self) -> bool {
        self.fs.is_marked_by_another(self.id())
    }

    /// See [`FileSystem::sync`].
    pub fn sync(&self) -> Result<()> {
        self.fs.sync(self.id(), self.path())
    }
}

/// A path on a back end: the location of an input, or of a file or directory of this process.
pub struct Location<F: ?Sized = dyn FileSystem> {
    /// The back end.
    pub fs: Arc<F>,
    /// The path.
    pub path: PathBuf,
}

/// The location of an input.
pub type InputLocation = Location<dyn ReadFiles>;

impl<F: ?Sized> Clone for Location<F> {
    fn clone(&self) -> Self {
        Location::new(&self.fs, &self.path)
    }
}

impl<F: ?Sized> fmt::Debug for Location<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl<F: ?Sized> Location<F> {
    /// The location of this path on `fs`.
    pub fn new(fs: &Arc<F>, path: impl Into<PathBuf>) -> Location<F> {
        Location { fs: Arc::clone(fs), path: path.into() }
    }

    /// Another path on the same back end.
    pub fn at(&self, path: impl Into<PathBuf>) -> Location<F> {
        Location::new(&self.fs, path)
    }

    /// Whether both are on the same back end.
    pub fn is_beside(&self, other: &Location<F>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.fs), Arc::as_ptr(&other.fs))
    }
}

impl<F: ReadFiles + ?Sized> Location<F> {
    /// See [`ReadFiles::stat`].
    pub fn stat(&self) -> Result<Metadata> {
        self.fs.stat(&self.path)
    }

    /// Whether both locations have the same file.
    pub fn is_same_file(&self, other: &Location<F>) -> bool {
        self.is_beside(other)
            && self.stat().is_ok_and(|own| other.stat().is_ok_and(|there| there.is_same(&own)))
    }

    /// Whether it can be read only once: a pipe, a terminal, a device. False if it cannot be inspected.
    pub fn is_stream(&self) -> bool {
        self.stat().is_ok_and(|there| !there.is_regular && !there.is_directory)
    }
}

impl InputLocation {
    /// See [`ReadFiles::open_to_read`].
    pub fn open(&self, caching: Caching) -> Result<InputFile> {
        File::open_to_read(Arc::clone(&self.fs), &self.path, caching)
    }
}

impl Location {
    /// See [`FileSystem::open`].
    pub fn open(&self, access: Access) -> Result<File> {
        File::open(&self.fs, &self.path, access)
    }

    /// The same location, as an input.
    pub fn as_input(&self) -> InputLocation {
        Location { fs: Arc::clone(&self.fs) as _, path: self.path.clone() }
    }

    /// Its directory.
    pub fn directory(&self) -> Location {
        self.at(directory_of(&self.path))
    }

    /// See [`FileSystem::space`].
    pub fn space(&self) -> Result<Space> {
        self.fs.space(&self.path)
    }

    /// See [`FileSystem::remove`].
    pub fn remove(&self) -> Result<()> {
        self.fs.remove(&self.path)
    }
}
