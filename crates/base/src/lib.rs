//! Units, seeded random numbers, the clock, and plain data as bytes, for all crates.
//!
//! Invariant: nothing here knows about records, blocks or files.
//! Non-goals: a common error type, configuration, code without a home.

pub mod clock;
pub mod codec;
pub mod escape;
pub mod host_list;
pub mod names;
pub mod rng;
pub mod sabotage;
pub mod units;
pub mod unwinding;
