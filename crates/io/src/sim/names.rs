//! The names of a simulated disk, and the changes that are not durable yet.
//!
//! Model: an entry is a name in a directory that leads to an inode. Changes of entries or attributes wait in the
//! journal of their file system until a directory or the file system is synced; a power loss keeps the first few.
//! Invariant: a change is durable only together with all changes before it on its file system, as with every journal in
//! use. So a rename is never half done.
//! Non-goals: what an inode is.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// The attributes of an inode that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) modified_ns: i128,
}

/// A name in a directory.
type Entry = (u64, OsString);
type Entries = BTreeMap<Entry, u64>;

#[derive(Debug, Clone)]
enum Change {
    Link(Entry, u64),
    Unlink(Entry),
    Rename(Entry, Entry),
    Set(u64, Settings),
}

impl Change {
    fn apply(&self, entries: &mut Entries) {
        match self {
            Change::Link(entry, inode) => drop(entries.insert(entry.clone(), *inode)),
            Change::Unlink(entry) => drop(entries.remove(entry)),
            Change::Rename(from, to) => {
                if let Some(inode) = entries.remove(from) {
                    entries.insert(to.clone(), inode);
                }
            }
            Change::Set(..) => {}
        }
    }

    fn touches(&self, directory: u64) -> bool {
        match self {
            Change::Link(entry, _) | Change::Unlink(entry) => entry.0 == directory,
            Change::Rename(from, to) => from.0 == directory || to.0 == directory,
            Change::Set(inode, _) => *inode == directory,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    now: Entries,
    durable: Entries,
    /// The changes of each file system that are not durable, in order.
    journals: Vec<Vec<Change>>,
}

impl Names {
    /// Adds a file system.
    pub(crate) fn add_volume(&mut self) {
        self.journals.push(Vec::new());
    }

    /// The inode that a name leads to.
    pub(crate) fn get(&self, directory: u64, name: &OsStr) -> Option<u64> {
        self.now.get(&(directory, name.to_os_string())).copied()
    }

    /// The names in a directory, sorted, with their inodes.
    pub(crate) fn of(&self, directory: u64) -> impl Iterator<Item = (&OsString, u64)> {
        let all = (directory, OsString::new())..(directory + 1, OsString::new());
        self.now.range(all).map(|((_, name), inode)| (name, *inode))
    }

    /// How many names an inode has.
    pub(crate) fn count_of(&self, inode: u64) -> u64 {
        self.now.values().filter(|number| **number == inode).count() as u64
    }

    /// The inodes that names lead to now.
    pub(crate) fn live(&self) -> impl Iterator<Item = u64> {
        self.now.values().copied()
    }

    /// The inodes that names may lead to after a power loss.
    pub(crate) fn durable(&self) -> impl Iterator<Item = u64> {
        let waiting = self.journals.iter().flatten().filter_map(|change| match change {
            Change::Link(_, inode) => Some(*inode),
            _ => None,
        });
        self.durable.values().copied().chain(waiting)
    }

    fn change(&mut self, volume: usize, change: Change) {
        change.apply(&mut self.now);
        self.journals[volume].push(change);
    }

    pub(crate) fn link(&mut self, volume: usize, directory: u64, name: &OsStr, inode: u64) {
        self.change(volume, Change::Link((directory, name.to_os_string()), inode));
    }

    /// Adds a durable entry.
    pub(crate) fn link_durably(&mut self, directory: u64, name: &OsStr, inode: u64) {
        let change = Change::Link((directory, name.to_os_string()), inode);
        change.apply(&mut self.now);
        change.apply(&mut self.durable);
    }

    pub(crate) fn unlink(&mut self, volume: usize, directory: u64, name: &OsStr) {
        self.change(volume, Change::Unlink((directory, name.to_os_string())));
    }

    pub(crate) fn rename(&mut self, volume: usize, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let entry = |(directory, name): (u64, &OsStr)| (directory, name.to_os_string());
        self.change(volume, Change::Rename(entry(from), entry(to)));
    }

    pub(crate) fn set(&mut self, volume: usize, inode: u64, settings: Settings) {
        self.change(volume, Change::Set(inode, settings));
    }

    /// Makes a directory's changes durable, and all changes before the last of them. Returns the attributes that they
    /// set.
    pub(crate) fn sync(&mut self, volume: usize, directory: u64) -> Vec<(u64, Settings)> {
        let last = self.journals[volume].iter().rposition(|change| change.touches(directory));
        self.settle(volume, last.map_or(0, |last| last + 1))
    }

    /// The number of changes of a file system that are not durable.
    pub(crate) fn waiting(&self, volume: usize) -> usize {
        self.journals[volume].len()
    }

    /// Makes the first `count` waiting changes durable. Returns the attributes that they set.
    pub(crate) fn settle(&mut self, volume: usize, count: usize) -> Vec<(u64, Settings)> {
        let mut set = Vec::new();
        for change in self.journals[volume].drain(..count) {
            change.apply(&mut self.durable);
            if let Change::Set(inode, settings) = change {
                set.push((inode, settings));
            }
        }
        set
    }

    /// Returns to the durable state.
    pub(crate) fn lose_power(&mut self) {
        self.journals.iter_mut().for_each(Vec::clear);
        self.now = self.durable.clone();
    }
}
