//! Directories: names, and what is known of what bears them.
//!
//! Model: a [`Dir`] is an open directory, and everything in it is reached through it and a bare name, so no path grows
//! too long, none is walked twice, and a directory that is renamed meanwhile stays the same one. Links are never
//! followed here.
//! Law: a failure names the whole path, which is put together only then.
//! Non-goals: the simulated disk, which has no directories of this kind; deciding what to copy.

use std::ffi::{OsStr, OsString};
use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    Advice, AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use crate::{Action, Error, File, Io, Result, os};

/// What a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Special,
}

/// What is known of a file, directory or link without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub what: What,
    /// Bytes.
    pub len: u64,
    /// Bytes that the file system keeps for it; fewer than `len` if there are holes.
    pub allocated: u64,
    /// The device that holds it.
    pub device: u64,
    /// Its number on that device.
    pub inode: u64,
    /// Names that it has.
    pub links: u64,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// When its contents last changed, in nanoseconds of the file system's clock.
    pub modified_ns: i128,
}

const SECOND_NS: i128 = 1_000_000_000;

impl Facts {
    /// Of an open file.
    pub fn of(file: &File) -> Result<Facts> {
        facts_of(&*os::borrow(file.id())).map_err(|e| failed(Action::Stat, file.path(), e))
    }

    /// Whether it is still the file that it was, with the contents that it had.
    pub fn is_same(&self, other: &Facts) -> bool {
        let told = |f: &Facts| (f.what, f.len, f.device, f.inode, f.modified_ns);
        told(self) == told(other)
    }

    /// Whether it may have holes.
    pub fn is_sparse(&self) -> bool {
        self.allocated < self.len
    }

    fn modified(&self) -> Timestamps {
        let ns = self.modified_ns.rem_euclid(SECOND_NS);
        let modified = Timespec { tv_sec: ((self.modified_ns - ns) / SECOND_NS) as i64, tv_nsec: ns as _ };
        Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: modified }
    }
}

impl From<Stat> for Facts {
    fn from(stat: Stat) -> Facts {
        Facts {
            what: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => What::File,
                FileType::Directory => What::Directory,
                FileType::Symlink => What::Link,
                _ => What::Special,
            },
            len: stat.st_size as u64,
            allocated: stat.st_blocks as u64 * 512,
            device: stat.st_dev,
            inode: stat.st_ino,
            links: stat.st_nlink,
            mode: stat.st_mode & 0o7777,
            user: stat.st_uid,
            group: stat.st_gid,
            modified_ns: i128::from(stat.st_mtime) * SECOND_NS + i128::from(stat.st_mtime_nsec as i64),
        }
    }
}

fn facts_of(fd: impl AsFd) -> rustix::io::Result<Facts> {
    rustix::fs::fstat(fd).map(Facts::from)
}

fn failed(action: Action, path: &Path, errno: Errno) -> Error {
    Error::new(action, path, io::Error::from(errno))
}

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// The flags that keep an open from following links or waiting for the other end of a pipe.
const PLAIN: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

impl Dir {
    /// Opens a directory by its path, through links; an empty one means here.
    pub fn open(path: &Path) -> Result<Dir> {
        let here = os::or_here(path);
        let opened = rustix::fs::open(here, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let fd = opened.map_err(|e| failed(Action::Open, path, e))?;
        Ok(Dir { fd, path: path.to_path_buf() })
    }

    /// Opens one that is in this one.
    pub fn open_dir(&self, name: &OsStr) -> Result<Dir> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.on(Action::Open, name, |n| rustix::fs::openat(&self.fd, n, flags, Mode::empty()))?;
        let path = if name == "." { self.path.clone() } else { self.path.join(name) };
        Ok(Dir { fd, path })
    }

    /// Its path, as it was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Facts about itself.
    pub fn own_facts(&self) -> Result<Facts> {
        facts_of(&self.fd).map_err(|e| failed(Action::Stat, &self.path, e))
    }

    /// The names in it, a few at a time.
    pub fn names(&self) -> Result<Names> {
        let read = rustix::fs::Dir::read_from(&self.fd);
        let read = read.map_err(|e| failed(Action::Open, &self.path, e))?;
        Ok(Names { read, path: self.path.clone() })
    }

    /// Facts about a name in it.
    pub fn facts(&self, name: &OsStr) -> Result<Facts> {
        let told = |n: &OsStr| rustix::fs::statat(&self.fd, n, AtFlags::SYMLINK_NOFOLLOW);
        self.on(Action::Stat, name, told).map(Facts::from)
    }

    /// Facts about a name in it, if there is one.
    pub fn facts_if_any(&self, name: &OsStr) -> Result<Option<Facts>> {
        match self.facts(name) {
            Ok(facts) => Ok(Some(facts)),
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens a file to be read, past the page cache if that is asked for, it holds less than half of it, and the file
    /// system allows it.
    pub fn open_file(&self, io: &Arc<dyn Io>, name: &OsStr, direct: bool) -> Result<File> {
        let opened = self.open_flags(name, OFlags::RDONLY, 0, direct, Action::Open)?;
        let file = self.adopt(io, name, opened, direct, Action::Open)?;
        if file.is_direct() && file.cached_share(file.metadata()?.len) > 0.5 {
            let cached = self.open_flags(name, OFlags::RDONLY, 0, false, Action::Open)?;
            return self.adopt(io, name, cached, false, Action::Open);
        }
        Ok(file)
    }

    /// Makes a file with these permissions, or empties the one that is there.
    pub fn make_file(&self, io: &Arc<dyn Io>, name: &OsStr, mode: u32, direct: bool) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let opened = self.open_flags(name, flags, mode, direct, Action::Create)?;
        self.adopt(io, name, opened, direct, Action::Create)
    }

    /// Opens a file that is there, to be written and read.
    pub fn take_up_file(&self, io: &Arc<dyn Io>, name: &OsStr, direct: bool) -> Result<File> {
        let opened = self.open_flags(name, OFlags::RDWR, 0, direct, Action::Open)?;
        self.adopt(io, name, opened, direct, Action::Open)
    }

    /// Opens a file to be written and read as it is, made with these permissions if it is not there.
    pub fn keep_file(&self, io: &Arc<dyn Io>, name: &OsStr, mode: u32, direct: bool) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let opened = self.open_flags(name, flags, mode, direct, Action::Create)?;
        self.adopt(io, name, opened, direct, Action::Create)
    }

    /// Puts this process's mark on the directory, as [`File::mark`] does on a file; false if another has it.
    pub fn mark(&self) -> bool {
        let marked = rustix::fs::flock(&self.fd, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        // Where there are no marks, nobody can be told from nobody.
        marked != Err(Errno::WOULDBLOCK)
    }

    /// Where a file system knows no direct access, the file goes through the page cache.
    fn open_flags(
        &self,
        name: &OsStr,
        flags: OFlags,
        mode: u32,
        direct: bool,
        action: Action,
    ) -> Result<OwnedFd> {
        let open = |flags: OFlags| rustix::fs::openat(&self.fd, name, flags | PLAIN, Mode::from(mode));
        let opened = match open(flags | if direct { OFlags::DIRECT } else { OFlags::empty() }) {
            Err(Errno::INVAL) if direct => open(flags),
            opened => opened,
        };
        opened.map_err(|e| failed(action, &self.path.join(name), e))
    }

    fn adopt(
        &self,
        io: &Arc<dyn Io>,
        name: &OsStr,
        fd: OwnedFd,
        direct: bool,
        action: Action,
    ) -> Result<File> {
        assert!(io.name() != "sim", "a simulated disk has no descriptors");
        let path = self.path.join(name);
        let opened = os::adopt(StdFile::from(fd), false, direct).map_err(|e| Error::new(action, &path, e))?;
        Ok(File::of(io, &path, opened))
    }

    /// Makes a directory for its owner alone; one that is there already is as good.
    pub fn make_dir(&self, name: &OsStr) -> Result<()> {
        self.on(Action::Create, name, |n| match rustix::fs::mkdirat(&self.fd, n, Mode::from(0o700)) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        })
    }

    /// Where a symbolic link leads, as it is written there.
    pub fn read_link(&self, name: &OsStr) -> Result<OsString> {
        let read = self.on(Action::Read, name, |n| rustix::fs::readlinkat(&self.fd, n, Vec::new()))?;
        Ok(OsString::from_vec(read.into_bytes()))
    }

    /// Makes a symbolic link.
    pub fn make_link(&self, name: &OsStr, to: &OsStr) -> Result<()> {
        self.on(Action::Create, name, |n| rustix::fs::symlinkat(to, &self.fd, n))
    }

    /// Gives a file in `other` one more name, here.
    pub fn link(&self, name: &OsStr, other: &Dir, first: &Path) -> Result<()> {
        self.on(Action::Create, name, |n| rustix::fs::linkat(&other.fd, first, &self.fd, n, AtFlags::empty()))
    }

    /// Gives what bears `from` the name `to`, replacing what had it.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        self.on(Action::Rename, from, |n| rustix::fs::renameat(&self.fd, n, &self.fd, to))
    }

    /// Removes a name of anything but a directory.
    pub fn remove(&self, name: &OsStr) -> Result<()> {
        self.on(Action::Remove, name, |n| rustix::fs::unlinkat(&self.fd, n, AtFlags::empty()))
    }

    /// Removes whatever bears the name, with all that is in it. Links are removed, not followed.
    pub fn remove_all(&self, name: &OsStr) -> Result<()> {
        if self.facts(name)?.what != What::Directory {
            return self.remove(name);
        }
        let path = self.path.join(name);
        std::fs::remove_dir_all(&path).map_err(|e| Error::new(Action::Remove, &path, e))
    }

    /// Gives the directory itself the permissions, the owner where that is allowed, and the time of change.
    pub fn dress(&self, facts: &Facts) -> Result<()> {
        dress(&self.fd, facts).map_err(|e| failed(Action::Protect, &self.path, e))
    }

    /// Gives a symbolic link the owner where that is allowed, and the time of change.
    pub fn dress_link(&self, name: &OsStr, facts: &Facts) -> Result<()> {
        self.on(Action::Protect, name, |n| {
            let (user, group) = (Some(Uid::from_raw(facts.user)), Some(Gid::from_raw(facts.group)));
            // Who may not give it away keeps it.
            let _ = rustix::fs::chownat(&self.fd, n, user, group, AtFlags::SYMLINK_NOFOLLOW);
            rustix::fs::utimensat(&self.fd, n, &facts.modified(), AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    /// Makes everything durable that was written to this file system.
    pub fn sync_file_system(&self) -> Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(|e| failed(Action::Sync, &self.path, e))
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(|e| failed(Action::Sync, &self.path, e))
    }

    fn on<T>(
        &self,
        action: Action,
        name: &OsStr,
        mut call: impl FnMut(&OsStr) -> rustix::io::Result<T>,
    ) -> Result<T> {
        loop {
            match call(name) {
                Err(Errno::INTR) => {}
                done => return done.map_err(|e| failed(action, &self.path.join(name), e)),
            }
        }
    }
}

/// The names in a directory, as the system hands them out.
#[derive(Debug)]
pub struct Names {
    read: rustix::fs::Dir,
    path: PathBuf,
}

impl Names {
    /// At most `count` more, each with what it stands for if the file system tells; none at the end.
    pub fn some(&mut self, count: usize) -> Result<Vec<(OsString, Option<What>)>> {
        let mut names = Vec::new();
        while names.len() < count {
            let entry = match self.read.next() {
                None => break,
                Some(entry) => entry.map_err(|e| failed(Action::Read, &self.path, e))?,
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let what = match entry.file_type() {
                FileType::RegularFile => Some(What::File),
                FileType::Directory => Some(What::Directory),
                FileType::Symlink => Some(What::Link),
                FileType::Unknown => None,
                _ => Some(What::Special),
            };
            names.push((name.to_os_string(), what));
        }
        Ok(names)
    }
}

/// Gives an open file the permissions, the owner where that is allowed, and the time of change.
pub fn dress_file(file: &File, facts: &Facts) -> Result<()> {
    dress(&*os::borrow(file.id()), facts).map_err(|e| failed(Action::Protect, file.path(), e))
}

fn dress(fd: impl AsFd, facts: &Facts) -> rustix::io::Result<()> {
    let fd = fd.as_fd();
    let now = facts_of(fd)?;
    let mut mode = facts.mode;
    if (now.user, now.group) != (facts.user, facts.group) {
        let (user, group) = (Uid::from_raw(facts.user), Gid::from_raw(facts.group));
        let given = rustix::fs::fchown(fd, Some(user), Some(group));
        if given.is_err() {
            // Few may give files away. Who keeps a file does not lend it rights that its first owner had.
            mode &= 0o1777;
            let _ = rustix::fs::fchown(fd, None, Some(group));
        }
    }
    if now.mode != mode || mode & 0o6000 != 0 {
        rustix::fs::fchmod(fd, Mode::from(mode))?;
    }
    rustix::fs::futimens(fd, &facts.modified())
}

/// Asks the system to begin reading a file that will be read soon.
pub fn read_soon(file: &File) {
    // Advice; who does not take it reads later.
    let _ = rustix::fs::fadvise(&*os::borrow(file.id()), 0, None, Advice::WillNeed);
}

/// Asks the system to forget what it holds of a file, so that the next reading is from the disk.
pub fn forget(file: &File) {
    let _ = rustix::fs::fadvise(&*os::borrow(file.id()), 0, None, Advice::DontNeed);
}

/// The next stretch of a file from byte `at` on that is not a hole: its first byte, and that behind its last; `None`
/// if there is only a hole. A file system that knows no holes tells of one stretch.
pub fn next_data(file: &File, at: u64, len: u64) -> Result<Option<(u64, u64)>> {
    if at >= len {
        return Ok(None);
    }
    let fd = &*os::borrow(file.id());
    let seek = |to| rustix::fs::seek(fd, to);
    match seek(SeekFrom::Data(at)) {
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some((at, len))),
        Err(e) => Err(failed(Action::Stat, file.path(), e)),
        Ok(from) if from >= len => Ok(None),
        Ok(from) => {
            let to = seek(SeekFrom::Hole(from)).map_err(|e| failed(Action::Stat, file.path(), e))?;
            Ok(Some((from, to.min(len))))
        }
    }
}
