//! A lab for a test: hosts in network namespaces, which are removed when the guard is dropped, also by a panic.
#![allow(dead_code)] // Each program of tests uses its part.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use thalweg_api::{NodeReady, from_json};

use super::resp::Client;
use super::{Outcome, Place};

/// A connection that another process holds.
pub(crate) struct Piped {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Read for Piped {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}

impl Write for Piped {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.to.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running lab.
pub(crate) struct Lab {
    pub(crate) id: String,
    pub(crate) identity: String,
    /// The ssh command that reaches its hosts, if the nodes were installed over ssh.
    pub(crate) ssh: Option<String>,
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab").join(name)
}

fn call(name: &str, id: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program(name));
    command.args(args).env("THALWEG", env!("CARGO_BIN_EXE_thalweg")).env("LAB", id);
    command.env("THALWEG_LABS", labs()).stdin(Stdio::null());
    command.output().expect("bash is there")
}

/// The directory of these labs, separate from all others.
fn labs() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("labs")
}

impl Lab {
    /// Starts one with these hosts; `None`, with a note, where that is not allowed.
    pub(crate) fn up(args: &[&str]) -> Option<Lab> {
        let output = call("up", "", args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if err.contains("need root") || err.contains("is missing") || err.contains("not permitted") {
            super::skipped(err.trim());
            return None;
        }
        assert!(output.status.success(), "{out}{err}");
        let value = |name: &str| {
            let line = out.lines().find_map(|line| line.strip_prefix(name)).expect("lab/env tells it");
            line.to_string()
        };
        let ssh = out.lines().find_map(|line| line.strip_prefix("export THALWEG_SSH='"));
        let ssh = ssh.map(|line| line.trim_end_matches('\'').to_string());
        Some(Lab { id: value("export LAB="), identity: value("export THALWEG_IDENTITY="), ssh })
    }

    /// Calls a script of the lab.
    #[track_caller]
    pub(crate) fn call(&self, name: &str, args: &[&str]) {
        let output = call(name, &self.id, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The directory of a host's node.
    pub(crate) fn directory(&self, host: &str) -> PathBuf {
        labs().join(&self.id).join(host)
    }

    /// The name of the network namespace of the host with this number.
    pub(crate) fn space(&self, host: usize) -> String {
        format!("th{}-n{host}", self.id)
    }

    /// The address of the host with this number; 254 is this machine.
    pub(crate) fn address(&self, host: usize) -> String {
        let id = u32::from_str_radix(&self.id, 16).expect("four hexadecimal digits");
        format!("10.{}.{}.{host}", 64 + (id >> 8) % 64, id & 255)
    }

    /// The directory of the identity of the cluster's owner.
    pub(crate) fn identity(&self) -> PathBuf {
        PathBuf::from(&self.identity)
    }

    /// A Redis client of the node of a host, over TLS, of a lab with `--resp`.
    pub(crate) fn redis(&self, host: usize, port: u16) -> Client<Piped> {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-connect", &format!("{}:{port}", self.address(host))]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut client = Client::new(Piped { child, to, from });
        assert_eq!(client.ask(&format!("AUTH lab-{}", self.id)), "+OK\r\n");
        client
    }

    /// The process id of a host's node, not of its guard.
    pub(crate) fn pid(&self, host: &str) -> u32 {
        let ready = std::fs::read_to_string(self.directory(host).join("ready")).unwrap();
        from_json::<NodeReady>(ready.trim()).unwrap().pid
    }

    /// The private memory of a host's node.
    pub(crate) fn resident_bytes(&self, host: &str) -> u64 {
        let pid = self.pid(host);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        resident.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// The bytes to a host and from it, as the kernel counts them, without the headers of packets.
    pub(crate) fn carried(&self, host: &str) -> (u64, u64) {
        // Of Ethernet, IPv4, and TCP with its time stamps.
        const HEADERS: u64 = 14 + 20 + 32;
        let count = |way: &str, of: &str| {
            let path = format!("/sys/class/net/th{}v{}/statistics/{way}_{of}", self.id, &host[1..]);
            std::fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap()
        };
        let net = |way: &str| count(way, "bytes").saturating_sub(HEADERS * count(way, "packets"));
        (net("tx"), net("rx"))
    }

    /// The command, run as the cluster's owner.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(args).env("THALWEG_IDENTITY", &self.identity).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.command(args).output().expect("the binary starts"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        call("down", &self.id, &[]);
    }
}

/// The names of a lab's hosts.
pub(crate) fn hosts(count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("n{i}")).collect()
}

/// Gives each host part `i` of `in`, divided at records of this many bytes, or at lines.
pub(crate) fn deal(lab: &Lab, place: &Place, count: usize, record: Option<usize>) {
    let all = place.read("in");
    let mut from = 0;
    for (i, host) in hosts(count).iter().enumerate() {
        let near = (i + 1) * all.len() / count;
        let to = match record {
            _ if i + 1 == count => all.len(),
            Some(bytes) => near / bytes * bytes,
            None => near + all[near..].iter().position(|byte| *byte == b'\n').unwrap() + 1,
        };
        std::fs::write(lab.directory(host).join("in.dat"), &all[from..to]).unwrap();
        from = to;
    }
}
