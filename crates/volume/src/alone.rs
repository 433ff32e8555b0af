//! An open volume, shared or exclusive.
//!
//! Non-goals: how it is opened; see place.rs and cluster.rs.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use thalweg_api::VolumeEntry;

use crate::store::Store;
use crate::{Result, Volume};

/// Receives a line when a store is lost, and one when it is back.
pub(crate) type Watch = Arc<OnceLock<Arc<dyn Fn(&str) + Send + Sync>>>;

/// A volume that is open in this process.
pub struct OpenVolume {
    /// The volume.
    pub volume: Arc<Volume>,
    /// The entry of the volume in the registry.
    pub entry: VolumeEntry,
    pub(crate) watch: Watch,
}

impl OpenVolume {
    /// Calls `tell` with a line whenever a store on a node is lost or is back.
    pub fn watch_stores(&self, tell: Arc<dyn Fn(&str) + Send + Sync>) {
        // The first watcher stays.
        let _ = self.watch.set(tell);
    }
}

/// The extended attribute of the root that names a store which is being made, until it is that of its slot.
pub(crate) const UNFINISHED: &[u8] = b"user.thalweg.unfinished_store";

/// The slot and the directory of a store that was being made, by the attributes of the root.
pub(crate) fn unfinished(attributes: &[(Vec<u8>, Vec<u8>)]) -> Option<(u32, String)> {
    let (_, value) = attributes.iter().find(|(name, _)| name == UNFINISHED)?;
    let (slot, directory) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((slot.parse().ok()?, directory.into()))
}

/// A volume that no other client has open.
pub(crate) struct OpenAlone {
    pub(crate) volume: Arc<Volume>,
    pub(crate) entry: VolumeEntry,
    // After the volume, so that it is dropped last.
    pub(crate) alone: Box<dyn Alone>,
}

/// Makes and removes stores, and keeps the volume closed to other clients in the meantime.
pub(crate) trait Alone {
    /// The directory that a store in this place would have, as the registry writes it.
    fn directory(&self, place: &Path) -> Result<String>;

    /// Makes a store for a slot.
    fn make(&self, directory: &str, slot: u32) -> Result<Arc<dyn Store>>;

    /// Removes a store.
    fn remove(&self, directory: &str, slot: u32) -> Result<()>;

    /// If the manager lies beside this store, copies it to beside another one. Returns the directory of the copy, if
    /// one was made; the manager itself stays until [`Alone::remove_manager`]. The volume must be closed.
    fn copy_manager(&self, from: &str, to: &str) -> Result<Option<String>>;

    /// Removes the manager after it was copied elsewhere.
    fn remove_manager(&self) -> Result<()>;

    /// Closes the volume, and assigns the store in this directory to a slot, or to a new last slot.
    fn give(&self, volume: Arc<Volume>, slot: u32, directory: &str) -> Result<()>;
}
