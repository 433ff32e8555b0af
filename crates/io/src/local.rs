//! Directories of the operating system.
//!
//! Model: a directory is a descriptor, and every operation is a system call relative to it (openat and its relatives)
//! that does not follow links. A path of several names is resolved by openat2 with RESOLVE_BENEATH, or name by name
//! where that call is not available.
//! Non-goals: the queues that move bytes, which a back end has ([`uring`](crate::uring), [`threads`](crate::threads)).

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    Advice, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, StatxFlags, Timespec, Timestamps,
    UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use crate::extended::{self, Extended};
use crate::mounts;
use crate::resemble::resemble;
use crate::tree::{Attributes, Dir, EntryKind, Names, Tree, check_name, leads_out};
use crate::{Action, Error, File, FileSystem, Result, os, real_name};

const SECOND_NS: i128 = 1_000_000_000;
/// The flags that keep an open from following links or waiting for the other end of a pipe.
pub(crate) const PLAIN: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// The flags that open a directory and no link to one.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The file systems of this machine. `io` moves the bytes of their files, and must use descriptors of the operating
/// system.
pub fn tree(io: &Arc<dyn FileSystem>) -> Arc<dyn Tree> {
    assert!(io.name() != "sim", "a simulated disk has no descriptors");
    Arc::new(Local { io: Arc::clone(io) })
}

struct Local {
    io: Arc<dyn FileSystem>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local({})", self.io.name())
    }
}

impl Local {
    fn open(&self, path: &Path, flags: OFlags) -> Result<Arc<dyn Dir>> {
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let fd = opened.map_err(|e| failed(Action::Open, path, e))?;
        Ok(Arc::new(LocalDir { io: Arc::clone(&self.io), fd, path: path.to_path_buf() }))
    }
}

impl Tree for Local {
    fn io(&self) -> &Arc<dyn FileSystem> {
        &self.io
    }

    fn open_dir(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        self.open(path, DIRECTORY.difference(OFlags::NOFOLLOW))
    }

    fn open_dir_itself(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        self.open(path, DIRECTORY)
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        std::fs::canonicalize(path).map_err(|e| Error::new(Action::Open, path, e))
    }

    fn contains(&self, outer: &Path, inner: &Path) -> bool {
        mounts::contains(outer, inner)
    }

    fn unplanted(&self, path: &Path) -> Result<PathBuf> {
        let led_to = real_name(&os::unplanted(path)?);
        Ok(if led_to.symlink_metadata().is_ok() { led_to } else { path.to_path_buf() })
    }

    fn attributes(&self, file: &File) -> Result<Attributes> {
        attributes_of(&*os::borrow(file.id())).map_err(|e| failed(Action::Stat, file.path(), e))
    }

    fn set_attributes(&self, file: &File, attributes: &Attributes) -> Result<()> {
        set_attributes(&*os::borrow(file.id()), attributes)
            .map_err(|e| failed(Action::Protect, file.path(), e))
    }

    fn extended(&self, file: &File) -> (Extended, Vec<String>) {
        extended::read(&*os::borrow(file.id()))
    }

    fn set_extended(&self, file: &File, extended: &Extended) -> Vec<String> {
        extended::write(&*os::borrow(file.id()), extended)
    }

    fn read_soon(&self, file: &File) {
        let _ = rustix::fs::fadvise(&*os::borrow(file.id()), 0, None, Advice::WillNeed);
    }

    fn drop_cache(&self, file: &File) {
        let _ = rustix::fs::fadvise(&*os::borrow(file.id()), 0, None, Advice::DontNeed);
    }
}

impl From<Stat> for Attributes {
    fn from(stat: Stat) -> Attributes {
        Attributes {
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                FileType::Symlink => EntryKind::Link,
                _ => EntryKind::Special,
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

fn attributes_of(fd: impl AsFd) -> rustix::io::Result<Attributes> {
    rustix::fs::fstat(fd).map(Attributes::from)
}

fn times_of(attributes: &Attributes) -> Timestamps {
    let ns = attributes.modified_ns.rem_euclid(SECOND_NS);
    let modified = Timespec { tv_sec: ((attributes.modified_ns - ns) / SECOND_NS) as i64, tv_nsec: ns as _ };
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: modified }
}

fn set_attributes(fd: impl AsFd, attributes: &Attributes) -> rustix::io::Result<()> {
    let fd = fd.as_fd();
    let now = attributes_of(fd)?;
    let mut mode = attributes.mode;
    if (now.user, now.group) != (attributes.user, attributes.group) {
        let (user, group) = (Uid::from_raw(attributes.user), Gid::from_raw(attributes.group));
        let given = rustix::fs::fchown(fd, Some(user), Some(group));
        if given.is_err() {
            // If the owner cannot be changed, it stays; the set-ID bits were meant for the other owner, and are
            // dropped.
            mode &= 0o1777;
            let _ = rustix::fs::fchown(fd, None, Some(group));
        }
    }
    if now.mode != mode || mode & 0o6000 != 0 {
        rustix::fs::fchmod(fd, Mode::from(mode))?;
    }
    rustix::fs::futimens(fd, &times_of(attributes))
}

fn failed(action: Action, path: &Path, errno: Errno) -> Error {
    Error::new(action, path, io::Error::from(errno))
}

/// An open directory.
struct LocalDir {
    io: Arc<dyn FileSystem>,
    fd: OwnedFd,
    path: PathBuf,
}

impl fmt::Debug for LocalDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalDir({})", self.path.display())
    }
}

impl LocalDir {
    fn opened(&self, fd: OwnedFd, path: PathBuf) -> LocalDir {
        LocalDir { io: Arc::clone(&self.io), fd, path }
    }

    fn open_one(&self, name: &OsStr) -> Result<LocalDir> {
        let fd =
            self.on(Action::Open, name, |n| rustix::fs::openat(&self.fd, n, DIRECTORY, Mode::empty()))?;
        Ok(self.opened(fd, if name == "." { self.path.clone() } else { self.path.join(name) }))
    }

    /// [`Dir::open_below`], one name at a time.
    fn walk_below(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        let mut names = path.iter();
        let first = self.open_one(names.next().unwrap_or(OsStr::new(".")))?;
        Ok(Arc::new(names.try_fold(first, |dir, name| dir.open_one(name))?))
    }

    /// Where a file system does not support direct access, the file goes through the page cache.
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

    fn adopt(&self, name: &OsStr, fd: OwnedFd, direct: bool, action: Action) -> Result<File> {
        let path = self.path.join(name);
        let opened = os::adopt(StdFile::from(fd), false, direct).map_err(|e| Error::new(action, &path, e))?;
        Ok(File::of(&self.io, &path, opened))
    }

    fn on<T>(
        &self,
        action: Action,
        name: &OsStr,
        mut call: impl FnMut(&OsStr) -> rustix::io::Result<T>,
    ) -> Result<T> {
        check_name(action, &self.path, name)?;
        loop {
            match call(name) {
                Err(Errno::INTR) => {}
                done => return done.map_err(|e| failed(action, &self.path.join(name), e)),
            }
        }
    }
}

impl Dir for LocalDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn attributes(&self) -> Result<Attributes> {
        attributes_of(&self.fd).map_err(|e| failed(Action::Stat, &self.path, e))
    }

    fn created_ns(&self) -> i128 {
        let about = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let created = about.ok().filter(|about| about.stx_mask & StatxFlags::BTIME.bits() != 0);
        created.map_or(0, |about| {
            i128::from(about.stx_btime.tv_sec) * SECOND_NS + i128::from(about.stx_btime.tv_nsec)
        })
    }

    fn try_lock(&self) -> bool {
        let locked = rustix::fs::flock(&self.fd, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        // A file system without locks cannot tell processes apart.
        locked != Err(Errno::WOULDBLOCK)
    }

    fn names(&self) -> Result<Box<dyn Names>> {
        let read = rustix::fs::Dir::read_from(&self.fd);
        let read = read.map_err(|e| failed(Action::Open, &self.path, e))?;
        Ok(Box::new(LocalNames { read, path: self.path.clone() }))
    }

    fn attributes_of(&self, name: &OsStr) -> Result<Attributes> {
        let stat = |n: &OsStr| rustix::fs::statat(&self.fd, n, AtFlags::SYMLINK_NOFOLLOW);
        self.on(Action::Stat, name, stat).map(Attributes::from)
    }

    fn open_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>> {
        Ok(Arc::new(self.open_one(name)?))
    }

    fn open_below(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        if path.as_os_str().is_empty() {
            return self.open_dir(OsStr::new("."));
        }
        let whole = self.path.join(path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(leads_out(Action::Open, &whole));
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        loop {
            return match rustix::fs::openat2(&self.fd, path, DIRECTORY, Mode::empty(), resolve) {
                Ok(fd) => Ok(Arc::new(self.opened(fd, whole))),
                // Something was renamed during the call.
                Err(Errno::INTR | Errno::AGAIN) => continue,
                // An old kernel does not have the call, and a sandbox may forbid it. The path may also be too long for
                // it.
                Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => self.walk_below(path),
                Err(e) => Err(failed(Action::Open, &whole, e)),
            };
        }
    }

    fn reopen_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>> {
        let opened = self.open_dir(name);
        // What cannot be opened may be a link, or belong to another user.
        let there = opened.as_ref().map_or_else(|_| self.attributes_of(name), |dir| dir.attributes())?;
        os::check_own(self.fd.as_fd(), Path::new(name), &there, None)
            .map_err(|e| Error::new(Action::Open, self.path.join(name), e))?;
        opened
    }

    fn make_dir(&self, name: &OsStr) -> Result<bool> {
        self.on(Action::Create, name, |n| match rustix::fs::mkdirat(&self.fd, n, Mode::from(0o700)) {
            Err(Errno::EXIST) => Ok(false),
            made => made.map(|()| true),
        })
    }

    fn open_file(&self, name: &OsStr, direct: bool) -> Result<File> {
        let opened = self.open_flags(name, OFlags::RDONLY, 0, direct, Action::Open)?;
        let file = self.adopt(name, opened, direct, Action::Open)?;
        if file.is_direct() && file.cached_share(file.metadata()?.len) > 0.5 {
            let cached = self.open_flags(name, OFlags::RDONLY, 0, false, Action::Open)?;
            return self.adopt(name, cached, false, Action::Open);
        }
        Ok(file)
    }

    fn create_file(&self, name: &OsStr, mode: u32, direct: bool) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let opened = self.open_flags(name, flags, mode, direct, Action::Create)?;
        self.adopt(name, opened, direct, Action::Create)
    }

    fn reopen_file(&self, name: &OsStr, direct: bool, heir: Option<u32>) -> Result<File> {
        check_name(Action::Open, &self.path, name)?;
        let path = self.path.join(name);
        let opened = os::reopen(self.fd.as_fd(), Path::new(name), direct, heir);
        let opened = opened.map_err(|e| Error::new(Action::Open, &path, e))?;
        Ok(File::of(&self.io, &path, opened))
    }

    fn copy_permissions(&self, file: &File, name: &OsStr) -> Result<()> {
        check_name(Action::Protect, &self.path, name)?;
        let done = resemble(&os::borrow(file.id()), self.fd.as_fd(), Path::new(name)).map(drop);
        done.map_err(|e| Error::new(Action::Protect, file.path(), e))
    }

    fn read_link(&self, name: &OsStr) -> Result<OsString> {
        let read = self.on(Action::Read, name, |n| rustix::fs::readlinkat(&self.fd, n, Vec::new()))?;
        Ok(OsString::from_vec(read.into_bytes()))
    }

    fn make_link(&self, name: &OsStr, target: &OsStr) -> Result<()> {
        self.on(Action::Create, name, |n| rustix::fs::symlinkat(target, &self.fd, n))
    }

    fn link(&self, name: &OsStr, other: &Arc<dyn Dir>, first: &OsStr) -> Result<()> {
        check_name(Action::Create, other.path(), first)?;
        let other: &dyn Any = &**other;
        self.on(Action::Create, name, |n| match other.downcast_ref::<LocalDir>() {
            Some(other) => rustix::fs::linkat(&other.fd, first, &self.fd, n, AtFlags::empty()),
            None => Err(Errno::XDEV),
        })
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        check_name(Action::Rename, &self.path, to)?;
        self.on(Action::Rename, from, |n| rustix::fs::renameat(&self.fd, n, &self.fd, to))
    }

    fn remove(&self, name: &OsStr) -> Result<()> {
        self.on(Action::Remove, name, |n| rustix::fs::unlinkat(&self.fd, n, AtFlags::empty()))
    }

    fn remove_dir(&self, name: &OsStr) -> Result<()> {
        self.on(Action::Remove, name, |n| rustix::fs::unlinkat(&self.fd, n, AtFlags::REMOVEDIR))
    }

    fn set_attributes(&self, attributes: &Attributes) -> Result<()> {
        set_attributes(&self.fd, attributes).map_err(|e| failed(Action::Protect, &self.path, e))
    }

    fn extended(&self) -> (Extended, Vec<String>) {
        extended::read(&self.fd)
    }

    fn set_extended(&self, extended: &Extended) -> Vec<String> {
        extended::write(&self.fd, extended)
    }

    fn set_link_attributes(&self, name: &OsStr, attributes: &Attributes) -> Result<()> {
        self.on(Action::Protect, name, |n| {
            let (user, group) = (Some(Uid::from_raw(attributes.user)), Some(Gid::from_raw(attributes.group)));
            // If the owner cannot be changed, it stays.
            let _ = rustix::fs::chownat(&self.fd, n, user, group, AtFlags::SYMLINK_NOFOLLOW);
            rustix::fs::utimensat(&self.fd, n, &times_of(attributes), AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(|e| failed(Action::Sync, &self.path, e))
    }

    fn sync_file_system(&self) -> Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(|e| failed(Action::Sync, &self.path, e))
    }
}

/// The names in a directory, in the order in which the system returns them.
struct LocalNames {
    read: rustix::fs::Dir,
    path: PathBuf,
}

impl Names for LocalNames {
    fn some(&mut self, count: usize) -> Result<Vec<(OsString, Option<EntryKind>)>> {
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
            let kind = match entry.file_type() {
                FileType::RegularFile => Some(EntryKind::File),
                FileType::Directory => Some(EntryKind::Directory),
                FileType::Symlink => Some(EntryKind::Link),
                FileType::Unknown => None,
                _ => Some(EntryKind::Special),
            };
            names.push((name.to_os_string(), kind));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Threads;

    /// A directory with a tree, and one beside it, which nothing may touch; removed when the test ends.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> (Place, Arc<dyn Dir>) {
            let path = std::env::temp_dir().join(format!("thalweg-local-{name}-{}", std::process::id()));
            std::fs::create_dir_all(path.join("in/a/b")).unwrap();
            std::fs::create_dir_all(path.join("out/etc")).unwrap();
            std::os::unix::fs::symlink("../../out", path.join("in/a/l")).unwrap();
            std::os::unix::fs::symlink(path.join("out"), path.join("in/absolute")).unwrap();
            let tree = tree(&(Arc::new(Threads::new(1)) as Arc<dyn FileSystem>));
            let dir = tree.open_dir(&path.join("in")).unwrap();
            (Place(path), dir)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_path_below_leads_down_and_through_no_link() {
        let (_place, dir) = Place::new("walked");
        type Open = fn(&LocalDir, &Path) -> Result<Arc<dyn Dir>>;
        let ways: [Open; 2] = [|dir, path| dir.open_below(path), |dir, path| dir.walk_below(path)];
        let opened: &dyn Any = &*dir;
        let opened = opened.downcast_ref::<LocalDir>().unwrap();
        for way in ways {
            for path in ["a/l", "a/l/etc", "absolute", "absolute/etc"] {
                let error = way(opened, Path::new(path)).unwrap_err().to_string();
                assert!(error.contains("irectory") || error.contains("symbolic"), "{error}");
            }
            assert!(way(opened, Path::new("a/b")).unwrap().path().ends_with("in/a/b"));
            for path in ["..", "a/../..", "/", "/etc", "a/../../out"] {
                assert!(way(opened, Path::new(path)).is_err(), "{path}");
            }
        }
        assert_eq!(dir.open_below(Path::new("")).unwrap().attributes().unwrap(), dir.attributes().unwrap());
    }
}
