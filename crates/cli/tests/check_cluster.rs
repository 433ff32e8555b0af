//! Checks of files on the nodes of a lab: they find the same as a check of all data in one place, and name a node that
//! cannot be reached. Without root each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests use files and the clock directly.

mod support;

use std::time::{Duration, Instant};

use support::lab::Lab;
use support::{Outcome, Place, Running, until};
use thalweg_api::{Check, from_json};

const RECORD: usize = 100;

/// Gives each host its part of `all`, in two files; the last host gets the rest.
fn deal(lab: &Lab, all: &[u8], hosts: usize) {
    let records = all.len() / RECORD;
    for host in 0..hosts {
        let bound = |i: usize| records * i / (2 * hosts) * RECORD;
        let directory = lab.directory(&format!("n{}", host + 1)).join("out");
        std::fs::create_dir_all(&directory).unwrap();
        for half in [2 * host, 2 * host + 1] {
            let bytes = &all[bound(half)..bound(half + 1)];
            std::fs::write(directory.join(format!("part-{half}")), bytes).unwrap();
        }
    }
}

fn check(lab: &Lab, place: &Place, args: &[&str]) -> Outcome {
    Running::start(lab.command(&[&["check"], args].concat()).current_dir(&place.0)).ends()
}

fn told(outcome: &Outcome) -> Check {
    from_json(&outcome.out).unwrap_or_else(|why| panic!("{why}: {outcome:?}"))
}

/// Whether both are equal, apart from the time and the results of single nodes.
fn alike(found: &Check, expected: &Check) -> bool {
    found == &Check { seconds: found.seconds, nodes: found.nodes.clone(), ..expected.clone() }
}

#[test]
fn nodes_find_what_one_machine_finds_in_all_of_it() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    place.shell("$T gen 90k in --skewed -q && $T sort in -o all --datamation -q").is_done();
    deal(&lab, &place.read("all"), 3);
    let pattern = format!("nodes:{}/../n?/out/part-*", lab.directory("n1").display());
    let both = |what: &str| {
        let args = ["check", "all", "--datamation", "--summary", "one.sum", "--json"];
        let one = Running::start(&mut place.command(&args)).ends();
        let args = ["nodes:out/part-*", "--datamation", "--summary", "nodes.sum", "--json"];
        let nodes = check(&lab, &place, &args);
        assert_eq!(nodes.status, one.status, "{what}: {nodes:?}");
        assert!(alike(&told(&nodes), &told(&one)), "{what}: {nodes:?} is not {one:?}");
        assert!(place.read("nodes.sum") == place.read("one.sum"), "{what}: the summaries differ");
        (one.status, told(&nodes))
    };
    let (status, whole) = both("in order");
    assert!(status == Some(0) && whole.proof.records == 90_000);
    assert_eq!(whole.nodes.iter().map(|node| node.from).collect::<Vec<_>>(), [0, 30_000, 60_000]);

    // A flipped bit outside the key of a record in the middle of n2: the order holds, but the sums differ.
    let mut bytes = place.read("all");
    bytes[45_000 * RECORD + 50] ^= 1;
    place.write("all", &bytes);
    deal(&lab, &bytes, 3);
    let (status, flipped) = both("a flipped bit");
    assert!(status == Some(0) && flipped.crc_sum != whole.crc_sum);
    let differ = |i: usize| flipped.nodes[i].proof.checksum != whole.nodes[i].proof.checksum;
    assert_eq!([0, 1, 2].map(differ), [false, true, false], "it is n2's");

    // Out of order only at the border between n1 and n2.
    bytes[30_000 * RECORD..][..10].fill(0);
    place.write("all", &bytes);
    deal(&lab, &bytes, 3);
    let (status, broken) = both("an order broken across nodes");
    assert_eq!((status, broken.first_unordered), (Some(1), Some(30_000)));
    assert!(broken.nodes.iter().all(|node| node.proof.unordered == 0), "{broken:?}");
    let text = check(&lab, &place, &["nodes:out/part-*", "--datamation", "--on", "n3,n1"]);
    assert!(
        text.status == Some(1) && text.out.contains("from record"),
        "hosts come as they are named: {text:?}"
    );

    // All hosts of a lab are on one machine, so one of them can see the files of all.
    let one = check(&lab, &place, &[&pattern, "--datamation", "--on", "n2", "--json"]);
    assert!(alike(&told(&one), &broken), "{one:?}");
}

#[test]
fn lines_are_compared_whole_where_nodes_meet() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    let write = |host: &str, bytes: &[u8]| std::fs::write(lab.directory(host).join("lines"), bytes).unwrap();
    let long = "x".repeat(300_000);
    // They differ only in their last byte, and the last line has no newline.
    write("n1", format!("a\n{long}b\n").as_bytes());
    write("n2", format!("{long}a").as_bytes());
    let found = check(&lab, &place, &["nodes:lines", "--json"]);
    assert_eq!((found.status, told(&found).first_unordered), (Some(1), Some(2)), "{}", found.err);
    let found = check(&lab, &place, &["nodes:lines", "--json", "--by", "0:300000"]);
    assert_eq!((found.status, told(&found).proof.duplicates), (Some(0), 1), "{}", found.err);
    write("n2", b"");
    let found = check(&lab, &place, &["nodes:lines", "--json"]);
    assert_eq!((found.status, told(&found).proof.records), (Some(0), 2), "{}", found.err);
    write("n2", "y".repeat(600_000).as_bytes());
    let found = check(&lab, &place, &["nodes:lines"]);
    assert!(
        found.status == Some(2) && found.err.contains("n2: its first or last record has 585.94 KiB"),
        "{found:?}"
    );
}

#[test]
fn what_cannot_be_checked_is_told_in_one_line_with_the_host() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    place.shell("$T gen 1000 in -q").is_done();
    deal(&lab, &place.read("in"), 2);
    std::fs::write(lab.directory("n1").join("odd"), [b'a'; 150]).unwrap();
    std::fs::write(lab.directory("n1").join("out/.part-hidden"), b"half").unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["nodes:odd", "--record", "50"], "n2: cannot inspect"),
        (&["nodes:od*"], "n2: nothing matches"),
        (&["nodes:odd", "--record", "100", "--on", "n1"], "n1: "),
        (&["nodes:out/**x", "--on", "n1"], "n1: "),
        (&["nodes:out/*", "in"], "either all inputs have nodes: before their names"),
        (&["nodes:out/*", "--merge"], "leave out --merge"),
        (&["nodes:out/*", "--record", "99", "--by", "0:10", "--summary", "s"], "give --datamation"),
        (&["nodes:out/*", "--cluster", "other"], "not of other"),
        (&["nodes:out/*", "--on", "n9"], "n9"),
    ];
    for (args, holds) in cases {
        let told = check(&lab, &place, args);
        assert!(told.status == Some(2) && told.err.contains(holds), "{args:?}: {told:?}");
        assert_eq!(told.err.lines().filter(|line| line.starts_with("thalweg:")).count(), 1, "{told:?}");
    }
    // Files without their final names are hidden, and no pattern matches them.
    let told = check(&lab, &place, &["nodes:out/*", "--datamation", "--json"]);
    assert_eq!((told.status, from_json::<Check>(&told.out).unwrap().proof.records), (Some(1), 1000));
    assert_eq!(place.names(), ["in"], "nothing was written");
}

#[test]
fn a_node_that_is_gone_or_silent_ends_the_check_and_is_named() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    // A pipe without a writer, on which the check would wait forever.
    for host in ["n1", "n2"] {
        let fifo = lab.directory(host).join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    }
    let examining = |host: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", lab.pid(host))).unwrap();
        let name =
            |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks.map(|task| name(&task.unwrap())).filter(|name| name.trim() == "examine").count()
    };
    for (fault, status) in [("cancel", 143), ("freeze", 2), ("kill", 2)] {
        let mut command = lab.command(&["check", "nodes:fifo"]);
        let running = Running::start(command.current_dir(&place.0));
        running.handles_signals();
        until("both parts run", || ["n1", "n2"].map(examining).iter().all(|count| *count > 0));
        let since = Instant::now();
        match fault {
            "cancel" => running.signal("-TERM"),
            fault => lab.call(fault, &["n2"]),
        }
        let told = running.ends();
        let took = since.elapsed();
        assert!(told.status == Some(status) && took < Duration::from_secs(8), "{fault}: {took:?}: {told:?}");
        assert!(fault == "cancel" || told.err.starts_with("thalweg: n2: "), "{fault}: {told:?}");
        until("the end of n1's part", || examining("n1") == 0);
        if fault == "freeze" {
            lab.call("heal", &[]);
        }
    }
}
