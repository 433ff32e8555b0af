//! A volume as a file system with directories, for transfers.
//!
//! Model: a directory is the number of its inode, so renaming it does not change it.
//! Non-goals: locks and marks. One process has a volume open, and its directories are its user's alone, so no other
//! process holds a lock or plants a name.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use thalweg_io::extended::{Extended, is_copied};
use thalweg_io::tree::{Attributes, Dir, EntryKind, Names, Tree};
use thalweg_io::{Action, File, FileSystem, Result as IoResult};

use crate::fs::{DEVICE, VolumeFs, told};
use crate::manager::{Change, Edit, Entry, Inode, Kind, Place, Renaming};
use crate::path::SCHEME;
use crate::{Error, Result};

/// A smaller file is read whole, without asking whether it has holes.
const HOLES_BYTES_MIN: u64 = 256 << 10;

impl VolumeFs {
    /// This volume as a file system with directories.
    pub fn tree(&self) -> Arc<dyn Tree> {
        Arc::new(VolumeTree { fs: self.clone(), io: Arc::new(self.clone()) })
    }
}

#[derive(Clone)]
struct VolumeTree {
    fs: VolumeFs,
    io: Arc<dyn FileSystem>,
}

impl fmt::Debug for VolumeTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fs.fmt(f)
    }
}

impl VolumeTree {
    fn dir(&self, inode: u64, path: PathBuf) -> Arc<dyn Dir> {
        Arc::new(VolumeDir { tree: self.clone(), inode, path })
    }

    fn set(&self, inode: u64, attributes: &Attributes) -> Result<()> {
        let Attributes { mode, user, group, modified_ns, .. } = *attributes;
        let end = if modified_ns < 0 { i64::MIN } else { i64::MAX };
        let modified_ns = i64::try_from(modified_ns).unwrap_or(end);
        let (mode, user, group, modified_ns) = (Some(mode), Some(user), Some(group), Some(modified_ns));
        self.fs.volume().set(inode, Edit { mode, user, group, modified_ns, ..Edit::default() }).map(drop)
    }

    fn extended(&self, inode: u64) -> (Extended, Vec<String>) {
        match self.fs.volume().attributes_of(inode) {
            Ok(mut all) => {
                all.retain(|(name, _)| is_copied(name));
                (Extended::of(all).expect("others were passed over"), Vec::new())
            }
            Err(_) => (Extended::default(), vec!["its extended attributes".into()]),
        }
    }

    /// What is new here has inherited no list: a volume enforces none for this process.
    fn set_extended(&self, inode: u64, extended: &Extended) -> Vec<String> {
        let cannot = |(name, value): &(Vec<u8>, Vec<u8>)| {
            let set = self.fs.volume().set_attribute_of(inode, name, Some(value));
            set.is_err().then(|| String::from_utf8_lossy(name).into_owned())
        };
        extended.all().iter().filter_map(cannot).collect()
    }
}

fn kind_of(inode: &Inode) -> EntryKind {
    match inode.kind {
        Kind::File => EntryKind::File,
        Kind::Directory => EntryKind::Directory,
        Kind::Link => EntryKind::Link,
        _ => EntryKind::Special,
    }
}

/// Only stores know how much of a file is holes, so a large file is reported as if all of it might be.
fn attributes_of(inode: &Inode) -> Attributes {
    let is_large = inode.kind == Kind::File && inode.size >= HOLES_BYTES_MIN;
    Attributes {
        kind: kind_of(inode),
        len: inode.size,
        allocated: if is_large { 0 } else { inode.size },
        device: DEVICE,
        inode: inode.id,
        links: inode.links,
        mode: inode.mode,
        user: inode.user,
        group: inode.group,
        modified_ns: i128::from(inode.modified_ns),
        changed_ns: i128::from(inode.changed_ns),
    }
}

impl Tree for VolumeTree {
    fn io(&self) -> &Arc<dyn FileSystem> {
        &self.io
    }

    fn open_dir(&self, path: &Path) -> IoResult<Arc<dyn Dir>> {
        // There is nothing above the root.
        let inside = self.fs.inside(path).map_err(|_| Error::system(libc::ENOENT, ""));
        let found = inside.and_then(|inside| directory(self.fs.volume().stat(&inside)?));
        found.map(|found| self.dir(found.id, path.into())).map_err(|why| told(Action::Open, path, why))
    }

    fn canonical(&self, path: &Path) -> IoResult<PathBuf> {
        let found = self.fs.inside(path).and_then(|inside| self.fs.volume().canonical(&inside));
        let inside = found.map_err(|why| told(Action::Open, path, why))?;
        let mut whole = OsString::from(format!("{SCHEME}{}", self.fs.name()));
        whole.push(inside);
        Ok(whole.into())
    }

    fn attributes(&self, file: &File) -> IoResult<Attributes> {
        let found = self.fs.file(file.id()).stat();
        found.map(|found| attributes_of(&found)).map_err(|why| told(Action::Stat, file.path(), why))
    }

    fn set_attributes(&self, file: &File, attributes: &Attributes) -> IoResult<()> {
        let inode = self.fs.file(file.id()).inode();
        self.set(inode, attributes).map_err(|why| told(Action::Protect, file.path(), why))
    }

    fn extended(&self, file: &File) -> (Extended, Vec<String>) {
        VolumeTree::extended(self, self.fs.file(file.id()).inode())
    }

    fn set_extended(&self, file: &File, extended: &Extended) -> Vec<String> {
        VolumeTree::set_extended(self, self.fs.file(file.id()).inode(), extended)
    }
}

fn directory(found: Inode) -> Result<Inode> {
    match found.kind {
        Kind::Directory => Ok(found),
        _ => Err(Error::system(libc::ENOTDIR, "")),
    }
}

/// An open directory.
#[derive(Debug)]
struct VolumeDir {
    tree: VolumeTree,
    inode: u64,
    path: PathBuf,
}

impl VolumeDir {
    fn place(&self, name: &OsStr) -> Place {
        Place { directory: self.inode, name: name.as_bytes().to_vec() }
    }

    /// The inode of a name; `.` is this directory.
    fn lookup(&self, name: &OsStr) -> Result<Inode> {
        let volume = self.tree.fs.volume();
        let found = match name.as_bytes() {
            b"." => Some(volume.manager.inode(self.inode)?),
            b"" | b".." => return Err(Error::system(libc::EINVAL, name.to_string_lossy())),
            _ => volume.manager.lookup(&self.place(name))?,
        };
        let none = || Error::system(libc::ENOENT, name.to_string_lossy());
        found.map(|found| volume.with_open(found)).ok_or_else(none)
    }

    fn failed(&self, action: Action, name: &OsStr) -> impl Fn(Error) -> thalweg_io::Error {
        move |why| told(action, &self.path.join(name), why)
    }

    fn keep(&self, found: &Inode, name: &OsStr) -> Result<File> {
        let path = self.path.join(name);
        let file = self.tree.fs.volume().open_inode(found, &path)?;
        Ok(File::of(&self.tree.io, &path, (self.tree.fs.keep(file), false)))
    }
}

impl Dir for VolumeDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn attributes(&self) -> IoResult<Attributes> {
        self.attributes_of(OsStr::new("."))
    }

    fn created_ns(&self) -> i128 {
        // Inode numbers are never reused, and ascend in the order of creation.
        i128::from(self.inode)
    }

    fn try_lock(&self) -> bool {
        true
    }

    fn names(&self) -> IoResult<Box<dyn Names>> {
        let names = self.tree.fs.volume().manager.names(self.inode);
        let names = names.map_err(|why| told(Action::Open, &self.path, why))?;
        Ok(Box::new(VolumeNames(names.into_iter())))
    }

    fn attributes_of(&self, name: &OsStr) -> IoResult<Attributes> {
        self.lookup(name).map(|found| attributes_of(&found)).map_err(self.failed(Action::Stat, name))
    }

    fn open_dir(&self, name: &OsStr) -> IoResult<Arc<dyn Dir>> {
        let found = self.lookup(name).and_then(directory).map_err(self.failed(Action::Open, name))?;
        Ok(self.tree.dir(found.id, if name == "." { self.path.clone() } else { self.path.join(name) }))
    }

    fn open_below(&self, path: &Path) -> IoResult<Arc<dyn Dir>> {
        let mut below = self.tree.dir(self.inode, self.path.clone());
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(self.failed(Action::Open, path.as_os_str())(Error::system(libc::EINVAL, "")));
            };
            below = below.open_dir(name)?;
        }
        Ok(below)
    }

    fn reopen_dir(&self, name: &OsStr) -> IoResult<Arc<dyn Dir>> {
        self.open_dir(name)
    }

    fn make_dir(&self, name: &OsStr) -> IoResult<bool> {
        if name == "." {
            return Ok(false);
        }
        match self.tree.fs.volume().make_own(self.place(name), Kind::Directory, 0o700, b"") {
            Err(Error::System(libc::EEXIST, _)) => Ok(false),
            made => made.map(|_| true).map_err(self.failed(Action::Create, name)),
        }
    }

    fn open_file(&self, name: &OsStr, _: bool) -> IoResult<File> {
        let opened = self.lookup(name).and_then(|found| self.keep(&found, name));
        opened.map_err(self.failed(Action::Open, name))
    }

    fn create_file(&self, name: &OsStr, mode: u32, _: bool) -> IoResult<File> {
        let made = self.tree.fs.volume().make_own(self.place(name), Kind::File, mode, b"");
        made.and_then(|made| self.keep(&made, name)).map_err(self.failed(Action::Create, name))
    }

    fn reopen_file(&self, name: &OsStr, _: bool, _: Option<u32>) -> IoResult<File> {
        let alone = |found: Inode| match found.links {
            1 => Ok(found),
            _ => Err(Error::system(libc::EMLINK, name.to_string_lossy())),
        };
        let opened = self.lookup(name).and_then(alone).and_then(|found| self.keep(&found, name));
        opened.map_err(self.failed(Action::Open, name))
    }

    fn copy_permissions(&self, file: &File, name: &OsStr) -> IoResult<()> {
        let edit = match self.lookup(name) {
            Ok(there) => {
                let (mode, user, group) = (Some(there.mode), Some(there.user), Some(there.group));
                Edit { mode, user, group, ..Edit::default() }
            }
            Err(why) if why.is_not_found() => Edit { mode: Some(0o644), ..Edit::default() },
            Err(why) => return Err(self.failed(Action::Protect, name)(why)),
        };
        let inode = self.tree.fs.file(file.id()).inode();
        let set = self.tree.fs.volume().set(inode, edit);
        set.map(drop).map_err(|why| told(Action::Protect, file.path(), why))
    }

    fn read_link(&self, name: &OsStr) -> IoResult<OsString> {
        let found = self.lookup(name).and_then(|found| match found.kind {
            Kind::Link => Ok(OsString::from_vec(found.target)),
            _ => Err(Error::system(libc::EINVAL, "")),
        });
        found.map_err(self.failed(Action::Read, name))
    }

    fn make_link(&self, name: &OsStr, target: &OsStr) -> IoResult<()> {
        let made = self.tree.fs.volume().make_own(self.place(name), Kind::Link, 0o777, target.as_bytes());
        made.map(drop).map_err(self.failed(Action::Create, name))
    }

    fn link(&self, name: &OsStr, other: &Arc<dyn Dir>, first: &OsStr) -> IoResult<()> {
        let other: &dyn Any = &**other;
        let other =
            other.downcast_ref::<VolumeDir>().filter(|other| other.tree.fs.name() == self.tree.fs.name());
        let linked = match other {
            Some(other) => other.lookup(first).and_then(|found| {
                self.tree.fs.volume().manager.change(&Change::Link(found.id, self.place(name)))
            }),
            None => Err(Error::system(libc::EXDEV, "")),
        };
        linked.map(drop).map_err(self.failed(Action::Create, name))
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> IoResult<()> {
        let renamed = self.tree.fs.volume().rename_at(self.place(from), self.place(to), Renaming::Replace);
        renamed.map(drop).map_err(self.failed(Action::Rename, from))
    }

    fn remove(&self, name: &OsStr) -> IoResult<()> {
        let removed = self.tree.fs.volume().remove_at(self.place(name), false);
        removed.map(drop).map_err(self.failed(Action::Remove, name))
    }

    fn remove_dir(&self, name: &OsStr) -> IoResult<()> {
        let removed = self.tree.fs.volume().remove_at(self.place(name), true);
        removed.map(drop).map_err(self.failed(Action::Remove, name))
    }

    fn set_attributes(&self, attributes: &Attributes) -> IoResult<()> {
        self.tree.set(self.inode, attributes).map_err(|why| told(Action::Protect, &self.path, why))
    }

    fn extended(&self) -> (Extended, Vec<String>) {
        VolumeTree::extended(&self.tree, self.inode)
    }

    fn set_extended(&self, extended: &Extended) -> Vec<String> {
        VolumeTree::set_extended(&self.tree, self.inode, extended)
    }

    fn set_link_attributes(&self, name: &OsStr, attributes: &Attributes) -> IoResult<()> {
        let set = self.lookup(name).and_then(|found| self.tree.set(found.id, attributes));
        set.map_err(self.failed(Action::Protect, name))
    }

    fn sync(&self) -> IoResult<()> {
        self.tree.fs.volume().sync_names().map_err(|why| told(Action::Sync, &self.path, why))
    }

    fn sync_file_system(&self) -> IoResult<()> {
        self.tree.fs.volume().sync().map_err(|why| told(Action::Sync, &self.path, why))
    }
}

/// The names that are left to return.
struct VolumeNames(std::vec::IntoIter<Entry>);

impl Names for VolumeNames {
    fn some(&mut self, count: usize) -> IoResult<Vec<(OsString, Option<EntryKind>)>> {
        let some = self.0.by_ref().take(count);
        Ok(some.map(|Entry { name, inode }| (OsString::from_vec(name), Some(kind_of(&inode)))).collect())
    }
}
