//! The directories of a simulated disk: paths, and the operations of a [`Dir`](crate::tree::Dir) on inodes.
//!
//! Model: absolute paths begin at one root and relative ones at another, so that nothing depends on where a test runs.
//! Every operation names a directory by its inode, as a descriptor would.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::disk::{Disk, Inode, Kind, ROOTS, system};
use super::names::Settings;
use crate::tree::{Attributes, EntryKind};

/// The most links that the system follows in one path.
const LINKS_MAX: usize = 40;

impl Disk {
    /// Creates the roots of a new disk.
    pub(crate) fn make_roots(&mut self) {
        self.add_volume(ROOTS[0].0, None);
        for (number, _) in ROOTS {
            let root = self.new_inode(Kind::Directory, 0, 0o755);
            assert_eq!(root, number);
        }
    }

    /// The inode with this number; an error if it is not a directory.
    fn directory(&self, number: u64) -> io::Result<&Inode> {
        match self.inodes.get(&number) {
            Some(inode) if inode.kind == Kind::Directory => Ok(inode),
            Some(_) => Err(system(libc::ENOTDIR)),
            None => Err(system(libc::ENOENT)),
        }
    }

    /// Resolves a path through links. Returns the inode, and the path without links.
    pub(crate) fn walk(&self, path: &Path) -> io::Result<(u64, PathBuf)> {
        let mut rest: VecDeque<OsString> = path.iter().map(OsStr::to_os_string).collect();
        let (mut number, mut real) = root_of(path);
        let (mut above, mut links) = (Vec::new(), 0);
        while let Some(name) = rest.pop_front() {
            self.directory(number)?;
            match Path::new(&name).components().next() {
                Some(Component::Normal(_)) => {}
                Some(Component::ParentDir) => {
                    (number, real) = above.pop().unwrap_or((number, real));
                    continue;
                }
                _ => continue,
            }
            let next = self.names.get(number, &name).ok_or_else(|| system(libc::ENOENT))?;
            if let Kind::Link(target) = &self.inodes[&next].kind {
                links += 1;
                if links > LINKS_MAX {
                    return Err(system(libc::ELOOP));
                }
                let target = Path::new(target);
                if target.is_absolute() {
                    (number, real) = root_of(target);
                    above.clear();
                }
                target.iter().rev().for_each(|name| rest.push_front(name.to_os_string()));
                continue;
            }
            let beside = real.join(&name);
            above.push((std::mem::replace(&mut number, next), std::mem::replace(&mut real, beside)));
        }
        Ok((number, real))
    }

    /// The directory that a path leads to.
    pub(crate) fn directory_at(&self, path: &Path) -> io::Result<u64> {
        let (number, _) = self.walk(path)?;
        self.directory(number).map(|_| number)
    }

    /// The directory that holds a name, and the name.
    pub(crate) fn entry_at<'p>(&self, path: &'p Path) -> io::Result<(u64, &'p OsStr)> {
        let name = path.file_name().ok_or_else(|| system(libc::EISDIR))?;
        Ok((self.directory_at(path.parent().unwrap_or(Path::new("")))?, name))
    }

    /// Creates a directory and its parents, durably.
    pub(crate) fn make_dirs(&mut self, path: &Path) -> u64 {
        let (mut number, _) = root_of(path);
        for name in path.iter().filter(|name| *name != "/" && *name != ".") {
            number = self.names.get(number, name).unwrap_or_else(|| {
                let volume = self.inodes[&number].volume;
                let made = self.new_inode(Kind::Directory, volume, 0o755);
                self.names.link_durably(number, name, made);
                made
            });
        }
        number
    }

    /// The paths of all files and links, sorted.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut open: Vec<(u64, PathBuf)> = ROOTS.map(|(number, path)| (number, path.into())).into();
        let mut paths = Vec::new();
        while let Some((directory, path)) = open.pop() {
            for (name, number) in self.names.of(directory) {
                let path = path.join(name);
                match self.inodes[&number].kind {
                    Kind::Directory => open.push((number, path)),
                    _ => paths.push(path),
                }
            }
        }
        paths.sort();
        paths
    }

    /// The inode that a name in a directory leads to.
    pub(crate) fn lookup(&self, directory: u64, name: &OsStr) -> io::Result<u64> {
        self.directory(directory)?;
        match name == "." {
            true => Ok(directory),
            false => self.names.get(directory, name).ok_or_else(|| system(libc::ENOENT)),
        }
    }

    /// The directory with this name in a directory; an error for a link to one.
    pub(crate) fn lookup_directory(&self, directory: u64, name: &OsStr) -> io::Result<u64> {
        let number = self.lookup(directory, name)?;
        self.directory(number).map(|_| number)
    }

    /// The file with this name in a directory; an error for a link to one.
    pub(crate) fn lookup_file(&self, directory: u64, name: &OsStr) -> io::Result<u64> {
        let number = self.lookup(directory, name)?;
        match self.inodes[&number].kind {
            Kind::File => Ok(number),
            Kind::Directory => Err(system(libc::EISDIR)),
            Kind::Link(_) => Err(system(libc::ELOOP)),
        }
    }

    pub(crate) fn attributes(&self, number: u64) -> io::Result<Attributes> {
        let inode = self.inodes.get(&number).ok_or_else(|| system(libc::ENOENT))?;
        let Settings { mode, user, group, modified_ns } = inode.settings;
        Ok(Attributes {
            kind: match inode.kind {
                Kind::File => EntryKind::File,
                Kind::Directory => EntryKind::Directory,
                Kind::Link(_) => EntryKind::Link,
            },
            len: match &inode.kind {
                Kind::Link(target) => target.len() as u64,
                _ => inode.content.len(),
            },
            allocated: inode.content.allocated_bytes(),
            device: inode.volume as u64,
            inode: number,
            links: self.names.count_of(number),
            mode,
            user,
            group,
            modified_ns,
            changed_ns: i128::from(inode.changed),
        })
    }

    /// Creates an inode under a name that must be free.
    pub(crate) fn make(&mut self, directory: u64, name: &OsStr, kind: Kind, mode: u32) -> io::Result<u64> {
        let volume = self.directory(directory)?.volume;
        self.require_free(directory, name)?;
        let number = self.new_inode(kind, volume, mode);
        self.names.link(volume, directory, name, number);
        self.touch(directory);
        Ok(number)
    }

    fn require_free(&self, directory: u64, name: &OsStr) -> io::Result<()> {
        let taken = name == "." || self.names.get(directory, name).is_some();
        if taken { Err(system(libc::EEXIST)) } else { Ok(()) }
    }

    pub(crate) fn link(
        &mut self,
        (directory, name): (u64, &OsStr),
        (other, first): (u64, &OsStr),
    ) -> io::Result<()> {
        let volume = self.directory(directory)?.volume;
        let number = self.lookup(other, first)?;
        let inode = &self.inodes[&number];
        if inode.kind == Kind::Directory {
            return Err(system(libc::EPERM));
        }
        if inode.volume != volume {
            return Err(system(libc::EXDEV));
        }
        self.require_free(directory, name)?;
        self.names.link(volume, directory, name, number);
        self.touch(directory);
        self.change_now(number);
        Ok(())
    }

    pub(crate) fn rename_entry(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) -> io::Result<()> {
        let number = self.lookup(from.0, from.1)?;
        let (is_directory, volume) =
            (self.inodes[&number].kind == Kind::Directory, self.inodes[&number].volume);
        if self.directory(to.0)?.volume != volume {
            return Err(system(libc::EXDEV));
        }
        match self.names.get(to.0, to.1) {
            Some(there) if there == number => return Ok(()),
            Some(there) => match (is_directory, self.inodes[&there].kind == Kind::Directory) {
                (false, true) => return Err(system(libc::EISDIR)),
                (true, false) => return Err(system(libc::ENOTDIR)),
                (true, true) if self.names.of(there).next().is_some() => return Err(system(libc::ENOTEMPTY)),
                _ => {}
            },
            None => {}
        }
        self.names.rename(volume, from, to);
        self.touch(from.0);
        self.touch(to.0);
        self.collect();
        Ok(())
    }

    /// Removes a name: that of an empty directory if `is_directory`, otherwise of anything but a directory.
    pub(crate) fn unlink(&mut self, directory: u64, name: &OsStr, is_directory: bool) -> io::Result<()> {
        if name == "." {
            return Err(system(libc::EINVAL));
        }
        let number = self.lookup(directory, name)?;
        match (is_directory, self.inodes[&number].kind == Kind::Directory) {
            (true, false) => return Err(system(libc::ENOTDIR)),
            (false, true) => return Err(system(libc::EISDIR)),
            (true, true) if self.names.of(number).next().is_some() => return Err(system(libc::ENOTEMPTY)),
            _ => {}
        }
        self.names.unlink(self.inodes[&directory].volume, directory, name);
        self.touch(directory);
        self.change_now(number);
        self.collect();
        Ok(())
    }

    pub(crate) fn read_link(&self, directory: u64, name: &OsStr) -> io::Result<OsString> {
        match &self.inodes[&self.lookup(directory, name)?].kind {
            Kind::Link(target) => Ok(target.clone()),
            _ => Err(system(libc::EINVAL)),
        }
    }

    /// Sets the attributes, except the mode of a link.
    pub(crate) fn set(&mut self, number: u64, settings: Settings) -> io::Result<()> {
        let inode = self.inodes.get_mut(&number).ok_or_else(|| system(libc::ENOENT))?;
        let mode = if matches!(inode.kind, Kind::Link(_)) { inode.settings.mode } else { settings.mode };
        inode.settings = Settings { mode, ..settings };
        let (volume, settings) = (inode.volume, inode.settings);
        self.names.set(volume, number, settings);
        self.change_now(number);
        Ok(())
    }

    /// Makes everything on a directory's file system durable.
    pub(crate) fn sync_volume(&mut self, directory: u64) -> io::Result<()> {
        let volume = self.directory(directory)?.volume;
        self.medium()?;
        if self.faults.ignore_syncs {
            return Ok(());
        }
        for inode in self.inodes.values_mut().filter(|inode| inode.volume == volume) {
            inode.content.sync();
        }
        let set = self.names.settle(volume, self.names.waiting(volume));
        self.were_set(set);
        self.collect();
        Ok(())
    }
}

fn root_of(path: &Path) -> (u64, PathBuf) {
    let (number, real) = ROOTS[usize::from(!path.is_absolute())];
    (number, real.into())
}
