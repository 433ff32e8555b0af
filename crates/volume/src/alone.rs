//! A volume that is open, shared with others or alone.
//!
//! Non-goals: how it is opened; see place.rs and cluster.rs.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use thalweg_api::VolumeEntry;

use crate::store::Store;
use crate::{Result, Volume};

/// Is told, in one line, when a store is lost and when it is back.
pub(crate) type Watch = Arc<OnceLock<Arc<dyn Fn(&str) + Send + Sync>>>;

/// A volume that is open in this process.
pub struct OpenVolume {
    /// The volume.
    pub volume: Arc<Volume>,
    /// What the registry says of it.
    pub entry: VolumeEntry,
    pub(crate) watch: Watch,
}

impl OpenVolume {
    /// From now on `tell` is told, in one line, when a store on a node is lost and when it is back.
    pub fn watch_stores(&self, tell: Arc<dyn Fn(&str) + Send + Sync>) {
        // Whoever watches first goes on to.
        let _ = self.watch.set(tell);
    }
}

/// A volume that nobody else has open.
pub(crate) struct OpenAlone {
    pub(crate) volume: Arc<Volume>,
    pub(crate) entry: VolumeEntry,
    // Behind the volume, so that it is dropped last.
    pub(crate) alone: Box<dyn Alone>,
}

/// Makes and removes stores, and keeps others from the volume meanwhile.
pub(crate) trait Alone {
    /// The directory that a store has in this place, as the registry writes it.
    fn directory(&self, place: &Path) -> Result<String>;

    /// Makes a store for a slot.
    fn make(&self, directory: &str, slot: u32) -> Result<Arc<dyn Store>>;

    /// Removes a store.
    fn remove(&self, directory: &str, slot: u32) -> Result<()>;

    /// If the manager lies beside this store, copies it to beside another one. The directory of the copy, if one
    /// was made; the manager itself stays until [`Alone::remove_manager`]. The volume must be closed.
    fn copy_manager(&self, from: &str, to: &str) -> Result<Option<String>>;

    /// Removes the manager after it was copied elsewhere.
    fn remove_manager(&self) -> Result<()>;

    /// Closes the volume, and gives a slot, or the next one, the store in this directory.
    fn give(&self, volume: Arc<Volume>, slot: u32, directory: &str) -> Result<()>;
}
