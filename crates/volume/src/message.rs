//! Messages between a client of a volume and its server.
//!
//! ```text
//! [bytes of the body: u32][bytes of the data: u32][number: u64][body][data]
//! ```
//!
//! Model: the client numbers its requests, of which any number may be under way; an answer has the number of its
//! request, and answers come in any order. The body is an [`Ask`] or a [`Reply`]; the data is the bytes that are read
//! or written, which are not copied into a body. docs/formats/volume.md specifies the bytes.
//! Invariant: a message whose lengths exceed the limits, or whose body does not decode, is refused.

use std::io::{self, IoSlice, Read};
use std::ops::Range;

use crate::Error;
use crate::callers::Caller;
use crate::codec::{Plain, choice, decode, record};
use crate::incarnation::{Holder, Incarnation, PLACE_BYTES_MAX};
use crate::layout::{Layout, Policy};
use crate::locks::{How, Lock, Verdict};
use crate::manager::{Change, Edit, Entry, Inode, Kind, New, Place, Renaming, Written};
use crate::request::{
    Answer, Forwarded, Healing, Health, LockAnswer, LockRequest, Request, StoreAnswer, StoreRequest,
};
use crate::store::{SYNCED_MAX, Source, Strip, StripFacts, Write};

/// The version of the protocol. Any other is refused.
pub(crate) const VERSION: u32 = 7;
/// The most bytes of a body.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;
/// The most bytes of the data of a message.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;
const HEAD_BYTES: usize = 16;
/// The largest offset in a strip: that of a file's last possible byte.
const END_MAX: u64 = i64::MAX as u64;

/// A client's request to the server of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Opens the connection, in this version, as this caller.
    Attach(u32, Caller),
    /// A request to the manager.
    Manager(Request),
    /// A request to the store of a slot.
    Store(u32, StoreRequest),
    /// The same, from the volume's manager in this incarnation. The store answers with its holder if that is another.
    Held(u32, Incarnation, StoreRequest),
}

/// An answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The client may send requests.
    Attached(Attached),
    /// The answer of the manager.
    Manager(Answer),
    /// The answer of the store.
    Store(StoreAnswer),
    /// Why the request failed.
    Failed(Told),
}

/// What a server reports of itself to a client that attaches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attached {
    /// For each slot, why its store is lost, if it is.
    pub(crate) lost: Vec<Option<String>>,
    /// The boot of the machine of a node's store: after another one, writes that were not synced may be lost.
    pub(crate) boot: String,
}

/// An error as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    System(i32, String),
    Missing(Strip, String),
    Stale(Strip),
    Damaged(std::path::PathBuf, u64),
    Refused(String),
}

impl From<Error> for Told {
    fn from(why: Error) -> Told {
        match why {
            Error::System(errno, about) => Told::System(errno, about),
            Error::Missing(strip, why) => Told::Missing(strip, why),
            Error::Stale(strip) => Told::Stale(strip),
            Error::Damaged { path, at } => Told::Damaged(path, at),
            Error::Refused(why) => Told::Refused(why),
            other if other.errno() != libc::EIO => Told::System(other.errno(), other.to_string()),
            other => Told::Refused(other.to_string()),
        }
    }
}

impl From<Told> for Error {
    fn from(told: Told) -> Error {
        match told {
            Told::System(errno, about) => Error::System(errno, about),
            Told::Missing(strip, why) => Error::Missing(strip, why),
            Told::Stale(strip) => Error::Stale(strip),
            Told::Damaged(path, at) => Error::Damaged { path, at },
            Told::Refused(why) => Error::Refused(why),
        }
    }
}

choice!(Ask {
    0 => Attach { 0: version, 1: caller },
    1 => Manager { 0: request },
    2 => Store { 0: slot, 1: request },
    3 => Held { 0: slot, 1: incarnation, 2: request },
});
choice!(Reply {
    0 => Attached { 0: attached },
    1 => Manager { 0: answer },
    2 => Store { 0: answer },
    3 => Failed { 0: why },
});
choice!(Told {
    0 => System { 0: errno, 1: about },
    1 => Missing { 0: strip, 1: why },
    2 => Stale { 0: strip },
    3 => Damaged { 0: path, 1: at },
    4 => Refused { 0: why },
});
choice!(Request {
    0 => Lookup { 0: place },
    1 => Inode { 0: inode },
    2 => Names { 0: directory, 1: after },
    3 => Attributes { 0: inode },
    4 => Unfinished { 0: after },
    5 => Change { 0: change },
    6 => Sync {},
    7 => SyncAll {},
    8 => Open { 0: inode },
    9 => Close { 0: inode, 1: written, 2: read_ns },
    10 => Append { inode: inode, generation: generation, size: size, bytes: bytes },
    11 => Slots {},
    12 => Lock { client: client, table: table, ask: ask },
    13 => Repair {},
    14 => Fence { 0: inode },
    15 => Lift { 0: inode },
    16 => News { 0: since },
    17 => Undo { inode: inode, at: at, bytes: bytes },
    18 => Health {},
    19 => Make { 0: place, 1: new, 2: may_write },
    20 => Count {},
    21 => CacheNames {},
});
choice!(LockRequest {
    0 => Claim { 0: locks },
    1 => Ask { 0: ticket, 1: lock, 2: how },
    2 => Unlock { 0: range },
    3 => Cancel { 0: inode, 1: ticket },
    4 => News {},
    5 => Leave {},
});
choice!(LockAnswer {
    0 => Done {},
    1 => Unknown { 0: table },
    2 => Verdict { 0: verdict, 1: change },
    3 => Cancelled { 0: waited },
    4 => News { 0: decided },
    5 => Claimed { 0: table },
});
choice!(How { 0 => Try {}, 1 => Wait {}, 2 => Test {} });
choice!(Verdict { 0 => Free {}, 1 => Taken { 0: lock }, 2 => Deadlock {}, 3 => Full {} });
choice!(Answer {
    0 => Done {},
    1 => Found { 0: found },
    2 => Inode { 0: inode },
    3 => Entries { 0: entries },
    4 => Attributes { 0: attributes },
    5 => Inodes { 0: inodes },
    6 => At { 0: at },
    7 => Slots { 0: places },
    8 => Lock { 0: answer },
    9 => News { 0: number, 1: changed, 2: shared },
    10 => Health { 0: health },
    11 => MayCache { 0: may_cache },
});
record!(Health { behind, healing, rate });
record!(Healing { files, files_done, bytes });
choice!(StoreRequest {
    0 => Read { strip: strip, generation: generation, at: at, bytes: bytes },
    1 => Write { 0: write },
    2 => Truncate { strip: strip, generation: generation, len: len },
    3 => Sync { 0: strips },
    4 => Remove { strip: strip, below: below },
    5 => Facts { 0: strip },
    6 => List {},
    7 => Space {},
    8 => NextData { strip: strip, generation: generation, at: at },
    9 => Settle { strip: strip, generation: generation, sync: sync },
    10 => Changes { strip: strip, generation: generation },
    11 => Mend { strip: strip, generation: generation, at: at },
    12 => Forward { write: write, slot: slot, place: place },
    13 => Punch { strip: strip, generation: generation, from: from, to: to },
    14 => Copy { from: from, to: to, len: len },
    15 => RemoveAll { 0: strips },
    20 => Held { place: place },
    21 => Claim { before: before, next: next },
});
choice!(StoreAnswer {
    0 => Done {},
    1 => Facts { 0: facts },
    2 => Strips { 0: strips },
    3 => Space { 0: space, 1: file_system },
    4 => Data { 0: data },
    5 => Synced { 0: syncs },
    6 => Changes { 0: ranges },
    7 => Forwarded { 0: forwarded },
    20 => Held { 0: held },
    21 => Holder { 0: holder },
});
choice!(Forwarded { 0 => Written { 0: boot }, 1 => Unsent { 0: why }, 2 => Unsure { 0: why } });
choice!(Change {
    0 => Create { 0: place, 1: new },
    1 => Link { 0: inode, 1: place },
    2 => Remove { 0: place, 1: is_directory },
    3 => Rename { 0: from, 1: to, 2: how },
    4 => Set { 0: inode, 1: edit },
    5 => SetPolicy { 0: inode, 1: policy },
    6 => SetAttribute { 0: inode, 1: name, 2: value },
    7 => Unsettle { 0: inode },
    8 => Grow { 0: written },
    9 => Settle { 0: written, 1: is_shared },
    10 => Resize { 0: inode, 1: size, 2: modified_ns },
    11 => Cut { 0: inode, 1: generation },
    12 => Stale { 0: inode, 1: copy, 2: strips },
    13 => Forget { 0: inode },
    14 => Accessed { 0: inode, 1: accessed_ns },
    15 => Current { 0: inode, 1: generation, 2: copy, 3: strips },
    16 => Slot { 0: slot, 1: place },
    17 => Raise { 0: inode, 1: strips },
});
choice!(Kind {
    0 => File {},
    1 => Directory {},
    2 => Link {},
    3 => Pipe {},
    4 => Socket {},
    5 => CharacterDevice { 0: number },
    6 => BlockDevice { 0: number },
});
choice!(Renaming { 0 => Replace {}, 1 => NoReplace {}, 2 => Exchange {} });
record!(Attached { lost, boot });
record!(Edit { mode, user, group, accessed_ns, modified_ns });
record!(Place { directory, name });
record!(New { kind, mode, umask, user, group, target });
record!(Written { inode, generation, size, modified_ns, strips });
record!(Entry { name, inode });
record!(Lock { inode, owner, start, end, exclusive, pid });
record!(Policy { width, stripe_bytes, copies, record_bytes });
record!(Strip { inode, index, copy });
record!(Write { strip, generation, layout, at, may_create });
record!(Source { strip, generation, at });
record!(Inode {
    id,
    kind,
    mode,
    user,
    group,
    links,
    size,
    accessed_ns,
    modified_ns,
    changed_ns,
    target,
    layout,
    policy,
    generation,
    cut,
    strips,
    stale,
    unsynced,
    unsettled
});

impl Plain for Layout {
    fn put(&self, into: &mut Vec<u8>) {
        let Layout { slots, first, width, copies, stripe_bytes, record_bytes } = *self;
        [slots, first, width, copies, record_bytes].iter().for_each(|number| number.put(into));
        stripe_bytes.put(into);
    }

    fn take(from: &mut &[u8]) -> Option<Layout> {
        let [slots, first, width, copies, record_bytes] = [(); 5].map(|()| u32::take(from));
        let layout = Layout {
            slots: slots?,
            first: first?,
            width: width?,
            copies: copies?,
            record_bytes: record_bytes?,
            stripe_bytes: u64::take(from)?,
        };
        layout.is_sound().then_some(layout)
    }
}

/// Converts ranges for a message.
pub(crate) fn pairs(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

/// Converts ranges from a message.
pub(crate) fn ranges(pairs: Vec<(u64, u64)>) -> Vec<Range<u64>> {
    pairs.into_iter().map(|(start, end)| start..end).collect()
}

impl Plain for StripFacts {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len, self.allocated).put(into);
        self.generation.put(into);
        pairs(&self.unsettled).put(into);
        self.layout.put(into);
    }

    fn take(from: &mut &[u8]) -> Option<StripFacts> {
        let (len, allocated) = Plain::take(from)?;
        let generation = Plain::take(from)?;
        let unsettled = ranges(Vec::take(from)?);
        Some(StripFacts { len, allocated, generation, unsettled, layout: Layout::take(from)? })
    }
}

impl StoreRequest {
    /// Whether the request is within the limits.
    fn is_sound(&self) -> bool {
        match self {
            StoreRequest::Read { at, bytes, .. } => {
                *bytes as usize <= DATA_BYTES_MAX
                    && at.checked_add(u64::from(*bytes)).is_some_and(|end| end <= END_MAX)
            }
            StoreRequest::Write(write) | StoreRequest::Forward { write, .. } => {
                write.at.checked_add(DATA_BYTES_MAX as u64).is_some_and(|end| end <= END_MAX)
            }
            StoreRequest::Copy { from, to, len } => {
                [from.at, to.at].iter().all(|at| at.checked_add(*len).is_some_and(|end| end <= END_MAX))
            }
            StoreRequest::Sync(strips) | StoreRequest::RemoveAll(strips) => strips.len() <= SYNCED_MAX,
            StoreRequest::Held { place } | StoreRequest::Claim { next: Holder { place, .. }, .. } => {
                place.len() <= PLACE_BYTES_MAX
            }
            _ => true,
        }
    }
}

impl Ask {
    /// Whether the request is within the limits.
    fn is_sound(&self) -> bool {
        match self {
            Ask::Store(_, request) | Ask::Held(_, _, request) => request.is_sound(),
            Ask::Manager(Request::Change(Change::Stale(_, copy, _) | Change::Current(_, _, copy, _))) => {
                *copy < crate::layout::COPIES_MAX
            }
            Ask::Manager(Request::Lock { ask: LockRequest::Claim(locks), .. }) => {
                locks.iter().all(Lock::is_sound)
            }
            Ask::Manager(Request::Lock {
                ask: LockRequest::Ask(_, lock, _) | LockRequest::Unlock(lock),
                ..
            }) => lock.is_sound(),
            _ => true,
        }
    }

    /// Decodes a request, and checks its limits.
    pub(crate) fn decode(body: &[u8]) -> Option<Ask> {
        decode(body).filter(Ask::is_sound)
    }
}

/// The beginning of a received message: all but its data.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) body: Vec<u8>,
    /// The length of the data that follows.
    pub(crate) data_bytes: usize,
}

impl Head {
    /// Reads the beginning of a message; `None` at the end.
    pub(crate) fn read(from: &mut dyn Read) -> io::Result<Option<Head>> {
        let mut head = [0; HEAD_BYTES];
        let mut filled = 0;
        while filled < HEAD_BYTES {
            match from.read(&mut head[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // No byte of a message has arrived yet.
                Err(e) if filled == 0 => return Err(e),
                Err(e) => return Err(io::Error::other(e.to_string())),
            }
        }
        let (bytes, number) = head.split_first_chunk::<8>().expect("the head has them");
        let [body_bytes, data_bytes] = [&bytes[..4], &bytes[4..]]
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")) as usize);
        let number = u64::from_le_bytes(number.try_into().expect("8 bytes"));
        if body_bytes > BODY_BYTES_MAX || data_bytes > DATA_BYTES_MAX {
            return Err(io::Error::other(format!("a message of {body_bytes} and {data_bytes} bytes")));
        }
        let mut body = vec![0; body_bytes];
        from.read_exact(&mut body)?;
        Ok(Some(Head { number, body, data_bytes }))
    }
}

/// Sends a message.
pub(crate) fn send(to: &mut dyn io::Write, number: u64, message: &impl Plain, data: &[u8]) -> io::Result<()> {
    let mut bytes = vec![0; HEAD_BYTES];
    message.put(&mut bytes);
    let body_bytes = bytes.len() - HEAD_BYTES;
    if body_bytes > BODY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {body_bytes} bytes")));
    }
    let lengths = [body_bytes as u32, data.len() as u32].map(u32::to_le_bytes);
    bytes[..HEAD_BYTES].copy_from_slice(&[&lengths.concat()[..], &number.to_le_bytes()].concat());
    let mut slices = [IoSlice::new(&bytes), IoSlice::new(data)];
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match to.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut left, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    to.flush()
}
