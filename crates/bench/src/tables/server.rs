//! The servers that are measured: processes of their own, which end with the benchmark.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use thalweg_api::{TableServer, from_json};
use thalweg_base::clock::Stopwatch;

use crate::lab::cpu_seconds;
use thalweg_measure::{Error, Result, failed};

/// This program is the Redis server if it is started under that name. It comes with redis-cli and redis-benchmark.
const REDIS: &str = "/usr/bin/redis-check-rdb";
/// How long a server may take to listen.
const STARTS_WITHIN_S: f64 = 20.0;
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// Whether Redis and its benchmark are installed.
pub(super) fn has_redis() -> bool {
    Path::new(REDIS).exists() && Path::new("/usr/bin/redis-benchmark").exists()
}

/// A server that is killed when it is dropped.
pub(super) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Ours.
    pub(super) fn ours(program: &Path) -> Result<Server> {
        let mut command = Command::new(program);
        command.args(["table", "serve", "--resp", "127.0.0.1:0", "--json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| failed("start", program, &e))?;
        let mut line = String::new();
        let out = child.stdout.take().expect("its output is a pipe");
        let _ = BufReader::new(out).read_line(&mut line);
        let ready = from_json::<TableServer>(&line).ok();
        let port = ready.and_then(|ready| ready.resp.rsplit(':').next()?.parse().ok());
        let server = Server { child, port: port.unwrap_or(0) };
        port.ok_or_else(|| Error::Failed("thalweg table serve did not start".into()))?;
        Ok(server)
    }

    /// Redis, which writes nothing to disk.
    pub(super) fn redis(dir: &Path) -> Result<Server> {
        let port = free_port()?;
        let mut command = Command::new(REDIS);
        command.arg0("redis-server").current_dir(dir).args(["--port", &port.to_string(), "--save", ""]);
        Server::listening(command, "Redis", port)
    }

    fn listening(mut command: Command, name: &str, port: u16) -> Result<Server> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| Error::Failed(format!("{name} cannot be started: {e}")))?;
        let mut server = Server { child, port };
        let watch = Stopwatch::start();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let has_ended = server.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || watch.seconds() > STARTS_WITHIN_S {
                return Err(Error::Failed(format!("{name} does not listen")));
            }
            std::thread::sleep(LOOKS_EVERY);
        }
        Ok(server)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The CPU time of its process so far.
    pub(super) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }

    /// The resident memory of its process.
    pub(super) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// etcd, a separate server with its data in a directory.
pub(super) struct Etcd {
    server: Server,
    dir: PathBuf,
}

impl Etcd {
    /// Starts etcd, or says why it cannot.
    pub(super) fn start(dir: &Path) -> std::result::Result<Etcd, String> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
        {
            return Err("there is no etcd (apt-get install etcd-server)".into());
        }
        let dir = dir.join("etcd");
        let ports = free_port().and_then(|client| Ok((client, free_port()?)));
        let (client, peer) = ports.map_err(|why| why.to_string())?;
        let [client_url, peer_url] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&dir).args(["--name", "bench", "--logger", "zap"]);
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("bench={peer_url}")]);
        let server = Server::listening(command, "etcd", client).map_err(|why| why.to_string())?;
        Ok(Etcd { server, dir })
    }

    pub(super) fn port(&self) -> u16 {
        self.server.port()
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        self.server.cpu_seconds()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.server.child.kill();
        let _ = self.server.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A port that no process listens on now.
pub(super) fn free_port() -> Result<u16> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|e| Error::Failed(format!("there is no free port: {e}")))
}
