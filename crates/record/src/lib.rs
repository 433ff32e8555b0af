//! What a record is: layouts, keys and their order-preserving windows, cuts, proofs, the Sort
//! Benchmark's generator and summaries.
//!
//! Invariant: comparing two keys by their windows and then by [`Key::compare_from`] is comparing the keys.
//! Non-goals: files, threads, time.

mod bytes;
mod cuts;
mod examine;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod gensort;
mod in_place;
mod key;
mod layout;
mod lcg;
mod newlines;
mod packed;
mod proof;
mod squeeze;
mod tags;
mod valsort;

pub use bytes::{CELL_BYTES, sum_at, sum_of_file};
pub use cuts::{
    CUT_KEY_BYTES_MAX, Cut, Cuts, choose_cuts, choose_cuts_by_bytes, choose_weighted_cuts, keep_cuts,
    thin_cuts,
};
pub use examine::{Stretch, is_benchmark};
pub use gensort::{Generator, KEY_BYTES, Kind, RECORD_BYTES};
pub use in_place::InPlace;
pub use key::{Key, KeyError, WINDOW_BYTES, common_prefix};
pub use layout::{KeyPart, KeyPartError, Layout, Walk, records_in};
pub use newlines::{Newlines, newlines};
pub use packed::{pack_cuts, unpack_cuts};
pub use proof::{Chain, Prover, add_proof, add_record, counted, file_bytes, record_hash, same_records};
pub use squeeze::Squeeze;
pub use tags::{TAG_BYTES, TAG_PART, Tagger, Tags, Untagger};
pub use valsort::{SUMMARY_BYTES, Summary, SummaryError};
