//! What a job needs of the node that it runs on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_api::{ClusterHost, JobVolume};
use thalweg_table::cluster::{Error, Tables};
use thalweg_volume::VolumeFs;
use thalweg_wire::{ClusterError, Host, Link, LinkError, What};

/// A node, as jobs see it.
pub trait Node: Send + Sync {
    /// Its name in the cluster.
    fn name(&self) -> &str;

    /// The names of all hosts of the cluster, in the order of its file.
    fn hosts(&self) -> Vec<String>;

    /// The cluster file's entry for it.
    fn declared(&self) -> Option<ClusterHost>;

    /// Where it keeps files of its own, if it has an identity.
    fn directory(&self) -> Option<&Path>;

    /// A link with the node of a host, itself included.
    fn link_with(&self, host: &str) -> Result<Arc<Link>, LinkError>;

    /// Opens a volume as this node.
    fn volume(&self, volume: &JobVolume) -> thalweg_engine::Result<VolumeFs>;

    /// The tables of the cluster, for this node as a client.
    fn tables(&self) -> thalweg_engine::Result<Tables>;

    /// The silence after which the other nodes consider it dead.
    fn dead_after(&self) -> Duration;

    /// Waits until it goes down, or this long. Returns whether it goes down.
    fn is_stopping_within(&self, patience: Duration) -> bool;
}

impl dyn Node + '_ {
    /// The directory that relative paths start from: the first of the host's directories for data, or where this
    /// process was started.
    pub(crate) fn data(&self) -> PathBuf {
        let first = self.declared().and_then(|host| host.data.into_iter().next()).map(PathBuf::from);
        first.or_else(|| std::env::current_dir().ok()).unwrap_or_default()
    }

    /// The most memory that a participant may use here, if the cluster file says so.
    pub(crate) fn memory_max(&self) -> Option<u64> {
        self.declared().and_then(|host| host.memory_bytes)
    }
}

impl Node for Arc<Host> {
    fn name(&self) -> &str {
        Host::name(self)
    }

    fn hosts(&self) -> Vec<String> {
        Host::hosts(self)
    }

    fn declared(&self) -> Option<ClusterHost> {
        Host::declared(self)
    }

    fn directory(&self) -> Option<&Path> {
        Host::directory(self)
    }

    fn link_with(&self, host: &str) -> Result<Arc<Link>, LinkError> {
        Host::link_with(self, host).map_err(|why| match why {
            ClusterError::Link(why) => why,
            other => LinkError::new(host, What::Cut(other.to_string())),
        })
    }

    fn volume(&self, volume: &JobVolume) -> thalweg_engine::Result<VolumeFs> {
        Ok(thalweg_volume::open_on_node(self, volume)?)
    }

    fn tables(&self) -> thalweg_engine::Result<Tables> {
        let none = || Error::Refused("a node without an identity cannot open tables".into());
        Ok(Tables::load(Host::directory(self).ok_or_else(none)?, None)?)
    }

    fn dead_after(&self) -> Duration {
        Duration::from_millis(self.terms().patience.dead_ms)
    }

    fn is_stopping_within(&self, patience: Duration) -> bool {
        Host::is_stopping_within(self, patience)
    }
}
