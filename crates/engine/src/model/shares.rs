//! Shares of unequal nodes: who reads how much, and how large each range is.
//!
//! Model: moves bytes from the node that gains most from having fewer to the node that loses least by having more, in
//! steps that shrink when no move helps. Minimizes the sum over both stages of a power mean that is close to the
//! slowest load: with the slowest load itself, no move would help before all equally slow nodes had given some bytes.
//! Invariant: pure, and bounded; equal shares stay if they are nearly as good, so small differences in the measured
//! rates of equal nodes change nothing.

use super::{All, Facts, predict};

/// Unequal shares must be faster than equal ones by this factor.
const GAIN_MIN: f64 = 1.1;
/// The power of the mean: of two loads that differ by a tenth, the lesser counts a sixth.
const POWER: i32 = 16;
/// The first and the last step, as fractions of an equal share.
const STEPS: (f64, f64) = (0.5, 0.002);
/// The smallest range of a node, as a fraction of an equal share: every node has a range.
const RANGE_MIN: f64 = 0.01;
/// The most moves.
const MOVES_MAX: usize = 8192;

/// The shares with which a sort on these nodes takes the least time. If each node has its own input,
/// only ranges change.
pub fn best(facts: Facts, own_inputs: bool) -> Facts {
    if facts.nodes.len() < 2 || facts.all().bytes < facts.nodes.len() as f64 {
        return facts;
    }
    let mut search = Search::new(&facts);
    search.run(own_inputs);
    let found = search.found();
    if predict(&facts).seconds >= GAIN_MIN * predict(&found).seconds { found } else { facts }
}

/// What is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Reads,
    Ranges,
}

struct Search<'a> {
    facts: &'a Facts,
    all: All,
    reads: Vec<f64>,
    ranges: Vec<f64>,
    /// For both stages, the loads of each node to the power [`POWER`], and their sums.
    powers: Vec<[f64; 2]>,
    sums: [f64; 2],
    /// Bytes that the first half reads, and those of its ranges.
    near: [f64; 2],
}

impl<'a> Search<'a> {
    fn new(facts: &'a Facts) -> Search<'a> {
        let all = facts.all();
        let bytes =
            |of: fn(&super::NodeFacts) -> u64| facts.nodes.iter().map(|node| of(node) as f64).collect();
        let (reads, ranges): (Vec<f64>, Vec<f64>) =
            (bytes(|node| node.read_bytes), bytes(|node| node.range_bytes));
        let mut search =
            Search { facts, all, reads, ranges, powers: Vec::new(), sums: [0.0; 2], near: [0.0; 2] };
        for (i, node) in facts.nodes.iter().enumerate() {
            let power = search.power(i, search.reads[i], search.ranges[i]);
            search.powers.push(power);
            search.sums = [search.sums[0] + power[0], search.sums[1] + power[1]];
            if !node.far {
                search.near = [search.near[0] + search.reads[i], search.near[1] + search.ranges[i]];
            }
        }
        search
    }

    fn run(&mut self, own_inputs: bool) {
        let share = self.all.bytes / self.reads.len() as f64;
        let mut step = share * STEPS.0;
        let kinds: &[Of] = if own_inputs { &[Of::Ranges] } else { &[Of::Reads, Of::Ranges] };
        for _ in 0..MOVES_MAX {
            let moved = kinds.iter().filter(|of| self.improve(**of, step, share * RANGE_MIN)).count();
            if moved == 0 {
                step /= 2.0;
            }
            if step < share * STEPS.1 {
                return;
            }
        }
    }

    /// Moves a step from one node to another, if that is better.
    fn improve(&mut self, of: Of, step: f64, least: f64) -> bool {
        let now = self.cost(&[]);
        let held = |i: usize| if of == Of::Reads { self.reads[i] } else { self.ranges[i] - least };
        let change = |i: usize, by: f64| match of {
            Of::Reads => (i, by, 0.0),
            Of::Ranges => (i, 0.0, by),
        };
        let nodes = 0..self.reads.len();
        let cheapest = |by: f64, nodes: &mut dyn Iterator<Item = usize>| {
            let costs = nodes.map(|i| (self.cost(&[change(i, by)]), i));
            costs.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, i)| i)
        };
        let Some(from) = cheapest(-step, &mut nodes.clone().filter(|i| held(*i) >= step)) else {
            return false;
        };
        let Some(to) = cheapest(step, &mut nodes.filter(|i| *i != from)) else { return false };
        let moves = [change(from, -step), change(to, step)];
        if self.cost(&moves) >= now * (1.0 - 1e-9) {
            return false;
        }
        for (i, read, range) in moves {
            self.reads[i] += read;
            self.ranges[i] += range;
            let power = self.power(i, self.reads[i], self.ranges[i]);
            let before = std::mem::replace(&mut self.powers[i], power);
            for stage in 0..2 {
                self.sums[stage] += power[stage] - before[stage];
            }
            if !self.facts.nodes[i].far {
                self.near = [self.near[0] + read, self.near[1] + range];
            }
        }
        true
    }

    fn power(&self, i: usize, read: f64, range: f64) -> [f64; 2] {
        let node = &self.facts.nodes[i];
        let loads = [self.all.read_river(node, read, range), self.all.sort_write(node, range)];
        loads.map(|load| load.slowest().powi(POWER))
    }

    /// The cost of both stages if these nodes had this much more to read, and this much more of a range.
    fn cost(&self, changes: &[(usize, f64, f64)]) -> f64 {
        let (mut sums, mut near) = (self.sums, self.near);
        for &(i, read, range) in changes {
            let power = self.power(i, self.reads[i] + read, self.ranges[i] + range);
            for stage in 0..2 {
                sums[stage] += power[stage] - self.powers[i][stage];
            }
            if !self.facts.nodes[i].far {
                near = [near[0] + read, near[1] + range];
            }
        }
        if let Some(rate) = self.facts.trunk_bytes_per_second {
            let all = self.all.bytes;
            let most = (near[0] * (all - near[1])).max((all - near[0]) * near[1]) / all;
            sums[0] += (most / rate.max(1.0)).powi(POWER);
        }
        sums.map(|sum| sum.max(0.0).powf(1.0 / f64::from(POWER))).iter().sum()
    }

    fn found(&self) -> Facts {
        let mut found = self.facts.clone();
        let bytes = |share: f64| share.max(0.0) as u64;
        for (i, node) in found.nodes.iter_mut().enumerate() {
            (node.read_bytes, node.range_bytes) = (bytes(self.reads[i]), bytes(self.ranges[i]));
        }
        // The first node gets the bytes that are left after rounding.
        let all = |of: fn(&super::NodeFacts) -> u64, facts: &Facts| facts.nodes.iter().map(of).sum::<u64>();
        let left = |of| all(of, self.facts).saturating_sub(all(of, &found));
        let (read, range) = (left(|node| node.read_bytes), left(|node| node.range_bytes));
        found.nodes[0].read_bytes += read;
        found.nodes[0].range_bytes += range;
        found
    }
}
