//! Sorting files of any size in any memory.

mod assemble;
mod distribute;
mod entry;
mod error;
mod forecast;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod geometry;
mod job;
mod leftover;
mod manifest;
mod order;
mod pages;
mod part;
mod replay;
mod sabotage;
mod sample;
mod scratch;
mod sorted;
mod sound;
mod stream;
mod survey;

pub use error::{Error, Result};
pub use forecast::{Facts, forecast};
pub use job::{Sort, Watch, run};
pub use survey::lay_out;
