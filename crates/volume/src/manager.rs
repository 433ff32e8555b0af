//! The manager: names, attributes and layouts of all files of a volume.
//!
//! Model: questions are answered from its state, and a [`Change`] is one transaction. Both are plain data, so a manager can
//! be in this process ([`crate::sqlite`]) or at the other end of a link.
//! Invariant: a change that was acknowledged is there after the process was killed, and with it all changes before it; after a
//! power loss too, once `sync` has returned. The number of an inode is never given again.
//! Non-goals: the bytes of files, who is allowed to do what, and which files are open: that is [`crate::server`]'s.

use crate::Result;
use crate::layout::{Layout, Policy};

/// The inode of the root directory.
pub const ROOT: u64 = 1;
/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;

/// What an inode is.
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
    /// A character device of this number.
    CharacterDevice(u32),
    /// A block device of this number.
    BlockDevice(u32),
}

/// What a file's generation grows by when it is cut. By 1 it grows when it changes which of its copies are current.
pub(crate) const CUT: u64 = 1 << 32;

/// How often a file had been cut in this generation.
pub(crate) fn cuts(generation: u64) -> u64 {
    generation / CUT
}

/// What is known of a file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub id: u64,
    /// What it is.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Names that it has. Without any it lives until nobody has it open.
    pub links: u64,
    /// Bytes; of a link, those of its target.
    pub size: u64,
    /// When it was last read, in nanoseconds since 1970.
    pub accessed_ns: i64,
    /// When its contents last changed.
    pub modified_ns: i64,
    /// When anything about it last changed.
    pub changed_ns: i64,
    /// Where a link leads.
    pub target: Vec<u8>,
    /// Where the bytes of a file lie.
    pub layout: Option<Layout>,
    /// What a directory says of files that are made in it.
    pub policy: Option<Policy>,
    /// How often the file has been cut, in the upper 32 bits; how often it changed which copies are current, in the lower.
    pub generation: u64,
    /// The length to which stores still have to cut their strips, if a crash may have kept one from it.
    pub cut: Option<u64>,
    /// The strips that are durable, one bit for each: if one of them is not there, it is lost.
    pub strips: u64,
    /// For each copy, the strips of which it missed a write.
    pub stale: [u64; 2],
    /// Strips with bytes that are not durable.
    pub unsynced: u64,
    /// Whether stores may have bytes that `size`, `strips` and `unsynced` do not tell of.
    pub unsettled: bool,
}

impl Inode {
    /// Its contents changed then.
    pub(crate) fn set_modified(&mut self, modified_ns: i64) {
        if modified_ns != self.modified_ns {
            self.modified_ns = modified_ns;
            self.changed_ns = self.changed_ns.max(modified_ns);
        }
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name: any bytes but a slash and NUL.
    pub name: Vec<u8>,
    /// What it leads to.
    pub inode: Inode,
}

/// A name where there may be an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub directory: u64,
    /// The name in it.
    pub name: Vec<u8>,
}

/// What is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    /// What it is.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u32,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Where a link leads.
    pub target: Vec<u8>,
}

/// What a rename does where the new name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renaming {
    /// Replaces what has it, as rename(2) does.
    Replace,
    /// Fails.
    NoReplace,
    /// Exchanges the two names, both of which must be there.
    Exchange,
}

/// Attributes to be set; those that are not given stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Edit {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// When it was last read.
    pub accessed_ns: Option<i64>,
    /// When its contents last changed.
    pub modified_ns: Option<i64>,
}

/// What a client tells of a file that it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub inode: u64,
    /// The generation in which it was written. In another one this size says nothing.
    pub generation: u64,
    /// The file has at least so many bytes.
    pub size: u64,
    /// When it was written.
    pub modified_ns: i64,
    /// Its strips, one bit for each.
    pub strips: u64,
}

/// A change of the manager's state. It answers with the inode that was made or changed; where a name was taken from an
/// inode, with that one, which is gone if it has no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Makes an inode under a name that is free.
    Create(Place, New),
    /// Gives a file or link a further name.
    Link(u64, Place),
    /// Takes a name away; of a directory if it is empty. The flag says whether it has to be one.
    Remove(Place, bool),
    /// Changes a name.
    Rename(Place, Place, Renaming),
    /// Sets attributes of an inode.
    Set(u64, Edit),
    /// The inode was read at this time, which is no change of it.
    Accessed(u64, i64),
    /// Sets what a directory says of files that are made in it.
    SetPolicy(u64, Policy),
    /// Sets an extended attribute, or removes it.
    SetAttribute(u64, Vec<u8>, Option<Vec<u8>>),
    /// Stores may get bytes of the file from now on.
    Unsettle(u64),
    /// A file was written; these of its strips have bytes that are not durable.
    Grow(Written),
    /// A file was written, and these of its strips are durable. With the flag there may be bytes that are not: of another
    /// writer.
    Settle(Written, bool),
    /// Sets the size. If the file gets shorter, a new generation of it begins, and its strips have to be cut.
    Resize(u64, u64, i64),
    /// All strips were cut for this generation.
    Cut(u64, u64),
    /// A copy of some strips missed a write, so that it is not read any more, and a new generation begins. Durable when it is
    /// acknowledged.
    Stale(u64, u32, u64),
    /// A copy of some strips has all that the other has in this generation, so that it is read again, and a new generation
    /// begins. Nothing changes if the file is not in this generation. Durable when it is acknowledged.
    Current(u64, u64, u32, u64),
    /// A new generation begins, in which requests of the one before are refused. Durable when it is acknowledged. A client
    /// asks for it when the second copy of these strips may carry out a write later.
    Raise(u64, u64),
    /// The strips of an inode without names are gone, and so is it.
    Forget(u64),
    /// A slot, or the next one, has its store in this directory from now on. Answers with the root. Durable when it is
    /// acknowledged.
    Slot(u32, std::path::PathBuf),
}

impl Change {
    /// Whether it needs no lasting room at the manager, so that it must succeed when the disk there is full.
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

    /// Whether it is durable when it is acknowledged.
    pub(crate) fn is_durable(&self) -> bool {
        matches!(self, Change::Stale(..) | Change::Current(..) | Change::Raise(..) | Change::Slot(..))
    }
}

/// What does not change while a volume is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The volume's own number, which its stores know too.
    pub volume: u128,
    /// The directory of the store of each slot.
    pub slots: Vec<std::path::PathBuf>,
}

/// Keeps names, attributes and layouts.
pub trait Manager: Send + Sync {
    /// What does not change.
    fn facts(&self) -> Result<Facts>;

    /// What a name leads to, if there is one.
    fn lookup(&self, place: &Place) -> Result<Option<Inode>>;

    /// An inode by its number.
    fn inode(&self, inode: u64) -> Result<Inode>;

    /// Names in a directory behind this one, in the order of their bytes: so many, if there are.
    fn names(&self, directory: u64, after: &[u8], most: usize) -> Result<Vec<Entry>>;

    /// The extended attributes of an inode.
    fn attributes(&self, inode: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Carries out a change, all of it or nothing.
    fn change(&self, change: &Change) -> Result<Inode>;

    /// Carries out changes, all of them or nothing.
    fn changes(&self, changes: &[Change]) -> Result<()>;

    /// Makes everything durable that was acknowledged.
    fn sync(&self) -> Result<()>;

    /// Inodes of higher numbers than this with work that a crash may have interrupted: without names, cut, or unsettled. So
    /// many, if there are.
    fn unfinished(&self, after: u64, most: usize) -> Result<Vec<Inode>>;

    /// Clients that may have locks, also those of an earlier server.
    fn lockers(&self) -> Result<Vec<[u64; 2]>>;

    /// Notes that a client may have locks, which is then durable, or that it has none.
    fn set_locker(&self, client: [u64; 2], may_have: bool) -> Result<()>;
}
