//! `thalweg pump` seen from outside: what a shell sees, and what other programs find in its output.
//!
//! Invariant: a test starts the built binary in an empty directory of its own. Trees are compared by the tests' own
//! walk and by `diff -r`; the kernel counts what a killed run had moved.
#![allow(clippy::disallowed_methods)] // Users of the command create files in other ways.

mod choice;
mod extended;
mod faults;
mod files;
mod links;
mod live;
mod named;
mod planted;
mod resume;
mod several;
mod shut;
#[path = "../support/mod.rs"]
mod support;
mod trees;
mod walk;
