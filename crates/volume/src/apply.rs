//! Changes of the manager's state, each within one transaction.
//!
//! Invariant: whatever rename(2), link(2), unlink(2) and rmdir(2) refuse is refused here, with the same error number.
//! Non-goals: the transaction itself, and access control.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::{Connection, params};

use crate::layout::Layout;
use crate::manager::{
    CUT, Change, Edit, Inode, Kind, NAME_BYTES_MAX, New, Place, ROOT, Renaming, Written, cuts,
};
use crate::{Error, attributes, rows};

/// One change.
pub(crate) struct Applying<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) now_ns: i64,
    pub(crate) slots: u32,
    /// The number for a new inode.
    pub(crate) number: u64,
}

/// Why a change was not carried out.
pub(crate) enum Failed {
    /// The error number that a system call would return, and its subject.
    System(i32, String),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Failed {
    fn from(e: rusqlite::Error) -> Failed {
        Failed::Database(e)
    }
}

impl Failed {
    pub(crate) fn into_error(self, database: &Path) -> Error {
        match self {
            Failed::System(errno, about) => Error::System(errno, about),
            Failed::Database(e) => Error::Database(database.into(), e),
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failed>;

fn refuse<T>(errno: i32, place: &Place) -> Result<T> {
    Err(Failed::System(errno, String::from_utf8_lossy(&place.name).into_owned()))
}

fn grow(inode: &mut Inode, written: &Written) {
    if cuts(inode.generation) == cuts(written.generation) {
        inode.size = inode.size.max(written.size);
        inode.set_modified(written.modified_ns);
    }
}

impl Applying<'_> {
    pub(crate) fn apply(&self, change: &Change) -> Result<Inode> {
        match change {
            Change::Create(place, new) => self.create(place, new),
            Change::Link(inode, place) => self.link(*inode, place),
            Change::Remove(place, is_directory) => self.remove(place, *is_directory),
            Change::Rename(from, to, Renaming::Exchange) => self.exchange(from, to),
            Change::Rename(from, to, how) => self.rename(from, to, *how),
            Change::Set(inode, edit) => self.set(*inode, *edit),
            Change::Accessed(inode, accessed_ns) => {
                self.note(*inode, |inode| inode.accessed_ns = *accessed_ns)
            }
            Change::SetPolicy(inode, policy) => self.edit(*inode, |inode| inode.policy = Some(*policy)),
            Change::SetAttribute(inode, name, value) => self.set_attribute(*inode, name, value.as_deref()),
            Change::Unsettle(inode) => self.note(*inode, |inode| inode.unsettled = true),
            Change::Grow(written) => self.note(written.inode, |inode| {
                grow(inode, written);
                inode.unsynced |= written.strips;
            }),
            Change::Settle(written, is_shared) => self.note(written.inode, |inode| {
                grow(inode, written);
                inode.strips |= written.strips;
                inode.unsynced = if *is_shared { inode.unsynced & !written.strips } else { 0 };
                inode.unsettled = *is_shared;
            }),
            Change::Resize(inode, size, modified_ns) => self.edit(*inode, |inode| {
                if *size < inode.size {
                    inode.generation += CUT;
                    inode.cut = Some(inode.cut.map_or(*size, |cut| cut.min(*size)));
                }
                (inode.size, inode.modified_ns) = (*size, *modified_ns);
            }),
            Change::Cut(inode, generation) => self.note(*inode, |inode| {
                if cuts(inode.generation) == cuts(*generation) {
                    inode.cut = None;
                }
            }),
            Change::Stale(inode, copy, strips) => {
                self.falls_behind(*inode, *copy, *strips)?;
                self.note(*inode, |inode| {
                    let stale = &mut inode.stale[*copy as usize];
                    if *stale & strips != *strips {
                        *stale |= strips;
                        inode.generation += 1;
                    }
                })
            }
            Change::Current(inode, generation, copy, strips) => self.note(*inode, |inode| {
                if inode.generation == *generation {
                    inode.stale[*copy as usize] &= !strips;
                    inode.generation += 1;
                }
            }),
            Change::Raise(inode, _) => self.note(*inode, |inode| inode.generation += 1),
            Change::Forget(inode) => self.forget(*inode),
            Change::Slot(slot, directory) => {
                let row = params![slot, directory.as_os_str().as_bytes()];
                self.connection.execute("INSERT OR REPLACE INTO slots VALUES (?, ?)", row)?;
                self.inode(ROOT)
            }
        }
    }

    fn set(&self, inode: u64, edit: Edit) -> Result<Inode> {
        let Edit { mode, user, group, accessed_ns, modified_ns } = edit;
        if let Some(mode) = mode {
            self.follow_mode(inode, mode)?;
        }
        self.edit(inode, |inode| {
            inode.mode = mode.map_or(inode.mode, |mode| mode & 0o7777);
            inode.user = user.unwrap_or(inode.user);
            inode.group = group.unwrap_or(inode.group);
            inode.accessed_ns = accessed_ns.unwrap_or(inode.accessed_ns);
            inode.modified_ns = modified_ns.unwrap_or(inode.modified_ns);
        })
    }

    /// Changes an inode without changing its time of change (`ctime`).
    fn note(&self, inode: u64, note: impl FnOnce(&mut Inode)) -> Result<Inode> {
        let found = self.inode(inode)?;
        let mut noted = found.clone();
        note(&mut noted);
        if noted != found {
            rows::update(self.connection, &found, &noted)?;
        }
        Ok(noted)
    }

    /// Notes since when the stores of these copies have missed writes.
    fn falls_behind(&self, inode: u64, copy: u32, strips: u64) -> Result<()> {
        let Some(layout) = self.inode(inode)?.layout else { return Ok(()) };
        if rows::stale(self.connection, 0, 1)?.is_empty() {
            self.connection.execute("DELETE FROM behind", [])?;
        }
        let insert = "INSERT OR IGNORE INTO behind VALUES (?, ?)";
        for index in (0..layout.width).filter(|index| strips >> index & 1 == 1) {
            let row = params![layout.slot(index, copy), self.now_ns];
            self.connection.prepare_cached(insert)?.execute(row)?;
        }
        Ok(())
    }

    pub(crate) fn edit(&self, inode: u64, edit: impl FnOnce(&mut Inode)) -> Result<Inode> {
        self.touch(self.inode(inode)?, edit)
    }

    /// Changes an inode, and its time of change.
    fn touch(&self, before: Inode, edit: impl FnOnce(&mut Inode)) -> Result<Inode> {
        let mut inode = before.clone();
        edit(&mut inode);
        inode.changed_ns = self.now_ns;
        rows::update(self.connection, &before, &inode)?;
        Ok(inode)
    }

    pub(crate) fn inode(&self, inode: u64) -> Result<Inode> {
        let found = rows::by_id(self.connection, inode)?;
        found.ok_or_else(|| Failed::System(libc::ENOENT, format!("inode {inode}")))
    }

    fn existing(&self, place: &Place) -> Result<Inode> {
        match rows::lookup(self.connection, place)? {
            Some(found) => Ok(found),
            None => refuse(libc::ENOENT, place),
        }
    }

    /// The directory of a name that may be made.
    fn directory(&self, place: &Place) -> Result<Inode> {
        let name = &place.name[..];
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return refuse(libc::EINVAL, place);
        }
        if name.len() > NAME_BYTES_MAX {
            return refuse(libc::ENAMETOOLONG, place);
        }
        match self.inode(place.directory)? {
            directory if directory.kind != Kind::Directory => refuse(libc::ENOTDIR, place),
            // It was removed while a client used it.
            directory if directory.links == 0 => refuse(libc::ENOENT, place),
            directory => Ok(directory),
        }
    }

    fn create(&self, place: &Place, new: &New) -> Result<Inode> {
        let directory = self.directory(place)?;
        if rows::lookup(self.connection, place)?.is_some() {
            return refuse(libc::EEXIST, place);
        }
        let mut made = rows::inode(self.number, new, self.now_ns);
        let policy = directory.policy.unwrap_or_default();
        match new.kind {
            Kind::File => {
                let first = (self.number % u64::from(self.slots)) as u32;
                made.layout = Some(Layout::of(&policy, self.slots, first));
                // Most files are written at once, which then needs no change of its own.
                made.unsettled = true;
            }
            Kind::Directory => (made.policy, made.links) = (Some(policy), 2),
            _ => {}
        }
        self.inherit(directory.id, &mut made, new.umask)?;
        if directory.mode & libc::S_ISGID != 0 {
            made.group = directory.group;
            made.mode |= if new.kind == Kind::Directory { libc::S_ISGID } else { 0 };
        }
        rows::put(self.connection, &made)?;
        self.name(place, &made)?;
        self.count_directories(directory, i64::from(new.kind == Kind::Directory))?;
        Ok(made)
    }

    fn link(&self, inode: u64, place: &Place) -> Result<Inode> {
        let directory = self.directory(place)?;
        if rows::lookup(self.connection, place)?.is_some() {
            return refuse(libc::EEXIST, place);
        }
        let found = self.inode(inode)?;
        match found.kind {
            Kind::Directory => return refuse(libc::EPERM, place),
            _ if found.links == 0 => return refuse(libc::ENOENT, place),
            _ => self.name(place, &found)?,
        }
        self.count_directories(directory, 0)?;
        self.touch(found, |inode| inode.links += 1)
    }

    fn remove(&self, place: &Place, is_directory: bool) -> Result<Inode> {
        let directory = self.directory(place)?;
        let found = self.existing(place)?;
        match (found.kind == Kind::Directory, is_directory) {
            (true, false) => return refuse(libc::EISDIR, place),
            (false, true) => return refuse(libc::ENOTDIR, place),
            _ => {}
        }
        self.unname(place)?;
        let gone = self.drop_name(found, place)?;
        self.count_directories(directory, -i64::from(is_directory))?;
        Ok(gone)
    }

    /// Exchanges the inodes of two names.
    fn exchange(&self, from: &Place, to: &Place) -> Result<Inode> {
        let (source, dest) = (self.directory(from)?, self.directory(to)?);
        let (first, second) = (self.existing(from)?, self.existing(to)?);
        let is_directory = |inode: &Inode| inode.kind == Kind::Directory;
        for (moved, above) in [(&first, &dest), (&second, &source)] {
            if is_directory(moved) && self.lies_in(above, moved.id)? {
                return refuse(libc::EINVAL, to);
            }
        }
        self.unname(from)?;
        self.unname(to)?;
        self.name(from, &second)?;
        self.name(to, &first)?;
        let more = i64::from(is_directory(&second)) - i64::from(is_directory(&first));
        self.count_directories(source, more)?;
        let dest = self.inode(dest.id)?;
        self.count_directories(dest, -more)?;
        self.touch(second, |_| {})?;
        self.touch(first, |_| {})
    }

    fn rename(&self, from: &Place, to: &Place, how: Renaming) -> Result<Inode> {
        let (source, dest) = (self.directory(from)?, self.directory(to)?);
        let moved = self.existing(from)?;
        let replaced = rows::lookup(self.connection, to)?;
        if replaced.is_some() && how == Renaming::NoReplace {
            return refuse(libc::EEXIST, to);
        }
        if replaced.as_ref().is_some_and(|replaced| replaced.id == moved.id) {
            return Ok(moved);
        }
        let is_directory = moved.kind == Kind::Directory;
        if is_directory && self.lies_in(&dest, moved.id)? {
            return refuse(libc::EINVAL, to);
        }
        let replaced = match replaced {
            None => None,
            Some(found) => {
                match (is_directory, found.kind == Kind::Directory) {
                    (true, false) => return refuse(libc::ENOTDIR, to),
                    (false, true) => return refuse(libc::EISDIR, to),
                    _ => {}
                }
                self.unname(to)?;
                Some(self.drop_name(found, to)?)
            }
        };
        self.unname(from)?;
        self.name(to, &moved)?;
        self.count_directories(source, -i64::from(is_directory))?;
        let replaced_directory = replaced.as_ref().is_some_and(|found| found.kind == Kind::Directory);
        // The source directory may be the same one, so it is read again.
        let dest = self.inode(dest.id)?;
        self.count_directories(dest, i64::from(is_directory) - i64::from(replaced_directory))?;
        let moved = self.touch(moved, |_| {})?;
        Ok(replaced.unwrap_or(moved))
    }

    /// Whether a directory is the inode `above`, or lies below it.
    fn lies_in(&self, directory: &Inode, above: u64) -> Result<bool> {
        let mut id = directory.id;
        while id != ROOT {
            if id == above {
                return Ok(true);
            }
            let text = "SELECT above FROM parents WHERE directory = ?";
            id = self.connection.prepare_cached(text)?.query_row([id as i64], |row| row.get::<_, i64>(0))?
                as u64;
        }
        Ok(id == above)
    }

    /// Removes one name from an inode.
    fn drop_name(&self, inode: Inode, place: &Place) -> Result<Inode> {
        let is_directory = inode.kind == Kind::Directory;
        if is_directory {
            let text = "SELECT EXISTS (SELECT 1 FROM names WHERE directory = ?)";
            let mut statement = self.connection.prepare_cached(text)?;
            if statement.query_row([inode.id as i64], |row| row.get(0))? {
                return refuse(libc::ENOTEMPTY, place);
            }
        }
        self.touch(inode, |inode| inode.links = if is_directory { 0 } else { inode.links - 1 })
    }

    fn name(&self, place: &Place, inode: &Inode) -> Result<()> {
        let row = params![place.directory as i64, place.name, inode.id as i64];
        self.connection.prepare_cached("INSERT INTO names VALUES (?, ?, ?)")?.execute(row)?;
        if inode.kind == Kind::Directory {
            let text = "INSERT OR REPLACE INTO parents VALUES (?, ?)";
            self.connection.prepare_cached(text)?.execute([inode.id as i64, place.directory as i64])?;
        }
        Ok(())
    }

    fn unname(&self, place: &Place) -> Result<()> {
        let text = "DELETE FROM names WHERE directory = ? AND name = ?";
        self.connection.prepare_cached(text)?.execute(params![place.directory as i64, place.name])?;
        Ok(())
    }

    /// Notes that names in a directory changed, and how many subdirectories it gained: `..` in each is a name of it.
    fn count_directories(&self, directory: Inode, more: i64) -> Result<()> {
        let links = directory.links.checked_add_signed(more).expect("a directory has the names that it has");
        let changed = |inode: &mut Inode| (inode.links, inode.modified_ns) = (links, self.now_ns);
        self.touch(directory, changed).map(drop)
    }

    fn forget(&self, inode: u64) -> Result<Inode> {
        let found = self.inode(inode)?;
        assert_eq!(found.links, 0, "an inode that has names is not forgotten");
        attributes::forget(self.connection, inode)?;
        self.connection.prepare_cached("DELETE FROM inodes WHERE id = ?")?.execute([inode as i64])?;
        if found.kind == Kind::Directory {
            let text = "DELETE FROM parents WHERE directory = ?";
            self.connection.prepare_cached(text)?.execute([inode as i64])?;
        }
        Ok(found)
    }
}
