//! Open files, and the places that they are opened at.
//!
//! Model: a [`Handle`] is what queues know of a file. A [`File`] is a handle with what its back end can do: an input has
//! a back end that reads, a file of this process's own one that does everything. A [`Location`] is a path on a back end.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Access, Action, Backend, Caching, Error, FileId, FileSystem, Metadata, ReadFiles, Result, Space,
    directory_of,
};

/// An open file as queues know it. Cheap to clone; closed when the last clone is dropped.
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
    /// What `backend` opened, by the name of `path`; the flag says whether it is direct.
    pub fn new(backend: Arc<dyn Backend>, path: &Path, (id, direct): (FileId, bool)) -> Handle {
        Handle(Arc::new(Inner { id, direct, path: path.to_path_buf(), backend }))
    }

    /// What the back end calls it.
    pub fn id(&self) -> FileId {
        self.0.id
    }

    /// Whether it bypasses the page cache, and so wants offsets and lengths in multiples of 4096.
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }

    /// The name it was opened by.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The back end that opened it, whose queues move its bytes.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({}, direct: {})", self.0.path.display(), self.0.direct)
    }
}

/// An open file, with what its back end can do. Cheap to clone; closed when the last clone is dropped.
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
    /// What queues know it by.
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

    /// Reads all of these bytes, or fails.
    pub fn read_exact_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if self.read_at(at, into)? == into.len() {
            return Ok(());
        }
        Err(Error::at(Action::Read, self.path(), at, std::io::ErrorKind::UnexpectedEof.into()))
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

    /// What `fs` opened, by the name of `path`.
    pub fn of(fs: &Arc<dyn FileSystem>, path: &Path, opened: (FileId, bool)) -> File {
        File { handle: Handle::new(Arc::clone(fs) as _, path, opened), fs: Arc::clone(fs) }
    }

    /// Where it was opened.
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

    /// See [`FileSystem::resemble`].
    pub fn resemble(&self, like: &Path) -> Result<()> {
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

/// A path on a back end: where an input is, or a file or directory of this process's own.
pub struct Location<F: ?Sized = dyn FileSystem> {
    /// The back end.
    pub fs: Arc<F>,
    /// The path.
    pub path: PathBuf,
}

/// Where an input is.
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
    /// This path on `fs`.
    pub fn new(fs: &Arc<F>, path: impl Into<PathBuf>) -> Location<F> {
        Location { fs: Arc::clone(fs), path: path.into() }
    }

    /// Another path on the same back end.
    pub fn at(&self, path: impl Into<PathBuf>) -> Location<F> {
        Location::new(&self.fs, path)
    }

    /// Whether both are on one back end.
    pub fn is_beside(&self, other: &Location<F>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.fs), Arc::as_ptr(&other.fs))
    }
}

impl<F: ReadFiles + ?Sized> Location<F> {
    /// See [`ReadFiles::stat`].
    pub fn stat(&self) -> Result<Metadata> {
        self.fs.stat(&self.path)
    }

    /// Whether the same file is there, and there is one.
    pub fn is_same_file(&self, other: &Location<F>) -> bool {
        self.is_beside(other)
            && self.stat().is_ok_and(|own| other.stat().is_ok_and(|there| there.is_same(&own)))
    }

    /// Whether it can be read once only: a pipe, a terminal, a device. What cannot be looked at is none.
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

    /// The same, as what is read from.
    pub fn as_input(&self) -> InputLocation {
        Location { fs: Arc::clone(&self.fs) as _, path: self.path.clone() }
    }

    /// The directory that holds it.
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
