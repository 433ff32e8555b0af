//! Units, seeded random numbers and the clock: what every crate stands on.
//!
//! Invariant: nothing here knows what a record, a block or a file is.
//! Non-goals: an error enum for the house, a configuration, a place for things without a home.

pub mod clock;
pub mod rng;
pub mod sabotage;
pub mod units;
pub mod unwinding;
