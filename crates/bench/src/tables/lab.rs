//! The experiments of paper 002: a table on one to five hosts of a lab, used by one or two clients on other hosts.
//!
//! Model: a `--size` of 100 MB is the paper's number of records. Links carry 100 Mbit/s. For each number of servers
//! there is a lab of its own, with two more hosts for the clients, which have no buckets. The ideal is the time that
//! the link of each client needs for the records alone, at the rate of iperf3.
//! Invariant: each row begins with a new table, and every answer is checked.
//! Rows with `udp` send datagrams, packed, or with one request each (`udp-single`), as in the paper; those of the
//! variant `n` are multicast.

use std::process::Command;
use std::time::Duration;

use thalweg::table::Tables;
use thalweg_api::{BenchMeasure, BenchOther, BenchReport, BenchRow, BenchTable, BenchTarget, TableStatus};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::Usage;

use super::records::RECORD_BYTES;
use super::worker::{self, key_text};
use crate::cluster::{IDEAL, NARROW, of_ideal};
use crate::lab::{Lab, Wanted, cpu_seconds};
use crate::pump_lab::{Served, iperf_one_way};
use thalweg_measure::contenders::judge;
use thalweg_measure::process::{Series, median, whole_process};
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Asked, Error, Result};

/// The most servers and clients of the paper.
const SERVERS: u32 = 5;
const CLIENTS: u32 = 2;
/// The servers of the table whose bucket is split.
const SPLIT_SERVERS: u32 = 2;
/// Records of a bucket, and of the experiments with and without splits, for a `--size` of 100 MB.
const CAPACITY: u64 = 50_000;
const CREATED: u64 = 150_000;
const CREATED_BY_TWO: u64 = 120_000;
const USED: u64 = 100_000;
/// The file of section 5: five buckets of 640,000 records, 0.7 full.
const FILE: u64 = 2_240_000;
const FILE_CAPACITY: u64 = 640_000;
/// The capacities of table 3, and beyond.
const SPLITS: [u64; 8] = [10_000, 20_000, 40_000, 50_000, 80_000, 100_000, 320_000, 640_000];
/// The size for which these numbers hold.
const OF_BYTES: u64 = 100_000_000;
/// How long buckets may take to come to rest.
const RESTS_SECONDS: f64 = 60.0;
/// The pause between two questions whether they are at rest. The nodes count their records for each answer.
const LOOKS: Duration = Duration::from_millis(10);
const OF_LINK: &[Target] = &[of_ideal(0.85)];
const OF_LINK_BY_UDP: &[Target] = &[of_ideal(0.80)];
const OF_CLIENTS_LINK: &[Target] = &[of_ideal(0.92)];
const TABLE: &str = "events";
/// The names that select rows, each for all numbers of servers, windows and transports.
const CREATE: &str = "create";
const INSERT: &str = "insert";
const SEARCH: &str = "search";
const RANGE: &str = "range-lab";
const SPLIT: &str = "split";
const FILE_ROW: &str = "file";
const PARITY: &str = "insert-parity";
pub(super) const NAMES: [&str; 7] = [CREATE, INSERT, SEARCH, RANGE, SPLIT, FILE_ROW, PARITY];
/// The parity of a row, which is compared with a table without.
const SHAPE: &str = "4+1";
const PARITY_CAPACITY: u64 = 20_000;
const PLAIN: &str = "without parity";
/// Records of the buckets that are split while a client uses them: without parity, and with it.
const USED_SPLIT: u64 = 640_000;
const PARITY_SPLIT: u64 = 50_000;
const WHILE_SPLIT: &[Target] = &[Target::P99(0.02)];
const OF_PLAIN: &[Target] = &[Target::Faster { than: Than::Named(PLAIN), times: 0.7, or_floor: None }];

/// What the clients of a row do, to a table on how many servers.
#[derive(Debug, Clone)]
struct Row {
    name: String,
    servers: u32,
    clients: u32,
    /// `insert`, `get` or `range`.
    what: &'static str,
    /// Records of the table, and of a bucket.
    records: u64,
    capacity: u64,
    /// Whether the table is divided among the servers, and filled unless the row inserts, before the row is measured.
    is_divided: bool,
    variant: &'static str,
    window: &'static str,
    transport: &'static str,
    knows: bool,
    /// Whether the table has parity.
    has_parity: bool,
    paper: String,
    targets: &'static [Target],
}

const WINDOWS: [&str; 3] = ["10", "adaptive", "none"];
const LINKS: &str = "links";
/// The variant that finds buckets by pages on the servers.
const INDEXED: &str = "s";
/// Each with the targets of rows whose targets over links are those of the link.
const BY_UDP: [(&str, &[Target]); 2] = [("udp", OF_LINK_BY_UDP), ("udp-single", &[])];

/// The paper's milliseconds a record, for 1 to 5 servers, with a window of 10 and without: RP*C, RP*N.
const INSERT_PAPER: [[[f64; 5]; 2]; 2] = [
    [[0.355, 0.258, 0.235, 0.223, 0.221], [0.359, 0.284, 0.254, 0.237, 0.229]],
    [[0.275, 0.144, 0.112, 0.092, 0.092], [0.275, 0.184, 0.153, 0.098, 0.095]],
];
const SEARCH_PAPER: [[[f64; 5]; 2]; 2] = [
    [[0.340, 0.258, 0.214, 0.204, 0.200], [0.346, 0.276, 0.236, 0.207, 0.205]],
    [[0.321, 0.177, 0.160, 0.153, 0.143], [0.325, 0.209, 0.171, 0.154, 0.145]],
];
const RANGE_PAPER: [f64; 5] = [0.035, 0.021, 0.017, 0.014, 0.010];

fn paper(of: &[[[f64; 5]; 2]; 2], row: &Row) -> String {
    let window = match (row.variant, row.window) {
        (INDEXED, _) => return String::new(),
        (_, "10") => 0,
        (_, "none") => 1,
        _ => return String::new(),
    };
    let variant = usize::from(row.variant == "n");
    format!("paper 002: {:.3} ms", of[window][variant][row.servers as usize - 1])
}

/// A number of records for a `--size` of 100 MB, for the size that is asked for.
fn scaled(asked: &Asked<'_>, records: u64) -> u64 {
    (records as f64 * asked.bytes as f64 / OF_BYTES as f64) as u64
}

/// A row in which one client inserts into a table that is divided among so many servers.
fn usual(servers: u32, asked: &Asked<'_>) -> Row {
    Row {
        name: String::new(),
        servers,
        clients: 1,
        what: "insert",
        records: scaled(asked, USED),
        capacity: scaled(asked, FILE_CAPACITY),
        is_divided: true,
        variant: "cu",
        window: "adaptive",
        transport: LINKS,
        knows: false,
        has_parity: false,
        paper: String::new(),
        targets: &[],
    }
}

/// Whether rows have the link as their target. A window of 10 requests, as in the paper, waits for answers.
fn has_target(variant: &str, window: &str) -> bool {
    variant == "cu" && window != "10"
}

/// The rows in which a table grows from one bucket.
fn created(asked: &Asked<'_>) -> Vec<Row> {
    let one = Row { is_divided: false, ..usual(SERVERS, asked) };
    let mut rows = Vec::new();
    if asked.wants(CREATE) {
        let capacity = scaled(asked, CAPACITY);
        let one = Row { records: scaled(asked, CREATED), capacity, ..one.clone() };
        let two = Row { records: scaled(asked, CREATED_BY_TWO), clients: 2, ..one.clone() };
        for (variant, papers, by_two) in [("cu", [67.838, 45.032], 33.553), ("n", [69.209, 47.798], 38.432)] {
            for window in WINDOWS {
                let seconds = ["10", "none"].iter().position(|known| *known == window).map(|at| papers[at]);
                let paper = seconds.map_or(String::new(), |s| format!("paper 002, table 1: {s} s"));
                let targets = if has_target(variant, window) { OF_LINK } else { &[] };
                let name = format!("create-{variant}-{window}");
                rows.push(Row { name, variant, window, paper: paper.clone(), targets, ..one.clone() });
                for (transport, targets) in BY_UDP {
                    let name = format!("create-{variant}-{window}-{transport}");
                    let paper = paper.clone();
                    let targets = if has_target(variant, window) { targets } else { &[] };
                    rows.push(Row { name, variant, window, transport, paper, targets, ..one.clone() });
                }
            }
            let (name, paper) =
                (format!("create-{variant}-2-clients"), format!("paper 002, table 2: {by_two} s"));
            rows.push(Row { name, variant, paper, ..two.clone() });
        }
    }
    if asked.wants(FILE_ROW) {
        let paper = "paper 002, section 5: 264 s, extrapolated".into();
        let (name, records) = (FILE_ROW.into(), scaled(asked, FILE));
        rows.push(Row { name, records, paper, targets: OF_LINK, ..one.clone() });
    }
    if asked.wants(PARITY) {
        let one = Row { has_parity: true, ..one };
        rows.push(Row { name: PARITY.into(), is_divided: true, targets: OF_PLAIN, ..one.clone() });
        let capacity = scaled(asked, PARITY_CAPACITY);
        rows.push(Row { name: "create-parity".into(), capacity, ..one });
    }
    rows
}

/// The rows that use a table on so many servers.
fn used(servers: u32, asked: &Asked<'_>) -> Vec<Row> {
    let usual = usual(servers, asked);
    let mut rows = Vec::new();
    for (what, name, papers) in [("insert", INSERT, &INSERT_PAPER), ("get", SEARCH, &SEARCH_PAPER)] {
        if !asked.wants(name) {
            continue;
        }
        let usual = Row { what, ..usual.clone() };
        // The paper has no times of RP*S.
        let of_paper = ["cu", "n"].into_iter().flat_map(|variant| WINDOWS.map(|window| (variant, window)));
        for (variant, window) in of_paper.chain([(INDEXED, "adaptive")]) {
            let is_judged = servers == SERVERS && has_target(variant, window);
            let targets = if is_judged { OF_LINK } else { &[] };
            let name = format!("{name}-{variant}-{window}-{servers}");
            let row = Row { name, variant, window, targets, ..usual.clone() };
            rows.push(Row { paper: paper(papers, &row), ..row });
        }
        for (variant, (transport, targets)) in
            ["cu", "n"].into_iter().flat_map(|variant| BY_UDP.map(|by| (variant, by)))
        {
            let name = format!("{name}-{variant}-none-{transport}-{servers}");
            let targets = if (variant, servers) == ("cu", SERVERS) { targets } else { &[] };
            let row = Row { name, variant, window: "none", transport, targets, ..usual.clone() };
            rows.push(Row { paper: paper(papers, &row), ..row });
        }
        rows.push(Row { name: format!("{name}-cu-right-{servers}"), knows: true, ..usual.clone() });
        rows.push(Row { name: format!("{name}-cu-2-clients-{servers}"), clients: 2, ..usual });
    }
    if asked.wants(RANGE) {
        let paper = format!("paper 002, table 6: {:.3} ms", RANGE_PAPER[servers as usize - 1]);
        let targets = if servers == SERVERS { OF_CLIENTS_LINK } else { &[] };
        rows.push(Row { name: format!("range-{servers}"), what: "range", paper, targets, ..usual });
    }
    rows
}

/// The rows for so many servers.
fn rows(servers: u32, asked: &Asked<'_>) -> Vec<Row> {
    let mut rows = if servers == SERVERS { created(asked) } else { Vec::new() };
    rows.extend(used(servers, asked));
    if asked.tiny && asked.options.rows.is_empty() {
        // One row of each kind tests that the benchmark works.
        let few = [
            "create-cu-adaptive",
            "insert-n-10-5",
            "search-cu-2-clients-5",
            "search-cu-none-udp-5",
            "search-n-none-udp-5",
            "range-5",
            PARITY,
        ];
        rows.retain(|row| few.contains(&&*row.name));
    }
    rows
}

/// Measures the rows that are asked for, or says why there are none.
pub(super) fn measure(asked: &Asked<'_>, report: &mut BenchReport) -> Result<()> {
    for servers in 1..=SERVERS {
        let rows = rows(servers, asked);
        let splits = servers == SPLIT_SERVERS && asked.wants(SPLIT);
        if rows.is_empty() && !splits {
            continue;
        }
        let roles = format!("tables:{servers},client:{CLIENTS}");
        let words = [NARROW, &["--roles", &roles]].concat();
        let wanted = Wanted { hosts: servers + CLIENTS, words: &words, ..Wanted::default() };
        let lab = match Lab::up(&asked.options.program, wanted) {
            Ok(lab) => lab,
            Err(why) => {
                report.notes.push(format!("left out: all rows of the lab: {why}"));
                return Ok(());
            }
        };
        let iperf = Served::iperf(&lab).map_err(|why| report.notes.push(format!("left out: {why}"))).ok();
        let link = iperf.as_ref().map(|_| iperf_one_way(&lab)).transpose()?;
        let bench = Bench { asked, lab: &lab, servers, link };
        for row in &rows {
            asked.progress.begin(&row.name, 0, 0, 0);
            report.rows.push(bench.measured(row)?);
        }
        if splits {
            let few = if asked.tiny { &SPLITS[..1] } else { &SPLITS[..] };
            for capacity in few {
                asked.progress.begin(SPLIT, 0, 0, 0);
                report.rows.push(bench.split(*capacity)?);
            }
            report.rows.push(bench.used_while_split(USED_SPLIT, false)?);
        }
        if servers == SERVERS && asked.wants(PARITY) {
            report.rows.push(bench.used_while_split(PARITY_SPLIT, true)?);
        }
    }
    Ok(())
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    lab: &'a Lab,
    servers: u32,
    /// Bytes a second over a link, if iperf3 is installed.
    link: Option<f64>,
}

impl Bench<'_> {
    /// Runs our command as the lab's owner.
    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.asked.options.program);
        command.arg("table").args(words).env("THALWEG_IDENTITY", self.lab.identity());
        whole_process(&mut command).map(drop)
    }

    /// The state of the table, in which keys may be missing while they move.
    fn status(&self) -> Result<TableStatus> {
        let tables = Tables::load(&self.lab.identity(), None);
        let tables = tables.map_err(|why| Error::Failed(why.to_string()))?;
        tables.status(TABLE).map_err(|why| Error::Failed(why.to_string()))
    }

    /// Makes the table, on all servers if the row wants that.
    fn create(&self, row: &Row) -> Result<()> {
        let capacity = row.capacity.to_string();
        let parity: &[&str] = if row.has_parity { &["--parity", SHAPE] } else { &[] };
        let index: &[&str] = if row.variant == INDEXED { &["--index"] } else { &[] };
        self.run(&[&["create", TABLE, "--capacity", &capacity], parity, index].concat())?;
        if !row.is_divided {
            return Ok(());
        }
        // With parity, the registrar chooses the server of the first bucket.
        let mut empty: Vec<String> = (1..=self.servers).map(|server| format!("n{server}")).collect();
        let status = self.status()?;
        empty.retain(|name| status.nodes.iter().all(|share| share.node != *name || share.buckets.is_empty()));
        for (part, server) in (1..).zip(&empty) {
            let from = key_text(row.records * part / u64::from(self.servers));
            self.run(&["split", TABLE, &from, server])?;
        }
        Ok(())
    }

    fn task(&self, row: &Row, client: u64) -> BenchTable {
        BenchTable {
            table: TABLE.into(),
            what: row.what.into(),
            records: row.records,
            clients: if row.what == "range" { 1 } else { u64::from(row.clients) },
            client,
            variant: row.variant.into(),
            window: row.window.into(),
            transport: row.transport.into(),
            knows: row.knows,
        }
    }

    /// Runs the clients of a row. Returns the seconds of the slowest, and the curve of the first.
    fn clients(&self, row: &Row) -> Result<(f64, Vec<(u64, f64)>)> {
        let tasks: Vec<BenchTable> =
            (0..u64::from(row.clients)).map(|client| self.task(row, client)).collect();
        let this = worker::program()?;
        let command = |client: u64| {
            let mut command = self.lab.on_network(self.servers + 1 + client as u32, &this);
            command.env("THALWEG_IDENTITY", self.lab.identity());
            command
        };
        let mut runs = worker::together(&tasks, command)?;
        let seconds = runs.iter().map(|run| run.seconds).fold(0.0, f64::max);
        Ok((seconds, runs.swap_remove(0).curve))
    }

    /// The CPU time of the servers so far.
    fn cpu(&self) -> f64 {
        (1..=self.servers).map(|server| cpu_seconds(self.lab.host(server).pid)).sum()
    }

    /// Waits until no bucket moves or has more records than it should, and returns the table's state.
    fn at_rest(&self, row: &Row) -> Result<TableStatus> {
        let Row { records, capacity, .. } = *row;
        let watch = Stopwatch::start();
        loop {
            let status = self.status()?;
            let mut buckets = status.nodes.iter().flat_map(|share| &share.buckets);
            if status.records == records
                && buckets.all(|bucket| !bucket.is_moving && bucket.records <= capacity)
            {
                return Ok(status);
            }
            if watch.seconds() > RESTS_SECONDS {
                return Err(Error::Wrong(format!(
                    "after {RESTS_SECONDS} s, {} of {records} records are in the table, or a bucket has more than \
                     {capacity}",
                    status.records
                )));
            }
            std::thread::sleep(LOOKS);
        }
    }

    /// Runs a row once, with a new table. Returns the table's state at the end, and the curve of the first client.
    fn once(&self, row: &Row, series: &mut Series) -> Result<(TableStatus, Vec<(u64, f64)>)> {
        self.asked.should_continue()?;
        self.create(row)?;
        if row.what != "insert" {
            self.clients(&Row {
                what: "insert",
                clients: 1,
                variant: "cu",
                window: "adaptive",
                transport: LINKS,
                ..row.clone()
            })?;
        }
        let before = self.cpu();
        let (seconds, curve) = self.clients(row)?;
        let watch = Stopwatch::start();
        let status = self.at_rest(row)?;
        // A table that grows is not made before its last split.
        let splits = if row.is_divided { 0.0 } else { watch.seconds() };
        series.add(seconds + splits, Usage { cpu_seconds: self.cpu() - before, ..Usage::default() });
        self.run(&["drop", TABLE])?;
        Ok((status, curve))
    }

    fn measured(&self, row: &Row) -> Result<BenchRow> {
        let (mut series, mut plain) = (Series::default(), Series::default());
        let mut measured = BenchRow {
            name: row.name.clone(),
            work: format!(
                "{} {} records, {} servers, {} clients",
                row.what, row.records, row.servers, row.clients
            ),
            bytes: row.records * RECORD_BYTES as u64,
            ..BenchRow::default()
        };
        for _ in 0..self.asked.runs {
            if row.has_parity {
                self.once(&Row { has_parity: false, ..row.clone() }, &mut plain)?;
            }
            let (status, curve) = self.once(row, &mut series)?;
            if measured.notes.is_empty() {
                let buckets = status.nodes.iter().map(|share| share.buckets.len()).sum::<usize>();
                measured.notes.push(format!("{buckets} buckets at the end"));
                let clients = u64::from(row.clients);
                let point = |(at, seconds): (u64, f64)| (at * clients, (seconds * 1e3).round() / 1e3);
                measured.curve = curve.into_iter().map(point).collect();
            }
        }
        measured.ours = series.measure();
        measured.notes.push(format!("{:.4} ms a record", measured.ours.seconds * 1e3 / row.records as f64));
        if !row.paper.is_empty() {
            measured.notes.push(row.paper.clone());
        }
        if row.has_parity {
            measured.others.push(BenchOther::measured(PLAIN, plain.measure()));
        }
        self.compare(&mut measured, f64::from(row.clients), row.targets);
        Ok(measured)
    }

    /// Adds the ideal, with the records divided among so many links.
    fn compare(&self, row: &mut BenchRow, links: f64, targets: &[Target]) {
        if let Some(link) = self.link {
            let seconds = row.bytes as f64 / links / link;
            let measure = BenchMeasure { seconds, all_seconds: vec![seconds], ..BenchMeasure::default() };
            row.others.push(BenchOther::measured(IDEAL, measure));
        }
        judge(row, targets, self.asked.tiny);
    }

    /// The time of a split, as the server measures it.
    fn split(&self, capacity: u64) -> Result<BenchRow> {
        let full = capacity;
        let capacity = scaled(self.asked, capacity);
        let usual = usual(self.servers, self.asked);
        let row = Row { capacity, records: capacity + 1, is_divided: false, ..usual };
        let mut all_seconds = Vec::new();
        let mut moved = 0;
        for _ in 0..self.asked.runs {
            self.asked.should_continue()?;
            self.create(&row)?;
            self.clients(&row)?;
            let last = self.at_rest(&row)?.nodes.into_iter().find_map(|share| share.last_move);
            let last = last.ok_or_else(|| Error::Wrong("the bucket was not split".into()))?;
            moved = last.records;
            all_seconds.push(last.milliseconds as f64 / 1e3);
            self.run(&["drop", TABLE])?;
        }
        let seconds = median(&all_seconds);
        let mut row = BenchRow {
            name: format!("{SPLIT}-{capacity}"),
            work: format!("split a bucket of {capacity} records"),
            bytes: moved * RECORD_BYTES as u64,
            ours: BenchMeasure { seconds, all_seconds, ..BenchMeasure::default() },
            notes: vec![format!("{:.4} ms for each record of the bucket", seconds * 1e3 / capacity as f64)],
            ..BenchRow::default()
        };
        let is_large = full >= CAPACITY;
        self.compare(&mut row, 1.0, if is_large { OF_LINK } else { &[] });
        if full == SPLITS[0] {
            row.targets.push(BenchTarget {
                target: "wall <= 0.06 s".into(),
                measured: format!("{seconds:.3}"),
                met: (!self.asked.tiny).then_some(seconds <= 0.06),
            });
        }
        Ok(row)
    }

    /// The times of requests to a bucket of so many records while a user splits it.
    fn used_while_split(&self, records: u64, has_parity: bool) -> Result<BenchRow> {
        let records = scaled(self.asked, records);
        let usual = usual(self.servers, self.asked);
        let row = Row { records, capacity: 2 * records, is_divided: false, has_parity, ..usual };
        let mut all_seconds = Vec::new();
        for _ in 0..self.asked.runs {
            self.asked.should_continue()?;
            self.create(&row)?;
            self.clients(&row)?;
            let (_, times) = self.clients(&Row { what: "split", ..row.clone() })?;
            all_seconds.extend(times.into_iter().map(|(_, seconds)| seconds));
            self.at_rest(&row)?;
            self.run(&["drop", TABLE])?;
        }
        let (seconds, requests) = (median(&all_seconds), all_seconds.len());
        let longest = all_seconds.iter().copied().fold(0.0, f64::max);
        let mut measured = BenchRow {
            name: format!("used-while-split{}", if has_parity { "-parity" } else { "" }),
            work: format!("a get or update while a bucket of {records} records is split"),
            ours: BenchMeasure { seconds, all_seconds, ..BenchMeasure::default() },
            notes: vec![format!("the longest of {requests} requests took {:.1} ms", longest * 1e3)],
            ..BenchRow::default()
        };
        judge(&mut measured, WHILE_SPLIT, self.asked.tiny);
        Ok(measured)
    }
}
