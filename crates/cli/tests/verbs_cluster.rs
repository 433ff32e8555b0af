//! Shuffles, merges and partitions on the nodes of a lab: the same bytes as on one machine where that is promised, and
//! elsewhere every record exactly once. Without root each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests use files and the clock directly.

mod support;

use std::path::PathBuf;

use support::lab::{Lab, deal, hosts};
use support::{Outcome, Place, Running, until};
use thalweg_api::{JobList, PartitionReceipt, Receipt, from_json};

const RECORD: usize = 72;

/// Files of lines and of records, in which keys occur many times; the last line of the first lacks its newline.
fn inputs(place: &Place) {
    place
        .shell("for i in $(seq 60000); do echo \"$((i * 7919 % 1000)) $i\"; done > a && printf last >> a")
        .is_done();
    place.shell("seq -f 'line %.0f' 1 777777 > b && head -c 30000024 /dev/urandom > records").is_done();
}

fn run(lab: &Lab, place: &Place, args: &[&str]) -> Outcome {
    let cluster = format!("lab-{}", lab.id);
    let memory: &[&str] = if args.contains(&"--memory") { &[] } else { &["--memory", "40MiB"] };
    let args = [args, memory, &["--json", "--cluster", &cluster]].concat();
    Outcome::of(lab.command(&args).current_dir(&place.0).output().expect("the binary starts"))
}

#[test]
fn a_seed_gives_one_order_on_any_number_of_nodes() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    inputs(&place);
    for args in [&["a", "b"][..], &["records", "records", "--record", "72"]] {
        place.run(&[&["shuffle"], args, &["-o", "expected", "--seed", "9", "-q"]].concat()).is_done();
        for nodes in ["n1", "n1,n2,n3"] {
            let asked = [&["shuffle"], args, &["-o", "out", "--seed", "9", "--on", nodes]].concat();
            let done: Receipt = from_json(run(&lab, &place, &asked).is_done()).unwrap();
            assert!(done.holds && done.verb == "shuffle" && done.output.unordered == 0, "{done:?}");
            assert!(place.read("out") == place.read("expected"), "{args:?} on {nodes}");
        }
    }
    // The nodes' own files are one sequence, in the order of the hosts.
    place.shell("mv records in").is_done();
    deal(&lab, &place, 3, Some(RECORD));
    let asked = ["shuffle", "nodes:in.dat", "-o", "nodes:part-{}", "--seed", "4", "--record", "72"];
    let done: Receipt = from_json(run(&lab, &place, &asked).is_done()).unwrap();
    let own = |name: &str| -> Vec<PathBuf> {
        hosts(3)
            .iter()
            .enumerate()
            .map(|(i, host)| lab.directory(host).join(name.replace("{}", &i.to_string())))
            .collect()
    };
    let parts: Vec<Vec<u8>> = own("part-{}").iter().map(|path| std::fs::read(path).unwrap()).collect();
    let paths: Vec<String> = own("in.dat").iter().map(|path| path.display().to_string()).collect();
    place.shell(&format!("$T shuffle {} -o expected --seed 4 --record 72 -q", paths.join(" "))).is_done();
    assert!(parts.concat() == place.read("expected"));
    let even = parts.iter().all(|part| part.len().abs_diff(10_000_008) < 200_000);
    assert!(even && done.nodes.len() == 3, "{:?}", parts.iter().map(Vec::len).collect::<Vec<_>>());
}

#[test]
fn files_in_order_are_merged_and_others_refused() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    inputs(&place);
    place
        .shell(
            "$T sort a -o a --by 0:4 -q && $T sort b -o b --by 0:4 -q && $T sort records -o r --record 72 -q",
        )
        .is_done();
    for args in [
        &["a", "b", "--by", "0:4"][..],
        &["b", "a", "--by", "0:4", "--unique"],
        &["r", "r", "--record", "72"],
    ] {
        let asked = [&["merge"], args, &["-o", "out"]].concat();
        let done: Receipt = from_json(run(&lab, &place, &asked).is_done()).unwrap();
        assert!(done.holds && done.verb == "merge", "{done:?}");
        place.run(&[&["merge"], args, &["-o", "expected", "-q"]].concat()).is_done();
        assert!(place.read("out") == place.read("expected"), "{args:?}");
    }
    // One record that is less than the one before it: in the middle of a page, and as the first of a page. A page has a
    // whole number of 36,864 bytes below some power of two: 113 of them below 4 MiB, and 1 to 56 below less.
    let ordered = place.read("r");
    for at in [200_001, 168 * 512, 113 * 512] {
        let mut bytes = ordered.clone();
        bytes[at * RECORD] = 0;
        std::fs::write(place.0.join("r"), &bytes).unwrap();
        let told = run(&lab, &place, &["merge", "r", "-o", "out", "--record", "72"]);
        let line = format!("is not in order: record {at} (the first is 0) is less than the one before it");
        assert!(told.status == Some(2) && told.err.contains(&line), "{told:?}");
    }
    place.shell("printf 'b\\nc\\na' > few").is_done();
    let told = run(&lab, &place, &["merge", "few", "-o", "out"]);
    assert!(told.status == Some(2) && told.err.contains("few is not in order: record 2"), "{told:?}");
    let told = run(&lab, &place, &["merge", "b", "-o", "out", "--by", "5:3"]);
    assert!(told.status == Some(2) && told.err.contains("b is not in order: record "), "{told:?}");
    assert!(place.read("out") == place.read("expected"), "an older output stays");
}

/// Each file is read by one node, from its start.
#[test]
fn prefixed_records_are_treated_as_on_one_machine() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    for (name, count) in [("p", 90_000u32), ("q", 50_000), ("r", 7)] {
        let record = |i: u32| {
            let contents = format!("{:05} {i} {}", i % 977, "x".repeat(i as usize % 300));
            [&(contents.len() as u32).to_le_bytes()[..], contents.as_bytes()].concat()
        };
        std::fs::write(place.0.join(name), (0..count).flat_map(record).collect::<Vec<u8>>()).unwrap();
        place
            .run(&["sort", name, "-o", &format!("{name}.sorted"), "--prefixed", "--by", "0:5", "-q"])
            .is_done();
    }
    let cases: [&[&str]; 5] = [
        &["sort", "p", "q", "r", "--by", "0:5"],
        &["sort", "p", "--by", "0:5", "--unique"],
        &["shuffle", "p", "q", "r", "--seed", "3"],
        &["merge", "p.sorted", "q.sorted", "r.sorted", "--by", "0:5"],
        &["join", "q", "r", "--by", "0:5", "--type", "left", "--memory", "64MiB"],
    ];
    for args in cases {
        let done: Receipt =
            from_json(run(&lab, &place, &[args, &["--prefixed", "-o", "out"]].concat()).is_done()).unwrap();
        place.run(&[args, &["--prefixed", "-o", "expected", "-q"]].concat()).is_done();
        assert!(done.holds && place.read("out") == place.read("expected"), "{args:?}");
    }
    let mut cut = place.read("q");
    cut.truncate(cut.len() - 1);
    std::fs::write(place.0.join("q"), cut).unwrap();
    let told = run(&lab, &place, &["sort", "p", "q", "--prefixed", "-o", "out"]);
    assert!(told.status == Some(2) && told.err.contains("q ends inside the record at byte "), "{told:?}");
}

#[test]
fn sides_are_joined_as_on_one_machine() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    // Lines: many with the same key on both sides, and some on one side only. Records: of different formats, and they
    // spill.
    place.shell("for i in $(seq 3000); do echo \"$((i * 7919 % 1000)) left $i\"; done > a").is_done();
    place.shell("for i in $(seq 2000); do echo \"$((i * 31 % 700 + 500)) right $i\"; done > b").is_done();
    place.shell("head -c 72000000 /dev/urandom > records && head -c 800 /dev/zero >> records").is_done();
    place.shell("$T sort records -o other --record 20 --by 4:4 --unique -q").is_done();
    let records =
        ["records", "other", "--record", "100", "--by", "3:3", "--right-record", "20", "--right-by", "4:3"];
    let cases: [&[&str]; 5] = [
        &["a", "b", "--by", "0:3"],
        &["a", "b", "--by", "0:4", "--type", "left", "--between", "<>"],
        &["b", "a", "--by", "0:4", "--type", "anti"],
        &records,
        &[&records[..], &["--type", "left"]].concat(),
    ];
    for args in cases {
        let asked = [&["join"], args, &["-o", "out", "--memory", "64MiB"]].concat();
        let done: Receipt = from_json(run(&lab, &place, &asked).is_done()).unwrap();
        place.run(&[&["join"], args, &["-o", "expected", "-q"]].concat()).is_done();
        assert!(place.read("out") == place.read("expected"), "{args:?}");
        let sides = done.sides.unwrap();
        assert!(done.holds && done.verb == "join" && done.nodes.len() == 3, "{done:?}");
        assert_eq!(sides.pairs + sides.unmatched, done.output.records);
    }
    // From the nodes' own files for both sides, to parts of the output.
    for (from, to) in [("a", "in.dat"), ("b", "right.dat")] {
        std::fs::copy(place.0.join(from), place.0.join("in")).unwrap();
        deal(&lab, &place, 3, None);
        for host in hosts(3) {
            let there = lab.directory(&host);
            std::fs::rename(there.join("in.dat"), there.join(to.replace("in.dat", "left.dat"))).unwrap();
        }
    }
    let asked =
        ["join", "nodes:left.*", "nodes:right.*", "-o", "nodes:part-{}", "--by", "0:3", "--memory", "64MiB"];
    let done: Receipt = from_json(run(&lab, &place, &asked).is_done()).unwrap();
    place.run(&["join", "a", "b", "-o", "expected", "--by", "0:3", "-q"]).is_done();
    let parts =
        |i: usize| std::fs::read(lab.directory(&format!("n{}", i + 1)).join(format!("part-{i}"))).unwrap();
    let lines = |bytes: &[u8]| -> Vec<Vec<u8>> {
        let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort_unstable();
        lines
    };
    let all = [parts(0), parts(1), parts(2)].concat();
    assert!(
        lines(&all) == lines(&place.read("expected")) && done.holds,
        "in the order of nodes' files, not of one's"
    );
    let told = run(
        &lab,
        &place,
        &["join", "a", "b", "-o", "out", "--by", "0:3", "--right-by", "0:2", "--memory", "64MiB"],
    );
    assert!(told.status == Some(2) && told.err.contains("must be as long as each other"), "{told:?}");
    assert!(place.read("out").len() > 1000 && place.names().iter().all(|name| !name.starts_with('.')));
}

#[test]
fn parts_lie_on_the_nodes_or_where_all_see_them() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    inputs(&place);
    place.shell("mkdir one all").is_done();
    let part = |asked: &[&str]| -> PartitionReceipt {
        let asked = run(&lab, &place, &[&["partition"], asked].concat());
        let receipt: Receipt = from_json(asked.is_done()).unwrap();
        assert!(receipt.holds, "{receipt:?}");
        receipt.partition.unwrap()
    };
    // By hash the parts are those of one machine, however many nodes there are.
    for (parts, width) in [("2", 1), ("16", 2)] {
        let args = ["a", "b", "--by", "0:6", "--pick", "hash", "--parts", parts];
        let done = part(&[&args[..], &["-o", "all/{}"]].concat());
        assert!(
            done.sampled_bytes == 0 && done.pick == "hash" && done.parts.len().to_string() == parts,
            "{done:?}"
        );
        place.run(&[&["partition"], &args[..], &["-o", "one/{}", "-q"]].concat()).is_done();
        for (i, one) in done.parts.iter().enumerate() {
            let name = format!("{i:0width$}");
            assert!(place.read(&format!("all/{name}")) == place.read(&format!("one/{name}")), "part {name}");
            assert!(one.path.ends_with(&format!("all/{name}")), "{one:?}");
        }
    }
    // By range they follow each other, and have about equal sizes.
    place.shell("mv records in").is_done();
    deal(&lab, &place, 3, Some(RECORD));
    let ranges = ["nodes:in.dat", "-o", "nodes:part-{}", "--parts", "7", "--record", "72", "--by", "3:8"];
    let done = part(&ranges);
    let read = |i: usize| {
        std::fs::read(lab.directory(&format!("n{}", i * 3 / 7 + 1)).join(format!("part-{i}"))).unwrap()
    };
    let parts: Vec<Vec<u8>> = (0..7).map(read).collect();
    let keys =
        |part: &[u8]| -> Vec<Vec<u8>> { part.chunks(RECORD).map(|record| record[3..11].to_vec()).collect() };
    assert!(parts.windows(2).all(|two| keys(&two[0]).iter().max() <= keys(&two[1]).iter().min()));
    assert!(done.spread < 0.05 && done.parts[6].path.starts_with("n3:"), "{done:?}");
    let mut all: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(RECORD)).collect();
    let before = place.read("in");
    let mut expected: Vec<&[u8]> = before.chunks(RECORD).collect();
    all.sort_unstable();
    expected.sort_unstable();
    assert!(all == expected, "every record is in one part");
}

#[test]
fn a_partition_goes_on_by_itself() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    inputs(&place);
    place.shell("mv records in").is_done();
    deal(&lab, &place, 3, Some(RECORD));
    let asked = [
        "partition",
        "nodes:in.dat",
        "-o",
        "nodes:turn-{}",
        "--parts",
        "4",
        "--pick",
        "robin",
        "--record",
        "72",
    ];
    let told = run(&lab, &place, &[&asked[..], &["--detach"]].concat());
    let detached: thalweg_api::Detached = from_json(told.is_done()).unwrap();
    let shown = lab.run(&["job", "watch", &detached.job, "--json"]);
    assert!(shown.status == Some(0), "{shown:?}");
    let shown = lab.run(&["job", "show", &detached.job, "--json"]);
    assert!(shown.out.contains("\"--pick\",\"robin\""), "{shown:?}");
    let sizes = |i: usize| {
        std::fs::metadata(lab.directory(&format!("n{}", i * 3 / 4 + 1)).join(format!("turn-{i}")))
            .unwrap()
            .len()
    };
    assert!(
        (0..4).all(|i| sizes(i).abs_diff(7_500_006) < 100 * RECORD as u64),
        "{:?}",
        (0..4).map(sizes).collect::<Vec<_>>()
    );
}

#[test]
fn what_a_lost_node_had_to_do_the_others_do_again() {
    // Disks so slow that a node is lost in the middle.
    let Some(lab) = Lab::up(&["3", "--disk", "6MB/s"]) else { return };
    let place = Place::new();
    // Written with direct I/O, so that it is in no cache.
    place.shell("$T gen 300k in -q && $T gen 40k few -q && mkdir parts").is_done();
    place.run(&["join", "few", "in", "-o", "joined", "--datamation", "-q"]).is_done();
    place.run(&["shuffle", "in", "-o", "mixed", "--record", "100", "--seed", "5", "-q"]).is_done();
    place
        .run(&["partition", "in", "-o", "whole-{}", "--parts", "3", "--pick", "hash", "--datamation", "-q"])
        .is_done();
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 3] = [
        (&["join", "few", "in", "-o", "out", "--datamation"], &[("joined", "out")], "n3"),
        (&["shuffle", "in", "-o", "out", "--record", "100", "--seed", "5"], &[("mixed", "out")], "n1"),
        (
            &["partition", "in", "-o", "parts/{}", "--parts", "3", "--pick", "hash", "--datamation"],
            &[("whole-0", "parts/0"), ("whole-1", "parts/1"), ("whole-2", "parts/2")],
            "n2",
        ),
    ];
    for (args, files, lost) in cases {
        let cluster = format!("lab-{}", lab.id);
        let asked = [args, &["--memory", "64MiB", "--json", "--cluster", &cluster]].concat();
        let running = Running::start(lab.command(&asked).current_dir(&place.0));
        until("the river", || {
            let list: JobList = from_json(&lab.run(&["job", "list", "--json"]).out).unwrap();
            list.jobs
                .iter()
                .filter_map(|job| job.share.as_ref())
                .any(|share| share.stage == "read+river" && share.read_bytes > 0)
        });
        lab.call("kill", &[lost]);
        let told = running.ends();
        assert!(told.status == Some(0) && told.err.contains("attempt 2 of at most 5 begins on"), "{told:?}");
        let done: Receipt = from_json(&told.out).unwrap();
        let hosts: Vec<&str> = done.nodes.iter().map(|node| &node.host[..]).collect();
        assert!(done.holds && done.failed.len() == 1 && !hosts.contains(&lost), "{done:?}");
        for (expected, made) in files {
            assert!(place.read(expected) == place.read(made), "{args:?}");
        }
        // The next attempt removes what a killed node leaves.
        let left = place.shell("find . -name '.?*'");
        assert!(left.out.is_empty(), "{args:?} left {}", left.out);
        lab.call("revive", &[lost]);
    }
}

#[test]
fn what_cannot_be_is_told_in_one_line() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    place.shell("$T gen 1000 in -q").is_done();
    let cases: [(&[&str], &str); 11] = [
        (&["shuffle", "in", "-o", "out"], "--seed N"),
        (&["partition", "in", "-o", "part-{}"], "--parts N"),
        (&["partition", "in", "-o", "part", "--parts", "3"], "must have {} once"),
        (&["partition", "in", "-o", "part-{}", "--parts", "3", "--io", "threads"], "leave out --resume"),
        (&["partition", "in", "-o", "no/part-{}", "--parts", "3"], "there is no directory"),
        (
            &["partition", "in", "-o", "part-{}", "--parts", "4000"],
            "the exchange among 2 nodes needs at least",
        ),
        (&["partition", "in", "-o", "part-{}", "--parts", "0"], "a partition has 1 to 4096 parts"),
        (&["partition", "in", "-o", "part-{}", "--parts", "99999"], "a partition has 1 to 4096 parts"),
        (
            &["shuffle", "in", "-o", "out", "--seed", "1", "--record", "4294967290"],
            "have at most 4294967287 bytes",
        ),
        (&["join", "in", "in", "-o", "out", "--memory", "16MiB"], "a node needs"),
        (&["join", "in", "-", "-o", "out"], "a stream of this process"),
    ];
    for (args, why) in cases {
        let told = run(&lab, &place, args);
        assert!(
            told.status == Some(2) && told.err.contains(why) && told.err.lines().count() == 1,
            "{args:?}: {told:?}"
        );
    }
    let told = Outcome::of(
        lab.command(&["merge", "in", "-o", "out", "--detach"]).current_dir(&place.0).output().unwrap(),
    );
    assert!(
        told.status == Some(2) && told.err.contains("--detach is for a merge on the nodes of a cluster"),
        "{told:?}"
    );
    assert_eq!(place.names(), ["in"]);
}
