//! A river moves records from N inlets to M outlets. A partitioner selects the lane of each record, and every lane is
//! proved.
//!
//! Model: an [`Inlet`] is a sink for blocks of records, and an [`Outlet`] is a source of batches. A [`Partitioner`]
//! selects the *lane* of a record, and every lane belongs to one outlet. A record is copied once, into the open batch
//! of its lane. A full batch is sent when its outlet has granted a credit for it; until then it waits in the inlet.
//! Each outlet has a [`core`], a pure state machine, which checks everything that arrives over a [`Transport`]:
//! memory or a link.
//!
//! ```text
//! blocks -> Inlet -> open batches of lanes -> [send queue] -> Transport -> Outlet: Core -> batches
//!             ^ partitioner                         ^ credits, proofs <-  |
//! ```
//!
//! Invariant: the outlets give out exactly the records that the inlets took, each once; otherwise the river ends with
//! an error.
//! Invariant: memory is bounded. A credit is a buffer, and an inlet has one open batch for each lane and a limited
//! send queue.
//! Non-goals: opening files; sorting; continuing after one end has failed: the whole river runs again.

mod batch;
pub mod core;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod head;
mod inlet;
mod link;
mod outlet;
mod partitioner;
mod river;
mod sabotage;
mod send_queue;
#[cfg(test)]
mod sim_test;
mod transport;

pub use batch::Batch;
pub use error::{Error, Result};
pub use head::{HEAD_BYTES, Head, Kind};
pub use inlet::Inlet;
pub use link::{Connection, window};
pub use outlet::Outlet;
pub use partitioner::Partitioner;
pub use river::{Builder, River, RiverConfig, lanes_of};
pub use transport::{Message, Stopper, Transport};
