//! Tables with parity on real nodes: they are killed and frozen while records change.
//!
//! Invariant: every record that was acknowledged is there with its latest value, whichever k nodes fail; and who was
//! frozen serves nothing old.
#![allow(clippy::disallowed_methods)] // Whoever uses the command opens files by other means than ours.

mod support;

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use support::nodes::{Nodes, terminate};
use support::tables::{KEYS, Owner, audit, is_sound, key, members, open_as, under_load, until_it_fails};
use support::{Outcome, until};
use thalweg::table::Variant;
use thalweg_api::TableStatus;
use thalweg_io::process;

/// Requests for lost records are answered by then.
const RECOVERED_S: u64 = 5;

impl Owner for Nodes {
    fn run(&self, args: &[&str]) -> Outcome {
        Nodes::run(self, args)
    }

    fn identity(&self) -> PathBuf {
        self.place.0.join("own")
    }
}

/// Nodes with the table.
fn start(count: usize, parity: &str) -> Nodes {
    let nodes = Nodes::start(count);
    nodes.create(&["--parity", parity]);
    nodes
}

/// The place of a node among the nodes.
fn at(node: &str) -> usize {
    node[1..].parse::<usize>().unwrap() - 1
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Kills a node, and returns when nobody listens there any more: whoever reaps it may take seconds.
fn kill(nodes: &mut Nodes, node: &str) {
    let node = at(node);
    nodes.running[node].kill().unwrap();
    nodes.running[node].wait().unwrap();
    signal(nodes.pids[node], "-KILL");
    let port = nodes.ports[node];
    until("the node is gone", || TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn four_and_one_survives_one_node_after_the_other() {
    let mut nodes = start(6, "4+1");
    let table = nodes.open();
    let failing = &members(&nodes.table_status(), false)[0];
    let acknowledged = under_load(&table, || {
        kill(&mut nodes, failing);
        let reader = nodes.open();
        let began = Instant::now();
        (0..KEYS).step_by(7).for_each(|i| assert!(reader.get(key(i)).unwrap().is_some()));
        assert!(began.elapsed().as_secs() < RECOVERED_S, "reads took {:?}", began.elapsed());
        until("the group is sound", || is_sound(&nodes.table_status()));
    });
    audit(&table, &acknowledged);
    let failing = &members(&nodes.table_status(), true)[0];
    let acknowledged = under_load(&table, || {
        kill(&mut nodes, failing);
        until("what was there is there", || (0..KEYS).step_by(70).all(|i| nodes.open().get(key(i)).is_ok()));
    });
    audit(&nodes.open(), &acknowledged);
}

/// What went wrong: for over a second after a failure the status said that any node may fail, and a script that believed
/// it lost keys.
#[test]
fn a_status_says_that_nodes_may_fail_only_if_they_may() {
    let mut nodes = start(4, "2+1");
    let status = ["table", "status", "events"];
    let wait = |nodes: &Nodes, seconds: &str| nodes.run(&[&status[..], &["--wait-safe", seconds]].concat());
    let safe = "parity 2+1: any node may fail, but only one at a time\n";
    assert!(wait(&nodes, "20").is_done().ends_with(safe));
    kill(&mut nodes, "n2");
    until("the status says that another node may fail", || nodes.run(&status).out.contains("may fail"));
    kill(&mut nodes, "n3");
    assert_eq!(nodes.open().count(.., None).unwrap(), u64::from(KEYS));
    // Two nodes are too few for 2+1.
    let short = wait(&nodes, "1");
    assert_eq!((short.status, short.out.contains("may fail")), (Some(1), false), "{short:?}");
    nodes.begin(at("n2"));
    assert!(wait(&nodes, "20").is_done().ends_with(safe));
    assert_eq!(nodes.open().count(.., None).unwrap(), u64::from(KEYS));
    nodes.run(&["table", "create", "plain"]).is_done();
    nodes.run(&["table", "status", "plain", "--wait-safe", "1"]).is_refused(&["'plain' has no parity"]);
}

#[test]
fn two_and_two_survives_any_two_nodes_at_once() {
    let mut nodes = start(5, "2+2");
    let table = nodes.open();
    let said = nodes.run(&["table", "status", "events", "--wait-safe", "20"]);
    assert!(said.is_done().ends_with("parity 2+2: any two nodes may fail\n"), "{}", said.out);
    let (data, parity) = (members(&nodes.table_status(), false), members(&nodes.table_status(), true));
    let acknowledged = under_load(&table, || {
        kill(&mut nodes, &data[0]);
        kill(&mut nodes, &parity[0]);
        let reader = nodes.open();
        (0..KEYS).step_by(7).for_each(|i| assert!(reader.get(key(i)).unwrap().is_some()));
    });
    audit(&nodes.open(), &acknowledged);
    // They return without records, and get buckets again.
    nodes.begin(at(&data[0]));
    nodes.begin(at(&parity[0]));
    until("the groups are sound", || is_sound(&nodes.table_status()));
    audit(&nodes.open(), &acknowledged);
}

#[test]
fn a_node_that_was_frozen_serves_nothing_old() {
    let nodes = start(4, "2+1");
    let table = nodes.open();
    let frozen = at(&members(&nodes.table_status(), false)[0]);
    signal(nodes.pids[frozen], "-STOP");
    let acknowledged = under_load(&table, || {
        until("others serve its keys", || (0..KEYS).step_by(70).all(|i| table.get(key(i)).is_ok()));
    });
    signal(nodes.pids[frozen], "-CONT");
    audit(&table, &acknowledged);
    audit(&nodes.open(), &acknowledged);
    until("the groups are sound", || is_sound(&nodes.table_status()));
    audit(&nodes.open(), &acknowledged);
}

#[test]
fn buckets_move_and_merge_and_nodes_that_stop_hand_them_over() {
    let mut nodes = start(5, "2+1");
    let table = nodes.open();
    let acknowledged = under_load(&table, || {
        nodes.run(&["table", "split", "events", "P"]).is_done();
        nodes.run(&["table", "move", "events", "P", "n4"]).is_done();
        nodes.run(&["table", "merge", "events", "P"]).is_done();
        // The second node is not the registrar's.
        terminate(&nodes.running[1]);
        nodes.running[1].wait().unwrap();
        (0..KEYS).step_by(70).for_each(|i| assert!(nodes.open().get(key(i)).unwrap().is_some()));
    });
    audit(&nodes.open(), &acknowledged);
    assert_eq!(nodes.table_status().missing, Vec::<String>::new());
    nodes.begin(1);
    until("the groups are sound", || is_sound(&nodes.table_status()));
    audit(&nodes.open(), &acknowledged);
}

/// Stops these nodes one after the other, and then starts all again.
fn stop_and_start(nodes: &mut Nodes, order: &[usize]) {
    for node in order {
        terminate(&nodes.running[*node]);
        nodes.running[*node].wait().unwrap();
    }
    nodes.running.clear();
    nodes.pids.clear();
    (0..order.len()).for_each(|node| nodes.begin(node));
}

#[test]
fn all_nodes_that_are_stopped_return_with_every_record() {
    // The registrar's node is the first to stop, or the last.
    for (parity, order) in [("2+1", [0, 1, 2, 3]), ("1+2", [3, 1, 2, 0])] {
        let mut nodes = start(order.len(), parity);
        let table = nodes.open();
        let acknowledged = until_it_fails(&table, || stop_and_start(&mut nodes, &order));
        assert!(acknowledged.len() > 100, "{} changes before the nodes had stopped", acknowledged.len());
        until("every record is there", || nodes.open().count(.., None).is_ok());
        audit(&nodes.open(), &acknowledged);
        // The parity is that of the records which have returned.
        until("the groups are sound", || is_sound(&nodes.table_status()));
        let status = nodes.table_status();
        let mut failing = [false, true].into_iter().flat_map(|is_parity| members(&status, is_parity));
        kill(&mut nodes, &failing.next().unwrap());
        audit(&nodes.open(), &acknowledged);
        let dumps = (1..=order.len()).map(|i| nodes.place.0.join(format!("own/hosts/n{i}/tables")));
        let files: usize = dumps.map(|dumps| std::fs::read_dir(dumps).map_or(0, |files| files.count())).sum();
        assert_eq!(files, 0, "files of buckets are left");
    }
}

#[test]
fn an_index_leads_to_buckets_that_were_recovered() {
    let mut nodes = Nodes::start(5);
    nodes.create(&["--parity", "2+1", "--index"]);
    let table = open_as(&nodes.identity(), Variant::Indexed);
    // The home has the root of the index.
    let failing = |status: &TableStatus| {
        let seats = status.groups.iter().flat_map(|group| group.seats.iter().flatten());
        let mut data = seats.filter(|seat| !seat.is_parity).map(|seat| seat.node.clone());
        data.find(|node| node != "n1" && *node != status.table.home)
    };
    until("another node than the home has a bucket", || failing(&nodes.table_status()).is_some());
    let acknowledged = under_load(&table, || {
        let failing = failing(&nodes.table_status()).unwrap();
        kill(&mut nodes, &failing);
        until("the groups are sound", || is_sound(&nodes.table_status()));
    });
    let pages =
        |nodes: &Nodes| nodes.table_status().nodes.iter().flat_map(|share| &share.index_pages).sum::<u64>();
    assert!(pages(&nodes) > 0);
    audit(&open_as(&nodes.identity(), Variant::Indexed), &acknowledged);
    // The home, which has the root, is lost.
    let home = nodes.table_status().table.home;
    if home != "n1" && process::is_alive(nodes.pids[at(&home)]) {
        kill(&mut nodes, &home);
    }
    audit(&open_as(&nodes.identity(), Variant::Indexed), &acknowledged);
    nodes.run(&["table", "get", "events", &"00".repeat(4), "--hex", "--variant", "s"]).is_done();
}

#[test]
fn loaded_records_survive_a_node() {
    let mut nodes = Nodes::start(4);
    nodes.place.shell("$T gen 20k records && $T sort records -o sorted --record 100 --by 0:10 -q").is_done();
    nodes.run(&["table", "create", "events", "--capacity", "3k", "--parity", "2+1"]).is_done();
    nodes.run(&["table", "load", "events", "records", "--record", "100", "--by", "0:10"]).is_done();
    until("the groups are sound", || is_sound(&nodes.table_status()));
    let failing = &members(&nodes.table_status(), false)[0];
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
