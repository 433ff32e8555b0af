//! The only system calls on data.
//!
//! Model: an [`FileSystem`] opens [`File`]s and makes [`Queue`]s. A queue belongs to one thread, which
//! submits operations on blocks and reaps their completions; there is no I/O thread to wake, so a
//! completion costs no switch between cores (about 30 us of CPU on the reference machine).
//! Invariant: the queue owns a block until its completion; a short read or write is finished here and
//! never seen above; a read is short only at the end of the file.
//! Non-goals: records, retries of failed operations, policy.
//!
//! Back ends: [`uring`] (Linux io_uring), [`threads`] (a few threads with pread and pwrite, for where
//! io_uring is refused), [`either`] (the one, and the other where it is refused), [`sim`] (a simulated disk with faults and crashes from a seed).
//! Directories are a seam of their own, [`tree`], with [`local`] and [`sim`] behind it.
#![allow(clippy::disallowed_methods)] // This crate is the address of files.

pub mod either;
mod error;
mod file;
pub mod hidden;
pub mod host;
pub mod local;
mod mounts;
mod naming;
mod os;
pub mod pipe;
pub mod process;
mod queue;
pub mod rotated;
pub mod sim;
pub mod small;
pub mod socket;
mod standard;
pub mod threads;
mod transfer;
pub mod tree;
#[cfg(test)]
mod tree_test;
pub mod uring;

pub use error::{Action, Error, Result};
pub use file::{Access, File, FileId, FileSystem, Metadata, Space, directory_of, look_until};
pub use naming::{Stamp, give_name};
pub use os::check_planted;
pub use queue::{Done, Kind, Op, Queue};
pub use transfer::ALIGN;
