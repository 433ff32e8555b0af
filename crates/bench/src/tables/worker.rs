//! A client of a table: this program in a process of its own, for example on the network of a host of a lab.
//!
//! Model: the task is JSON in an environment variable. The process prints a line when it is ready, begins when it reads
//! a line, and prints what it measured.
//! Invariant: every answer is checked.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use thalweg::table::{
    Answer, Arrange, ClusterOptions, Interval, Operation, Table, Tables, Ticket, Transport, Variant,
    WINDOW_MAX, Window,
};
use thalweg_api::{BenchTable, BenchTableRun, from_json, to_json};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process;

use super::records::{RECORD_BYTES, shuffled};
use thalweg_measure::{Error, Result};

/// The variable with the task.
const TASK: &str = "THALWEG_BENCH_TABLE";
const IDENTITY: &str = "THALWEG_IDENTITY";
/// Digits of a key.
const KEY_BYTES: usize = 10;
const VALUE_BYTES: usize = RECORD_BYTES - KEY_BYTES;
/// Points of a curve.
const POINTS: u64 = 15;
/// Answers that are taken at a time, when the last of them is there.
const TAKEN: usize = 64;

/// The task of this process, if it was started as a client.
pub(crate) fn task() -> Option<String> {
    std::env::var(TASK).ok()
}

/// This program, as the program of a client.
pub(super) fn program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::Failed(format!("this program cannot be found: {e}")))
}

/// The key of a record, as text.
pub(super) fn key_text(number: u64) -> String {
    format!("{number:0KEY_BYTES$}")
}

/// The key of a record. Formatting it would take longer than a node needs for a request.
fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut rest = number;
    let mut key = [b'0'; KEY_BYTES];
    for digit in key.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// The value of a record: its key, and dots.
fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [b'.'; VALUE_BYTES];
    value[..KEY_BYTES].copy_from_slice(&key(number));
    value
}

/// Does the task.
pub(crate) fn run(task: &str) -> Result<()> {
    let task: BenchTable = from_json(task).map_err(Error::Failed)?;
    let identity = PathBuf::from(std::env::var_os(IDENTITY).unwrap_or_default());
    let tables = Tables::load(&identity, None).map_err(told)?;
    let table = Table::open_with(&tables, &task.table, options(&task)?).map_err(told)?;
    if task.knows {
        table.count(Interval::all(), None).map_err(told)?;
    }
    let numbers: Vec<u64> = shuffled(task.records)
        .into_iter()
        .skip(task.client as usize)
        .step_by(task.clients as usize)
        .collect();
    let pipe = |e: std::io::Error| Error::Failed(format!("a client cannot be told to begin: {e}"));
    let mut out = std::io::stdout();
    out.write_all(b"ready\n").and_then(|()| out.flush()).map_err(pipe)?;
    std::io::stdin().lock().read_line(&mut String::new()).map_err(pipe)?;
    let (watch, before) = (Stopwatch::start(), process::usage());
    let mut curve = Vec::new();
    match task.what.as_str() {
        "range" => range(&table, task.records)?,
        "split" => while_split(&table, &numbers, |number, seconds| curve.push((number, seconds)))?,
        what => records(&table, what == "get", &numbers, |done| curve.push((done, watch.seconds())))?,
    }
    let seconds = watch.seconds();
    let cpu_seconds = process::usage().cpu_seconds - before.cpu_seconds;
    let run = BenchTableRun { seconds, cpu_seconds, curve };
    out.write_all((to_json(&run) + "\n").as_bytes()).map_err(pipe)
}

fn told(why: impl std::fmt::Display) -> Error {
    Error::Failed(why.to_string())
}

fn options(task: &BenchTable) -> Result<ClusterOptions> {
    let variant = Variant::of(&task.variant).unwrap_or_default();
    let window = match task.window.as_str() {
        "adaptive" => Window::Adaptive,
        "none" => Window::Unlimited,
        count => Window::Of(count.parse().map_err(|_| Error::Failed(format!("'{count}' is no window")))?),
    };
    let transport = match task.transport.as_str() {
        "udp" => Transport::Udp,
        "udp-single" => Transport::UdpSingle,
        _ => Transport::Links,
    };
    Ok(ClusterOptions { variant, window, transport })
}

/// Reads all records.
fn range(table: &Table, records: u64) -> Result<()> {
    let mut next = 0;
    let mut range = table.range(Interval::all());
    while let Some((found, bytes)) = range.read().map_err(told)? {
        if *found != key(next) || *bytes != value(next) {
            return Err(Error::Wrong(format!("record {next} of the range is not what was stored")));
        }
        next += 1;
    }
    let is_all = next == records;
    is_all.then_some(()).ok_or_else(|| Error::Wrong(format!("the range has {next} of {records} records")))
}

/// Gets and updates records, one after the other, while the table is split in the middle. Calls `answered` with the number
/// of each request and the seconds that it took.
fn while_split(table: &Table, numbers: &[u64], mut answered: impl FnMut(u64, f64)) -> Result<()> {
    let arrange = Arrange::Split { key: key(numbers.len() as u64 / 2).into(), to: None };
    std::thread::scope(|scope| {
        let split = scope.spawn(|| table.arrange(arrange));
        for (request, number) in (0..).zip(numbers.iter().cycle()) {
            let (key, value) = (key(*number), value(*number));
            let watch = Stopwatch::start();
            let is_right = match request % 2 {
                0 => table.get(key).map_err(told)?.is_some_and(|found| found[..] == value),
                _ => table.update(key, value).map_err(told)?,
            };
            answered(request, watch.seconds());
            if !is_right {
                return Err(Error::Wrong(format!("record {number} is missing or wrong during the split")));
            }
            if split.is_finished() {
                break;
            }
        }
        split.join().expect("the thread of the split does not panic").map_err(told)
    })
}

/// Inserts or gets records. Calls `reached` a few times with the number of answers so far.
fn records(table: &Table, is_get: bool, numbers: &[u64], mut reached: impl FnMut(u64)) -> Result<()> {
    let step = (numbers.len() as u64).div_ceil(POINTS);
    let mut outstanding: VecDeque<(u64, Ticket)> = VecDeque::new();
    let (mut submitted, mut answered) = (0, 0);
    let mut wait = |(number, ticket): (u64, Ticket)| -> Result<()> {
        let is_right = match ticket.wait().map_err(told)? {
            Answer::Value(Some(found)) => is_get && *found == value(number),
            answer => !is_get && answer == Answer::Done,
        };
        if !is_right {
            return Err(Error::Wrong(format!("the answer about record {number} is wrong")));
        }
        answered += 1;
        if answered % step == 0 {
            reached(answered);
        }
        Ok(())
    };
    for number in numbers {
        let operation = match is_get {
            true => Operation::Get { key: key(*number).into() },
            false => Operation::Insert { key: key(*number).into(), value: value(*number).into() },
        };
        outstanding.push_back((*number, table.submit(operation).map_err(told)?));
        submitted += 1;
        let is_there = submitted % TAKEN == 0
            && outstanding.get(TAKEN - 1).is_some_and(|(_, ticket)| ticket.is_answered());
        if is_there || outstanding.len() >= WINDOW_MAX {
            outstanding.drain(..TAKEN).try_for_each(&mut wait)?;
        }
    }
    outstanding.into_iter().try_for_each(wait)
}

/// Clients that run at the same time. `command` starts this program where the client of this number is to run.
pub(super) fn together(tasks: &[BenchTable], command: impl Fn(u64) -> Command) -> Result<Vec<BenchTableRun>> {
    let mut clients = Clients(Vec::new());
    for task in tasks {
        let mut command = command(task.client);
        command.env(TASK, to_json(task));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| Error::Failed(format!("a client cannot be started: {e}")))?;
        clients.0.push(child);
    }
    let mut outs = Vec::new();
    for child in &mut clients.0 {
        let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        let _ = out.read_line(&mut line);
        if line.trim() != "ready" {
            return Err(complaint(child));
        }
        outs.push(out);
    }
    for child in &mut clients.0 {
        // If a client is gone, the error is reported below.
        let _ = child.stdin.take().expect("it is a pipe").write_all(b"\n");
    }
    let ended = |(child, mut out): (&mut Child, BufReader<_>)| {
        let mut text = String::new();
        let _ = out.read_to_string(&mut text);
        from_json(text.trim()).map_err(|_| complaint(child))
    };
    clients.0.iter_mut().zip(outs).map(ended).collect()
}

/// Why a client has failed: the last line of its standard error.
fn complaint(child: &mut Child) -> Error {
    let _ = child.kill();
    let mut text = String::new();
    child.stderr.take().into_iter().for_each(|mut pipe| _ = pipe.read_to_string(&mut text));
    Error::Failed(format!("a client failed: {}", text.trim().lines().last().unwrap_or("it said nothing")))
}

/// Processes that are killed when they are dropped.
struct Clients(Vec<Child>);

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
