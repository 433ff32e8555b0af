//! Tables with parity on real nodes: they are killed and frozen while records change.
//!
//! Invariant: every record that was acknowledged is there with its latest value, whichever k nodes fail; and who was
//! frozen serves nothing old.
#![allow(clippy::disallowed_methods)] // Whoever uses the command opens files by other means than ours.

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use support::nodes::{Nodes, terminate};
use support::until;
use thalweg::table::{Operation, Table, Tables};
use thalweg_api::{TableStatus, from_json};
use thalweg_io::process;

/// The keys that change.
const KEYS: u32 = 3_000;
/// Requests for lost records are answered by then.
const RECOVERED_S: u64 = 5;

fn status(nodes: &Nodes) -> TableStatus {
    from_json(&nodes.run(&["table", "status", "events", "--json"]).out).unwrap()
}

fn open(nodes: &Nodes) -> Table {
    Table::open(&Tables::load(&nodes.place.0.join("own"), None).unwrap(), "events").unwrap()
}

fn key(i: u32) -> Vec<u8> {
    i.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()
}

/// Creates the table, and waits until it is in several buckets and nothing moves.
fn start(count: usize, parity: &str) -> Nodes {
    let nodes = Nodes::start(count);
    nodes.run(&["table", "create", "events", "--capacity", "500", "--parity", parity]).is_done();
    let table = open(&nodes);
    write(&table, 0).for_each(drop);
    until("nothing moves", || {
        let status = status(&nodes);
        let buckets: Vec<_> = status.nodes.iter().flat_map(|share| &share.buckets).collect();
        buckets.len() > 4 && buckets.iter().all(|bucket| !bucket.is_moving && bucket.records <= 500)
    });
    nodes
}

/// Writes a version of each record. Returns the keys whose change was acknowledged.
fn write(table: &Table, version: u32) -> impl Iterator<Item = Vec<u8>> {
    let upsert = |i| Operation::Upsert { key: key(i).into(), value: value(version).into() };
    let tickets: Vec<_> = (0..KEYS).map(|i| (key(i), table.submit(upsert(i)).unwrap())).collect();
    tickets.into_iter().filter_map(|(key, ticket)| ticket.wait().ok().map(|_| key))
}

fn value(version: u32) -> Vec<u8> {
    format!("{version:08}").into_bytes()
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes all records again and again while `fails` lets nodes fail. Returns the least version that each record must have.
fn under_load(table: &Table, fails: impl FnOnce()) -> BTreeMap<Vec<u8>, u32> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut acknowledged = BTreeMap::new();
            let mut version = 1;
            while !is_over.load(Ordering::Relaxed) {
                acknowledged.extend(write(table, version).map(|key| (key, version)));
                version += 1;
            }
            acknowledged
        });
        // The load ends as well if this fails.
        let ends = Ends(&is_over);
        fails();
        drop(ends);
        load.join().unwrap()
    })
}

fn audit(table: &Table, acknowledged: &BTreeMap<Vec<u8>, u32>) {
    let records: BTreeMap<Vec<u8>, Vec<u8>> = table.range(..).collect::<Result<_, _>>().unwrap();
    assert_eq!(records.len(), KEYS as usize);
    for (key, version) in acknowledged {
        assert!(
            records[key] >= value(*version),
            "{key:?} has {:?}, not {version}",
            records[key].escape_ascii()
        );
    }
}

/// Nodes with data buckets of the first group, other than the registrar's.
fn members(status: &TableStatus, is_parity: bool) -> Vec<usize> {
    let seats = status.groups[0].seats.iter().flatten().filter(|seat| seat.is_parity == is_parity);
    let number = |name: &str| name[1..].parse::<usize>().unwrap() - 1;
    seats.map(|seat| number(&seat.node)).filter(|node| *node != 0).collect()
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn kill(nodes: &mut Nodes, node: usize) {
    nodes.running[node].kill().unwrap();
    nodes.running[node].wait().unwrap();
    signal(nodes.pids[node], "-KILL");
    let pid = nodes.pids[node];
    until("the node is gone", || !process::is_alive(pid));
}

/// Whether every group has all its buckets on different nodes.
fn is_sound(status: &TableStatus) -> bool {
    status.groups.iter().all(|group| {
        let seats: Vec<_> = group.seats.iter().flatten().collect();
        let nodes: std::collections::BTreeSet<_> = seats.iter().map(|seat| &seat.node).collect();
        let has_parity = group.seats.last().is_some_and(Option::is_some);
        nodes.len() == seats.len() && seats.iter().all(|seat| seat.is_complete) && has_parity
    })
}

#[test]
fn four_and_one_survives_one_node_after_the_other() {
    let mut nodes = start(6, "4+1");
    let table = open(&nodes);
    let failing = members(&status(&nodes), false)[0];
    let acknowledged = under_load(&table, || {
        kill(&mut nodes, failing);
        let reader = open(&nodes);
        let began = Instant::now();
        (0..KEYS).step_by(7).for_each(|i| assert!(reader.get(key(i)).unwrap().is_some()));
        assert!(began.elapsed().as_secs() < RECOVERED_S, "reads took {:?}", began.elapsed());
        until("the group is sound", || is_sound(&status(&nodes)));
    });
    audit(&table, &acknowledged);
    let failing = members(&status(&nodes), true)[0];
    let acknowledged = under_load(&table, || {
        kill(&mut nodes, failing);
        until("what was there is there", || (0..KEYS).step_by(70).all(|i| open(&nodes).get(key(i)).is_ok()));
    });
    audit(&open(&nodes), &acknowledged);
}

#[test]
fn two_and_two_survives_any_two_nodes_at_once() {
    let mut nodes = start(5, "2+2");
    let table = open(&nodes);
    let said = nodes.run(&["table", "status", "events"]);
    assert!(said.is_done().ends_with("parity 2+2: any two nodes may fail\n"), "{}", said.out);
    let (data, parity) = (members(&status(&nodes), false), members(&status(&nodes), true));
    let acknowledged = under_load(&table, || {
        kill(&mut nodes, data[0]);
        kill(&mut nodes, parity[0]);
        let reader = open(&nodes);
        (0..KEYS).step_by(7).for_each(|i| assert!(reader.get(key(i)).unwrap().is_some()));
    });
    audit(&open(&nodes), &acknowledged);
    // They return without records, and get buckets again.
    nodes.begin(data[0]);
    nodes.begin(parity[0]);
    until("the groups are sound", || is_sound(&status(&nodes)));
    audit(&open(&nodes), &acknowledged);
}

#[test]
fn a_node_that_was_frozen_serves_nothing_old() {
    let nodes = start(4, "2+1");
    let table = open(&nodes);
    let frozen = members(&status(&nodes), false)[0];
    signal(nodes.pids[frozen], "-STOP");
    let acknowledged = under_load(&table, || {
        until("others serve its keys", || (0..KEYS).step_by(70).all(|i| table.get(key(i)).is_ok()));
    });
    signal(nodes.pids[frozen], "-CONT");
    audit(&table, &acknowledged);
    audit(&open(&nodes), &acknowledged);
    until("the groups are sound", || is_sound(&status(&nodes)));
    audit(&open(&nodes), &acknowledged);
}

#[test]
fn buckets_move_and_merge_and_nodes_that_stop_hand_them_over() {
    let mut nodes = start(5, "2+1");
    let table = open(&nodes);
    let acknowledged = under_load(&table, || {
        nodes.run(&["table", "split", "events", "P"]).is_done();
        nodes.run(&["table", "move", "events", "P", "n4"]).is_done();
        nodes.run(&["table", "merge", "events", "P"]).is_done();
        // The second node is not the registrar's.
        terminate(&nodes.running[1]);
        nodes.running[1].wait().unwrap();
        (0..KEYS).step_by(70).for_each(|i| assert!(open(&nodes).get(key(i)).unwrap().is_some()));
    });
    audit(&open(&nodes), &acknowledged);
    assert_eq!(status(&nodes).missing, Vec::<String>::new());
    nodes.begin(1);
    until("the groups are sound", || is_sound(&status(&nodes)));
    audit(&open(&nodes), &acknowledged);
}

#[test]
fn loaded_records_survive_a_node() {
    let mut nodes = Nodes::start(4);
    nodes.place.shell("$T gen 20k records && $T sort records -o sorted --record 100 --by 0:10 -q").is_done();
    nodes.run(&["table", "create", "events", "--capacity", "3k", "--parity", "2+1"]).is_done();
    nodes.run(&["table", "load", "events", "records", "--record", "100", "--by", "0:10"]).is_done();
    until("the groups are sound", || is_sound(&status(&nodes)));
    let failing = members(&status(&nodes), false)[0];
    kill(&mut nodes, failing);
    nodes.run(&["table", "dump", "events", "dump", "-q"]).is_done();
    assert_eq!(nodes.place.read("dump"), nodes.place.read("sorted"));
}

#[test]
fn what_cannot_be_is_refused() {
    let nodes = Nodes::start(2);
    let create = |parity: &str| nodes.run(&["table", "create", "events", "--parity", parity]);
    create("4+1").is_refused(&["parity 4+1 needs 5 nodes", "2 can be reached"]);
    create("4+3").is_refused(&["write M+K, such as 4+1"]);
    create("1+1").is_done();
    nodes.run(&["table", "drop", "events"]).is_done();
    create("1+1").is_done();
    nodes.run(&["table", "put", "events", "a", "1"]).is_done();
    assert_eq!(nodes.run(&["table", "get", "events", "a"]).is_done(), "a\t1\n");
    nodes.run(&["table", "split", "events", "b"]).is_done();
    nodes.run(&["table", "put", "events", "c", "2"]).is_done();
    assert_eq!(nodes.run(&["table", "range", "events"]).is_done(), "a\t1\nc\t2\n");
}
