//! Verbs whose files are in a volume.
//!
//! Invariant: the files of a verb are all in one volume, or none is in any.

use thalweg_volume::{Registry, VolumeFs};

use crate::{Endpoint, Error, Result};

/// The volume that has these ends, if they are in one.
pub(crate) fn of<'a>(ends: impl IntoIterator<Item = &'a Endpoint>) -> Result<Option<VolumeFs>> {
    let ends: Vec<&Endpoint> = ends.into_iter().collect();
    let Some(name) = ends.iter().find_map(|end| volume_of(end)) else { return Ok(None) };
    if let Some(other) = ends.iter().find(|end| volume_of(end).as_ref() != Some(&name)) {
        return Err(Error::CouldNot(format!(
            "'{other}' is not in volume {name}: the files of one command are all in one volume, or none is in any"
        )));
    }
    open(&name).map(Some)
}

fn volume_of(end: &Endpoint) -> Option<String> {
    match end {
        Endpoint::Volume(path) => Some(path.volume()),
        _ => None,
    }
}

fn open(name: &str) -> Result<VolumeFs> {
    Ok(VolumeFs::new(thalweg_volume::open(&Registry::of_user()?, name)?))
}
