//! `thalweg-bench all-to-all`: every node of a lab sends the same amount to every other node, under each schedule.
//!
//! Model: each row has a lab of its own. The schedules take turns over several rounds, so that a disturbance affects
//! all of them. The ideal is the amount that a node must send, at the rate that iperf3 reaches between two of the
//! hosts.
//! Invariant: a round ends when the receivers report that everything has arrived.
//! Source: paper 004, section 2.2.

use std::process::Command;

use thalweg_api::{BenchOther, BenchReport, BenchRow, BenchTarget, ExchangeReport, from_json};
use thalweg_base::units::{GIB, KIB};
use thalweg_io::process::Usage;

use crate::cluster::{IDEAL, NARROW, of_ideal};
use crate::iperf_ring::Ring;
use crate::lab::{Lab, Wanted, on_lab};
use crate::pump_lab::{Served, iperf_between};
use thalweg_measure::process::{Series, median, whole_process};
use thalweg_measure::targets::Target;
use thalweg_measure::{Asked, memory};
use thalweg_measure::{Error, Result};

/// The default schedule, and those that can be chosen.
const OURS: &str = "auto";
const FIXED: [&str; 4] = ["together", "same", "shifted", "paced"];
/// The best schedule may be faster by this factor.
const OF_BEST: f64 = 1.05;

struct Row {
    name: &'static str,
    nodes: u32,
    /// Bytes for each pair of nodes.
    bytes: u64,
    rounds: u32,
    targets: &'static [Target],
}

const ROWS: &[Row] = &[
    Row { name: "short-8", nodes: 8, bytes: 50_000, rounds: 20, targets: &[of_ideal(0.7)] },
    Row { name: "long-8", nodes: 8, bytes: 2_000_000, rounds: 3, targets: &[of_ideal(0.85)] },
    Row { name: "long-24", nodes: 24, bytes: 400_000, rounds: 3, targets: &[of_ideal(0.78)] },
];

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// Measures the rows that are asked for, or says why there are none.
pub(crate) fn measure(asked: &Asked<'_>, report: &mut BenchReport) -> Result<()> {
    let rows: Vec<&Row> = ROWS.iter().filter(|row| asked.wants(row.name)).collect();
    for (i, row) in rows.iter().enumerate() {
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        on_lab(
            asked,
            report,
            row.name,
            Wanted { hosts: row.nodes, words: NARROW, ..Wanted::default() },
            |lab| row.measured(asked, lab),
        )?;
    }
    Ok(())
}

impl Row {
    fn measured(&self, asked: &Asked<'_>, lab: &Lab) -> Result<BenchRow> {
        let Row { nodes, .. } = *self;
        let bytes = if asked.tiny { self.bytes.min(16 * KIB) } else { self.bytes };
        let rounds = if asked.tiny { 1 } else { self.rounds };
        let mut row = BenchRow {
            name: self.name.into(),
            work: format!("{bytes} bytes from each of {nodes} nodes to each other"),
            bytes: bytes * u64::from(nodes * (nodes - 1)),
            notes: vec![
                "paper 004, section 2.2: 80 % of what a link may carry, where several send over it".into(),
            ],
            ..BenchRow::default()
        };
        let iperf = Served::iperf(lab).ok();
        let names = [&[OURS], &FIXED[..]].concat();
        let mut each: Vec<Series> = names.iter().map(|_| Series::default()).collect();
        let mut ideal = Series::default();
        let mut ring = Ring::of(lab, nodes);
        // Warms up the links, so that their windows are open.
        exchange(asked, lab, OURS, bytes, 1)?;
        for run in 0..asked.runs {
            asked.should_continue()?;
            // The order rotates, because the first schedule of a run finds idle links.
            for turn in 0..names.len() {
                let at = (run + turn) % names.len();
                let (name, series) = (names[at], &mut each[at]);
                if !asked.tiny {
                    memory::touch(GIB)?; // More than all buffers.
                }
                series.add(exchange(asked, lab, name, bytes, rounds)?, Usage::default());
            }
            if iperf.is_some() {
                let rate = iperf_between(lab)?;
                ideal.add((bytes * u64::from(nodes - 1)) as f64 / rate, Usage::default());
            }
            if let Some(ring) = &mut ring {
                ring.run(lab, bytes * u64::from(nodes - 1))?;
            }
        }
        let mut each = each.into_iter().map(|series| series.measure());
        row.ours = each.next().expect("ours comes first");
        let fixed: Vec<_> = FIXED.iter().zip(each).collect();
        let best = fixed.iter().map(|(_, measure)| measure.seconds).fold(f64::INFINITY, f64::min);
        let of_best = row.ours.seconds / best.max(1e-9);
        for (name, measure) in fixed {
            row.others.push(BenchOther::measured(name, measure));
        }
        if iperf.is_some() {
            row.others.push(BenchOther::measured(IDEAL, ideal.measure()));
        }
        row.others.extend(ring.map(Ring::measured));
        row.targets = self.targets.iter().map(|target| target.of(&row)).collect();
        row.targets.push(BenchTarget {
            target: format!("wall <= {OF_BEST} x the best schedule"),
            measured: format!("{of_best:.2}"),
            met: Some(of_best <= OF_BEST),
        });
        if asked.tiny {
            row.targets.iter_mut().for_each(|target| target.met = None);
        }
        Ok(row)
    }
}

/// The median of some rounds.
fn exchange(asked: &Asked<'_>, lab: &Lab, schedule: &str, bytes: u64, rounds: u32) -> Result<f64> {
    let mut command = Command::new(&asked.options.program);
    command.env("THALWEG_IDENTITY", lab.identity());
    command.args(["cluster", "exchange", &bytes.to_string(), "--json", "--runs", &rounds.to_string()]);
    if schedule != OURS {
        command.args(["--schedule", schedule]);
    }
    let told: ExchangeReport = from_json(whole_process(&mut command)?.out.trim()).map_err(Error::Failed)?;
    Ok(median(&told.seconds))
}
