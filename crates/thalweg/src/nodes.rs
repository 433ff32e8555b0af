//! Nodes and their clusters: the daemon, commands and jobs on many hosts, and management of the hosts.

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
pub use thalweg_wire::{Cancel, ClusterError, IdentityError, cluster};
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

/// The services of every node.
fn services(host: &Arc<Host>, jobs: &Arc<Jobs>, memory: Option<Size>) -> Result<Vec<Arc<dyn Service>>> {
    Ok(vec![
        Arc::new(ExecService::new(host, jobs)?),
        Arc::new(TransferService::new(host)),
        Arc::new(JobService::new(host, jobs)),
        Arc::new(VolumeService::new(host)),
        TableService::start(host, memory),
    ])
}
