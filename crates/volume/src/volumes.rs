//! Volumes by their names, wherever they are: on this machine (place.rs) or on the nodes of a cluster (cluster.rs).

use std::path::Path;

use crate::layout::Policy;
use crate::location::Location;
use crate::registry::Registry;
use crate::remote::Watch;
use crate::{OpenVolume, Result, cluster, place};

/// Opens a volume, through the process or the node that serves it; one of this machine may be served by this process.
pub fn open(registry: &Registry, name: &str) -> Result<OpenVolume> {
    let entry = registry.find(name)?;
    match entry.cluster {
        None => place::open(entry),
        Some(_) => {
            let watch = Watch::default();
            Ok(OpenVolume::shared(cluster::open(&entry, &watch)?, entry, watch))
        }
    }
}

/// Removes a volume and everything in it. What is not the volume's, or could not be removed, stays and is told.
pub fn destroy(registry: &Registry, name: &str) -> Result<Vec<String>> {
    let entry = registry.find(name)?;
    let left = match entry.cluster {
        None => place::destroy(&entry)?,
        Some(_) => cluster::destroy(&entry)?,
    };
    if entry.cluster.is_some() || left.is_empty() {
        registry.remove(name)?;
    }
    Ok(left)
}

impl OpenVolume {
    /// Sets how the files are laid out that are made in a directory from now on.
    pub fn set_policy(&self, path: &Path, policy: &Policy) -> Result<()> {
        if self.entry.cluster.is_some() {
            let slots = self.entry.stores.iter().map(|store| Location::needed(store));
            cluster::check_apart(&slots.collect::<Result<Vec<_>>>()?, policy)?;
        }
        self.volume.set_policy(path, policy)
    }
}
