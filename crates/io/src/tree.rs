//! The file system of a transfer's end: its directories, the names in them, and their attributes.
//!
//! ```text
//! Tree  a file system: opens directories by path, and has the attributes of open files
//!   |
//! Dir   an open directory, which reaches everything in it by a bare name
//! ```
//!
//! Model: an open directory stays the same if it is renamed, and no path is resolved twice or grows too long. Symbolic
//! links are never followed below a [`Dir`].
//! Invariant: no operation leaves its directory. A name that is empty, is `..` or contains a slash is refused before
//! the file system sees it, and a path of several names ([`Dir::open_below`]) is resolved beneath the directory.
//! Invariant: an error names the whole path.
//! Non-goals: deciding what to copy.
//!
//! File systems: [`local`](crate::local), [`sim`](crate::sim).

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::extended::Extended;
use crate::{Action, Error, File, FileSystem, Result, process};

/// What a name in a directory refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Special,
}

/// The attributes of a file, directory or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Its kind.
    pub kind: EntryKind,
    /// Length in bytes.
    pub len: u64,
    /// Bytes that the file system allocated for it; fewer than `len` if there are holes.
    pub allocated: u64,
    /// The number of the device that holds it.
    pub device: u64,
    /// Its inode number on that device.
    pub inode: u64,
    /// The number of its names.
    pub links: u64,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// When its contents last changed, in nanoseconds since 1970. Its owner can set this time.
    pub modified_ns: i128,
    /// When its contents or attributes last changed. No process can set this time.
    pub changed_ns: i128,
}

impl Attributes {
    /// Whether it is still the same file with the same contents.
    pub fn is_same(&self, other: &Attributes) -> bool {
        let identity = |a: &Attributes| (a.kind, a.len, a.device, a.inode, a.modified_ns);
        identity(self) == identity(other)
    }

    /// Whether it may have holes.
    pub fn is_sparse(&self) -> bool {
        self.allocated < self.len
    }
}

/// A file system.
pub trait Tree: fmt::Debug + Send + Sync {
    /// The back end that transfers data of its files.
    fn io(&self) -> &Arc<dyn FileSystem>;

    /// Opens a directory by its path, following links.
    fn open_dir(&self, path: &Path) -> Result<Arc<dyn Dir>>;

    /// Opens a directory by its path, but does not follow a link at the end of the path.
    fn open_dir_itself(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        self.open_dir(path)
    }

    /// The canonical path.
    fn canonical(&self, path: &Path) -> Result<PathBuf>;

    /// Whether `inner` is `outer` or inside it. Both paths are canonical; `inner` need not exist.
    fn contains(&self, outer: &Path, inner: &Path) -> bool {
        inner.starts_with(outer)
    }

    /// The path of an output with its links resolved. An error if another user may have prepared them to receive our
    /// output; see [`unplanted`](crate::unplanted).
    fn unplanted(&self, path: &Path) -> Result<PathBuf> {
        Ok(self.canonical(path).unwrap_or_else(|_| path.to_path_buf()))
    }

    /// The attributes of an open file.
    fn attributes(&self, file: &File) -> Result<Attributes>;

    /// Gives an open file these permissions, this owner where that is allowed, and this modification time.
    fn set_attributes(&self, file: &File, attributes: &Attributes) -> Result<()>;

    /// The extended attributes of an open file, and the names of those that cannot be read.
    fn extended(&self, _file: &File) -> (Extended, Vec<String>) {
        (Extended::default(), Vec::new())
    }

    /// Gives an open file these extended attributes and no others. Returns the names of those that it cannot have.
    fn set_extended(&self, _file: &File, extended: &Extended) -> Vec<String> {
        extended.names()
    }

    /// Advises the file system that a file will be read soon.
    fn read_soon(&self, _file: &File) {}

    /// Advises the file system to drop a file from its cache, so that the next read is from the disk.
    fn drop_cache(&self, _file: &File) {}
}

/// An open directory.
pub trait Dir: Any + fmt::Debug + Send + Sync {
    /// Its path when it was opened.
    fn path(&self) -> &Path;

    /// Its own attributes.
    fn attributes(&self) -> Result<Attributes>;

    /// When it was created, in nanoseconds since 1970; 0 where the file system does not record it. Together with the
    /// inode number it identifies the directory, even if the device number changes.
    fn created_ns(&self) -> i128;

    /// Locks it for this process; false if another process holds the lock.
    fn try_lock(&self) -> bool;

    /// Lists the names in it.
    fn names(&self) -> Result<Box<dyn Names>>;

    /// The attributes of a name in it.
    fn attributes_of(&self, name: &OsStr) -> Result<Attributes>;

    /// The attributes of a name in it, if there is one.
    fn find(&self, name: &OsStr) -> Result<Option<Attributes>> {
        match self.attributes_of(name) {
            Ok(attributes) => Ok(Some(attributes)),
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether it is empty.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.names()?.some(1)?.is_empty())
    }

    /// Opens a directory in this one. `.` is this one.
    fn open_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>>;

    /// Opens a directory below this one, or this one if the path is empty. The path may contain neither `..` nor links.
    fn open_below(&self, path: &Path) -> Result<Arc<dyn Dir>>;

    /// Opens a directory that belongs to this user. An error otherwise: anybody with write access to this directory may
    /// have renamed another one to this name.
    fn reopen_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>>;

    /// Creates a directory that only its owner may enter; false if the name is taken.
    fn make_dir(&self, name: &OsStr) -> Result<bool>;

    /// Opens a file for reading; with `direct` past the page cache, if the cache holds less than half of the file and
    /// the file system allows it.
    fn open_file(&self, name: &OsStr, direct: bool) -> Result<File>;

    /// Creates a file with these permissions, to be written and read. An error if the name is taken.
    fn create_file(&self, name: &OsStr, mode: u32, direct: bool) -> Result<File>;

    /// Opens a file that an earlier process of this user created, for writing and reading, as
    /// [`Access::Update`](crate::Access::Update) does. It may also belong to `heir`, its future owner.
    fn reopen_file(&self, name: &OsStr, direct: bool, heir: Option<u32>) -> Result<File>;

    /// Gives a file the mode, and if allowed the owner, of the entry with this name; or the mode of a new file if there
    /// is none.
    fn copy_permissions(&self, file: &File, name: &OsStr) -> Result<()>;

    /// The target of a symbolic link, as it is stored.
    fn read_link(&self, name: &OsStr) -> Result<OsString>;

    /// Creates a symbolic link.
    fn make_link(&self, name: &OsStr, target: &OsStr) -> Result<()>;

    /// Gives the file called `first` in `other` a further name here.
    fn link(&self, name: &OsStr, other: &Arc<dyn Dir>, first: &OsStr) -> Result<()>;

    /// Renames an entry, replacing a file that has the name `to`.
    fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()>;

    /// Removes a name of anything but a directory.
    fn remove(&self, name: &OsStr) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, name: &OsStr) -> Result<()>;

    /// Gives this directory these permissions, this owner where that is allowed, and this modification time.
    fn set_attributes(&self, attributes: &Attributes) -> Result<()>;

    /// Its extended attributes, and the names of those that cannot be read.
    fn extended(&self) -> (Extended, Vec<String>) {
        (Extended::default(), Vec::new())
    }

    /// Gives it these extended attributes and no others. Returns the names of those that it cannot have.
    fn set_extended(&self, extended: &Extended) -> Vec<String> {
        extended.names()
    }

    /// Gives a symbolic link this owner where that is allowed, and this modification time.
    fn set_link_attributes(&self, name: &OsStr, attributes: &Attributes) -> Result<()>;

    /// Makes the names in it durable.
    fn sync(&self) -> Result<()>;

    /// Makes everything durable that was written to its file system.
    fn sync_file_system(&self) -> Result<()>;
}

/// The names in a directory, a few at a time.
pub trait Names: Send {
    /// At most `count` more names, each with what it refers to if the file system says so; none at the end.
    fn some(&mut self, count: usize) -> Result<Vec<(OsString, Option<EntryKind>)>>;
}

/// Allows this user to change the names in a directory of its own, which it may have closed to itself.
pub fn open_up(dir: &dyn Dir) -> Result<()> {
    const ALL: u32 = 0o700;
    if process::is_root() {
        return Ok(());
    }
    let facts = dir.attributes()?;
    match facts.mode & ALL != ALL && facts.user == process::user_and_group().0 {
        true => dir.set_attributes(&Attributes { mode: facts.mode | ALL, ..facts }),
        false => Ok(()),
    }
}

/// Removes a name and everything below it. Links are removed and not followed.
pub fn remove_all(dir: &dyn Dir, name: &OsStr) -> Result<()> {
    if dir.attributes_of(name)?.kind != EntryKind::Directory {
        return dir.remove(name);
    }
    let below = dir.open_dir(name)?;
    open_up(&*below)?;
    clear(&*below)?;
    dir.remove_dir(name)
}

/// Removes everything in a directory. Links are removed and not followed.
pub fn clear(dir: &dyn Dir) -> Result<()> {
    const SOME: usize = 1000;
    // A stack instead of recursion: a tree may be deeper than a thread's stack.
    let mut open: Vec<(Arc<dyn Dir>, OsString)> = Vec::new();
    loop {
        let here = open.last().map_or(dir, |(dir, _)| &**dir);
        let some = here.names()?.some(SOME)?;
        let mut below = None;
        for (name, kind) in &some {
            let kind = kind.map_or_else(|| here.attributes_of(name).map(|a| a.kind), Ok)?;
            if kind == EntryKind::Directory {
                below = Some((here.open_dir(name)?, name.clone()));
                break;
            }
            here.remove(name)?;
        }
        if let Some(below) = below {
            open_up(&*below.0)?;
            open.push(below);
        } else if some.is_empty() {
            let Some((_, name)) = open.pop() else { return Ok(()) };
            open.last().map_or(dir, |(dir, _)| &**dir).remove_dir(&name)?;
        }
    }
}

/// An error unless this is a name in the directory `dir`, or `.` for the directory itself.
pub(crate) fn check_name(action: Action, dir: &Path, name: &OsStr) -> Result<()> {
    let bytes = name.as_bytes();
    let leaves = bytes.is_empty() || bytes == b".." || bytes.contains(&b'/');
    if leaves { Err(leads_out(action, &dir.join(name))) } else { Ok(()) }
}

/// The error for a name or path that leads out of its directory.
pub(crate) fn leads_out(action: Action, path: &Path) -> Error {
    Error::new(
        action,
        path,
        io::Error::new(io::ErrorKind::InvalidInput, "that name leads out of its directory"),
    )
}
