//! Errors of jobs, which are those of the verbs.

use thalweg_engine::Error;

/// The signal in whose name what runs here is stopped.
pub(crate) const SIGTERM: i32 = 15;

/// What a host, or the link with it, says went wrong.
pub(crate) fn said_by(host: &str, why: impl std::fmt::Display) -> Error {
    Error::Node { why: format!("{host}: {why}"), wrong: false }
}
