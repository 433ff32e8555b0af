//! Tables on the nodes of a cluster: RP* (paper 002) keeps ordered records in buckets on many servers.
//!
//! ```text
//! Table: Client, Image ----Requests---> service: BucketServer: Owned, Owned, ...      registrar: which tables there are
//!                      <---Replies-----          | transfers, forwarded requests
//!                                        other nodes
//! ```
//!
//! Model: the cores (`client.rs`, `server.rs` and the modules that they use) have no threads, sockets or clock;
//! sim_test.rs runs them from seeds. `table.rs` and `service.rs` connect them over links.

mod arrange;
mod client;
mod datagrams;
mod dropping;
mod drops;
mod dump;
mod error;
mod expiry;
mod files;
mod front;
mod image;
mod index;
mod index_message;
mod index_server;
#[cfg(test)]
mod index_test;
mod interval;
mod journal;
mod load;
mod message;
mod multicast;
mod nodes;
mod numbers;
mod owned;
mod pages;
mod parity;
mod range;
mod records;
mod registrar;
mod resp;
pub mod scale;
mod server;
mod service;
mod session;
#[cfg(test)]
mod sim_test;
mod spare;
mod stream;
mod table;
pub mod text;
mod transfer;
mod unload;
mod window;

/// What a fuzz target needs.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz {
    pub(crate) use super::message::{Message, Spec};
    pub(crate) use super::server::{BucketServer, Outbox};
}

pub use client::{Transport, Variant};
pub(crate) use error::fits;
pub use error::{Error, Result};
pub(crate) use expiry::Text;
pub use files::{TableFiles, is_table};
pub(crate) use front::Front;
pub use interval::Interval;
pub use load::{Duplicates, Loader, Prepared};
pub use message::{Answer, Arrange, Operation};
pub use nodes::{Beside, CAPACITY, CAPACITY_BYTES, Tables};
pub use parity::Shape;
pub use range::Range;
pub use service::TableService;
pub use table::{ClusterOptions, Table, Ticket};
pub use unload::Dump;
pub use window::{WINDOW_MAX, Window};
