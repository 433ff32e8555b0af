//! System calls that the real back ends share: everything but their queues.
//!
//! Model: a [`FileId`] is the file descriptor with two flags in its upper bits, direct and stream (a pipe, terminal or
//! device, which has no offsets), so no table of open files is needed. A back end that implements [`Queues`] is a
//! [`FileSystem`].
//! Invariant: a call that a signal interrupts is repeated, and every error names the file.
//! Non-goals: deciding how files are opened.
#![allow(unsafe_code)]

use std::fs::{File as StdFile, Metadata as StdMetadata, OpenOptions};
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl,
    statvfs, statx,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::file_system::write_zeros;
use crate::local::PLAIN;
use crate::resemble::{is_planted, made_beside, note_umask, resemble};
use crate::standard::{duplicate, standard_descriptor, standing_inside};
use crate::transfer::{ALIGN, Progress, Step};
use crate::tree::{Attributes, EntryKind};
use crate::{
    Access, Action, Backend, Caching, Error, FileId, FileSystem, Kind, Metadata, Queue, ReadFiles, Result,
    Space, directory_of,
};

/// The flag of a stream in a [`FileId`].
const STREAM: i32 = 1 << 30;
/// The flag of a direct file in a [`FileId`].
const DIRECT: i32 = 1 << 29;
/// The most that a misaligned read of a direct file copies through at a time.
const BOUNCE_BYTES: usize = 256 << 10;

/// How long one wait for a stream lasts at most, so that a queue can attend to its other operations.
const MOMENT: Duration = Duration::from_millis(20);

/// What a real back end adds to the calls of this file.
pub(crate) trait Queues: Send + Sync {
    /// See [`Backend::name`].
    fn name(&self) -> &'static str;

    /// See [`Backend::queue`].
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>>;

    /// See [`Backend::fallback`].
    fn fallback(&self) -> Option<String> {
        None
    }
}

impl<T: Queues> Backend for T {
    fn name(&self) -> &'static str {
        Queues::name(self)
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Queues::queue(self, depth)
    }

    fn fallback(&self) -> Option<String> {
        Queues::fallback(self)
    }

    fn close(&self, id: FileId) {
        // SAFETY: the seam promises one close for each open, so the descriptor is ours and open.
        // An error of `close` does not say whether the data was stored; `sync` does.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor(id)) });
    }
}

impl<T: Queues> ReadFiles for T {
    fn open_to_read(&self, path: &Path, caching: Caching) -> Result<(FileId, bool)> {
        open_to_read(path, caching).map_err(|e| Error::new(Action::Open, path, e))
    }

    fn metadata(&self, id: FileId, path: &Path) -> Result<Metadata> {
        borrow(id).metadata().map(|m| facts(&m)).map_err(|e| Error::new(Action::Stat, path, e))
    }

    fn stat(&self, path: &Path) -> Result<Metadata> {
        stat(path).map_err(|e| Error::new(Action::Stat, path, e))
    }

    fn cached_share(&self, id: FileId, len: u64) -> f64 {
        cached_share(id, len).unwrap_or(0.0)
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> Result<usize> {
        if !is_direct(id) {
            return read_whole(id, at, into).map_err(|e| Error::at(Action::Read, path, at, e));
        }
        let mut read = 0;
        while read < into.len() {
            let here = at + read as u64;
            match read_bounced(id, here, &mut into[read..]) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(e) => return Err(Error::at(Action::Read, path, here, e)),
            }
        }
        Ok(read)
    }

    fn read_some(
        &self,
        id: FileId,
        path: &Path,
        at: u64,
        into: &mut [u8],
        patience: Duration,
    ) -> Result<Option<usize>> {
        if !is_stream(id) {
            return self.read_at(id, path, at, into).map(Some);
        }
        if !is_ready_within(id, PollFlags::IN, patience) {
            return Ok(None);
        }
        match read_once(id, 0, into) {
            Ok(n) => Ok(Some(n)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(e) => Err(Error::at(Action::Read, path, at, e)),
        }
    }

    fn next_data(&self, id: FileId, path: &Path, at: u64, len: u64) -> Result<Option<(u64, u64)>> {
        next_data(id, at, len).map_err(|e| Error::new(Action::Stat, path, e))
    }

    fn allocated(&self, id: FileId, path: &Path) -> Result<u64> {
        let about = borrow(id).metadata().map_err(|e| Error::new(Action::Stat, path, e))?;
        Ok(about.blocks() * 512)
    }
}

impl<T: Queues> FileSystem for T {
    fn write_at(&self, id: FileId, path: &Path, at: u64, from: &[u8]) -> Result<()> {
        write_at(id, path, at, from).map_err(|e| Error::at(Action::Write, path, at, e))
    }

    fn open(&self, path: &Path, access: Access) -> Result<(FileId, bool)> {
        let action = if access.creates() { Action::Create } else { Action::Open };
        open(path, access).map_err(|e| Error::new(action, path, e))
    }

    fn open_some(&self, path: &Path, access: Access, patience: Duration) -> Result<Option<(FileId, bool)>> {
        if access != Access::WriteStream || standard_descriptor(path).is_some() || !is_named_pipe(path) {
            return self.open(path, access).map(Some);
        }
        let opened = open_read_pipe(path, patience).and_then(|pipe| match pipe {
            Some(pipe) => adopt(pipe, true, false).map(Some),
            None => Ok(None),
        });
        opened.map_err(|e| Error::new(Action::Open, path, e))
    }

    fn set_len(&self, id: FileId, path: &Path, len: u64) -> Result<()> {
        borrow(id).set_len(len).map_err(|e| Error::new(Action::Allocate, path, e))
    }

    fn allocate(&self, id: FileId, path: &Path, len: u64) -> Result<()> {
        allocate(id, len).map_err(|e| Error::new(Action::Allocate, path, e))
    }

    fn punch(&self, id: FileId, path: &Path, at: u64, len: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(&*borrow(id), flags, at, len)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(self, (id, path), at, len),
            Err(e) => Err(Error::at(Action::Allocate, path, at, e.into())),
        }
    }

    fn resemble(&self, id: FileId, path: &Path, like: &Path) -> Result<Vec<String>> {
        resemble(&borrow(id), CWD, like).map_err(|e| Error::new(Action::Protect, path, e))
    }

    fn check_replace(&self, path: &Path) -> Result<()> {
        check_replace(path).map_err(|e| Error::new(Action::Create, path, e))
    }

    fn mark(&self, id: FileId) -> bool {
        borrow(id).try_lock().is_ok()
    }

    fn is_marked_by_another(&self, id: FileId) -> bool {
        matches!(borrow(id).try_lock(), Err(std::fs::TryLockError::WouldBlock))
    }

    fn sync(&self, id: FileId, path: &Path) -> Result<()> {
        match borrow(id).sync_data() {
            // Pipes and terminals refuse; they have nothing that could be made durable.
            Err(e) if is_stream(id) && matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP)) => {
                Ok(())
            }
            other => other.map_err(|e| Error::new(Action::Sync, path, e)),
        }
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(or_here(path));
        opened.and_then(|d| d.sync_all()).map_err(|e| Error::new(Action::Sync, path, e))
    }

    fn sync_file_system(&self, path: &Path) -> Result<()> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(or_here(path));
        let synced = opened.and_then(|d| Ok(rustix::fs::syncfs(&d)?));
        synced.map_err(|e| Error::new(Action::Sync, path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(|e| Error::new(Action::Rename, from, e))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path).map_err(|e| Error::new(Action::Remove, path, e))
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(or_here(path)).and_then(|d| {
            d.map(|entry| entry.map(|e| path.join(e.file_name()))).collect::<io::Result<Vec<PathBuf>>>()
        });
        let mut names = entries.map_err(|e| Error::new(Action::Stat, path, e))?;
        names.sort();
        Ok(names)
    }

    fn space(&self, path: &Path) -> Result<Space> {
        space(path).map_err(|e| Error::new(Action::Stat, path, e))
    }
}

/// Whether a file has no offsets, so that its operations run one after another.
pub(crate) fn is_stream(id: FileId) -> bool {
    id.0 & STREAM != 0
}

fn is_direct(id: FileId) -> bool {
    id.0 & DIRECT != 0
}

/// The file descriptor.
pub(crate) fn descriptor(id: FileId) -> RawFd {
    id.0 & !(STREAM | DIRECT)
}

/// The file as the standard library's type, which here does not close it when dropped.
pub(crate) fn borrow(id: FileId) -> ManuallyDrop<StdFile> {
    // SAFETY: an id comes from `open` and is used only while its `File` lives, so the descriptor is
    // open; `ManuallyDrop` leaves closing to `Backend::close`.
    ManuallyDrop::new(unsafe { StdFile::from_raw_fd(descriptor(id)) })
}

/// The path, or `.` if it is empty, as the parent of a bare name is.
pub(crate) fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn open_to_read(path: &Path, caching: Caching) -> io::Result<(FileId, bool)> {
    let mut options = OpenOptions::new();
    options.read(true);
    if caching == Caching::Direct {
        return open_direct(options, path);
    }
    if let Some(standing) = standing_inside(path)? {
        return adopt(standing, true, false);
    }
    let is_pipe = is_named_pipe(path);
    options.custom_flags(if is_pipe { libc::O_NOCTTY | libc::O_NONBLOCK } else { libc::O_NOCTTY });
    adopt(options.open(path)?, is_pipe, false)
}

fn open(path: &Path, access: Access) -> io::Result<(FileId, bool)> {
    let mut options = OpenOptions::new();
    match access {
        Access::Create | Access::CreateDirect => {
            note_umask();
            options.read(true).write(true).create_new(true).mode(0o600)
        }
        Access::Update | Access::UpdateDirect => return reopen(CWD, path, access.is_direct(), None),
        Access::WriteStream => options.write(true),
    };
    if access.is_direct() {
        return open_direct(options, path);
    }
    let is_stream = access == Access::WriteStream;
    let opened = match standard_descriptor(path).filter(|_| is_stream) {
        Some(fd) => duplicate(fd)?,
        None => {
            let opened = options.custom_flags(libc::O_NOCTTY).open(path)?;
            if is_stream {
                check_stream(&opened, path)?;
            }
            opened
        }
    };
    adopt(opened, is_stream, false)
}

/// Opens a file for direct access, or through the page cache if the file system has no direct access.
fn open_direct(mut options: OpenOptions, path: &Path) -> io::Result<(FileId, bool)> {
    match options.custom_flags(libc::O_NOCTTY | libc::O_DIRECT).open(path) {
        // This is the error of a file system without direct access.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            adopt(options.custom_flags(libc::O_NOCTTY).open(path)?, false, false)
        }
        opened => adopt(opened?, false, true),
    }
}

/// Opens a file that an earlier process of this user created and left, and touches nothing else. A file that is meant
/// for `heir` may already belong to that user. A relative path begins at `at`, here and in the functions below.
pub(crate) fn reopen(
    at: BorrowedFd<'_>,
    path: &Path,
    direct: bool,
    heir: Option<u32>,
) -> io::Result<(FileId, bool)> {
    let open = |flag: OFlags| {
        retry_on_intr(|| rustix::fs::openat(at, path, OFlags::RDWR | PLAIN | flag, Mode::empty()))
    };
    let opened = match open(if direct { OFlags::DIRECT } else { OFlags::empty() }) {
        Err(Errno::INVAL) if direct => open(OFlags::empty()),
        opened => opened,
    };
    // If it cannot be opened, it may be a link, or another user's file.
    let there = match &opened {
        Ok(file) => rustix::fs::fstat(file),
        Err(_) => rustix::fs::statat(at, path, AtFlags::SYMLINK_NOFOLLOW),
    };
    check_own(at, path, &there?.into(), heir)?;
    let file = StdFile::from(opened?);
    clear_flag(&file, OFlags::NONBLOCK)?;
    adopt(file, false, direct)
}

/// An error unless an earlier process of this user created this file and left it under this name.
pub(crate) fn check_own(
    at: BorrowedFd<'_>,
    path: &Path,
    there: &Attributes,
    heir: Option<u32>,
) -> io::Result<()> {
    // If no file can be created for comparison (the disk is full), the expected owner is this process's user.
    let own = || made_beside(at, path).map_or(rustix::process::geteuid().as_raw(), |made| made.user);
    let what = match there.kind {
        EntryKind::Link => "a symbolic link".into(),
        EntryKind::Special => "no regular file".into(),
        EntryKind::File if there.links > 1 => format!("a file with {} names", there.links),
        _ if Some(there.user) == heir || there.user == own() => return Ok(()),
        EntryKind::File => format!("a file of user {}", there.user),
        EntryKind::Directory => format!("a directory of user {}", there.user),
    };
    Err(not_ours(&what))
}

/// The error for something else under a hidden name.
pub(crate) fn not_ours(what: &str) -> io::Error {
    io::Error::other(format!(
        "it is {what}, and none that this user's thalweg made; remove it, or choose another place"
    ))
}

/// Returns the id of a file, with its flags.
pub(crate) fn adopt(file: StdFile, ordered: bool, direct: bool) -> io::Result<(FileId, bool)> {
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        // Opening a directory for reading succeeds. An error here is clearer than that of the first read.
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let stream = ordered || !(kind.is_file() || kind.is_block_device());
    let suited = direct && !stream && suits_direct(&file);
    if direct && !suited {
        // On a pipe the flag would mean packets; elsewhere reads would fail one by one.
        clear_flag(&file, OFlags::DIRECT)?;
    }
    let fd = file.into_raw_fd();
    assert!((0..DIRECT).contains(&fd), "descriptor {fd} is too large to be marked");
    let marks = if stream { STREAM } else { 0 } | if suited { DIRECT } else { 0 };
    Ok((FileId(fd | marks), suited))
}

/// Whether this is a named pipe. Opening one waits for the other end.
fn is_named_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo())
}

/// Opens a pipe for writing; `None` if it has no reader within about `patience`.
fn open_read_pipe(path: &Path, patience: Duration) -> io::Result<Option<StdFile>> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
    let nobody = |e: &io::Error| e.raw_os_error() == Some(libc::ENXIO);
    let mut opened = options.open(path);
    if opened.as_ref().is_err_and(nobody) {
        // Only a blocking open would be woken when a reader arrives.
        std::thread::sleep(patience);
        opened = options.open(path);
    }
    match opened {
        Ok(pipe) => {
            check_stream(&pipe, path)?;
            clear_flag(&pipe, OFlags::NONBLOCK).map(|()| Some(pipe))
        }
        Err(e) if nobody(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

fn stat(path: &Path) -> io::Result<Metadata> {
    let there = match standard_descriptor(path) {
        Some(fd) => duplicate(fd)?.metadata()?,
        None => std::fs::metadata(path)?,
    };
    let is_regular = there.is_file() && standing_inside(path)?.is_none() && ends_where_it_says(path, &there);
    Ok(Metadata { is_regular, ..facts(&there) })
}

/// Whether a file has as many bytes as its attributes say. Files of `/proc` report 0 bytes and files of `/sys` 4096,
/// whatever their length, and no blocks of a disk. Such a file is read as a stream.
fn ends_where_it_says(path: &Path, metadata: &StdMetadata) -> bool {
    if metadata.len() > 0 && metadata.blocks() > 0 {
        return true;
    }
    // Reads the last byte and one more, which should not exist. A file that may not be read fails later.
    let expected_bytes = metadata.len().min(1) as usize;
    let read =
        StdFile::open(path).and_then(|file| file.read_at(&mut [0; 2], metadata.len().saturating_sub(1)));
    read.is_err() || read.is_ok_and(|bytes| bytes == expected_bytes)
}

/// Whether direct access works in units of [`ALIGN`]; true if the file system does not report it. Some accept the flag
/// for files (encrypted, journalled) that they cannot read that way.
fn suits_direct(file: &StdFile) -> bool {
    let Ok(about) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return true };
    about.stx_mask & StatxFlags::DIOALIGN.bits() == 0
        || [about.stx_dio_mem_align, about.stx_dio_offset_align]
            .iter()
            .all(|&n| n > 0 && ALIGN.is_multiple_of(n as usize))
}

/// Clears a flag of an open descriptor: O_DIRECT or O_NONBLOCK.
fn clear_flag(file: &StdFile, flag: OFlags) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)?.difference(flag))?)
}

/// Sets a numeric socket option.
pub(crate) fn set_socket_option(
    socket: &impl AsFd,
    (level, name): (libc::c_int, libc::c_int),
    value: libc::c_int,
) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `value` has `bytes` bytes.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn facts(m: &StdMetadata) -> Metadata {
    Metadata {
        len: m.len(),
        is_regular: m.is_file(),
        is_directory: m.is_dir(),
        device: m.dev(),
        inode: m.ino(),
        modified_ns: i128::from(m.mtime()) * 1_000_000_000 + i128::from(m.mtime_nsec()),
        changed_ns: i128::from(m.ctime()) * 1_000_000_000 + i128::from(m.ctime_nsec()),
        mode: m.mode() & 0o7777,
    }
}

/// See [`FileSystem::check_replace`].
fn check_replace(path: &Path) -> io::Result<()> {
    let there = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if there.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let directory = std::fs::metadata(or_here(directory_of(path)))?;
    let lends = |all: CapabilitySets| all.effective.contains(CapabilitySet::FOWNER);
    let may = [there.uid(), directory.uid()].contains(&rustix::process::geteuid().as_raw())
        || rustix::thread::capabilities(None).is_ok_and(lends);
    if may || directory.mode() & libc::S_ISVTX == 0 {
        return Ok(());
    }
    let owner = there.uid();
    Err(io::Error::other(format!(
        "it belongs to user {owner}, who alone may replace it there; choose another name"
    )))
}

/// Resolves the links at an output's name; fails with [`Action::Create`] if another user may have prepared them. In a
/// sticky directory that everybody may write to, such as `/tmp`, a link, a pipe or a file is accepted only if it
/// belongs to this user or to the directory's owner; so is everything that a link leads to. The kernel has the same
/// rule for an open that may create a file: `fs.protected_symlinks`, `_fifos` and `_regular` (proc_sys_fs(5)). The
/// directories of the path are not checked. The caller must not follow links at the returned path, because another user
/// may put one there at any time.
pub fn unplanted(path: &Path) -> Result<PathBuf> {
    /// The most links that the system follows.
    const LINKS_MAX: usize = 40;
    // `components` drops a final slash or dot, with which `lstat` would follow a link.
    let mut path: PathBuf = path.components().collect();
    for _ in 0..LINKS_MAX {
        let Ok(there) = rustix::fs::lstat(&path).map(Attributes::from) else { break };
        let Ok(directory) = rustix::fs::stat(directory_of(&path)).map(Attributes::from) else { break };
        if is_planted(&there, &directory) {
            return Err(Error::new(Action::Create, &path, planted(&there)));
        }
        if there.kind != EntryKind::Link || leads_to_open_file(&path) {
            break;
        }
        let Ok(next) = std::fs::read_link(&path) else { break };
        path = directory_of(&path).join(next).components().collect();
    }
    Ok(path)
}

/// Whether a link is in `/proc`: such links lead to open files, whatever their targets say.
fn leads_to_open_file(link: &Path) -> bool {
    rustix::fs::statfs(directory_of(link)).is_ok_and(|there| there.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

fn planted(there: &Attributes) -> io::Error {
    let user = there.user;
    io::Error::other(format!(
        "user {user} made it, in a directory that everybody may write to; remove it, or choose another name"
    ))
}

/// An error if another user has replaced the stream since [`unplanted`] checked its path.
fn check_stream(stream: &StdFile, path: &Path) -> io::Result<()> {
    let (opened, there) =
        (Attributes::from(rustix::fs::fstat(stream)?), Attributes::from(rustix::fs::lstat(path)?));
    let directory = Attributes::from(rustix::fs::stat(directory_of(path))?);
    if is_planted(&opened, &directory) || is_planted(&there, &directory) {
        return Err(planted(&there));
    }
    let is_it = (opened.device, opened.inode) == (there.device, there.inode);
    match is_it || there.kind == EntryKind::Link && leads_to_open_file(path) {
        true => Ok(()),
        false => Err(io::Error::other("another file has taken its name")),
    }
}

/// The length of an open file.
pub(crate) fn length(id: FileId) -> io::Result<u64> {
    Ok(borrow(id).metadata()?.len())
}

fn allocate(id: FileId, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    if i64::try_from(len).is_err() {
        return Err(Errno::FBIG.into());
    }
    match retry_on_intr(|| fallocate(&*borrow(id), FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if length(id)? < len => borrow(id).set_len(len),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn space(path: &Path) -> io::Result<Space> {
    let about = retry_on_intr(|| statvfs(or_here(path)))?;
    let unit = about.f_frsize;
    Ok(Space { available: about.f_bavail.saturating_mul(unit), total: about.f_blocks.saturating_mul(unit) })
}

/// Asks lseek(2) for the next data.
fn next_data(id: FileId, at: u64, len: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= len {
        return Ok(None);
    }
    let seek = |to| rustix::fs::seek(&*borrow(id), to);
    match seek(SeekFrom::Data(at)) {
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some((at, len))),
        Err(e) => Err(e.into()),
        Ok(from) if from >= len => Ok(None),
        Ok(from) => Ok(Some((from, seek(SeekFrom::Hole(from))?.min(len)))),
    }
}

/// Calls cachestat (Linux 6.5). Older kernels do not have it, and it refuses some files of other users.
fn cached_share(id: FileId, len: u64) -> io::Result<f64> {
    /// Number of the call; the same on every architecture.
    const CACHESTAT: libc::c_long = 451;
    if len == 0 || is_stream(id) {
        return Ok(0.0);
    }
    let range: [u64; 2] = [0, len];
    // In the kernel's order: pages cached, dirty, in writeback, evicted, recently evicted.
    let mut pages = [0u64; 5];
    // SAFETY: the call reads two and writes five 64-bit numbers, at addresses that are ours.
    let result = unsafe { libc::syscall(CACHESTAT, descriptor(id), &range, &mut pages, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes a number only.
    let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    Ok((pages[0] as f64 / len.div_ceil(page_size) as f64).min(1.0))
}

/// One attempt to move bytes, for the back end that has no ring.
pub(crate) fn attempt(id: FileId, kind: Kind, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
    match kind {
        Kind::Read => read_once(id, at, bytes),
        Kind::Write => write_once(id, at, bytes),
    }
}

fn read_once(id: FileId, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let file = borrow(id);
    if is_stream(id) { (&*file).read(into) } else { file.read_at(into, at) }
}

fn write_once(id: FileId, at: u64, from: &[u8]) -> io::Result<usize> {
    let file = borrow(id);
    if is_stream(id) { (&*file).write(from) } else { file.write_at(from, at) }
}

/// Waits for up to [`MOMENT`] until a pipe or terminal that was set to be non-blocking is ready.
pub(crate) fn wait_ready(id: FileId, kind: Kind) {
    is_ready_within(id, if kind == Kind::Read { PollFlags::IN } else { PollFlags::OUT }, MOMENT);
}

/// Whether a file is ready for `events`, or failed or ended, within `patience`.
fn is_ready_within(id: FileId, events: PollFlags, patience: Duration) -> bool {
    let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    // A signal ends the wait early, and then nothing is ready.
    poll(&mut [PollFd::new(&*borrow(id), events)], Some(&patience)).is_ok_and(|ready| ready > 0)
}

/// Repeats attempts until `progress` is complete. Returns the number of bytes moved.
fn finish(
    id: FileId,
    kind: Kind,
    at: u64,
    mut progress: Progress,
    mut attempt: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    while !progress.is_complete() {
        let outcome = attempt(progress.done());
        match progress.apply(outcome, |n| length(id).is_ok_and(|len| at + n as u64 >= len)) {
            Step::Again => {}
            Step::Blocked => wait_ready(id, kind),
            Step::Complete => break,
            Step::Failed(e) => return Err(e),
        }
    }
    Ok(progress.done())
}

fn read_whole(id: FileId, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let progress = Progress::new(Kind::Read, is_direct(id), into.len());
    finish(id, Kind::Read, at, progress, |done| {
        // A read of a pipe returns 0 bytes both before its first writer opens it and after its last one closes it.
        while is_stream(id) && !is_ready_within(id, PollFlags::IN, MOMENT) {}
        read_once(id, at + done as u64, &mut into[done..])
    })
}

/// Reads the start of `into` from a direct file through an aligned copy. Not through the page cache:
/// a sample of a few bytes would draw in 128 KiB of read-ahead.
fn read_bounced(id: FileId, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let skip = (at % ALIGN as u64) as usize;
    let span = (skip + into.len()).next_multiple_of(ALIGN).min(BOUNCE_BYTES);
    let mut room = vec![0u8; span + ALIGN];
    let start = room.as_ptr().align_offset(ALIGN);
    let aligned = &mut room[start..start + span];
    let read = read_whole(id, at - skip as u64, aligned)?;
    let got = read.saturating_sub(skip).min(into.len());
    into[..got].copy_from_slice(&aligned[skip..skip + got]);
    Ok(got)
}

fn write_at(id: FileId, path: &Path, at: u64, from: &[u8]) -> io::Result<()> {
    // A direct file is opened once more, through the page cache. The alternative, to read, change
    // and write whole pages, would have to cut the file's end back while others may be extending it.
    let buffered = if is_direct(id) { Some(open_buffered(id, path)?) } else { None };
    let progress = Progress::new(Kind::Write, false, from.len());
    finish(id, Kind::Write, at, progress, |done| match &buffered {
        Some(file) => file.write_at(&from[done..], at + done as u64),
        None => write_once(id, at + done as u64, &from[done..]),
    })?;
    Ok(())
}

/// Opens the same file again, even if it was renamed.
fn open_buffered(id: FileId, path: &Path) -> io::Result<StdFile> {
    let by_descriptor = format!("/proc/self/fd/{}", descriptor(id));
    if let Ok(file) = OpenOptions::new().write(true).open(by_descriptor) {
        return Ok(file);
    }
    // Without /proc it is opened by its name, if that still leads to the same file.
    let file = OpenOptions::new().write(true).open(path)?;
    let (ours, theirs) = (borrow(id).metadata()?, file.metadata()?);
    if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
        return Err(io::Error::other("it was renamed while open, and /proc is not there to find it by"));
    }
    Ok(file)
}
