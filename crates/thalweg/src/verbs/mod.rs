//! The verbs. Each only composes rooms.

mod check;
mod doctor;
mod generate;
mod partition;
mod plan;
mod pump;
mod sort;

pub use check::check;
pub use doctor::doctor;
pub use generate::generate;
pub use partition::partition;
pub use plan::plan;
pub use pump::{ends, pump};
pub use sort::sort;
pub(crate) use sort::{MEMORY_BYTES_MIN, engine_error};
