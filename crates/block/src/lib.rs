//! Aligned bytes from a bounded pool: the carrier of everything that moves.
//!
//! Model: a [`Pool`] maps its whole budget once, asks for huge pages, and lends [`Block`]s out of
//! it. A block is moved hand to hand and goes home when dropped. Whoever holds memory has taken it
//! from a pool; the absence of a free block is the back-pressure.
//! Invariant: blocks of a pool never overlap, and no byte of a block is ever uninitialised.
//! Non-goals: growing, records, files.
//!
//! This is one of the house's two addresses of `unsafe` (the other is `thalweg_io`'s ring).
#![allow(unsafe_code)]

mod chunk;
mod copy;
mod fill;
mod kept;
mod mask;
mod pool;
mod prefetch;

pub use chunk::{Chunk, carve};
pub use copy::{copy, copy_start};
pub use fill::{Fill, Place};
pub use kept::begin_work;
pub use mask::mask_of;
pub use pool::{Block, Held, Pool, PoolError};
pub use prefetch::prefetch;
