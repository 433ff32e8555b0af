//! The verbs. Each only composes rooms.

mod sort;

pub use sort::sort;

mod check;
mod generate;

pub use check::check;
pub use generate::generate;

use thalweg_api::{DoctorReport, Plan, Receipt};

use crate::{Error, Progress, Result, SortOptions};

/// Says what a sort would do. Runs nothing.
pub fn plan(_options: &SortOptions) -> Result<Plan> {
    Err(Error::CouldNot("plan".into()))
}

/// What this machine offers and lacks.
pub fn doctor(_scratch: &[std::path::PathBuf]) -> Result<DoctorReport> {
    Err(Error::CouldNot("doctor".into()))
}
