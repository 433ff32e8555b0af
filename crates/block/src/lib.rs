//! Aligned blocks of memory from bounded pools. All data moves in them.
//!
//! Model: a [`Pool`] maps all of its memory once, requests huge pages, and hands out [`Block`]s. Ownership of a block
//! moves with the data, and a dropped block returns to its pool. A producer waits while no block is free: that is
//! the back-pressure.
//! Invariant: blocks of a pool never overlap, and no byte of a block is ever uninitialised.
//! Non-goals: growing, records, files.
//!
//! `unsafe` is allowed only here, in the system calls of `thalweg_io`, and in the buffers that `thalweg_py` exposes.
#![allow(unsafe_code)]

mod cache;
mod chunk;
mod copy;
mod mask;
mod pool;
mod prefetch;
mod shared_block;

pub use cache::begin_work;
pub use chunk::{Chunk, carve};
pub use copy::{copy, copy_start};
pub use mask::mask_of;
pub use pool::{Block, Held, Pool, PoolError};
pub use prefetch::{prefetch, prefetch_value};
pub use shared_block::{Reservation, SharedBlock};
