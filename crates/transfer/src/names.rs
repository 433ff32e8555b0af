//! Hidden names beside DEST, until what they bear is whole.
//!
//! ```text
//! .NAME.thalweg-partial      a file or a tree that is not whole yet
//! .NAME.thalweg-journal      what of it is durable
//! ```
//!
//! Invariant: they are made of the destination's name alone, so a run finds its own leftovers.

use std::ffi::{OsStr, OsString};

use thalweg_io::hidden;

/// The name until it is whole.
pub(crate) fn partial(name: &OsStr) -> OsString {
    hidden::name(name, "partial")
}

/// The name of its journal.
pub(crate) fn journal(name: &OsStr) -> OsString {
    hidden::name(name, "journal")
}
