//! Files of volumes in a job. The client says where the volumes are, and each node opens them as a client, with its own
//! certificate.
//!
//! Model: all inputs are in one volume, or none is. The job's client creates and names an output in a volume, and each
//! node writes its stretch of it.
//! Invariant: a volume that is limited to certain clients is refused, since its nodes cannot tell for whom another node
//! asks.
//! Non-goals: outputs in a volume whose names nodes would give: parts, and one file for each node.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use thalweg_api::{JobOptions, JobVolume, SharedFiles, Work};
use thalweg_engine::{AskedOfCluster, CheckOptions, Endpoint, Result, WorkOptions};
use thalweg_io::FileSystem;
use thalweg_volume::{Registry, VolumeFs, VolumePath};

use crate::job_options::path_of;
use crate::node::Node;

/// The volume of an end, if it is in one.
fn volume_of(end: &Endpoint) -> Option<String> {
    match end {
        Endpoint::Volume(path) => Some(path.volume()),
        _ => None,
    }
}

fn inputs(options: &WorkOptions) -> impl Iterator<Item = &Endpoint> {
    options.inputs.iter().chain(options.right.iter().flat_map(|right| &right.inputs))
}

/// An error unless all inputs are in one volume, or none is in a volume.
fn check_inputs<'a>(inputs: impl IntoIterator<Item = &'a Endpoint>) -> Result<()> {
    if inputs.into_iter().map(volume_of).collect::<BTreeSet<_>>().len() > 1 {
        return Err(AskedOfCluster::VolumeInputs.into());
    }
    Ok(())
}

/// An error if nodes cannot work on files of volumes in this way.
pub(crate) fn check(options: &WorkOptions) -> Result<()> {
    check_inputs(inputs(options))?;
    if let Endpoint::Volume(path) = &options.output {
        let is_pattern = path.inside().to_string_lossy().contains("{}");
        if is_pattern || matches!(options.work, Work::Partition { .. }) {
            return Err(AskedOfCluster::VolumeParts.into());
        }
    }
    Ok(())
}

/// The volumes in which a job on this cluster has files, as nodes find them.
pub(crate) fn of_job(options: &WorkOptions, cluster: &str) -> Result<Vec<JobVolume>> {
    let names: BTreeSet<String> = inputs(options).chain([&options.output]).filter_map(volume_of).collect();
    names.into_iter().map(|name| found(name, cluster)).collect()
}

/// A volume on this cluster, as nodes find it.
fn found(name: String, cluster: &str) -> Result<JobVolume> {
    let entry = Registry::of_user()?.find(&name)?;
    match entry.cluster.filter(|of| of.name == cluster) {
        Some(of) => Ok(JobVolume { name, volume: of.volume, manager: entry.manager }),
        None => Err(AskedOfCluster::OtherVolume(name, cluster.into()).into()),
    }
}

/// The first share of the files of a check by this many nodes of this cluster, if all nodes see the files.
pub(crate) fn of_check(options: &CheckOptions, cluster: &str, count: usize) -> Result<Option<SharedFiles>> {
    check_inputs(&options.inputs)?;
    let volume = match options.inputs.first() {
        Some(Endpoint::Volume(path)) => Some(found(path.volume(), cluster)?),
        Some(Endpoint::Path(_)) => None,
        _ => return Ok(None),
    };
    Ok(Some(SharedFiles { volume, index: 0, count }))
}

/// An input that all nodes see, from its form in messages.
pub(crate) fn endpoint_of(word: &str) -> Result<Endpoint> {
    let path = path_of(word)?;
    Ok(VolumePath::of(path.as_os_str()).map_or(Endpoint::Path(path), Endpoint::Volume))
}

/// The client's volume with the output of a job, if it is in one.
pub(crate) fn of_client(output: &Endpoint) -> Result<Option<Arc<dyn FileSystem>>> {
    let Some(name) = volume_of(output) else { return Ok(None) };
    Ok(Some(Arc::new(VolumeFs::new(thalweg_volume::open(&Registry::of_user()?, &name)?))))
}

/// Whether a path of a job, as text, names a file of a volume.
pub(crate) fn is_in_volume(word: &str) -> bool {
    path_of(word).is_ok_and(|path| VolumePath::of(path.as_os_str()).is_some())
}

/// The volumes of a job, opened by a node.
pub(crate) struct Opened(Vec<VolumeFs>);

impl Opened {
    pub(crate) fn by(node: &dyn Node, ask: &JobOptions) -> Result<Opened> {
        Ok(Opened(ask.volumes.iter().map(|volume| node.volume(volume)).collect::<Result<_>>()?))
    }

    /// The volume of a path, if it is in one.
    pub(crate) fn of(&self, path: &Path) -> Option<VolumeFs> {
        let path = VolumePath::of(path.as_os_str())?;
        self.0.iter().find(|volume| volume.name() == path.volume()).cloned()
    }
}
