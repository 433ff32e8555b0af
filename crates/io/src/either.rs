//! io_uring with threads as the fallback.
//!
//! Model: every queue is a ring until the system refuses to create one, for lack of file descriptors or locked memory.
//! Later queues use threads, which need neither. Both transfer the same files, so callers cannot tell them apart.
//! Invariant: the reason for a fallback is kept for the receipt.
//! Non-goals: returning to rings when resources are free again.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::os::Queues;
use crate::threads::Threads;
use crate::uring::Uring;
use crate::{Queue, Result};

/// io_uring, with threads where it is refused.
pub struct Either {
    uring: Uring,
    threads: Threads,
    made_rings: AtomicBool,
    /// The reason for the fallback.
    refusal: OnceLock<String>,
}

impl Either {
    /// Uses rings as long as the system provides them, then threads, with at most `threads` operations at a time.
    pub fn new(uring: Uring, threads: Threads) -> Either {
        Either { uring, threads, made_rings: AtomicBool::new(false), refusal: OnceLock::new() }
    }
}

impl fmt::Debug for Either {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Either({}, {:?})", Queues::name(self), self.threads)
    }
}

impl Queues for Either {
    fn name(&self) -> &'static str {
        match (self.refusal.get(), self.made_rings.load(Ordering::Relaxed)) {
            (None, _) => "uring",
            (Some(_), true) => "uring+threads",
            (Some(_), false) => "threads",
        }
    }

    fn fallback(&self) -> Option<String> {
        self.refusal.get().cloned()
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        if self.refusal.get().is_none() {
            match Queues::queue(&self.uring, depth) {
                Ok(ring) => {
                    self.made_rings.store(true, Ordering::Relaxed);
                    return Ok(ring);
                }
                // Another lane may have been refused at the same moment; one reason is enough.
                Err(refused) => _ = self.refusal.set(refused.to_string()),
            }
        }
        Queues::queue(&self.threads, depth)
    }
}
