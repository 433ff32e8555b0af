//! The client's side of jobs on the nodes of a cluster: it coordinates a job itself, has a node coordinate it, or only
//! asks for a plan.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::{
    ClusterHost, ClusterPlan, Detached, ExecEnd, JobOptions, JobRequest, JobSpec, JobState, NodeReceipt,
    PartReceipt, PartitionPick, PartitionReceipt, RatesFrom, ServiceRequest, Work, from_json,
};
use thalweg_engine::participant::ClientOutput;
use thalweg_engine::{AskedOfCluster, Endpoint, JobFault, Progress, Receipt, Result, WorkOptions};
use thalweg_wire::{Client, Link, LinkError, What, message, new_id};

use crate::client_served::{self, Server};
use crate::coordinator::{Coordinator, Reach};
use crate::error::said_by;
use crate::job_options::ask_of;
use crate::plan::{self, Found};
use crate::{rates, volumes};

/// Bytes of a frame to and from a node.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// A cluster, as its client knows it.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// The directory of the client's identity.
    pub identity: PathBuf,
    /// The name that the cluster is to have, if one was given.
    pub name: Option<String>,
    /// The hosts; none means all.
    pub on: Vec<String>,
}

/// Runs some work on the nodes of a cluster, with memory and scratch of each as the options say.
///
/// The receipt's invariant is that of the same work on one machine; a sort's output is in order from each node's range
/// to the next's, and each part of a partition lies with one node.
pub fn run(cluster: &Cluster, options: &WorkOptions, progress: &Progress) -> Result<Receipt> {
    let ask = ask_of(options)?;
    let meant = Meant::of(cluster)?;
    let job = meant.job(ask, options)?;
    let server = server_of(&job.ask, options)?;
    let to = |name: &str| {
        let link = meant.linked(name)?;
        let no_thread =
            |e| LinkError::new(name, What::Cut(format!("no thread to lend it files is left: {e}")));
        server.iter().try_for_each(|server| client_served::serve(server, &link)).map_err(no_thread)?;
        Ok(link)
    };
    let output = match (&server, &options.output) {
        (Some(server), Endpoint::Client(path)) => {
            Some((Arc::clone(server), ClientOutput::of(server.io(), &Endpoint::Path(path.clone()))?))
        }
        (Some(server), end) => match volumes::of_client(end)? {
            Some(volume) => Some((Arc::clone(server), ClientOutput::of(&volume, end)?)),
            None => None,
        },
        _ => None,
    };
    let own_output = job.ask.own_output;
    let receipt = Coordinator::new(job, meant.reach(&to), progress)?.lending(output).run().0?;
    Ok(match options.work {
        Work::Partition { pick, .. } => parted(receipt, pick, own_output),
        _ => receipt,
    })
}

/// Makes the server of this client's files, if the job uses any.
fn server_of(ask: &JobOptions, options: &WorkOptions) -> Result<Option<Arc<Server>>> {
    if !ask.lends() {
        return Ok(None);
    }
    let inputs = options.inputs.iter().chain(options.right.iter().flat_map(|right| &right.inputs));
    let paths = inputs.filter_map(|input| match input {
        Endpoint::Client(path) => Some(path.as_path()),
        _ => None,
    });
    Ok(Some(Arc::new(Server::of(&paths.collect::<Vec<&Path>>())?)))
}

/// The receipt of a partition whose parts were written by nodes, with the place of each part.
pub(crate) fn parted(receipt: Receipt, pick: PartitionPick, own_output: bool) -> Receipt {
    let named = |node: &NodeReceipt, part: &PartReceipt| {
        let path = if own_output { format!("{}:{}", node.host, part.path) } else { part.path.clone() };
        PartReceipt { path, ..part.clone() }
    };
    let parts =
        receipt.nodes.iter().flat_map(|node| node.parts.iter().map(move |part| named(node, part))).collect();
    let sampled_bytes = receipt.nodes.iter().map(|node| node.sampled_bytes).sum();
    let partition = Some(PartitionReceipt::new(pick, parts, sampled_bytes));
    Receipt { partition, ..receipt }
}

/// What the nodes would have to sort, with their names; nothing is run.
fn found(meant: &Meant, job: JobSpec) -> Result<(Found, Vec<String>)> {
    let to = |name: &str| meant.linked(name);
    Coordinator::new(job, meant.reach(&to), &Progress::default())?.found()
}

/// Plans a sort on the nodes of a cluster. Runs nothing.
pub fn plan(cluster: &Cluster, options: &WorkOptions) -> Result<ClusterPlan> {
    let ask = ask_of(options)?;
    let meant = Meant::of(cluster)?;
    let job = meant.job(ask, options)?;
    let is_table = |input: &Endpoint| matches!(input, Endpoint::Table(_));
    if !job.ask.volumes.is_empty() || options.inputs.iter().any(is_table) {
        return Err(AskedOfCluster::VolumePlan.into());
    }
    if job.ask.lends() {
        return Err(AskedOfCluster::ClientPlan.into());
    }
    let ask = job.ask.clone();
    let (found, names) = found(&meant, job)?;
    let rates = match found.rates() {
        Some(kept) => (kept, RatesFrom::Probe),
        None => {
            let hosts: Vec<ClusterHost> =
                meant.hosts.iter().filter(|host| names.contains(&host.name)).cloned().collect();
            (rates::measure(&meant.client, &hosts, false)?, RatesFrom::Now)
        }
    };
    Ok(plan::shared(&ask, plan::facts(&ask, (&meant.all, &names), &found, rates)))
}

/// Has the first of the hosts that can be reached coordinate the job, and does not wait for its end.
pub fn detach(cluster: &Cluster, options: &WorkOptions) -> Result<Detached> {
    let ask = ask_of(options)?;
    if matches!(options.output, Endpoint::Volume(_)) {
        return Err(AskedOfCluster::VolumeLeaves.into());
    }
    if ask.lends() {
        return Err(AskedOfCluster::ClientLeaves.into());
    }
    let meant = Meant::of(cluster)?;
    let mut job = meant.job(ask, options)?;
    let mut unreached = Vec::new();
    for host in &meant.hosts {
        job.coordinator = Some(host.name.clone());
        match meant.client.kept_link(host, BLOCK_BYTES) {
            Ok(link) => {
                let end = begin(&link, &job)?;
                return match end.state {
                    JobState::Running => Ok(Detached { job: job.job, coordinator: host.name.clone() }),
                    _ => Err(said_by(&host.name, end.why.unwrap_or_default())),
                };
            }
            Err(why) => unreached.push(why.to_string()),
        }
    }
    Err(JobFault::Unreached(unreached).into())
}

/// The cluster, and the hosts that were selected.
struct Meant {
    client: Client,
    hosts: Vec<ClusterHost>,
    /// The names of all hosts of the cluster, in the order of its file.
    all: Vec<String>,
}

impl Meant {
    fn of(cluster: &Cluster) -> Result<Meant> {
        let client = Client::load_named(&cluster.identity, cluster.name.as_deref())?;
        let hosts = client.hosts(&cluster.on)?;
        let all = client.file().hosts.iter().map(|host| host.name.clone()).collect();
        Ok(Meant { client, hosts, all })
    }

    /// The job that is asked with these options.
    fn job(&self, ask: JobOptions, options: &WorkOptions) -> Result<JobSpec> {
        let volumes = volumes::of_job(options, &self.client.file().name)?;
        let ask = JobOptions { volumes, ..ask };
        Ok(JobSpec {
            job: new_id().to_string(),
            by: self.client.credentials().identity().name.clone(),
            ask,
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
            coordinator: None,
            failed: Vec::new(),
            lost: Vec::new(),
        })
    }

    fn linked(&self, name: &str) -> std::result::Result<Arc<Link>, LinkError> {
        let host = self.hosts.iter().find(|host| host.name == name).expect("only these are asked");
        self.client.kept_link(host, BLOCK_BYTES)
    }

    fn reach<'a>(
        &'a self,
        to: &'a (dyn Fn(&str) -> std::result::Result<Arc<Link>, LinkError> + Sync),
    ) -> Reach<'a> {
        Reach { to, own: true, all: &self.all }
    }
}

/// Asks a node to coordinate a job.
fn begin(link: &Link, job: &JobSpec) -> std::result::Result<ExecEnd, LinkError> {
    let cut = |why: String| LinkError::new(link.peer(), What::Cut(why));
    from_json(&message::ask(link, &JobRequest::Coordinate(job.clone()).text())?).map_err(cut)
}
