//! Transfers of files and trees from one place to another: complete, verified, and resumable.
//!
//! ```text
//! WorkQueue               directories that are being listed, files that wait, the large file that all lanes share
//!   |  names, pieces
//! SourceLane ----parcels----> SinkLane          a parcel is a block and what it contains: a piece of a large file,
//!   reads ahead                writes behind     or several small files packed together
//!
//! SourceLane --> SendLane ==== link ==== ReceiveLane --> SinkLane          the same between two processes
//! ```
//!
//! Model: each lane pumps parcels on its own thread, at its own offsets. The source and the destination are each a
//! [`Tree`](thalweg_io::tree::Tree); this crate knows no other file system. Small files travel packed, many to a block,
//! so that they cost as much as their names and not as their blocks.
//! Invariant: nothing gets its name in DEST before it is complete. The output equals the input, by checksums that do
//! not depend on the number of lanes or the sizes of blocks (`thalweg_record::sum_at`).
//! Invariant: what the journal lists is durable, and is not read again.
//! Invariant: an entry that cannot be read, or changes while it is read, is listed and left out (`left_out.rs`); nothing
//! else depends on it.
//! Non-goals: a consistent snapshot of a tree that others change; extended attributes of symbolic links.

mod blocks;
mod choice;
mod claim;
#[cfg(test)]
mod crash_test;
mod directory;
mod error;
mod file_transfer;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod hidden_names;
mod job;
mod journal;
mod known;
mod left_out;
mod message;
mod peer;
mod rate_limit;
mod receipt;
mod receive;
mod refused;
mod relay;
mod roots;
mod rules;
mod send;
mod shared;
mod sink;
mod source;
mod sources;
mod ssh_error;
mod work_queue;

pub use blocks::{BLOCK_BYTES, DEPTH};
pub use choice::Choice;
pub use error::{Error, Result};
pub use job::{STAGE, run};
pub use peer::{FRAME_BYTES, Route, Transport};
pub use receive::{Requested, receive};
pub use refused::Refused;
pub use relay::Onward;
pub use roots::{From, To, Transfer};
pub use send::send;
pub use ssh_error::{SshEnd, SshError, SshFault};
