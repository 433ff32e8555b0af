//! Tables: ordered records in memory, of this process or of the nodes of a cluster, and served to any Redis client.
//!
//! ```text
//! sockets --> Server --> requests (resp.rs) --> commands --> Keyspace --> Bucket: a B+-tree --> Slab: cells of records
//! ```
//!
//! A bucket (a term of Diène and Litwin's paper on RP*) is the set of records that one server has in a range of keys.

mod arena;
mod bucket;
mod call;
pub mod cluster;
mod commands;
mod condition;
mod cursors;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod keys;
mod keyspace;
mod listen;
mod pattern;
mod resp;
mod server;
mod slab;
mod socket;
mod store;
mod table;
mod walk;

pub use condition::{CONDITION_BYTES_MAX, Condition, ConditionError};
pub use listen::{Error as ServerError, Options, Place};
pub use server::{Server, Stop};
pub use socket::Tls;
pub use table::{Record, Records, Table, Ticket};
