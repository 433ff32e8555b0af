//! The memory that a client of a volume has for bytes of files, and the threads that fill and empty it.
//!
//! Model: a cache, room for what was written and is not sent yet, and a few threads for each direction. Without it, every read
//! and write goes to the stores.
//! Invariant: threads and bytes have limits, which are constants or were given.
//! Non-goals: which bytes; see file.rs.

use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::behind::Room;
use crate::cache::Cache;
use crate::hint::Hint;
use crate::{Error, Result, ahead};

/// What a mount remembers where nothing else is said.
pub const CACHE_BYTES: u64 = 128 << 20;
/// A smaller cache is none: it would not hold what is read ahead.
pub const CACHE_BYTES_MIN: u64 = 4 << 20;
/// Runs that are sent at a time. With their length that is 1 MiB, and a link sends one while the next is on its way.
const SENDERS: usize = 4;
const STACK_BYTES: usize = 256 << 10;
/// A part of the cache that is read ahead for one descriptor.
const AHEAD_PART: u64 = 4;

/// The memory of a client.
pub(crate) struct Memory {
    pub(crate) cache: Cache,
    pub(crate) room: Room,
    /// Of files that say nothing else.
    pub(crate) hint: Hint,
    /// Threads that read ahead.
    pub(crate) readers: ThreadPool,
    /// Threads that send what was written.
    pub(crate) senders: ThreadPool,
    /// The thread that waits until what was written is old enough to be sent.
    pub(crate) waiting: ThreadPool,
}

impl Memory {
    /// With a cache of so many bytes.
    pub(crate) fn new(cache_bytes: u64, hint: Hint) -> Result<Memory> {
        let pool = |threads, name: &'static str| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES);
            let built = pool.thread_name(move |n| format!("{name}-{n}")).build();
            built.map_err(|why| Error::Refused(format!("the system has no thread left for a cache: {why}")))
        };
        Ok(Memory {
            cache: Cache::new(cache_bytes),
            room: Room::default(),
            hint,
            readers: pool(ahead::STREAMS, "ahead")?,
            senders: pool(SENDERS, "behind")?,
            waiting: pool(1, "linger")?,
        })
    }

    /// The most bytes that are read ahead for one descriptor.
    pub(crate) fn ahead_bytes_max(&self) -> u64 {
        self.cache.bytes_max() / AHEAD_PART
    }
}
