//! The memory of a volume's client for bytes of files, and the threads that fill and empty it.
//!
//! Model: a cache, room for unsent writes, and a few threads for each direction. Without a memory, every read and write
//! goes to the stores.
//! Invariant: threads and bytes have limits, which are constants or parameters.
//! Non-goals: which bytes are in it; see file.rs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rayon_core::{ThreadPool, ThreadPoolBuilder};
use thalweg_base::clock::now_ns;

use crate::behind::Room;
use crate::cache::Cache;
use crate::file::Node;
use crate::hint::Hint;
use crate::volume::Volume;
use crate::{Error, Result, ahead};

/// The default size of a mount's cache.
pub const CACHE_BYTES: u64 = 128 << 20;
/// The least size of a cache: a smaller one would not hold what is read ahead.
pub const CACHE_BYTES_MIN: u64 = 4 << 20;
/// The most runs that are sent at a time. They have 1 MiB together, and a link sends one while the next is on its way.
const SENDERS: usize = 4;
const STACK_BYTES: usize = 256 << 10;
/// The least time between two looks of the thread that waits, so that many small files do not wake it for each.
const STEP_NS: u64 = 10_000_000;
/// At most one part in this many of the cache is read ahead for one descriptor.
const AHEAD_PART: u64 = 4;

/// The memory of a client.
pub(crate) struct Memory {
    pub(crate) cache: Cache,
    pub(crate) room: Room,
    /// For files without a hint of their own.
    pub(crate) hint: Hint,
    /// Threads that read ahead.
    pub(crate) readers: ThreadPool,
    /// Threads that send delayed writes.
    pub(crate) senders: ThreadPool,
    /// The thread that waits until delayed writes are old enough to be sent.
    pub(crate) waiting: ThreadPool,
    /// The files that it waits for, each with its time, the earliest first. While there are any, the thread runs.
    lingering: Mutex<VecDeque<(u64, Lingering)>>,
}

/// A file with writes that are not old enough to be sent.
pub(crate) type Lingering = (Arc<Node>, Weak<Volume>);

impl Memory {
    /// A memory with a cache of this size.
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
            lingering: Mutex::default(),
        })
    }

    fn lingering(&self) -> MutexGuard<'_, VecDeque<(u64, Lingering)>> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the thread look at a file after `in_ns`. Returns whether the caller has to start the thread, with
    /// [`Memory::linger`]. A thread that waits for another file is not woken.
    pub(crate) fn look_later(&self, file: Lingering, in_ns: u64) -> bool {
        let (mut lingering, at_ns) = (self.lingering(), now_ns() + in_ns);
        let place = lingering.partition_point(|(other_ns, _)| *other_ns <= at_ns);
        lingering.insert(place, (at_ns, file));
        lingering.len() == 1
    }

    /// Waits for one file after another, until none is left. `look` returns the nanoseconds to its next look, if any.
    pub(crate) fn linger(&self, look: impl Fn(&Lingering) -> Option<u64>) {
        loop {
            let (at_ns, file) = match self.lingering().front() {
                Some((at_ns, (node, volume))) => (*at_ns, (Arc::clone(node), Weak::clone(volume))),
                None => return,
            };
            match at_ns.checked_sub(now_ns()) {
                None | Some(0) => {
                    let again = look(&file);
                    if let Some(in_ns) = again {
                        self.look_later(file, in_ns);
                    }
                    let mut lingering = self.lingering();
                    lingering.pop_front();
                    if lingering.is_empty() {
                        return;
                    }
                }
                Some(left_ns) => std::thread::park_timeout(Duration::from_nanos(left_ns.max(STEP_NS))),
            }
        }
    }

    /// The most bytes that are read ahead for one descriptor.
    pub(crate) fn ahead_bytes_max(&self) -> u64 {
        self.cache.bytes_max() / AHEAD_PART
    }
}
