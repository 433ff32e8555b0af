//! `thalweg pump` from outside: what a shell sees of it, and what other programs find of what it moved.
//!
//! Invariant: a test starts the built binary in an empty directory of its own; trees are compared by their own walk and
//! by `diff -r`; what a killed run had moved is counted by the kernel.
#![allow(clippy::disallowed_methods)] // Whoever uses the command makes files by other means than ours.

mod faults;
mod files;
mod planted;
mod resume;
#[path = "../support/mod.rs"]
mod support;
mod trees;
mod walk;
