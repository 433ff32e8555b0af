//! `thalweg-bench cluster`: sorts on the nodes of a lab, from the start of the client's process to its end.
//!
//! Model: each row has a lab of its own, with links and disks as slow as the row says. Every node has a share of the
//! Sort Benchmark's records in its own file, and writes one range of them to another file, sorted or in arrival order
//! (the river of the paper). iperf3 runs in turn with that, between two of the hosts and in both directions at once.
//! The ideal is the time that each link needs at the rate of iperf3 and, after it, each disk at its own rate. A sort is
//! also compared with its plan, from rates that are measured after the last run.
//! Invariant: a run counts only if its receipt holds, no node was taken for lost, and the receipt agrees with the
//! kernel's count of all links within [`AGREE`](crate::lab::AGREE). The output of the first run is validated.
//! Non-goals: rivals.

use std::process::Command;

use thalweg_api::{
    BenchMeasure, BenchOther, BenchReport, BenchRow, ClusterPlan, ClusterStage, Receipt, from_json,
};
use thalweg_io::process::{self, Usage};
use thalweg_record::RECORD_BYTES;

use crate::iperf_ring::Ring;
use crate::lab::{Carried, Lab, Wanted, on_lab};
use crate::minutesort;
use crate::minutesort::MODEL;
use crate::pump_lab::{Served, iperf_between};
use thalweg_measure::contenders::judge;
use thalweg_measure::process::{Series, median, whole_process};
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Asked, digest_of, memory};
use thalweg_measure::{Error, Result};

/// Bytes that the kernel counts and receipts do not: requests, samples, split points.
const AGREE_BYTES_PER_NODE: u64 = 1 << 20;
/// The time that the links need at the rate of iperf3.
pub(crate) const IDEAL: &str = "ideal";
/// Memory that is touched before each run, for each byte of the records: nodes and the page cache both hold them.
const MEMORY_OF_BYTES: u64 = 3;
/// Bytes a second of the slow disks, as `lab/up` takes it, and as a number.
const DISK: (&str, f64) = ("20MB/s", 20e6);

/// One row.
struct Row {
    name: &'static str,
    /// `sort`, or `partition` into one part for each node.
    verb: &'static str,
    nodes: u32,
    /// Records of all nodes, for a `--size` of 1 GB.
    records: u64,
    /// The links, as arguments of `lab/up`.
    links: &'static [&'static str],
    disks: Disks,
    /// Whether the inputs are cached when a sort begins.
    warm: bool,
    memory: &'static str,
    /// The figures of the paper, if it has any.
    paper: &'static str,
    targets: &'static [Target],
}

/// The disks of the hosts.
#[derive(Clone, Copy, PartialEq)]
enum Disks {
    /// The disk of this machine, shared by all.
    Shared,
    /// A slow disk for each host.
    Slow,
    /// No disk: files are in memory.
    None,
}

pub(crate) const NARROW: &[&str] = &["--rate", "100mbit"];
const WIDE: &[&str] = &["--rate", "1gbit"];

pub(crate) const fn of_ideal(part: f64) -> Target {
    Target::Faster { than: Than::Named(IDEAL), times: part, or_floor: None }
}

const SCALES: &[Target] = &[of_ideal(0.9)];

/// The paper's two nodes.
const TWO: Row = Row {
    name: "sort2",
    verb: "sort",
    nodes: 2,
    records: 2_000_000,
    links: NARROW,
    disks: Disks::Shared,
    warm: false,
    memory: "256MiB",
    paper: "paper 000, section 4: 6 MB/s of each node, 53 clocks a byte",
    targets: &[of_ideal(0.95)],
};

/// The records of `TWO`, in arrival order.
const RIVER: Row = Row {
    name: "river2",
    verb: "partition",
    paper: "paper 000, section 3: 7.3 MB/s of each node, whose disk does 9, and 44 clocks a byte",
    targets: &[of_ideal(0.98)],
    ..TWO
};

/// Half a million records of 100 bytes on each node, over slow links and slow disks.
const fn scale(name: &'static str, nodes: u32) -> Row {
    let (records, disks) = (nodes as u64 * 500_000, Disks::Slow);
    Row { name, nodes, records, disks, memory: "160MiB", paper: "", targets: SCALES, ..TWO }
}

/// A million records among `nodes` nodes, over links of 1 Gbit/s.
const fn datamation(
    name: &'static str,
    nodes: u32,
    links: &'static [&'static str],
    targets: &'static [Target],
) -> Row {
    let paper = "paper 003, figure 7: 0.48 s on 32 nodes, launch below 0.08 s of it (figure 2)";
    Row { name, nodes, records: 1_000_000, links, warm: true, paper, targets, ..TWO }
}

const ROWS: &[Row] = &[
    RIVER,
    Row {
        name: "river2-memory",
        disks: Disks::None,
        paper: "paper 000, section 3: 7.5 MB/s of each node, 42 clocks a byte",
        ..RIVER
    },
    TWO,
    Row {
        name: "sort2-two-pass",
        memory: "48MiB",
        paper: "paper 000, section 4: runs were written, and a merge of them was not finished",
        ..TWO
    },
    Row {
        name: "sort2-delayed",
        links: &["--rate", "100mbit", "--delay", "10ms"],
        paper: "",
        targets: &[of_ideal(0.9)],
        ..TWO
    },
    datamation("datamation-1", 1, WIDE, &[Target::Wall(0.15)]),
    datamation("datamation-4", 4, WIDE, &[Target::Wall(0.30)]),
    datamation("datamation-8", 8, WIDE, &[Target::Wall(0.30)]),
    datamation("datamation-32", 32, WIDE, &[Target::Wall(0.40)]),
    datamation("loss-0.1", 8, &["--rate", "1gbit", "--loss", "0.1%"], &[]),
    datamation("loss-1", 8, &["--rate", "1gbit", "--loss", "1%"], &[]),
    scale("scale-1", 1),
    scale("scale-2", 2),
    scale("scale-4", 4),
    scale("scale-8", 8),
    scale("scale-16", 16),
    scale("scale-32", 32),
];

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).chain([minutesort::NAME]).collect()
}

/// Measures the rows that are asked for, or says why there are none.
pub(crate) fn measure(asked: &Asked<'_>, report: &mut BenchReport) -> Result<()> {
    let rows: Vec<&Row> = ROWS.iter().filter(|row| asked.wants(row.name)).collect();
    for (i, row) in rows.iter().enumerate() {
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        let mut words = row.links.to_vec();
        if row.disks == Disks::Slow {
            words.extend(["--disk", DISK.0]);
        }
        let wanted = Wanted { hosts: row.nodes, words: &words, in_memory: row.disks == Disks::None };
        on_lab(asked, report, row.name, wanted, |lab| {
            Bench { asked, row, lab, iperf: Served::iperf(lab).ok() }.measured()
        })?;
    }
    if asked.wants(minutesort::NAME) {
        asked.progress.begin(minutesort::NAME, 1, 1, 0);
        minutesort::measure(asked, report)?;
    }
    Ok(())
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    row: &'a Row,
    lab: &'a Lab,
    iperf: Option<Served>,
}

impl Bench<'_> {
    fn measured(&self) -> Result<BenchRow> {
        let Row { nodes, name, memory, .. } = *self.row;
        let of_node = (self.row.records as f64 * self.asked.bytes as f64 / 1e9) as u64 / u64::from(nodes);
        let of_node = of_node.max(1);
        let bytes = of_node * u64::from(nodes) * RECORD_BYTES as u64;
        self.make(of_node)?;
        let mut row = BenchRow {
            name: name.into(),
            work: format!(
                "{} records {}on {nodes} nodes of {memory}",
                of_node * u64::from(nodes),
                if self.row.verb == "sort" { "" } else { "parted " }
            ),
            bytes,
            ..BenchRow::default()
        };
        let (mut ours, mut ideal, mut stages) = (Series::default(), Vec::new(), Vec::new());
        let mut ring = Ring::of(self.lab, nodes);
        for round in 0..self.asked.runs {
            self.asked.should_continue()?;
            if !self.asked.tiny {
                memory::touch(bytes * MEMORY_OF_BYTES)?;
            }
            let (seconds, usage, receipt) = self.sort()?;
            ours.add(seconds, usage);
            let named: Vec<f64> = receipt.stages.iter().map(|stage| stage.seconds).collect();
            stages.push([&[seconds - named.iter().sum::<f64>()], &named[..]].concat());
            if round == 0 && self.row.verb == "sort" {
                self.validate()?;
            }
            if let Some(seconds) = self.ideal(self.bytes_of_busiest(bytes))? {
                ideal.push(seconds);
            }
            if let Some(ring) = &mut ring {
                ring.run(self.lab, bytes / u64::from(nodes) * u64::from(nodes - 1) / u64::from(nodes))?;
            }
        }
        row.ours = ours.measure();
        let of_stage = |i: usize| median(&stages.iter().map(|run| run[i]).collect::<Vec<f64>>());
        row.notes.push(format!(
            "launch and end {:.3} s, sample {:.3} s, read+river {:.3} s, then {:.3} s; {:.2} CPU-s a GB",
            of_stage(0),
            of_stage(1),
            of_stage(2),
            of_stage(3),
            row.ours.cpu_seconds / (bytes as f64 / 1e9)
        ));
        row.notes.extend(self.beside_paper(&row));
        row.others.extend(self.planned(&mut row.notes)?);
        if !ideal.is_empty() {
            let measure =
                BenchMeasure { seconds: median(&ideal), all_seconds: ideal, ..BenchMeasure::default() };
            row.others.push(BenchOther::measured(IDEAL, measure));
        }
        row.others.extend(ring.map(Ring::measured));
        judge(&mut row, self.row.targets, self.asked.tiny);
        Ok(row)
    }

    fn ours(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.asked.options.program);
        command.args(words).env("THALWEG_IDENTITY", self.lab.identity());
        command
    }

    fn of(&self, host: u32, name: &str) -> String {
        self.lab.directory(host).join(name).display().to_string()
    }

    /// Each host's file.
    fn make(&self, of_node: u64) -> Result<()> {
        for host in 1..=self.row.nodes {
            let start = (u64::from(host - 1) * of_node).to_string();
            let (count, file) = (of_node.to_string(), self.of(host, "in"));
            whole_process(&mut self.ours(&["gen", "-q", &count, &file, "--start", &start]))?;
        }
        Ok(())
    }

    fn sort(&self) -> Result<(f64, Usage, Receipt)> {
        if self.row.warm {
            // Reading them brings them into the cache.
            let mut inputs = (1..=self.row.nodes).map(|host| self.of(host, "in"));
            inputs.try_for_each(|input| digest_of(input.as_ref()).map(|_| ()))?;
        }
        // The time to free the old data is not measured.
        self.parts().iter().for_each(|part| drop(std::fs::remove_file(part)));
        let before = self.carried();
        let Row { verb, memory, nodes, .. } = *self.row;
        let (words, parts) = (["--datamation", "--json", "--progress", "never"], nodes.to_string());
        let mut ours = self.ours(&[verb, "nodes:in", "-o", "nodes:part-{}", "--memory", memory]);
        ours.args(words);
        if verb == "partition" {
            ours.args(["--parts", &parts]);
        }
        let ended = whole_process(&mut ours)?;
        let receipt = ended.receipt()?;
        let carried = self.carried().since(before);
        let said: u64 = receipt.nodes.iter().map(|node| node.link_bytes.1).sum();
        if !carried.agrees(said, u64::from(self.row.nodes) * AGREE_BYTES_PER_NODE) {
            return Err(Error::Wrong(format!(
                "the kernel counted {} bytes on all links, and the receipt says {said}",
                carried.bytes
            )));
        }
        if let Some(why) = receipt.failed.first() {
            return Err(Error::Wrong(format!("a node that was running was taken for lost: {why}")));
        }
        let usage = Usage {
            cpu_seconds: receipt.cpu_seconds,
            peak_bytes: receipt.memory.peak_bytes,
            ..Usage::default()
        };
        Ok((ended.seconds, usage, receipt))
    }

    /// The paper's row, and our result in its units.
    fn beside_paper(&self, row: &BenchRow) -> Option<String> {
        let of_node = row.bytes as f64 / f64::from(self.row.nodes) / row.ours.seconds / 1e6;
        let clocks = process::clock_hz().map(|hz| row.ours.cpu_seconds * hz / row.bytes as f64);
        let clocks = clocks.map_or(String::new(), |clocks| format!(", {clocks:.1} clocks a byte"));
        (!self.row.paper.is_empty())
            .then(|| format!("{}; ours {of_node:.2} MB/s of each node{clocks}", self.row.paper))
    }

    /// The plan of a sort, with its stages as a note.
    fn planned(&self, notes: &mut Vec<String>) -> Result<Option<BenchOther>> {
        if self.row.verb != "sort" {
            return Ok(None);
        }
        let words = ["plan", "sort", "nodes:in", "-o", "nodes:part-{}", "--datamation", "--json"];
        let ended = whole_process(self.ours(&words).args(["--memory", self.row.memory]))?;
        let plan: ClusterPlan = from_json(ended.out.trim()).map_err(Error::Failed)?;
        let stage = |stage: &ClusterStage| format!("{} {:.2} s", stage.name, stage.seconds);
        notes.push(format!("planned: {}", plan.stages.iter().map(stage).collect::<Vec<_>>().join(", ")));
        let measure = BenchMeasure { seconds: plan.seconds, ..BenchMeasure::default() };
        Ok(Some(BenchOther::measured(MODEL, measure)))
    }

    /// Bytes that all links have carried.
    fn carried(&self) -> Carried {
        self.lab.carried(1..=self.row.nodes)
    }

    fn validate(&self) -> Result<()> {
        let mut check = self.ours(&["check", "--datamation", "-q"]);
        whole_process(check.args(self.parts())).map(|_| ())
    }

    /// Each host's part of the output.
    fn parts(&self) -> Vec<String> {
        let width = (self.row.nodes - 1).to_string().len();
        let part = |host: u32| self.of(host, &format!("part-{:0width$}", host - 1));
        (1..=self.row.nodes).map(part).collect()
    }

    /// The bytes of the node with the most at the end. For a river the links of that node carry most; for a sort,
    /// uneven ranges count.
    fn bytes_of_busiest(&self, bytes: u64) -> f64 {
        let bytes_of = |part| std::fs::metadata(part).ok().map(|part| part.len());
        let largest = match self.row.verb {
            "sort" => None,
            _ => self.parts().iter().filter_map(bytes_of).max(),
        };
        largest.unwrap_or(bytes / u64::from(self.row.nodes)) as f64
    }

    /// The time that links and disks need for this many bytes of a node, each at its rate.
    fn ideal(&self, of_node: f64) -> Result<Option<f64>> {
        let Row { nodes, disks, .. } = *self.row;
        let slow_disks = disks == Disks::Slow;
        let disks = if slow_disks { 2.0 * of_node / DISK.1 } else { 0.0 };
        if nodes == 1 {
            return Ok(slow_disks.then_some(disks));
        }
        if self.iperf.is_none() {
            return Ok(None);
        }
        let rate = iperf_between(self.lab)?;
        Ok(Some(of_node * f64::from(nodes - 1) / f64::from(nodes) / rate + disks))
    }
}
