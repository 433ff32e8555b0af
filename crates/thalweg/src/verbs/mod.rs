//! The verbs. Each only composes rooms.

use thalweg_api::{Check, DoctorReport, Plan, Receipt};

use crate::{CheckOptions, Error, GenOptions, Progress, Result, SortOptions};

/// Sorts.
pub fn sort(_options: &SortOptions, _progress: &Progress) -> Result<Receipt> {
    Err(Error::CouldNot("sort".into()))
}

/// Says what a sort would do. Runs nothing.
pub fn plan(_options: &SortOptions) -> Result<Plan> {
    Err(Error::CouldNot("plan".into()))
}

/// Writes the Sort Benchmark's records.
pub fn generate(_options: &GenOptions, _progress: &Progress) -> Result<Receipt> {
    Err(Error::CouldNot("gen".into()))
}

/// Checks that files are one sorted sequence.
pub fn check(_options: &CheckOptions, _progress: &Progress) -> Result<Check> {
    Err(Error::CouldNot("check".into()))
}

/// What this machine offers and lacks.
pub fn doctor(_scratch: &[std::path::PathBuf]) -> Result<DoctorReport> {
    Err(Error::CouldNot("doctor".into()))
}
