//! Nodes and their commands, seen from outside: real daemons on loopback ports, each with its own identity.
//!
//! Invariant: a test ends every node that it starts, and everything that the node was asked to run.
#![allow(clippy::disallowed_methods)] // Users of the command open files and sockets in other ways.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::nodes::{Nodes, terminate};
use support::{Place, Running, until};
use thalweg_api::{
    AuditLine, ExecReport, JobList, JobState, NodeReady, NodeStatus, PumpRequest, ServiceRequest,
    TransferRequest, from_json,
};
use thalweg_io::process;
use thalweg_wire::{Client, new_id};

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_command_runs_on_all_hosts_and_tells_how_it_ended_on_each() {
    let nodes = Nodes::start(3);
    let told =
        nodes.run(&["exec", "--env", "WORD=river", "--", "sh", "-c", "echo $WORD; echo and; printf more"]);
    let lines: Vec<String> =
        ["and", "more", "river"].iter().flat_map(|w| (1..=3).map(move |i| format!("n{i}: {w}"))).collect();
    let mut expected: Vec<&str> = lines.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(sorted(told.is_done()), expected);

    let gathered =
        nodes.run(&["exec", "--gather", "--on", "n2,n1", "--", "sh", "-c", "echo a; sleep 0.05; echo b"]);
    assert_eq!(gathered.is_done(), "n[1-2]: a\nn[1-2]: b\n");

    let failed = nodes.run(&["exec", "--on", "n2", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((failed.status, failed.out.as_str()), (Some(7), "n2: out\n"));
    assert_eq!(failed.err, "n2: err\nthalweg: n2: exit status 7\n");

    let missing = nodes.run(&["exec", "--on", "n1", "--", "/nonexistent/program"]);
    missing.is_refused(&["n1: cannot start /nonexistent/program: No such file"]);
    nodes
        .run(&["exec", "--on", "n9", "--", "true"])
        .is_refused(&["'n9' is not a host of cluster river", "n1, n2, n3"]);

    let late = nodes.run(&["exec", "--timeout", "200ms", "--json", "--", "sleep", "60"]);
    assert_eq!(late.status, Some(137), "{late:?}");
    let report: ExecReport = from_json(&late.out).unwrap();
    for host in &report.hosts {
        let end = host.end.as_ref().unwrap();
        assert_eq!((end.state, end.signal), (JobState::Cancelled, Some(9)));
        assert!(host.seconds < 2.0, "{host:?}");
    }
    // Long output, more than all buffers on its path hold.
    let long = nodes.run(&["exec", "--", "head", "-c", "3000000", "/dev/zero"]);
    assert_eq!((long.status, long.out.bytes().filter(|b| *b == 0).count()), (Some(0), 9_000_000));
}

#[test]
fn hosts_are_listed_and_folded_as_users_of_pdsh_expect() {
    let nodes = Nodes::start(4);
    let run =
        |args: &[&str], script: &str| nodes.run(&[&["exec"], args, &["--", "sh", "-c", script]].concat());
    // A command knows its host, on whatever way it came.
    for how in [&["--gather"][..], &["--gather", "--via", "n2"]] {
        let told = run(&[how, &["--on", "n[1-9],!n[3,5-9]"]].concat(), "echo $THALWEG_NODE");
        assert_eq!(told.err, "thalweg: 'n5' is not a host of cluster river, which has n1, n2, n3, n4\n");
        let told = run(&[how, &["--on", "!n3"]].concat(), "echo $THALWEG_NODE");
        assert_eq!(told.is_done(), "n1: n1\nn2: n2\nn4: n4\n");
    }
    // Equal output is printed once, with that on standard error; so are failures.
    let told = run(
        &["--gather", "--on", "n[1-4]"],
        "case $THALWEG_NODE in n2) echo b;; *) echo a; echo a; exit 3; esac",
    );
    assert_eq!((told.status, &told.out[..]), (Some(3), "n[1,3-4]: a\nn[1,3-4]: a\nn2: b\n"));
    assert_eq!(told.err, "thalweg: n[1,3-4]: exit status 3\n");
    for (on, why) in [
        ("n[1-", "'n[1-' at character 2: the bracket has no end"),
        ("n1,n[4-2]", "'n1,n[4-2]' at character 6: the range 4-2 ends before it begins; write 2-4"),
        ("n[1-2],!n[1-2]", "'n1,n2,!n1,!n2' leaves no host"),
    ] {
        run(&["--on", on], "true").is_refused(&[why]);
    }
    // In a shared directory only one of them finds no other.
    let alone = format!("mkdir {0} && sleep 0.2 && rmdir {0}", nodes.place.0.join("alone").display());
    assert_eq!(run(&[], &alone).status, Some(1));
    run(&["--fanout", "1"], &alone).is_done();
    run(&["--fanout", "3", "--gather"], "echo a").is_done();
    run(&["--fanout", "2", "--via", "n1"], "true").is_refused(&["the node of n1 asks all hosts at once"]);
    run(&["--fanout", "0"], "true").is_refused(&["'0' is not a number of hosts"]);
    let piped = format!(
        "echo a | THALWEG_IDENTITY={} $T exec --fanout 2 -- cat",
        nodes.place.0.join("own").display()
    );
    nodes
        .place
        .shell(&piped)
        .is_refused(&["standard input goes to all hosts at once; with --fanout, add < /dev/null"]);
}

#[test]
fn output_that_cannot_be_shown_whole_is_told() {
    let nodes = Nodes::start(1);
    let gather = ["exec", "--gather", "--", "sh", "-c", "seq 3000000"];
    let told = nodes.run(&gather);
    assert!(told.status == Some(2) && told.out.ends_with("n1: 3000000\n"), "{:?}", told.status);
    assert!(told.err.starts_with("thalweg: n1: the first ") && told.err.lines().count() == 1, "{}", told.err);
    let told = nodes.run(&["exec", "--json", "--", "sh", "-c", "echo out; echo err >&2"]);
    let report: ExecReport = from_json(told.is_done()).unwrap();
    assert_eq!(report.hosts[0].out.as_deref(), Some("out\n"));
    assert_eq!(report.hosts[0].err.as_deref(), Some("err\n"));
    nodes
        .place
        .shell("THALWEG_IDENTITY=own $T exec -- echo out > /dev/full")
        .is_refused(&["cannot write what the hosts say: No space left"]);
    // Nobody reads the output: one signal is enough, and the remote process ends too.
    let mut flood = nodes.place.command(&["exec", "--", "yes"]);
    let running = Running::start(flood.env("THALWEG_IDENTITY", "own"));
    running.handles_signals();
    running.waits();
    running.signal("-TERM");
    let told = running.ends();
    assert_eq!(told.status, None, "{}", told.err);
    until("nobody says yes", || nodes.jobs().jobs.iter().all(|job| job.state != JobState::Running));
}

#[test]
fn standard_input_goes_to_every_host() {
    let nodes = Nodes::start(2);
    let own = nodes.place.0.join("own");
    let line = format!(
        "seq 200000 | THALWEG_IDENTITY={} $T exec --gather -- sha256sum; seq 200000 | sha256sum",
        own.display()
    );
    let told = nodes.place.shell(&line);
    let lines: Vec<&str> = told.is_done().lines().collect();
    assert_eq!(lines, [&format!("n[1-2]: {}", lines[1]), lines[1]]);
    // A command that does not read its input is not delayed by it, not even by endless input.
    let line = format!("yes | THALWEG_IDENTITY={} $T exec -- true", own.display());
    nodes.place.shell(&line).is_done();
}

#[test]
fn what_a_job_leaves_behind_is_gone_with_it() {
    let nodes = Nodes::start(1);
    // The command ends at once, but the child that it started would continue.
    let told = nodes.run(&["exec", "--", "sh", "-c", "sleep 1000 >/dev/null & echo $!"]);
    let pid: u32 = told.is_done().trim_start_matches("n1: ").trim().parse().unwrap();
    until("its child is gone", || !process::is_alive(pid));
    // The client is killed.
    let mut client = nodes.place.command(&["exec", "--", "sh", "-c", "echo $$; sleep 1000 & sleep 1000"]);
    let mut client = client.env("THALWEG_IDENTITY", "own").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: u32 = line.trim_start_matches("n1: ").trim().parse().unwrap();
    assert!(process::is_alive(pid));
    client.kill().unwrap();
    client.wait().unwrap();
    until("the job of a vanished client is gone", || !process::is_alive(pid));
    let jobs = nodes.jobs().jobs;
    until("it is listed as cancelled", || nodes.jobs().jobs.iter().all(|job| job.state != JobState::Running));
    assert_eq!(jobs.len(), 2);
    let last = nodes.jobs().jobs.pop().unwrap();
    assert_eq!((last.state, last.why.as_deref()), (JobState::Cancelled, Some("its client has gone")));
}

#[test]
fn a_detached_job_goes_on_and_can_be_looked_at_watched_and_cancelled() {
    let nodes = Nodes::start(2);
    let script = "for i in 1 2 3; do echo line $i; sleep 0.1; done";
    let told = nodes.run(&["exec", "--detach", "--", "sh", "-c", script]);
    let id = told.is_done().trim().to_string();
    assert_eq!(id.len(), 32);
    let watched = nodes.run(&["job", "watch", &id[..6], "--json"]);
    let list: JobList = from_json(watched.is_done()).unwrap();
    assert_eq!(list.jobs.len(), 2);
    for job in &list.jobs {
        assert_eq!(
            (job.state, job.status, &job.tail[..]),
            (JobState::Done, Some(0), "line 1\nline 2\nline 3\n")
        );
    }
    nodes.run(&["job", "cancel", &id]).is_refused(&["has ended; thalweg job show"]);
    // Output as it arrives, each line once, and the status of the command.
    let script = "echo begins; sleep 0.3; echo ends; exit 7";
    let id = nodes.run(&["exec", "--detach", "--on", "n1", "--", "sh", "-c", script]).out.trim().to_string();
    let watched = nodes.run(&["job", "watch", &id]);
    assert!(watched.status == Some(7) && watched.out.starts_with("n1: begins\nn1: ends\n"), "{watched:?}");
    assert_eq!(watched.out.matches("begins\n").count(), 1, "{watched:?}");
    let told = nodes.run(&["exec", "--detach", "--on", "n2", "--", "sleep", "1000"]);
    let id = told.is_done().trim().to_string();
    let shown: JobList = from_json(nodes.run(&["job", "show", &id, "--json"]).is_done()).unwrap();
    let pid = shown.jobs[0].pid.unwrap();
    assert!(shown.jobs[0].host == "n2" && shown.jobs[0].state == JobState::Running && process::is_alive(pid));
    let cancelled: JobList = from_json(nodes.run(&["job", "cancel", &id, "--json"]).is_done()).unwrap();
    assert_eq!(cancelled.jobs[0].state, JobState::Cancelled);
    until("a cancelled job is gone", || !process::is_alive(pid));
    // Words that would break the table are escaped.
    nodes.run(&["exec", "--on", "n1", "--", "echo", "a\nb", "\u{1b}[2J"]).is_done();
    let listed = nodes.run(&["job", "list"]);
    let line = listed.is_done().lines().last().unwrap();
    assert!(listed.out.contains(r"echo 'a\nb' '\u{1b}[2J'"), "{line}");
    nodes.run(&["job", "show", "ffffffffff"]).is_refused(&["no host knows a job"]);
}

/// What went wrong: it was asserted that the first and the last message of a stream fit into one frame of 64 KiB.
/// Longer requests and answers ended the node that sent them, and then its successors. Principle: they are sent in
/// pieces.
#[test]
fn requests_and_answers_of_more_than_a_frame_go_through_and_the_nodes_live() {
    let nodes = Nodes::start(2);
    // Each of these bytes takes two in the request.
    let quotes = "\"".repeat(60_000);
    let script = ["--", "sh", "-c", "printf %s \"$1\" | wc -c", "sh", &quotes];
    for how in [&["exec", "--gather"][..], &["exec", "--gather", "--via", "n1"]] {
        assert_eq!(nodes.run(&[how, &script[..]].concat()).is_done(), "n[1-2]: 60000\n", "{how:?}");
    }
    let line = "mkdir in && for i in $(seq 1500); do echo $((i * 7919 % 1500)) > in/a-file-with-a-longer-name-$i; done && \
                export THALWEG_IDENTITY=own && $T sort in/* -o out --cluster river --memory 40MiB -q && \
                LC_ALL=C sort in/* | cmp - out";
    nodes.place.shell(line).is_done();
    let pids: Vec<u32> = nodes.status().hosts.iter().map(|host| host.status.as_ref().unwrap().pid).collect();
    assert_eq!(pids, nodes.pids, "the nodes live");
}

/// What went wrong: a panic in any thread ended the node, and with it all other jobs. Consequence: one request that
/// meets a bug stops a cluster. Principle: it ends only its own job, with one line for the client and one in the log.
#[test]
fn a_panic_in_one_job_ends_that_job_alone() {
    let mut nodes = Nodes::start(1);
    terminate(&nodes.running[0]);
    nodes.running.pop().unwrap().wait().unwrap();
    let mut command = nodes.place.command(&["node", "run", "--identity", "own/hosts/n1"]);
    command.env("THALWEG_TEST_PANICS", "panics").stdout(Stdio::piped());
    let log = std::fs::File::create(nodes.place.0.join("log")).unwrap();
    let mut node = command.stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: NodeReady = from_json(&line).unwrap();
    nodes.running.push(node);
    let other = nodes.run(&["exec", "--detach", "--", "sleep", "1000"]).is_done().trim().to_string();
    let threads = || std::fs::read_dir(format!("/proc/{}/task", ready.pid)).unwrap().count();
    let before = (threads(), nodes.status().hosts[0].status.as_ref().unwrap().links);
    for _ in 0..20 {
        let told = nodes.run(&["exec", "--", "sh", "-c", "sleep 1000", "panics"]);
        assert!(told.status != Some(0) && told.err.contains("an internal error of this node"), "{told:?}");
        assert_eq!(told.err.lines().count(), 1, "{told:?}");
    }
    nodes.run(&["exec", "--", "true"]).is_done();
    let jobs = nodes.jobs().jobs;
    let running: Vec<_> = jobs.iter().filter(|job| job.state == JobState::Running).collect();
    assert!(running.len() == 1 && running[0].id == other, "{running:?}");
    for job in jobs.iter().filter(|job| job.command.contains(&"panics".to_string())) {
        assert!(!process::is_alive(job.pid.unwrap()), "{job:?}");
    }
    until("no thread and no link is left behind", || {
        let links = nodes.status().hosts[0].status.as_ref().unwrap().links;
        threads() <= before.0 + 4 && links <= before.1
    });
    let log = nodes.place.shell("cat log").is_done().to_string();
    assert_eq!(log.lines().count(), 20, "{log}");
    assert!(
        log.lines().all(|line| line.contains("internal error at ") && line.contains("the node continues"))
    );
}

/// The lines of a node's audit log.
fn told(nodes: &Nodes, host: &str) -> Vec<AuditLine> {
    let text = String::from_utf8(nodes.place.read(&format!("own/hosts/{host}/audit.log"))).unwrap();
    text.lines().map(|line| from_json(line).unwrap()).collect()
}

/// What went wrong: a relay was logged without its command, a command without its client, and neither before it ended.
/// Principle: the job's id connects the lines, and the log of a killed node says what ran.
#[test]
fn what_runs_is_in_the_audit_log_of_all_nodes_that_have_a_part_in_it() {
    let nodes = Nodes::start(2);
    let id = nodes.run(&["exec", "--detach", "--on", "n1", "--", "sleep", "1000"]).out.trim().to_string();
    let running = told(&nodes, "n1").pop().unwrap();
    assert_eq!((&running.what[..], &running.ended[..], &running.job), ("exec detached", "running", &id));
    nodes.run(&["exec", "--via", "n1", "--on", "n2", "--", "echo", "joined"]).is_done();
    let ended = |host: &str, what: &str| {
        let is_it = |line: &AuditLine| line.what == what && line.ended != "running";
        told(&nodes, host).into_iter().find(is_it)
    };
    until("both are told", || ended("n1", "relay").is_some() && ended("n2", "exec").is_some());
    let (relay, ran) = (ended("n1", "relay").unwrap(), ended("n2", "exec").unwrap());
    assert_eq!((&relay.role[..], &relay.words[..]), ("client", &["echo", "joined"].map(String::from)[..]));
    assert_eq!((&relay.on[..], relay.job.len()), (&["n2".to_string()][..], 32));
    assert_eq!((&ran.role[..], &ran.words, &ran.job), ("node", &relay.words, &relay.job));
}

/// What went wrong: nobody could say later who ran what. Consequence: a certificate in the wrong hands leaves no trace.
/// Principle: each request that changes something has a line, and no line contains what may be secret.
#[test]
fn who_asked_what_is_in_the_audit_log_and_no_secret_is() {
    let mut nodes = Nodes::start(2);
    let log = "own/hosts/n1/audit.log";
    nodes.run(&[
        "exec",
        "--on",
        "n1",
        "--env",
        "KEY=s3cret-env",
        "--",
        "sh",
        "-c",
        "echo s3cret-out; exit 7",
    ]);
    let piped = "echo s3cret-in | THALWEG_IDENTITY=own $T exec --on n1 -- cat";
    nodes.place.shell(piped).is_done();
    nodes.place.write("in", b"s3cret-file");
    let to = format!("n1:{}", nodes.place.0.join("out").display());
    nodes.run(&["pump", "in", &to]).is_done();
    let id = nodes.run(&["exec", "--detach", "--on", "n1", "--", "sleep", "1000"]).out.trim().to_string();
    nodes.run(&["job", "cancel", &id]).is_done();
    // Connections from outside the cluster.
    for _ in 0..100 {
        drop(TcpStream::connect(("127.0.0.1", nodes.ports[0])).unwrap());
    }
    let lines = || -> Vec<AuditLine> {
        told(&nodes, "n1").into_iter().filter(|line| line.ended != "running").collect()
    };
    let refused = |lines: &[AuditLine]| lines.iter().filter(|line| line.what == "connect").count();
    until("all is told", || {
        refused(&lines()) >= 60 && lines().iter().any(|line| line.what == "exec detached")
    });
    let all = lines();
    let find = |what: &str, word: &str| {
        let is_it =
            |line: &&AuditLine| line.what == what && line.words.iter().any(|other| other.contains(word));
        all.iter().find(is_it).unwrap_or_else(|| panic!("{what} {word}: {all:?}"))
    };
    let exec = find("exec", "exit 7");
    assert!(exec.ended == "failed, status 7" && exec.role == "client" && exec.id.len() == 32, "{exec:?}");
    assert!(exec.peer.contains("127.0.0.1:") && exec.time > 1_500_000_000, "{exec:?}");
    assert_eq!(exec.bytes, Some(11), "{exec:?}");
    assert_eq!(find("exec", "cat").ended, "done, status 0");
    let pump = find("pump sink", "/out");
    assert!(pump.ended == "done" && pump.bytes == Some(11), "{pump:?}");
    assert!(find("exec detached", "sleep").ended.starts_with("cancelled"), "{all:?}");
    assert_eq!(find("http POST", "/cancel").ended, "status 200");
    assert!(refused(&all) <= 120, "a flood of strangers is no flood of lines: {}", refused(&all));
    let text = String::from_utf8(nodes.place.read(log)).unwrap();
    for secret in ["s3cret-env", "s3cret-in", "s3cret-file"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert_eq!(nodes.place.shell(&format!("stat -c %a {log}")).is_done(), "600\n");
    // The log is not written through a link, and a node without a log continues.
    terminate(&nodes.running[0]);
    nodes.running[0].wait().unwrap();
    nodes.place.shell(&format!("echo mine > victim; ln -sf $PWD/victim {log}")).is_done();
    let (node, _) = nodes.spawn(&["--identity", "own/hosts/n1"]);
    nodes.running[0] = node;
    nodes.run(&["exec", "--on", "n1", "--", "true"]).is_done();
    assert_eq!(nodes.place.read("victim"), b"mine\n");
    terminate(&nodes.running[0]);
    nodes.running[0].wait().unwrap();
    let mut err = String::new();
    nodes.running[0].stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(err.lines().count() == 1 && err.contains("the audit log is not written"), "{err}");
}

#[test]
fn a_node_that_is_asked_to_end_takes_its_jobs_along() {
    let mut nodes = Nodes::start(1);
    nodes.run(&["exec", "--detach", "--", "sh", "-c", "sleep 1000 & sleep 1000"]).is_done();
    until("it runs", || nodes.jobs().jobs[0].pid.is_some());
    let pid = nodes.jobs().jobs[0].pid.unwrap();
    let mut node = nodes.running.pop().unwrap();
    let begun = Instant::now();
    terminate(&node);
    let status = node.wait().unwrap();
    assert!(status.success() && begun.elapsed() < Duration::from_secs(2), "{status} {:?}", begun.elapsed());
    until("its job is gone", || !process::is_alive(pid));
    let mut err = String::new();
    node.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(err, "");
    let gone = nodes.run(&["exec", "--", "true"]);
    gone.is_refused(&[
        "n1: cannot reach n1 at 127.0.0.1:",
        "Connection refused",
        "thalweg cluster up starts it",
    ]);
}

#[test]
fn a_dropped_host_is_refused_and_an_added_one_is_not() {
    let nodes = Nodes::start(3);
    nodes.run_as("own/hosts/n3", &["exec", "--on", "n1", "--", "true"]).is_done();
    // A link of n3 that is open while n3 is dropped.
    let mut held = nodes.place.command(&["exec", "--on", "n1", "--", "sh", "-c", "echo on; exec sleep 1000"]);
    let mut held = held
        .env("THALWEG_IDENTITY", "own/hosts/n3")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "n1: on\n");
    nodes.run(&["cluster", "drop", "n3"]).is_done();
    let status = nodes.status();
    assert_eq!(
        status.hosts.iter().map(|h| (&h.host[..], h.status.as_ref().unwrap().epoch)).collect::<Vec<_>>(),
        [("n1", 2), ("n2", 2)]
    );
    assert_eq!(held.wait().unwrap().code(), Some(2), "its link is closed");
    nodes
        .run_as("own/hosts/n3", &["exec", "--on", "n1", "--", "true"])
        .is_refused(&["our certificate was dropped from its cluster"]);
    // The same name may be added again, as another node.
    let added = nodes.run(&["cluster", "add", &format!("n3=127.0.0.1:{}", nodes.ports[2])]);
    // The old node still listens there, and does not get the new cluster file.
    assert!(added.is_done().contains("thalweg cluster install and up"), "{added:?}");
    nodes.run_as("own/hosts/n3", &["exec", "--on", "n1", "--", "true"]).is_done();
    nodes.run(&["cluster", "drop", "n7"]).is_refused(&["'n7' is not a host"]);
    let twice = nodes.run(&["cluster", "add", "n1"]);
    twice.is_refused(&[
        "'n1' is a host of cluster river already, at 127.0.0.1:",
        "thalweg cluster drop n1 first",
    ]);
    let again = nodes.run(&["cluster", "init", "other", "a"]);
    again.is_refused(&["own holds a cluster already"]);
}

#[test]
fn certificates_are_renewed_and_keys_stay_private() {
    let nodes = Nodes::start(1);
    let read = |name: &str| String::from_utf8(nodes.place.read(name)).unwrap();
    let before = read("own/hosts/n1/cert.pem");
    nodes.run(&["cluster", "renew"]).is_done();
    assert_ne!(before, read("own/hosts/n1/cert.pem"));
    // The running node loads the new certificate.
    until("the node shows its new certificate", || nodes.run(&["exec", "--", "true"]).status == Some(0));
    let open = nodes.place.shell("find own -type f -perm /077");
    assert_eq!(open.is_done(), "", "files that others may read");
    let keys = read("own/key.pem") + &read("own/authority.key") + &read("own/hosts/n1/key.pem");
    let line = keys.lines().nth(1).unwrap();
    let told = nodes.run(&["cluster", "status", "--json"]);
    assert!(!told.out.contains(line));
    nodes.place.shell("chmod 644 own/key.pem").is_done();
    nodes.run(&["exec", "--", "true"]).is_refused(&["own/key.pem may be read by others", "chmod 600"]);
    nodes.place.shell("chmod 600 own/key.pem && chmod 770 own").is_done();
    nodes.run(&["exec", "--", "true"]).is_refused(&["others may write in own, which has an identity"]);
    nodes.place.shell("chmod 700 own").is_done();
    nodes.run(&["exec", "--", "true"]).is_done();
}

#[test]
fn strangers_get_nothing_and_disturb_nobody() {
    let nodes = Nodes::start(1);
    let other = Nodes::start(1);
    // A certificate of another cluster, even with this one's address.
    let here = format!("n2=127.0.0.1:{}", nodes.ports[0]);
    other.place.shell(&format!("THALWEG_IDENTITY=own $T cluster add {here} >/dev/null")).is_done();
    let told = other.run(&["exec", "--on", "n2", "--", "true"]);
    told.is_refused(&["n2", "its certificate is of another cluster"]);
    // No certificate: TLS without a client certificate, and no TLS at all.
    let none = nodes.curl("N1/v1/status");
    assert_ne!(none.status, Some(0), "{none:?}");
    assert!(none.out.is_empty() && none.err.starts_with("curl: "), "{none:?}");
    let address = ("127.0.0.1", nodes.ports[0]);
    for bytes in [&b"GET /v1/status HTTP/1.1\r\n\r\n"[..], &[0xff; 8192], &(1u64 << 63).to_be_bytes()] {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let _ = socket.write_all(bytes);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
    }
    // Very many connections that send nothing, and some that begin to: the others are served meanwhile, and memory is
    // bounded.
    let before = nodes.status().hosts[0].status.clone().unwrap();
    let crowd: Vec<TcpStream> = (0..3000).filter_map(|_| TcpStream::connect(address).ok()).collect();
    assert!(crowd.len() > 2900, "{}", crowd.len());
    for mut loris in &crowd[..200] {
        let _ = loris.write_all(&[22, 3, 1]);
    }
    let begun = Instant::now();
    nodes.run(&["exec", "--", "true"]).is_done();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let after = nodes.status().hosts[0].status.clone().unwrap();
    assert!(after.refused >= before.refused + 2500, "{} then {}", before.refused, after.refused);
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < 32 << 20, "{grown} bytes more");
    drop(crowd);
}

#[test]
fn one_who_says_half_a_hello_is_hung_up_on() {
    let nodes = Nodes::start(1);
    let begun = Instant::now();
    let mut socket = TcpStream::connect(("127.0.0.1", nodes.ports[0])).unwrap();
    socket.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut came = socket.read(&mut [0; 64]);
    // Meanwhile other tests start and stop processes, which may interrupt a read with a time-out.
    while came.as_ref().is_err_and(|e| e.kind() == ErrorKind::Interrupted) {
        came = socket.read(&mut [0; 64]);
    }
    let took = begun.elapsed();
    assert!(came.as_ref().is_ok_and(|bytes| *bytes == 0), "{came:?} after {took:?}");
    assert!((4..8).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn control_is_http_that_others_understand() {
    let nodes = Nodes::start(1);
    let own = "--cert own/cert.pem --key own/key.pem";
    let status: NodeStatus = from_json(nodes.curl(&format!("{own} N1/v1/status")).is_done()).unwrap();
    assert_eq!((&status.name[..], status.epoch, status.pid), ("n1", 1, nodes.pids[0]));
    let metrics = nodes.curl(&format!("{own} N1/metrics"));
    assert!(metrics.is_done().contains("# TYPE thalweg_links gauge\nthalweg_links 0\n"), "{metrics:?}");
    let described = nodes.curl(&format!("{own} N1/openapi.json"));
    assert!(described.is_done().contains("\"/v1/jobs/{id}/events\""));
    let code = |args: &str| nodes.curl(&format!("-o /dev/null -w '%{{http_code}}' {args}")).out;
    assert_eq!(code(&format!("{own} N1/v1/jobs/none")), "404");
    assert_eq!(code(&format!("{own} -X PUT -d nonsense N1/v1/cluster")), "409");
    // A node may read, and change nothing.
    let node = "--cert own/hosts/n1/cert.pem --key own/hosts/n1/key.pem";
    assert_eq!(code(&format!("{node} N1/v1/jobs")), "200");
    assert_eq!(code(&format!("{node} -X POST N1/v1/jobs/x/cancel")), "404");
    assert_eq!(code(&format!("{node} -X PUT -d @own/cluster.json N1/v1/cluster")), "404");
    // Headers and bodies have their limits.
    let long = "x".repeat(40_000);
    let refused = code(&format!("{own} -H 'X-Long: {long}' N1/v1/status"));
    assert!(["431", "400", "000"].contains(&&refused[..]), "{refused}");
    nodes.place.write("large", &vec![b'x'; 2 << 20]);
    // The client asks before it sends the body: an answer during the body may be lost with the connection.
    let asking = format!("{own} -X PUT -H 'Expect: 100-continue' --expect100-timeout 10");
    assert_eq!(code(&format!("{asking} --data-binary @large N1/v1/cluster")), "413");
}

#[test]
fn a_node_without_certificate_stays_at_home_and_runs_nothing() {
    let place = Place::new();
    let refused = place.run(&["node", "run", "--listen", "0.0.0.0:0"]);
    refused.is_refused(&["a node without a certificate listens on loopback only, and 0.0.0.0:0 is not"]);
    // The client's identity is not a host's, and is beside the authority's key.
    place.run(&["cluster", "init", "sea", "n1=127.0.0.1:7499", "--identity", "sea", "-q"]).is_done();
    let refused = place.run(&["node", "run", "--listen", "127.0.0.1:0", "--identity", "sea"]);
    refused.is_refused(&["that is a client's identity", "hosts/"]);
    let mut command = place.command(&["node", "run", "--listen", "127.0.0.1:0"]);
    let mut node = command.env_remove("THALWEG_IDENTITY").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: NodeReady = from_json(&line).unwrap();
    let get = |path: &str| {
        place.shell(&format!("curl -sS -w ' %{{http_code}}' http://{}{path}", ready.address)).out
    };
    assert!(get("/v1/status").contains("\"name\":\"\""));
    for path in ["/v1/jobs", "/v1/jobs/x", "/v1/cluster"] {
        assert!(get(path).ends_with(" 404"), "{path}: {}", get(path));
    }
    terminate(&node);
    assert!(node.wait().unwrap().success());
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let place = Place::new();
    place
        .run(&["exec", "--identity", "none", "--", "true"])
        .is_refused(&["no cluster in none: thalweg cluster init"]);
    place.run(&["exec", "--identity", "none"]).is_refused(&["exec what?"]);
    place
        .run(&["node", "run", "--identity", "none"])
        .is_refused(&["no cluster in none: thalweg cluster init"]);
    place
        .run(&["cluster", "init", "x", "a b", "--identity", "d"])
        .is_refused(&["'a b' is not a name for a host"]);
    for name in ["", "../x", ".", "a\nb", "\x1b[31mred"] {
        place
            .run(&["cluster", "init", name, "a", "--identity", "d"])
            .is_refused(&["is not a name for a cluster"]);
    }
    place.run(&["cluster", "init", "x", "a", "a", "--identity", "d"]).is_refused(&["'a' is there twice"]);
    place.run(&["cluster", "init", "x", "--identity", "d"]).is_refused(&["at least one HOST"]);
    for (hosts, holds) in [
        ("a=10.0.0.1 b=10.0.0.1", "two hosts are at 10.0.0.1:7171"),
        ("a=10.0.0.1:x", "'10.0.0.1:x' is not an address"),
        ("a=root@10.0.0.1", "'10.0.0.1' is not a role"),
        ("a@memory=some", "is not an amount of memory"),
    ] {
        let typed = hosts.split(' ').collect::<Vec<_>>();
        let args = [&["cluster", "init", "x", "--identity", "d"], &typed[..]].concat();
        place.run(&args).is_refused(&[holds]);
    }
    // A file that was edited by hand.
    place.run(&["cluster", "init", "x", "a=127.0.0.1:1", "--identity", "e"]).is_done();
    place.shell("sed -i 's/\\(\"hosts\":\\[\\)\\({[^}]*}\\)/\\1\\2,\\2/' e/cluster.json").is_done();
    let forged = ["e/cluster.json cannot be used: its signature is not the authority's"];
    place.run(&["exec", "--identity", "e", "--", "true"]).is_refused(&forged);
    place.run(&["cluster", "init", "y", "b=127.0.0.1:1", "--identity", "f"]).is_done();
    place.shell("cp f/hosts/b/key.pem f/key.pem").is_done();
    place
        .run(&["exec", "--identity", "f", "--", "true"])
        .is_refused(&["f cannot be used", "key is not that of"]);
    place.run(&["exec", "-r"]).is_refused(&["-r is no flag of exec; write the command behind '--'"]);
    place.run(&["exec", "--detach", "--gather", "--", "true"]).is_refused(&["nothing to --gather"]);
    place.run(&["cluster", "fly"]).is_refused(&["cluster takes one of: init"]);
    place.run(&["cluster", "init", "x", "a", "--clear", "--identity", "d"]).is_refused(&["--clear"]);
    place.run(&["job", "show", "--identity", "d"]).is_refused(&["job show takes the id of one job"]);
    place.shell("cp e/authority.pem .").is_done();
    place.write("cluster.json", b"{}");
    place.run(&["cluster", "status", "--identity", "."]).is_refused(&[
        "cluster.json cannot be used",
        "it is not signed",
        "thalweg cluster renew",
    ]);
}

/// A chain of hosts that comes back would occupy all the transfers of its nodes with one request.
#[test]
fn a_transfer_that_comes_to_a_host_twice_is_refused() {
    let nodes = Nodes::start(2);
    let client = Client::load(&nodes.place.0.join("own")).unwrap();
    let link = client.link(&client.file().hosts[0], 1 << 16).unwrap();
    let asked = |ends: &str, onward: &[&str]| {
        let onward = serde_json::to_string(onward).unwrap();
        let request: PumpRequest = from_json(&format!(
            "{{\"id\": \"{}\", {ends}, \"onward\": {onward}, \"meeting\": null, \"streams\": 1, \"limit\": null, \
             \"resume\": false, \"verify\": false, \"checksum\": true, \"strict\": true, \"choice\": {{}}}}",
            new_id()
        ))
        .unwrap();
        let request = TransferRequest::Pump(Box::new(request)).text();
        let (_out, mut inc) = link.open(request.as_bytes()).unwrap();
        inc.next_on().unwrap_err().to_string()
    };
    let sink = "\"sources\": [], \"dest\": \"null:\", \"to\": null";
    let source = "\"sources\": [\"zero:5\"], \"dest\": null, \"to\": [\"n2\", \"null:\"]";
    let around = ["n2", "n1"].repeat(1000);
    for (ends, onward, twice) in
        [(sink, &around[..], "n1"), (sink, &["n2", "n2"], "n2"), (source, &["n1"], "n1")]
    {
        let why = asked(ends, onward);
        assert!(why.contains(&format!("{twice} is there twice in the hosts of a transfer")), "{why}");
    }
}
