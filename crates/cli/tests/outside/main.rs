//! The command from outside: what a shell sees of it, and nothing else.
//!
//! Invariant: a test starts the built binary in an empty directory of its own, and looks at standard output,
//! standard error, the exit status and the files that are left.
#![allow(clippy::disallowed_methods)] // Users of the command create files in other ways.

mod apart;
mod combine;
mod documents;
mod files;
mod formats;
mod limits;
mod planted;
mod replaced;
mod signals;
mod squashed;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod usage;
mod verbs;
mod volumes;
