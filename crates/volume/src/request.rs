//! What clients ask the server of a volume's manager, and what it answers. Plain data.

use crate::manager::{Change, Entry, Inode, Place, Written};

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// See [`crate::Manager::lookup`].
    Lookup(Place),
    /// See [`crate::Manager::inode`].
    Inode(u64),
    /// Names in a directory behind this one.
    Names(u64, Vec<u8>),
    /// See [`crate::Manager::attributes`].
    Attributes(u64),
    /// Unfinished inodes of higher numbers than this.
    Unfinished(u64),
    /// See [`crate::Manager::change`].
    Change(Change),
    /// See [`crate::Manager::sync`].
    Sync,
    /// Makes the bytes of all files durable that nobody writes, and everything that the manager knows.
    SyncAll,
    /// The client has the file open from now on.
    Open(u64),
    /// The client has the file open no more, after it wrote this.
    Close(u64, Option<Written>),
    /// Reserves bytes behind the end of a file.
    Append {
        /// The file.
        inode: u64,
        /// Its generation as the client knows it, in which it has at least this size.
        generation: u64,
        size: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Found(Option<Inode>),
    Inode(Inode),
    Entries(Vec<Entry>),
    Attributes(Vec<(Vec<u8>, Vec<u8>)>),
    Inodes(Vec<Inode>),
    At(u64),
}
