//! Volumes by their names, wherever they are: on this machine (place.rs) or on the nodes of a cluster (cluster.rs).

use std::path::Path;

use thalweg_api::{VolumeDestroyed, VolumeEntry, VolumeWork};

use crate::alone::{OpenAlone, OpenVolume};
use crate::layout::Policy;
use crate::location::Location;
use crate::registry::Registry;
use crate::stores::Slot;
use crate::{Error, Result, cluster, place};

/// Opens a volume, through the process or node that serves it. This process may become the server of a local volume.
pub fn open(registry: &Registry, name: &str) -> Result<OpenVolume> {
    let known = registry.find(name)?;
    let open = open_known(known.clone()).map_err(|why| place::with_remedy(why, &known))?;
    note_stores(registry, &known, &open.entry)?;
    Ok(open)
}

/// Opens the volume of an entry. Errors have no remedy.
pub(crate) fn open_known(entry: VolumeEntry) -> Result<OpenVolume> {
    match entry.cluster {
        None => place::open(entry),
        Some(_) => cluster::open(entry, None),
    }
}

/// Opens a volume for this work; other clients may have it open.
pub(crate) fn open_for(registry: &Registry, name: &str, work: VolumeWork) -> Result<OpenVolume> {
    let entry = registry.find(name)?;
    match entry.cluster {
        None => place::open(entry.clone()).map_err(|why| place::with_remedy(why, &entry)),
        Some(_) => cluster::open(entry, Some(work)),
    }
}

/// Opens a volume exclusively for this work.
pub(crate) fn open_alone(registry: &Registry, name: &str, work: VolumeWork) -> Result<OpenAlone> {
    let known = registry.find(name)?;
    let open = match known.cluster {
        None => place::open_alone(known.clone()),
        Some(_) => cluster::open_alone(known.clone(), work),
    }?;
    note_stores(registry, &known, &open.entry)?;
    Ok(open)
}

/// Goes on with the manager of a volume although its stores have accepted another one, or are not all there: it was
/// restored from a backup, copied or moved.
///
/// # Errors
/// If the volume is in use, also by the other manager, or if no store answers.
pub fn adopt(registry: &Registry, name: &str) -> Result<()> {
    let entry = registry.find(name)?;
    match entry.cluster {
        None => place::adopt(&entry).map_err(|why| place::with_remedy(why, &entry)),
        Some(_) => cluster::adopt(&entry),
    }
}

/// Updates the registry if another client added or replaced a store, or was killed before it could update it.
fn note_stores(registry: &Registry, known: &VolumeEntry, found: &VolumeEntry) -> Result<()> {
    if known.stores == found.stores { Ok(()) } else { registry.update(found) }
}

/// The stores of a volume, or why one is lost, without its manager.
pub(crate) fn stores_alone(entry: &VolumeEntry) -> Result<Vec<Slot>> {
    match entry.cluster {
        None => Ok(place::stores_alone(entry)),
        Some(_) => cluster::stores_alone(entry),
    }
}

/// Removes a volume and everything in it, and tells what was removed and what was not. Parts that are not there, for
/// example on a disk that is not mounted, are left. On this machine, if there is anything in its directories that is
/// not the volume's, or nothing that is, removes nothing. With `force`, removes all that it can, and the volume's entry
/// in any case.
///
/// # Errors
/// If there is no such volume, if it is in use, or, without `force`, if its manager's host cannot be reached.
pub fn destroy(registry: &Registry, name: &str, force: bool) -> Result<VolumeDestroyed> {
    let entry = registry.find(name)?;
    let destroyed = match entry.cluster {
        None => place::destroy(&entry, force).map_err(|why| match why {
            Error::Refused(_) => place::if_mounted(why, name),
            why => why,
        }),
        Some(_) => cluster::destroy(&entry, force),
    };
    let destroyed = match destroyed {
        // The cluster may be gone, or this client's identity in it.
        Err(why) if force && entry.cluster.is_some() => VolumeDestroyed {
            name: name.into(),
            left: vec![why.to_string()],
            forgotten: true,
            ..VolumeDestroyed::default()
        },
        destroyed => destroyed?,
    };
    if destroyed.forgotten {
        registry.remove(name)?;
    }
    Ok(destroyed)
}

impl OpenVolume {
    /// Sets the layout of files that are created in a directory from now on.
    pub fn set_policy(&self, path: &Path, policy: &Policy) -> Result<()> {
        if self.entry.cluster.is_some() {
            let slots = self.entry.stores.iter().map(|store| Location::needed(store));
            cluster::check_apart(&slots.collect::<Result<Vec<_>>>()?, policy)?;
        }
        self.volume.set_policy(path, policy)
    }
}
