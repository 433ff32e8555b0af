//! `bench pump` between two hosts of a lab: from a process in n1 to the node of n2, compared with programs that use the
//! same link.
//!
//! Model: each kind of link has a lab, with servers of iperf3, rsync and OpenSSH in n2. Contenders run in turn, round
//! by round, each as a process in n1. A run is charged for its process and its server's usage. With a disk, the time
//! runs until the output is durable. iperf3 reports the time of its receiver; ours is that of the process.
//! Invariant: the bytes of the links in a receipt are within [`AGREE`](crate::lab::AGREE) of the kernel's count at n2.
//! Each output is compared with its source in the first round.
//! Non-goals: installing rivals, and encrypted disks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use thalweg_api::{BenchReport, BenchRow, Iperf, PumpReceipt, from_json};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::Usage;

use crate::lab::{Carried, Lab, Wanted, cpu_seconds, since};
use crate::launchers::{Launchers, is_here};
use thalweg_measure::contenders::{self, Contender, finish};
use thalweg_measure::data_dir::DataDir;
use thalweg_measure::floor::Fio;
use thalweg_measure::process::whole_process;
use thalweg_measure::pump::{Rounds, SMALL_BYTES, UNSUMMED, What, files, plain, source};
use thalweg_measure::table::traffic;
use thalweg_measure::targets::{Target, Than};
use thalweg_measure::{Asked, failed};
use thalweg_measure::{Error, Result};

/// Bytes of handshakes and requests, which a receipt does not count.
const AGREE_BYTES: u64 = 65_536;
/// The data for a narrow link is `--size` divided by this.
const NARROW_PART: u64 = 40;
/// The rate of the narrow links, as `tc` writes it.
const NARROW_RATE: &str = "100mbit";
/// The one-way delay of the delayed link.
const DELAY: &str = "10ms";
/// How long a server may take to listen, in seconds.
const LISTENS_SECONDS: f64 = 10.0;
const IPERF_PORT: u16 = 5201;
/// Seconds for which iperf3 measures a link.
const IPERF_SECONDS: &str = "2";
const RSYNC_PORT: u16 = 873;
/// The sending and the receiving host.
const FROM: u32 = 1;
const TO: u32 = 2;

/// One row.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    what: What,
    net: Net,
    words: &'static [&'static str],
    beside: &'static [Beside],
    targets: &'static [Target],
}

/// The link between the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Net {
    Wide,
    Narrow,
    Delayed,
}

/// The comparison of a row, on the same link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Floor,
    Ours,
    Iperf,
    Rsync,
    Scp,
    Nc,
    Mbuffer,
    Rclone,
}

pub(crate) const IPERF: &str = "iperf3";
const RSYNC: &str = "rsync + sync";
const SCP: &str = "scp + sync";
const NC: &str = "nc + sync";
const MBUFFER: &str = "mbuffer + sync";
const RCLONE: &str = "rclone + sync";
const ONE: &[&str] = &["--streams", "1"];

/// The rows. Many files come last, as on one host.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "far-no-disk",
        what: What::Memory,
        net: Net::Wide,
        words: ONE,
        beside: &[Beside::Iperf],
        targets: &[faster(IPERF, 0.80), Target::ClocksPerByte(2.5)],
    },
    Row {
        name: "far-unsummed",
        what: What::Memory,
        net: Net::Wide,
        words: &["--streams", "1", UNSUMMED],
        beside: &[Beside::Iperf],
        targets: &[faster(IPERF, 0.95)],
    },
    Row {
        name: "far-narrow",
        what: What::Memory,
        net: Net::Narrow,
        words: ONE,
        beside: &[Beside::Iperf],
        targets: &[faster(IPERF, 0.98)],
    },
    Row {
        name: "far-delayed",
        what: What::Memory,
        net: Net::Delayed,
        words: ONE,
        beside: &[Beside::Iperf],
        targets: &[faster(IPERF, 0.98)],
    },
    Row {
        name: "far-disk",
        what: What::File,
        net: Net::Wide,
        words: &[],
        beside: &[Beside::Floor, Beside::Rsync, Beside::Scp, Beside::Nc, Beside::Mbuffer, Beside::Rclone],
        targets: &[
            Target::WallOfFloor(1.053),
            Target::Faster { than: Than::BestRival, times: 1.5, or_floor: None },
            Target::LessCpu { than: Than::BestRival, times: 1.333 },
        ],
    },
    Row {
        name: "far-small",
        what: What::Files,
        net: Net::Wide,
        words: &[],
        beside: &[Beside::Rsync],
        targets: &[faster(RSYNC, 3.0)],
    },
];

const fn faster(name: &'static str, times: f64) -> Target {
    Target::Faster { than: Than::Named(name), times, or_floor: None }
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Beside::Floor => "floor",
            Beside::Ours => "thalweg",
            Beside::Iperf => IPERF,
            Beside::Rsync => RSYNC,
            Beside::Scp => SCP,
            Beside::Nc => NC,
            Beside::Mbuffer => MBUFFER,
            Beside::Rclone => RCLONE,
        }
    }

    /// The program that must be installed and its package, for those without a server here.
    fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Beside::Nc => Some(("nc", "netcat-openbsd")),
            Beside::Mbuffer => Some(("mbuffer", "mbuffer")),
            Beside::Rclone => Some(("rclone", "rclone")),
            _ => None,
        }
    }

    /// A line of shell in n1: `$1` is the source, `$4` the output, `$2` how to name the output or the address of n2,
    /// and `$3` anything else.
    fn line(self) -> &'static str {
        match self {
            Beside::Scp => r#"scp -q -F "$3" "$1" "$2" && sync -f "$4""#,
            Beside::Nc => concat!(
                r#"ip netns exec "$3" nc -l 5202 >"$4" & for try in $(seq 200); do "#,
                r#"nc -N "$2" 5202 <"$1" && { wait $! && sync -f "$4"; exit; }; sleep 0.01; done; kill $!; exit 1"#
            ),
            Beside::Mbuffer => concat!(
                r#"ip netns exec "$3" mbuffer -q -I 5202 -o "$4" & for try in $(seq 200); do "#,
                r#"mbuffer -q -i "$1" -O "$2:5202" && { wait $! && sync -f "$4"; exit; }; sleep 0.01; done; "#,
                "kill $!; exit 1"
            ),
            Beside::Rclone => concat!(
                r#"rclone copyto "$1" ":sftp,host=$2,user=root,key_file=$3,disable_hashcheck=true:$4" "#,
                r#"&& sync -f "$4""#
            ),
            _ => r#"rsync -a "$1" "$2" && sync -f "$4""#,
        }
    }
}

impl Row {
    fn bytes(&self, asked: &Asked<'_>) -> u64 {
        match (self.what, self.net) {
            (What::Files, _) => files(asked) * SMALL_BYTES,
            (_, Net::Narrow | Net::Delayed) => (asked.bytes / NARROW_PART).max(1),
            _ => asked.bytes,
        }
    }

    fn unmeasured(&self, asked: &Asked<'_>) -> BenchRow {
        let bytes = self.bytes(asked);
        let said = traffic(bytes);
        let work = match (self.what, self.net) {
            (What::File, _) => format!("{said} disk to disk of two hosts, durable"),
            (What::Files, _) => format!("{} files of 4 KiB to another host, durable", files(asked)),
            (What::Memory, Net::Wide) => format!("{said} of noise between hosts, one stream"),
            (What::Memory, Net::Narrow) => format!("{said} of noise over {NARROW_RATE}, one stream"),
            (What::Memory, Net::Delayed) => {
                format!("{said} of noise over {NARROW_RATE} and {DELAY} one way, one stream")
            }
        };
        BenchRow { name: self.name.to_string(), work, bytes, ..BenchRow::default() }
    }
}

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// Measures the rows that were asked for, or notes why there are none.
pub(crate) fn measure(asked: &Asked<'_>, dir: &DataDir, report: &mut BenchReport) -> Result<()> {
    let rows: Vec<&Row> = ROWS.iter().filter(|row| asked.wants(row.name)).collect();
    let fio = Fio::find(dir.path()).ok();
    let mut bench = Bench { asked, dir, fio: fio.as_ref(), routes: Vec::new() };
    for net in [Net::Wide, Net::Narrow, Net::Delayed] {
        if !rows.iter().any(|row| row.net == net) {
            continue;
        }
        match Route::open(asked, dir, net, &mut report.notes) {
            Ok(route) => bench.routes.push(route),
            Err(why) => {
                report.notes.push(format!("no rows between hosts: {why}"));
                return Ok(());
            }
        }
    }
    let before: Vec<_> = bench.routes.iter().map(|route| route.lab.counted()).collect();
    for (i, row) in rows.iter().enumerate() {
        asked.progress.begin(row.name, i as u64 + 1, rows.len() as u64, 0);
        let measured = bench.row(row);
        asked.should_continue()?;
        let unmeasured = || row.unmeasured(asked);
        report.rows.push(
            measured
                .unwrap_or_else(|error| contenders::failed(unmeasured(), row.targets, plain(dir, &error))),
        );
    }
    for (route, before) in bench.routes.iter().zip(before) {
        let mut hosts = since(before, route.lab.counted());
        hosts.iter_mut().for_each(|host| host.host += &format!(", {:?}", route.net).to_lowercase());
        report.hosts.extend(hosts);
    }
    Ok(())
}

/// A lab with one kind of link, and its servers.
struct Route {
    net: Net,
    lab: Lab,
    iperf: Option<Served>,
    rsync: Option<Served>,
    ssh: Option<Launchers>,
}

impl Route {
    fn open(
        asked: &Asked<'_>,
        dir: &DataDir,
        net: Net,
        notes: &mut Vec<String>,
    ) -> std::result::Result<Route, String> {
        let words: &[&str] = match net {
            Net::Wide => &[],
            Net::Narrow => &["--rate", NARROW_RATE],
            Net::Delayed => &["--rate", NARROW_RATE, "--delay", DELAY],
        };
        let lab = Lab::up(&asked.options.program, Wanted { hosts: TO, words, ..Wanted::default() })?;
        let serves = |beside| {
            let row = |row: &&Row| asked.wants(row.name) && row.net == net && row.beside.contains(&beside);
            ROWS.iter().any(|one| row(&one))
        };
        let mut or_said = |served: std::result::Result<Served, String>| {
            served.map_err(|why| notes.push(format!("left out: {why}"))).ok()
        };
        let iperf = serves(Beside::Iperf).then(|| Served::iperf(&lab)).and_then(&mut or_said);
        let rsync = serves(Beside::Rsync).then(|| Served::rsync(&lab, dir.path())).and_then(&mut or_said);
        let ssh = (serves(Beside::Scp) || serves(Beside::Rclone)).then(|| Launchers::servers(&lab));
        let ssh =
            ssh.and_then(|ssh| ssh.map_err(|why| notes.push(format!("left out: scp, rclone: {why}"))).ok());
        for who in [Beside::Nc, Beside::Mbuffer, Beside::Rclone].into_iter().filter(|who| serves(*who)) {
            if let Some((program, package)) = who.program().filter(|(program, _)| !is_here(program)) {
                notes.push(format!("left out: {program} is not installed (apt-get install {package})"));
            }
        }
        Ok(Route { net, lab, iperf, rsync, ssh })
    }

    /// The server's process in n2: 0 if each run starts its own, `None` if this cannot be measured.
    fn server(&self, who: Beside) -> Option<u32> {
        if who.program().is_some_and(|(program, _)| !is_here(program)) {
            return None;
        }
        match who {
            Beside::Floor => None,
            Beside::Ours => Some(self.lab.host(TO).pid),
            Beside::Iperf => self.iperf.as_ref().map(|served| served.id()),
            Beside::Rsync => self.rsync.as_ref().map(|served| served.id()),
            Beside::Scp | Beside::Rclone => self.ssh.as_ref().map(|ssh| ssh.server(TO)),
            Beside::Nc | Beside::Mbuffer => Some(0),
        }
    }
}

/// A server in n2, ended when this is dropped.
pub(crate) struct Served(Child);

impl Served {
    pub(crate) fn iperf(lab: &Lab) -> std::result::Result<Served, String> {
        Served::iperf_at(lab, TO, IPERF_PORT)
    }

    pub(crate) fn iperf_at(lab: &Lab, host: u32, port: u16) -> std::result::Result<Served, String> {
        Served::start(lab, IPERF, &["-s", "-p", &port.to_string()], (host, port))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    fn rsync(lab: &Lab, dir: &Path) -> std::result::Result<Served, String> {
        let settings = dir.join("rsyncd.conf");
        let text = format!(
            "port = {RSYNC_PORT}\nuse chroot = no\nuid = 0\ngid = 0\nlog file = /dev/null\n\
             [data]\npath = {}\nread only = no\n",
            dir.display()
        );
        std::fs::write(&settings, text).map_err(|e| failed("write", &settings, &e).to_string())?;
        let config = format!("--config={}", settings.display());
        Served::start(lab, "rsync", &["--daemon", "--no-detach", &config], (TO, RSYNC_PORT))
    }

    fn start(
        lab: &Lab,
        program: &str,
        words: &[&str],
        (host, port): (u32, u16),
    ) -> std::result::Result<Served, String> {
        if !is_here(program) {
            return Err(format!("{program} is not installed (apt-get install {program})"));
        }
        let mut command = lab.inside(host, program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let served = Served(command.spawn().map_err(|e| format!("{program} cannot be run: {e}"))?);
        let (address, watch) = (format!("{}:{port}", lab.address(host)), Stopwatch::start());
        while std::net::TcpStream::connect(&address).is_err() {
            if watch.seconds() > LISTENS_SECONDS {
                return Err(format!("{program} does not listen at {address}"));
            }
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench<'a> {
    asked: &'a Asked<'a>,
    dir: &'a DataDir,
    fio: Option<&'a Fio>,
    routes: Vec<Route>,
}

impl Bench<'_> {
    fn route(&self, net: Net) -> &Route {
        self.routes.iter().find(|route| route.net == net).expect("each link that a row needs was made")
    }

    fn row(&self, row: &Row) -> Result<BenchRow> {
        let outputs = self.asked.runs as u64 * (1 + row.beside.len() as u64);
        let source = source(self.asked, self.dir, row.what, outputs)?;
        let mut measured = row.unmeasured(self.asked);
        let beside = row.beside.iter().filter(|who| self.route(row.net).server(**who).is_some());
        let mut contenders: Vec<Contender<Beside>> = std::iter::once(&Beside::Ours)
            .chain(beside)
            .map(|who| Contender::new(who.name(), *who))
            .collect();
        let fio = self.fio.filter(|_| row.beside.contains(&Beside::Floor));
        let rounds = Rounds { asked: self.asked, dir: self.dir, fio, what: row.what, source: &source };
        let run =
            |who: &Beside, output: &Path, measured: &mut _| self.run(row, *who, &source, output, measured);
        rounds.run(&mut measured, &mut contenders, run, |_| Ok(()))?;
        finish(&mut measured, contenders, row.targets, self.asked.tiny);
        Ok(measured)
    }

    /// One run: its seconds, and the usage of both ends.
    fn run(
        &self,
        row: &Row,
        who: Beside,
        source: &Path,
        output: &Path,
        measured: &mut BenchRow,
    ) -> Result<(f64, Usage)> {
        let route = self.route(row.net);
        let server = route.server(who).unwrap_or(0);
        let mut command = match who {
            Beside::Ours => self.ours(row, route, source, output),
            _ => self.rival(row, route, who, source, output),
        };
        let (cpu, carried) = (cpu_seconds(server), route.lab.carried(TO..=TO));
        let ended = whole_process(&mut command)?;
        let mut usage = ended.usage;
        usage.cpu_seconds += cpu_seconds(server) - cpu;
        let seconds = match who {
            Beside::Iperf => iperf_seconds(&ended.out, measured.bytes)?,
            Beside::Ours => {
                let carried = route.lab.carried(TO..=TO).since(carried);
                let told = agreed(ended.pump_receipt()?, carried)?;
                if measured.notes.is_empty() {
                    measured.notes.push(told);
                }
                ended.seconds
            }
            _ => ended.seconds,
        };
        Ok((seconds, usage))
    }

    fn ours(&self, row: &Row, route: &Route, source: &Path, output: &Path) -> Command {
        let mut command = route.lab.inside(FROM, &self.asked.options.program.display().to_string());
        command.env("THALWEG_IDENTITY", route.lab.identity());
        command.arg("pump").args(["--json", "--progress", "never"]).args(row.words);
        match row.what {
            What::Memory => {
                command.args(["--no-disk", &row.bytes(self.asked).to_string(), &format!("n{TO}:null:")])
            }
            What::File | What::Files => command.arg(source).arg(format!("n{TO}:{}", output.display())),
        };
        command
    }

    fn rival(&self, row: &Row, route: &Route, who: Beside, source: &Path, output: &Path) -> Command {
        let address = route.lab.address(TO);
        if who == Beside::Iperf {
            let mut command = route.lab.inside(FROM, IPERF);
            let (port, bytes) = (IPERF_PORT.to_string(), row.bytes(self.asked).to_string());
            command.args(["-c", &address, "-p", &port, "-n", &bytes, "-J"]);
            return command;
        }
        // For rsync, a name without a slash is a directory to create inside the other.
        let source = if row.what == What::Files { source.join("") } else { source.to_path_buf() };
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let of_ssh = |name| route.ssh.as_ref().map(|ssh| ssh.setting(name)).unwrap_or_default();
        let (dest, more) = match who {
            Beside::Scp => (format!("n{TO}:{}", output.display()), of_ssh("cold")),
            Beside::Rclone => (address, of_ssh("user")),
            Beside::Nc | Beside::Mbuffer => (address, route.lab.space(TO)),
            _ => (format!("rsync://{address}/data/{name}"), String::new()),
        };
        let mut command = route.lab.inside(FROM, "sh");
        command.args(["-c", who.line(), "sh"]).arg(source).args([dest, more]).arg::<PathBuf>(output.into());
        command
    }
}

/// The seconds that this many bytes take at the rate at which iperf3's receiver got them.
fn iperf_seconds(out: &str, bytes: u64) -> Result<f64> {
    Ok(bytes as f64 / iperf_rate(out)?)
}

/// Bytes per second from the first host of a lab to the second, which runs an iperf3 server, while as much goes the
/// other way: acknowledgements take part of the link.
pub(crate) fn iperf_between(lab: &Lab) -> Result<f64> {
    let mut command = lab.inside(1, IPERF);
    let port = IPERF_PORT.to_string();
    command.args(["-c", &lab.address(2), "-p", &port, "-t", IPERF_SECONDS, "--bidir", "-J"]);
    iperf_rate(&whole_process(&mut command)?.out)
}

/// Bytes per second from the first host of a lab to the second, which runs an iperf3 server.
pub(crate) fn iperf_one_way(lab: &Lab) -> Result<f64> {
    let mut command = lab.inside(1, IPERF);
    let port = IPERF_PORT.to_string();
    command.args(["-c", &lab.address(2), "-p", &port, "-t", IPERF_SECONDS, "-J"]);
    iperf_rate(&whole_process(&mut command)?.out)
}

/// Bytes per second at iperf3's receiver, or at its receivers on average.
pub(crate) fn iperf_rate(out: &str) -> Result<f64> {
    let told: Iperf = from_json(out.trim())
        .map_err(|e| Error::Failed(format!("the output of iperf3 cannot be read: {e}")))?;
    let ways: Vec<_> =
        [Some(told.end.sum_received), told.end.sum_received_bidir_reverse].into_iter().flatten().collect();
    if ways.iter().any(|way| way.bytes == 0 || way.seconds <= 0.0) {
        return Err(Error::Failed("iperf3's receiver received nothing".to_string()));
    }
    Ok(ways.iter().map(|way| way.bytes as f64 / way.seconds).sum::<f64>() / ways.len() as f64)
}

/// The counts of the link by the receipt and by the kernel. Fails if they disagree.
fn agreed(receipt: PumpReceipt, carried: Carried) -> Result<String> {
    let sent = receipt.link.map_or(0, |link| link.sent_bytes);
    let said = format!("link: {} by the receipt, {} by the kernel", traffic(sent), traffic(carried.bytes));
    if !carried.agrees(sent, AGREE_BYTES) {
        return Err(Error::Wrong(format!("{said}, which is not within 5 %")));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_target_names_is_measured_beside_its_row() {
        for row in ROWS {
            for target in row.targets {
                if let Target::Faster { than: Than::Named(name), .. } = target {
                    assert!(row.beside.iter().any(|beside| beside.name() == *name), "{}", row.name);
                }
            }
        }
    }

    #[test]
    fn goodput_is_what_the_receiver_got() {
        let told = r#"{"end":{"sum_sent":{"bytes":9},"sum_received":{"bytes":500,"seconds":2.0}}}"#;
        assert_eq!(iperf_seconds(told, 1000).unwrap(), 4.0);
        assert!(iperf_seconds(r#"{"end":{"sum_received":{"bytes":0,"seconds":0}}}"#, 1).is_err());
        assert!(iperf_seconds(r#"{"error":"unable to connect"}"#, 1).is_err());
    }
}
