//! Stores: who keeps the strips of files.
//!
//! Model: a store answers requests about strips, one at a time or many at once, from any thread. What a request says is
//! plain data, so it can be answered in this process ([`crate::local`]) or at the other end of a link.
//! Invariant: what is read is what was written, byte for byte, or an error. A request of an older generation of a file than the
//! store has seen is refused: the file has been truncated since, or other copies of it are current.
//! Non-goals: names, sizes of files, and which strip is where.

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
    /// Which of the file's strips.
    pub index: u32,
    /// Which copy.
    pub copy: u32,
}

impl fmt::Display for Strip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {} of strip {} of inode {}", self.copy, self.index, self.inode)
    }
}

/// Where to write, and what of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The strip.
    pub strip: Strip,
    /// The generation of its file.
    pub generation: u64,
    /// The layout of its file, which a new strip notes for whoever finds it alone.
    pub layout: Layout,
    /// The byte of the strip.
    pub at: u64,
    /// Whether the strip may be new. One that should be there and is not is lost, and no new one takes its place.
    pub may_create: bool,
}

/// What a store knows of a strip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripFacts {
    /// Bytes.
    pub len: u64,
    /// The generation of its file.
    pub generation: u64,
    /// The layout of its file.
    pub layout: Layout,
    /// The intent: bytes that were written since both copies were known to be durable, or that a crash may have caught. The
    /// other copy may have others there.
    pub unsettled: Vec<Range<u64>>,
}

/// Keeps strips.
pub trait Store: Send + Sync {
    /// Fills `into` from a byte of the strip on. What lies in a hole or behind the end is zeros.
    fn read(&self, strip: Strip, generation: u64, at: u64, into: &mut [u8]) -> Result<()>;

    /// The first bytes from `at` on that were written, up to a hole or the end; none if there are no more.
    fn next_data(&self, strip: Strip, generation: u64, at: u64) -> Result<Option<Range<u64>>>;

    /// Writes all of `from`. It is there after the process ends, and after a power loss if `sync` followed.
    fn write(&self, write: &Write, from: &[u8]) -> Result<()>;

    /// Refuses older generations from then on, and if the file was cut since the one that the strip has, cuts that to at most
    /// `len` bytes. Durable; nothing to do if there is no such strip, or it has seen this generation.
    fn truncate(&self, strip: Strip, generation: u64, len: u64) -> Result<()>;

    /// Makes the strip durable; a number for [`Store::settle`].
    fn sync(&self, strip: Strip) -> Result<u64>;

    /// Learns that the other copy is durable too, as of the sync of this number: what was written before leaves the intent.
    fn settle(&self, strip: Strip, generation: u64, sync: u64) -> Result<()>;

    /// Where the strip was written since this was asked before, and where else the other copy may differ if it was not.
    fn changes(&self, strip: Strip, generation: u64) -> Result<Vec<Range<u64>>>;

    /// Writes a damaged block anew, at a byte of the strip where one begins, if these bytes are those that its checksum is of.
    /// Otherwise there is nothing to do.
    fn mend(&self, strip: Strip, generation: u64, at: u64, block: &[u8]) -> Result<()>;

    /// Removes the strip, if it is there, of a generation below this one, so that a request that comes late does not remove
    /// what was made since. Of one that is damaged or was never whole, no generation is known, and what is left goes.
    fn remove(&self, strip: Strip, below: u64) -> Result<()>;

    /// What is known of the strip; `None` if it is not there.
    fn facts(&self, strip: Strip) -> Result<Option<StripFacts>>;

    /// All strips.
    fn list(&self) -> Result<Vec<Strip>>;

    /// Room for more.
    fn space(&self) -> Result<Space>;
}
