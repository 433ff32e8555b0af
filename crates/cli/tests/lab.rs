//! Nodes on hosts with a network between them that can be slow, lossy and cut. Without root, or without the programs
//! that make a network, each test says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests look at what the system lists.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use support::lab::Lab;
use support::{Outcome, Place, until};
use thalweg_api::{ClusterReport, from_json};
use thalweg_io::process;

fn seconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64()
}

fn status(lab: &Lab) -> ClusterReport {
    from_json(&lab.run(&["cluster", "status", "--json"]).out).unwrap()
}

#[test]
fn hosts_of_a_lab_are_apart_and_two_labs_do_not_meet() {
    let (Some(lab), Some(other)) = (Lab::up(&["3"]), Lab::up(&["2"])) else { return };
    assert_ne!(lab.id, other.id);
    let (here, there) = (status(&lab), status(&other));
    assert_eq!((here.hosts.len(), there.hosts.len()), (3, 2));
    let mut pids: Vec<u32> =
        here.hosts.iter().chain(&there.hosts).map(|h| h.status.as_ref().unwrap().pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 5, "a process for each host");
    let seen = lab.run(&["exec", "--gather", "--", "ip", "-o", "-4", "addr", "show", "eth0"]);
    for (line, host) in seen.is_done().lines().zip(&here.hosts) {
        let address = host.address.trim_end_matches(":7171");
        assert!(line.contains(&format!("inet {address}/24")), "{line}");
    }
    let id = lab.id.clone();
    drop(lab);
    until("the end of the first lab's nodes alone", || {
        pids.iter().filter(|pid| process::is_alive(**pid)).count() == 2
    });
    let left = Command::new("ip").arg("link").output().unwrap();
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&format!("th{id}")));
    assert_eq!(status(&other).hosts.iter().filter(|h| h.status.is_some()).count(), 2);
}

#[test]
fn nodes_that_are_installed_over_ssh_work_and_leave_nothing_when_removed() {
    let Some(lab) = Lab::up(&["2", "--install"]) else { return };
    let ssh = lab.ssh.clone().expect("lab/env tells it");
    let step = |what: &str| lab.run(&["cluster", what, "--ssh", &ssh]);
    assert_eq!(status(&lab).hosts.iter().filter(|host| host.status.is_some()).count(), 2);
    let seen = lab.run(&["exec", "--gather", "--", "ip", "-o", "-4", "addr", "show", "eth0"]);
    let addresses: Vec<&str> =
        seen.is_done().split_whitespace().filter(|word| word.contains("/24")).collect();
    assert!(addresses.len() == 2 && addresses[0] != addresses[1], "each is a host of its own: {seen:?}");
    for (what, says) in [("install", "is installed already"), ("up", "runs already")] {
        assert_eq!(step(what).is_done().matches(says).count(), 2);
    }
    lab.call("kill", &["n2"]);
    until("n2's end", || status(&lab).hosts[1].status.is_none());
    lab.call("revive", &["n2"]);
    lab.run(&["exec", "--", "true"]).is_done();
    let pids: Vec<u32> = status(&lab).hosts.iter().map(|host| host.status.as_ref().unwrap().pid).collect();
    assert_eq!(step("remove").is_done().matches("removed").count(), 2);
    until("the nodes' end", || !pids.iter().any(|pid| process::is_alive(*pid)));
    for host in ["n1", "n2"] {
        assert!(!lab.directory(host).join(".local/share/thalweg").exists(), "something of {host} is left");
    }
    assert_eq!(step("remove").is_done().matches("nothing is installed").count(), 2);
}

/// Delayed packets arrive in the order in which they were sent, as on a wire: protocols below TCP rely on it, and TCP
/// takes reordering for loss.
#[test]
fn what_is_delayed_comes_in_the_order_in_which_it_went() {
    let Some(lab) = Lab::up(&["2", "--delay", "10ms"]) else { return };
    let there = format!("th{}-", lab.id);
    let python = |host: &str, script: &str, to: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{there}{host}"), "python3", "-c", script, to]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let address = status(&lab).hosts[1].address.trim_end_matches(":7171").to_string();
    let receives = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 9))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20); s.settimeout(3); print(flush=True)
last, count, late = -1, 0, 0
while True:
    try: n = int(s.recv(2000)[:8])
    except socket.timeout: break
    count, late, last = count + 1, late + (n < last), max(last, n)
    if n == 19999: break
print(count, late)";
    let sends = "import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(20000):
    s.sendto(b'%08d' % n + b'.' * (n * 7919 % 1400), (sys.argv[1], 9))
    if n % 50 == 0: time.sleep(0.002)";
    let mut receiver = python("n2", receives, &address);
    let mut out = BufReader::new(receiver.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    assert!(python("n1", sends, &address).wait().unwrap().success());
    let mut told = String::new();
    out.read_line(&mut told).unwrap();
    receiver.wait().unwrap();
    let numbers: Vec<u32> = told.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(numbers[0] > 19_000 && numbers[1] == 0, "of 20000 came, and late were: {told}");
}

#[test]
fn a_rate_is_kept_and_losses_are_survived() {
    let Some(lab) = Lab::up(&["2", "--rate", "100mbit", "--loss", "0.1%"]) else { return };
    let begun = Instant::now();
    let told = lab.run(&["exec", "--on", "n1", "--", "head", "-c", "5000000", "/dev/zero"]);
    assert!(told.status == Some(0) && told.out.len() >= 5_000_000, "{} {}", told.out.len(), told.err);
    let took = seconds(begun);
    // 40 Mbit with their headers at 100 Mbit/s; a lost packet may cost a timer of 0.2 s.
    assert!((0.38..2.5).contains(&took), "{took} s");
}

/// The round-trip time between two hosts in seconds: the least of five connections.
fn there_and_back(lab: &Lab, from: &str, address: &str) -> f64 {
    let line = format!(
        "for i in 1 2 3 4 5; do a=$EPOCHREALTIME; exec 3<>/dev/tcp/{}; b=$EPOCHREALTIME; exec 3>&-; \
         echo $((${{b/./}} - ${{a/./}})); done",
        address.replace(':', "/")
    );
    let told = lab.run(&["exec", "--on", from, "--", "bash", "-c", &line]);
    let micros = told.is_done().lines().map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    micros.fold(f64::INFINITY, f64::min) / 1e6
}

/// The number of processes with these words in their command lines.
fn running(words: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(words)).count()
}

#[test]
fn what_a_host_sends_arrives_later_and_whole() {
    let Some(lab) = Lab::up(&["2", "--delay", "10ms", "--rate", "100mbit"]) else { return };
    let addresses: Vec<String> = status(&lab).hosts.into_iter().map(|host| host.address).collect();
    let between = there_and_back(&lab, "n1", &addresses[1]);
    assert!((0.020..0.026).contains(&between), "{between} s there and back");
    let begun = Instant::now();
    std::net::TcpStream::connect(&addresses[0]).unwrap();
    assert!((0.010..0.020).contains(&seconds(begun)), "{} s to a host and back", seconds(begun));
    let place = Place::new();
    place.shell("head -c 5000000 /dev/urandom > in").is_done();
    let at = |host: &str, name: &str| format!("{host}:{}", place.0.join(name).display());
    let begun = Instant::now();
    lab.run(&["pump", &at("n1", "in"), &at("n2", "out"), "-q"]).is_done();
    assert!((0.4..3.0).contains(&seconds(begun)), "40 Mbit took {} s", seconds(begun));
    assert!(place.read("out") == place.read("in"));
    // One process delays all hosts, and ends with them.
    let wires = format!("th{}v1\0", lab.id);
    assert_eq!(running(&wires), 1);
    drop(lab);
    until("the end of what delays", || running(&wires) == 0);
}

#[test]
fn halves_of_a_lab_share_a_trunk() {
    let Some(lab) = Lab::up(&["4", "--trunk", "2x20mbit"]) else { return };
    let place = Place::new();
    place.shell("head -c 5000000 /dev/urandom > in").is_done();
    let took = |from: &str, to: &str| {
        let begun = Instant::now();
        let source = format!("{from}:{}", place.0.join("in").display());
        lab.run(&["pump", &source, &format!("{to}:null:"), "-q"]).is_done();
        seconds(begun)
    };
    for (from, to, is_across) in
        [("n1", "n2", false), ("n1", "n3", true), ("n4", "n3", false), ("n4", "n2", true)]
    {
        // 40 Mbit with their headers at 40 Mbit/s, except for the 64 KiB that pass at once.
        let (took, expected) = (took(from, to), if is_across { 0.95..3.0 } else { 0.0..0.6 });
        assert!(expected.contains(&took), "{took} s from {from} to {to}");
    }
    let id = lab.id.clone();
    drop(lab);
    let left = Command::new("ip").arg("link").output().unwrap();
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&format!("th{id}")), "its bridges are left");
}

#[test]
fn disks_are_slowed_down_and_hosts_have_roles() {
    let Some(lab) = Lab::up(&["3", "--disk", "20MB/s", "--roles", "io:2,sort:1"]) else { return };
    let told = lab.run(&["exec", "--gather", "--on", "@sort,@io", "--", "true"]);
    told.is_done();
    assert!(lab.run(&["exec", "--on", "@sort", "--", "echo", "on"]).is_done() == "n3: on\n");
    lab.run(&["exec", "--on", "@none", "--", "true"])
        .is_refused(&["'none' is not a role of cluster lab-", "which has io, sort"]);
    // Together they write more than either may.
    let begun = Instant::now();
    let args = [
        "exec",
        "--on",
        "@io",
        "--",
        "dd",
        "if=/dev/zero",
        "of=slow",
        "bs=1M",
        "count=16",
        "oflag=direct",
        "status=none",
    ];
    lab.run(&args).is_done();
    let took = seconds(begun);
    assert!((0.6..4.0).contains(&took), "16.8 MB at 20 MB/s took {took} s");
    let groups = || {
        let line =
            format!("ls -d /sys/fs/cgroup/th{0}-* /sys/fs/cgroup/blkio/th{0}-* 2>/dev/null | wc -l", lab.id);
        let told = Command::new("sh").args(["-c", &line]).output().unwrap();
        String::from_utf8_lossy(&told.stdout).trim().to_string()
    };
    assert_eq!(groups(), "3");
    lab.call("down", &[]);
    assert_eq!(groups(), "0", "a lab's control groups go with it");
}

#[test]
fn a_cut_is_told_in_time_heals_and_takes_nobody_else_along() {
    let Some(lab) = Lab::up(&["2"]) else { return };
    let mut held = lab.command(&["exec", "--on", "n1", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let mut held = held.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: u32 = line.trim_start_matches("n1: ").trim().parse().unwrap();
    lab.call("cut", &["n1"]);
    let begun = Instant::now();
    let both = lab.run(&["exec", "--", "hostname"]);
    assert_eq!(both.status, Some(2), "{both:?}");
    assert!(both.out.starts_with("n2: ") && both.err.contains("n1: cannot reach n1"), "{both:?}");
    assert!((4.0..7.0).contains(&seconds(begun)), "{} s", seconds(begun));
    // The held link has been silent for as long, at both ends.
    let told = support::Outcome::of(held.wait_with_output().unwrap());
    assert!(told.err.contains("link with n1") && seconds(begun) < 8.0, "{told:?} after {} s", seconds(begun));
    until("the end of a job whose client was lost", || !process::is_alive(pid));
    assert!(seconds(begun) < 8.0, "{} s", seconds(begun));
    lab.call("heal", &[]);
    lab.run(&["exec", "--", "true"]).is_done();
}

#[test]
fn frozen_and_killed_nodes_are_told_apart() {
    let Some(lab) = Lab::up(&["3"]) else { return };
    let id = lab.run(&["exec", "--detach", "--", "sleep", "1000"]).is_done().trim().to_string();
    lab.call("kill", &["n2"]);
    lab.call("freeze", &["n1"]);
    // A host that cannot be asked is named, and the command does not claim that everything was cancelled.
    let cancelled = lab.run(&["job", "cancel", &id]);
    assert!(
        cancelled.status == Some(2) && cancelled.out.contains("cancelled (it was cancelled)"),
        "{cancelled:?}"
    );
    assert!(cancelled.err.contains("n1: no answer") && cancelled.err.contains("n2: "), "{cancelled:?}");
    let begun = Instant::now();
    let told = lab.run(&["exec", "--", "true"]);
    assert!((4.0..7.0).contains(&seconds(begun)), "{} s", seconds(begun));
    assert!(
        told.err.contains("n1: cannot reach n1 at ") && told.err.contains("no handshake within 5 s"),
        "{told:?}"
    );
    assert!(
        told.err.contains("n2: cannot reach n2 at ") && told.err.contains("Connection refused"),
        "{told:?}"
    );
    assert_eq!((told.err.lines().count(), told.status), (2, Some(2)), "n3 did what it was asked: {told:?}");
    lab.call("heal", &[]);
    lab.run(&["exec", "--on", "n1,n3", "--", "true"]).is_done();
}

#[test]
fn a_host_that_lacks_the_program_keeps_no_input_from_the_others() {
    const BYTES: usize = 3_000_000;
    let Some(lab) = Lab::up(&["3"]) else { return };
    for host in ["n1", "n3"] {
        std::fs::copy("/bin/cat", lab.directory(host).join("only")).unwrap();
    }
    for via in [&[][..], &["--via", "n1"], &["--via", "n2"]] {
        let mut command = lab.command(&[&["exec", "--timeout", "20"], via, &["--", "./only"]].concat());
        let mut client =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = client.stdin.take().unwrap();
        let puts = std::thread::spawn(move || stdin.write_all(&vec![0; BYTES]).unwrap());
        let told = Outcome::of(client.wait_with_output().unwrap());
        puts.join().unwrap();
        assert_eq!(told.out.bytes().filter(|byte| *byte == 0).count(), 2 * BYTES, "{via:?}");
        assert!(told.err.contains("n2: cannot start ./only"), "{}", told.err);
    }
}
