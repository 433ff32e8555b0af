//! The only system calls on data.
//!
//! Model: a [`FileSystem`] opens [`File`]s, and every [`Backend`] makes [`Queue`]s for its files. A queue belongs to
//! one thread, which submits operations on blocks and reaps their completions. No other thread has to be woken for a
//! completion, which would cost about 30 us of CPU on the reference machine.
//! Invariant: a queue owns a block from its submission to its completion. Short reads and writes are continued here; a
//! caller sees a short read only at the end of a file.
//! Non-goals: records, retries of failed operations, policy.
//!
//! The back ends are [`uring`] (Linux io_uring), [`threads`] (some threads with pread and pwrite), [`either`]
//! (io_uring, with threads as the fallback) and [`sim`] (a simulated disk with faults and crashes from a seed).
//! Directories have an interface of their own, [`tree`], which [`local`] and [`sim`] implement.
#![allow(clippy::disallowed_methods)] // All access to files is in this crate.

mod backends;
pub mod either;
mod error;
pub mod extended;
mod file;
mod file_system;
mod headless;
pub mod hidden;
pub mod host;
pub mod local;
mod mounts;
mod naming;
mod os;
pub mod pipe;
pub mod process;
mod queue;
mod resemble;
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

pub use backends::Backends;
pub use error::{Action, Error, Result};
pub use file::{File, Handle, InputFile, InputLocation, Location};
pub use file_system::{
    Access, Backend, Caching, FileId, FileSystem, Metadata, ReadFiles, Space, directory_of, look_until,
    real_name,
};
pub use headless::Headless;
pub use mounts::{mounts_at, mounts_of};
pub use naming::{Stamp, give_name};
pub use os::unplanted;
pub use queue::{Done, Kind, Op, Queue};
pub use transfer::ALIGN;
