//! The simulated disk as a file system with directories.
//!
//! Model: a [`Dir`] holds the inode of a directory, so it stays the same if that is renamed. One process uses the disk,
//! as user 1000, so no other process holds a lock.
//! Non-goals: permissions, which are stored and not enforced.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::Sim;
use super::disk::{Disk, Kind, OWNER, of, system};
use super::names::Settings;
use crate::tree::{Attributes, Dir, EntryKind, Names, Tree, check_name, leads_out};
use crate::{Action, File, FileId, FileSystem, Result, os};

impl Sim {
    /// The same disk, as a file system with directories.
    pub fn tree(&self) -> Arc<dyn Tree> {
        Arc::new(SimTree { sim: self.clone(), io: self.io() })
    }
}

#[derive(Clone)]
struct SimTree {
    sim: Sim,
    io: Arc<dyn FileSystem>,
}

impl fmt::Debug for SimTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimTree")
    }
}

impl SimTree {
    fn dir(&self, number: u64, path: PathBuf) -> Arc<dyn Dir> {
        Arc::new(SimDir { tree: self.clone(), number, path })
    }
}

impl Tree for SimTree {
    fn io(&self) -> &Arc<dyn FileSystem> {
        &self.io
    }

    fn open_dir(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        let number = of(Action::Open, path, self.sim.ask(|disk| disk.directory_at(path)))?;
        Ok(self.dir(number, path.to_path_buf()))
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        of(Action::Open, path, self.sim.ask(|disk| disk.walk(path))).map(|(_, real)| real)
    }

    fn attributes(&self, file: &File) -> Result<Attributes> {
        of(Action::Stat, file.path(), self.sim.ask(|disk| disk.attributes(disk.inode_of(file.id()))))
    }

    fn set_attributes(&self, file: &File, attributes: &Attributes) -> Result<()> {
        let set = |disk: &mut Disk| disk.set(disk.inode_of(file.id()), settings_of(attributes));
        of(Action::Protect, file.path(), self.sim.at_boundary(set))
    }
}

fn settings_of(attributes: &Attributes) -> Settings {
    let Attributes { mode, user, group, modified_ns, .. } = *attributes;
    Settings { mode, user, group, modified_ns }
}

/// An open directory.
struct SimDir {
    tree: SimTree,
    number: u64,
    path: PathBuf,
}

impl fmt::Debug for SimDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDir({})", self.path.display())
    }
}

impl SimDir {
    /// Queries a name; not counted as a call.
    fn ask<T>(
        &self,
        action: Action,
        name: &OsStr,
        asks: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> Result<T> {
        check_name(action, &self.path, name)?;
        of(action, &self.path.join(name), self.tree.sim.ask(asks))
    }

    /// Counts a call and executes it on a name.
    fn change<T>(
        &self,
        action: Action,
        name: &OsStr,
        does: impl FnOnce(&mut Disk) -> io::Result<T>,
    ) -> Result<T> {
        check_name(action, &self.path, name)?;
        of(action, &self.path.join(name), self.tree.sim.at_boundary(does))
    }

    fn file(&self, name: &OsStr, opened: (FileId, bool)) -> File {
        File::of(&self.tree.io, &self.path.join(name), opened)
    }
}

impl Dir for SimDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn attributes(&self) -> Result<Attributes> {
        of(Action::Stat, &self.path, self.tree.sim.ask(|disk| disk.attributes(self.number)))
    }

    fn created_ns(&self) -> i128 {
        // Inode numbers are never reused, and increase with time.
        i128::from(self.number)
    }

    fn try_lock(&self) -> bool {
        true
    }

    fn names(&self) -> Result<Box<dyn Names>> {
        let all = |disk: &mut Disk| -> io::Result<Vec<_>> {
            let names = disk.names.of(self.number);
            names.map(|(name, number)| Ok((name.clone(), Some(disk.attributes(number)?.kind)))).collect()
        };
        let names = of(Action::Open, &self.path, self.tree.sim.ask(all))?;
        Ok(Box::new(SimNames { names: names.into_iter() }))
    }

    fn attributes_of(&self, name: &OsStr) -> Result<Attributes> {
        self.ask(Action::Stat, name, |disk| disk.attributes(disk.lookup(self.number, name)?))
    }

    fn open_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>> {
        let number = self.ask(Action::Open, name, |disk| disk.lookup_directory(self.number, name))?;
        Ok(self.tree.dir(number, if name == "." { self.path.clone() } else { self.path.join(name) }))
    }

    fn open_below(&self, path: &Path) -> Result<Arc<dyn Dir>> {
        let whole = self.path.join(path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(leads_out(Action::Open, &whole));
        }
        let walk =
            |disk: &mut Disk| path.iter().try_fold(self.number, |dir, name| disk.lookup_directory(dir, name));
        let number = of(Action::Open, &whole, self.tree.sim.ask(walk))?;
        Ok(self.tree.dir(number, whole))
    }

    fn reopen_dir(&self, name: &OsStr) -> Result<Arc<dyn Dir>> {
        let there = self.attributes_of(name)?;
        of(Action::Open, &self.path.join(name), check_own(&there, None))?;
        self.open_dir(name)
    }

    fn make_dir(&self, name: &OsStr) -> Result<bool> {
        self.change(Action::Create, name, |disk| match disk.make(self.number, name, Kind::Directory, 0o700) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|_| true),
        })
    }

    fn open_file(&self, name: &OsStr, direct: bool) -> Result<File> {
        let path = self.path.join(name);
        let opened = self.change(Action::Open, name, |disk| {
            let inode = disk.lookup_file(self.number, name)?;
            let is_cached = disk.cached.get(&path).is_some_and(|share| *share > 0.5);
            Ok(disk.hand_out(inode, &path, direct && !is_cached, (true, false)))
        })?;
        Ok(self.file(name, opened))
    }

    fn create_file(&self, name: &OsStr, mode: u32, direct: bool) -> Result<File> {
        let opened = self.change(Action::Create, name, |disk| {
            let inode = disk.make(self.number, name, Kind::File, mode)?;
            Ok(disk.hand_out(inode, &self.path.join(name), direct, (true, true)))
        })?;
        Ok(self.file(name, opened))
    }

    fn reopen_file(&self, name: &OsStr, direct: bool, heir: Option<u32>) -> Result<File> {
        let opened = self.change(Action::Open, name, |disk| {
            check_own(&disk.attributes(disk.lookup(self.number, name)?)?, heir)?;
            let inode = disk.lookup_file(self.number, name)?;
            Ok(disk.hand_out(inode, &self.path.join(name), direct, (true, true)))
        })?;
        Ok(self.file(name, opened))
    }

    fn copy_permissions(&self, file: &File, name: &OsStr) -> Result<()> {
        self.change(Action::Protect, name, |disk| {
            let number = disk.inode_of(file.id());
            let ours = settings_of(&disk.attributes(number)?);
            let there = match disk.lookup(self.number, name) {
                Ok(there) => Some(disk.attributes(there)?).filter(|there| there.kind == EntryKind::File),
                Err(_) => None,
            };
            let like = there.map_or(Settings { mode: 0o644, ..ours }, |there| settings_of(&there));
            disk.set(number, Settings { modified_ns: ours.modified_ns, mode: like.mode & 0o777, ..like })
        })
    }

    fn read_link(&self, name: &OsStr) -> Result<OsString> {
        self.ask(Action::Read, name, |disk| disk.read_link(self.number, name))
    }

    fn make_link(&self, name: &OsStr, target: &OsStr) -> Result<()> {
        let kind = Kind::Link(target.to_os_string());
        self.change(Action::Create, name, |disk| disk.make(self.number, name, kind, 0o777)).map(drop)
    }

    fn link(&self, name: &OsStr, other: &Arc<dyn Dir>, first: &OsStr) -> Result<()> {
        check_name(Action::Create, other.path(), first)?;
        let other: &dyn Any = &**other;
        let other =
            other.downcast_ref::<SimDir>().filter(|other| Arc::ptr_eq(&other.tree.sim.0, &self.tree.sim.0));
        self.change(Action::Create, name, |disk| match other {
            Some(other) => disk.link((self.number, name), (other.number, first)),
            None => Err(system(libc::EXDEV)),
        })
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        check_name(Action::Rename, &self.path, to)?;
        self.change(Action::Rename, from, |disk| disk.rename_entry((self.number, from), (self.number, to)))
    }

    fn remove(&self, name: &OsStr) -> Result<()> {
        self.change(Action::Remove, name, |disk| disk.unlink(self.number, name, false))
    }

    fn remove_dir(&self, name: &OsStr) -> Result<()> {
        self.change(Action::Remove, name, |disk| disk.unlink(self.number, name, true))
    }

    fn set_attributes(&self, attributes: &Attributes) -> Result<()> {
        let settings = settings_of(attributes);
        of(Action::Protect, &self.path, self.tree.sim.at_boundary(|disk| disk.set(self.number, settings)))
    }

    fn set_link_attributes(&self, name: &OsStr, attributes: &Attributes) -> Result<()> {
        let settings = settings_of(attributes);
        self.change(Action::Protect, name, |disk| disk.set(disk.lookup(self.number, name)?, settings))
    }

    fn sync(&self) -> Result<()> {
        of(Action::Sync, &self.path, self.tree.sim.at_boundary(|disk| disk.sync_names(self.number)))
    }

    fn sync_file_system(&self) -> Result<()> {
        of(Action::Sync, &self.path, self.tree.sim.at_boundary(|disk| disk.sync_volume(self.number)))
    }
}

/// An error if an earlier simulated process did not create and leave this file.
fn check_own(there: &Attributes, heir: Option<u32>) -> io::Result<()> {
    let is_ours = there.user == OWNER || Some(there.user) == heir;
    match there.kind {
        EntryKind::Directory if is_ours => Ok(()),
        EntryKind::File if is_ours && there.links == 1 => Ok(()),
        _ => Err(os::not_ours("something else")),
    }
}

/// The names of a directory, as they were when it was listed.
struct SimNames {
    names: std::vec::IntoIter<(OsString, Option<EntryKind>)>,
}

impl Names for SimNames {
    fn some(&mut self, count: usize) -> Result<Vec<(OsString, Option<EntryKind>)>> {
        Ok(self.names.by_ref().take(count).collect())
    }
}
