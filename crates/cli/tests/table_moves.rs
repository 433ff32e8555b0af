//! Buckets of tables that are split, merged and moved, seen from outside: real daemons on loopback ports.
//!
//! Invariant: whichever node has a record, it is there, once, in order, also while buckets change hands; nodes that are
//! stopped lose nothing.
#![allow(clippy::disallowed_methods)] // Whoever uses the command opens files by other means than ours.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use support::nodes::{Nodes, terminate};
use support::{until, until_within};
use thalweg::table::{Answer, Interval, Operation, Table, Tables, text};
use thalweg_api::{TableStatus, from_json};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn status(nodes: &Nodes) -> TableStatus {
    from_json(&nodes.run(&["table", "status", "events", "--json"]).out).unwrap()
}

/// Each bucket's first key and node, in order.
fn buckets(nodes: &Nodes) -> Vec<(String, String)> {
    let of = |share: thalweg_api::TableShare| {
        let node = share.node;
        let first = |from: &str| text::show(&text::parse_hex(from).unwrap());
        share.buckets.into_iter().map(|bucket| (first(&bucket.from), node.clone())).collect::<Vec<_>>()
    };
    let mut buckets: Vec<_> = status(nodes).nodes.into_iter().flat_map(of).collect();
    buckets.sort();
    buckets
}

fn open(nodes: &Nodes) -> Table {
    Table::open(&Tables::load(&nodes.place.0.join("own"), None).unwrap(), "events").unwrap()
}

fn key(i: u32) -> Vec<u8> {
    format!("{i:05}").into_bytes()
}

fn records(count: u32) -> Model {
    (0..count).map(|i| (key(i), i.to_string().into_bytes())).collect()
}

/// Submits all, and waits for all answers.
fn all(table: &Table, operations: impl Iterator<Item = Operation>) -> Vec<Answer> {
    let tickets: Vec<_> = operations.map(|operation| table.submit(operation).unwrap()).collect();
    tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect()
}

fn put(table: &Table, model: &Model) {
    let insert = |(key, value): (&Vec<u8>, &Vec<u8>)| Operation::Insert {
        key: key[..].into(),
        value: value[..].into(),
    };
    let mut records: Vec<_> = model.iter().collect();
    // Not in the order of keys, as that would fill one bucket after the other.
    records.sort_by_key(|(key, _)| key.iter().rev().copied().collect::<Vec<u8>>());
    assert!(all(table, records.into_iter().map(insert)).iter().all(|answer| *answer == Answer::Done));
}

/// Whether a new client reads exactly these records.
fn has_exactly(nodes: &Nodes, model: &Model) {
    let found: Model = open(nodes).range(Interval::all()).collect::<Result<_, _>>().unwrap();
    assert!(found == *model, "{} of {} records", found.len(), model.len());
}

#[test]
fn buckets_are_split_moved_and_merged_while_records_change() {
    let nodes = Nodes::start(3);
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    run(&["create", "events", "--capacity", "10k"]).is_done();
    let mut model = records(6_000);
    put(&open(&nodes), &model);
    let is_over = AtomicBool::new(false);
    let changed = std::thread::scope(|scope| {
        // One counts up the value of each key in turn; each change is made once, however often it is sent.
        let counting = scope.spawn(|| {
            let table = open(&nodes);
            let mut model = model.clone();
            let mut rounds = 0u64;
            while !is_over.load(Ordering::Relaxed) || rounds == 0 {
                rounds += 1;
                let sets = model.iter().map(|(key, value)| Operation::CompareAndSet {
                    key: key[..].into(),
                    expected: Some(value[..].into()),
                    value: Some(rounds.to_string().into_bytes().into()),
                });
                assert!(all(&table, sets).iter().all(|answer| *answer == Answer::Done), "in round {rounds}");
                model.values_mut().for_each(|value| *value = rounds.to_string().into_bytes());
            }
            model
        });
        let reading = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let keys: Vec<Vec<u8>> =
                    open(&nodes).range(Interval::all()).keys_only().map(|record| record.unwrap().0).collect();
                assert!(keys.iter().eq(model.keys()), "{} of {} keys", keys.len(), model.len());
            }
        });
        for round in 0..3 {
            run(&["split", "events", "02000", "n2"]).is_done();
            run(&["split", "events", "04000", "n3"]).is_done();
            run(&["split", "events", "04000", "n3"]).is_done();
            let expected = [("", "n1"), ("02000", "n2"), ("04000", "n3")];
            assert_eq!(buckets(&nodes), expected.map(|(from, node)| (from.to_string(), node.to_string())));
            run(&["move", "events", "04500", "n1"]).is_done();
            run(&["move", "events", "03999", "n3"]).is_done();
            let expected = [("", "n1"), ("02000", "n3"), ("04000", "n1")];
            assert_eq!(buckets(&nodes), expected.map(|(from, node)| (from.to_string(), node.to_string())));
            run(&["merge", "events", "04000"]).is_done();
            run(&["merge", "events", "02000"]).is_done();
            assert_eq!(buckets(&nodes), [(String::new(), "n1".to_string())], "in round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
        reading.join().unwrap();
        counting.join().unwrap()
    });
    model = changed;
    has_exactly(&nodes, &model);

    run(&["split", "events", "02000", "n1"]).is_refused(&["n1 has the bucket", "another node"]);
    run(&["split", "events", "02000", "n9"]).is_refused(&["n9"]);
    run(&["move", "events", "02000"]).is_refused(&["NODE"]);
    run(&["merge", "events", ""]).is_refused(&["not empty"]);
}

#[test]
fn buckets_with_few_records_are_merged_unless_a_user_split_them() {
    let nodes = Nodes::start(3);
    nodes.run(&["table", "create", "events", "--capacity", "200"]).is_done();
    let (table, mut model) = (open(&nodes), records(1_000));
    put(&table, &model);
    until("the table is split", || buckets(&nodes).len() > 4);
    nodes.run(&["table", "split", "events", "00900"]).is_done();
    model.retain(|key, _| key.ends_with(b"00"));
    let gone = (0..1_000).map(key).filter(|key| !model.contains_key(key));
    all(&table, gone.map(|key| Operation::Delete { key: key.into() }));
    // A bucket is merged ten seconds after it last changed.
    until_within(120.0, "the buckets are merged", || buckets(&nodes).len() <= 2);
    assert!(buckets(&nodes).iter().any(|(from, _)| from == "00900"), "{:?}", buckets(&nodes));
    has_exactly(&nodes, &model);
    // A client whose image is of before the merges.
    let got = all(&table, model.keys().map(|key| Operation::Get { key: key[..].into() }));
    assert!(got.into_iter().eq(model.values().map(|value| Answer::Value(Some(value[..].into())))));
}

/// Stops a node as a user would, and waits until it has ended.
fn stop(nodes: &mut Nodes, node: usize) {
    terminate(&nodes.running[node]);
    nodes.running[node].wait().unwrap();
}

/// Starts the node that was stopped last again.
fn start_again(nodes: &mut Nodes, node: usize) {
    nodes.begin(node);
    let (child, pid) = (nodes.running.pop().unwrap(), nodes.pids.pop().unwrap());
    (nodes.running[node], nodes.pids[node]) = (child, pid);
}

/// What went wrong: a node removed what it had written of a table that the registrar did not list, as after the
/// registrar's list was lost, or was put back from a backup.
#[test]
fn records_that_the_list_of_tables_lacks_are_kept() {
    let mut nodes = Nodes::start(2);
    let run = |nodes: &Nodes, args: &[&str]| nodes.run(&[&["table"], args].concat());
    run(&nodes, &["create", "events"]).is_done();
    run(&nodes, &["put", "events", "a", "1", "z", "9"]).is_done();
    run(&nodes, &["split", "events", "m", "n2"]).is_done();
    // The second node gets the other part too, and writes both.
    [0, 1].into_iter().for_each(|node| stop(&mut nodes, node));
    let written = nodes.place.0.join("own/hosts/n2/tables");
    let files = || std::fs::read_dir(&written).unwrap().count();
    let before = files();
    assert!(before > 0);
    let list = nodes.place.0.join("own/hosts/n1/tables.json");
    let kept = std::fs::read(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    [0, 1].into_iter().for_each(|node| start_again(&mut nodes, node));
    let mut told = BufReader::new(nodes.running[1].stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("has records of a table that the registrar does not list") {
        line.clear();
        assert_ne!(told.read_line(&mut line).unwrap(), 0, "the node ended without a word");
    }
    assert_eq!(files(), before);
    [1, 0].into_iter().for_each(|node| stop(&mut nodes, node));
    std::fs::write(&list, kept).unwrap();
    [0, 1].into_iter().for_each(|node| start_again(&mut nodes, node));
    until("all records are back", || run(&nodes, &["range", "events"]).out == "a\t1\nz\t9\n");
    // A table that is dropped while a node is away leaves nothing on it.
    stop(&mut nodes, 1);
    run(&nodes, &["put", "events", "b", "2"]).is_done();
    let dropped = run(&nodes, &["drop", "events"]);
    assert!(dropped.status == Some(0) || dropped.err.contains("is not dropped yet"), "{dropped:?}");
    start_again(&mut nodes, 1);
    until("nothing is left", || files() == 0);
}

/// What went wrong: a new registrar had no tables, so their names were free again, and Redis clients saw two sets of keys;
/// and a host with the only copy of records was dropped without a word.
#[test]
fn hosts_do_not_leave_or_become_registrar_while_tables_need_them_as_they_are() {
    let mut nodes = Nodes::start(3);
    let run = |nodes: &Nodes, args: &[&str]| nodes.run(args);
    run(&nodes, &["table", "create", "events"]).is_done();
    run(&nodes, &["table", "put", "events", "a", "1", "z", "9"]).is_done();
    run(&nodes, &["table", "split", "events", "m", "n3"]).is_done();
    let why = "n1 has the list of 1 table, and n4 would not know it; drop the tables first";
    run(&nodes, &["cluster", "add", "n4=127.0.0.1:1@registrar"]).is_refused(&[why]);
    run(&nodes, &["cluster", "drop", "n1"]).is_refused(&["n2 would not know it"]);
    run(&nodes, &["cluster", "drop", "n3"])
        .is_refused(&["n3 has records of table 'events'; stop its node first"]);
    run(&nodes, &["cluster", "add", "n4=127.0.0.1:1"]).is_done();
    stop(&mut nodes, 2);
    run(&nodes, &["cluster", "drop", "n3", "n4"]).is_done();
    assert_eq!(run(&nodes, &["table", "range", "events"]).is_done(), "a\t1\nz\t9\n");
    run(&nodes, &["table", "drop", "events"]).is_done();
    run(&nodes, &["cluster", "add", "n5=127.0.0.1:1@registrar"]).is_done();
}

/// What went wrong: the records were lost, and the status was 0.
#[test]
fn a_node_that_cannot_write_its_records_ends_with_an_error() {
    let mut nodes = Nodes::start(1);
    nodes.run(&["table", "create", "events"]).is_done();
    nodes.run(&["table", "put", "events", "a", "1"]).is_done();
    // Where the directory for them would be is a file.
    std::fs::write(nodes.place.0.join("own/hosts/n1/tables"), b"").unwrap();
    terminate(&nodes.running[0]);
    assert_eq!(nodes.running[0].wait().unwrap().code(), Some(2));
    let mut told = String::new();
    nodes.running[0].stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("records of tables are lost, because they could not be written: "), "{told}");
}

#[test]
fn nodes_that_are_stopped_lose_nothing() {
    let mut nodes = Nodes::start(3);
    nodes.run(&["table", "create", "events", "--capacity", "100"]).is_done();
    let model = records(5_000);
    put(&open(&nodes), &model);
    until("the table is on all nodes", || {
        status(&nodes).nodes.iter().filter(|share| !share.buckets.is_empty()).count() == 3
    });

    stop(&mut nodes, 1);
    stop(&mut nodes, 2);
    has_exactly(&nodes, &model);
    assert!(buckets(&nodes).iter().all(|(_, node)| node == "n1"));

    // No other node is there, so the buckets go to files.
    stop(&mut nodes, 0);
    let dumps = nodes.place.0.join("own/hosts/n1/tables");
    let files = |directory: &Path| std::fs::read_dir(directory).map_or(0, |files| files.count());
    assert!(files(&dumps) > 1);
    let copies = nodes.place.0.join("copies");
    std::fs::create_dir(&copies).unwrap();
    for file in std::fs::read_dir(&dumps).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copies.join(file.file_name())).unwrap();
    }
    start_again(&mut nodes, 0);
    until("the buckets are back", || status(&nodes).missing.is_empty());
    has_exactly(&nodes, &model);
    assert_eq!(files(&dumps), 0);

    // The files are of before these changes, so they must not return.
    start_again(&mut nodes, 1);
    until("the other node answers", || status(&nodes).nodes.len() == 2);
    nodes.run(&["table", "put", "events", "00000", "new"]).is_done();
    // Until it knows the other node, it would keep its buckets in new files, which the copies would replace.
    until("n1 knows n2", || nodes.run(&["table", "move", "events", "00000", "n2"]).status == Some(0));
    stop(&mut nodes, 0);
    assert_eq!(files(&dumps), 0, "n2 has all buckets");
    for file in std::fs::read_dir(&copies).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dumps.join(file.file_name())).unwrap();
    }
    start_again(&mut nodes, 0);
    until("the files are judged", || files(&dumps) == 0);
    assert_eq!(nodes.run(&["table", "get", "events", "00000"]).is_done(), "00000\tnew\n");
    assert!(buckets(&nodes).iter().all(|(_, node)| node == "n2"), "{:?}", buckets(&nodes));
}

#[test]
fn a_node_keeps_to_its_memory_and_says_when_it_is_full() {
    let mut nodes = Nodes::start(1);
    stop(&mut nodes, 0);
    let (child, pid) = nodes.spawn(&["--identity", "own/hosts/n1", "--memory", "4MiB"]);
    (nodes.running[0], nodes.pids[0]) = (child, pid);
    nodes.run(&["table", "create", "events"]).is_done();
    let table = open(&nodes);
    let value = "v".repeat(1000);
    let mut inserted = 0;
    let why = loop {
        match table.upsert(key(inserted), value.as_bytes()) {
            Ok(()) => inserted += 1,
            Err(why) => break why.to_string(),
        }
    };
    assert!(why.contains("the memory for tables on n1 is full"), "{why}");
    assert!((2_000..4_000).contains(&inserted), "{inserted} records");
    let share = &status(&nodes).nodes[0];
    assert!(share.memory_bytes == 4 << 20 && share.memory_used_bytes <= 4 << 20, "{share:?}");
    assert_eq!(table.count(Interval::all(), None).unwrap(), u64::from(inserted));
    // What is deleted makes room again.
    all(&table, (0..100).map(|i| Operation::Delete { key: key(i).into() }));
    table.upsert(b"x", value.as_bytes()).unwrap();
}
