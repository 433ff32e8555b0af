//! Rivers: records from N inlets to M outlets, each where a pick says, proved lane by lane.
//!
//! Model: an [`Inlet`] is a sink for blocks of records and an [`Outlet`] a source of batches of them. A [`Partitioner`] says to
//! which *lane* a record goes, and every lane belongs to an outlet. Records are copied once, into the open batch of
//! their lane; a batch that is full leaves for its outlet when there is a credit for it, and waits in the inlet until
//! then. What comes is the [`core`]'s to judge: each outlet has one, pure, and runs it over whatever brings messages
//! ([`Transport`]), memory or a link.
//!
//! ```text
//! blocks -> Inlet -> open batches of lanes -> [queued] -> Transport -> Outlet: Core -> batches
//!             ^ pick                            ^ credits, proofs <-  |
//! ```
//!
//! Invariant: what the outlets give out is what the inlets took, each record once, or it is an error.
//! Invariant: memory is bounded: a credit is a buffer, and an inlet holds one open batch a lane and so many queued ones.
//! Non-goals: opening files, sorting, going on without an end that has gone: the whole river is run again.

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
pub use link::{Reach, window};
pub use outlet::Outlet;
pub use partitioner::Partitioner;
pub use river::{Builder, River, RiverConfig, lanes_of};
pub use transport::{Message, Stopper, Transport};
