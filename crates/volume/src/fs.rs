//! A volume as a file system: code that reads and writes files can use `volume:NAME/PATH`.
//!
//! Model: a path begins with `volume:NAME`, and so do the paths in errors. A pool of threads carries out the operations
//! of queues; each thread sends a request to the stores and waits.
//! Invariant: this module knows only what any client of the volume knows.
//! Non-goals: bypassing the page cache; files of a store are read and written through it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use thalweg_io::threads::{Calls, Threads};
use thalweg_io::{
    Access, Action, Backend, Caching, Error as IoError, FileId, FileSystem, Kind as Moves, Metadata, Queue,
    ReadFiles, Space,
};

use crate::manager::{Edit, Inode, Kind};
use crate::path::VolumePath;
use crate::{Error, File, How, Lock, Locker, OpenVolume, Result, Verdict, Volume};

type IoResult<T> = thalweg_io::Result<T>;

/// The most operations that run at a time: as many as keep a few disks busy.
const THREADS: usize = 16;
/// The device number of files in volumes: one that the system never uses.
pub(crate) const DEVICE: u64 = u64::MAX;

/// A volume as a file system. Cheap to clone; dropping the last clone closes the volume.
#[derive(Clone)]
pub struct VolumeFs(Arc<Inner>);

struct Inner {
    files: Mutex<Files>,
    threads: Threads,
    name: String,
    /// Holds the locks of the files that are marked locked; made for the first of them.
    locker: OnceLock<Arc<Locker>>,
    volume: Arc<Volume>,
    // After the files, so that the volume is closed last.
    _open: Option<OpenVolume>,
}

#[derive(Default)]
struct Files {
    open: HashMap<i32, Arc<File>>,
    last: i32,
}

impl VolumeFs {
    /// The file system of an open volume.
    pub fn new(open: OpenVolume) -> VolumeFs {
        VolumeFs::with(open.entry.name.clone(), Arc::clone(&open.volume), Some(open))
    }

    /// The file system of a volume that was assembled in this process, by this name.
    pub fn of(name: &str, volume: Arc<Volume>) -> VolumeFs {
        VolumeFs::with(name.into(), volume, None)
    }

    fn with(name: String, volume: Arc<Volume>, open: Option<OpenVolume>) -> VolumeFs {
        let (files, threads) = (Mutex::default(), Threads::new(THREADS));
        VolumeFs(Arc::new(Inner { files, threads, name, locker: OnceLock::new(), volume, _open: open }))
    }

    /// The name of the volume.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.0.volume
    }

    pub(crate) fn file(&self, id: FileId) -> Arc<File> {
        self.0.file(id)
    }

    pub(crate) fn keep(&self, file: File) -> FileId {
        self.0.keep(file)
    }

    pub(crate) fn inside(&self, path: &Path) -> Result<PathBuf> {
        self.0.inside(path)
    }
}

impl fmt::Debug for VolumeFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeFs({})", self.name())
    }
}

impl Inner {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, id: FileId) -> Arc<File> {
        Arc::clone(self.files().open.get(&id.0).expect("an id is used while its file is open"))
    }

    fn keep(&self, file: File) -> FileId {
        let mut files = self.files();
        files.last += 1;
        let id = files.last;
        files.open.insert(id, Arc::new(file));
        FileId(id)
    }

    /// Requests a lock on all of an open file. `None` if the request cannot be made now.
    fn lock(&self, id: FileId, how: How) -> Option<Verdict> {
        // No request waits.
        let locker = self.locker.get_or_init(|| Locker::new(&self.volume, |_| ()));
        let (inode, owner, pid) = (self.file(id).inode(), id.0 as u64, std::process::id());
        let ticket = locker.ticket();
        let lock = Lock { inode, owner, start: 0, end: u64::MAX, exclusive: true, pid };
        match locker.ask(ticket, lock, how, id.0 as u64) {
            Ok(Some((verdict, _))) => Some(verdict),
            // A new server waits for the clients of its predecessor.
            Ok(None) => {
                let _ = locker.cancel(ticket);
                Some(Verdict::Taken(lock))
            }
            Err(_) => None,
        }
    }

    /// The path in the volume of a path that begins with `volume:NAME`.
    fn inside(&self, path: &Path) -> Result<PathBuf> {
        match VolumePath::of(path.as_os_str()) {
            Some(path) if path.volume() == self.name => Ok(path.inside().to_path_buf()),
            _ => Err(Error::system(libc::EXDEV, format!("volume {}", self.name))),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.locker.get().into_iter().for_each(|locker| locker.leave());
    }
}

/// Converts an error for the users of files.
pub(crate) fn told(action: Action, path: &Path, why: Error) -> IoError {
    IoError::new(action, path, source(why))
}

/// The system's error number, or if there is none, all that is known.
fn source(why: Error) -> io::Error {
    // The caller adds the file and the offset.
    let why = if let Error::At { why, .. } = why { *why } else { why };
    match why.errno() {
        libc::EIO => io::Error::other(why),
        errno => io::Error::from_raw_os_error(errno),
    }
}

fn metadata(inode: &Inode) -> Metadata {
    Metadata {
        len: inode.size,
        is_regular: inode.kind == Kind::File,
        is_directory: inode.kind == Kind::Directory,
        device: DEVICE,
        inode: inode.id,
        modified_ns: i128::from(inode.modified_ns),
        changed_ns: i128::from(inode.changed_ns),
        mode: inode.mode,
    }
}

impl Calls for Inner {
    fn attempt(&self, id: FileId, kind: Moves, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let file = self.file(id);
        let moved = match kind {
            Moves::Read => file.read_at(at, bytes),
            Moves::Write => file.write_at(at, bytes).map(|()| bytes.len()),
        };
        moved.map_err(source)
    }
}

impl Backend for VolumeFs {
    fn name(&self) -> &'static str {
        "volume"
    }

    fn queue(&self, depth: usize) -> IoResult<Box<dyn Queue>> {
        Ok(self.0.threads.queue_of(Arc::clone(&self.0) as Arc<dyn Calls>, depth))
    }

    fn close(&self, id: FileId) {
        let closed = self.0.files().open.remove(&id.0);
        if let (Some(locker), Some(file)) = (self.0.locker.get(), &closed) {
            // If the request fails, the lock ends with the lease.
            let _ = locker.unlock_all(file.inode(), id.0 as u64);
        }
        // Outside the lock: closing the last descriptor sends a request to the manager.
        drop(closed);
    }
}

impl ReadFiles for VolumeFs {
    fn open_to_read(&self, path: &Path, _: Caching) -> IoResult<(FileId, bool)> {
        let file = self.0.inside(path).and_then(|inside| self.0.volume.open(&inside));
        Ok((self.0.keep(file.map_err(|why| told(Action::Open, path, why))?), false))
    }

    fn metadata(&self, id: FileId, path: &Path) -> IoResult<Metadata> {
        let found = self.0.file(id).stat().map_err(|why| told(Action::Stat, path, why))?;
        Ok(metadata(&found))
    }

    fn stat(&self, path: &Path) -> IoResult<Metadata> {
        let found = self.0.inside(path).and_then(|inside| self.0.volume.stat(&inside));
        found.map(|found| metadata(&found)).map_err(|why| told(Action::Stat, path, why))
    }

    fn cached_share(&self, _: FileId, _: u64) -> f64 {
        0.0
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> IoResult<usize> {
        let read = self.0.file(id).read_at(at, into);
        read.map_err(|why| IoError { offset: Some(at), ..told(Action::Read, path, why) })
    }

    fn next_data(&self, id: FileId, path: &Path, at: u64, len: u64) -> IoResult<Option<(u64, u64)>> {
        let found = self.0.file(id).next_data(at).map_err(|why| told(Action::Read, path, why))?;
        Ok(found.filter(|(from, _)| *from < len).map(|(from, to)| (from, to.min(len))))
    }
}

impl FileSystem for VolumeFs {
    fn open(&self, path: &Path, access: Access) -> IoResult<(FileId, bool)> {
        let action = if access.creates() { Action::Create } else { Action::Open };
        let volume = &self.0.volume;
        let open = |inside: PathBuf| match access.creates() {
            true => volume.create(&inside, 0o600, true),
            false => volume.open(&inside),
        };
        let file = self.0.inside(path).and_then(open).map_err(|why| told(action, path, why))?;
        Ok((self.0.keep(file), false))
    }

    fn set_len(&self, id: FileId, path: &Path, len: u64) -> IoResult<()> {
        self.0.file(id).set_size(len).map_err(|why| told(Action::Allocate, path, why))
    }

    fn allocate(&self, id: FileId, path: &Path, len: u64) -> IoResult<()> {
        let file = self.0.file(id);
        if file.size() >= len {
            return Ok(());
        }
        file.set_size(len).map_err(|why| told(Action::Allocate, path, why))
    }

    fn resemble(&self, id: FileId, path: &Path, like: &Path) -> IoResult<Vec<String>> {
        let volume = &self.0.volume;
        let resemble = |inside: PathBuf| {
            let mode = match volume.stat(&inside) {
                Ok(there) => there.mode,
                Err(e) if e.is_not_found() => 0o644,
                Err(e) => return Err(e),
            };
            volume
                .set(self.0.file(id).inode(), Edit { mode: Some(mode), ..Edit::default() })
                .map(|_| Vec::new())
        };
        self.0.inside(like).and_then(resemble).map_err(|why| told(Action::Protect, path, why))
    }

    fn mark(&self, id: FileId) -> bool {
        self.0.lock(id, How::Try) == Some(Verdict::Free)
    }

    fn is_marked_by_another(&self, id: FileId) -> bool {
        // A server that cannot be asked may have given the lock to another client.
        self.0.lock(id, How::Test) != Some(Verdict::Free)
    }

    fn sync(&self, id: FileId, path: &Path) -> IoResult<()> {
        self.0.file(id).sync().map_err(|why| told(Action::Sync, path, why))
    }

    fn sync_directory(&self, path: &Path) -> IoResult<()> {
        self.0.volume.sync_names().map_err(|why| told(Action::Sync, path, why))
    }

    fn sync_file_system(&self, path: &Path) -> IoResult<()> {
        self.0.volume.sync().map_err(|why| told(Action::Sync, path, why))
    }

    fn rename(&self, from: &Path, to: &Path) -> IoResult<()> {
        let renamed = self.0.inside(from).and_then(|old| self.0.volume.rename(&old, &self.0.inside(to)?));
        renamed.map_err(|why| told(Action::Rename, from, why))
    }

    fn remove(&self, path: &Path) -> IoResult<()> {
        let removed = self.0.inside(path).and_then(|inside| self.0.volume.remove(&inside));
        removed.map_err(|why| told(Action::Remove, path, why))
    }

    fn list(&self, path: &Path) -> IoResult<Vec<PathBuf>> {
        let listed = self.0.inside(path).and_then(|inside| self.0.volume.list(&inside));
        let names = listed.map_err(|why| told(Action::Stat, path, why))?;
        Ok(names.iter().map(|entry| path.join(std::ffi::OsStr::from_bytes(&entry.name))).collect())
    }

    fn space(&self, path: &Path) -> IoResult<Space> {
        self.0.volume.space().map_err(|why| told(Action::Stat, path, why))
    }

    fn write_at(&self, id: FileId, path: &Path, at: u64, from: &[u8]) -> IoResult<()> {
        let written = self.0.file(id).write_at(at, from);
        written.map_err(|why| IoError { offset: Some(at), ..told(Action::Write, path, why) })
    }
}
