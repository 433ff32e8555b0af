//! Files and trees, moved from one place to another: whole, proved, and gone on from where they were cut off.
//!
//! ```text
//! Feed: what is next      directories being read, files that wait, the large file that all lanes share
//!   |  names, pieces
//! SourceLane ----parcels----> SinkLane          a parcel is a block with what it is about: a piece of a large file,
//!   reads ahead                writes behind     or small files packed behind one another
//!
//! SourceLane --> SendLane ==== link ==== ReceiveLane --> SinkLane          the same between two processes
//! ```
//!
//! Model: lanes pump parcels, each on a thread of its own and at offsets of its own. Small files travel packed, many to
//! a block, so that what they cost is their names and not their blocks.
//! Invariant: nothing bears its name in DEST before it is whole; what came out is what went in, by sums that depend on
//! neither the number of lanes nor the sizes of blocks (`thalweg_record::sum_at`).
//! Invariant: what the journal lists is durable, and is not read again.
//! Non-goals: access lists and extended attributes, a moment's picture of a tree that others change.

mod claim;
mod error;
mod far;
mod feed;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod inside;
mod job;
mod journal;
mod limit;
mod message;
mod moving;
mod names;
mod place;
mod receipt;
mod receive;
mod roots;
mod send;
mod shared;
mod sink;
mod source;

pub use error::{Error, Result};
pub use far::{FRAME_BYTES, Route, Streams, Way};
pub use job::{BLOCK_BYTES, DEPTH, Watch, run};
pub use journal::{escaped, unescaped};
pub use receive::receive;
pub use roots::{From, To, Transfer};
pub use send::send;
