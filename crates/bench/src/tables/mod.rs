//! `thalweg-bench table`: a server of tables, compared with Redis and etcd, on this machine; a node and a client there; and the
//! experiments of paper 002 on the hosts of a lab.
//!
//! Model of the first: a `--size` of 100 MB is a million records of 100 bytes. For each row, both servers are started
//! and filled with the same records in the same random order; then the same client measures them in turn. The client is
//! redis-benchmark if Redis is the rival, and a loop of our own if etcd is.
//! Invariant: CPU time is that of the server, without the client.
//! Non-goals: latency.

mod client;
mod lab;
mod native;
mod records;
mod server;
mod simulated;
pub(crate) mod worker;

use thalweg_api::{BenchOther, BenchReport, BenchRow, BenchTarget};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::Usage;

use client::{Http, Resp};
use records::{RECORD_BYTES, shuffled};
use server::{Etcd, Server};
use thalweg_measure::contenders::judge;
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::process::{Series, median};
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Asked, Result};

/// Bytes of the values that redis-benchmark sets.
const VALUE_BYTES: usize = 90;
/// Connections of redis-benchmark.
const CLIENTS: usize = 50;
/// Connections of our own client.
const THREADS: usize = 16;
/// Records of a range.
const RANGE: u64 = 100;
/// The requests that are outstanding at a time while our client fills a server.
const FILLED_TOGETHER: usize = 1000;
/// The most bytes of memory for a record.
const RECORD_MEMORY_MAX: f64 = 140.0;
const REDIS: &str = "Redis";
const ETCD: &str = "etcd";

/// A row that redis-benchmark measures.
struct Row {
    name: &'static str,
    /// The command, with `__rand_int__` in place of a random number of twelve digits.
    request: &'static [&'static str],
    pipeline: usize,
    /// Records for each request.
    records_per_request: u64,
    fill: Fill,
    targets: &'static [Target],
}

/// The data that a server is filled with: one request for each record, whose key ends with its number in twelve digits.
#[derive(Debug, Clone, Copy)]
enum Fill {
    Strings,
    Fields,
    Members,
}

const GET: &[&str] = &["GET", "key:__rand_int__"];
const HSET: &[&str] = &["HSET", "fields", "field:__rand_int__", "VALUE"];
const BY_LEX: &[&str] = &["ZRANGE", "members", "[__rand_int__", "+", "BYLEX", "LIMIT", "0", "100"];
const LESS_CPU: Target = Target::LessCpu { than: Than::Named(REDIS), times: 1.25 };

const fn faster(times: f64) -> Target {
    Target::Faster { than: Than::Named(REDIS), times, or_floor: None }
}

const USUAL: Row = Row {
    name: "get-1",
    request: GET,
    pipeline: 1,
    records_per_request: 4,
    fill: Fill::Strings,
    targets: &[faster(0.9), LESS_CPU],
};
const ROWS: &[Row] = &[
    USUAL,
    Row { name: "hset-1", request: HSET, fill: Fill::Fields, ..USUAL },
    Row { name: "get-16", pipeline: 16, records_per_request: 1, targets: &[faster(1.0), LESS_CPU], ..USUAL },
    Row {
        name: "hset-16",
        request: HSET,
        pipeline: 16,
        records_per_request: 1,
        fill: Fill::Fields,
        targets: &[faster(1.0), LESS_CPU],
    },
    Row {
        name: "range",
        request: BY_LEX,
        pipeline: 4,
        records_per_request: 20,
        fill: Fill::Members,
        targets: &[faster(3.0)],
    },
];
const MEMORY: &str = "memory";
const ETCD_ROWS: [&str; 3] = ["etcd-put", "etcd-get", "etcd-range"];
/// Rows with etcd use this many times fewer records, because etcd is much slower.
const RECORDS_PER_ETCD_RECORD: u64 = 50;

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    let beside = ROWS.iter().map(|row| row.name).chain([MEMORY]).chain(ETCD_ROWS);
    beside.chain(native::NAMES).chain([simulated::NAME]).chain(lab::NAMES).collect()
}

/// Measures the rows that are asked for.
pub(crate) fn measure(asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
    let bench = Bench { asked, dir, records: asked.bytes / RECORD_BYTES as u64 };
    if !server::has_redis() {
        report
            .notes
            .push("left out: Redis and what redis-benchmark measures (apt-get install redis-tools)".into());
    }
    for row in ROWS.iter().filter(|row| asked.wants(row.name) && server::has_redis()) {
        asked.progress.begin(row.name, 0, 0, 0);
        report.rows.push(bench.beside_redis(row)?);
    }
    if asked.wants(MEMORY) {
        asked.progress.begin(MEMORY, 0, 0, 0);
        report.rows.push(bench.memory()?);
    }
    if ETCD_ROWS.iter().any(|name| asked.wants(name)) {
        match Etcd::start(dir.path()) {
            Ok(etcd) => bench.beside_etcd(&etcd, report)?,
            Err(why) => report.notes.push(format!("left out: rows beside etcd: {why}")),
        }
    }
    native::measure(asked, dir, bench.records, report)?;
    if asked.wants(simulated::NAME) {
        asked.progress.begin(simulated::NAME, 0, 0, 0);
        report.rows.push(simulated::measure(asked));
    }
    lab::measure(asked, report)
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    records: u64,
}

impl Bench<'_> {
    fn ours(&self) -> Result<Server> {
        Server::ours(&self.asked.options.program)
    }

    /// Fills a server. Returns the seconds that it took.
    fn fill(&self, server: &Server, fill: Fill, records: u64) -> Result<f64> {
        let mut resp = Resp::connect(server.port())?;
        let watch = Stopwatch::start();
        for numbers in shuffled(records).chunks(FILLED_TOGETHER) {
            numbers.iter().for_each(|number| resp.add(&fill.request(*number)));
            resp.exchange(numbers.len())?;
        }
        Ok(watch.seconds())
    }

    fn beside_redis(&self, row: &Row) -> Result<BenchRow> {
        let servers = [self.ours()?, Server::redis(self.dir.path())?];
        for server in &servers {
            self.fill(server, row.fill, self.records)?;
        }
        let requests = (self.records / row.records_per_request).max(1000);
        let mut series = [Series::default(), Series::default()];
        for _ in 0..self.asked.runs {
            self.asked.should_continue()?;
            for (server, series) in servers.iter().zip(&mut series) {
                let before = server.cpu_seconds();
                let seconds = client::redis_benchmark(
                    server.port(),
                    requests,
                    self.records,
                    row.pipeline,
                    row.request,
                )?;
                let cpu_seconds = server.cpu_seconds() - before;
                series.add(seconds, Usage { cpu_seconds, ..Usage::default() });
            }
        }
        let [ours, redis] = series.map(Series::measure);
        let rate = |seconds: f64| requests as f64 / seconds / 1000.0;
        let note = format!(
            "{:.0} thousand requests a second, {REDIS} {:.0}",
            rate(ours.seconds),
            rate(redis.seconds)
        );
        let mut measured = BenchRow {
            name: row.name.into(),
            work: format!(
                "{requests} x {}, {CLIENTS} clients with {} at a time, {} records",
                row.request[0], row.pipeline, self.records
            ),
            bytes: self.records * RECORD_BYTES as u64,
            ours,
            others: vec![BenchOther::measured(REDIS, redis)],
            notes: vec![note],
            ..BenchRow::default()
        };
        judge(&mut measured, row.targets, self.asked.tiny);
        Ok(measured)
    }

    /// The memory of a sorted set, measured as the growth of the server.
    fn memory(&self) -> Result<BenchRow> {
        let one = |server: Server| -> Result<Series> {
            let (before, cpu_before) = (server.resident_bytes(), server.cpu_seconds());
            let seconds = self.fill(&server, Fill::Members, self.records)?;
            let peak_bytes = server.resident_bytes().saturating_sub(before);
            let cpu_seconds = server.cpu_seconds() - cpu_before;
            let mut series = Series::default();
            series.add(seconds, Usage { cpu_seconds, peak_bytes, ..Usage::default() });
            Ok(series)
        };
        let ours = one(self.ours()?)?.measure();
        let each = |bytes: u64| bytes as f64 / self.records as f64;
        let record = each(ours.peak_bytes);
        let mut row = BenchRow {
            name: MEMORY.into(),
            work: format!("a sorted set of {} members of {RECORD_BYTES} bytes", self.records),
            bytes: self.records * RECORD_BYTES as u64,
            ours,
            notes: vec![format!("{record:.1} bytes for each member")],
            ..BenchRow::default()
        };
        if server::has_redis() {
            let redis = one(Server::redis(self.dir.path())?)?.measure();
            row.notes.push(format!("{REDIS}: {:.1} bytes for each member", each(redis.peak_bytes)));
            row.others.push(BenchOther::measured(REDIS, redis));
        }
        judge(&mut row, &[Target::LessMemory { than: Than::Named(REDIS), times: 1.389 }], self.asked.tiny);
        row.targets.push(BenchTarget {
            target: format!("bytes for a member <= {RECORD_MEMORY_MAX}"),
            measured: format!("{record:.1}"),
            met: (!self.asked.tiny).then_some(record <= RECORD_MEMORY_MAX),
        });
        Ok(row)
    }

    /// Rows with a small number of connections and no pipeline, as etcd's clients work.
    fn beside_etcd(&self, etcd: &Etcd, report: &mut BenchReport) -> Result<()> {
        let records = (self.records / RECORDS_PER_ETCD_RECORD).max(100);
        let ours = self.ours()?;
        self.fill(&ours, Fill::Members, records)?;
        self.fill(&ours, Fill::Strings, records)?;
        for name in ETCD_ROWS.into_iter().filter(|name| self.asked.wants(name)) {
            self.asked.progress.begin(name, 0, 0, 0);
            let mut series = [Series::default(), Series::default()];
            if name != "etcd-put" {
                side_by_side(records, || Http::connect(etcd.port()), |http, number| http.put(number, false))?;
            }
            for _ in 0..self.asked.runs {
                self.asked.should_continue()?;
                let before = [ours.cpu_seconds(), etcd.cpu_seconds()];
                let connect = || Resp::connect(ours.port());
                let ours_seconds = side_by_side(records, connect, |resp, number| {
                    resp.add(&request_of(name, number));
                    resp.exchange(1)
                })?;
                let connect = || Http::connect(etcd.port());
                let etcd_seconds = side_by_side(records, connect, |http, number| match name {
                    "etcd-put" => http.put(number, true),
                    "etcd-get" => http.get(number),
                    _ => http.range(number, RANGE),
                })?;
                let after = [ours.cpu_seconds(), etcd.cpu_seconds()];
                for (i, seconds) in [ours_seconds, etcd_seconds].into_iter().enumerate() {
                    series[i].add(seconds, Usage { cpu_seconds: after[i] - before[i], ..Usage::default() });
                }
            }
            let [ours, etcd] = series.map(Series::measure);
            let rate = |all: &[f64]| records as f64 / median(all);
            let note = format!(
                "{:.0} requests a second, {ETCD} {:.0}",
                rate(&ours.all_seconds),
                rate(&etcd.all_seconds)
            );
            report.rows.push(BenchRow {
                name: name.into(),
                work: format!("{records} requests by {THREADS} clients, one at a time each"),
                bytes: records * RECORD_BYTES as u64,
                ours,
                others: vec![BenchOther::measured(ETCD, etcd)],
                notes: vec![note],
                ..BenchRow::default()
            });
        }
        Ok(())
    }
}

/// Divides the numbers among threads, each with its own connection. Returns the seconds until all had finished.
fn side_by_side<C>(
    records: u64,
    connect: impl Fn() -> Result<C> + Sync,
    ask: impl Fn(&mut C, u64) -> Result<()> + Sync,
) -> Result<f64> {
    let numbers = shuffled(records);
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        let threads: Vec<_> = numbers
            .chunks(numbers.len().div_ceil(THREADS))
            .map(|numbers| {
                let (connect, ask) = (&connect, &ask);
                scope.spawn(move || {
                    let mut connection = connect()?;
                    numbers.iter().try_for_each(|number| ask(&mut connection, *number))
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    Ok(watch.seconds())
}

/// Our equivalent of a request of a row that is compared with etcd.
fn request_of(name: &str, number: u64) -> Vec<Vec<u8>> {
    match name {
        "etcd-put" => Fill::Strings.request(number),
        "etcd-get" => vec![b"GET".into(), format!("key:{number:012}").into()],
        _ => {
            let low = format!("[{number:012}").into_bytes();
            let rest =
                [b"+".to_vec(), b"BYLEX".into(), b"LIMIT".into(), b"0".into(), RANGE.to_string().into()];
            [vec![b"ZRANGE".into(), b"members".into(), low], rest.to_vec()].concat()
        }
    }
}

impl Fill {
    fn request(self, number: u64) -> Vec<Vec<u8>> {
        let value = vec![b'v'; VALUE_BYTES];
        match self {
            Fill::Strings => vec![b"SET".into(), format!("key:{number:012}").into(), value],
            Fill::Fields => {
                vec![b"HSET".into(), b"fields".into(), format!("field:{number:012}").into(), value]
            }
            Fill::Members => {
                let member = format!("{number:012}{}", "m".repeat(RECORD_BYTES - 12));
                vec![b"ZADD".into(), b"members".into(), b"0".into(), member.into()]
            }
        }
    }
}
