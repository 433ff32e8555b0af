//! The kernel's requests, which the volume answers.
//!
//! Invariant: a request gets one answer: the result, or the error number that a local file system would return. The
//! cause of EIO is also reported.
//! Non-goals: permissions, which the kernel checks (`default_permissions`).

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use thalweg_base::clock;
use thalweg_volume::{
    Cacheable, Edit, Error, File, Hint, How, Inode, Kind, Lock, NAME_BYTES_MAX, New, OpenVolume, Place, ROOT,
    Renaming, Volume,
};

use crate::directories::Directories;
use crate::handles::{Handles, Name, OpenFile};
use crate::kernel::Kernel;
use crate::locks::{Asked, MountLocks, Reply};
use crate::news::News;
use crate::pages::{Pages, Past};
use crate::removed::Removed;
use crate::{Options, attributes, extended, privileges, ranges};

/// How long the kernel may cache attributes: changes by other mounts show that late. For names, see [`Cacheable`].
const BELIEVED: Duration = Duration::from_secs(1);
/// How long it may cache those of a directory: long enough that a program which makes files in it does not cause a
/// request for each, and short, because the kernel may store an answer after it dropped what it knew.
const DIRECTORY_BELIEVED: Duration = Duration::from_millis(20);
/// The size of the largest request: the kernel's own limit, unless a system has another.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// The most requests that the kernel sends without a program waiting for each, such as read-ahead.
const BACKGROUND_MAX: u16 = 64;
/// After this long a read is noted even if nothing has changed since the last one, as with the mount option `relatime`.
const ACCESS_NOTED_NS: i64 = 24 * 3600 * 1_000_000_000;
/// The inode number of `..` in listings, as in libfuse: no program needs it, and finding it costs time.
const UNKNOWN: u64 = 0xffff_ffff;
/// The unit in which space is reported.
const ROOM_UNIT: u64 = 4096;
/// The inodes that may still be made, as far as anybody is told.
const FREE_INODES: u64 = 1 << 32;

pub(crate) type Result<T> = std::result::Result<T, Error>;

thread_local! {
    /// The buffer into which a thread reads.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A volume that answers the kernel.
pub(crate) struct MountedFs {
    handles: Handles,
    pub(crate) locks: MountLocks,
    pages: Pages,
    directories: Directories,
    removed: Removed,
    news: News,
    volume: Arc<Volume>,
    options: Options,
    kernel: Arc<Kernel>,
    // After the volume's users, so that it is closed last.
    _open: OpenVolume,
}

impl MountedFs {
    pub(crate) fn new(open: OpenVolume, options: Options, kernel: Arc<Kernel>) -> io::Result<MountedFs> {
        let volume = Arc::clone(&open.volume);
        open.watch_stores(Arc::clone(&options.complain));
        let locks = MountLocks::new(&volume, &options.complain, &kernel)?;
        let pages = Pages::new(&kernel)?;
        let (handles, directories) = (Handles::default(), Directories::default());
        let removed = Removed::default();
        let news = News::new(&volume, &kernel)?;
        Ok(MountedFs {
            handles,
            locks,
            pages,
            directories,
            removed,
            news,
            volume,
            options,
            kernel,
            _open: open,
        })
    }

    fn errno(&self, why: &Error) -> Errno {
        let errno = why.errno();
        if errno == libc::EIO {
            (self.options.complain)(&why.to_string());
        }
        Errno::from_i32(errno)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<OpenFile>> {
        let open = self.handles.file(handle).ok_or_else(|| refused(libc::EBADF))?;
        self.locks.check(&open)?;
        Ok(open)
    }

    /// Carries out a lock request of the kernel.
    fn lock(
        &self,
        handle: FileHandle,
        owner: LockOwner,
        range: (u64, u64),
        kind: i32,
        pid: u32,
    ) -> Result<(Arc<OpenFile>, Lock)> {
        let open = self.file(handle)?;
        let (inode, exclusive) = (open.file.inode(), kind == libc::F_WRLCK);
        Ok((open, Lock { inode, owner: owner.0, start: range.0, end: range.1, exclusive, pid }))
    }

    fn make(
        &self,
        request: &Request,
        place: Place,
        kind: Kind,
        modes: (u32, u32),
        target: &[u8],
    ) -> Result<Inode> {
        self.volume.create_at(place, new(request, kind, modes, target))
    }

    /// Notes a read, if that is worth a note: once after each change, and once a day. If the note cannot be written,
    /// for example because the manager's disk is full, the read still succeeds.
    fn accessed(&self, (accessed_ns, changed_ns): (i64, i64), note: impl FnOnce(i64)) {
        let now = clock::wall_ns();
        let is_old = accessed_ns <= changed_ns || accessed_ns < now - ACCESS_NOTED_NS;
        if is_old && self.options.flags.notes_reads() {
            note(now);
        }
    }

    /// Notes a read of a directory or a link, which it returns.
    fn accessed_inode(&self, inode: u64) -> Result<Inode> {
        let found = self.volume.inode(inode)?;
        let times = (found.accessed_ns, found.modified_ns.max(found.changed_ns));
        self.accessed(times, |now| _ = self.volume.set_accessed(inode, now));
        Ok(found)
    }

    /// Opens a file of the volume, and returns how the kernel should treat it.
    fn open_file(&self, inode: u64, flags: OpenFlags) -> Result<(FileHandle, FopenFlags)> {
        let file = self.volume.open_by_number(inode).map_err(stale)?;
        let (file, mut told) = treated(file, flags);
        let seen = self.kernel.seen();
        if let Some(stamp) = seen.get(&inode)
            && (*stamp == file.stamp() || {
                // A lock may have been granted since the file was opened here.
                file.stat().is_ok() && *stamp == file.stamp()
            })
        {
            told |= FopenFlags::FOPEN_KEEP_CACHE;
        } else {
            // The kernel may have an older size.
            self.kernel.drop_attributes(inode);
        }
        drop(seen);
        Ok((self.keep(file, told), told))
    }

    fn keep(&self, file: File, told: FopenFlags) -> FileHandle {
        self.handles.keep_file(OpenFile::new(file, told.contains(FopenFlags::FOPEN_DIRECT_IO)))
    }

    fn set(&self, inode: u64, size: Option<u64>, handle: Option<FileHandle>, edit: Edit) -> Result<Inode> {
        if let Some(size) = size {
            match handle.and_then(|handle| self.handles.file(handle)) {
                Some(open) => open.file.set_size(size)?,
                None => self.volume.open_by_number(inode)?.set_size(size)?,
            }
        }
        if edit == Edit::default() { self.volume.inode(inode) } else { self.volume.set(inode, edit) }
    }

    /// The names of a listing from `offset` on, each with its number.
    fn names(&self, inode: u64, handle: FileHandle, offset: u64) -> Result<Vec<(u64, Name)>> {
        let names = match offset {
            0 => {
                match self.accessed_inode(inode) {
                    // It was removed after it had been opened.
                    Err(why) if why.errno() == libc::ENOENT => {
                        self.handles.list(handle, Vec::new());
                        return Ok(Vec::new());
                    }
                    found => found?,
                };
                let own = |name: &[u8], inode| Name { name: name.into(), inode, kind: Kind::Directory };
                let mut names =
                    vec![own(b".", inode), own(b"..", if inode == ROOT { ROOT } else { UNKNOWN })];
                match self.volume.names(inode).and_then(|found| self.accessed_inode(inode).map(|_| found)) {
                    Ok(found) => names.extend(found.into_iter().map(|entry| Name {
                        name: entry.name,
                        inode: entry.inode.id,
                        kind: entry.inode.kind,
                    })),
                    // It was removed while it is open.
                    Err(why) if why.errno() == libc::ENOENT => names.clear(),
                    Err(why) => return Err(why),
                }
                self.handles.list(handle, names)
            }
            _ => self.handles.listing(handle).ok_or_else(|| refused(libc::EBADF))?,
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(names.len());
        Ok((offset + 1..).zip(names[from..].iter().cloned()).collect())
    }
}

pub(crate) fn refused(errno: i32) -> Error {
    Error::System(errno, "the mount".into())
}

fn new(request: &Request, kind: Kind, (mode, umask): (u32, u32), target: &[u8]) -> New {
    let (user, group) = (request.uid(), request.gid());
    New { kind, mode: mode & 0o7777, umask, user, group, target: target.to_vec() }
}

/// A file that was opened with these flags, and how the kernel should treat it.
fn treated(file: File, flags: OpenFlags) -> (File, FopenFlags) {
    if flags.0 & libc::O_DIRECT != 0 {
        return (file.direct(), FopenFlags::empty());
    }
    // Otherwise the kernel reads whole pages around what programs read, and sends an append page by page.
    let is_direct = file.hinted() == Hint::Random || flags.0 & libc::O_APPEND != 0;
    (file, if is_direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() })
}

fn place(directory: INodeNo, name: &OsStr) -> Place {
    Place { directory: directory.0, name: name.as_bytes().to_vec() }
}

/// Replies with the result.
macro_rules! answer {
    ($fs:expr, $reply:expr, $result:expr, |$ok:pat_param| $then:expr) => {
        match $result {
            Ok($ok) => $then,
            Err(why) => $reply.error($fs.errno(&why)),
        }
    };
}

impl Filesystem for MountedFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for flag in wanted {
            // An older kernel works without it.
            let _ = config.add_capabilities(flag);
        }
        config.set_max_write(REQUEST_BYTES_MAX).map_err(|_| io::Error::other("the request size"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| io::Error::other("the requests at a time"))?;
        Ok(())
    }

    fn destroy(&mut self) {
        self.locks.end();
        // Data that other mounts may ask for must be durable before this mount ends.
        if let Err(why) = self.volume.sync() {
            (self.options.complain)(&why.to_string());
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let names = self.volume.cacheable();
        // The kernel asks for the name `.` to find the inode of a handle, and for `..` to find what it lies in.
        let found = self.volume.lookup(&place(parent, name));
        match found {
            Ok(found) if found.kind == Kind::Directory => {
                // Its attributes are read again, while no name in it changes.
                let _unchanged = self.directories.read(found.id);
                answer!(self, reply, self.volume.inode(found.id), |found| {
                    self.removed.note(&found);
                    let of = attributes::of(&self.volume, &found);
                    reply.entry_with_ttls(&DIRECTORY_BELIEVED, &names.left(), &of, Generation(0))
                });
            }
            found => entry(self, names, found, reply),
        }
    }

    fn forget(&self, _: &Request, inode: INodeNo, _: u64) {
        self.kernel.seen().remove(&inode.0);
        self.locks.forget(inode.0);
        self.removed.forget(inode.0);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _unchanged = self.directories.read(inode.0);
        let found = self.volume.inode(inode.0).or_else(|why| self.removed.get(inode.0, why));
        answer!(self, reply, found.map_err(stale), |found| {
            let believed = if found.kind == Kind::Directory { DIRECTORY_BELIEVED } else { BELIEVED };
            reply.attr(&believed, &attributes::of(&self.volume, &found))
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let accessed_ns = accessed.map(attributes::ns);
        let modified_ns = modified.map(attributes::ns);
        let edit = Edit { mode, user, group, accessed_ns, modified_ns };
        let set = self.set(inode.0, size, handle, edit).or_else(|why| self.removed.set(inode.0, edit, why));
        let set = set.and_then(|set| match size {
            Some(_) => privileges::after_resize(&self.volume, request, set),
            None => Ok(set),
        });
        attr(self, set.map_err(stale), reply);
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        answer!(self, reply, self.accessed_inode(inode.0), |found| reply.data(&found.target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let _changes = self.directories.change(parent.0);
        let names = self.volume.cacheable();
        let kind = attributes::made(mode, device).ok_or_else(|| refused(libc::EINVAL));
        let made = kind.and_then(|kind| self.make(request, place(parent, name), kind, (mode, umask), b""));
        entry(self, names, made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _changes = self.directories.change(parent.0);
        let names = self.volume.cacheable();
        let made = self.make(request, place(parent, name), Kind::Directory, (mode, umask), b"");
        entry(self, names, made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _changes = self.directories.change(parent.0);
        empty(self, self.volume.remove_at(place(parent, name), false).map(drop), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _changes = self.directories.change(parent.0);
        let removed = self.volume.remove_at(place(parent, name), true);
        empty(self, removed.map(|lost| self.removed.note(&lost)), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _changes = self.directories.change(parent.0);
        let (names, target) = (self.volume.cacheable(), target.as_os_str().as_bytes());
        let made = self.make(request, place(parent, name), Kind::Link, (0o777, 0), target);
        entry(self, names, made, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            flags if flags.is_empty() => Renaming::Replace,
            RenameFlags::RENAME_NOREPLACE => Renaming::NoReplace,
            RenameFlags::RENAME_EXCHANGE => Renaming::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let _changes = self.directories.change_both(parent.0, new_parent.0);
        let renamed = self.volume.rename_at(place(parent, name), place(new_parent, new_name), how);
        empty(self, renamed.map(|lost| self.removed.note(&lost)), reply);
    }

    fn link(&self, _: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _changes = self.directories.change(parent.0);
        let names = self.volume.cacheable();
        entry(self, names, self.volume.link_at(inode.0, place(parent, name)), reply);
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer!(self, reply, self.open_file(inode.0, flags), |(handle, told)| reply.opened(handle, told));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _changes = self.directories.change(parent.0);
        let names = self.volume.cacheable();
        let may_write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let new = new(request, Kind::File, (mode, umask), b"");
        let opened = match self.volume.make_file_at(place(parent, name), new, may_write) {
            Ok((made, file)) => {
                let (file, told) = treated(file, OpenFlags(flags));
                Ok((made, (self.keep(file, told), told)))
            }
            // An EIO may mean that the server ended just after it had made the file.
            Err(why) if matches!(why.errno(), libc::EEXIST | libc::EIO) && flags & libc::O_EXCL == 0 => {
                let found = self.volume.lookup(&place(parent, name)).or(Err(why));
                found.and_then(|found| self.open_file(found.id, OpenFlags(flags)).map(|open| (found, open)))
            }
            Err(why) => Err(why),
        };
        answer!(self, reply, opened, |(made, (handle, told))| {
            let of = attributes::of(&self.volume, &made);
            reply.created(&names.left(), &of, Generation(0), handle, told)
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        at: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BYTES.with_borrow_mut(|bytes| {
            if bytes.len() < size as usize {
                bytes.resize(size as usize, 0);
            }
            let bytes = &mut bytes[..size as usize];
            let read = self.file(handle).and_then(|open| {
                if open.is_first_read() {
                    self.accessed(open.file.accessed_and_changed_ns(), |now| open.file.note_read(now));
                }
                open.file.read_at(at, bytes)
            });
            answer!(self, reply, read, |n| reply.data(&bytes[..n]));
        });
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        at: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let from_mapping = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // The flags of this request, which fcntl(2) may have changed since the file was opened.
        let has = |flag| flags.0 & flag != 0 && !from_mapping;
        let written = self.file(handle).and_then(|open| {
            if !from_mapping {
                privileges::before_write((&self.volume, &self.kernel), request, &open)?;
            }
            let at = if has(libc::O_APPEND) {
                open.file.append(bytes)?
            } else {
                open.file.write_at(at, bytes).map(|()| at)?
            };
            Ok((at, has(libc::O_DIRECT) || open.is_direct && !from_mapping))
        });
        if written.is_err() {
            // An earlier write may have failed, whose bytes the kernel has.
            self.news.failed(inode.0);
        }
        let len = bytes.len() as u32;
        answer!(self, reply, written, |(at, is_past_pages)| match is_past_pages {
            true => self.pages.answer(Past { inode, at, len, reply }),
            false => reply.written(len),
        });
    }

    fn flush(&self, _: &Request, inode: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let closed = self.handles.file(handle).map_or(Ok(()), |open| {
            let flushed = open.file.flush().inspect_err(|_| self.news.failed(inode.0));
            self.locks.close(&open, owner.0).and(flushed)
        });
        empty(self, closed, reply);
    }

    fn getlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        answer!(self, reply, self.lock(handle, owner, (start, end), kind, pid), |(open, lock)| {
            self.locks.ask(Asked::new(Reply::Test(reply), open, handle, lock, request.pid()), How::Test)
        });
    }

    fn setlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        answer!(self, reply, self.lock(handle, owner, (start, end), kind, pid), |(open, lock)| {
            if kind == libc::F_UNLCK {
                return empty(self, self.locks.unlock(&open, lock), reply);
            }
            let asked = Asked::new(Reply::Set(reply), open, handle, lock, request.pid());
            self.locks.ask(asked, if sleep { How::Wait } else { How::Try })
        });
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // The stamp as it is known here: a new one from the manager might cover a change that the kernel's pages lack.
        if let Some(open) = self.handles.release(handle) {
            self.locks.release(&open, handle);
            self.kernel.seen().insert(inode.0, open.file.stamp());
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.file(handle).and_then(|open| open.file.sync());
        empty(self, synced.inspect_err(|_| self.news.failed(inode.0)), reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(self.handles.keep_listing(), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        answer!(self, reply, self.names(inode.0, handle, offset), |names| {
            for (next, Name { name, inode, kind }) in names {
                if reply.add(INodeNo(inode), next, attributes::kind(kind), OsStr::from_bytes(&name)) {
                    break;
                }
            }
            reply.ok()
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let cacheable = self.volume.cacheable();
        answer!(self, reply, self.names(inode.0, handle, offset), |names| {
            for (next, Name { name, inode: found, .. }) in names {
                // The kernel caches these attributes, so the name is looked up again.
                let is_own = name == b"." || name == b"..";
                let now = match is_own {
                    true => self.volume.inode(inode.0).map(|own| Inode { id: found, ..own }),
                    false => self.volume.lookup(&place(inode, OsStr::from_bytes(&name))),
                };
                let Ok(now) = now else { continue };
                if !is_own {
                    self.removed.note(&now);
                }
                let attributes = attributes::of(&self.volume, &now);
                let name = OsStr::from_bytes(&name);
                let believed = believed(&now).min(cacheable.left());
                if reply.add(attributes.ino, next, name, &believed, &attributes, Generation(0)) {
                    break;
                }
            }
            reply.ok()
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.release(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(self, self.volume.sync_names(), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let room = self.volume.space().and_then(|space| Ok((space, self.volume.inodes()?)));
        answer!(self, reply, room, |(space, used)| {
            let (total, free) = (space.total / ROOM_UNIT, space.available / ROOM_UNIT);
            let (unit, inodes) = (ROOM_UNIT as u32, FREE_INODES + used);
            reply.statfs(total, free, free, inodes, FREE_INODES, unit, NAME_BYTES_MAX as u32, unit)
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        empty(self, extended::set(&self.volume, request, inode.0, name.as_bytes(), (value, flags)), reply);
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = extended::get(&self.volume, inode.0, name.as_bytes());
        xattr(self, value, size, reply);
    }

    fn listxattr(&self, _: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.volume.attributes_of(inode.0);
        let joined =
            |all: Vec<(Vec<u8>, Vec<u8>)>| all.into_iter().flat_map(|(name, _)| [name, vec![0]].concat());
        xattr(self, names.map(|all| joined(all).collect()), size, reply);
    }

    fn removexattr(&self, _: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self, extended::remove(&self.volume, inode.0, name.as_bytes()), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        at: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.file(handle).and_then(|open| {
            privileges::before_write((&self.volume, &self.kernel), request, &open)?;
            ranges::allocate(&open.file, at, len, mode)
        });
        empty(self, allocated, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.file(handle).and_then(|open| ranges::seek(&open.file, offset, whence));
        answer!(self, reply, found, |at| reply.offset(at));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_at: u64,
        _: INodeNo,
        to: FileHandle,
        to_at: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let files = self.file(from).and_then(|from| Ok((from, self.file(to)?)));
        let copied = files.and_then(|(from, to)| {
            privileges::before_write((&self.volume, &self.kernel), request, &to)?;
            ranges::copy((&from.file, from_at), (&to.file, to_at), len)
        });
        answer!(self, reply, copied, |n| reply.written(n as u32));
    }
}

/// How long the kernel may cache the attributes of an inode. For a directory it must ask again, unless no name in it
/// changes until the kernel has the answer; see [`Directories`].
fn believed(inode: &Inode) -> Duration {
    if inode.kind == Kind::Directory { Duration::ZERO } else { BELIEVED }
}

/// Converts the error for a missing inode: another mount has removed or replaced a name that the kernel has cached. On
/// ESTALE the kernel looks the name up again; ENOENT would reach the program.
fn stale(why: Error) -> Error {
    match why.errno() {
        libc::ENOENT => Error::System(libc::ESTALE, why.to_string()),
        _ => why,
    }
}

fn entry(fs: &MountedFs, names: Cacheable, found: Result<Inode>, reply: ReplyEntry) {
    answer!(fs, reply, found, |found| {
        fs.removed.note(&found);
        let of = attributes::of(&fs.volume, &found);
        reply.entry_with_ttls(&believed(&found), &names.left(), &of, Generation(0))
    });
}

fn attr(fs: &MountedFs, found: Result<Inode>, reply: ReplyAttr) {
    answer!(fs, reply, found, |found| reply.attr(&believed(&found), &attributes::of(&fs.volume, &found)));
}

fn empty(fs: &MountedFs, done: Result<()>, reply: ReplyEmpty) {
    answer!(fs, reply, done, |()| reply.ok());
}

/// Replies with the value, or with its size if that was requested.
fn xattr(fs: &MountedFs, value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    answer!(fs, reply, value, |value| match value.len() {
        len if size == 0 => reply.size(len as u32),
        len if len > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(&value),
    });
}
