//! The verbs. Each only composes rooms.

mod check;
mod doctor;
mod generate;
mod join;
mod merge;
mod nodes;
mod partition;
mod plan;
mod pump;
mod receipt;
mod shuffle;
mod sort;

pub use check::{check, check_joined, check_key, examine};
pub use doctor::doctor;
pub use generate::generate;
pub use join::join;
pub use merge::merge;
pub use nodes::share;
pub(crate) use nodes::share::sorter_bytes;
pub use partition::partition;
pub(crate) use partition::sampled_bytes;
pub use plan::plan;
pub use pump::{ends, pump};
pub use shuffle::shuffle;
pub use sort::sort;
pub(crate) use sort::{MEMORY_BYTES_MIN, engine_error};
