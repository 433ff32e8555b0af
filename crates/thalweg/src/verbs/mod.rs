//! The verbs. Each only composes rooms.

mod check;
mod generate;
mod sort;

pub use check::check;
pub use generate::generate;
pub use sort::sort;

use thalweg_api::{DoctorReport, Plan};

use crate::{Error, Result, SortOptions};

/// Says what a sort would do. Runs nothing.
pub fn plan(_options: &SortOptions) -> Result<Plan> {
    Err(Error::CouldNot("plan".into()))
}

/// What this machine offers and lacks.
pub fn doctor(_scratch: &[std::path::PathBuf]) -> Result<DoctorReport> {
    Err(Error::CouldNot("doctor".into()))
}
