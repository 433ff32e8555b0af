//! What a record is: layouts, keys and their order-preserving windows, proofs, the Sort Benchmark's
//! generator and summaries.
//!
//! Law: comparing two keys by their windows and then by [`Key::compare`] is comparing the keys.
//! Non-goals: files, threads, time.

mod gensort;
mod layout;
mod lcg;
mod valsort;

pub use gensort::{Generator, KEY_BYTES, Kind, RECORD_BYTES};
pub use layout::{KeyPart, KeyPartError, Layout};
pub use valsort::{SUMMARY_BYTES, Summary, SummaryError};
