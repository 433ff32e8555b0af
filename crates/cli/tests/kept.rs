//! Permanent links between nodes, commands over them, and what a node leaves when it is killed.
#![allow(clippy::disallowed_methods)] // Users of the command open files and sockets in other ways.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::nodes::Nodes;
use support::{Running, until};
use thalweg_api::{ExecReport, JobState, from_json};
use thalweg_io::process;

/// Waits until every node has a link with every other.
fn meshed(nodes: &Nodes, links: u64) {
    until("every node has its links", || {
        let hosts = nodes.status().hosts;
        hosts.iter().all(|host| host.status.as_ref().is_some_and(|status| status.links >= links))
    });
}

#[test]
fn a_command_through_one_node_is_the_same_as_to_each() {
    let nodes = Nodes::start(3);
    meshed(&nodes, 2);
    let script = "echo out; echo err >&2; exit $(($THREE + 0))";
    for via in ["n1", "n3"] {
        let args = ["exec", "--gather", "--env", "THREE=3", "--on", "n3,n1,n2", "--", "sh", "-c", script];
        let direct = nodes.run(&args);
        let through = nodes.run(&[&["exec", "--via", via], &args[1..]].concat());
        assert_eq!((direct.status, &direct.out, &direct.err), (Some(3), &through.out, &through.err));
        assert_eq!(direct.out, "n[1-3]: out\n");
    }
    // The client needs one link, and the nodes use only their permanent ones.
    until("the client's links are gone", || {
        nodes.status().hosts.iter().all(|host| host.status.as_ref().is_some_and(|s| s.links <= 4))
    });
    let long = nodes.run(&["exec", "--via", "n2", "--", "head", "-c", "3000000", "/dev/zero"]);
    assert_eq!((long.status, long.out.bytes().filter(|b| *b == 0).count()), (Some(0), 9_000_000));
    let missing = nodes.run(&["exec", "--via", "n2", "--on", "n1", "--", "/nonexistent/program"]);
    missing.is_refused(&["n1: cannot start /nonexistent/program: No such file"]);
    nodes.run(&["exec", "--via", "n9", "--", "true"]).is_refused(&["'n9' is not a host of cluster river"]);
    let pinged: ExecReport =
        from_json(nodes.run(&["node", "ping", "--via", "n1", "--json"]).is_done()).unwrap();
    assert!(pinged.hosts.iter().all(|h| h.end.as_ref().is_some_and(|end| end.state == JobState::Done)));
    assert_eq!(nodes.run(&["node", "ping"]).is_done().lines().count(), 3);
    assert!(nodes.jobs().jobs.iter().all(|job| job.command[0] != "ping"), "a ping takes nobody's place");
}

#[test]
fn standard_input_goes_through_and_a_vanished_client_ends_it_everywhere() {
    let nodes = Nodes::start(2);
    meshed(&nodes, 1);
    let own = nodes.place.0.join("own");
    let line = format!(
        "export THALWEG_IDENTITY={}; seq 200000 | $T exec --via n1 --gather -- sha256sum; seq 200000 | sha256sum; \
         yes | $T exec --via n1 -- true",
        own.display()
    );
    let told = nodes.place.shell(&line);
    let lines: Vec<&str> = told.is_done().lines().collect();
    assert_eq!(lines[0], format!("n[1-2]: {}", lines[1]));
    // With input that nobody reads, and without input.
    for input in ["", "yes | "] {
        let line = format!(
            "export THALWEG_IDENTITY={}; : >pids; {input}$T exec --via n1 -- sh -c 'echo $$; exec sleep 1000' >>pids & \
             while [ \"$(wc -l <pids)\" -lt 2 ]; do sleep 0.02; done; kill -9 $!; wait; cat pids",
            own.display()
        );
        let told = nodes.place.shell(&line);
        let pids: Vec<u32> =
            told.out.lines().filter_map(|line| line.split_once(": ")?.1.parse().ok()).collect();
        assert_eq!(pids.len(), 2, "{told:?}");
        until("jobs of a vanished client are gone", || pids.iter().all(|pid| !process::is_alive(*pid)));
    }
}

#[test]
fn a_link_that_is_lost_is_opened_again_and_a_dead_host_is_told() {
    let mut nodes = Nodes::start(2);
    meshed(&nodes, 1);
    let mut second = nodes.running.pop().unwrap();
    nodes.pids.pop();
    support::nodes::terminate(&second);
    second.wait().unwrap();
    let begun = Instant::now();
    let told = nodes.run(&["exec", "--via", "n1", "--", "echo", "on"]);
    assert_eq!((told.status, told.out.as_str()), (Some(2), "n1: on\n"), "{told:?}");
    assert!(told.err.contains("n2: cannot reach n2 at 127.0.0.1:"), "{told:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    nodes.begin(1);
    // At once, without waiting for the next attempt to connect.
    nodes.run(&["exec", "--via", "n1", "--", "true"]).is_done();
    nodes.run(&["exec", "--via", "n2", "--", "true"]).is_done();
    nodes.run(&["cluster", "drop", "n2"]).is_done();
    let told = nodes.run(&["node", "ping", "--via", "n1", "--json"]);
    assert!(told.is_done().contains("n1") && !told.out.contains("n2"), "{told:?}");
    until("the dropped one's link is gone", || {
        nodes.status().hosts[0].status.as_ref().is_some_and(|status| status.links <= 1)
    });
}

/// The time is in the cluster file, so that hosts and clients agree.
#[test]
fn a_silent_host_is_dead_after_the_time_of_its_cluster() {
    let mut nodes = Nodes::made_with(&[String::new(), String::new()], &["--dead-after", "1500ms"]);
    (0..2).for_each(|i| nodes.begin(i));
    meshed(&nodes, 1);
    let mut client = nodes.place.command(&["exec", "--on", "n2", "--", "sleep", "1000"]);
    let client = Running::start(client.env("THALWEG_IDENTITY", "own"));
    until("it runs", || nodes.jobs().jobs.iter().any(|job| job.command[0] == "sleep"));
    let begun = Instant::now();
    signal("-STOP", nodes.pids[1]);
    let told = client.ends();
    let took = begun.elapsed();
    // Without the flag it would be 5 s.
    assert!((1.4..4.9).contains(&took.as_secs_f64()), "{took:?}: {told:?}");
    assert!(
        told.status == Some(2) && told.err.contains("link with n2 closed: it has said nothing for 1."),
        "{told:?}"
    );
    until("the other node has ended its link", || {
        nodes.status().hosts[0].status.as_ref().is_some_and(|status| status.links <= 1)
    });
    signal("-CONT", nodes.pids[1]);
    nodes.run(&["exec", "--on", "n2", "--", "true"]).is_done();
    let init =
        |time| nodes.run(&["cluster", "init", "lake", "n1", "--identity", "lake", "--dead-after", time]);
    init("399ms").is_refused(&["a host cannot count as dead after 399 ms; write a time from 400ms to 10m"]);
    init("11m").is_refused(&["a host cannot count as dead after 660000 ms"]);
    nodes
        .run(&["cluster", "drop", "n2", "--dead-after", "2s"])
        .is_refused(&["--dead-after is a flag of cluster init, not of drop"]);
}

fn signal(which: &str, pid: u32) {
    let sent = std::process::Command::new("kill").args([which, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_killed_node_leaves_nothing_that_it_started() {
    for guard_is_killed in [false, true] {
        let mut nodes = Nodes::start(1);
        // A process in the job's group, one in a session of its own, and their parent.
        let script = "sleep 1000 & setsid sleep 1001 & echo $! $$; wait";
        let mut client = nodes.place.command(&["exec", "--", "sh", "-c", script]);
        let mut client = client
            .env("THALWEG_IDENTITY", "own")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut pids: Vec<u32> =
            line.trim_start_matches("n1: ").split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        pids.push(nodes.pids[0]);
        let mut guard = nodes.running.pop().unwrap();
        if guard_is_killed {
            // Only the guard can find the process with a session of its own.
            let alone = pids.remove(0);
            guard.kill().unwrap();
            signal("-9", alone);
        } else {
            signal("-9", nodes.pids[0]);
        }
        until("all of it is gone", || pids.iter().all(|pid| !process::is_alive(*pid)));
        let ended = guard.wait_with_output().unwrap();
        if !guard_is_killed {
            let told = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(137), "{told}");
            assert!(told.starts_with("thalweg: the node was ended by signal 9; 3 processes that"), "{told}");
        }
        let told = support::Outcome::of(client.wait_with_output().unwrap());
        // A node that was asked to end may have had time to report it.
        let why = ["link with n1", "n1: the node is going down"];
        assert!(why.iter().any(|why| told.err.contains(why)), "{told:?}");
    }
}

#[test]
fn a_renewed_certificate_is_taken_without_a_restart() {
    let nodes = Nodes::start(1);
    let shown = || {
        let line = format!(
            "openssl s_client -connect 127.0.0.1:{} </dev/null 2>/dev/null | openssl x509 -noout -serial",
            nodes.ports[0]
        );
        nodes.place.shell(&line).out
    };
    let before = shown();
    assert!(before.starts_with("serial="), "{before}");
    let mut held = nodes.place.command(&["exec", "--", "sh", "-c", "echo on; read line; echo $line"]);
    let held = held.env("THALWEG_IDENTITY", "own").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut held = held.unwrap();
    let (mut said, mut there) = (held.stdout.take().unwrap(), [0; 7]);
    said.read_exact(&mut there).unwrap();
    assert_eq!(&there, b"n1: on\n");
    nodes.run(&["cluster", "renew", "n1"]).is_done();
    until("the new one is shown", || ![before.clone(), String::new()].contains(&shown()));
    until("it is of use", || nodes.run(&["exec", "--", "true"]).status == Some(0));
    // A job that was running has continued.
    held.stdin.take().unwrap().write_all(b"still\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), held.wait().unwrap().code()), ("n1: still\n", Some(0)));
    // A command that begins during a renewal finds a key and a certificate that belong together. It may still fail if
    // the node does not have the new ones yet, or if the client was renewed again before the command ended.
    std::thread::scope(|scope| {
        let renewing = scope
            .spawn(|| (0..20).for_each(|_| assert_eq!(nodes.run(&["cluster", "renew"]).status, Some(0))));
        while !renewing.is_finished() {
            let told = nodes.run(&["exec", "--", "true"]);
            let early = ["not in the cluster file", "not in its cluster file", "link with n1"];
            let is_early = early.iter().any(|why| told.err.contains(why));
            assert!(told.status == Some(0) || is_early, "{told:?}");
        }
    });
    until("the last is of use", || nodes.run(&["exec", "--", "true"]).status == Some(0));
    // A key and a certificate that do not belong together change nothing.
    nodes.place.write("own/hosts/n1/cert.pem", b"nonsense");
    std::thread::sleep(Duration::from_millis(1500));
    nodes.run(&["exec", "--", "true"]).is_done();
}

/// What went wrong: two machines with the same identity displaced each other on the links of the other hosts, and no
/// message said so.
#[test]
fn a_host_that_is_there_twice_is_told() {
    let mut nodes = Nodes::start(2);
    meshed(&nodes, 1);
    nodes.place.shell("cp -a own/hosts/n1 copied").is_done();
    let (copy, _) = nodes.spawn(&["--identity", "copied", "--listen", "127.0.0.1:0"]);
    nodes.running.push(copy);
    let twice = "n1 is there twice: two processes show its certificate; stop one of them, or thalweg cluster renew n1";
    until("it is told", || nodes.status().warnings == [twice]);
    assert_eq!(nodes.run(&["cluster", "doctor"]).err, format!("thalweg: {twice}\n"));
    let mut second = nodes.running.remove(1);
    support::nodes::terminate(&second);
    second.wait().unwrap();
    let mut log = String::new();
    second.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(log, format!("thalweg: {twice}\n"));
}

#[test]
fn a_node_that_dies_under_a_command_is_told_for_every_host() {
    let nodes = Nodes::start(2);
    meshed(&nodes, 1);
    let mut client =
        nodes.place.command(&["exec", "--via", "n1", "--on", "n2", "--", "sh", "-c", "echo $$; sleep 1000"]);
    let client = client.env("THALWEG_IDENTITY", "own").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut client = client.unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: u32 = line.trim_start_matches("n2: ").trim().parse().unwrap();
    let killed = std::process::Command::new("kill").args(["-9", &nodes.pids[0].to_string()]).status();
    assert!(killed.unwrap().success());
    let told = support::Outcome::of(client.wait_with_output().unwrap());
    assert!(told.status == Some(2) && told.err.starts_with("thalweg: n2: link with n1"), "{told:?}");
    until("what ran on the other is gone", || !process::is_alive(pid));
}
