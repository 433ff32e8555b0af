//! Records: layouts, keys and their order-preserving windows, split points, proofs, and the generator and validator
//! of the Sort Benchmark.
//!
//! Invariant: comparing windows of two keys, and then [`Key::compare_from`] the end of the windows, is the same as
//! comparing the keys.
//! Non-goals: files, threads, time.

mod bytes;
mod carry;
mod check;
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
mod split_points;
mod tags;
mod valsort;
mod varying_bits;

pub use bytes::{CELL_BYTES, sum_at, sum_of_file};
pub use check::{StretchCheck, is_benchmark};
pub use gensort::{Generator, KEY_BYTES, Kind, RECORD_BYTES};
pub use in_place::InPlace;
pub use key::{Key, KeyError, WINDOW_BYTES, common_prefix};
pub use layout::{Layout, Walk, records_in};
pub use newlines::{Newlines, newlines};
pub use packed::{pack_sample, unpack_sample};
pub use proof::{
    Chain, Prover, add_hash, add_proof, add_record, counted, file_bytes, record_hash, same_records,
};
pub use split_points::{
    SPLIT_KEY_BYTES_MAX, SplitPoint, SplitPoints, choose_split_points, choose_split_points_by_bytes,
    choose_weighted_split_points, keep_every, thin_sample,
};
pub use tags::{TAG_BYTES, TAG_PART, Tagger, Tags, Untagger};
pub use thalweg_api::{KeyPart, KeyPartError};
pub use valsort::{SUMMARY_BYTES, Summary, SummaryError};
pub use varying_bits::VaryingBits;
