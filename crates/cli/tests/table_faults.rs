//! Faults of the hosts of a table with parity, in a lab: hosts are killed, frozen and cut off, or packets are lost, while
//! a client changes all records again and again, and another one reads them. Without root or the programs of `lab/`
//! each test says that it was skipped.
//!
//! Invariant, for every cell: each record has its latest acknowledged value, or a later one; reads of all records work
//! within [`READS_S_MAX`] of the fault, while it lasts; after it all groups have all their buckets again.
//!
//! `cargo test -p thalweg-cli --test table_faults -- --include-ignored --nocapture` prints the whole matrix.
#![allow(clippy::disallowed_methods)] // Time passes as for users.

mod support;

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::lab::{Lab, Piped};
use support::resp::Client;
use support::tables::{KEYS, Owner, audit, is_sound, key, members, under_load};
use support::{Outcome, until_within};
use thalweg_api::{TableStatus, from_json};

/// Reads of all records work so soon after a fault.
const READS_S_MAX: f64 = 5.0;
/// How long a cut lasts, or a host is frozen, beyond that: longer than a lease, and than it takes to notice.
const LASTS: Duration = Duration::from_secs(4);
/// All groups have all their buckets so soon after the end of a fault.
const SOUND_S_MAX: f64 = 40.0;

/// What happens to a host with a data bucket, or to others of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// One packet of a hundred to each host is lost.
    Loss,
    /// It and a host with a parity bucket do not reach each other.
    CutPair,
    /// Only its packets to that host are lost.
    CutPairOneWay,
    /// It does not reach anybody, nor anybody it.
    CutOff,
    /// Only packets from it are lost.
    CutOffOneWay,
    Freeze,
    /// So many hosts with data buckets, and with parity buckets, are killed.
    Kill(usize, usize),
}

/// The shape of groups, with the number of hosts, and what happens.
type Cell = (&'static str, usize, Fault);

/// A lab with the table.
struct Bed(Lab);

impl Owner for Bed {
    fn run(&self, args: &[&str]) -> Outcome {
        self.0.run(args)
    }

    fn identity(&self) -> PathBuf {
        self.0.identity()
    }
}

/// What came of a cell.
struct Row {
    cell: Cell,
    reads_s: f64,
    sound_s: f64,
    acknowledged: usize,
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Row { cell: (parity, hosts, fault), reads_s, sound_s, acknowledged } = self;
        let fault = format!("{fault:?}");
        write!(f, "{parity:<6} {hosts:>5}  {fault:<14} {reads_s:>7.2} s {sound_s:>7.2} s {acknowledged:>12}")
    }
}

impl Bed {
    /// Waits until all records can be read, one by one and as a range; returns the seconds.
    fn reads(&self) -> f64 {
        let began = Instant::now();
        let table = self.open();
        let reads = |i: u32| table.get(key(i)).is_ok_and(|value| value.is_some());
        until_within(SOUND_S_MAX, "all records can be read", || {
            (0..KEYS).step_by(11).all(reads)
                && table.count(.., None).is_ok_and(|count| count == u64::from(KEYS))
        });
        began.elapsed().as_secs_f64()
    }

    /// Lets the fault happen and end. Returns the seconds until all could be read, and until all groups were sound.
    fn happens(&self, fault: Fault) -> (f64, f64) {
        let status = self.table_status();
        let (data, parity) = (members(&status, false), members(&status, true));
        let killed: Vec<&str> = match fault {
            Fault::Kill(of_data, of_parity) => {
                data.iter().take(of_data).chain(parity.iter().take(of_parity)).map(|host| &**host).collect()
            }
            _ => Vec::new(),
        };
        match fault {
            Fault::Loss => {}
            Fault::CutPair => self.0.call("cut", &[&data[0], &parity[0]]),
            Fault::CutPairOneWay => self.0.call("cut", &["--one-way", &data[0], &parity[0]]),
            Fault::CutOff => self.0.call("cut", &[&data[0]]),
            Fault::CutOffOneWay => self.0.call("cut", &["--one-way", &data[0]]),
            Fault::Freeze => self.0.call("freeze", &[&data[0]]),
            Fault::Kill(..) => self.0.call("kill", &killed),
        }
        let reads_s = self.reads();
        // No event says that something did not happen.
        std::thread::sleep(LASTS);
        match fault {
            Fault::Kill(..) => self.0.call("revive", &killed),
            _ => self.0.call("heal", &[]),
        }
        let healed = Instant::now();
        until_within(SOUND_S_MAX, "all groups are sound", || is_sound(&self.table_status()));
        (reads_s, healed.elapsed().as_secs_f64())
    }
}

/// One cell, in a lab of its own; `None` where that cannot be, which is said.
fn row(cell: Cell) -> Option<Row> {
    let (parity, hosts, fault) = cell;
    let hosts = hosts.to_string();
    let loss = if fault == Fault::Loss { &["--loss", "1%"][..] } else { &[] };
    let bed = Bed(Lab::up(&[&[&hosts[..]], loss].concat())?);
    bed.create(&["--parity", parity]);
    until_within(SOUND_S_MAX, "all groups are sound", || is_sound(&bed.table_status()));
    let table = bed.open();
    let (mut reads_s, mut sound_s) = (0.0, 0.0);
    let acknowledged = under_load(&table, || (reads_s, sound_s) = bed.happens(fault));
    for table in [&table, &bed.open()] {
        audit(table, &acknowledged);
    }
    Some(Row { cell, reads_s, sound_s, acknowledged: acknowledged.len() })
}

/// Runs cells one after the other, and prints a row for each.
fn matrix(cells: &[Cell]) {
    println!("parity hosts  fault            reads     sound    records");
    let mut slow = Vec::new();
    for cell in cells {
        let Some(row) = row(*cell) else { return };
        println!("{row}");
        if row.reads_s > READS_S_MAX {
            slow.push(row.to_string());
        }
    }
    assert!(slow.is_empty(), "reads took too long: {slow:#?}");
}

#[test]
fn one_fault_of_some_kinds_costs_nothing_that_was_acknowledged() {
    matrix(&[("2+1", 4, Fault::CutOff), ("2+2", 5, Fault::Kill(1, 1))]);
}

#[test]
#[ignore = "takes some minutes; the selection in the test above is made of these"]
fn no_fault_costs_anything_that_was_acknowledged() {
    let single = [
        Fault::Loss,
        Fault::CutPair,
        Fault::CutPairOneWay,
        Fault::CutOff,
        Fault::CutOffOneWay,
        Fault::Freeze,
        Fault::Kill(1, 0),
        Fault::Kill(0, 1),
    ];
    let two = [Fault::Kill(2, 0), Fault::Kill(1, 1), Fault::Kill(0, 2)];
    let shapes = [("2+1", 5), ("4+1", 7), ("2+2", 6)];
    let mut cells: Vec<Cell> = Vec::new();
    for (parity, hosts) in shapes {
        cells.extend(single.map(|fault| (parity, hosts, fault)));
        cells.extend(two.map(|fault| (parity, hosts, fault)).into_iter().filter(|_| parity == "2+2"));
    }
    matrix(&cells);
}

/// What went wrong: FLUSHALL and DEL were answered although the node with the records was cut off from the registrar.
/// It served them on to all who had the table open, and a second table had the same name.
#[test]
fn a_table_is_dropped_when_the_node_with_its_records_refuses_it() {
    const PORT: u16 = 6379;
    let Some(lab) = Lab::up(&["4", "--resp", "6379"]) else { return };
    let mut clients: Vec<_> = (1..=4).map(|host| lab.redis(host, PORT)).collect();
    let ask =
        |client: &mut Client<Piped>, line: &str, reply: &str| assert_eq!(client.ask(line), reply, "{line}");
    let bulk = |value: &str| format!("${}\r\n{value}\r\n", value.len());
    let (ok, nil) = ("+OK\r\n", "$-1\r\n");
    ask(&mut clients[2], "SET k old", ok);
    ask(&mut clients[2], "HSET h f old", ":1\r\n");
    for table in ["redis-strings", "h"] {
        let moved = lab.run(&["table", "move", table, "k", "n2"]);
        assert!(moved.status == Some(0) || moved.err.contains("already"), "{moved:?}");
    }
    for client in &mut clients {
        ask(client, "GET k", &bulk("old"));
        ask(client, "HGET h f", &bulk("old"));
    }
    let mut counted = lab.redis(4, PORT);
    lab.call("cut", &["n1", "n2"]);
    // DEL also looks for a string of that name, and n1 does not reach the strings now.
    let mut flushes = lab.redis(1, PORT);
    std::thread::scope(|scope| {
        for (client, line) in [(&mut clients[3], "DEL h"), (&mut flushes, "FLUSHALL")] {
            scope.spawn(move || {
                let began = Instant::now();
                let why = client.error(line);
                assert!(began.elapsed() < Duration::from_secs(10), "{line}: {why}");
                assert!(why.contains("'h'") && why.contains("n2 did not confirm"), "{line}: {why}");
            });
        }
    });
    // It is there until it is dropped. Nobody makes another one in its place, and who has it open uses it.
    ask(&mut counted, "EXISTS h", ":1\r\n");
    let why = clients[3].error("HSET h f new");
    assert!(why.contains("'h' is being dropped"), "{why}");
    lab.run(&["table", "create", "h"]).is_refused(&["'h' is being dropped"]);
    assert!(lab.run(&["table", "list"]).is_done().contains("h: is being dropped\n"));
    ask(&mut clients[2], "HGET h f", &bulk("old"));
    lab.call("heal", &[]);
    until_within(SOUND_S_MAX, "the drop is finished by itself", || {
        !lab.run(&["table", "list"]).is_done().contains("dropped")
    });
    for client in &mut clients {
        ask(client, "HGET h f", nil);
    }
    ask(&mut clients[2], "HSET h f2 new", ":1\r\n");
    ask(&mut clients[3], "HGETALL h", &format!("*2\r\n{}{}", bulk("f2"), bulk("new")));
    // All nodes answer, so it is done at once, also for those who have it open.
    ask(&mut clients[3], "FLUSHALL", ok);
    for client in &mut clients {
        ask(client, "GET k", nil);
        ask(client, "EXISTS h", ":0\r\n");
    }
    ask(&mut clients[2], "SET k2 new", ok);
    ask(&mut clients[3], "GET k2", &bulk("new"));

    // A node without records of the table does not matter.
    let has_it = lab.run(&["table", "status", "redis-strings", "--json"]);
    let status: TableStatus = from_json(&has_it.out).unwrap();
    let holder = status.nodes.iter().find(|share| !share.buckets.is_empty()).unwrap().node.clone();
    let other = if holder == "n3" { "n2" } else { "n3" };
    lab.call("kill", &[other]);
    ask(&mut clients[3], "FLUSHALL", ok);
    ask(&mut clients[3], "GET k2", nil);
}
