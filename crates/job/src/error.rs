//! Errors of jobs, which are those of the verbs.

use thalweg_engine::Error;

/// The signal in whose name what runs here is stopped.
pub(crate) const SIGTERM: i32 = 15;

/// An error that is one line of text.
pub(crate) fn could_not(why: impl ToString) -> Error {
    Error::Node { why: why.to_string(), wrong: false }
}
