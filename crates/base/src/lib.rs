//! Units, seeded random numbers and the clock, for all crates.
//!
//! Invariant: nothing here knows about records, blocks or files.
//! Non-goals: a common error type, configuration, code without a home.

pub mod clock;
pub mod rng;
pub mod sabotage;
pub mod units;
pub mod unwinding;
