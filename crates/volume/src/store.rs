//! Stores, which keep the strips of files.
//!
//! Model: a store answers requests about strips, one at a time or many at once, from any thread. Requests are plain
//! data, so they can be answered in this process ([`crate::local`]) or at the other end of a link.
//! Invariant: a read returns what was written, byte for byte, or an error. A request of an older generation of a file
//! than the store has seen is refused: the file has been truncated since, or other copies of it are current.
//! Non-goals: names, sizes of files, and the slots of strips.

use std::fmt;
use std::ops::Range;

use thalweg_io::Space;

use crate::Result;
use crate::layout::Layout;

/// A strip, or a copy of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Strip {
    /// The file.
    pub inode: u64,
    /// The number of the strip in the file.
    pub index: u32,
    /// The number of the copy.
    pub copy: u32,
}

impl fmt::Display for Strip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {} of strip {} of inode {}", self.copy, self.index, self.inode)
    }
}

/// The place of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The strip.
    pub strip: Strip,
    /// The generation of its file.
    pub generation: u64,
    /// The layout of its file, which a new strip stores for tools that find it alone.
    pub layout: Layout,
    /// The offset in the strip.
    pub at: u64,
    /// Whether the strip may be made. Otherwise a missing strip is lost, and no new one takes its place.
    pub may_create: bool,
}

/// The facts that a store knows of a strip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripFacts {
    /// The length in bytes.
    pub len: u64,
    /// The space that its bytes take on the disk; holes take none.
    pub allocated: u64,
    /// The generation of its file.
    pub generation: u64,
    /// The layout of its file.
    pub layout: Layout,
    /// The intent: bytes that were written since both copies were known to be durable, or during a crash. The other
    /// copy may have different bytes there.
    pub unsettled: Vec<Range<u64>>,
}

/// The most strips of one request to sync them.
pub(crate) const SYNCED_MAX: usize = 256;

/// The place from where a store copies bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The strip.
    pub strip: Strip,
    /// The generation of its file.
    pub generation: u64,
    /// The offset in the strip.
    pub at: u64,
}

/// The bytes that a store copies at a time.
const COPIED: u64 = 1 << 20;

/// Keeps strips.
pub trait Store: Send + Sync {
    /// Whether a request begins at once; otherwise the store has to be found first, which takes seconds if it is lost.
    fn is_ready(&self) -> bool {
        true
    }

    /// Fills `into` with the bytes from `at` on. Holes, and bytes past the end, are zeros.
    fn read(&self, strip: Strip, generation: u64, at: u64, into: &mut [u8]) -> Result<()>;

    /// The first range at or after `at` that is not a hole, up to the next hole; `None` if there is only a hole left.
    /// Bytes that are damaged or were cut off are not a hole.
    fn next_data(&self, strip: Strip, generation: u64, at: u64) -> Result<Option<Range<u64>>>;

    /// Writes all of `from`. It survives the end of the process, and after a later `sync` a power loss.
    fn write(&self, write: &Write, from: &[u8]) -> Result<()>;

    /// Copies `len` bytes of a strip of this store to a place in another one, like a read and a write of them.
    fn copy(&self, from: Source, to: &Write, len: u64) -> Result<()> {
        let mut bytes = vec![0; len.min(COPIED) as usize];
        (0..len).step_by(COPIED as usize).try_for_each(|done| {
            let bytes = &mut bytes[..(len - done).min(COPIED) as usize];
            self.read(from.strip, from.generation, from.at + done, bytes)?;
            self.write(&Write { at: to.at + done, ..*to }, bytes)
        })
    }

    /// Makes these bytes of the strip a hole, as far as it has them. Like a write, it survives a power loss after a later
    /// `sync`.
    fn punch(&self, strip: Strip, generation: u64, bytes: Range<u64>) -> Result<()>;

    /// Refuses older generations from then on, and if the file was cut since the strip's generation, cuts the strip to
    /// at most `len` bytes. Durable. Does nothing if there is no such strip, or if it has seen this generation.
    fn truncate(&self, strip: Strip, generation: u64, len: u64) -> Result<()>;

    /// Makes strips durable, which come in ascending order. Returns a number for each, for [`Store::settle`].
    fn sync(&self, strips: &[Strip]) -> Result<Vec<u64>>;

    /// The strips of a file that this client wrote here and did not sync, in any order. None for a store in this process,
    /// which does not lose power alone.
    fn unsynced(&self, _inode: u64) -> Vec<Strip> {
        Vec::new()
    }

    /// Notes that the other copy is durable too, as of this sync: what was written before it leaves the intent.
    fn settle(&self, strip: Strip, generation: u64, sync: u64) -> Result<()>;

    /// The ranges that were written since the previous call, or, on the first call, in which the other copy may differ.
    fn changes(&self, strip: Strip, generation: u64) -> Result<Vec<Range<u64>>>;

    /// Rewrites the damaged block at offset `at` of the strip, if these bytes match its checksum. Otherwise does
    /// nothing.
    fn mend(&self, strip: Strip, generation: u64, at: u64, block: &[u8]) -> Result<()>;

    /// Removes the strip if its generation is less than `below`, so that a late request does not remove a newer strip.
    /// If the strip is damaged or was never whole, its generation is unknown, and its files are removed.
    fn remove(&self, strip: Strip, below: u64) -> Result<()>;

    /// Removes strips of any generation. After a failure it goes on with the others.
    fn remove_all(&self, strips: &[Strip]) -> Result<()> {
        let mut done = Ok(());
        for strip in strips {
            let removed = self.remove(*strip, u64::MAX);
            done = done.and(removed);
        }
        done
    }

    /// The facts of the strip; `None` if it does not exist.
    fn facts(&self, strip: Strip) -> Result<Option<StripFacts>>;

    /// All strips.
    fn list(&self) -> Result<Vec<Strip>>;

    /// The free and the total space of its file system, and a number that no other file system has.
    fn space(&self) -> Result<(Space, u64)>;
}
