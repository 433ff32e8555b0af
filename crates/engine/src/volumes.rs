//! The volumes that a verb's files are in.

use std::sync::Arc;

use thalweg_io::Backend;
use thalweg_volume::{Registry, VolumeFs};

use crate::{Endpoint, Result};

/// Volumes that are open, each once.
#[derive(Default)]
pub(crate) struct Volumes(Vec<Arc<VolumeFs>>);

impl Volumes {
    /// Opens the volumes of these endpoints.
    pub(crate) fn open<'a>(ends: impl IntoIterator<Item = &'a Endpoint>) -> Result<Volumes> {
        let mut volumes = Volumes::default();
        for end in ends {
            if let (Endpoint::Volume(path), None) = (end, volumes.of(end)) {
                let open = thalweg_volume::open(&Registry::of_user()?, &path.volume())?;
                volumes.0.push(Arc::new(VolumeFs::new(open)));
            }
        }
        Ok(volumes)
    }

    /// One volume that is open.
    pub(crate) fn of_open(volume: VolumeFs) -> Volumes {
        Volumes(vec![Arc::new(volume)])
    }

    /// The back ends that move their bytes.
    pub(crate) fn backends(&self) -> impl Iterator<Item = Arc<dyn Backend>> {
        self.0.iter().map(|volume| Arc::clone(volume) as _)
    }

    /// The volume of an endpoint, if it is in one.
    pub(crate) fn of(&self, end: &Endpoint) -> Option<Arc<VolumeFs>> {
        let Endpoint::Volume(path) = end else { return None };
        self.0.iter().find(|volume| volume.name() == path.volume()).cloned()
    }
}
