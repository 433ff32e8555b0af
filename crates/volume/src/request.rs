//! What clients ask the server of a volume's manager, and its stores, and what they answer. Plain data.

use std::path::PathBuf;

use thalweg_io::Space;

use crate::locks::{ClientId, How, Lock, Verdict};
use crate::manager::{Change, Entry, Inode, Place, Written};
use crate::store::{Strip, StripFacts, Write};

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
    /// Where the store of each slot is.
    Slots,
    /// Something about locks, of the client of this number.
    Lock {
        client: ClientId,
        /// The number of the table in which the client has its locks, as far as it knows.
        table: u64,
        ask: LockRequest,
    },
    /// This client makes copies current from now on, as long as its session lasts, and no other may.
    Repair,
    /// A new generation of a file begins, and clients that ask for it wait until [`Request::Lift`], but not for long.
    Fence(u64),
    /// They wait no more.
    Lift(u64),
}

/// What a client asks about locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockRequest {
    /// To be let in, with the locks that it had in the table before this one.
    Claim(Vec<Lock>),
    /// A lock, under a ticket of the client's. A request that is made again has the same ticket.
    Ask(u64, Lock, How),
    Unlock(Lock),
    /// Not to wait any more for a lock of this file, under this ticket.
    Cancel(u64, u64),
    /// What was decided of requests that wait. The answer takes a while if there is nothing new.
    News,
    /// To be forgotten, with all locks.
    Leave,
}

/// What is answered about locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockAnswer {
    Done,
    /// The client has the locks that it claimed, in the table of this number.
    Claimed(u64),
    /// The table has this number, and the client is not known there, or not any more.
    Unknown(u64),
    /// What came of it, if that is known yet; and whether others may have written the file since the last lock.
    Verdict(Option<Verdict>, bool),
    /// Whether it waited.
    Cancelled(bool),
    /// Each with its ticket.
    News(Vec<(u64, (Verdict, bool))>),
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
    Slots(Vec<PathBuf>),
    Lock(LockAnswer),
}

/// What a client asks a store; see [`crate::Store`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreRequest {
    /// The answer has the bytes.
    Read {
        strip: Strip,
        generation: u64,
        at: u64,
        bytes: u32,
    },
    /// The bytes go with the request.
    Write(Write),
    /// The same, and the store has that of another slot, at `NODE:/DIR`, write them to the strip's other copy.
    Forward {
        write: Write,
        slot: u32,
        place: String,
    },
    Truncate {
        strip: Strip,
        generation: u64,
        len: u64,
    },
    /// See [`crate::Store::next_data`].
    NextData {
        strip: Strip,
        generation: u64,
        at: u64,
    },
    Sync(Strip),
    /// See [`crate::Store::settle`].
    Settle {
        strip: Strip,
        generation: u64,
        sync: u64,
    },
    /// See [`crate::Store::changes`].
    Changes {
        strip: Strip,
        generation: u64,
    },
    /// The block goes with the request; see [`crate::Store::mend`].
    Mend {
        strip: Strip,
        generation: u64,
        at: u64,
    },
    /// See [`crate::Store::remove`].
    Remove {
        strip: Strip,
        below: u64,
    },
    Facts(Strip),
    List,
    Space,
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreAnswer {
    Done,
    Facts(Option<StripFacts>),
    /// From and to where there is data.
    Data(Option<(u64, u64)>),
    Strips(Vec<Strip>),
    Space(Space),
    /// The number of a sync.
    Synced(u64),
    /// From and to where bytes were written.
    Changes(Vec<(u64, u64)>),
    Forwarded(Forwarded),
}

/// What came of the other copy of a write that a store has carried out and forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// It is written too; the boot of its store's machine.
    Written(String),
    /// It is not written, and will not be; why.
    Unsent(String),
    /// Whether it is, or will be, is not known; why.
    Unsure(String),
}
