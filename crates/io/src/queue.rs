//! Operations and the queue that carries them out.

use thalweg_block::Block;

use crate::{Action, Handle, Result};

/// Reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Fill the block's first `len()` bytes from the file.
    Read,
    /// Write the block's first `len()` bytes to the file.
    Write,
}

impl Kind {
    /// The action that an operation of this kind is.
    pub fn action(self) -> Action {
        match self {
            Kind::Read => Action::Read,
            Kind::Write => Action::Write,
        }
    }
}

/// One operation on one block. The block's length says how many bytes to read or write.
#[derive(Debug)]
pub struct Op {
    /// Reading or writing.
    pub kind: Kind,
    /// The file.
    pub file: Handle,
    /// Byte of the file where the block's first byte belongs. For a direct file a multiple of 4096,
    /// and so is the length; the block is aligned by nature.
    pub at: u64,
    /// The bytes. Theirs is the queue until the completion.
    pub block: Block,
    /// The submitter's own mark, given back with the completion.
    pub tag: u64,
}

/// A completed operation.
#[derive(Debug)]
pub struct Done {
    /// Reading or writing.
    pub kind: Kind,
    /// The file.
    pub file: Handle,
    /// Byte of the file.
    pub at: u64,
    /// The block, given back. After a read its length is what was read: less than asked only if the
    /// file ends there. After an error its contents are undefined.
    pub block: Block,
    /// The submitter's mark.
    pub tag: u64,
    /// Whether it went well.
    pub result: Result<()>,
}

/// Carries out operations for one thread.
///
/// Contract: at most `depth()` operations are in flight (one more is a programmer's error). Every
/// submitted operation is reaped exactly once, in any order. Dropping a queue waits for what is in
/// flight. A stream (a pipe, a terminal, what was opened with [`Access::WriteStream`]) has one
/// operation in flight at most, since two could overtake each other.
///
/// [`Access::WriteStream`]: crate::Access::WriteStream
pub trait Queue: Send {
    /// Starts an operation. Never waits for it.
    fn submit(&mut self, op: Op);

    /// The next completion. With `wait`, blocks until there is one; `None` then means that nothing
    /// is in flight. Without, `None` means that nothing is ready.
    fn reap(&mut self, wait: bool) -> Option<Done>;

    /// Operations submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// The most that may be in flight.
    fn depth(&self) -> usize;
}
