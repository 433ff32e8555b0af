//! A simulated cluster: a number of equal nodes with given rates of disks and links.
//!
//! Invariant: nothing is opened. Only the rates of cores are those of this machine.

use thalweg_api::{Hardware, NodeRates, RatesFrom};
use thalweg_base::units::GIB;

use super::{Facts, LINE_BYTES, NodeFacts, equal, room};
use crate::verbs::sorter_bytes;
use crate::{Asked, Layout, Result, calibrate};

/// The memory of a node if none is given.
const MEMORY_BYTES: u64 = 64 * GIB;
/// The most nodes; more need a better model than that of equal ones.
const NODES_MAX: u32 = 100_000;

/// The description of a cluster to simulate, as typed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Simulated {
    /// How many nodes.
    pub nodes: u32,
    /// Bytes per second that each disk reads or writes, or both together.
    pub disk_bytes_per_second: f64,
    /// Bytes per second of each link, in either direction.
    pub link_bytes_per_second: f64,
    /// Memory of each node.
    pub memory_bytes: Option<u64>,
    /// Bytes of the inputs of all nodes; without it, as many as one pass can sort.
    pub data_bytes: Option<u64>,
    /// Cores of each node; without it, as many as here.
    pub cores: Option<u32>,
    /// Bytes per second between the halves of the nodes, each way.
    pub trunk_bytes_per_second: Option<f64>,
}

/// The facts of a simulated cluster, for the model.
pub fn simulate(asked: &Simulated, layout: Layout, memory_bytes: Option<u64>) -> Result<Facts> {
    if asked.nodes == 0 || asked.nodes > NODES_MAX {
        return Err(Asked::SimulatedNodes { nodes: asked.nodes, max: NODES_MAX }.into());
    }
    let memory_bytes = asked.memory_bytes.or(memory_bytes).unwrap_or(MEMORY_BYTES);
    let room = room(sorter_bytes(memory_bytes)?) as u64;
    let all_bytes = match asked.data_bytes {
        Some(bytes) => bytes,
        None => room.checked_mul(u64::from(asked.nodes)).ok_or(Asked::SimulatedMemory)?,
    };
    let disk = asked.disk_bytes_per_second;
    let here = calibrate::cores_here();
    let hardware = Hardware {
        measured_bytes: 0,
        measured_at_seconds: 0,
        cores: asked.cores.unwrap_or(here.cores),
        read_bytes_per_second: disk,
        write_bytes_per_second: disk,
        mixed_bytes_per_second: disk,
        sync_seconds: 0.0,
        ..here
    };
    let rates = NodeRates {
        hardware,
        memory_bytes,
        send_bytes_per_second: asked.link_bytes_per_second,
        receive_bytes_per_second: asked.link_bytes_per_second,
        trunk_bytes_per_second: asked.trunk_bytes_per_second,
    };
    let nodes = (1..=asked.nodes).map(|i| NodeFacts {
        host: format!("n{i}"),
        rates,
        far: i > asked.nodes.div_ceil(2),
        read_bytes: 0,
        range_bytes: 0,
        memory_bytes,
    });
    let facts = Facts {
        nodes: nodes.collect(),
        record_bytes: layout.fixed_bytes().map_or(LINE_BYTES, |bytes| bytes as u32),
        trunk_bytes_per_second: asked.trunk_bytes_per_second,
        rates_from: RatesFrom::Simulated,
    };
    Ok(equal(facts, all_bytes))
}
