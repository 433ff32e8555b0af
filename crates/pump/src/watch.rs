//! How the caller of long work observes and stops it.

use std::fmt::Display;

/// Observes work, and may stop it. Each method does nothing unless it is implemented.
pub trait Watch: Sync {
    /// How long all stages after the next one should take, in percent of the next one. If this is not said, each of
    /// them counts as long as that one.
    fn behind_next(&self, _percent: u64) {}

    /// A stage begins. `total_bytes` is 0 if the total is unknown.
    fn begin(&self, _stage: &str, _index: u64, _stages: u64, _total_bytes: u64) {}

    /// This many more bytes of the stage are done.
    fn advance(&self, _bytes: u64) {}

    /// Whether to stop.
    fn stopped(&self) -> bool {
        false
    }

    /// Reports something that the user should know at once and that is not an error.
    fn note(&self, _note: &dyn Display) {}

    /// Reports what stopped work left, from which a later run can resume.
    fn note_resumable(&self, _note: &dyn Display) {}
}

/// Work that nobody observes or stops.
pub struct Unwatched;

impl Watch for Unwatched {}
