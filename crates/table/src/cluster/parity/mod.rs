//! Parity for tables: groups of buckets on different servers, of which any k may be lost (LH*RS, on ranges).
//!
//! ```text
//! group 1    n1 [a..f)   n2 [f..m)   n3 [m..s)   n4 [s..)     n5 parity      4+1
//!               record -> rank r       record -> rank r           line r: sum of the records with rank r
//! ```
//!
//! Model: `member.rs` is what a data bucket does, `keeper.rs` a parity bucket, `restore.rs` the recovery of a data
//! bucket, `join.rs` merges, `dump.rs` the end of a server, `directory.rs` the registrar. A rank belongs to one record of each data bucket, so ranges
//! split as without parity: records that leave take nothing with them, and get a rank in their new bucket.
//! Invariant: a change that was acknowledged is in all parity buckets of its group.

pub(super) mod directory;
mod dump;
mod field;
mod join;
mod keeper;
mod lines;
pub(super) mod member;
pub(crate) mod message;
pub(super) mod protection;
mod restore;
mod serve;
pub(super) mod service;
mod transfer;

pub(super) use member::LEASE_MS;
pub use message::Shape;
#[cfg(test)]
pub(super) use serve::check_sums;
