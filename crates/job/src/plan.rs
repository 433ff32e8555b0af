//! The plan of a sort on the nodes of a cluster: what they found, given to the model.
//!
//! Model: every node opens its inputs, as for a sort, and reports how large they are ([`crate::client`] asks, and
//! nothing is run). Rates are those that nodes keep from a probe; if one node keeps none, all are measured briefly.
//! Non-goals: asking; running anything.

use thalweg_api::{ClusterPlan, JobOptions, NodePlan, NodeRates, RatesFrom};
use thalweg_engine::model::{self, Facts, LINE_BYTES, NodeFacts};

/// What the nodes of a sort have found.
pub(crate) struct Found {
    pub(crate) nodes: Vec<FoundOf>,
    /// Bytes of all inputs.
    pub(crate) all_bytes: u64,
}

/// What one of the nodes has.
pub(crate) struct FoundOf {
    pub(crate) input_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) rates: Option<NodeRates>,
}

impl Found {
    /// The memory of the node that has the least.
    pub(crate) fn least_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_bytes).min().unwrap_or(0)
    }

    /// The rates that the nodes keep, if all keep some.
    pub(crate) fn rates(&self) -> Option<Vec<NodeRates>> {
        self.nodes.iter().map(|node| node.rates).collect()
    }
}

/// The model's prediction for a sort that has begun on some of all hosts, if all its nodes keep rates.
pub(crate) fn kept(ask: &JobOptions, hosts: (&[String], &[String]), found: &Found) -> Option<ClusterPlan> {
    let rates = found.rates()?;
    Some(shared(ask, facts(ask, hosts, found, (rates, RatesFrom::Probe))))
}

/// The plan of a sort with the shares that it will have: the best ones if the nodes keep rates, else equal ones.
pub(crate) fn shared(ask: &JobOptions, facts: Facts) -> ClusterPlan {
    let equal = ask.spec.equal || facts.rates_from != RatesFrom::Probe;
    model::predict(&if equal { facts } else { model::best(facts, ask.own_inputs) })
}

/// The facts for the model about a sort of these inputs on nodes with these rates.
pub(crate) fn facts(
    ask: &JobOptions,
    (all, names): (&[String], &[String]),
    found: &Found,
    (rates, rates_from): (Vec<NodeRates>, RatesFrom),
) -> Facts {
    let near = &all[..all.len().div_ceil(2)];
    let share = found.all_bytes / names.len() as u64;
    let nodes = names.iter().zip(&rates).zip(&found.nodes).map(|((name, rates), of_node)| NodeFacts {
        host: name.clone(),
        rates: *rates,
        far: !near.contains(name),
        read_bytes: if ask.own_inputs { of_node.input_bytes } else { share },
        range_bytes: share,
        memory_bytes: of_node.memory_bytes,
    });
    Facts {
        nodes: nodes.collect(),
        record_bytes: ask.spec.layout.record.unwrap_or(LINE_BYTES),
        trunk_bytes_per_second: rates.iter().find_map(|rates| rates.trunk_bytes_per_second),
        rates_from,
    }
}

/// The weights of what each of `count` nodes reads, and of its range; equal ones without a plan.
pub(crate) fn shares(plan: Option<&ClusterPlan>, count: usize) -> [Vec<u64>; 2] {
    let of = |bytes: fn(&NodePlan) -> u64| match plan {
        Some(plan) if plan.input_bytes > 0 => plan.nodes.iter().map(bytes).collect(),
        _ => vec![1; count],
    };
    [of(|node| node.read_bytes), of(|node| node.range_bytes)]
}
