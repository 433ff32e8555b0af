//! Directories: names, and what is known of what bears them.
//!
//! Model: a [`Dir`] is an open directory, and everything in it is reached through it and a bare name, so no path grows
//! too long, none is walked twice, and a directory that is renamed meanwhile stays the same one. Links are never
//! followed here.
//! Invariant: no operation leaves its directory: a name that is empty, `..`, or has a slash is refused before the system sees it,
//! and a path of several names ([`Dir::open_below`]) is resolved beneath the directory and through no link.
//! Invariant: a failure names the whole path, which is put together only then.
//! Non-goals: the simulated disk, which has no directories of this kind; deciding what to copy.

use std::ffi::{OsStr, OsString};
use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    Advice, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, StatxFlags, Timespec,
    Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use crate::{Action, Error, File, FileSystem, Result, os};

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
    /// When its contents last changed, in nanoseconds of the file system's clock. Whoever may write it may set that.
    pub modified_ns: i128,
    /// When anything about it last changed, which nobody can set.
    pub changed_ns: i128,
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
            changed_ns: i128::from(stat.st_ctime) * SECOND_NS + i128::from(stat.st_ctime_nsec as i64),
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
pub(crate) const PLAIN: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// The flags that open a directory and no link to one.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A name or path that would be somewhere else.
fn leaves(action: Action, path: &Path) -> Error {
    Error::new(
        action,
        path,
        io::Error::new(io::ErrorKind::InvalidInput, "that name leads out of its directory"),
    )
}

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
        let fd =
            self.on(Action::Open, name, |n| rustix::fs::openat(&self.fd, n, DIRECTORY, Mode::empty()))?;
        let path = if name == "." { self.path.clone() } else { self.path.join(name) };
        Ok(Dir { fd, path })
    }

    /// Opens one that lies somewhere below this one, or this one itself if the path is empty. The path leads down, and
    /// through no link.
    pub fn open_below(&self, path: &Path) -> Result<Dir> {
        if path.as_os_str().is_empty() {
            return self.open_dir(OsStr::new("."));
        }
        let whole = self.path.join(path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(leaves(Action::Open, &whole));
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        loop {
            return match rustix::fs::openat2(&self.fd, path, DIRECTORY, Mode::empty(), resolve) {
                Ok(fd) => Ok(Dir { fd, path: whole }),
                // Something was renamed while the kernel looked.
                Err(Errno::INTR | Errno::AGAIN) => continue,
                // An old kernel does not know the call, and a sandbox may forbid it. The path may be too long for it, too.
                Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => self.walk_below(path),
                Err(e) => Err(failed(Action::Open, &whole, e)),
            };
        }
    }

    /// The same one name at a time.
    fn walk_below(&self, path: &Path) -> Result<Dir> {
        let mut names = path.iter();
        let first = self.open_dir(names.next().unwrap_or(OsStr::new(".")))?;
        names.try_fold(first, |dir, name| dir.open_dir(name))
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
    pub fn open_file(&self, io: &Arc<dyn FileSystem>, name: &OsStr, direct: bool) -> Result<File> {
        let opened = self.open_flags(name, OFlags::RDONLY, 0, direct, Action::Open)?;
        let file = self.adopt(io, name, opened, direct, Action::Open)?;
        if file.is_direct() && file.cached_share(file.metadata()?.len) > 0.5 {
            let cached = self.open_flags(name, OFlags::RDONLY, 0, false, Action::Open)?;
            return self.adopt(io, name, cached, false, Action::Open);
        }
        Ok(file)
    }

    /// Makes a new file with these permissions, to be written and read. An error if anything has that name.
    pub fn create_file(
        &self,
        io: &Arc<dyn FileSystem>,
        name: &OsStr,
        mode: u32,
        direct: bool,
    ) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let opened = self.open_flags(name, flags, mode, direct, Action::Create)?;
        self.adopt(io, name, opened, direct, Action::Create)
    }

    /// Opens a file that an earlier process of this user made and left, to be written and read, as
    /// [`Access::Update`](crate::Access::Update) does. What was to be given to `heir` may be that user's already.
    pub fn reopen_file(
        &self,
        io: &Arc<dyn FileSystem>,
        name: &OsStr,
        direct: bool,
        heir: Option<u32>,
    ) -> Result<File> {
        assert!(io.name() != "sim", "a simulated disk has no descriptors");
        self.is_own(Action::Open, name)?;
        let path = self.path.join(name);
        let opened = os::reopen(self.fd.as_fd(), Path::new(name), direct, heir);
        let opened = opened.map_err(|e| Error::new(Action::Open, &path, e))?;
        Ok(File::of(io, &path, opened))
    }

    /// Opens a directory of this user's. An error if it is none, as with [`reopen_file`](Dir::reopen_file): whoever may write
    /// to this directory may have renamed another one to this name.
    pub fn reopen_dir(&self, name: &OsStr) -> Result<Dir> {
        let opened = self.open_dir(name);
        // What cannot be opened may be a link, or another user's.
        let there = opened.as_ref().map_or_else(|_| self.facts(name), Dir::own_facts)?;
        os::check_own(self.fd.as_fd(), Path::new(name), &there, None)
            .map_err(|e| Error::new(Action::Open, self.path.join(name), e))?;
        opened
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.names()?.some(1)?.is_empty())
    }

    /// When it was made, in nanoseconds since 1970, or 0 where the file system does not tell. With its number that tells it
    /// from every other one on its file system, whatever number the system gives the device.
    pub fn born_ns(&self) -> i128 {
        let told = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let born = told.ok().filter(|told| told.stx_mask & StatxFlags::BTIME.bits() != 0);
        born.map_or(0, |told| {
            i128::from(told.stx_btime.tv_sec) * SECOND_NS + i128::from(told.stx_btime.tv_nsec)
        })
    }

    /// Gives a file the permissions of what has this name here, and its owner where that is allowed, or the permissions
    /// of a new file.
    pub fn resemble(&self, file: &File, name: &OsStr) -> Result<()> {
        self.is_own(Action::Protect, name)?;
        let done = os::resemble(file.id(), self.fd.as_fd(), Path::new(name));
        done.map_err(|e| Error::new(Action::Protect, file.path(), e))
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
        let open = |flags: OFlags| {
            self.on(action, name, |n| rustix::fs::openat(&self.fd, n, flags | PLAIN, Mode::from(mode)))
        };
        match open(flags | if direct { OFlags::DIRECT } else { OFlags::empty() }) {
            Err(e) if direct && e.source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => open(flags),
            opened => opened,
        }
    }

    fn adopt(
        &self,
        io: &Arc<dyn FileSystem>,
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

    /// Makes a directory for its owner alone; false if something has that name already.
    pub fn make_dir(&self, name: &OsStr) -> Result<bool> {
        self.on(Action::Create, name, |n| match rustix::fs::mkdirat(&self.fd, n, Mode::from(0o700)) {
            Err(Errno::EXIST) => Ok(false),
            made => made.map(|()| true),
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

    /// Gives the file that is called `first` in `other` one more name, here.
    pub fn link(&self, name: &OsStr, other: &Dir, first: &OsStr) -> Result<()> {
        other.is_own(Action::Create, first)?;
        self.on(Action::Create, name, |n| rustix::fs::linkat(&other.fd, first, &self.fd, n, AtFlags::empty()))
    }

    /// Gives what bears `from` the name `to`, replacing what had it.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        self.is_own(Action::Rename, to)?;
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
        self.open_dir(name)?.clear()?;
        self.remove_dir(name)
    }

    /// Removes the name of an empty directory.
    pub fn remove_dir(&self, name: &OsStr) -> Result<()> {
        self.on(Action::Remove, name, |n| rustix::fs::unlinkat(&self.fd, n, AtFlags::REMOVEDIR))
    }

    /// Removes all that is in the directory. Links are removed, not followed.
    pub fn clear(&self) -> Result<()> {
        const SOME: usize = 1000;
        // A stack, not recursion: a tree may be deeper than a thread's stack.
        let mut open: Vec<(Dir, OsString)> = Vec::new();
        loop {
            let dir = open.last().map_or(self, |(dir, _)| dir);
            let some = dir.names()?.some(SOME)?;
            let mut below = None;
            for (name, what) in &some {
                if what.map_or_else(|| dir.facts(name).map(|facts| facts.what), Ok)? == What::Directory {
                    below = Some((dir.open_dir(name)?, name.clone()));
                    break;
                }
                dir.remove(name)?;
            }
            if let Some(below) = below {
                open.push(below);
            } else if some.is_empty() {
                let Some((_, name)) = open.pop() else { return Ok(()) };
                open.last().map_or(self, |(dir, _)| dir).remove_dir(&name)?;
            }
        }
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

    /// An error unless it is a name in this directory, or `.` for the directory itself.
    fn is_own(&self, action: Action, name: &OsStr) -> Result<()> {
        let bytes = name.as_bytes();
        let leads_out = bytes.is_empty() || bytes == b".." || bytes.contains(&b'/');
        if leads_out { Err(leaves(action, &self.path.join(name))) } else { Ok(()) }
    }

    fn on<T>(
        &self,
        action: Action,
        name: &OsStr,
        mut call: impl FnMut(&OsStr) -> rustix::io::Result<T>,
    ) -> Result<T> {
        self.is_own(action, name)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Threads;

    /// A directory with a tree in it, and one beside it that nothing may touch; gone when the test ends.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> (Place, Dir) {
            let path = std::env::temp_dir().join(format!("thalweg-tree-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("in/a/b")).unwrap();
            std::fs::create_dir_all(path.join("out/etc")).unwrap();
            std::os::unix::fs::symlink("../../out", path.join("in/a/l")).unwrap();
            std::os::unix::fs::symlink(path.join("out"), path.join("in/absolute")).unwrap();
            let dir = Dir::open(&path.join("in")).unwrap();
            (Place(path), dir)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn no_operation_leaves_its_directory() {
        let (place, dir) = Place::new("leaves");
        let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
        let (facts, a) = (dir.own_facts().unwrap(), dir.open_dir(OsStr::new("a")).unwrap());
        let good = OsStr::new("b");
        for name in ["", "..", "../out", "/etc/passwd", "a/l", "a/l/etc", "absolute/etc", "a/", "b\0c"] {
            let n = OsStr::new(name);
            let refused = [
                dir.open_dir(n).map(drop),
                dir.facts(n).map(drop),
                dir.open_file(&io, n, false).map(drop),
                dir.create_file(&io, n, 0o600, false).map(drop),
                dir.reopen_file(&io, n, true, None).map(drop),
                dir.reopen_dir(n).map(drop),
                dir.make_dir(n).map(drop),
                dir.read_link(n).map(drop),
                dir.make_link(n, good),
                dir.link(n, &a, good),
                dir.link(good, &a, n),
                dir.rename(n, good),
                dir.rename(good, n),
                dir.remove(n),
                dir.remove_all(n),
                dir.remove_dir(n),
                dir.dress_link(n, &facts),
            ];
            for (number, outcome) in refused.into_iter().enumerate() {
                assert!(outcome.is_err(), "operation {number} on {name:?}");
            }
        }
        assert_eq!(std::fs::read_dir(place.0.join("out")).unwrap().count(), 1);
    }

    #[test]
    fn a_path_below_leads_down_and_through_no_link() {
        let (_place, dir) = Place::new("below");
        let ways: [fn(&Dir, &Path) -> Result<Dir>; 2] = [Dir::open_below, |dir, path| dir.walk_below(path)];
        for way in ways {
            for path in ["a/l", "a/l/etc", "absolute", "absolute/etc"] {
                let error = way(&dir, Path::new(path)).unwrap_err().to_string();
                assert!(error.contains("irectory") || error.contains("symbolic"), "{error}");
            }
            assert!(way(&dir, Path::new("a/b")).unwrap().path().ends_with("in/a/b"));
            for path in ["..", "a/../..", "/", "/etc", "a/../../out"] {
                assert!(way(&dir, Path::new(path)).is_err(), "{path}");
            }
        }
        assert_eq!(dir.open_below(Path::new("")).unwrap().own_facts().unwrap(), dir.own_facts().unwrap());
    }

    #[test]
    fn a_tree_goes_with_all_that_is_in_it_and_links_in_it_lead_nowhere() {
        let (place, dir) = Place::new("goes");
        std::fs::create_dir_all(place.0.join("in/a").join("d/".repeat(300))).unwrap();
        dir.remove_all(OsStr::new("a")).unwrap();
        dir.remove_all(OsStr::new("absolute")).unwrap();
        assert_eq!(dir.names().unwrap().some(9).unwrap(), []);
        assert!(place.0.join("out/etc").is_dir());
    }
}
