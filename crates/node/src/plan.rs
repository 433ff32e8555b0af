//! What a sort on the nodes of a cluster will do: asked of them, and given to the model.
//!
//! Model: every node is asked for its share as the sort asks, opens its inputs and says how large they are, and is then
//! told that nothing comes of it. Rates are those that it keeps from a probe; if one node keeps none, all are measured in
//! short.
//! Law: runs nothing; nothing is left on any node.

use thalweg::model::{self, Facts, LINE_BYTES, NodeFacts};
use thalweg::{Layout, Result};
use thalweg_api::{ClusterFile, ClusterHost, ClusterPlan, NodePlan, NodeRates, RatesFrom};

use crate::pump::could_not;
use crate::sort::{ClusterSort, client_of, found};
use crate::{exec::Client, rates};

/// What the nodes of a sort have found.
pub(crate) struct Found {
    pub(crate) nodes: Vec<FoundOf>,
    /// Bytes of all inputs.
    pub(crate) all_bytes: u64,
    /// Memory of each.
    pub(crate) memory_bytes: u64,
}

/// What one of them has.
pub(crate) struct FoundOf {
    pub(crate) input_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) rates: Option<NodeRates>,
}

impl Found {
    /// The rates that they keep, if all do.
    pub(crate) fn rates(&self) -> Option<Vec<NodeRates>> {
        self.nodes.iter().map(|node| node.rates).collect()
    }
}

/// Says what a sort on the nodes of a cluster would do. Runs nothing.
pub fn plan(asked: &ClusterSort) -> Result<ClusterPlan> {
    let client = client_of(asked)?;
    let hosts = client.hosts(&asked.on).map_err(could_not)?;
    let found = found(&client, &hosts, asked)?;
    let (rates, from) = rates_of(&client, &hosts, &found)?;
    Ok(shared(asked, facts(asked, &client.file, &hosts, &found, (&rates, from))))
}

/// The same of a sort that has begun, if all nodes keep rates.
pub(crate) fn kept(
    asked: &ClusterSort,
    file: &ClusterFile,
    hosts: &[ClusterHost],
    found: &Found,
) -> Option<ClusterPlan> {
    let rates = found.rates()?;
    Some(shared(asked, facts(asked, file, hosts, found, (&rates, RatesFrom::Probe))))
}

/// The plan of a sort in the shares that it will have: the best for rates that are kept, else equal ones.
fn shared(asked: &ClusterSort, facts: Facts) -> ClusterPlan {
    let equal = asked.equal || facts.rates_from != RatesFrom::Probe;
    model::predict(&if equal { facts } else { model::best(facts, asked.own_inputs) })
}

/// The rates that all keep, or those that are measured now.
fn rates_of(client: &Client, hosts: &[ClusterHost], found: &Found) -> Result<(Vec<NodeRates>, RatesFrom)> {
    if let Some(kept) = found.rates() {
        return Ok((kept, RatesFrom::Probe));
    }
    Ok((rates::measure(client, hosts, false).map_err(could_not)?, RatesFrom::Now))
}

/// What the model needs to know of a sort with such inputs on nodes of such rates.
fn facts(
    asked: &ClusterSort,
    file: &ClusterFile,
    hosts: &[ClusterHost],
    found: &Found,
    (rates, rates_from): (&[NodeRates], RatesFrom),
) -> Facts {
    let near = file.hosts.len().div_ceil(2);
    let is_near = |host: &ClusterHost| file.hosts[..near].iter().any(|other| other.name == host.name);
    let share = found.all_bytes / hosts.len() as u64;
    let nodes = hosts.iter().zip(rates).zip(&found.nodes).map(|((host, rates), of_node)| NodeFacts {
        host: host.name.clone(),
        rates: *rates,
        far: !is_near(host),
        read_bytes: if asked.own_inputs { of_node.input_bytes } else { share },
        range_bytes: share,
    });
    Facts {
        nodes: nodes.collect(),
        record_bytes: match asked.sort.layout {
            Layout::Fixed(bytes) => bytes,
            Layout::Lines => LINE_BYTES,
        },
        memory_bytes: found.memory_bytes,
        trunk_bytes_per_second: rates.iter().find_map(|rates| rates.trunk_bytes_per_second),
        rates_from,
    }
}

/// What each of so many nodes reads, and its range, as weights: equal ones where there is no plan.
pub(crate) fn shares(plan: Option<&ClusterPlan>, count: usize) -> [Vec<u64>; 2] {
    let of = |bytes: fn(&NodePlan) -> u64| match plan {
        Some(plan) if plan.input_bytes > 0 => plan.nodes.iter().map(bytes).collect(),
        _ => vec![1; count],
    };
    [of(|node| node.read_bytes), of(|node| node.range_bytes)]
}
