//! Sorts files and streams of any size in a fixed amount of memory.

mod assemble;
mod distribute;
#[cfg(test)]
mod distribute_test;
mod entry;
mod error;
mod forecast;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod geometry;
mod handover;
mod in_order;
mod interpolation_sort;
mod job;
mod leftover;
mod manifest;
mod names;
mod options;
mod order;
mod output_notes;
mod output_scratch;
mod pages;
mod partition;
mod preflight;
mod range;
mod replay;
mod resample;
mod sample;
mod scratch;
mod sorted;
mod sorter;
mod spill;
mod stream;
mod survey;
mod validate;

pub use error::{Error, Result};
pub use forecast::{Facts, disk_seconds, distribute_seconds, forecast, sort_seconds};
pub use job::run;
pub use leftover::clear_killed;
pub use options::{BLOCKS_HELD_MAX, SCRATCH_FILES_MAX, Sort};
pub use sorter::{Sorter, SorterOutput};
pub use stream::Expected;
pub use survey::lay_out;
pub use thalweg_pump::Watch;
