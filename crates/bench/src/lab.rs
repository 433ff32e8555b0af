//! A lab for a benchmark: hosts in network namespaces, each with its own node, and the kernel's counters of their
//! links.
//!
//! Invariant: whatever a lab started is gone when the value is dropped.
//! Non-goals: setting up networks; the scripts in `lab/`, below the current directory, do that.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thalweg_api::{BenchHost, BenchReport, BenchRow, NodeReady, from_json};

use thalweg_measure::Asked;
use thalweg_measure::process::whole_process;

/// Bytes of a packet's headers: Ethernet 14, IP 20, TCP with a timestamp 32.
const HEAD_BYTES: u64 = 66;
/// The most payload bytes of a segment, in packets of 1500 bytes.
const SEGMENT_BYTES: u64 = 1448;
/// The share of the kernel's count by which receipts may differ.
pub(crate) const AGREE: f64 = 0.05;
/// A directory in memory.
const MEMORY: &str = "/dev/shm/thalweg-labs";
/// The unit of CPU time in `/proc/PID/stat`, in ticks a second.
const TICKS: f64 = 100.0;

/// A lab that runs.
pub(crate) struct Lab {
    id: String,
    scripts: PathBuf,
    place: PathBuf,
    hosts: u32,
}

/// The properties of a lab.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) hosts: u32,
    /// Further arguments of `lab/up`.
    pub(crate) words: &'a [&'a str],
    /// Whether the directories of its hosts are in memory.
    pub(crate) in_memory: bool,
}

impl Lab {
    /// Starts a lab whose nodes run `program`, or says why there is none.
    pub(crate) fn up(program: &Path, wanted: Wanted<'_>) -> Result<Lab, String> {
        let Wanted { hosts, words, in_memory } = wanted;
        let scripts = std::path::absolute("lab").map_err(|e| e.to_string())?;
        let mut up = Command::new(scripts.join("up"));
        up.arg(hosts.to_string()).args(words).env("THALWEG", program).stdin(Stdio::null());
        if in_memory {
            up.env("THALWEG_LABS", MEMORY);
        }
        let told =
            up.output().map_err(|e| format!("no lab/up here ({e}); run this in the repository's root"))?;
        let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
        if !told.status.success() {
            return Err(err.lines().last().unwrap_or("lab/up failed").to_string());
        }
        let value = |name: &str| out.lines().find_map(|line| line.strip_prefix(name)).map(String::from);
        let (Some(id), Some(own)) = (value("export LAB="), value("export THALWEG_IDENTITY=")) else {
            return Err(format!("the output of lab/up cannot be read: {}", out.trim()));
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

    /// The directory in which a host's node runs.
    pub(crate) fn directory(&self, host: u32) -> PathBuf {
        self.place.join(format!("n{host}"))
    }

    /// The number of hosts.
    pub(crate) fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The names of the first `count` hosts, separated by commas.
    pub(crate) fn names(&self, count: u32) -> String {
        (1..=count).map(|i| format!("n{i}")).collect::<Vec<_>>().join(",")
    }

    /// The address of a host.
    pub(crate) fn address(&self, host: u32) -> String {
        let id = u32::from_str_radix(&self.id, 16).unwrap_or(0);
        format!("10.{}.{}.{host}", 64 + (id >> 8) % 64, id & 255)
    }

    /// The name of a host's network namespace.
    pub(crate) fn space(&self, host: u32) -> String {
        format!("th{}-n{host}", self.id)
    }

    /// A command inside a host.
    pub(crate) fn inside(&self, host: u32, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host), program]);
        command
    }

    /// A command on the network of a host, with this machine's files and the mounts that other processes make.
    pub(crate) fn on_network(&self, host: u32, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(host))).arg(program);
        command
    }

    /// Runs another of the scripts of `lab/`, for nodes that run this program.
    pub(crate) fn script(&self, program: &Path, name: &str, words: &[&str]) -> crate::Result<()> {
        let labs = self.place.parent().unwrap_or(Path::new("/"));
        let mut script = Command::new(self.scripts.join(name));
        script.args(words).env("LAB", &self.id).env("THALWEG_LABS", labs).env("THALWEG", program);
        // A node that it starts stays, and would keep a pipe open.
        let status = script.stdin(Stdio::null()).stdout(Stdio::null()).status();
        let ran = status.is_ok_and(|status| status.success());
        ran.then_some(())
            .ok_or_else(|| thalweg_measure::Error::Failed(format!("lab/{name} {} failed", words.join(" "))))
    }

    /// Sets the rate of a host's link, in both directions.
    pub(crate) fn shape(&self, host: u32, rate: &str) -> crate::Result<()> {
        let outside = format!("th{}v{host}", self.id);
        let change = ["qdisc", "change", "dev"];
        let to = ["root", "tbf", "rate", rate, "burst", "65536", "latency", "50ms"];
        let mut tc = Command::new("tc");
        whole_process(tc.args(change).arg(&outside).args(to))?;
        whole_process(self.inside(host, "tc").args(change).arg("eth0").args(to)).map(|_| ())
    }

    /// Each host's process, and the kernel's counters of its link.
    pub(crate) fn counted(&self) -> Vec<BenchHost> {
        (1..=self.hosts).map(|host| self.host(host)).collect()
    }

    /// The payload that links have delivered to these hosts so far, and the bytes that all hosts have retransmitted.
    pub(crate) fn carried(&self, to: RangeInclusive<u32>) -> Carried {
        let payload = |host| {
            let heads = self.counter(host, "tx_packets") * HEAD_BYTES;
            self.counter(host, "tx_bytes").saturating_sub(heads)
        };
        let again = (1..=self.hosts).map(|host| segments_sent_again(self.host(host).pid)).sum::<u64>();
        Carried { bytes: to.map(payload).sum(), again_bytes: again * SEGMENT_BYTES }
    }

    fn counter(&self, host: u32, name: &str) -> u64 {
        let path = format!("/sys/class/net/th{}v{host}/statistics/{name}", self.id);
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// One host's process and counters.
    pub(crate) fn host(&self, host: u32) -> BenchHost {
        let ready = std::fs::read_to_string(self.place.join(format!("n{host}/ready"))).unwrap_or_default();
        BenchHost {
            host: format!("n{host}"),
            pid: from_json::<NodeReady>(ready.trim()).map_or(0, |ready| ready.pid),
            // The bridge's end of the link sends what the host receives.
            received_bytes: self.counter(host, "tx_bytes"),
            sent_bytes: self.counter(host, "rx_bytes"),
        }
    }
}

/// Bytes that links have carried, without the headers of packets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Carried {
    pub(crate) bytes: u64,
    /// The most of them that TCP may have retransmitted. It does so when the peer gets no core for a while.
    pub(crate) again_bytes: u64,
}

impl Carried {
    /// The difference to an earlier count.
    pub(crate) fn since(self, before: Carried) -> Carried {
        Carried { bytes: self.bytes - before.bytes, again_bytes: self.again_bytes - before.again_bytes }
    }

    /// Whether a receipt's link bytes agree with these, within [`AGREE`] and `beside` bytes that it does not count.
    pub(crate) fn agrees(self, said: u64, beside: u64) -> bool {
        let slack = (AGREE * self.bytes as f64) as u64 + beside;
        (self.bytes.saturating_sub(self.again_bytes + slack)..=self.bytes + slack).contains(&said)
    }
}

/// The segments that TCP has retransmitted so far in the network namespace of a process.
fn segments_sent_again(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/snmp")).unwrap_or_default();
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (Some(names), Some(values)) = (rows.next(), rows.next()) else { return 0 };
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(name, _)| *name == "RetransSegs").and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// CPU seconds of a process and its ended children so far, to a hundredth.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the last parenthesis may contain anything; of the following fields, these are user, system, and
    // children's time.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / TICKS
}

impl Drop for Lab {
    fn drop(&mut self) {
        let labs = self.place.parent().unwrap_or(Path::new("/"));
        let mut down = Command::new(self.scripts.join("down"));
        let _ = down.env("LAB", &self.id).env("THALWEG_LABS", labs).stdin(Stdio::null()).status();
    }
}

/// Measures a row in a lab of its own, with the kernel's count of its links, or notes why there is no lab.
pub(crate) fn on_lab(
    asked: &Asked<'_>,
    report: &mut BenchReport,
    name: &str,
    wanted: Wanted<'_>,
    measured: impl FnOnce(&Lab) -> crate::Result<BenchRow>,
) -> crate::Result<()> {
    let lab = match Lab::up(&asked.options.program, wanted) {
        Ok(lab) => lab,
        Err(why) => {
            report.notes.push(format!("left out: {name}: {why}"));
            return Ok(());
        }
    };
    let before = lab.counted();
    report.rows.push(measured(&lab)?);
    let mut hosts = since(before, lab.counted());
    hosts.iter_mut().for_each(|host| host.host += &format!(", {name}"));
    report.hosts.extend(hosts);
    Ok(())
}

/// The traffic between two counts.
pub(crate) fn since(before: Vec<BenchHost>, after: Vec<BenchHost>) -> Vec<BenchHost> {
    let between = |(before, after): (BenchHost, BenchHost)| BenchHost {
        received_bytes: after.received_bytes.saturating_sub(before.received_bytes),
        sent_bytes: after.sent_bytes.saturating_sub(before.sent_bytes),
        ..after
    };
    before.into_iter().zip(after).map(between).collect()
}

#[cfg(test)]
mod tests {
    use super::Carried;

    #[test]
    fn a_receipt_and_the_kernel_agree_within_a_twentieth_and_what_was_sent_again() {
        let carried = |bytes, again_bytes| Carried { bytes, again_bytes };
        assert!(carried(1_052_000_000, 0).agrees(1_000_000_000, 0) && carried(65_536, 0).agrees(0, 65_536));
        assert!(!carried(1_060_000_000, 0).agrees(1_000_000_000, 0));
        assert!(
            !carried(900_000_000, 100_000_000).agrees(1_000_000_000, 0),
            "nothing is sent less than once"
        );
        assert!(!carried(100_000, 0).agrees(0, 65_536), "a link that a receipt does not know");
        // Counts from a run in which the peer had no core for a while.
        assert!(
            !carried(979_000, 0).agrees(844_000, 65_536) && carried(979_000, 100_000).agrees(844_000, 65_536)
        );
    }

    /// Compares the count with the kernel's table of this process; a process that does not exist has no count.
    #[test]
    fn what_was_sent_again_is_found_where_the_kernel_tells_it() {
        let text = std::fs::read_to_string("/proc/self/net/snmp").unwrap();
        let told: Vec<u64> = text
            .lines()
            .filter(|line| line.starts_with("Tcp: ") && !line.contains("RetransSegs"))
            .map(|line| line.split_whitespace().nth(12).unwrap().parse().unwrap())
            .collect();
        let found = super::segments_sent_again(std::process::id());
        assert!(told.len() == 1 && found >= told[0] && super::segments_sent_again(u32::MAX) == 0, "{told:?}");
    }

    #[test]
    fn a_process_is_charged_for_what_it_does_and_for_ended_children() {
        let pid = std::process::id();
        let before = super::cpu_seconds(pid);
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(super::cpu_seconds(pid) >= before + 0.02);
        assert_eq!(super::cpu_seconds(u32::MAX), 0.0);
    }
}
