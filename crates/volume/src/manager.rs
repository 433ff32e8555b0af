//! The manager: names, attributes and layouts of all files of a volume.
//!
//! Model: queries are answered from its state, and a [`Change`] is one transaction. Both are plain data, so a manager
//! can be in this process ([`crate::sqlite`]) or at the other end of a link.
//! Invariant: an acknowledged change, and all changes before it, survive the end of the process; and once `sync` has
//! returned, a power loss too. The number of an inode is never used again.
//! Non-goals: the bytes of files, access control, and which files are open: see [`crate::server`].

use crate::Result;
use crate::layout::{Layout, Policy};

/// The inode of the root directory.
pub const ROOT: u64 = 1;
/// The most bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device with this number.
    CharacterDevice(u32),
    /// A block device with this number.
    BlockDevice(u32),
}

/// Added to a file's generation when the file is cut. A change of which copies are current adds 1.
pub(crate) const CUT: u64 = 1 << 32;

/// How often the file has been cut up to this generation.
pub(crate) fn cuts(generation: u64) -> u64 {
    generation / CUT
}

/// The manager's record of a file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// The number.
    pub id: u64,
    /// The type.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The number of its names. Without any, it exists until no client has it open.
    pub links: u64,
    /// The size in bytes; for a link, of its target.
    pub size: u64,
    /// When it was last read, in nanoseconds since 1970.
    pub accessed_ns: i64,
    /// When its contents last changed.
    pub modified_ns: i64,
    /// When anything about it last changed.
    pub changed_ns: i64,
    /// The target of a link.
    pub target: Vec<u8>,
    /// The layout of a file.
    pub layout: Option<Layout>,
    /// The policy of a directory for files that are created in it.
    pub policy: Option<Policy>,
    /// How often the file was cut, in the upper 32 bits; how often it changed which copies are current, in the lower.
    pub generation: u64,
    /// The length to which stores still have to cut their strips, if a crash may have prevented one from doing so.
    pub cut: Option<u64>,
    /// The durable strips, one bit for each: one that is missing is lost.
    pub strips: u64,
    /// For each copy, the strips in which it missed a write.
    pub stale: [u64; 2],
    /// Strips with bytes that are not durable.
    pub unsynced: u64,
    /// Whether stores may have bytes that `size`, `strips` and `unsynced` do not show.
    pub unsettled: bool,
}

impl Inode {
    /// Sets the time of the last change of the contents.
    pub(crate) fn set_modified(&mut self, modified_ns: i64) {
        if modified_ns != self.modified_ns {
            self.modified_ns = modified_ns;
            self.changed_ns = self.changed_ns.max(modified_ns);
        }
    }
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name: any bytes but a slash and NUL.
    pub name: Vec<u8>,
    /// The inode of this name.
    pub inode: Inode,
}

/// A name in a directory, which an inode may or may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub directory: u64,
    /// The name in it.
    pub name: Vec<u8>,
}

/// An inode to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    /// The type.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u32,
    /// Those of them that it does not get, unless the directory has a default access control list.
    pub umask: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The target of a link.
    pub target: Vec<u8>,
}

/// What a rename does if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renaming {
    /// Replaces the inode with that name, as rename(2) does.
    Replace,
    /// Fails.
    NoReplace,
    /// Exchanges the two names, which must both exist.
    Exchange,
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Edit {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// The time of the last read.
    pub accessed_ns: Option<i64>,
    /// The time of the last change of the contents.
    pub modified_ns: Option<i64>,
}

/// A client's report of a file that it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub inode: u64,
    /// The generation in which it was written. In any other generation, this size means nothing.
    pub generation: u64,
    /// The file has at least this many bytes.
    pub size: u64,
    /// When it was written.
    pub modified_ns: i64,
    /// Its strips, one bit for each.
    pub strips: u64,
}

/// A change of the manager's state. It returns the inode that was made or changed. If an inode lost a name, it returns
/// that inode, which is gone if this was its last name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Makes an inode under a name that is free.
    Create(Place, New),
    /// Adds a name to a file or link.
    Link(u64, Place),
    /// Removes a name; a directory must be empty. The flag says whether the inode must be a directory.
    Remove(Place, bool),
    /// Renames an inode.
    Rename(Place, Place, Renaming),
    /// Sets attributes of an inode.
    Set(u64, Edit),
    /// The inode was read at this time. This does not change its other times.
    Accessed(u64, i64),
    /// Sets the policy of a directory for files that are created in it.
    SetPolicy(u64, Policy),
    /// Sets an extended attribute, or removes it.
    SetAttribute(u64, Vec<u8>, Option<Vec<u8>>),
    /// From now on stores may get bytes of the file.
    Unsettle(u64),
    /// A file was written; these of its strips have bytes that are not durable.
    Grow(Written),
    /// A file was written, and these of its strips are durable. With the flag, there may be bytes that are not, or in
    /// which the copies differ: of another writer, or of a write that failed.
    Settle(Written, bool),
    /// Sets the size. If the file gets shorter, its next generation begins, and its strips have to be cut.
    Resize(u64, u64, i64),
    /// All strips were cut for this generation.
    Cut(u64, u64),
    /// A copy of some strips missed a write: it is no longer read, and a new generation begins. Durable when it is
    /// acknowledged.
    Stale(u64, u32, u64),
    /// A copy of some strips has all that the other has in this generation: it is read again, and a new generation
    /// begins. If the file is in another generation, nothing changes. Durable when it is acknowledged.
    Current(u64, u64, u32, u64),
    /// Begins a new generation, so that requests of the previous one are refused. Durable when it is acknowledged. A
    /// client asks for it when the second copy of these strips may carry out a write later.
    Raise(u64, u64),
    /// Removes an inode without names, whose strips are gone.
    Forget(u64),
    /// Assigns the store in this directory to a slot, or to a new last slot. Returns the root. Durable when it is
    /// acknowledged.
    Slot(u32, std::path::PathBuf),
}

impl Change {
    /// Whether it needs no lasting room at the manager, so that it must succeed even if the disk there is full.
    pub(crate) fn needs_no_room(&self) -> bool {
        match self {
            Change::Remove(..)
            | Change::SetAttribute(_, _, None)
            | Change::Grow(_)
            | Change::Settle(..)
            | Change::Resize(..)
            | Change::Cut(..)
            | Change::Stale(..)
            | Change::Current(..)
            | Change::Raise(..)
            | Change::Forget(_) => true,
            Change::Create(..)
            | Change::Link(..)
            | Change::Rename(..)
            | Change::Set(..)
            | Change::Accessed(..)
            | Change::SetPolicy(..)
            | Change::SetAttribute(_, _, Some(_))
            | Change::Unsettle(_)
            | Change::Slot(..) => false,
        }
    }

    /// How many more inodes there are after it.
    pub(crate) fn more_inodes(&self) -> i64 {
        match self {
            Change::Create(..) => 1,
            Change::Forget(_) => -1,
            _ => 0,
        }
    }

    /// Whether it is durable when it is acknowledged.
    pub(crate) fn is_durable(&self) -> bool {
        matches!(self, Change::Stale(..) | Change::Current(..) | Change::Raise(..) | Change::Slot(..))
    }
}

/// The facts that do not change while a volume is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The volume's own number, which its stores have too.
    pub volume: u128,
    /// The directory of the store of each slot.
    pub slots: Vec<std::path::PathBuf>,
}

/// Keeps names, attributes and layouts.
pub trait Manager: Send + Sync {
    /// The facts that do not change.
    fn facts(&self) -> Result<Facts>;

    /// The inode of a name, if there is one. An inode itself has the name `.`, and the directory above it `..`.
    fn lookup(&self, place: &Place) -> Result<Option<Inode>>;

    /// The inode with this number.
    fn inode(&self, inode: u64) -> Result<Inode>;

    /// The number of inodes.
    fn count(&self) -> Result<u64>;

    /// The names of a directory after this one, in byte order; at most `most`.
    fn names(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>>;

    /// The extended attributes of an inode.
    fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Carries out a change, all of it or nothing.
    fn change(&self, change: &Change) -> Result<Inode>;

    /// Carries out changes, all of them or nothing.
    fn changes(&self, changes: &[Change]) -> Result<()>;

    /// Makes all acknowledged changes durable.
    fn sync(&self) -> Result<()>;

    /// Inodes with numbers greater than `after` whose work a crash may have interrupted: without names, cut, or
    /// unsettled. At most `most`.
    fn unfinished(&self, after: u64, most: usize) -> Result<Vec<Inode>>;

    /// Files with numbers greater than `after` of which a copy missed a write. At most `most`.
    fn stale(&self, after: u64, most: usize) -> Result<Vec<Inode>>;

    /// The slots whose stores missed writes, each with the time of the first write since no copy had missed any, in
    /// nanoseconds since 1970.
    fn behind(&self) -> Result<Vec<(u32, i64)>>;

    /// Clients that may have locks, including those of an earlier server.
    fn lockers(&self) -> Result<Vec<[u64; 2]>>;

    /// Notes, durably, that a client may have locks; or that it has none.
    fn set_locker(&self, client: [u64; 2], may_have: bool) -> Result<()>;

    /// Notes the run of the store of a slot, unless a later one is known. A manager whose stores count none ignores it.
    fn set_run(&self, _slot: u32, _run: u64) -> Result<()> {
        Ok(())
    }
}
