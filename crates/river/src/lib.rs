//! Rivers: records from N inlets to M outlets, each where a pick says, proved lane by lane.
//!
//! Model: an [`Inlet`] is a sink for blocks of records and an [`Outlet`] a source of batches of them. A [`Pick`] says to
//! which *lane* a record goes, and every lane belongs to an outlet. Records are copied once, into the open batch of
//! their lane; a batch that is full leaves for its outlet when there is a credit for it, and waits in the inlet until
//! then. What comes is the [`core`]'s to judge: each outlet has one, pure, and runs it over whatever brings messages
//! ([`Way`]), memory or a link.
//!
//! ```text
//! blocks -> Inlet -> open batches of lanes -> [queued] -> Way -> Outlet: Core -> batches
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
mod pick;
mod river;
mod sabotage;
mod send_queue;
#[cfg(test)]
mod sim_test;
mod way;

pub use batch::Batch;
pub use error::{Error, Result};
pub use head::{HEAD_BYTES, Head, Kind};
pub use inlet::Inlet;
pub use link::{Reach, window};
pub use outlet::Outlet;
pub use pick::Pick;
pub use river::{Bed, Builder, River, lanes_of};
pub use way::{Message, Stopper, Way};
