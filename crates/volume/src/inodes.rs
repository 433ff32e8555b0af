//! A volume by inode numbers and names in directories, for clients that keep track of inodes: mounts.
//!
//! Invariant: for an open file, the current size and time are returned.
//! Non-goals: paths; see volume.rs.

use std::path::Path;
use std::sync::Arc;

use crate::attributes::CAPABILITY;
use crate::file::{File, Node};
use crate::hint::{HINT_ATTRIBUTE, Hint};
use crate::manager::{Change, Entry, Inode, NAME_BYTES_MAX, New, Place, Renaming};
use crate::stores::Target;
use crate::volume::Volume;
use crate::{Error, Result};

/// For a shorter file, which is soon read whole, the hint is not requested from the manager.
const HINT_BYTES_MIN: u64 = 128 << 10;

impl Volume {
    /// The inode of a name.
    pub fn lookup(&self, place: &Place) -> Result<Inode> {
        let about = || String::from_utf8_lossy(&place.name).into_owned();
        if place.name.len() > NAME_BYTES_MAX {
            return Err(Error::system(libc::ENAMETOOLONG, about()));
        }
        let found = self.manager.lookup(place)?.ok_or_else(|| Error::system(libc::ENOENT, about()))?;
        let mut found = self.with_open(found);
        self.untold_node(found.id).iter().for_each(|node| node.overlay(&mut found));
        Ok(found)
    }

    /// The inode with this number.
    pub fn inode(&self, inode: u64) -> Result<Inode> {
        // Found before the request: the answer may lack what this client tells the manager in the meantime.
        let untold = self.untold_node(inode);
        let mut found = self.with_open(self.manager.inode(inode)?);
        untold.iter().for_each(|node| node.overlay(&mut found));
        Ok(found)
    }

    /// The space that one copy of a file takes at the stores; holes take none.
    pub fn allocated(&self, inode: &Inode) -> Result<u64> {
        Target::of(inode).map_or(Ok(0), |target| self.stores.allocated(&target))
    }

    /// The names in a directory, in byte order.
    pub fn names(&self, directory: u64) -> Result<Vec<Entry>> {
        self.manager.names(directory)
    }

    /// Opens the file with this number.
    pub fn open_by_number(self: &Arc<Volume>, inode: u64) -> Result<File> {
        self.open_file(inode, Path::new(&format!("inode {inode}")))
    }

    /// Makes an inode under a name that must be free.
    pub fn create_at(&self, place: Place, new: New) -> Result<Inode> {
        self.manager.change(&Change::Create(place, new))
    }

    /// Makes a file under a name that must be free, and opens it. It is written soon if it `may_write`.
    pub fn make_file_at(
        self: &Arc<Volume>,
        place: Place,
        new: New,
        may_write: bool,
    ) -> Result<(Inode, File)> {
        let path = String::from_utf8_lossy(&place.name).into_owned();
        self.make_file(place, new, may_write, Path::new(&path))
    }

    /// Adds a name to an inode.
    pub fn link_at(&self, inode: u64, place: Place) -> Result<Inode> {
        self.manager.change(&Change::Link(inode, place)).map(|found| self.with_open(found))
    }

    /// Removes a name: of an empty directory, or of anything else. Returns the inode that had it.
    pub fn remove_at(&self, place: Place, is_directory: bool) -> Result<Inode> {
        self.manager.change(&Change::Remove(place, is_directory))
    }

    /// Renames an inode after all writes are at the stores: a client that opens a replaced file finds the new bytes.
    /// Returns the inode that lost its name, or if there is none, the renamed one.
    pub fn rename_at(&self, from: Place, to: Place, how: Renaming) -> Result<Inode> {
        self.send_all();
        self.manager.change(&Change::Rename(from, to, how))
    }

    /// Sets the time when an inode was last read.
    pub fn set_accessed(&self, inode: u64, accessed_ns: i64) -> Result<()> {
        self.manager.change(&Change::Accessed(inode, accessed_ns)).map(drop)
    }

    /// The extended attributes of an inode.
    pub fn attributes_of(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.manager.attributes(inode)
    }

    /// The value of an extended attribute of an inode, if it has that.
    pub fn attribute_of(&self, inode: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = self.open_node(inode).filter(|_| name == CAPABILITY);
        if node.as_ref().is_some_and(|node| node.state().lacks_capability) {
            return Ok(None);
        }
        let known = node.as_ref().map(|node| node.stamp());
        let found = self.attributes_of(inode)?.into_iter().find(|(found, _)| found == name);
        if let Some(node) = node.filter(|node| found.is_none() && known == Some(node.stamp())) {
            node.state().lacks_capability = true;
        }
        Ok(found.map(|(_, value)| value))
    }

    /// Sets or removes an extended attribute of an inode. [`HINT_ATTRIBUTE`] also takes effect.
    pub fn set_attribute_of(self: &Arc<Volume>, inode: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        match (name, value) {
            (HINT_ATTRIBUTE, Some(value)) => match String::from_utf8_lossy(value).parse()? {
                Hint::WillNeed => self.open_by_number(inode)?.hint(Hint::WillNeed),
                hint => self.set_hint(inode, hint),
            },
            _ => {
                self.change_attribute(inode, name, value)?;
                if name == HINT_ATTRIBUTE {
                    self.follow_hint(inode, None);
                }
                Ok(())
            }
        }
    }

    fn change_attribute(&self, inode: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let change = Change::SetAttribute(inode, name.to_vec(), value.map(<[u8]>::to_vec));
        let changed = self.manager.change(&change);
        if let Some(node) = self.open_node(inode) {
            node.state().lacks_capability = false;
        }
        changed.map(drop)
    }

    /// Sets how a file will be used.
    pub(crate) fn set_hint(&self, inode: u64, hint: Hint) -> Result<()> {
        if hint.lasts() {
            let text = hint.to_string();
            self.change_attribute(inode, HINT_ATTRIBUTE, Some(text.as_bytes()))?;
            self.follow_hint(inode, Some(hint));
        }
        if let (Hint::DontNeed, Some(memory)) = (hint, self.memory()) {
            memory.cache.forget_all(inode);
        }
        Ok(())
    }

    fn follow_hint(&self, inode: u64, hint: Option<Hint>) {
        if let Some(node) = self.open_node(inode) {
            node.set_hint(hint);
        }
    }

    /// How an open file will be used.
    pub(crate) fn hint_of(&self, node: &Node) -> Hint {
        if let Some(hint) = node.hint() {
            return hint;
        }
        let of_all = self.memory().map_or(Hint::Normal, |memory| memory.hint);
        if node.state().size < HINT_BYTES_MIN {
            return of_all;
        }
        // A hint that cannot be read counts as none.
        let attributes = self.attributes_of(node.id()).unwrap_or_default();
        let found = attributes.iter().find(|(name, _)| name == HINT_ATTRIBUTE);
        let hint = found.and_then(|(_, value)| str::from_utf8(value).ok()?.parse().ok()).unwrap_or(of_all);
        node.set_hint(Some(hint));
        hint
    }
}
