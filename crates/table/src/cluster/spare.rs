//! Buffers of long messages, which later ones use again.
//!
//! Model: the allocator returns memory of this size to the system, and getting it again costs a page fault for every
//! 4 KiB: in a scan, a fifth of the time of a node.
//! Invariant: at most [`BUFFERS_MAX`] buffers of at most [`BYTES_MAX`] wait for their use.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages from this length on are worth it.
pub(crate) const LONG_BYTES: usize = 64 << 10;
/// Longer buffers are freed.
const BYTES_MAX: usize = 1 << 20;
const BUFFERS_MAX: usize = 8;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<Vec<u8>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An empty buffer, with capacity if there is a spare one.
pub(crate) fn take() -> Vec<u8> {
    spare().pop().unwrap_or_default()
}

/// Lets others use a buffer that is not needed any more.
pub(crate) fn give(mut buffer: Vec<u8>) {
    let mut spare = spare();
    if (LONG_BYTES..=BYTES_MAX).contains(&buffer.capacity()) && spare.len() < BUFFERS_MAX {
        buffer.clear();
        spare.push(buffer);
    }
}
