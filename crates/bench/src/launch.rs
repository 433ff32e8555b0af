//! `thalweg-bench launch`: a null command on many nodes, from the start of the client's process to its end.
//!
//! Model: one lab has as many hosts as the largest row needs, each with a node in its own process. Contenders run in
//! turn, round by round; the slow ones run in every tenth round. Ours is compared with variants of itself that leave
//! something out, as in figure 2 of paper 003, and with other launchers over OpenSSH servers in the same hosts.
//! Invariant: a run counts only if the command succeeded on every host. The bytes of each link are the kernel's count.
//! Non-goals: installing rivals (`bench/rivals/setup` does that).

use std::process::Command;

use thalweg_api::{BenchReport, BenchRow, BenchTarget, ClusterReport, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::Usage;

use crate::lab::{Lab, Wanted, since};
use crate::launchers;
use crate::launchers::Launchers;
use thalweg_measure::Asked;
use thalweg_measure::contenders::{Contender, finish};
use thalweg_measure::process::whole_process;
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Error, Result};

/// The rows of the published figures.
const NODES: [u32; 4] = [1, 4, 8, 32];
/// Runs of fast contenders.
pub(crate) const RUNS: usize = 200;
/// Slow contenders run once in this many rounds.
const SLOW: usize = 10;
/// Fewer runs than this only test that the benchmark works.
pub(crate) const RUNS_MIN: usize = 20;
/// The size of the environment that is sent to measure its cost.
const ENV_BYTES: usize = 16 << 10;
/// How long links may take to open, in seconds.
const LINKS_SECONDS: f64 = 30.0;

const VIA: &str = "via n1";
const INSIDE: &str = "inside";
const INSIDE_VIA: &str = "inside, via n1";
const ALONE: &str = "processes alone";

/// Names of the rows.
fn names() -> Vec<&'static str> {
    vec!["exec", "ablation"]
}

/// What is usual for this benchmark. No data is moved.
pub(crate) fn bench() -> thalweg_measure::Bench {
    let (rows, usual_bytes) = (names(), thalweg_measure::TINY_BYTES + 1);
    thalweg_measure::Bench { name: "launch", rows, usual_bytes, usual_runs: RUNS, runs_min: RUNS_MIN }
}

/// Measures the rows that are asked for.
pub(crate) fn measure(
    asked: &Asked<'_>,
    nodes: &[u32],
    rivals: bool,
    report: &mut BenchReport,
) -> Result<()> {
    let nodes = if nodes.is_empty() { &NODES } else { nodes };
    let most = nodes.iter().copied().max().unwrap_or(1);
    asked.progress.begin("lab", 0, nodes.len() as u64 + 1, 0);
    let lab = match Lab::up(&asked.options.program, Wanted { hosts: most, ..Wanted::default() }) {
        Ok(lab) => lab,
        Err(why) => {
            report.notes.push(format!("left out: {why}"));
            return Ok(());
        }
    };
    let launchers = Launchers::start(&lab, rivals, &mut report.notes);
    let bench = Bench { asked, lab: &lab, launchers: &launchers };
    bench.warm()?;
    let before = lab.counted();
    if asked.wants("exec") {
        for (i, count) in nodes.iter().enumerate() {
            asked.progress.begin("exec", i as u64 + 1, nodes.len() as u64 + 1, 0);
            report.rows.push(bench.row(*count)?);
        }
        flat(&mut report.rows, asked.tiny);
    }
    if asked.wants("ablation") {
        asked.progress.begin("ablation", nodes.len() as u64 + 1, nodes.len() as u64 + 1, 0);
        report.rows.push(bench.ablation(most)?);
    }
    report.hosts = since(before, lab.counted());
    Ok(())
}

/// A program that launches.
struct Launch {
    how: How,
    /// The contender runs once in this many rounds.
    every: usize,
}

enum How {
    /// Arguments of our own command.
    Ours(Vec<String>),
    /// Another program.
    Other(Box<dyn Fn() -> Command>),
    /// The processes themselves, started on this machine.
    Alone(u32),
}

fn contender(name: &str, how: How, every: usize) -> Contender<Launch> {
    Contender::new(name, Launch { how, every })
}

fn ours(name: &str, words: Vec<String>) -> Contender<Launch> {
    contender(name, How::Ours(words), 1)
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    lab: &'a Lab,
    launchers: &'a Launchers,
}

impl Bench<'_> {
    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(&self.asked.options.program);
        command.args(words).env("THALWEG_IDENTITY", self.lab.identity());
        command
    }

    /// Waits until the first node has links with all others.
    fn warm(&self) -> Result<()> {
        let watch = Stopwatch::start();
        let words = ["cluster", "status", "--json"].map(String::from);
        loop {
            self.asked.should_continue()?;
            let told = whole_process(&mut self.command(&words))?;
            let status: ClusterReport = from_json(told.out.trim()).map_err(Error::Failed)?;
            let links = status.hosts[0].status.as_ref().map_or(0, |status| status.links);
            if links + 1 >= u64::from(self.lab.hosts()) {
                return Ok(());
            }
            if watch.seconds() > LINKS_SECONDS {
                return Err(Error::Failed(format!("n1 has {links} links after {LINKS_SECONDS} s")));
            }
        }
    }

    fn exec(&self, count: u32, flags: &[&str]) -> Vec<String> {
        let names = self.lab.names(count);
        let words = [&["exec", "--on", &names], flags, &["--", "true"]].concat();
        words.into_iter().map(String::from).collect()
    }

    fn ping(&self, count: u32, flags: &[&str]) -> Vec<String> {
        let names = self.lab.names(count);
        let words = [&["node", "ping", "-q", "--on", &names], flags].concat();
        words.into_iter().map(String::from).collect()
    }

    fn row(&self, count: u32) -> Result<BenchRow> {
        let mut contenders = vec![
            ours("thalweg", self.exec(count, &[])),
            ours(VIA, self.exec(count, &["--via", "n1"])),
            ours(INSIDE_VIA, self.ping(count, &["--via", "n1"])),
            contender(ALONE, How::Alone(count), 1),
        ];
        for (name, command) in self.launchers.of(self.lab, count) {
            contenders.push(contender(name, How::Other(command), SLOW));
        }
        let work = format!("true on {count} {}", if count == 1 { "node" } else { "nodes" });
        self.measured(&format!("exec-{count}"), work, contenders, targets(count))
    }

    /// The cost of each part: a contender for each part that is left out or added.
    fn ablation(&self, count: u32) -> Result<BenchRow> {
        let env = format!("PADDING={}", "x".repeat(ENV_BYTES));
        let output: Vec<String> = {
            let mut words = self.exec(count, &[]);
            words.truncate(words.len() - 1);
            words.into_iter().chain(["head", "-c", "4096", "/dev/zero"].map(String::from)).collect()
        };
        let contenders = vec![
            ours("thalweg", self.exec(count, &[])),
            ours("4 KiB of output each", output),
            ours("not waited for (--detach)", self.exec(count, &["--detach", "-q"])),
            ours("16 KiB of environment", self.exec(count, &["--env", &env])),
            ours("links kept (via n1)", self.exec(count, &["--via", "n1"])),
            ours(INSIDE, self.ping(count, &[])),
            ours(INSIDE_VIA, self.ping(count, &["--via", "n1"])),
        ];
        let mut row = self.measured("ablation", format!("true on {count} nodes"), contenders, Vec::new())?;
        row.notes.push(
            "paper 003, figure 2: output goes over the stream that launches, so there is no connection to leave out; \
             names are addresses in the cluster file; the client's environment is not sent, so there is none to keep"
                .into(),
        );
        Ok(row)
    }

    fn measured(
        &self,
        name: &str,
        work: String,
        mut contenders: Vec<Contender<Launch>>,
        targets: Vec<Target>,
    ) -> Result<BenchRow> {
        let mut row = BenchRow { name: name.into(), work, ..BenchRow::default() };
        for round in 0..self.asked.runs {
            for contender in contenders.iter_mut().filter(|who| round % who.who.every == 0) {
                self.asked.should_continue()?;
                self.turn(contender)?;
            }
        }
        finish(&mut row, contenders, &targets, self.asked.tiny);
        Ok(row)
    }

    fn turn(&self, who: &mut Contender<Launch>) -> Result<()> {
        if !who.note.is_empty() {
            return Ok(());
        }
        let ended = match &who.who.how {
            How::Alone(count) => alone(*count).map(|seconds| (seconds, Usage::default())),
            How::Ours(words) => {
                whole_process(&mut self.command(words)).map(|ended| (ended.seconds, ended.usage))
            }
            How::Other(command) => whole_process(&mut command()).map(|ended| (ended.seconds, ended.usage)),
        };
        match (ended, &who.who.how) {
            (Ok((seconds, usage)), _) => {
                who.series.add(seconds, usage);
                // The command succeeded on every host.
                who.right = Some(true);
            }
            (Err(error), How::Ours(_)) => return Err(error),
            (Err(error), _) => (who.note, who.right) = (error.to_string(), None),
        }
        Ok(())
    }
}

/// The seconds to start this many processes here, one after the other, and to wait for them.
fn alone(count: u32) -> Result<f64> {
    let failed = |e: std::io::Error| Error::Failed(format!("true cannot be run: {e}"));
    let watch = Stopwatch::start();
    let children: Vec<_> =
        (0..count).map(|_| Command::new("true").spawn()).collect::<std::io::Result<_>>().map_err(failed)?;
    for mut child in children {
        child.wait().map_err(failed)?;
    }
    Ok(watch.seconds())
}

/// The targets of a row.
fn targets(count: u32) -> Vec<Target> {
    let beats = |name, times| Target::Faster { than: Than::Named(name), times, or_floor: None };
    match count {
        1 => vec![Target::Wall(0.006)],
        4 => vec![beats(launchers::MPIRUN, 1.0), beats(launchers::SRUN, 1.0)],
        32 => vec![
            Target::Wall(0.040),
            Target::P99(0.080),
            Target::OtherWall(VIA, 0.020),
            Target::OtherWall(INSIDE_VIA, 0.020),
            beats(launchers::PDSH, 6.0),
            beats(launchers::CLUSH, 6.0),
        ],
        _ => Vec::new(),
    }
}

/// Adds a target to the last of three rows: an additional node must cost as much among many nodes as among a few.
fn flat(rows: &mut [BenchRow], tiny: bool) {
    const MORE_AT_MOST: f64 = 1.25;
    let count = |row: &BenchRow| row.name.rsplit('-').next().and_then(|n| n.parse::<f64>().ok());
    let points: Vec<(f64, f64)> =
        rows.iter().filter_map(|row| Some((count(row)?, row.ours.seconds * 1e3))).collect();
    let [(n0, t0), .., (n1, t1), (n2, t2)] = points[..] else { return };
    if !(n0 < n1 && n1 < n2) {
        return;
    }
    let (few, many) = ((t1 - t0) / (n1 - n0), (t2 - t1) / (n2 - n1));
    let target = BenchTarget {
        target: format!("ms a node from {n1} to {n2} <= {MORE_AT_MOST} x from {n0} to {n1}"),
        measured: format!("{many:.2}, {few:.2}"),
        met: (!tiny).then_some(many <= MORE_AT_MOST * few),
    };
    rows.last_mut().expect("there are three").targets.push(target);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(count: u32, ms: f64) -> BenchRow {
        let mut row = BenchRow { name: format!("exec-{count}"), ..BenchRow::default() };
        row.ours.seconds = ms / 1e3;
        row
    }

    #[test]
    fn a_node_more_costs_as_much_among_many_as_among_few() {
        let met = |last: f64| {
            let mut rows = [row(1, 3.0), row(8, 10.0), row(32, last)];
            flat(&mut rows, false);
            rows[2].targets[0].met
        };
        assert_eq!((met(34.0), met(40.0), met(41.0)), (Some(true), Some(true), Some(false)));
        let mut two = [row(1, 3.0), row(8, 10.0)];
        flat(&mut two, false);
        assert!(two[1].targets.is_empty(), "two points are always on a line");
    }

    #[test]
    fn what_a_target_names_is_measured_beside_its_row() {
        let beside = [VIA, INSIDE_VIA, launchers::PDSH, launchers::CLUSH, launchers::MPIRUN, launchers::SRUN];
        for target in NODES.iter().flat_map(|count| targets(*count)) {
            if let Target::OtherWall(name, _) | Target::Faster { than: Than::Named(name), .. } = target {
                assert!(beside.contains(&name), "{target:?}");
            }
        }
    }
}
