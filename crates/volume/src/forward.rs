//! Decides which writes of two copies the first store forwards to the second, so that they leave this client once.
//!
//! Model: a client sends to both stores itself where forwarding does not help or work: if both are on one node, if it
//! has no open stream to the second, or if a forwarded write failed a moment ago.
//! Invariant: a write that the second store may still carry out later is acknowledged only after the generation of its
//! file has been raised, so that the store refuses it; see [`crate::file::Node`].
//! Non-goals: how a store forwards; see mirror.rs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_base::clock::now_ns;

use crate::Result;
use crate::request::Forwarded;
use crate::store::{Strip, Write};

/// How long a store is not asked to forward after it could not do so.
const UNSENT_NS: u64 = 2_000_000_000;
/// How long after it is unknown whether it did: that costs a change at the manager.
const UNSURE_NS: u64 = 30_000_000_000;

/// A store on a node, which can forward writes and have them forwarded to it.
pub(crate) trait Forward: Send + Sync {
    /// Its slot, the name of its node, and where it is, as `NODE:/DIR`.
    fn whereabouts(&self) -> (u32, &str, String);

    /// Whether a request needs no dialling.
    fn is_connected(&self) -> bool;

    /// Writes at most as many bytes as a message may have, which the store forwards to that of another slot and place.
    fn forward(&self, write: &Write, to: (u32, String), from: &[u8]) -> Result<Forwarded>;

    /// Notes that another store had this one write a strip, in this boot of its machine.
    fn was_written(&self, strip: Strip, boot: &str);
}

/// The stores of a volume on nodes, each in its slot, with the time until which it is not asked to forward.
pub(crate) struct Forwards(Vec<(Arc<dyn Forward>, AtomicU64)>);

impl Forwards {
    pub(crate) fn new(stores: Vec<Arc<dyn Forward>>) -> Forwards {
        Forwards(stores.into_iter().map(|store| (store, AtomicU64::new(0))).collect())
    }

    /// Whether the store of the first slot should forward to that of the second.
    pub(crate) fn may(&self, first: u32, second: u32) -> bool {
        let ((store, direct_until_ns), (mirror, _)) = (&self.0[first as usize], &self.0[second as usize]);
        store.whereabouts().1 != mirror.whereabouts().1
            && now_ns() >= direct_until_ns.load(Ordering::Relaxed)
            && mirror.is_connected()
    }

    /// Writes the first copy of a strip through its store, which forwards it to the second. Returns what became of the
    /// second; an error concerns the first, and says nothing about the second.
    pub(crate) fn write(&self, (first, second): (u32, u32), write: &Write, from: &[u8]) -> Result<Forwarded> {
        let ((store, direct_until_ns), (mirror, _)) = (&self.0[first as usize], &self.0[second as usize]);
        let (slot, _, place) = mirror.whereabouts();
        let forwarded = store.forward(write, (slot, place), from);
        let pause_ns = match &forwarded {
            Ok(Forwarded::Written(boot)) => {
                mirror.was_written(Strip { copy: 1, ..write.strip }, boot);
                return forwarded;
            }
            Ok(Forwarded::Unsure(_)) => UNSURE_NS,
            Ok(Forwarded::Unsent(_)) | Err(_) => UNSENT_NS,
        };
        direct_until_ns.fetch_max(now_ns() + pause_ns, Ordering::Relaxed);
        forwarded
    }
}
