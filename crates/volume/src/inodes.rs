//! A volume by numbers of inodes and names in directories, as whoever keeps track of inodes uses it: a mount.
//!
//! Invariant: what is told of a file that is open has the size and time of this moment.
//! Non-goals: paths; see volume.rs.

use std::path::Path;
use std::sync::Arc;

use crate::file::File;
use crate::manager::{Change, Entry, Inode, NAME_BYTES_MAX, New, Place, Renaming};
use crate::volume::Volume;
use crate::{Error, Result};

impl Volume {
    /// What a name leads to.
    pub fn lookup(&self, place: &Place) -> Result<Inode> {
        let about = || String::from_utf8_lossy(&place.name).into_owned();
        if place.name.len() > NAME_BYTES_MAX {
            return Err(Error::system(libc::ENAMETOOLONG, about()));
        }
        let found = self.manager.lookup(place)?.ok_or_else(|| Error::system(libc::ENOENT, about()))?;
        Ok(self.with_open(found))
    }

    /// An inode by its number.
    pub fn inode(&self, inode: u64) -> Result<Inode> {
        self.manager.inode(inode).map(|found| self.with_open(found))
    }

    /// The names in a directory, in the order of their bytes.
    pub fn names(&self, directory: u64) -> Result<Vec<Entry>> {
        self.manager.names(directory)
    }

    /// Opens the file of this number.
    pub fn open_by_number(self: &Arc<Volume>, inode: u64) -> Result<File> {
        let found = self.manager.inode(inode)?;
        self.open_inode(&found, Path::new(&format!("inode {inode}")))
    }

    /// Makes something under a name that is free.
    pub fn create_at(&self, place: Place, new: New) -> Result<Inode> {
        self.manager.change(&Change::Create(place, new))
    }

    /// Gives an inode a further name.
    pub fn link_at(&self, inode: u64, place: Place) -> Result<Inode> {
        self.manager.change(&Change::Link(inode, place)).map(|found| self.with_open(found))
    }

    /// Removes a name: of an empty directory, or of anything else.
    pub fn remove_at(&self, place: Place, is_directory: bool) -> Result<()> {
        self.manager.change(&Change::Remove(place, is_directory)).map(drop)
    }

    /// Changes a name.
    pub fn rename_at(&self, from: Place, to: Place, how: Renaming) -> Result<()> {
        self.manager.change(&Change::Rename(from, to, how)).map(drop)
    }

    /// Notes when an inode was read.
    pub fn set_accessed(&self, inode: u64, accessed_ns: i64) -> Result<()> {
        self.manager.change(&Change::Accessed(inode, accessed_ns)).map(drop)
    }

    /// The extended attributes of an inode.
    pub fn attributes_of(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.manager.attributes(inode)
    }

    /// Sets an extended attribute of an inode, or removes it.
    pub fn set_attribute_of(&self, inode: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.manager.change(&Change::SetAttribute(inode, name.to_vec(), value.map(<[u8]>::to_vec))).map(drop)
    }
}
