//! A cluster is installed, started, stopped and removed over ssh. The test starts a server of its own, with its own
//! keys and settings, in which each host is this machine. Without the server's program it says that it was skipped.
#![allow(clippy::disallowed_methods)] // Tests write settings and look at directories.

mod support;

use std::process::Command;

use support::sshd::Sshd;
use support::{Place, free_ports, skipped};
use thalweg_api::{ClusterReport, HostSteps, from_json};
use thalweg_io::process;

#[test]
fn a_cluster_comes_over_ssh_and_goes_without_a_trace() {
    let place = Place::new();
    let Some(sshd) = Sshd::start(&place) else { return };
    let hosts: Vec<String> =
        (1..).zip(free_ports(3)).map(|(i, port)| format!("n{i}=127.0.0.1:{port}")).collect();
    let args = ["cluster", "init", "river", &hosts[0], &hosts[1], &hosts[2], "--identity", "own"];
    place.run(&args).is_done();
    let step = |what: &str, on: &str| {
        let told = sshd.cluster(&place, &[what, "--on", on, "--json"]);
        (from_json::<HostSteps>(&told.out).unwrap_or_else(|e| panic!("{e}: {told:?}")), told)
    };
    let done = |what: &str| {
        let (steps, told) = step(what, "n1,n2");
        assert_eq!(told.status, Some(0), "{told:?}");
        steps.hosts.into_iter().map(|host| host.done.unwrap()).collect::<Vec<_>>()
    };
    step("up", "n1").1.is_nothing_yet();
    assert_eq!(done("install"), ["brought the program and its identity"; 2]);
    assert_eq!(done("install"), ["is installed already"; 2]);
    assert!(done("up").iter().all(|done| done.starts_with("started, as process ")));
    let again = done("up");
    assert!(again.iter().all(|done| done.starts_with("runs already, as process ")), "{again:?}");
    let status = place.run(&["cluster", "status", "--identity", "own", "--json"]);
    let report: ClusterReport = from_json(&status.out).unwrap();
    let pids: Vec<u32> = report.hosts.iter().filter_map(|h| h.status.as_ref()).map(|s| s.pid).collect();
    assert_eq!(pids.len(), 2, "{status:?}");
    // From here on without ssh.
    let told = place.run(&[
        "exec",
        "--on",
        "n1,n2",
        "--identity",
        "own",
        "--gather",
        "--",
        "sh",
        "-c",
        "pwd | grep -o n.$",
    ]);
    assert_eq!(told.is_done(), "n1: n1\nn2: n2\n");

    is_changed(&place, &["renew", "n1"]);
    assert_eq!(done("install"), ["brought its identity", "is installed already"]);
    let ended = done("down");
    assert!(ended.iter().all(|done| done.starts_with("ended process ")), "{ended:?}");
    assert!(pids.iter().all(|pid| !process::is_alive(*pid) || is_zombie(*pid)));
    assert_eq!(done("down"), ["did not run"; 2]);
    done("up");
    is_mended(&place, &done);
    let removed = done("remove");
    assert!(removed.iter().all(|done| done.starts_with("removed; the node ended process ")), "{removed:?}");
    assert_eq!(place.shell("find home").is_done(), "home\n", "nothing is left");
    assert_eq!(done("remove"), ["nothing is installed"; 2]);

    is_taken_in_again(&place, &hosts[1], &done);
    let removed = step("remove", "n2,n1").0.hosts;
    assert!(removed.iter().all(|host| host.done.as_ref().unwrap().starts_with("removed")), "{removed:?}");
    assert_eq!(place.shell("find home").is_done(), "home\n", "nothing is left");
    is_changed(&place, &["add", &hosts[1]]);

    // A host that cannot be reached has a line of its own, and delays no other.
    let (steps, told) = step("install", "n1,n3");
    assert_eq!(told.status, Some(2), "{told:?}");
    assert!(
        steps.hosts[0].done.is_some()
            && steps.hosts[1].error.as_ref().unwrap().contains("Connection refused")
    );
    done("remove");
}

/// What went wrong: the output of a login shell that prints although there is no terminal was taken for the answer of
/// the step: an installed program was copied again, or less was reported than was done. Principle: the answer of a step
/// begins with a mark.
#[test]
fn a_shell_that_prints_at_its_start_is_not_taken_for_the_answer() {
    let place = Place::new();
    let Some(sshd) = Sshd::start(&place) else { return };
    let host = format!("n1=127.0.0.1:{}", free_ports(1)[0]);
    place.run(&["cluster", "init", "river", &host, "--identity", "own"]).is_done();
    place.shell("printf 'echo Welcome; echo to >&2; printf n1' > home/.bashrc").is_done();
    let heard = place.shell(&format!("{} n1 true", sshd.ssh)).out;
    if heard != "Welcome\nn1" {
        skipped(&format!("this user's shell reads no .bashrc: {heard:?}"));
        return;
    }
    let done = |what: &str| {
        let told = sshd.cluster(&place, &[what, "--json"]);
        from_json::<HostSteps>(&told.out).unwrap().hosts[0].done.clone().unwrap_or_else(|| panic!("{told:?}"))
    };
    assert_eq!(done("install"), "brought the program and its identity");
    assert_eq!(done("install"), "is installed already");
    let up = done("up");
    assert!(up.starts_with("started, as process "), "{up}");
    assert!(done("remove").starts_with("removed; the node ended process "));
    // A shell that ends before it reads a script is reported in one line.
    place.shell("echo 'exit 0' > home/.bashrc").is_done();
    sshd.cluster(&place, &["install"])
        .is_refused(&["n1: the shell of n1 did not run the script", "see what ssh n1 sh -s does"]);
}

/// What went wrong: the unit did not want the network and so started before it, one job that ran out of memory took the
/// node with it, and there were no limits. The stand-in reports that systemd runs, and stores its input.
#[test]
fn the_unit_wants_the_network_and_has_limits() {
    let place = Place::new();
    let Some(sshd) = Sshd::start(&place) else { return };
    let host = format!("n1=127.0.0.1:{}", free_ports(1)[0]);
    place.run(&["cluster", "init", "river", &host, "--identity", "own"]).is_done();
    place.write(
        "path/systemctl",
        b"#!/bin/sh\n[ \"$1\" = --user ] && shift\n[ \"$1\" = is-system-running ] && echo running\nexit 0\n",
    );
    place.shell("chmod 755 path/systemctl").is_done();
    let told = sshd.cluster(&place, &["install"]);
    assert!(told.is_done().contains("a unit for systemd"), "{told:?}");
    let unit = place.shell("cat home/.local/share/thalweg/*/thalweg-*.service").is_done().to_string();
    let lines = [
        "Wants=network-online.target",
        "After=network-online.target",
        "OOMPolicy=continue",
        "Delegate=yes",
        "LimitNOFILE=65536",
        "TasksMax=32768",
        "LimitCORE=0:infinity",
        "Restart=on-failure",
    ];
    for line in lines {
        assert!(unit.lines().any(|other| other == line), "{line}: {unit}");
    }
    assert!(!unit.contains("NoNewPrivileges"), "jobs may run sudo: {unit}");
    // Where systemd's own program exists, it finds no fault.
    let verified = place.shell("! command -v systemd-analyze >/dev/null || systemd-analyze verify home/.local/share/thalweg/*/thalweg-*.service 2>&1");
    let verified = verified.is_done();
    assert!(!verified.contains("Unknown key") && !verified.contains("Failed to parse"), "{verified}");
}

/// A change of the cluster that cannot be sent to n3, because n3 does not exist.
fn is_changed(place: &Place, args: &[&str]) {
    let told = place.run(&[&["cluster"], args, &["--identity", "own"]].concat());
    assert_eq!(told.status, Some(0), "{told:?}");
}

/// A host that was dropped and added again is another node; when it is dropped once more, the caller removes what is
/// left of it.
fn is_taken_in_again(place: &Place, n2: &str, done: &dyn Fn(&str) -> Vec<String>) {
    done("install");
    done("up");
    is_changed(place, &["drop", "n2"]);
    is_changed(place, &["add", n2]);
    assert_eq!(done("install"), ["is installed already", "brought its identity"]);
    let up = done("up");
    assert!(up[0].starts_with("runs already") && up[1].starts_with("started, as process"), "{up:?}");
    place.run(&["exec", "--on", "n1,n2", "--identity", "own", "--", "true"]).is_done();
    is_changed(place, &["drop", "n2"]);
}

/// A killed node is replaced, and one that answers is left alone.
fn is_mended(place: &Place, done: &dyn Fn(&str) -> Vec<String>) {
    let status = place.run(&["cluster", "status", "--identity", "own", "--json"]);
    let report: ClusterReport = from_json(&status.out).unwrap();
    let pid = report.hosts[0].status.as_ref().unwrap().pid;
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    let mended = done("mend");
    assert!(
        mended[0].contains("started, as process ") && mended[1].starts_with("answers, as "),
        "{mended:?}"
    );
    let looked = place.run(&["cluster", "doctor", "--identity", "own"]);
    assert!(looked.status == Some(2) && looked.err.starts_with("thalweg: n3: cannot reach"), "{looked:?}");
    assert!(looked.out.contains("n1: ") && looked.out.contains(" things looked at, "), "{looked:?}");
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

trait NothingYet {
    fn is_nothing_yet(&self);
}

impl NothingYet for support::Outcome {
    fn is_nothing_yet(&self) {
        assert!(
            self.status == Some(2) && self.err.contains("thalweg cluster install comes first"),
            "{self:?}"
        );
    }
}
