//! Other launchers over the hosts of a lab: OpenSSH, and programs that use it.
//!
//! Model: each host has a server that accepts one key and gives its users an empty directory, so that shells read no
//! settings. ControlMaster keeps a client's connections open where that is what is measured.
//! Invariant: servers and open connections are gone when the value is dropped.

use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use thalweg_base::clock::Stopwatch;

use crate::lab::Lab;
use crate::slurm::{Slurm, SlurmHost};

/// The launchers' names in reports.
pub(crate) const SSH: &str = "ssh";
/// ssh over open connections.
pub(crate) const SSH_KEPT: &str = "ssh, kept";
/// pdsh over open connections.
pub(crate) const PDSH: &str = "pdsh, kept";
/// clush over open connections.
pub(crate) const CLUSH: &str = "clush, kept";
/// mpirun over open connections.
pub(crate) const MPIRUN: &str = "mpirun";
/// srun in an allocation of all hosts.
pub(crate) const SRUN: &str = "srun";

/// With more hosts its daemons wait 5 s or more for each other's names, which says nothing about its speed.
const MPIRUN_MAX: u32 = 4;
/// The last number of this machine's address in a lab.
const HERE: u32 = 254;
/// How long a server may take to listen, in seconds.
const LISTENS_SECONDS: f64 = 10.0;

/// A launcher's name, and how one run of it is started.
pub(crate) type Launcher = (&'static str, Box<dyn Fn() -> Command>);

/// The launchers that are installed.
pub(crate) struct Launchers {
    /// Empty if there are no servers.
    servers: Vec<Child>,
    directory: PathBuf,
    found: Vec<&'static str>,
    hosts: u32,
    slurm: Option<Arc<Slurm>>,
}

impl Launchers {
    /// Finds the launchers and starts what they need; reports which ones are missing. Launchers that have to be
    /// installed are measured only if rivals are requested.
    pub(crate) fn start(lab: &Lab, rivals: bool, notes: &mut Vec<String>) -> Launchers {
        let mut launchers = Launchers::none(lab);
        if let Err(why) = launchers.serve(lab) {
            notes.push(format!("no other launchers: {why}"));
            return launchers;
        }
        launchers.found.extend([SSH, SSH_KEPT]);
        for (name, program, when) in
            [(PDSH, "pdsh", true), (CLUSH, "clush", true), (MPIRUN, "mpirun", rivals)]
        {
            match (when, is_here(program)) {
                (true, true) => launchers.found.push(name),
                (false, true) => notes.push(format!("{program} is measured with --rivals only")),
                (_, false) => {
                    notes.push(format!("{program} is not installed (bench/rivals/setup launchers)"))
                }
            }
        }
        let host = |i| SlurmHost { space: lab.space(i), address: lab.address(i) };
        let hosts: Vec<SlurmHost> = (1..=lab.hosts()).map(host).collect();
        match rivals.then(|| Slurm::start(lab.id(), &hosts, &lab.address(HERE))) {
            Some(Ok(slurm)) => {
                launchers.found.push(SRUN);
                launchers.slurm = Some(Arc::new(slurm));
            }
            Some(Err(why)) => notes.push(format!("srun is left out: {why}")),
            None => notes.push("srun is measured with --rivals only".into()),
        }
        launchers
    }

    fn none(lab: &Lab) -> Launchers {
        let directory = std::env::temp_dir().join(format!("thalweg-ssh-{}", lab.id()));
        Launchers { servers: Vec::new(), directory, found: Vec::new(), hosts: lab.hosts(), slurm: None }
    }

    /// Starts the servers; an error says why there are none.
    pub(crate) fn servers(lab: &Lab) -> Result<Launchers, String> {
        let mut launchers = Launchers::none(lab);
        launchers.serve(lab).map(|()| launchers)
    }

    /// The process that serves a host.
    pub(crate) fn server(&self, host: u32) -> u32 {
        self.servers.get(host as usize - 1).map_or(0, Child::id)
    }

    /// The launchers that can start a command on this many hosts.
    pub(crate) fn of(&self, lab: &Lab, count: u32) -> Vec<Launcher> {
        let can = |name: &&&str| match **name {
            SSH | SSH_KEPT => count == 1,
            MPIRUN => count <= MPIRUN_MAX,
            _ => true,
        };
        self.found.iter().filter(can).map(|name| (*name, self.launcher(lab, name, count))).collect()
    }

    fn launcher(&self, lab: &Lab, name: &str, count: u32) -> Box<dyn Fn() -> Command> {
        if let Some(slurm) = self.slurm.as_ref().filter(|_| name == SRUN) {
            let slurm = slurm.clone();
            return Box::new(move || {
                let mut command = slurm.srun(count);
                command.arg("true");
                command
            });
        }
        let kept = self.setting(if name == SSH { "cold" } else { "kept" });
        let (names, program) = (lab.names(count), name.split(',').next().unwrap_or(name).to_string());
        let net = lab.address(0) + "/24";
        Box::new(move || {
            let mut command = match program.as_str() {
                // Open MPI 4.1 hung here once in several hundred launches.
                MPIRUN => {
                    let mut bounded = Command::new("timeout");
                    bounded.args(["20", MPIRUN]);
                    bounded
                }
                _ => Command::new(&program),
            };
            match program.as_str() {
                "ssh" => command.args(["-F", &kept, "n1"]),
                "pdsh" => command
                    .env("PDSH_SSH_ARGS_APPEND", format!("-F {kept}"))
                    .args(["-R", "ssh", "-S", "-f", "64", "-w", &names]),
                "clush" => command.args(["-q", "-S", "-o", &format!("-F {kept}"), "-w", &names]),
                // Without a tree, because the hosts of a lab do not know each other's names.
                _ => command.args(["--allow-run-as-root", "-N", "1", "-H", &names]).args([
                    "--mca",
                    "plm_rsh_agent",
                    &format!("ssh -F {kept}"),
                    "--mca",
                    "plm_rsh_no_tree_spawn",
                    "1",
                    "--mca",
                    "oob_tcp_if_include",
                    &net,
                ]),
            };
            command.arg("true");
            command
        })
    }

    /// The path of a client's configuration: `cold`, `kept` to use open connections, or `keeps` to open them; or the
    /// path of its key, `user`.
    pub(crate) fn setting(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn serve(&mut self, lab: &Lab) -> Result<(), String> {
        let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let sshd = sshd.ok_or("there is no sshd; install openssh-server")?;
        let said = |e: std::io::Error| e.to_string();
        std::fs::DirBuilder::new().mode(0o700).create(&self.directory).map_err(said)?;
        let _ = std::fs::create_dir_all("/run/sshd");
        let dir = self.directory.display().to_string();
        std::fs::create_dir(self.directory.join("home")).map_err(said)?;
        for key in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.directory.join(key));
            let made = keygen.stdin(Stdio::null()).status().map_err(said)?;
            made.success().then_some(()).ok_or("ssh-keygen failed")?;
        }
        let server = format!(
            "Port 22\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/user.pub\nStrictModes no\nUsePAM no\n\
             PidFile none\nPasswordAuthentication no\nSetEnv HOME={dir}/home\nMaxStartups 100\n\
             Subsystem sftp internal-sftp\n"
        );
        std::fs::write(self.directory.join("sshd_config"), server).map_err(said)?;
        let common = format!(
            " IdentityFile {dir}/user\n IdentitiesOnly yes\n StrictHostKeyChecking no\n \
             UserKnownHostsFile /dev/null\n LogLevel ERROR\n BatchMode yes\n"
        );
        // A measured client must not keep a connection: that would keep its output open, and the run would not end.
        let kept = format!("{common} ControlMaster no\n ControlPath {dir}/%n\n");
        let keeps = format!("{common} ControlMaster auto\n ControlPath {dir}/%n\n ControlPersist 3600\n");
        for (name, settings) in [("cold", &common), ("kept", &kept), ("keeps", &keeps)] {
            let hosts: String = (1..=lab.hosts())
                .map(|i| format!("Host n{i}\n HostName {}\n{settings}", lab.address(i)))
                .collect();
            std::fs::write(self.directory.join(name), hosts).map_err(said)?;
        }
        for host in 1..=lab.hosts() {
            let mut command = lab.inside(host, sshd);
            command.args(["-D", "-f"]).arg(self.directory.join("sshd_config"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            self.servers.push(command.spawn().map_err(said)?);
        }
        self.open(lab)
    }

    /// Waits for the servers, and opens the connections that stay open.
    fn open(&self, lab: &Lab) -> Result<(), String> {
        let watch = Stopwatch::start();
        for host in 1..=lab.hosts() {
            let address = format!("{}:22", lab.address(host));
            while TcpStream::connect(&address).is_err() {
                if watch.seconds() > LISTENS_SECONDS {
                    return Err(format!("sshd does not listen at {address}"));
                }
            }
            let mut first = Command::new("ssh");
            first.args(["-F", &self.setting("keeps"), &format!("n{host}"), "true"]);
            let ended = first.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !ended.map_err(|e| e.to_string())?.success() {
                return Err(format!("ssh cannot reach n{host}"));
            }
        }
        Ok(())
    }
}

impl Drop for Launchers {
    fn drop(&mut self) {
        for host in 1..=self.hosts {
            let mut end = Command::new("ssh");
            end.args(["-F", &self.setting("kept"), "-O", "exit", &format!("n{host}")]);
            let _ = end.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Whether a program is installed.
pub(crate) fn is_here(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}
