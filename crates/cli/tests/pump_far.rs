//! Transfers between hosts of a lab, in both directions and from node to node, interrupted at either end and resumed;
//! the kernel counts the bytes on the links. Without root each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests use files and the clock directly.

#[path = "pump_outside/named.rs"]
mod named;
mod support;
#[path = "pump_outside/walk.rs"]
mod walk;

use std::time::{Duration, Instant};

use named::{files, groups, planted};
use support::lab::Lab;
use support::{Outcome, Place, Running, skipped, until};
use thalweg_api::{ClusterReport, PumpChange, PumpReceipt, from_json};
use thalweg_base::rng::Rng;
use walk::{ATTRIBUTES, OF_EVERYTHING, WITH_ATTRIBUTES, are_same};

const FILE_BYTES: u64 = 40_000_000;
const SLOWLY: [&str; 3] = ["--limit", "20MB", "-q"];
const JOURNAL: &str = ".out.thalweg-journal";

fn is_within(part: f64, a: u64, b: u64) -> bool {
    (a as f64 - b as f64).abs() <= part * b as f64
}

/// A file of random bytes and a lab in which every host sees the place.
fn prepared(hosts: &str) -> Option<(Lab, Place)> {
    let lab = Lab::up(&[hosts])?;
    let place = Place::new();
    place.shell(&format!("head -c {FILE_BYTES} /dev/urandom > in")).is_done();
    Some((lab, place))
}

fn at(host: &str, place: &Place, name: &str) -> String {
    format!("{host}:{}/{name}", place.0.display())
}

fn pump(lab: &Lab, place: &Place, args: &[&str]) -> Outcome {
    Running::start(lab.command(&[&["pump"], args].concat()).current_dir(&place.0)).ends()
}

fn receipt(told: &Outcome) -> PumpReceipt {
    from_json(told.is_done()).unwrap()
}

fn listed(place: &Place) -> u64 {
    let text = std::fs::read_to_string(place.0.join(JOURNAL)).unwrap_or_default();
    let lens = text.lines().filter(|line| line.contains(" range ")).filter_map(|line| line.split(' ').nth(4));
    lens.filter_map(|len| len.parse::<u64>().ok()).sum()
}

/// Begins a transfer, and returns when the journal lists a large part of it.
fn begun(lab: &Lab, place: &Place, args: &[&str]) -> Running {
    let args = [&["pump"], args, &SLOWLY].concat();
    let running = Running::start(lab.command(&args).current_dir(&place.0));
    until("a part of it", || listed(place) > FILE_BYTES / 4);
    running
}

/// Checks that it ended in time with one line that contains this, and that no file has the final name.
#[track_caller]
fn is_told(place: &Place, running: Running, since: Instant, holds: &[&str]) {
    ends_with(2, place, running, since, holds);
}

#[track_caller]
fn ends_with(status: i32, place: &Place, running: Running, since: Instant, holds: &[&str]) {
    let told = running.ends();
    assert!(since.elapsed() < Duration::from_secs(9), "after {:?}", since.elapsed());
    let line = told.err.lines().last().unwrap_or_default();
    assert!(told.status == Some(status) && holds.iter().all(|text| line.contains(text)), "{told:?}");
    assert!(!place.0.join("out").exists());
}

/// Checks that a resumed transfer continues from the listed data, and that only the rest crosses the links.
#[track_caller]
fn is_gone_on_from(lab: &Lab, place: &Place, args: &[&str], host: &str, to_host: bool) {
    let there = listed(place);
    let count = |(to, from): (u64, u64)| if to_host { to } else { from };
    let before = count(lab.carried(host));
    let told = receipt(&pump(lab, place, &[args, &["--resume", "--json"]].concat()));
    let moved = count(lab.carried(host)) - before;
    assert!(told.resumed_bytes == there && told.bytes == FILE_BYTES && told.holds, "{there} of {told:?}");
    assert!(is_within(0.05, moved, FILE_BYTES - there), "{moved} bytes for {}", FILE_BYTES - there);
    assert!(place.read("out") == place.read("in"));
    assert_eq!(place.names(), ["in", "out"]);
}

#[test]
fn trees_go_there_and_back_and_past_the_client() {
    let Some((lab, place)) = prepared("2") else { return };
    place.shell(OF_EVERYTHING).is_done();
    let status: ClusterReport = from_json(&lab.run(&["cluster", "status", "--json"]).out).unwrap();
    let pids: Vec<u32> = status.hosts.iter().map(|host| host.status.as_ref().unwrap().pid).collect();
    let (tree, n1) = (place.0.join("tree"), at("n1", &place, "one"));
    let there = receipt(&pump(&lab, &place, &["tree", &n1, "--json"]));
    are_same(&tree, &place.0.join("one"));
    let back = receipt(&pump(&lab, &place, &[&n1, "two", "--json", "--streams", "3"]));
    are_same(&tree, &place.0.join("two"));
    let before = lab.carried("n2");
    let past = receipt(&pump(&lab, &place, &[&n1, &at("n2", &place, "three"), "--json", "--verify"]));
    are_same(&tree, &place.0.join("three"));
    for told in [&there, &back, &past] {
        assert!(told.holds && told.proved && told.checksum_in != 0, "{told:?}");
        assert_eq!((told.links, told.hard_links, told.directories), (3, 3, 7), "{told:?}");
    }
    assert_eq!((&past.source.host[..], past.source.pid), ("n1", pids[0]));
    assert_eq!((&past.dest.host[..], past.dest.pid, past.verified), ("n2", pids[1], true));
    assert_eq!((&there.source.host[..], &back.dest.host[..]), ("", ""));
    // The data went directly between the nodes, and holes were not sent.
    let sent = past.link.unwrap().sent_bytes;
    let moved = lab.carried("n2").0 - before.0;
    assert!(sent < 7_000_000 && is_within(0.05, moved, sent), "{moved} bytes on the link, {sent} sent");
    // Existing files are skipped; those that appeared, disappeared or changed are not.
    place.shell("rm tree/a/nothing; echo new > tree/new; echo longer > tree/many/7").is_done();
    let again = receipt(&pump(&lab, &place, &["tree/", &n1, "--resume", "--json"]));
    assert_eq!((again.files, again.resumed_files), (2, 706), "{again:?}");
    place
        .shell("cp -a tree/new tree/many/7 . && cmp tree/new one/new && cmp tree/many/7 one/many/7")
        .is_done();
    assert!(!place.0.join(".one.thalweg-journal").exists());
}

#[test]
fn attributes_go_there_and_back() {
    let Some((lab, place)) = prepared("2") else { return };
    if place.shell("setfacl --version && getfattr --version && getcap -h").status == Some(127) {
        return skipped("there is no setfacl, getfattr or getcap");
    }
    place.shell(WITH_ATTRIBUTES).is_done();
    let attributes = |of: &str| place.shell(&format!("cd {of} && {ATTRIBUTES}")).out;
    let (n1, n2) = (at("n1", &place, "one"), at("n2", &place, "two"));
    for (from, to, there) in [("tree", &*n1, "one"), (&n1, &n2, "two"), (&n2, "three", "three")] {
        let told = receipt(&pump(&lab, &place, &[from, to, "--json", "--streams", "2"]));
        assert_eq!(told.not_kept, 0, "{told:?}");
        assert_eq!(attributes(there), attributes("tree"), "{from} to {to}");
    }
    // What is equal gets only its attributes.
    place.shell("rm tree/sub/again one/sub/again; setfattr -x user.comment one/small; setfacl -b one/large; setfattr -n user.comment -v new one/large").is_done();
    let told = receipt(&pump(&lab, &place, &["tree/", &n1, "--json", "--compare", "content"]));
    assert_eq!((told.files, attributes("one")), (0, attributes("tree")), "{told:?}");
    pump(&lab, &place, &["tree", &at("n1", &place, "plain"), "-q", "--no-xattrs"]).is_done();
    assert!(!attributes("plain").contains("user."));
}

#[test]
fn what_a_node_notices_and_how_far_it_is_reaches_whoever_asked() {
    let Some((lab, place)) = prepared("2") else { return };
    place
        .shell("mkdir tree && mkfifo tree/pipe && mv in tree/in && : > tree/.x.thalweg-journal && mkdir tree/.y.thalweg-partial")
        .is_done();
    for (from, to) in [("n1", "n2"), ("n1", "n1")] {
        let dest = format!("out-{to}");
        let args = ["pump", &at(from, &place, "tree"), &at(to, &place, &dest), "--progress", "always"];
        let limited = [&args[..], &["--limit", "20MB"]].concat();
        let told = Running::start(lab.command(&limited).current_dir(&place.0)).ends();
        assert_eq!(told.status, Some(0), "{told:?}");
        assert!(told.err.contains("tree/pipe is a pipe, a socket or a device; passed over"), "{told:?}");
        // Within one host, hidden names are names like any others.
        let hidden = if to == "n2" { &[".x.thalweg-journal", ".y.thalweg-partial"][..] } else { &[] };
        for hidden in hidden {
            let line = format!("tree/{hidden} is what another run left, or is writing; passed over");
            assert!(told.err.contains(&line) && !place.0.join(&dest).join(hidden).exists(), "{told:?}");
        }
        let lines: Vec<&str> = told.err.lines().filter(|line| line.contains("read+write")).collect();
        assert!(lines.len() >= 2 && lines.iter().any(|line| line.contains("MB")), "{told:?}");
        assert!(place.0.join(&dest).join("in").exists());
    }
}

#[test]
fn streams_zeros_and_nothing_are_ends_on_hosts_too() {
    let Some((lab, place)) = prepared("2") else { return };
    let (n1, n2) = (at("n1", &place, "out"), at("n2", &place, "out"));
    let identity = lab
        .command(&[])
        .get_envs()
        .find_map(|(k, v)| (k == "THALWEG_IDENTITY").then_some(v))
        .unwrap()
        .unwrap()
        .to_owned();
    let own = format!("export THALWEG_IDENTITY={};", identity.to_string_lossy());
    place
        .shell(&format!("{own} cat in | $T pump - {n1} -q && cmp in out && $T pump {n2} - -q | cmp - in"))
        .is_done();
    let before = lab.carried("n1");
    let told = receipt(&pump(&lab, &place, &["--no-disk", "200MB", "n1:null:", "--json", "--streams", "1"]));
    let moved = lab.carried("n1").0 - before.0;
    assert!(
        told.holds && told.bytes == 200_000_000 && is_within(0.05, moved, told.bytes),
        "{moved} {told:?}"
    );
    assert_eq!(
        (&told.source.kind[..], &told.dest.kind[..], &told.dest.host[..]),
        ("memory", "nothing", "n1")
    );
    // Whole blocks, as far as the socket buffers allow.
    assert!(told.link.as_ref().unwrap().bytes_per_completion > 65_536.0, "{told:?}");
    receipt(&pump(&lab, &place, &["n1:zero:3MB", &n2, "--json"]));
    assert!(place.read("out") == vec![0; 3_000_000]);
    for (args, holds) in [
        (["in", "n9:/x"], ["n9", "is not a host"]),
        ([&at("n1", &place, "none"), "x"], ["n1: cannot", "none"]),
        (["in", "n1:/none/x"], ["n1: ", "there is no directory /none"]),
        ([&at("n1", &place, "in"), "n2:/none/x"], ["n1: n2: ", "there is no directory /none"]),
        ([&at("n1", &place, "in"), &at("n1", &place, "in")], ["n1: ", "are the same"]),
    ] {
        pump(&lab, &place, &args).is_refused(&holds);
    }
}

#[test]
fn a_sink_that_is_killed_is_told_at_once_and_gone_on_from() {
    let Some((lab, place)) = prepared("1") else { return };
    let n1 = at("n1", &place, "out");
    let running = begun(&lab, &place, &["in", &n1]);
    lab.call("kill", &["n1"]);
    is_told(&place, running, Instant::now(), &["n1", "--resume"]);
    lab.call("revive", &["n1"]);
    is_gone_on_from(&lab, &place, &["in", &n1], "n1", true);
}

#[test]
fn a_source_that_is_killed_is_gone_on_from_at_the_client_and_at_a_node() {
    let Some((lab, place)) = prepared("1") else { return };
    let n1 = at("n1", &place, "out");
    let running = begun(&lab, &place, &["in", &n1]);
    running.signal("-KILL");
    drop(running);
    // The node has released the output when its links are closed.
    is_gone_on_from(&lab, &place, &["in", &n1], "n1", true);
    place.shell("rm out").is_done();
    let from = at("n1", &place, "in");
    let running = begun(&lab, &place, &[&from, "out"]);
    lab.call("kill", &["n1"]);
    is_told(&place, running, Instant::now(), &["n1", "--resume"]);
    lab.call("revive", &["n1"]);
    is_gone_on_from(&lab, &place, &[&from, "out"], "n1", false);
}

#[test]
fn a_signal_says_so_whatever_waits_for_the_other_end() {
    let Some((lab, place)) = prepared("1") else { return };
    for (args, kept) in [
        (
            [&place.0.join("in").display().to_string(), &at("n1", &place, "out")],
            "what arrived at n1 is kept there",
        ),
        ([&at("n1", &place, "in"), &place.0.join("out").display().to_string()], "is kept beside it"),
    ] {
        for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
            let args = [&["pump"], &args.map(String::as_str)[..], &SLOWLY[..2]].concat();
            let running = Running::start(&mut lab.command(&args));
            until("a part of it", || listed(&place) > FILE_BYTES / 4);
            running.signal(signal);
            let told = running.ends();
            assert_eq!(told.status, Some(status), "{told:?}");
            assert!(told.err.contains(kept) && told.err.contains("interrupted by signal"), "{told:?}");
            let _ = std::fs::remove_file(place.0.join(JOURNAL));
        }
    }
    let refused = pump(&lab, &place, &["in", "n1:zero:5"]);
    refused.is_refused(&["zero: takes nothing"]);
    assert!(!refused.err.contains("--resume"), "nothing is kept: {refused:?}");
}

/// Gives each node of the lab a directory of its own at `place/far`: `place/far-n1` and so on.
fn apart(lab: &Lab, place: &Place) -> Vec<u32> {
    let status: ClusterReport = from_json(&lab.run(&["cluster", "status", "--json"]).out).unwrap();
    let pids: Vec<u32> = status.hosts.iter().map(|host| host.status.as_ref().unwrap().pid).collect();
    for (host, pid) in status.hosts.iter().map(|host| &host.host).zip(&pids) {
        let own = format!("far-{host}");
        place
            .shell(&format!("mkdir -p far {own} && nsenter -t {pid} -m mount --bind $PWD/{own} $PWD/far"))
            .is_done();
    }
    pids
}

/// In a chain each host has what the source has, and every link carries it once.
#[test]
fn one_source_goes_to_several_hosts_and_each_sends_on() {
    let Some((lab, place)) = prepared("4") else { return };
    place.shell(OF_EVERYTHING).is_done();
    let pids = apart(&lab, &place);
    let tree = place.0.join("tree");
    let is_at = |hosts: &[&str], name: &str| {
        hosts.iter().for_each(|host| are_same(&tree, &place.0.join(format!("far-{host}/{name}"))));
    };
    let pump = |args: &[&str]| pump(&lab, &place, args);
    let far = |hosts: &str, name: &str| at(hosts, &place, &format!("far/{name}"));

    let before = ["n1", "n2", "n3"].map(|host| lab.carried(host));
    let told = receipt(&pump(&["tree", &far("n[1-3]", "one"), "--json", "--verify", "--streams", "2"]));
    is_at(&["n1", "n2", "n3"], "one");
    assert!(told.holds && told.proved && told.verified && told.left_out == 0, "{told:?}");
    let ends: Vec<_> =
        [&told.dest].into_iter().chain(&told.onward).map(|end| (&*end.host, end.pid)).collect();
    assert_eq!(ends, [("n1", pids[0]), ("n2", pids[1]), ("n3", pids[2])]);
    let sent = told.link.unwrap().sent_bytes;
    for (host, before) in ["n1", "n2", "n3"].into_iter().zip(before) {
        // What a host receives, and sends on.
        let (inc, out) = (lab.carried(host).0 - before.0, lab.carried(host).1 - before.1);
        assert!(is_within(0.08, inc, sent), "{host} received {inc} bytes, {sent} were sent");
        assert!(host == "n3" || is_within(0.08, out, sent), "{host} sent {out} bytes on, {sent} were sent");
    }

    // From a host to all others; what is listed twice gets it once.
    place.shell("cp -a tree far-n4/tree").is_done();
    let told = receipt(&pump(&[&far("n4", "tree"), &far("!n4,n1,n2,n3,n2", "two"), "--json"]));
    is_at(&["n1", "n2", "n3"], "two");
    assert_eq!((&*told.source.host, told.onward.len(), told.holds), ("n4", 2, true));
    // A file, a stream and nothing.
    place.shell("$T gen 100k records -q").is_done();
    pump(&["records", &far("n3,n1", "records"), "-q"]).is_done();
    place
        .shell("cmp records far-n1/records && cmp records far-n3/records && ! test -e far-n2/records")
        .is_done();
    let shown = pump(&["--no-disk", "50MB", "n[1-2]:null:"]);
    assert!(shown.is_done().contains("nothing at n2"), "{shown:?}");
    // What is not there any more is deleted everywhere.
    place.shell("rm -r tree/many far-n4/tree/many").is_done();
    pump(&["tree/", &far("n[1-3]", "one"), "-q", "--delete"]).is_done();
    is_at(&["n1", "n2", "n3"], "one");
    // An entry that cannot be read is left out everywhere.
    let report = pump(&["tree/", "gone", &far("n[1-2]", "one"), "--json"]);
    assert_eq!(report.status, Some(4), "{report:?}");
    assert_eq!(from_json::<PumpReceipt>(&report.out).unwrap().errors.len(), 1);

    for (args, said) in [
        (vec!["tree", &far("n[1-2]", "one"), "--resume"], "several hosts sends the same to each"),
        (vec!["tree", &far("n[1-2]", "one"), "--compare", "content"], "several hosts sends the same to each"),
        (vec![&*far("n2", "one"), &far("n[1-2]", "three")], "n2 has the sources"),
        (vec!["tree", &far("n[1-9]", "one")], "n5"),
        (vec!["tree", &far("n[1", "one")], "the bracket has no end"),
    ] {
        pump(&args).is_refused(&[said]);
    }
}

#[test]
fn what_fails_at_one_of_several_hosts_ends_the_transfer_and_is_told_with_its_name() {
    let Some((lab, place)) = prepared("3") else { return };
    apart(&lab, &place);
    let far = at("n[1-3]", &place, "far/out");
    let has_no_name = || {
        place.shell("! ls far-n1/out far-n2/out far-n3/out 2>/dev/null | grep .").is_done();
    };
    // The destination is not the same thing.
    place.shell("mkdir -p tree/d far-n3/out").is_done();
    pump(&lab, &place, &["tree", &far])
        .is_refused(&["n3", "the destination is not what it is at the host before"]);
    // The refusal may arrive before that node has removed what it began.
    until("nothing to be left", || place.shell("rmdir far-n3/out").status == Some(0));
    place.shell("touch far-n2/file").is_done();
    pump(&lab, &place, &["in", &at("n[1-3]", &place, "far/file/x")]).is_refused(&["n1", "far/file"]);
    // One is killed, and one is cut off.
    let args: Vec<&str> = [&["pump", "in", &far][..], &SLOWLY].concat();
    let begun = || {
        let running = Running::start(lab.command(&args).current_dir(&place.0));
        until("a part of it is at n3", || {
            let bytes = place.shell("cat far-n3/.out.* | wc -c").out;
            bytes.trim().parse::<u64>().unwrap_or(0) > 4 << 20
        });
        (running, Instant::now())
    };
    let (running, since) = begun();
    lab.call("cut", &["n2", "n3"]);
    is_told(&place, running, since, &["n1: ", "n3"]);
    lab.call("heal", &[]);
    has_no_name();
    let (running, since) = begun();
    lab.call("kill", &["n3"]);
    is_told(&place, running, since, &["n1: ", "n3"]);
    has_no_name();
    // The node that is gone is told at the beginning, too.
    pump(&lab, &place, &["in", &far]).is_refused(&["n1: ", "n3"]);
    has_no_name();
    pump(&lab, &place, &["in", &at("n[1-2]", &place, "far/out"), "-q"]).is_done();
    place.shell("cmp in far-n1/out && cmp in far-n2/out").is_done();
}

#[test]
fn a_cut_link_and_a_frozen_node_are_told_in_time() {
    let Some((lab, place)) = prepared("2") else { return };
    let (from, to) = (at("n1", &place, "in"), at("n2", &place, "out"));
    let running = begun(&lab, &place, &[&from, &to]);
    lab.call("cut", &["n1", "n2"]);
    is_told(&place, running, Instant::now(), &["n1: ", "link with n2", "--resume"]);
    lab.call("heal", &[]);
    // The other end has a time-out of its own.
    until("n2 to give up", || {
        pump(&lab, &place, &[&from, &at("n2", &place, "probe"), "-q"]).status == Some(0)
    });
    place.shell("rm probe").is_done();
    is_gone_on_from(&lab, &place, &[&from, &to], "n2", true);
    place.shell("rm out").is_done();
    let running = begun(&lab, &place, &["in", &to]);
    lab.call("freeze", &["n2"]);
    is_told(&place, running, Instant::now(), &["link with n2", "has said nothing for"]);
    lab.call("heal", &[]);
}

#[test]
fn a_full_disk_and_a_source_that_changes_are_told_by_their_host() {
    // Before the lab starts: its hosts see only what was mounted when they were created.
    let disk = Place::new();
    let mounted = disk.shell("mkdir disk && mount -t tmpfs -o size=20M none disk");
    let Some((lab, place)) = prepared("1") else {
        disk.shell("umount disk");
        return;
    };
    if mounted.status == Some(0) {
        let told = pump(&lab, &place, &["in", &at("n1", &disk, "disk/out")]);
        // The refusal may arrive before the node has removed what it began.
        until("nothing to be left", || disk.shell("ls -A disk").out.is_empty());
        disk.shell("umount disk").is_done();
        told.is_refused(&["n1: cannot write", "disk/out", "it takes 38.15 MiB and", "left"]);
    } else {
        skipped(&format!("nothing can be mounted here: {}", mounted.err));
    }
    // Whichever end reads: to this host, and from one directory of the node to another.
    for out in ["out".to_string(), at("n1", &place, "out")] {
        let running = begun(&lab, &place, &[&at("n1", &place, "in"), &out]);
        place.shell("truncate -s 30000000 in").is_done();
        ends_with(1, &place, running, Instant::now(), &["n1: ", "/in changed while it was read"]);
        place.shell("truncate -s 40000000 in; rm -f .out*").is_done();
    }
}

/// Files that DEST has already are skipped at their first name, and get the others: the sink believes that only of
/// files that it was told to be complete.
#[test]
fn names_of_files_that_are_there_are_given_as_here() {
    let Some((lab, place)) = prepared("1") else { return };
    for seed in 0..4 {
        place.shell(&planted(&mut Rng::new(seed))).is_done();
        for how in [
            "--compare time",
            "--compare content",
            "--update",
            "--existing",
            "--resume",
            "--compare time --update --delete",
        ] {
            place.shell("rm -rf ours theirs; cp -a u ours; cp -a u theirs").is_done();
            let flags: Vec<&str> = how.split(' ').collect();
            let here = place.run(&[&["pump", "s/", "ours", "--json", "--streams", "1"], &flags[..]].concat());
            let n1 = at("n1", &place, "theirs");
            let args = [&["s/", &*n1, "--json", "--streams", "1"], &flags[..]].concat();
            let (here, there) = (receipt(&here), receipt(&pump(&lab, &place, &args)));
            assert!(here.holds && there.holds, "seed {seed} {how}: {here:?} {there:?}");
            assert_eq!(groups(files(&place, "theirs")), groups(files(&place, "ours")), "seed {seed} {how}");
            let counts = |told: &PumpReceipt| (told.files, told.resumed_files, told.skipped, told.hard_links);
            assert_eq!(counts(&there), counts(&here), "seed {seed} {how}");
        }
    }
    // The first name of a file of another time, and then one that is new.
    place.shell("rm -rf s d; mkdir s; echo 1 > s/a; ln s/a s/b; chmod 600 s/a").is_done();
    let d = at("n1", &place, "d");
    receipt(&pump(&lab, &place, &["s", &d, "--json"]));
    place.shell("ln s/a s/c; echo 3 > s/new; chmod 640 s/a").is_done();
    let told = receipt(&pump(&lab, &place, &["s/", &d, "--compare", "time", "--json", "--verify"]));
    assert!(told.holds, "{told:?}");
    are_same(&place.0.join("s"), &place.0.join("d"));
}

/// Several sources that go into one directory of another host.
#[test]
fn sources_that_meet_there_are_one() {
    let Some((lab, place)) = prepared("2") else { return };
    let plant = "rm -rf a b d; mkdir -p a/sub b/sub d/sub; echo 1 > a/fa; echo 2 > b/fb; echo 3 > a/sub/one
        echo 4 > b/sub/one; echo 5 > d/old; echo 6 > d/sub/old; head -c 3000000 /dev/urandom > a/big
        head -c 3000000 /dev/urandom > b/big";
    let from = |host: &str, name: &str| if host.is_empty() { name.into() } else { at(host, &place, name) };
    for (source, dest) in [("", "n1"), ("n1", ""), ("n1", "n2")] {
        place.shell(plant).is_done();
        let (a, b, fb) = (from(source, "a/"), from(source, "b/"), from(source, "b/fb"));
        let d = from(dest, "d");
        let told = pump(&lab, &place, &[&a, &b, &d, "--delete", "--dry-run", "--json"]);
        let told: PumpReceipt = from_json(&told.out).unwrap();
        assert_eq!(
            told.items.iter().filter(|item| item.change == PumpChange::Deleted).count(),
            2,
            "{told:?}"
        );
        let told = pump(&lab, &place, &[&a, &b, &d, "--delete", "--json", "--streams", "3"]);
        assert_eq!(told.status, Some(0), "{told:?}");
        let told: PumpReceipt = from_json(&told.out).unwrap();
        assert_eq!((told.files, told.skipped, told.deleted, told.holds), (4, 2, 2, true), "{told:?}");
        place.shell("cmp a/fa d/fa && cmp b/fb d/fb && cmp a/sub/one d/sub/one && cmp a/big d/big").is_done();
        assert_eq!(pump(&lab, &place, &[&fb, &a, &d, "--delete", "-q"]).status, Some(0));
        assert_eq!(place.shell("cd d; echo $(find . -type f | sort)").out, "./big ./fa ./fb ./sub/one\n");
        // What a missing source has is not known.
        place.shell("rm -r b; echo 7 > d/more").is_done();
        assert_eq!(pump(&lab, &place, &[&a, &b, &d, "--delete", "-q"]).status, Some(4));
        place.shell("[ -e d/more ] && [ -e d/fb ]").is_done();
        // A dry run tells what would be left out.
        place.shell("mkdir -p a/fx; echo 1 > a/fx/y; echo f > d/fx").is_done();
        let told = pump(&lab, &place, &[&a, &d, "--dry-run", "--json"]);
        assert_eq!(told.status, Some(4), "{told:?}");
        let told: PumpReceipt = from_json(&told.out).unwrap();
        assert!(told.holds && told.errors.len() == 1 && told.errors[0].path.ends_with("fx"), "{told:?}");
    }
}
