//! Sorting files of any size in any memory.

mod asked;
mod assemble;
mod distribute;
#[cfg(test)]
mod distribute_test;
mod durable;
mod entry;
mod error;
mod forecast;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod geometry;
mod handover;
mod job;
mod leftover;
mod manifest;
mod names;
mod order;
mod pages;
mod part;
mod preflight;
mod range;
mod replay;
mod resample;
mod sample;
mod scratch;
mod sorted;
mod sorter;
mod sound;
mod spill;
mod spread;
mod stream;
mod survey;
mod within;

pub use asked::{BLOCKS_HELD_MAX, SCRATCH_FILES_MAX, Sort};
pub use error::{Error, Result};
pub use forecast::{Facts, disk_seconds, distribute_seconds, forecast, sort_seconds};
pub use job::run;
pub use leftover::clear_killed;
pub use sorter::{Sorter, SorterOutput};
pub use stream::Expected;
pub use survey::lay_out;
pub use thalweg_pump::Watch;
