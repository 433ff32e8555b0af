//! A lab for a benchmark: hosts in network namespaces, each with a node of its own, and what the kernel counted of
//! their links.
//!
//! Law: whatever a lab started is gone when it is dropped.
//! Non-goals: making networks; the scripts in `lab/`, below the current directory, do that.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thalweg_api::{BenchHost, NodeReady, from_json};

/// A lab that runs.
pub(crate) struct Lab {
    id: String,
    scripts: PathBuf,
    place: PathBuf,
    hosts: u32,
}

impl Lab {
    /// Starts one of so many hosts, whose nodes are `program`; else why there is none.
    pub(crate) fn up(program: &Path, hosts: u32) -> Result<Lab, String> {
        let scripts = std::path::absolute("lab").map_err(|e| e.to_string())?;
        let mut up = Command::new(scripts.join("up"));
        up.arg(hosts.to_string()).env("THALWEG", program).stdin(Stdio::null());
        let told = up.output().map_err(|e| {
            format!("no lab/up here ({e}); run this from the repository's root, where lab/ is")
        })?;
        let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
        if !told.status.success() {
            return Err(err.lines().last().unwrap_or("lab/up failed").to_string());
        }
        let value = |name: &str| out.lines().find_map(|line| line.strip_prefix(name)).map(String::from);
        let (Some(id), Some(own)) = (value("export LAB="), value("export THALWEG_IDENTITY=")) else {
            return Err(format!("lab/up said what is not understood: {}", out.trim()));
        };
        let place = Path::new(&own).parent().unwrap_or(Path::new("/")).to_path_buf();
        Ok(Lab { id, scripts, place, hosts })
    }

    /// Four hexadecimal digits.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The identity of its owner.
    pub(crate) fn identity(&self) -> PathBuf {
        self.place.join("own")
    }

    /// How many hosts it has.
    pub(crate) fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The first so many of its hosts' names, as a list with commas.
    pub(crate) fn names(&self, count: u32) -> String {
        (1..=count).map(|i| format!("n{i}")).collect::<Vec<_>>().join(",")
    }

    /// The address of a host.
    pub(crate) fn address(&self, host: u32) -> String {
        let id = u32::from_str_radix(&self.id, 16).unwrap_or(0);
        format!("10.{}.{}.{host}", 64 + (id >> 8) % 64, id & 255)
    }

    /// A command inside a host.
    pub(crate) fn inside(&self, host: u32, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("th{}-n{host}", self.id), program]);
        command
    }

    /// Each host's process, and what the kernel has counted on its link so far.
    pub(crate) fn counted(&self) -> Vec<BenchHost> {
        (1..=self.hosts).map(|host| self.host(host)).collect()
    }

    fn host(&self, host: u32) -> BenchHost {
        let counter = |name: &str| {
            let path = format!("/sys/class/net/th{}v{host}/statistics/{name}", self.id);
            std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let ready = std::fs::read_to_string(self.place.join(format!("n{host}/ready"))).unwrap_or_default();
        BenchHost {
            host: format!("n{host}"),
            pid: from_json::<NodeReady>(ready.trim()).map_or(0, |ready| ready.pid),
            // The bridge's end of the link sends what the host receives.
            received_bytes: counter("tx_bytes"),
            sent_bytes: counter("rx_bytes"),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new(self.scripts.join("down")).env("LAB", &self.id).stdin(Stdio::null()).status();
    }
}

/// What came in between.
pub(crate) fn since(before: Vec<BenchHost>, after: Vec<BenchHost>) -> Vec<BenchHost> {
    let between = |(before, after): (BenchHost, BenchHost)| BenchHost {
        received_bytes: after.received_bytes.saturating_sub(before.received_bytes),
        sent_bytes: after.sent_bytes.saturating_sub(before.sent_bytes),
        ..after
    };
    before.into_iter().zip(after).map(between).collect()
}
