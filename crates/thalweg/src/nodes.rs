//! Nodes and their clusters: the daemon, commands and jobs on many hosts, and management of the hosts.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_api::NodeReady;
use thalweg_base::units::Size;
use thalweg_job::{JobService, Jobs};
pub use thalweg_job::{exchange, probe};
pub use thalweg_node::{
    Channel, Ended, Error, ExecOptions, Forward, Join, NodeOptions, Result, SERVE, Stop, control, exec,
    fleet, guard, installer, is_guarded, ping, serve,
};
use thalweg_node::{ExecService, TransferService};
use thalweg_table::cluster::TableService;
use thalweg_volume::VolumeService;
pub use thalweg_wire::{Cancel, ClusterError, IdentityError, VERSIONS, Versions, cluster};
use thalweg_wire::{Host, Service};

/// Runs a node until it is asked to stop. `ready` is called once it listens.
///
/// # Errors
/// If its identity cannot be used, or the node cannot listen on its address.
pub fn run(options: &NodeOptions, stop: &Stop, ready: impl FnOnce(&NodeReady)) -> Result<()> {
    thalweg_node::run(options, &|host, jobs| services(host, jobs, options.memory), stop, ready)
}

/// A fleet of nodes in this process with these host names. None of them runs yet.
pub fn embedded(hosts: &[&str]) -> fleet::Embedded<'static> {
    fleet::Embedded::new(hosts, &|host, jobs| services(host, jobs, None))
}

/// The directory of the user's identity for a cluster: `THALWEG_IDENTITY`, or `thalweg` in the directory for settings.
/// `None` if the user has no home.
pub fn default_identity() -> Option<PathBuf> {
    let settings = || std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let own = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let chosen = std::env::var_os("THALWEG_IDENTITY").map(PathBuf::from);
    chosen.or_else(|| settings().or_else(own).map(|settings| settings.join("thalweg")))
}

/// The services of every node.
fn services(host: &Arc<Host>, jobs: &Arc<Jobs>, memory: Option<Size>) -> Result<Vec<Arc<dyn Service>>> {
    Ok(vec![
        Arc::new(ExecService::new(host, jobs)?),
        Arc::new(TransferService::new(host)),
        Arc::new(JobService::new(host, jobs)),
        Arc::new(VolumeService::new(host)),
        TableService::start(host, memory).map_err(Error::Service)?,
    ])
}
