//! Nodes for a test: real daemons on loopback ports, each with its own identity.
//!
//! Invariant: a test ends every node that it starts, and everything that the node was asked to run.
#![allow(dead_code)] // Each program of tests uses its part.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use thalweg_api::{ClusterReport, JobList, NodeReady, from_json};

use super::{Outcome, Place, free_ports};

/// A cluster of nodes on this machine.
pub(crate) struct Nodes {
    pub(crate) place: Place,
    pub(crate) ports: Vec<u16>,
    /// Their guards, which are the processes that were started.
    pub(crate) running: Vec<Child>,
    /// The nodes themselves.
    pub(crate) pids: Vec<u32>,
}

impl Nodes {
    /// Starts n1, n2, ... and waits until each is ready.
    pub(crate) fn start(count: usize) -> Nodes {
        let mut nodes = Nodes::made(&vec![String::new(); count]);
        (0..count).for_each(|i| nodes.begin(i));
        nodes
    }

    /// Makes n1, n2, ... with these words in their descriptions, and starts none.
    pub(crate) fn made(words: &[String]) -> Nodes {
        Nodes::made_with(words, &[])
    }

    /// The same, with these flags of `cluster init`.
    pub(crate) fn made_with(words: &[String], flags: &[&str]) -> Nodes {
        let place = Place::new();
        let ports = free_ports(words.len());
        let hosts = (1..).zip(ports.iter().zip(words)).map(|(i, (port, words))| match &words[..] {
            "" => format!("n{i}=127.0.0.1:{port}"),
            words => format!("n{i}=127.0.0.1:{port}@{words}"),
        });
        let mut args = vec!["cluster".to_string(), "init".into(), "river".into()];
        args.extend(hosts);
        args.extend(["--identity".to_string(), "own".into()]);
        args.extend(flags.iter().map(ToString::to_string));
        let made = place.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        made.is_done();
        Nodes { place, ports, running: Vec::new(), pids: Vec::new() }
    }

    /// Starts a node of this place, or restarts it.
    pub(crate) fn begin(&mut self, i: usize) {
        let (child, pid) = self.spawn(&["--identity", &format!("own/hosts/n{}", i + 1)]);
        self.running.push(child);
        self.pids.push(pid);
    }

    /// Starts a node and waits for its first line. Returns the process that was started, and the process id of the
    /// node.
    pub(crate) fn spawn(&self, args: &[&str]) -> (Child, u32) {
        let mut command = self.place.command(&[&["node", "run"], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: NodeReady = match from_json(&line) {
            Ok(ready) => ready,
            Err(why) => panic!("{why}: {line} {:?}", Outcome::of(child.wait_with_output().unwrap())),
        };
        assert_ne!(ready.pid, child.id(), "a node has a guard");
        (child, ready.pid)
    }

    /// Runs the command as the cluster's owner.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        self.run_as("own", args)
    }

    pub(crate) fn run_as(&self, identity: &str, args: &[&str]) -> Outcome {
        let mut command = self.place.command(args);
        Outcome::of(command.env("THALWEG_IDENTITY", identity).output().unwrap())
    }

    pub(crate) fn jobs(&self) -> JobList {
        from_json(self.run(&["job", "list", "--json"]).is_done()).unwrap()
    }

    pub(crate) fn status(&self) -> ClusterReport {
        from_json(&self.run(&["cluster", "status", "--json"]).out).unwrap()
    }

    /// Sends a request to the first node over HTTP.
    pub(crate) fn curl(&self, args: &str) -> Outcome {
        let line = format!(
            "curl -sS --max-time 10 --cacert own/authority.pem --resolve n1:{0}:127.0.0.1 \
             {args}",
            self.ports[0]
        );
        self.place.shell(&line.replace("N1", &format!("https://n1:{}", self.ports[0])))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Those that a test has stopped would not end.
        let pids = self.pids.iter().map(ToString::to_string);
        let _ = std::process::Command::new("kill").arg("-CONT").args(pids).output();
        // Ended by a signal, not killed, so that they end what they run.
        self.running.iter().for_each(terminate);
        for child in &mut self.running {
            let _ = child.wait();
        }
    }
}

pub(crate) fn terminate(child: &Child) {
    std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
}
