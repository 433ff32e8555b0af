//! The verbs. Each only composes rooms.

mod check;
mod doctor;
mod generate;
mod sort;

pub use check::check;
pub use doctor::doctor;
pub use generate::generate;
pub use sort::sort;

use thalweg_api::Plan;

use crate::{Error, Result, SortOptions};

/// Says what a sort would do. Runs nothing.
pub fn plan(_options: &SortOptions) -> Result<Plan> {
    Err(Error::CouldNot("plan".into()))
}
