//! `thalweg-bench cluster`, row `minutesort`: nodes with unequal disks, with planned shares and with equal ones.
//!
//! Model (HPVM MinuteSort): the disks of one half of the nodes are to those of the other half as 55 to 17. All nodes
//! see the same input, and each writes its range to a file of its own. After one probe, sorts with planned shares and
//! with equal ones run in turn. The model's prediction for the planned ones is shown too: all disks at full rate, and
//! no other cost.
//! Invariant: a run counts only if its receipt holds. The outputs of the first run are validated.
//! Non-goals: spilling, as in the paper; here the memory of each node holds its range.

use std::path::PathBuf;
use std::process::Command;

use thalweg_api::{BenchMeasure, BenchOther, BenchReport, BenchRow, Receipt};
use thalweg_io::process::Usage;
use thalweg_record::RECORD_BYTES;

use crate::lab::{Lab, Wanted, on_lab};
use thalweg_measure::Asked;
use thalweg_measure::Result;
use thalweg_measure::contenders::judge;
use thalweg_measure::process::{Series, median, whole_process};
use thalweg_measure::targets::{Target, Than};

pub(crate) const NAME: &str = "minutesort";
/// Two nodes of either kind: these two cores can use all their disks.
const NODES: u32 = 4;
const WORDS: &[&str] = &["--rate", "1gbit", "--roles", "io:2,sort:2", "--disk", "io:20MB/s,sort:6200kB/s"];
/// Records, for a `--size` of 1 GB.
const RECORDS: u64 = 1_500_000;
const MEMORY: &str = "160MiB";
const EQUAL: &str = "equal shares";
/// The result of the plan.
pub(crate) const MODEL: &str = "the model";
const PAPER: &str = "paper 004: start 7 s, read and distribute 16.6 s, sort 5 s, write 20 s by its model (table 3); without \
    launch 21.8 GB were sorted in a minute, of 31 (section 4.3)";
const TARGETS: &[Target] = &[
    Target::Faster { than: Than::Named(EQUAL), times: 1.5, or_floor: None },
    Target::Faster { than: Than::Named(MODEL), times: 0.9, or_floor: None },
];

/// Measures the row, or says why there is none.
pub(crate) fn measure(asked: &Asked<'_>, report: &mut BenchReport) -> Result<()> {
    on_lab(asked, report, NAME, Wanted { hosts: NODES, words: WORDS, ..Wanted::default() }, |lab| {
        Bench { asked, lab }.measured()
    })
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    lab: &'a Lab,
}

impl Bench<'_> {
    fn measured(&self) -> Result<BenchRow> {
        let records = ((RECORDS as f64 * self.asked.bytes as f64 / 1e9) as u64).max(u64::from(NODES));
        let input = self.input().display().to_string();
        whole_process(&mut self.ours(&["gen", "-q", &records.to_string(), &input]))?;
        whole_process(&mut self.ours(&["cluster", "probe", "-q"]))?;
        let (mut ours, mut equal, mut ideal, mut stages) =
            (Series::default(), Series::default(), Vec::new(), Vec::new());
        for round in 0..self.asked.runs {
            self.asked.should_continue()?;
            for (shares, series) in [("planned", &mut ours), ("equal", &mut equal)] {
                let (seconds, usage, receipt) = self.sort(shares)?;
                series.add(seconds, usage);
                if round == 0 {
                    self.validate()?;
                }
                if shares == "planned" {
                    ideal
                        .push(receipt.stages.iter().filter_map(|stage| stage.predicted_seconds).sum::<f64>());
                    stages.push(receipt.stages);
                }
            }
        }
        let of_stage = |i: usize| median(&stages.iter().map(|run| run[i].seconds).collect::<Vec<f64>>());
        let planned = |i: usize| stages[0][i].predicted_seconds.unwrap_or(0.0);
        let mut row = BenchRow {
            name: NAME.into(),
            work: format!("{records} records on {NODES} nodes, disks of 20 and of 6.2 MB/s"),
            bytes: records * RECORD_BYTES as u64,
            ours: ours.measure(),
            ..BenchRow::default()
        };
        let told =
            |i: usize| format!("{} {:.2} s of {:.2} planned", stages[0][i].name, of_stage(i), planned(i));
        row.notes.push((0..stages[0].len()).map(told).collect::<Vec<_>>().join(", "));
        row.notes.push(PAPER.into());
        let ideal = BenchMeasure { seconds: median(&ideal), all_seconds: ideal, ..BenchMeasure::default() };
        row.others = [(EQUAL, equal.measure()), (MODEL, ideal)]
            .map(|(name, measure)| BenchOther::measured(name, measure))
            .to_vec();
        judge(&mut row, TARGETS, self.asked.tiny);
        Ok(row)
    }

    /// The file that all nodes see.
    fn input(&self) -> PathBuf {
        self.lab.directory(1).join("in")
    }

    fn ours(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.asked.options.program);
        command.args(words).env("THALWEG_IDENTITY", self.lab.identity());
        command
    }

    fn sort(&self, shares: &str) -> Result<(f64, Usage, Receipt)> {
        let input = self.input().display().to_string();
        let words = ["sort", &input, "-o", "nodes:part-{}", "--datamation", "--json", "--progress", "never"];
        let more = ["--memory", MEMORY, "--shares", shares];
        let ended = whole_process(&mut self.ours(&[&words[..], &more].concat()))?;
        let receipt = ended.receipt()?;
        let usage = Usage {
            cpu_seconds: receipt.cpu_seconds,
            peak_bytes: receipt.memory.peak_bytes,
            ..Usage::default()
        };
        Ok((ended.seconds, usage, receipt))
    }

    fn validate(&self) -> Result<()> {
        let part = |host: u32| self.lab.directory(host).join(format!("part-{}", host - 1));
        whole_process(self.ours(&["check", "--datamation", "-q"]).args((1..=NODES).map(part))).map(|_| ())
    }
}
