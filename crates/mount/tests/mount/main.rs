//! Volumes mounted for real: what programs do with files, and suites that were written for other file systems.
//!
//! Invariant: a test mounts a new volume of three stores, and looks at it through the kernel only. Without /dev/fuse each says
//! that it was skipped.
#![allow(clippy::disallowed_methods)] // Programs that use a mount open files by other means than ours.

mod bed;
mod ends;
mod files;
mod full;
mod locks;
mod names;
mod permissions;
mod programs;
mod suites;
mod two;
