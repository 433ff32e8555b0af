//! Hidden names beside DEST, used until a file or tree is complete.
//!
//! ```text
//! .NAME.thalweg-partial      a file or a tree that is not complete yet
//! .NAME.thalweg-journal      which parts of it are durable
//! ```
//!
//! Invariant: they depend only on the name of the destination, so a run finds what an earlier one left.

use std::ffi::{OsStr, OsString};

use thalweg_io::hidden;

/// The name of a file or tree until it is complete.
pub(crate) fn partial(name: &OsStr) -> OsString {
    hidden::name(name, "partial")
}

/// The name of its journal.
pub(crate) fn journal(name: &OsStr) -> OsString {
    hidden::name(name, "journal")
}
