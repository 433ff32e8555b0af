//! Sorts on the nodes of a lab: the same bytes as on one machine, with receipts that agree with the kernel's count of
//! the bytes on the links; and what happens at every stage when a node is killed, frozen or cut off, or its disk is
//! full. Without root each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests use files and the clock directly.

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::lab::{Lab, deal, hosts};
use support::{Outcome, Place, Running, skipped, until};
use thalweg_api::{JobList, JobState, NodeReady, Receipt, from_json};

const MIB: u64 = 1 << 20;
/// The longest wait for a silent node: 5 s, one second for the cause, and the time of this machine.
const TOLD_WITHIN: Duration = Duration::from_secs(9);

fn sort(lab: &Lab, place: &Place, args: &[&str]) -> Outcome {
    let args = [&["sort"], args, &["--memory", "40MiB", "--json"]].concat();
    Running::start(lab.command(&args).current_dir(&place.0)).ends()
}

fn receipt(told: &Outcome) -> Receipt {
    from_json(told.is_done()).unwrap()
}

/// The parts that the hosts wrote, in order.
fn parts(lab: &Lab, count: usize) -> Vec<Vec<u8>> {
    let part =
        |(i, host): (usize, &String)| std::fs::read(lab.directory(host).join(format!("part-{i}"))).unwrap();
    hosts(count).iter().enumerate().map(part).collect()
}

/// All files of all hosts, except those of the lab.
fn files(lab: &Lab, count: usize) -> Vec<PathBuf> {
    let ours = ["identity", "in.dat", "pid", "ready", "err"];
    let of = |host: &String| {
        let entries = std::fs::read_dir(lab.directory(host)).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| !ours.iter().any(|own| path.ends_with(own)))
    };
    hosts(count).iter().flat_map(of).collect()
}

#[test]
fn each_nodes_own_files_become_the_parts_of_one_order() {
    let Some(lab) = Lab::up(&["4"]) else { return };
    let place = Place::new();
    // Skewed, so that ranges of equal width would not be equal parts; in memory, and spilled.
    place.shell("$T gen 400k in --skewed -q && $T sort in -o sorted --record 100 -q").is_done();
    deal(&lab, &place, 4, Some(100));
    let before: Vec<_> = hosts(4).iter().map(|host| lab.carried(host)).collect();
    let done = receipt(&sort(&lab, &place, &["nodes:in.*", "-o", "nodes:part-{}", "--record", "100"]));
    let parts = parts(&lab, 4);
    assert!(parts.concat() == place.read("sorted"), "as on one machine");
    assert!(done.holds && done.input.records == 400_000 && done.nodes.len() == 4, "{done:?}");
    let even = parts.iter().map(Vec::len).all(|bytes| bytes.abs_diff(10_000_000) < 500_000);
    assert!(even, "parts within 5 %: {:?}", parts.iter().map(Vec::len).collect::<Vec<_>>());
    let mut pids: Vec<u32> = done.nodes.iter().map(|node| node.pid).collect();
    pids.dedup();
    assert_eq!(pids.len(), 4, "each node is a process of its own");
    for ((host, before), node) in hosts(4).iter().zip(before).zip(&done.nodes) {
        let (to, from) = lab.carried(host);
        let (sent, received) = node.link_bytes;
        // Three quarters of its share leave the node, and as much arrives; less if its range is a frequent key that it
        // has itself.
        assert!(sent > 4_000_000 && received > 4_000_000, "{node:?}");
        for (kernel, said) in [(from - before.1, sent), (to - before.0, received)] {
            let near = kernel.abs_diff(said) as f64 / said as f64;
            assert!(near < 0.05, "{host}: the kernel counted {kernel}, the receipt says {said}");
        }
    }
}

#[test]
fn what_all_nodes_see_is_sorted_as_on_one() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    // Lines with keys that occur many times, so that the order of equal ones shows; and records that spill.
    place.shell("for i in $(seq 60000); do echo \"$((i * 7919 % 1000)) $i\"; done > lines").is_done();
    place.shell("head -c 90000017 /dev/urandom | head -c 90000000 > records").is_done();
    let cases: [&[&str]; 4] = [
        &["lines"],
        &["lines", "--by", "0:2"],
        &["lines", "lines", "--by", "0:3:desc", "--unique"],
        &["records", "--record", "72", "--by", "3:2,60:4"],
    ];
    for args in cases {
        let done = receipt(&sort(
            &lab,
            &place,
            &[args, &["-o", "out", "--cluster", &format!("lab-{}", lab.id)]].concat(),
        ));
        assert!(done.holds);
        place.run(&[&["sort"], args, &["-o", "expected", "-q"]].concat()).is_done();
        assert!(place.read("out") == place.read("expected"), "{args:?}");
        assert!(args[0] != "records" || done.scratch_peak_bytes > 0, "it did not spill: {done:?}");
    }
    assert_eq!(place.names(), ["expected", "lines", "out", "records"]);
    // Already sorted, so that the first records that a node receives say nothing about the rest; its ranges are known
    // all the same.
    let again = ["expected", "-o", "out", "--record", "72", "--by", "3:2,60:4", "--cluster"];
    let done = receipt(&sort(&lab, &place, &[&again[..], &[&format!("lab-{}", lab.id)]].concat()));
    let spilled = done.io.scratch.written_bytes;
    assert!(place.read("out") == place.read("expected"));
    assert!((1..=90_000_000).contains(&spilled), "{spilled} bytes went to scratch");
}

#[test]
fn what_a_node_keeps_of_one_sort_breaks_no_promise_of_the_next() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    place.shell("$T gen 800k in -q").is_done();
    let cluster = format!("lab-{}", lab.id);
    for (memory, keeps) in [(256, true), (256, true), (48, false), (256, true), (64, false)] {
        let asked = format!("sort in -o out --datamation --json --memory {memory}MiB --cluster {cluster}");
        let asked: Vec<&str> = asked.split(' ').collect();
        let done = receipt(&Running::start(lab.command(&asked).current_dir(&place.0)).ends());
        let limit = (memory * MIB / 100 * 105).max((memory + 2) * MIB);
        for node in &done.nodes {
            assert!(node.peak_bytes <= limit, "{memory} MiB: {node:?}");
            let resident = lab.resident_bytes(&node.host) >> 10;
            assert_eq!(resident > 20 << 10, keeps, "{resident} KiB after a sort in {memory} MiB");
        }
    }
    // Many sorts of all kinds leave little memory behind, too.
    let line = format!(
        "seq 200000 | awk '{{ print $1 * 7919 % 1000, $1 }}' > l && for i in 1 2 3 4 5 6; do \
         $T sort in -o out --datamation -q --memory 48MiB --cluster {cluster} && \
         $T join l l -o out --by 0:9 -q --memory 80MiB --cluster {cluster} && \
         $T shuffle client:l -o client:out --seed $i -q --memory 64MiB --cluster {cluster}; done"
    );
    hidden(&lab, &place, &line).ends_within(LINE_SECONDS, "the line").is_done();
    for host in hosts(2) {
        let resident = lab.resident_bytes(&host) >> 20;
        assert!(resident < 5, "{host} holds {resident} MiB");
    }
}

/// The longest time of such a line, whose commands move some hundred megabytes on a machine that may be busy.
const LINE_SECONDS: f64 = 120.0;

/// Runs a line of shell in a lab, with a directory `own` that no node sees, because it is in another mount namespace.
fn hidden(lab: &Lab, place: &Place, line: &str) -> Running {
    let mut shell = std::process::Command::new("unshare");
    shell.args(["-m", "sh", "-c", &format!("mkdir -p own && mount -t tmpfs own own && {line}")]);
    shell.envs(lab.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    Running::start(shell.env("T", env!("CARGO_BIN_EXE_thalweg")).current_dir(&place.0))
}

#[test]
fn what_only_the_client_has_is_sorted_as_on_one_machine() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    let make = "seq 400000 | awk '{ print $1 * 7919 % 1000, $1 }' > own/lines && \
        $T gen 900k own/records -q";
    // Lines that cross the end of their page; records that spill; two files; a right side; a seed.
    let cases = [
        ("sort", "lines", "--by 0:2"),
        ("sort", "records", "--record 72 --by 3:2,60:4"),
        ("sort", "lines records", "--unique"),
        ("join", "lines lines", "--by 0:5"),
        ("shuffle", "lines", "--seed 7"),
    ];
    for (verb, files, flags) in cases {
        let named = |prefix: &str| {
            files.split(' ').map(|name| format!("{prefix}own/{name}")).collect::<Vec<_>>().join(" ")
        };
        let (lent, here) = (named("client:"), named(""));
        // The output of the second goes where no node sees it, in the place of an input, whose permissions it gets.
        let last = files.split(' ').next_back().unwrap();
        let line = format!(
            "{make} && $T {verb} {here} -o expected {flags} -q && \
             $T {verb} {lent} -o out {flags} --memory 64MiB --json > first && cmp out expected && \
             chmod 640 own/{last} && $T {verb} {lent} -o client:own/{last} {flags} --memory 64MiB --json && \
             cmp own/{last} expected && [ $(stat -c %a own/{last}) = 640 ] && [ $(ls -A own | wc -l) = 2 ]"
        );
        let back = receipt(&hidden(&lab, &place, &line).ends_within(LINE_SECONDS, "the line"));
        let done: Receipt = from_json(&String::from_utf8(place.read("first")).unwrap()).unwrap();
        assert!(done.holds && done.nodes.len() == 3, "{done:?}");
        assert!(done.nodes.iter().all(|node| node.input.0 > 0), "each node reads some: {done:?}");
        assert!(back.holds && back.output == done.output && !back.io.direct_output, "{back:?}");
    }
    // From inputs that all nodes see, and from each node's own.
    place.shell("$T gen 300k in -q && $T sort in -o expected --datamation -q").is_done();
    deal(&lab, &place, 3, Some(100));
    for inputs in ["in", "nodes:in.dat"] {
        let line = format!("$T sort {inputs} -o client:own/out --datamation --json && cmp own/out expected");
        let done = receipt(&hidden(&lab, &place, &line).ends_within(LINE_SECONDS, "the line"));
        assert_eq!(done.nodes.len(), 3, "{done:?}");
    }
    for host in hosts(3) {
        std::fs::remove_file(lab.directory(&host).join("in.dat")).unwrap();
    }
    // The inputs are where no node sees them, so they cannot be read without `client:`.
    let cluster = format!("lab-{}", lab.id);
    let told =
        hidden(&lab, &place, &format!("{make} && $T sort own/lines -o out --cluster {cluster}")).ends();
    told.is_refused(&[": cannot inspect", "own/lines"]);
    assert!(files(&lab, 3).is_empty(), "nothing is left");
}

#[test]
fn a_client_lends_its_files_for_as_many_attempts_as_it_takes_and_says_if_they_change() {
    let Some(lab) = Lab::up(&["3", "--rate", "40mbit"]) else { return };
    let place = Place::new();
    place.shell("$T gen 400k in -q && $T sort in -o expected --record 100 -q").is_done();
    let crosses = || {
        until("the river", || {
            let list: JobList = from_json(&lab.run(&["job", "list", "--json"]).out).unwrap();
            let going = list.jobs.iter().filter(|job| job.state == JobState::Running);
            going.filter_map(|job| job.share.as_ref()).any(|share| share.read_bytes > 0)
        });
    };
    let asked = ["sort", "client:in", "-o", "out", "--record", "100", "--memory", "64MiB", "--json"];
    let start = || Running::start(lab.command(&asked).current_dir(&place.0));
    let running = start();
    crosses();
    lab.call("kill", &["n2"]);
    let told = running.ends();
    assert!(told.err.contains("attempt 2 of at most 5 begins on n1, n3"), "{told:?}");
    let done: Receipt = from_json(&told.out).unwrap();
    assert!(done.holds && done.failed.len() == 1 && done.nodes.len() == 2, "{done:?}");
    assert!(place.read("out") == place.read("expected"));
    lab.call("revive", &["n2"]);
    // The same if the output is the client's: what the lost node wrote is in no file with a final name.
    let back = ["sort", "client:in", "-o", "client:out", "--record", "100", "--memory", "64MiB", "--json"];
    place.shell("$T gen 250k in -q && $T sort in -o expected --record 100 -q && echo old > out").is_done();
    let running = Running::start(lab.command(&back).current_dir(&place.0));
    until("writes to the output", || {
        let list: JobList = from_json(&lab.run(&["job", "list", "--json"]).out).unwrap();
        let going = list.jobs.iter().filter(|job| job.state == JobState::Running);
        going.filter_map(|job| job.share.as_ref()).any(|share| share.written_bytes > 0)
    });
    assert_eq!(place.read("out"), b"old\n");
    lab.call("kill", &["n3"]);
    let told = running.ends();
    // Usually only the range of the lost node is sorted again; everything, if not all records had arrived.
    assert!(told.err.contains("; attempt 2 of at most 5 ") && told.err.ends_with(" on n1, n2\n"), "{told:?}");
    assert!(place.read("out") == place.read("expected"));
    assert_eq!(place.names(), ["expected", "in", "out"]);
    lab.call("revive", &["n3"]);
    // An input that becomes shorter; and one that is written to, although all its bytes are there.
    for (line, holds) in [("truncate -s 20000000 in", "client:"), ("touch in", "changed while")] {
        place.shell("rm -f out && $T gen 400k in -q").is_done();
        let running = start();
        crosses();
        place.shell(line).is_done();
        let told = running.ends();
        told.is_refused(&[holds, "/in"]);
        assert_eq!(place.names(), ["expected", "in"], "after {line}");
    }
    // The client is killed: nothing is left, and nobody waits for it.
    place.shell("$T gen 400k in -q").is_done();
    let running = start();
    crosses();
    assert!(place.names().len() > 2, "the output has a name meanwhile: {:?}", place.names());
    running.signal("-KILL");
    let gone = Instant::now();
    until("all nodes to leave nothing", || place.names() == ["expected", "in"]);
    assert!(gone.elapsed() < TOLD_WITHIN, "{:?}", gone.elapsed());
}

#[test]
fn what_cannot_be_is_told_in_one_line_with_the_host() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let place = Place::new();
    place.shell("$T gen 1000 in -q").is_done();
    deal(&lab, &place, 2, Some(100));
    std::fs::remove_file(lab.directory("n2").join("in.dat")).unwrap();
    let own = lab.directory("own");
    let cases: [(&[&str], &str); 17] = [
        (&["nodes:in.dat", "-o", "nodes:part-{}"], "n2: cannot inspect"),
        (&["nodes:*.dat", "-o", "nodes:part-{}"], "n2: nothing matches"),
        (&["nodes:in.dat", "in", "-o", "nodes:part-{}"], "either all inputs have nodes:"),
        (&["nodes:in.dat", "-o", "nodes:no/part", "--on", "n1"], "n1: cannot create"),
        (&["nodes:in.dat", "-o", "nodes:part", "--on", "n9"], "n9"),
        (&["in", "-o", "out", "--cluster", "other"], "not of other"),
        (&["in", "-o", "-", "--cluster", own.to_str().unwrap()], "stream of this process"),
        (
            &["in", "-o", "out", "--record", "7", "--on", "n1", "--cluster", &format!("lab-{}", lab.id)],
            "n1: ",
        ),
        (&["in", "-o", "out", "--resume", "--cluster", "x"], "leave out --resume"),
        (&["client:in", "nodes:in", "-o", "out"], "either all inputs"),
        (&["client:none", "-o", "out"], "cannot open none"),
        (&["client:/dev/null", "-o", "out"], "read twice"),
        (&["client:in", "-o", "client:no/out"], "there is no directory no; make it first"),
        (&["in", "-o", "client:/dev/null"], "and /dev/null is a stream; name a file"),
        (&["client:", "-o", "out"], "client: comes before the name of a file"),
        (&["in", "-o", "client:out", "--detach"], "has to stay"),
        (&["client:in", "-o", "out", "--detach"], "has to stay"),
    ];
    for (args, holds) in cases {
        let told = Running::start(lab.command(&[&["sort"], args].concat()).current_dir(&place.0)).ends();
        assert!(told.status == Some(2) && told.err.contains(holds), "{args:?}: {told:?}");
        assert_eq!(told.err.lines().filter(|line| line.starts_with("thalweg:")).count(), 1, "{told:?}");
    }
    // The reason for the failure, not its consequences.
    place.shell("rm in && $T gen 400k in -q").is_done();
    deal(&lab, &place, 2, Some(100));
    for _ in 0..5 {
        let args = ["nodes:in.dat", "-o", "nodes:part", "--datamation", "--scratch-limit", "1MB"];
        let told = sort(&lab, &place, &args);
        assert!(told.status == Some(2) && told.err.contains("scratch"), "{told:?}");
    }
    let little = ["nodes:in.dat", "-o", "nodes:part", "--on", "n1", "--memory", "20MiB"];
    let told = Running::start(lab.command(&[&["sort"][..], &little].concat()).current_dir(&place.0)).ends();
    assert!(told.err.contains("n1: memory of 20 MiB is too small"), "{told:?}");
    assert!(files(&lab, 2).is_empty() && place.names() == ["in"], "nothing is left");
}

#[test]
fn a_full_disk_on_one_host_ends_all_and_leaves_nothing() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let place = Place::new();
    place.shell("$T gen 90k in -q").is_done();
    deal(&lab, &place, 3, Some(100));
    for host in hosts(3) {
        std::fs::create_dir(lab.directory(&host).join("out")).unwrap();
    }
    // A mount must be made in the node's own mount namespace to be seen by it.
    let ready = std::fs::read_to_string(lab.directory("n2").join("ready")).unwrap();
    let (node, small) = (from_json::<NodeReady>(ready.trim()).unwrap().pid, lab.directory("n2").join("out"));
    let there = |line: &str| place.shell(&format!("nsenter -m -t {node} {line} {}", small.display()));
    if there("mount -t tmpfs -o size=1m small").status != Some(0) {
        return skipped("nothing can be mounted here");
    }
    let told = sort(&lab, &place, &["nodes:in.dat", "-o", "nodes:out/part-{}", "--record", "100"]);
    assert!(told.status == Some(2) && told.err.contains("n2: cannot create"), "{told:?}");
    assert!(told.err.contains("has 1 MiB left"), "{told:?}");
    assert_eq!(there("ls -A").is_done(), "");
    let left = |host: &str| lab.directory(host).join("out").read_dir().unwrap().count();
    until("tidiness", || left("n1") + left("n3") == 0);
}

#[test]
fn whatever_fails_while_records_cross_the_river_ends_all_and_leaves_nothing() {
    fails_at("read+river");
}

#[test]
fn whatever_fails_while_ranges_are_written_ends_all_and_leaves_nothing() {
    fails_at("sort+write");
}

/// Tries every fault at this stage of a sort.
fn fails_at(stage: &str) {
    for fault in ["kill", "freeze", "cut", "cancel", "client"] {
        // Disks so slow that each of the two stages takes seconds.
        let Some(lab) = Lab::up(&["4", "--disk", "6MB/s"]) else { return };
        let place = Place::new();
        place.shell("$T gen 600k in -q").is_done();
        deal(&lab, &place, 4, Some(100));
        let args = ["sort", "nodes:in.dat", "-o", "nodes:part-{}", "--record", "100", "--memory", "40MiB"];
        let mut command = lab.command(&[&args[..], &["--progress", "always"]].concat());
        let log = std::fs::File::create(place.0.join("log")).unwrap();
        let mut running = Running(command.current_dir(&place.0).stderr(log).spawn().unwrap());
        let log = || String::from_utf8_lossy(&place.read("log")).into_owned();
        until(stage, || log().contains(stage));
        let since = Instant::now();
        match fault {
            "cancel" => running.signal("-TERM"),
            "client" => running.signal("-KILL"),
            fault => lab.call(fault, &["n3"]),
        }
        let status = running.0.wait().unwrap();
        let took = since.elapsed();
        let line = log().lines().rfind(|line| line.starts_with("thalweg:")).unwrap_or("").to_string();
        println!("{stage:<10}  {fault:<6}  told after {:>5.2} s  {line}", took.as_secs_f64());
        let expected = match fault {
            "cancel" => Some(143),
            "client" => None,
            _ => Some(2),
        };
        assert!(
            status.code() == expected && took < TOLD_WITHIN,
            "{fault}: {status} after {took:?}: {}",
            log()
        );
        assert!(expected != Some(2) || line.starts_with("thalweg: n3: "), "{fault}: {line}");
        // A node that is dead or frozen cannot clean up; the next sort there does.
        until("tidiness", || {
            let gone = |path: &PathBuf| expected == Some(2) && path.starts_with(lab.directory("n3"));
            files(&lab, 4).iter().all(gone)
        });
        let bytes = |host: &String| std::fs::metadata(lab.directory(host).join("in.dat")).unwrap().len();
        assert_eq!(hosts(4).iter().map(bytes).sum::<u64>(), 60_000_000, "inputs are whole");
    }
}
