//! Sorting files of any size in any memory.

mod assemble;
mod distribute;
mod entry;
mod error;
mod geometry;
mod job;
mod leftover;
mod manifest;
mod order;
mod pages;
mod part;
mod replay;
mod sample;
mod scratch;
mod sorted;

pub use error::{Error, Result};
pub use job::{Sort, Watch, run};
