//! Requests of clients to the server of a volume's manager and to its stores, and their answers. Plain data.

use std::path::PathBuf;

use thalweg_io::Space;

use crate::incarnation::{Held, Holder, Incarnation};
use crate::locks::{ClientId, How, Lock, Verdict};
use crate::manager::{Change, Entry, Inode, New, Place, Written};
use crate::store::{Source, Strip, StripFacts, Write};

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// See [`crate::Manager::lookup`].
    Lookup(Place),
    /// See [`crate::Manager::inode`].
    Inode(u64),
    /// Names in a directory after this one.
    Names(u64, Vec<u8>),
    /// See [`crate::Manager::attributes`].
    Attributes(u64),
    /// Unfinished inodes with numbers higher than this.
    Unfinished(u64),
    /// See [`crate::Manager::change`].
    Change(Change),
    /// See [`crate::Manager::sync`].
    Sync,
    /// Makes everything durable that the manager knows, and the bytes of all files that no client is writing.
    SyncAll,
    /// Makes a file under a name that must be free, and opens it. With the flag, the session may write it at once.
    Make(Place, New, bool),
    /// Opens a file.
    Open(u64),
    /// Closes a file, and reports what was written to it, and when it was read, if that is to be noted.
    Close(u64, Option<Written>, Option<i64>),
    /// Reserves bytes after the end of a file.
    Append {
        /// The file.
        inode: u64,
        /// Its generation as the client knows it, in which it has at least this size.
        generation: u64,
        size: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The directory of the store of each slot.
    Slots,
    /// A request about locks, of the client with this number.
    Lock {
        client: ClientId,
        /// The number of the table that has the client's locks, as far as it knows.
        table: u64,
        ask: LockRequest,
    },
    /// Begins a repair. Until this session ends, no other client can begin one.
    Repair,
    /// Begins a new generation of a file. Other clients that request it wait until [`Request::Lift`], or for a timeout.
    Fence(u64),
    /// Ends that wait.
    Lift(u64),
    /// Asks which of the session's files other sessions have changed since the change of this number, and which ones
    /// they have open. With a number that the server does not know, such as 0, all may have changed.
    News(ChangeNumber),
    /// Gives back bytes that were reserved for an append which failed, and cuts off what it left.
    Undo {
        /// The file.
        inode: u64,
        /// What [`Request::Append`] returned, and the number of bytes.
        at: u64,
        bytes: u64,
    },
    /// What the server repairs by itself, and why.
    Health,
    /// See [`crate::Manager::count`].
    Count,
    /// Whether this client may cache names for a moment, because no other one uses the volume; see
    /// [`crate::cached_names`].
    CacheNames,
}

impl Request {
    /// Whether it changes something, or lets a client rely on nobody else doing so.
    pub(crate) fn may_change(&self) -> bool {
        match self {
            Request::Lookup(_) | Request::Inode(_) | Request::Names(..) | Request::Attributes(_) => false,
            Request::Unfinished(_) | Request::Open(_) | Request::Slots | Request::Lift(_) => false,
            Request::News(_) | Request::Health | Request::Count | Request::CacheNames => false,
            // These do what is left, if anything is.
            Request::Sync | Request::SyncAll | Request::Close(_, None, _) => false,
            Request::Change(_) | Request::Close(_, Some(_), _) | Request::Append { .. } => true,
            Request::Undo { .. } => true,
            Request::Make(..) | Request::Lock { .. } | Request::Repair | Request::Fence(_) => true,
        }
    }
}

/// What a server repairs by itself, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// See [`crate::Manager::behind`].
    pub(crate) behind: Vec<(u32, i64)>,
    /// What it repairs now.
    pub(crate) healing: Option<Healing>,
    /// The most bytes that it copies in a second.
    pub(crate) rate: u64,
}

/// How far a server is with a repair of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Healing {
    pub(crate) files: u64,
    pub(crate) files_done: u64,
    /// The bytes that were copied.
    pub(crate) bytes: u64,
}

/// The number of the last change of a file by others, as the server knows it for a client. It is 0 if there was none
/// since the client opened the file. All other numbers are distinct, also those of different servers.
pub type ChangeNumber = u64;

/// A request of a client about locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockRequest {
    /// Joins, and reclaims the locks that it had in the previous table.
    Claim(Vec<Lock>),
    /// Requests a lock under a ticket of the client. A repeated request has the same ticket.
    Ask(u64, Lock, How),
    Unlock(Lock),
    /// Cancels a waiting request for a lock of this file, by its ticket.
    Cancel(u64, u64),
    /// Requests the decisions of waiting requests. Without any, the answer takes a while.
    News,
    /// Leaves, and releases all locks.
    Leave,
}

/// An answer about locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LockAnswer {
    Done,
    /// The client has the locks that it claimed, in the table with this number.
    Claimed(u64),
    /// The table has this number, and the client is not known there, or no longer.
    Unknown(u64),
    /// The verdict, if there is one yet; and, if it grants a lock, the number of the file's last change.
    Verdict(Option<Verdict>, ChangeNumber),
    /// Whether the request was waiting.
    Cancelled(bool),
    /// The decisions, each with its ticket.
    News(Vec<(u64, (Verdict, ChangeNumber))>),
}

/// An answer of the server.
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
    /// The number of the last change, the files that others have changed, and those that others have open.
    News(ChangeNumber, Vec<u64>, Vec<u64>),
    Health(Health),
    MayCache(bool),
}

impl Answer {
    /// The inodes that it tells the client.
    pub(crate) fn inodes(&mut self) -> impl Iterator<Item = &mut Inode> {
        let (one, many, named): (Option<&mut Inode>, &mut [Inode], &mut [Entry]) = match self {
            Answer::Inode(inode) | Answer::Found(Some(inode)) => (Some(inode), &mut [], &mut []),
            Answer::Inodes(inodes) => (None, inodes, &mut []),
            Answer::Entries(entries) => (None, &mut [], entries),
            _ => (None, &mut [], &mut []),
        };
        one.into_iter().chain(many).chain(named.iter_mut().map(|entry| &mut entry.inode))
    }
}

/// A request of a client to a store; see [`crate::Store`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreRequest {
    /// The bytes are in the answer.
    Read {
        strip: Strip,
        generation: u64,
        at: u64,
        bytes: u32,
    },
    /// The bytes go with the request.
    Write(Write),
    /// Writes the bytes, and forwards them to the store of the strip's other copy, in another slot, at `NODE:/DIR`.
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
    /// At most [`crate::store::SYNCED_MAX`] strips.
    Sync(Vec<Strip>),
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
    /// At most [`crate::store::SYNCED_MAX`] strips; see [`crate::Store::remove_all`].
    RemoveAll(Vec<Strip>),
    Facts(Strip),
    List,
    Space,
    /// See [`Keeper::held`](crate::keeper::Keeper::held).
    Held {
        place: String,
    },
    /// See [`Keeper::claim`](crate::keeper::Keeper::claim).
    Claim {
        before: Incarnation,
        next: Holder,
    },
    /// See [`crate::Store::copy`].
    Copy {
        from: Source,
        to: Write,
        len: u64,
    },
    /// See [`crate::Store::punch`].
    Punch {
        strip: Strip,
        generation: u64,
        from: u64,
        to: u64,
    },
}

impl StoreRequest {
    /// Whether only a manager asks it.
    pub(crate) fn is_managers(&self) -> bool {
        matches!(self, StoreRequest::Held { .. } | StoreRequest::Claim { .. })
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        matches!(
            self,
            StoreRequest::Read { .. }
                | StoreRequest::NextData { .. }
                | StoreRequest::Facts(_)
                | StoreRequest::List
                | StoreRequest::Space
                | StoreRequest::Held { .. }
        )
    }
}

/// An answer of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreAnswer {
    Done,
    Facts(Option<StripFacts>),
    /// The range with data.
    Data(Option<(u64, u64)>),
    Strips(Vec<Strip>),
    /// The space of its file system, and the number of that.
    Space(Space, u64),
    /// The number of each strip's sync.
    Synced(Vec<u64>),
    /// The ranges that were written.
    Changes(Vec<(u64, u64)>),
    Forwarded(Forwarded),
    Held(Held),
    /// The holder of the store: after a claim, or because it is not the one who asks.
    Holder(Holder),
}

/// The fate of the other copy, after a store has carried out a write and forwarded it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// It is written too; the boot of its store's machine.
    Written(String),
    /// It is not written, and will not be; the reason.
    Unsent(String),
    /// It is unknown whether it is or will be written; the reason.
    Unsure(String),
}
