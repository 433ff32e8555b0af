//! What a record is: layouts, keys and their order-preserving windows, proofs, the Sort Benchmark's
//! generator and summaries.
//!
//! Law: comparing two keys by their windows and then by [`Key::compare`] is comparing the keys.
//! Non-goals: files, threads, time.

mod layout;

pub use layout::{KeyPart, KeyPartError, Layout};
