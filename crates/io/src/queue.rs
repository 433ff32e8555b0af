//! Operations and the queue that executes them.

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
    /// The corresponding action in errors.
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
    /// The offset of the block's first byte in the file. If the file bypasses the page cache, offset and length are
    /// multiples of 4096; blocks are always aligned.
    pub at: u64,
    /// The block. The queue owns it until the completion.
    pub block: Block,
    /// A number of the submitter's choice, which is returned with the completion.
    pub tag: u64,
}

/// A completed operation.
#[derive(Debug)]
pub struct Done {
    /// Reading or writing.
    pub kind: Kind,
    /// The file.
    pub file: Handle,
    /// The offset.
    pub at: u64,
    /// The block, returned. After a read its length is the number of bytes read, which is less than requested only at
    /// the end of the file. After an error its contents are undefined.
    pub block: Block,
    /// The submitter's number.
    pub tag: u64,
    /// The result.
    pub result: Result<()>,
}

/// Executes operations for one thread.
///
/// Contract: at most `depth()` operations are in flight; submitting more is a bug and panics. Every
/// submitted operation is reaped exactly once, in any order. Dropping a queue waits for the operations in
/// flight. A stream (a pipe, a terminal, or a file opened with [`Access::WriteStream`]) has at most one
/// operation in flight, since a second one could overtake it.
///
/// [`Access::WriteStream`]: crate::Access::WriteStream
pub trait Queue: Send {
    /// Starts an operation without waiting for it.
    fn submit(&mut self, op: Op);

    /// The next completion. With `wait` it blocks until there is one, and `None` means that nothing is
    /// in flight. Without `wait`, `None` means that nothing has completed yet.
    fn reap(&mut self, wait: bool) -> Option<Done>;

    /// Operations submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// The most operations in flight.
    fn depth(&self) -> usize;
}
