//! A sort on the nodes of a cluster, as a client asks for it: it coordinates the job itself, or has a node do that.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_api::{
    ClusterHost, Detached, ExecEnd, JobState, NodeRequest, NodeShare, PartReceipt, PartitionReceipt, SortJob,
    Work, from_json,
};
use thalweg_engine::share::{LentOutput, RightSide};
use thalweg_engine::{Endpoint, Progress, Receipt, Result, SortOptions};
use thalweg_wire::{Link, LinkError, What, new_id};

use crate::ask::ask_of;
use crate::attempts::{Coordinator, Reach};
use crate::exec::Client;
use crate::lent::{Lender, lend};
use crate::plan::Found;
use crate::pump::could_not;
use crate::talk::answer;

/// Bytes of a frame to and from a node.
const BLOCK_BYTES: usize = 256 << 10;

/// What to sort, and where.
#[derive(Debug, Clone)]
pub struct ClusterSort {
    /// What is done with the records.
    pub work: Work,
    /// The directory of the client's identity.
    pub identity: PathBuf,
    /// The name that its cluster is to have, if one was said.
    pub name: Option<String>,
    /// The hosts; none means all.
    pub on: Vec<String>,
    /// What is sorted and how. Memory and scratch are of each node.
    pub sort: SortOptions,
    /// Whether each node has inputs of its own, by patterns; else all have the same files.
    pub own_inputs: bool,
    /// Whether the inputs are this client's, which lends them to the nodes.
    pub lent_inputs: bool,
    /// Whether each node writes its range to a file of its own; else all write to the same.
    pub own_output: bool,
    /// Whether the output is this client's, which lends it to the nodes to write to.
    pub lent_output: bool,
    /// Whether all nodes have equal shares, however fast they are.
    pub equal: bool,
    /// What a join has beside its left side, which is in `sort`.
    pub join: Option<RightSide>,
}

impl ClusterSort {
    /// Whether this client lends something, and so has to stay.
    pub(crate) fn lends(&self) -> bool {
        self.lent_inputs || self.lent_output
    }
}

/// Sorts files on the nodes of a cluster. The receipt's law: out + dropped = in, and out is in order from each node's
/// range to the next's.
pub fn sort(asked: &ClusterSort, progress: &Progress) -> Result<Receipt> {
    let meant = Meant::of(asked)?;
    let lender = lender_of(asked)?;
    let to = |name: &str| {
        let link = meant.linked(name)?;
        let no_thread =
            |e| LinkError::new(name, What::Cut(format!("no thread to lend it files is left: {e}")));
        lender.iter().try_for_each(|lender| lend(lender, &link)).map_err(no_thread)?;
        Ok(link)
    };
    let output = match &lender {
        Some(lender) if asked.lent_output => {
            Some((Arc::clone(lender), LentOutput::of(lender.io(), &asked.sort.output)?))
        }
        _ => None,
    };
    Coordinator::new(meant.job(asked)?, meant.reach(&to), progress)?.lending(output).run().0
}

/// The files that this client lends, if it does.
fn lender_of(asked: &ClusterSort) -> Result<Option<Arc<Lender>>> {
    if !asked.lends() {
        return Ok(None);
    }
    let inputs = asked.sort.inputs.iter().chain(asked.join.iter().flat_map(|right| &right.inputs));
    let paths = inputs.filter(|_| asked.lent_inputs).map(|input| match input {
        Endpoint::Path(path) => Ok(path.as_path()),
        Endpoint::Standard => Err(could_not("a client lends files, and '-' is a stream")),
    });
    Ok(Some(Arc::new(Lender::of(&paths.collect::<Result<Vec<&Path>>>()?)?)))
}

/// Parts the records of files among so many files, each node's parts on the node.
pub fn partition(asked: &ClusterSort, progress: &Progress) -> Result<PartitionReceipt> {
    let Work::Partition { pick, .. } = asked.work else {
        return Err(could_not(format!("a {} has no parts", asked.work.verb())));
    };
    let receipt = sort(asked, progress)?;
    let named = |node: &NodeShare, part: &PartReceipt| {
        let path = if asked.own_output { format!("{}:{}", node.host, part.path) } else { part.path.clone() };
        PartReceipt { path, ..part.clone() }
    };
    let parts =
        receipt.nodes.iter().flat_map(|node| node.parts.iter().map(move |part| named(node, part))).collect();
    let sampled_bytes = receipt.nodes.iter().map(|node| node.sampled_bytes).sum();
    Ok(PartitionReceipt::new(receipt, pick, parts, sampled_bytes))
}

/// What the nodes would have to sort, with their names, and nothing comes of it.
pub(crate) fn found(meant: &Meant, asked: &ClusterSort) -> Result<(Found, Vec<String>)> {
    let to = |name: &str| meant.linked(name);
    Coordinator::new(meant.job(asked)?, meant.reach(&to), &Progress::default())?.found()
}

/// Has a node coordinate it, the first of the hosts that can be reached, and does not wait for its end.
pub fn detach(asked: &ClusterSort) -> Result<Detached> {
    if asked.lends() {
        return Err(could_not(
            "a client that lends its files has to stay; leave out --detach, or pump them to the nodes",
        ));
    }
    let meant = Meant::of(asked)?;
    let mut job = meant.job(asked)?;
    let mut unreached = Vec::new();
    for host in &meant.hosts {
        job.coordinator = Some(host.name.clone());
        match linked(&meant.client, host) {
            Ok(link) => {
                let end = begin(&link, &job).map_err(could_not)?;
                return match end.state {
                    JobState::Running => Ok(Detached { job: job.job, coordinator: host.name.clone() }),
                    _ => Err(could_not(format!("{}: {}", host.name, end.why.unwrap_or_default()))),
                };
            }
            Err(why) => unreached.push(why.to_string()),
        }
    }
    Err(could_not(unreached.join("; ")))
}

/// The cluster and the hosts that are meant.
pub(crate) struct Meant {
    pub(crate) client: Client,
    pub(crate) hosts: Vec<ClusterHost>,
    /// The names of all hosts of the cluster, in the order of its file.
    pub(crate) all: Vec<String>,
}

impl Meant {
    pub(crate) fn of(asked: &ClusterSort) -> Result<Meant> {
        let client = client_of(&asked.identity, asked.name.as_deref())?;
        let hosts = client.hosts(&asked.on).map_err(could_not)?;
        let all = client.file.hosts.iter().map(|host| host.name.clone()).collect();
        Ok(Meant { client, hosts, all })
    }

    fn job(&self, asked: &ClusterSort) -> Result<SortJob> {
        Ok(SortJob {
            job: new_id().to_string(),
            by: self.client.hands.identity().name.clone(),
            ask: ask_of(asked)?,
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
            coordinator: None,
            failed: Vec::new(),
            lost: Vec::new(),
        })
    }

    fn linked(&self, name: &str) -> std::result::Result<Arc<Link>, LinkError> {
        let host = self.hosts.iter().find(|host| host.name == name).expect("only these are asked");
        linked(&self.client, host)
    }

    fn reach<'a>(
        &'a self,
        to: &'a (dyn Fn(&str) -> std::result::Result<Arc<Link>, LinkError> + Sync),
    ) -> Reach<'a> {
        Reach { to, own: true, all: &self.all }
    }
}

/// The client of an identity, whose cluster is to have this name, if one was said.
pub(crate) fn client_of(identity: &Path, name: Option<&str>) -> Result<Client> {
    let client = Client::load(identity).map_err(could_not)?;
    if let Some(name) = name.filter(|name| *name != client.file.name) {
        let (of, directory) = (&client.file.name, identity.display());
        return Err(could_not(format!(
            "the identity in {directory} is of cluster {of}, not of {name}; give the directory of the other with --cluster"
        )));
    }
    Ok(client)
}

/// A link that is watched over.
pub(crate) fn linked(client: &Client, host: &ClusterHost) -> std::result::Result<Arc<Link>, LinkError> {
    let cut = |why: String| LinkError::new(&host.name, What::Cut(why));
    let link = client.link(host, BLOCK_BYTES).map_err(|why| match why {
        crate::Error::Link(why) => why,
        other => cut(other.to_string()),
    })?;
    link.keep().map_err(|e| cut(format!("no thread for it is left: {e}")))?;
    Ok(Arc::new(link))
}

/// Asks a node to coordinate a job.
fn begin(link: &Link, job: &SortJob) -> std::result::Result<ExecEnd, LinkError> {
    let cut = |why: String| LinkError::new(link.peer(), What::Cut(why));
    from_json(&answer(link, &NodeRequest::Coordinate(job.clone()))?).map_err(cut)
}
