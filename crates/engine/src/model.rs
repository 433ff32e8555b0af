//! The model of a sort on several nodes: predicts from each node's rates how long each stage takes, and why.
//!
//! Model (after the HPVM MinuteSort paper, which measures the parts and models the whole): in a stage all resources
//! work in parallel, so the slowest sets its time; of each of the others, only one piece does not overlap with it.
//!
//! ```text
//! sample       disk of i      reads the sampled chunks
//! read+river   disk of i      reads its input; spills the part of its range that does not fit
//!              link of i      sends records of other ranges, receives those of its own
//!              trunk          carries records from one half of the hosts to the other
//!              cores of i     one lane finds the range of each record
//! sort+write   cores of i     first distribute what fits in memory, without overlap
//!              disk of i      loads what was spilled, writes the range
//! ```
//!
//! Invariant: pure. Stages have the names that the receipt will show beside them.
//! Non-goals: disks that several nodes share unless they were measured together, what links cost the cores beyond what
//! a measurement of links shows, time between stages.

mod shares;
mod simulated;

use thalweg_api::{ClusterPlan, ClusterStage, NodePlan, NodeRates, NodeRole, RatesFrom};
use thalweg_base::units::MIB;
use thalweg_sort::{disk_seconds, distribute_seconds, sort_seconds};

pub use self::shares::best;
pub use self::simulated::{Simulated, simulate};
use crate::calibrate;
use crate::verbs::{MEMORY_BYTES_MIN, sampled_bytes, sorter_bytes};

/// The assumed length of a line when only the bytes of an input are known.
pub const LINE_BYTES: u32 = 100;
/// How much of a sorter's memory records fill before it spills: a fraction, less some bytes. Measured: 1 GB through a
/// pipe in 1 GiB keeps 690 MB, and a share of 30 MB in 19 MiB keeps 7.
const ROOM: (f64, f64) = (0.65, 6e6);
/// Bytes of a piece: about a page of the river, and a range of a sorter.
const PAGE_BYTES: f64 = MIB as f64;
const RANGE_BYTES: f64 = 6e6;
/// Less than this fraction of an equal share, to read or as a range, is hardly anything.
const HARDLY: f64 = 0.05;
/// A resource that takes at least this fraction of the slowest one's time limits the stage too.
const AS_SLOW: f64 = 0.9;
/// The most hosts that are named as what limits a stage.
const NAMED_MAX: usize = 3;

/// One node and its share of the work.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// Its host.
    pub host: String,
    /// How fast it is.
    pub rates: NodeRates,
    /// Whether it is in the second half of the hosts, beyond the trunk.
    pub far: bool,
    /// Bytes of the inputs that it reads.
    pub read_bytes: u64,
    /// Bytes of its range.
    pub range_bytes: u64,
    /// Memory of its share.
    pub memory_bytes: u64,
}

/// A sort on several nodes: all that the model needs to know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// In the order of their ranges.
    pub nodes: Vec<NodeFacts>,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Bytes per second between the halves, each way, if that is less than what the links carry.
    pub trunk_bytes_per_second: Option<f64>,
    /// Where the rates come from.
    pub rates_from: RatesFrom,
}

/// Bytes of records that this much memory of a sorter holds.
fn room(sorter_bytes: u64) -> f64 {
    (sorter_bytes as f64 * ROOM.0 - ROOM.1).max(0.0)
}

/// Whether it is safe to divide by the rates. Links of 0 mean that the node is alone.
pub fn is_sound(rates: &NodeRates) -> bool {
    let links = [rates.send_bytes_per_second, rates.receive_bytes_per_second];
    calibrate::is_usable(&rates.hardware)
        && links.iter().all(|rate| rate.is_finite() && *rate >= 0.0)
        && rates.trunk_bytes_per_second.is_none_or(|rate| rate.is_finite() && rate >= 1.0)
}

/// Divides `all_bytes` into equal shares, to read and to sort.
pub fn equal(mut facts: Facts, all_bytes: u64) -> Facts {
    let share = all_bytes / facts.nodes.len().max(1) as u64;
    facts.nodes.iter_mut().for_each(|node| (node.read_bytes, node.range_bytes) = (share, share));
    facts
}

/// The load of one node in a stage: the seconds that each of its resources needs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Loads {
    disk: f64,
    link: f64,
    cores: f64,
    /// Before all of these, without overlap.
    alone: f64,
}

impl Loads {
    fn slowest(&self) -> f64 {
        self.alone + self.disk.max(self.link).max(self.cores)
    }

    /// Seconds of the stage: the slowest load, and of each other load one of `pieces` pieces.
    fn seconds(&self, pieces: f64) -> f64 {
        let most = self.disk.max(self.link).max(self.cores);
        self.alone + most + (self.disk + self.link + self.cores - most) / pieces.max(1.0)
    }
}

/// The facts that are the same for all nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct All {
    /// Of all inputs.
    bytes: f64,
    /// The part of a node's memory that its sorter does not have.
    beside_bytes: u64,
    record_bytes: f64,
}

impl Facts {
    fn all(&self) -> All {
        let least = self.nodes.iter().map(|node| node.memory_bytes).min().unwrap_or(0);
        All {
            bytes: self.nodes.iter().map(|node| node.read_bytes).sum::<u64>() as f64,
            beside_bytes: least.saturating_sub(sorter_bytes(least).unwrap_or(MEMORY_BYTES_MIN)),
            record_bytes: f64::from(self.record_bytes.max(1)),
        }
    }

    /// Bytes that cross the trunk, there and back.
    fn across(&self, all: All) -> [f64; 2] {
        let sum = |far: bool, of: fn(&NodeFacts) -> u64| {
            self.nodes.iter().filter(|node| node.far == far).map(of).sum::<u64>() as f64
        };
        let cross =
            |far: bool| sum(far, |n| n.read_bytes) * sum(!far, |n| n.range_bytes) / all.bytes.max(1.0);
        [cross(false), cross(true)]
    }
}

impl All {
    /// How much of a range fits in the node's memory.
    fn room(&self, node: &NodeFacts) -> f64 {
        room(node.memory_bytes.saturating_sub(self.beside_bytes))
    }

    fn spilled(&self, node: &NodeFacts, range: f64) -> f64 {
        (range - self.room(node)).max(0.0)
    }

    /// Bytes that a node with these shares sends and receives.
    fn crossing(&self, read: f64, range: f64) -> [f64; 2] {
        let all = self.bytes.max(1.0);
        [read * (1.0 - range / all), range * (1.0 - read / all)]
    }

    fn records(&self, bytes: f64) -> u64 {
        (bytes / self.record_bytes) as u64
    }

    fn read_river(&self, node: &NodeFacts, read: f64, range: f64) -> Loads {
        let rates = &node.rates;
        let hardware = &rates.hardware;
        let spilled = self.spilled(node, range);
        let [sent, received] = self.crossing(read, range);
        let over = |bytes: f64, rate: f64| if bytes >= 1.0 && rate > 0.0 { bytes / rate } else { 0.0 };
        let finding = distribute_seconds(self.records(read), read as u64, hardware);
        let beside =
            if spilled > 0.0 { distribute_seconds(self.records(range), range as u64, hardware) } else { 0.0 };
        Loads {
            disk: disk_seconds(read as u64, spilled as u64, hardware),
            link: over(sent, rates.send_bytes_per_second).max(over(received, rates.receive_bytes_per_second)),
            cores: finding.max((finding + beside) / f64::from(hardware.cores.max(1))),
            alone: 0.0,
        }
    }

    fn sort_write(&self, node: &NodeFacts, range: f64) -> Loads {
        let hardware = &node.rates.hardware;
        let (records, cores) = (self.records(range), f64::from(hardware.cores.max(1)));
        let spilled = self.spilled(node, range);
        let distributed = distribute_seconds(records, range as u64, hardware) / cores;
        Loads {
            disk: disk_seconds(spilled as u64, range as u64, hardware),
            link: 0.0,
            cores: sort_seconds(records, range as u64, hardware) / cores,
            alone: if spilled > 0.0 { 0.0 } else { distributed },
        }
    }
}

/// Predicts the time of a sort, stage by stage.
pub fn predict(facts: &Facts) -> ClusterPlan {
    let all = facts.all();
    let names: Vec<&str> = facts.nodes.iter().map(|node| node.host.as_str()).collect();
    let each = |of: &dyn Fn(&NodeFacts) -> Loads| facts.nodes.iter().map(of).collect::<Vec<Loads>>();
    let sum = |of: fn(&NodePlan) -> u64, nodes: &[NodePlan]| nodes.iter().map(of).sum::<u64>();
    let nodes: Vec<NodePlan> = facts.nodes.iter().map(|node| planned(node, all, facts.nodes.len())).collect();
    let (read, written) = (sum(|n| n.read_bytes, &nodes), sum(|n| n.range_bytes, &nodes));
    let spilled = sum(|n| n.spilled_bytes, &nodes);
    let sampled = sampled_bytes(read, facts.nodes.len(), f64::from(facts.record_bytes.max(1)));

    let part = |node: &NodeFacts| sampled as f64 * node.read_bytes as f64 / all.bytes.max(1.0);
    let sampling = each(&|node| Loads {
        disk: disk_seconds(part(node) as u64, 0, &node.rates.hardware),
        ..Loads::default()
    });
    let reading = each(&|n| all.read_river(n, n.read_bytes as f64, n.range_bytes as f64));
    let writing = each(&|n| all.sort_write(n, n.range_bytes as f64));
    let trunk = facts
        .trunk_bytes_per_second
        .map_or(0.0, |rate| facts.across(all).into_iter().fold(0.0, f64::max) / rate.max(1.0));
    let crossing: f64 =
        facts.nodes.iter().map(|node| all.crossing(node.read_bytes as f64, node.range_bytes as f64)[0]).sum();

    let pieces = |bytes: fn(&NodePlan) -> u64, piece: f64| {
        nodes.iter().map(|node| bytes(node) as f64 / piece).collect::<Vec<f64>>()
    };
    let pages = pieces(|node| node.read_bytes, PAGE_BYTES);
    let ranges = pieces(|node| node.range_bytes, RANGE_BYTES);
    let stages = vec![
        stage("sample", &names, (&sampling, 0.0), &pages, [sampled.min(read), 0, 0]),
        stage("read+river", &names, (&reading, trunk), &pages, [read, crossing as u64, spilled]),
        stage("sort+write", &names, (&writing, 0.0), &ranges, [spilled, 0, written]),
    ];
    let slowest = stages.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("there are stages");
    ClusterPlan {
        asked: Vec::new(),
        rates_from: facts.rates_from,
        input_bytes: read,
        record_bytes: facts.record_bytes,
        passes: 1 + u32::from(spilled > 0),
        trunk_bytes_per_second: facts.trunk_bytes_per_second,
        seconds: stages.iter().map(|stage| stage.seconds).sum(),
        bottleneck: format!("{}, {}", slowest.name, slowest.bottleneck),
        nodes,
        stages,
    }
}

fn planned(node: &NodeFacts, all: All, nodes: usize) -> NodePlan {
    let hardly = HARDLY * all.bytes / nodes as f64;
    let role = match (node.read_bytes as f64 > hardly, node.range_bytes as f64 > hardly) {
        (true, false) => NodeRole::Io,
        (false, true) => NodeRole::Sort,
        (true, true) => NodeRole::Both,
        (false, false) => NodeRole::Spare,
    };
    NodePlan {
        host: node.host.clone(),
        role,
        rates: node.rates,
        read_bytes: node.read_bytes,
        range_bytes: node.range_bytes,
        memory_bytes: node.memory_bytes,
        spilled_bytes: all.spilled(node, node.range_bytes as f64) as u64,
    }
}

fn stage(
    name: &str,
    hosts: &[&str],
    (loads, trunk): (&[Loads], f64),
    pieces: &[f64],
    [read_bytes, crossing_bytes, written_bytes]: [u64; 3],
) -> ClusterStage {
    let slowest = loads.iter().zip(pieces).map(|(load, pieces)| load.seconds(*pieces)).fold(0.0, f64::max);
    ClusterStage {
        name: name.into(),
        read_bytes,
        crossing_bytes,
        written_bytes,
        seconds: slowest.max(trunk),
        bottleneck: if trunk > 0.0 && trunk >= slowest { "trunk".into() } else { limit(hosts, loads) },
    }
}

/// Names the bottleneck: one resource of one node, of several nodes, or of all.
fn limit(hosts: &[&str], loads: &[Loads]) -> String {
    type Of = fn(&Loads) -> f64;
    let disk: Of = |load| load.disk;
    let link: Of = |load| load.link;
    let cores: Of = |load| load.cores + load.alone;
    let most = |of: Of| loads.iter().map(of).fold(0.0, f64::max);
    let kinds = [("disk", disk), ("link", link), ("cores", cores)];
    let (kind, of) =
        kinds.into_iter().max_by(|a, b| most(a.1).total_cmp(&most(b.1))).expect("there are three");
    let slow: Vec<&str> = hosts
        .iter()
        .zip(loads)
        .filter(|(_, load)| of(load) >= AS_SLOW * most(of))
        .map(|(host, _)| *host)
        .collect();
    let plural = if kind == "cores" { kind.to_string() } else { format!("{kind}s") };
    match &slow[..] {
        [one] => format!("{one}'s {kind}"),
        all if all.len() == hosts.len() => format!("all {plural}"),
        few if few.len() <= NAMED_MAX => format!("{plural} of {}", few.join(", ")),
        many => format!("{plural} of {}, {} and {} more", many[0], many[1], many.len() - 2),
    }
}

#[cfg(test)]
mod tests;
