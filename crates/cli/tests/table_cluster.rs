//! Tables on the nodes of a cluster, seen from outside: real daemons on loopback ports.
//!
//! Invariant: whatever splits while it is used, every record that was acknowledged is there, once, in order; and what
//! is lost with a node is said.
#![allow(clippy::disallowed_methods)] // Users of the command open files in other ways.

mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::nodes::Nodes;
use support::resp::{Client, scan_while_others_change};
use support::{free_ports, skipped, until};
use thalweg::table::{Answer, ClusterOptions, Condition, Error, Operation, Table, Tables, Variant};
use thalweg_api::{Check, TableShare, TableStatus, from_json};
use thalweg_base::rng::Rng;
use thalweg_io::process;

fn status(nodes: &Nodes, name: &str) -> TableStatus {
    from_json(&nodes.run(&["table", "status", name, "--json"]).out).unwrap()
}

fn open(nodes: &Nodes, name: &str) -> Table {
    Table::open(&Tables::load(&nodes.place.0.join("own"), None).unwrap(), name).unwrap()
}

/// Submits all, and waits for all answers.
fn all(table: &Table, operations: impl Iterator<Item = Operation>) -> Vec<Answer> {
    let tickets: Vec<_> = operations.map(|operation| table.submit(operation).unwrap()).collect();
    tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect()
}

#[test]
fn records_are_put_found_counted_and_removed() {
    let nodes = Nodes::start(3);
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    assert!(
        run(&["create", "events", "--capacity", "100"])
            .is_done()
            .starts_with("events: buckets of up to 100 records")
    );
    run(&["create", "events"]).is_refused(&["there is a table 'events' already"]);
    run(&["put", "events", "a", "1", "b", r"two\x00\\", "c", "3"]).is_done();
    assert_eq!(run(&["get", "events", "a", "b"]).is_done(), "a\t1\nb\ttwo\\x00\\\\\n");
    assert_eq!(run(&["get", "events", "62", "--hex"]).is_done(), "62\t74776f005c\n");
    let missing = run(&["get", "events", "x"]);
    assert_eq!((missing.status, &*missing.out), (Some(1), ""));
    run(&["update", "events", "a", "one"]).is_done();
    assert_eq!(run(&["update", "events", "x", "1"]).status, Some(1));
    assert_eq!(run(&["range", "events", "a..c"]).is_done(), "a\tone\nb\ttwo\\x00\\\\\n");
    assert_eq!(run(&["range", "events", "--descending", "--first", "2", "--keys-only"]).is_done(), "c\nb\n");
    assert_eq!(run(&["find", "events", "--where", "prefix:o"]).is_done(), "a\tone\n");
    assert_eq!(run(&["count", "events"]).is_done(), "3\n");
    assert_eq!(run(&["count", "events", "b..", "--where", "contains:o"]).is_done(), "1\n");
    assert_eq!(run(&["delete", "events", "a", "b"]).is_done(), "");
    assert_eq!(run(&["count", "events"]).is_done(), "1\n");
    assert!(run(&["list"]).is_done().contains("events"));
    assert!(run(&["status", "events"]).is_done().contains("there are no copies"));
    run(&["put", "events", &"k".repeat(3000), "v"]).is_refused(&["2047 bytes"]);
    run(&["drop", "events"]).is_done();
    run(&["get", "events", "c"]).is_refused(&["there is no table 'events'"]);
    let audit = std::fs::read_to_string(nodes.place.0.join("own/hosts/n1/audit.log")).unwrap();
    for what in ["table create", "table drop"] {
        assert!(audit.contains(what), "{what} is not in {audit}");
    }
}

#[test]
fn a_table_splits_over_the_nodes_while_it_is_used_and_has_every_record() {
    const RECORDS: u64 = 20_000;
    let nodes = Nodes::start(3);
    nodes.run(&["table", "create", "events", "--capacity", "500"]).is_done();
    let table = open(&nodes, "events");
    let mut rng = Rng::new(22);
    let mut model = BTreeMap::new();
    for _ in 0..RECORDS {
        let key = format!("{:016x}", rng.next_u64()).into_bytes();
        model.insert(key, rng.next_u64().to_string().into_bytes());
    }
    let inserted = all(
        &table,
        model.iter().map(|(key, value)| Operation::Insert { key: key[..].into(), value: value[..].into() }),
    );
    assert!(inserted.iter().all(|answer| *answer == Answer::Done));
    let split = || status(&nodes, "events").nodes.iter().map(|share| share.buckets.len()).collect::<Vec<_>>();
    until("the table is on all nodes", || split().iter().all(|buckets| *buckets > 1));

    // A client that knows nothing of the splits, and one whose image is of before them.
    for table in [open(&nodes, "events"), table] {
        let got = all(&table, model.keys().map(|key| Operation::Get { key: key[..].into() }));
        let values = model.values().map(|value| Answer::Value(Some(value[..].into())));
        assert!(got.into_iter().eq(values));
        let records = table.range(..).collect::<Result<Vec<_>, _>>().unwrap();
        assert!(records.iter().map(|(key, value)| (key, value)).eq(&model));
        let backwards = table.range(..).descending().collect::<Result<Vec<_>, _>>().unwrap();
        assert!(backwards.iter().map(|(key, value)| (key, value)).eq(model.iter().rev()));
        assert_eq!(table.count(.., None).unwrap(), model.len() as u64);
        let sevens = Condition::parse(b"contains:77").unwrap();
        let found = table.find(.., sevens).collect::<Result<Vec<_>, _>>().unwrap();
        let expected = model.iter().filter(|(_, value)| value.windows(2).any(|two| two == b"77"));
        assert!(found.iter().map(|(key, value)| (key, value)).eq(expected));
    }
    // Nodes are asked one after the other, so what is on its way meanwhile may not be counted.
    until("nothing moves", || status(&nodes, "events").records == model.len() as u64);
}

#[test]
fn every_variant_finds_every_record_and_an_index_has_pages_on_the_nodes() {
    const RECORDS: u32 = 12_000;
    let nodes = Nodes::start(3);
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    run(&["create", "plain"]).is_done();
    run(&["get", "plain", "k", "--variant", "s"]).is_refused(&["'plain' has no index", "--index"]);
    run(&["create", "events", "--capacity", "100", "--index"]).is_done();
    let key = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes();
    let upsert = |i| Operation::Upsert { key: key(i)[..].into(), value: (*b"v").into() };
    all(&open(&nodes, "events"), (0..RECORDS).map(upsert));
    let buckets = |status: &TableStatus| status.nodes.iter().map(|share| share.buckets.len()).sum::<usize>();
    until("all buckets are split", || {
        let status = status(&nodes, "events");
        let mut all = status.nodes.iter().flat_map(|share| &share.buckets);
        status.records == u64::from(RECORDS) && all.all(|bucket| bucket.records <= 100 && !bucket.is_moving)
    });
    // More buckets than a page has entries.
    let found = status(&nodes, "events");
    let pages: Vec<u64> = found.nodes.iter().flat_map(|share| share.index_pages.clone()).collect();
    let levels = found.nodes.iter().map(|share| share.index_pages.len()).max();
    assert!(buckets(&found) > 100 && levels == Some(2) && pages.iter().sum::<u64>() > 2, "{found:?}");
    assert!(run(&["status", "events"]).is_done().contains(" pages on 2 levels\n"));
    for variant in ["n", "c", "cu", "s"] {
        let run = |args: &[&str]| run(&[args, &["--variant", variant]].concat());
        run(&["put", "events", "k", "1"]).is_done();
        run(&["update", "events", "k", "2"]).is_done();
        assert_eq!(run(&["get", "events", "k"]).is_done(), "k\t2\n");
        assert_eq!(run(&["range", "events", "k..k\\x00"]).is_done(), "k\t2\n");
        assert_eq!(run(&["count", "events"]).is_done(), format!("{}\n", RECORDS + 1));
        run(&["delete", "events", "k"]).is_done();
    }
    let tables = Tables::load(&nodes.place.0.join("own"), None).unwrap();
    let options = ClusterOptions { variant: Variant::Indexed, ..ClusterOptions::default() };
    let indexed = Table::open_with(&tables, "events", options).unwrap();
    let got = all(&indexed, (0..RECORDS).map(|i| Operation::Get { key: key(i)[..].into() }));
    assert!(got.iter().all(|answer| *answer == Answer::Value(Some((*b"v").into()))));
}

#[test]
fn ascending_keys_fill_their_buckets() {
    let nodes = Nodes::start(2);
    nodes.run(&["table", "create", "events", "--capacity", "500"]).is_done();
    let table = open(&nodes, "events");
    // One after the other, as from somebody who waits for each.
    for i in 0..5_000u32 {
        assert!(table.insert(i.to_be_bytes(), b"v").unwrap());
    }
    let full = |status: &TableStatus| {
        let buckets: Vec<u64> =
            status.nodes.iter().flat_map(|share| &share.buckets).map(|bucket| bucket.records).collect();
        5_000.0 / (buckets.len() as f64 * 500.0)
    };
    assert!(full(&status(&nodes, "events")) > 0.8, "{:?}", status(&nodes, "events"));
}

#[test]
fn what_is_lost_with_a_node_is_said_and_the_rest_goes_on() {
    let mut nodes = Nodes::start(3);
    nodes.run(&["table", "create", "events", "--capacity", "200"]).is_done();
    let table = open(&nodes, "events");
    let key = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes();
    all(&table, (0..5_000).map(|i| Operation::Upsert { key: key(i)[..].into(), value: (*b"v").into() }));
    let has_buckets = |share: &TableShare| !share.buckets.is_empty();
    let is_on_all = |status: TableStatus| status.nodes.iter().filter(|share| has_buckets(share)).count() == 3;
    until("the table is on all nodes", || is_on_all(status(&nodes, "events")));
    until("nothing moves", || {
        status(&nodes, "events").nodes.iter().all(|share| share.buckets.iter().all(|b| !b.is_moving))
    });

    let (mut guard, pid) = (nodes.running.remove(2), nodes.pids.remove(2));
    guard.kill().unwrap();
    guard.wait().unwrap();
    std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    until("the node is gone", || !process::is_alive(pid));
    let mut left = status(&nodes, "events");
    until("what is lost is said", || {
        left = status(&nodes, "events");
        !left.missing.is_empty() && left.unreachable.len() == 1 && left.records > 0
    });
    let lost = |key: &[u8]| {
        let within = |missing: &String| {
            let (low, high) = missing.split_once("..").unwrap();
            let bytes = |text| thalweg::table::text::parse(text).unwrap();
            bytes(low).as_slice() <= key && (high.is_empty() || key < bytes(high).as_slice())
        };
        left.missing.iter().any(within)
    };
    let again = open(&nodes, "events");
    let kept: Vec<u32> = (0..5_000).filter(|i| !lost(&key(*i))).collect();
    assert_eq!(kept.len() as u64, left.records);
    let got = all(&again, kept.iter().map(|i| Operation::Get { key: key(*i)[..].into() }));
    assert!(got.iter().all(|answer| *answer == Answer::Value(Some((*b"v").into()))));

    nodes.begin(2);
    let gone = (0..5_000).find(|i| lost(&key(*i))).unwrap();
    let why = open(&nodes, "events").get(key(gone)).unwrap_err();
    assert!(matches!(why, Error::Lost(_)), "{why}");
    nodes.run(&["table", "drop", "events"]).is_done();
}

/// A process that does nothing until this is dropped.
struct Frozen(u32);

fn signal(signal: &str, pid: u32) {
    Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
}

impl Frozen {
    fn new(pid: u32) -> Frozen {
        signal("-STOP", pid);
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

/// What went wrong: the error named the table's home, which answers, and not the node that does not. And it did not say
/// that the change may have been made.
#[test]
fn a_node_that_does_not_answer_is_named_and_a_change_there_is_uncertain() {
    let nodes = Nodes::start(3);
    let run = |args: &[&str]| nodes.run(&[&["table"], args].concat());
    run(&["create", "events"]).is_done();
    run(&["put", "events", "a", "1", "x", "1", "y", "1", "z", "1"]).is_done();
    run(&["split", "events", "m", "n2"]).is_done();
    run(&["get", "events", "x"]).is_done();
    let frozen = Frozen::new(nodes.pids[1]);
    let why = "n2 did not answer within ten seconds; n1 and n3 answered, without having the key";
    let (nodes, run) = (&nodes, &run);
    std::thread::scope(|scope| {
        for variant in ["n", "c"] {
            scope.spawn(move || run(&["get", "events", "x", "--variant", variant]).is_refused(&[why]));
        }
        let changes: [(&[&str], &str, &str); 5] = [
            (&["put", "events", "x", "2", "--variant", "n"], "'x': ", "get"),
            (&["update", "events", "z", "2"], "'z': ", "get"),
            (&["delete", "events", "a", "y", "--variant", "c"], "'y': ", "get"),
            (&["put", "events", "b", "1", "v", "1", "w", "1"], "'v' and 1 more: ", "get"),
            (&["merge", "events", "m"], "", "status"),
        ];
        for (args, key, shows) in changes {
            scope.spawn(move || {
                let failed = run(args);
                assert_eq!((failed.status, &*failed.out), (Some(3), ""), "{args:?}: {failed:?}");
                let begins = failed.err.starts_with(&format!("thalweg: {key}"));
                let ends = format!("; the change may have been made: thalweg table {shows} shows it\n");
                assert!(begins && failed.err.ends_with(&ends), "{args:?}: {failed:?}");
                assert!(
                    failed.err.contains("n2 ") && failed.err.lines().count() == 1,
                    "{args:?}: {failed:?}"
                );
            });
        }
        let library = open(nodes, "events");
        scope.spawn(move || {
            let why = library.upsert("z2", "1").unwrap_err();
            assert!(matches!(why, Error::Uncertain(_)), "{why}");
            assert!(!matches!(library.get("z2").unwrap_err(), Error::Uncertain(_)));
        });
    });
    drop(frozen);
    until("the node answers again", || run(&["get", "events", "x"]).status == Some(0));
    assert_eq!(run(&["get", "events", "b"]).is_done(), "b\t1\n");
}

/// Two nodes, with 10 and 20 MiB for tables, that serve Redis clients at these ports.
fn with_resp() -> (Nodes, Vec<u16>) {
    let ports = free_ports(2);
    let mut nodes = Nodes::made(&ports.iter().map(|port| format!("resp={port}")).collect::<Vec<_>>());
    for i in 1..=2 {
        let (child, pid) =
            nodes.spawn(&["--identity", &format!("own/hosts/n{i}"), "--memory", &format!("{i}0MiB")]);
        nodes.running.push(child);
        nodes.pids.push(pid);
    }
    (nodes, ports)
}

/// What went wrong: each thread of a node had cursors 1, 2, 3. That of another connection was taken for one's own, and a
/// scan ended after a third of the keys.
#[test]
fn a_scan_on_nodes_has_what_is_there_throughout() {
    let (_nodes, ports) = with_resp();
    let next = AtomicUsize::new(0);
    let port = || ports[next.fetch_add(1, Ordering::Relaxed) % 2];
    let connect = || Client::new(TcpStream::connect(("127.0.0.1", port())).unwrap());
    scan_while_others_change(connect);
    // A line may have words in quotes.
    let mut client = connect();
    let lines = br#"SET "two words" 'it\'s'
GET "two\x20words"
"#;
    client.0.get_mut().write_all(lines).unwrap();
    assert_eq!([client.reply(), client.reply()], [&b"+OK\r\n"[..], b"$4\r\nit's\r\n"]);
    assert_eq!(client.ask("INCR two"), ":1\r\n");
    client.ask("SET two -0");
    assert_eq!(client.ask("INCR two"), "-ERR");
}

/// What went wrong: INFO told of the memory of a server without records. TYPE and TTL told of tables that another node
/// had dropped, and no command worked on another kind of table in the place of one that had been used.
#[test]
fn a_redis_client_of_a_node_hears_of_its_memory_and_of_what_other_nodes_did() {
    let (_nodes, ports) = with_resp();
    let connect = |port: &u16| Client::new(TcpStream::connect(("127.0.0.1", *port)).unwrap());
    let [mut one, mut two] = [connect(&ports[0]), connect(&ports[1])];
    let used = |info: &str| -> u64 {
        let (_, rest) = info.split_once("used_memory:").unwrap();
        rest.lines().next().unwrap().parse().unwrap()
    };
    for (client, bytes) in [(&mut one, 10 << 20), (&mut two, 20 << 20)] {
        let maxmemory = format!("*2\r\n$9\r\nmaxmemory\r\n$8\r\n{bytes}\r\n");
        assert_eq!(client.ask("CONFIG GET maxmemory"), maxmemory);
        let info = client.ask("INFO");
        assert!(info.contains(&format!("\nmaxmemory:{bytes}\r\n")) && used(&info) == 0, "{info}");
    }

    let mut asks = |node: u8, line: &str, reply: &str| {
        let client = if node == 1 { &mut one } else { &mut two };
        assert_eq!(client.ask(line).trim_end(), reply, "{line}");
    };
    for (node, line, reply) in [
        (2, "TYPE it", "+none"),
        (1, "HSET it a 1", ":1"),
        (2, "TYPE it", "+hash"),
        (2, "HGET it a", "$1\r\n1"),
        (1, "DEL it", ":1"),
        (2, "TYPE it", "+none"),
        (2, "TTL it", ":-2"),
        (2, "EXISTS it", ":0"),
        (2, "EXPIRE it 9", ":0"),
        (1, "ZADD it 3 a 3 b", ":2"),
        (2, "TYPE it", "+zset"),
        (2, "TTL it", ":-1"),
        (2, "ZSCORE it b", "$1\r\n3"),
        (2, "HGET it a", "-WRONGTYPE"),
        (1, "DEL it", ":1"),
        (1, "ZADD it 4 c", ":1"),
        (2, "ZADD it 4 d", ":1"),
        (2, "ZADD it 5 e", "-ERR"),
        (2, "DEL it", ":1"),
        (2, "HSET it a 2", ":1"),
        (1, "HGET it a", "$1\r\n2"),
        (1, "SCAN 0 TYPE zset", "*2\r\n$1\r\n0\r\n*0"),
    ] {
        asks(node, line, reply);
    }

    let members: Vec<String> = (0..3000).map(|i| format!("0 m{i:04}")).collect();
    asks(1, &format!("ZADD many {}", members.join(" ")), ":3000");
    asks(2, "ZREMRANGEBYLEX many [m0001 (m2998", ":2997");
    asks(1, "ZCARD many", ":3");
    assert!(used(&one.ask("INFO")) + used(&two.ask("INFO")) > 0);
}

/// Records of a table, sorted, in the directory of the test.
fn sorted(nodes: &Nodes, records: &str) -> Vec<u8> {
    nodes.run(&["sort", records, "-o", "sorted", "--datamation", "-q"]).is_done();
    std::fs::read(nodes.place.0.join("sorted")).unwrap()
}

#[test]
fn a_loaded_table_is_dumped_as_it_was_sorted() {
    let nodes = Nodes::start(3);
    let run = |args: &[&str]| nodes.run(args);
    run(&["gen", "10k", "records", "-q"]).is_done();
    run(&["table", "create", "events", "--capacity", "700"]).is_done();
    let load = ["table", "load", "events", "records", "--record", "100", "--by", "0:10"];
    assert_eq!(run(&load).is_done(), "events: 10 000 records in 15 buckets on 3 nodes\n");
    let expected = sorted(&nodes, "records");
    let dumped = |name: &str| {
        run(&["table", "dump", name, "dump", "-q"]).is_done();
        std::fs::read(nodes.place.0.join("dump")).unwrap()
    };
    assert!(dumped("events") == expected);
    let mut piped = nodes.place.command(&["table", "dump", "events", "-", "-q"]);
    assert!(piped.env("THALWEG_IDENTITY", "own").output().unwrap().stdout == expected);
    let status = status(&nodes, "events");
    assert_eq!((status.records, status.missing.len()), (10_000, 0));
    assert!(status.nodes.iter().all(|share| share.buckets.len() == 5));

    // Any verb reads it, or a part of it, and a sort by another key goes into another table and back.
    run(&["check", "table:events", "--datamation", "-q"]).is_done();
    let key = |at: usize| thalweg::table::text::show(&expected[at * 100..][..10]).replace('.', r"\x2e");
    let part = format!("table:events@{}..{}", key(100), key(200));
    run(&["sort", &part, "-o", "part", "--datamation", "-q"]).is_done();
    assert!(std::fs::read(nodes.place.0.join("part")).unwrap() == expected[10_000..20_000]);
    run(&["partition", "table:events", "-o", "part-{}", "--parts", "2", "--pick", "hash", "-q"]).is_done();
    run(&["table", "create", "numbers"]).is_done();
    run(&["sort", "table:events", "-o", "table:numbers", "--record", "100", "--by", "10:32", "-q"]).is_done();
    run(&["table", "create", "again", "--capacity", "2k"]).is_done();
    run(&["merge", "sorted", "-o", "table:again", "--datamation", "-q"]).is_done();
    run(&["pump", "table:again", "copy", "-q"]).is_done();
    assert!(std::fs::read(nodes.place.0.join("copy")).unwrap() == expected);

    // It can be used, with records of its form.
    let table = open(&nodes, "events");
    assert_eq!(table.get(&expected[..10]).unwrap().unwrap(), expected[10..100]);
    assert!(table.update(&expected[..10], [7; 90]).unwrap());
    let why = table.upsert("short", "v").unwrap_err().to_string();
    assert!(why.contains("a key of 10 bytes and a value of 90, not of 5 and 1"), "{why}");
    assert!(dumped("events")[10..100] == [7; 90]);
}

#[test]
fn nodes_read_a_table_and_load_files_of_their_own() {
    let nodes = Nodes::start(3);
    let run = |args: &[&str]| nodes.run(args);
    // All nodes of this test see the same files, so each has the records of one.
    run(&["gen", "9k", "records", "-q"]).is_done();
    run(&["table", "create", "events", "--capacity", "700"]).is_done();
    run(&["table", "load", "events", "records", "--datamation", "-q"]).is_done();
    let expected = sorted(&nodes, "records");
    let parts = |name: &str| {
        let part = |i| std::fs::read(nodes.place.0.join(format!("{name}-{i}"))).unwrap();
        (0..3).flat_map(part).collect::<Vec<u8>>()
    };
    let flags = ["--record", "100", "--by", "0:10", "--cluster", "own", "-q"];
    let on_nodes = |args: &[&str]| run(&[args, &flags].concat());
    let output = |name: &str| format!("nodes:{}/{name}-{{}}", nodes.place.0.display());
    on_nodes(&["sort", "table:events", "-o", &output("sorted")]).is_done();
    assert!(parts("sorted") == expected);
    let key = |at: usize| thalweg::table::text::show(&expected[at * 100..][..10]).replace('.', r"\x2e");
    let part = format!("table:events@{}..{}", key(1000), key(2001));
    on_nodes(&["merge", &part, "-o", &output("part")]).is_done();
    assert!(parts("part") == expected[100_000..200_100]);
    let shuffle = ["shuffle", "table:events", "-o", &output("mixed"), "--seed", "3", "--record", "100"];
    run(&[&shuffle[..], &["--cluster", "own", "-q"]].concat()).is_done();
    let mixed = parts("mixed");
    assert!(mixed.len() == expected.len() && mixed != expected);
    on_nodes(&["join", "table:events", &part, "-o", &output("joined")]).is_done();
    assert!(parts("joined").len() > 100_000);
    let check = |args: &[&str]| on_nodes(&[&["check", "--json"], args].concat());
    let found: Check = from_json(check(&["table:events"]).is_done()).unwrap();
    assert!(found.proof.records == 9_000 && found.proof.unordered == 0);
    let (from, of): (Vec<_>, Vec<_>) = found.nodes.iter().map(|node| (node.from, node.proof.records)).unzip();
    assert!(of.len() == 3 && of.iter().all(|records| *records > 2_000), "each node checks a third: {of:?}");
    assert_eq!(from, [0, of[0], of[0] + of[1]]);
    let one: Check = from_json(run(&["check", "sorted", "--datamation", "--json"]).is_done()).unwrap();
    assert_eq!((found.proof, found.crc_sum), (one.proof, one.crc_sum));
    let found: Check = from_json(check(&[&part]).is_done()).unwrap();
    assert_eq!(found.proof.records, 1001);
    let twice = check(&[&part, &part]);
    assert_eq!(
        (twice.status, from_json::<Check>(&twice.out).unwrap().first_unordered),
        (Some(1), Some(1001))
    );
    check(&["table:events", "nodes:records"]).is_refused(&["table:"]);
    check(&["table:none"]).is_refused(&["no table 'none'"]);
    on_nodes(&["sort", "table:events", "records", "-o", &output("x")]).is_refused(&["table:"]);
    on_nodes(&["sort", "table:none", "-o", &output("x")]).is_refused(&["no table 'none'"]);

    run(&["table", "create", "loaded", "--capacity", "700"]).is_done();
    let pattern = format!("nodes:{}/sorted-[012]", nodes.place.0.display());
    let load = ["table", "load", "loaded", &pattern, "--datamation"];
    run(&load).is_refused(&["two records have the key"]);
    let loaded = run(&[&load[..], &["--on-duplicate", "first"]].concat());
    assert!(loaded.is_done().contains("18 000 with the key of another were left out"), "{}", loaded.out);
    on_nodes(&["sort", "table:loaded", "-o", &output("again")]).is_done();
    assert!(parts("again") == expected);
    run(&load).is_refused(&["has 9000 records"]);
    let hidden = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".thalweg-load");
    assert!(!std::fs::read_dir(&nodes.place.0).unwrap().any(|entry| hidden(&entry.unwrap())));
    let ranges =
        ["partition", "table:events", "-o", "r-{}", "--parts", "2", "--pick", "range", "--datamation"];
    run(&ranges).is_refused(&["table:events can be read only once"]);
}

#[test]
fn a_load_that_fails_leaves_the_table_as_it_was() {
    let nodes = Nodes::start(2);
    let run = |args: &[&str]| nodes.run(args);
    let used = || status(&nodes, "events").nodes.iter().map(|share| share.memory_used_bytes).sum::<u64>();
    run(&["table", "create", "events", "--capacity", "300"]).is_done();
    let before = used();
    run(&["gen", "1k", "once", "-q"]).is_done();
    let twice = std::fs::read(nodes.place.0.join("once")).unwrap().repeat(2);
    std::fs::write(nodes.place.0.join("twice"), &twice).unwrap();
    let load = |more: &[&str]| run(&[&["table", "load", "events"], more, &["--datamation"]].concat());
    load(&["twice"]).is_refused(&["two records have the key", "--on-duplicate first or last"]);
    std::fs::write(nodes.place.0.join("short"), &twice[..150]).unwrap();
    load(&["short"]).is_refused(&["short"]);
    load(&["nothing"]).is_refused(&["nothing"]);
    run(&["merge", "once", "-o", "table:events", "--datamation", "-q"]).is_refused(&["sort"]);
    run(&["sort", "once", "-o", "table:events", "-q"]).is_refused(&["records of one length"]);
    run(&["pump", "once", "table:events", "-q"]).is_refused(&["does not know the key"]);
    run(&["shuffle", "once", "-o", "table:events", "--seed", "1", "-q"]).is_refused(&["sort or a merge"]);
    run(&["sort", "once", "-o", "table:events@a..b", "--datamation", "-q"]).is_refused(&["a whole table"]);
    run(&["table", "dump", "events", "dump"]).is_refused(&["was not loaded", "thalweg table range"]);
    assert_eq!(status(&nodes, "events").records, 0);
    until("the nodes have removed what came", || used() == before);

    let loaded = load(&["twice", "--on-duplicate", "last"]);
    assert!(loaded.is_done().contains("1 000 with the key of another were left out"), "{}", loaded.out);
    assert_eq!(run(&["table", "count", "events"]).is_done(), "1000\n");
    load(&["once"]).is_refused(&["has 1000 records, and only a table without records is loaded"]);
    run(&["table", "dump", "events", "dump", "-q"]).is_done();
    assert!(std::fs::read(nodes.place.0.join("dump")).unwrap() == sorted(&nodes, "once"));
}

#[test]
fn a_dump_of_records_that_are_lost_writes_no_file() {
    let mut nodes = Nodes::start(2);
    nodes.run(&["gen", "3k", "records", "-q"]).is_done();
    nodes.run(&["table", "create", "events", "--capacity", "100"]).is_done();
    nodes.run(&["table", "load", "events", "records", "--datamation", "-q"]).is_done();
    let (mut guard, pid) = (nodes.running.remove(1), nodes.pids.remove(1));
    guard.kill().unwrap();
    guard.wait().unwrap();
    std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    until("the node is gone", || !process::is_alive(pid));
    nodes.run(&["table", "dump", "events", "dump"]).is_refused(&["n2"]);
    assert!(!nodes.place.0.join("dump").exists());
}

#[test]
fn redis_py_works_on_three_nodes() {
    let python = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("../redis-py/bin/python");
    if !python.exists() {
        return skipped("there is no redis-py; ./test installs it");
    }
    let ports = free_ports(3);
    let words: Vec<String> = ports.iter().map(|port| format!("resp={port}")).collect();
    let mut nodes = Nodes::made(&words);
    std::fs::write(nodes.place.0.join("own/hosts/n1/resp-password"), "open sesame\n").unwrap();
    nodes
        .place
        .run(&["node", "run", "--identity", "own/hosts/n1"])
        .is_refused(&["others may read this password"]);
    for i in 1..=3 {
        let path = nodes.place.0.join(format!("own/hosts/n{i}/resp-password"));
        std::fs::write(&path, "open sesame\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    (0..3).for_each(|i| nodes.begin(i));
    nodes.run(&["table", "create", "created", "--capacity", "100"]).is_done();
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table/redis_py_nodes.py");
    let ports = ports.iter().map(u16::to_string);
    let done =
        std::process::Command::new(python).arg(script).arg("open sesame").args(ports).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && done.stdout.starts_with(b"redis-py "), "{said}");
}
