//! A node with a table on one core of this machine, and a client on another: what neither link nor disk limits.

use std::process::{Child, Command, Stdio};

use thalweg_api::{BenchReport, BenchRow, BenchTable, BenchTarget, NodeReady, from_json};
use thalweg_io::process::Usage;

use super::records::RECORD_BYTES;
use super::server::free_port;
use super::worker;
use crate::lab::cpu_seconds;
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::process::{Series, whole_process};
use thalweg_measure::{Asked, Error, Result};

/// The rows: name, what the client does, how its requests travel, and the records a second to reach.
const ROWS: [(&str, &str, &str, f64); 5] = [
    ("native-insert", "insert", "links", 1e6),
    ("native-get", "get", "links", 1.2e6),
    ("native-scan", "range", "links", 5e6),
    ("native-insert-udp", "insert", "udp", 1e6),
    ("native-get-udp", "get", "udp", 1.2e6),
];
pub(super) const NAMES: [&str; 5] = [ROWS[0].0, ROWS[1].0, ROWS[2].0, ROWS[3].0, ROWS[4].0];
const TABLE: &str = "events";

/// Measures the rows that are asked for.
pub(super) fn measure(
    asked: &Asked<'_>,
    dir: &DataDir,
    records: u64,
    report: &mut BenchReport,
) -> Result<()> {
    if !NAMES.iter().any(|name| asked.wants(name)) {
        return Ok(());
    }
    let node = Node::start(asked, dir)?;
    for (name, what, transport, rate) in ROWS.into_iter().filter(|(name, ..)| asked.wants(name)) {
        asked.progress.begin(name, 0, 0, 0);
        let mut series = Series::default();
        for _ in 0..asked.runs {
            asked.should_continue()?;
            let capacity = (2 * records).to_string();
            node.run(&["create", TABLE, "--capacity", &capacity])?;
            if what != "insert" {
                node.client("insert", "links", records)?;
            }
            let before = cpu_seconds(node.pid);
            let seconds = node.client(what, transport, records)?;
            series.add(seconds, Usage { cpu_seconds: cpu_seconds(node.pid) - before, ..Usage::default() });
            node.run(&["drop", TABLE])?;
        }
        let ours = series.measure();
        let reached = records as f64 / ours.seconds;
        report.rows.push(BenchRow {
            name: name.into(),
            work: format!(
                "{what} {records} records, packed and encrypted, one core for the node, one for the client"
            ),
            bytes: records * RECORD_BYTES as u64,
            targets: vec![BenchTarget {
                target: format!("records/s >= {rate}"),
                measured: format!("{reached:.0}"),
                met: (!asked.tiny).then_some(reached >= rate),
            }],
            ours,
            ..BenchRow::default()
        });
    }
    Ok(())
}

/// A cluster of one node, which is asked to stop when it is dropped.
struct Node<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    guard: Child,
    pid: u32,
}

impl<'a> Node<'a> {
    fn start(asked: &'a Asked<'a>, dir: &'a DataDir) -> Result<Node<'a>> {
        let own = dir.path().join("own");
        let host = format!("n1=127.0.0.1:{}", free_port()?);
        let mut init = Command::new(&asked.options.program);
        whole_process(init.args(["cluster", "init", "native", &host, "--identity"]).arg(&own))?;
        let mut run = on_core(0, &asked.options.program);
        run.args(["node", "run", "--identity"]).arg(own.join("hosts/n1"));
        run.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut guard = run.spawn().map_err(|e| Error::Failed(format!("a node cannot be started: {e}")))?;
        let mut line = String::new();
        let out = guard.stdout.take().expect("it is a pipe");
        let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line);
        let pid = from_json::<NodeReady>(&line).map_or(0, |ready| ready.pid);
        let node = Node { asked, dir, guard, pid };
        (pid != 0).then_some(node).ok_or_else(|| Error::Failed("thalweg node run did not start".into()))
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.asked.options.program);
        command.arg("table").args(words).env("THALWEG_IDENTITY", self.dir.path().join("own"));
        whole_process(&mut command).map(|_| ())
    }

    /// The seconds of a client on another core.
    fn client(&self, what: &str, transport: &str, records: u64) -> Result<f64> {
        let task = BenchTable {
            table: TABLE.into(),
            what: what.into(),
            records,
            clients: 1,
            client: 0,
            variant: "cu".into(),
            window: "adaptive".into(),
            transport: transport.into(),
            knows: false,
        };
        let this = worker::program()?;
        let command = |_| {
            let mut command = on_core(1, &this);
            command.env("THALWEG_IDENTITY", self.dir.path().join("own"));
            command
        };
        Ok(worker::together(&[task], command)?[0].seconds)
    }
}

/// A command that may use one core only, if there are several.
fn on_core(core: u32, program: &std::path::Path) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let mut command = Command::new("taskset");
    command.args(["-c", &(core % cores).to_string()]).arg(program);
    command
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        // The guard ends the node with it.
        let _ = Command::new("kill").arg(self.guard.id().to_string()).status();
        let _ = self.guard.wait();
    }
}
