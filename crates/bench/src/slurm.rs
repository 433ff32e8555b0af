//! Slurm over the hosts of a lab: a controller here, a daemon in each host, and an allocation of all hosts for `srun`.
//!
//! Invariant: everything is started here and ends when the value is dropped. The machine's own Slurm is neither used
//! nor changed.

use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use thalweg_base::clock::Stopwatch;

use crate::launchers::is_here;

/// The programs that must be installed.
const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "salloc", "srun"];
/// How long to wait for `munged`, and then for the daemons, in seconds.
const READY_SECONDS: f64 = 60.0;
/// The daemons' port; each daemon is in a host of its own.
const DAEMON_PORT: u16 = 6818;
const KEY_BYTES: usize = 1024;

/// A host of a lab: its network namespace and its address.
#[derive(Debug, Clone)]
pub struct SlurmHost {
    /// The name of the network namespace.
    pub space: String,
    /// The address.
    pub address: String,
}

/// A running Slurm; see the head of this file.
#[derive(Debug)]
pub struct Slurm {
    processes: Vec<Child>,
    directory: PathBuf,
    job: String,
}

impl Slurm {
    /// Why Slurm cannot be started here, if one of its programs is missing.
    pub fn missing() -> Option<String> {
        let program = PROGRAMS.into_iter().find(|program| !is_here(program))?;
        Some(format!("{program} is not installed (bench/rivals/setup launchers)"))
    }

    /// Starts Slurm and allocates all hosts, which are called n1, n2 and so on. `name` is that of its directory, `here`
    /// the address of this machine.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn start(name: &str, hosts: &[SlurmHost], here: &str) -> Result<Slurm, String> {
        if let Some(why) = Slurm::missing() {
            return Err(why);
        }
        let directory = std::env::temp_dir().join(format!("thalweg-slurm-{name}"));
        let mut slurm = Slurm { processes: Vec::new(), directory, job: String::new() };
        slurm.write(hosts, here).map_err(|e| format!("cannot be set up: {e}"))?;
        let file = |name: &str| slurm.directory.join(name).display().to_string();
        let mut munged = Command::new("munged");
        munged.args(["-F", "--force"]).arg(format!("--key-file={}", file("key")));
        for (flag, name) in
            [("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")]
        {
            munged.arg(format!("--{flag}={}", file(&format!("munge.{name}"))));
        }
        let socket = slurm.directory.join("munge.socket");
        slurm.begin(munged)?;
        ready("munged", || socket.exists())?;
        let mut controller = Command::new("slurmctld");
        controller.args(["-D", "-f"]).arg(slurm.settings());
        slurm.begin(controller)?;
        for (i, host) in hosts.iter().enumerate() {
            // Not by `ip netns exec`, which hides the control groups that the daemon needs.
            let mut daemon = Command::new("nsenter");
            daemon.arg(format!("--net=/run/netns/{}", host.space));
            daemon.args(["slurmd", "-D", "-N", &format!("n{}", i + 1), "-f"]).arg(slurm.settings());
            slurm.begin(daemon)?;
        }
        slurm.allocate(hosts.len())?;
        Ok(slurm)
    }

    /// `srun` on this many hosts of the allocation, to which the program and its arguments are added.
    pub fn srun(&self, hosts: u32) -> Command {
        let mut command = Command::new("srun");
        command.env("SLURM_CONF", self.settings());
        command.args(["--overlap", "--mpi=none", "--jobid", &self.job, "-N", &hosts.to_string()]);
        command
    }

    fn settings(&self) -> PathBuf {
        self.directory.join("slurm.conf")
    }

    fn write(&self, hosts: &[SlurmHost], here: &str) -> std::io::Result<()> {
        std::fs::DirBuilder::new().mode(0o755).create(&self.directory)?;
        let mut key = std::fs::OpenOptions::new();
        let mut key = key.write(true).create_new(true).mode(0o400).open(self.directory.join("key"))?;
        let mut noise = std::io::Read::take(std::fs::File::open("/dev/urandom")?, KEY_BYTES as u64);
        std::io::copy(&mut noise, &mut key)?;
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let port = TcpListener::bind((here, 0))?.local_addr()?.port();
        let (dir, name) = (self.directory.display(), name.trim());
        let line = |(i, host): (usize, &SlurmHost)| {
            let (name, address) = (format!("n{}", i + 1), &host.address);
            format!("NodeName={name} NodeAddr={address} NodeHostname={name} CPUs=1 State=UNKNOWN\n")
        };
        let hosts: String = hosts.iter().enumerate().map(line).collect();
        let settings = format!(
            "ClusterName=lab\nSlurmctldHost={name}({here})\nSlurmctldPort={port}\nSlurmdPort={DAEMON_PORT}\n\
             SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nCredType=cred/munge\n\
             AuthInfo=socket={dir}/munge.socket\nStateSaveLocation={dir}\nSlurmdSpoolDir={dir}/%n\n\
             SlurmctldPidFile={dir}/controller.pid\nSlurmdPidFile={dir}/%n.pid\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\nReturnToService=2\n\
             SelectType=select/cons_tres\nSchedulerType=sched/builtin\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\n{hosts}\
             PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        );
        std::fs::write(self.settings(), settings)?;
        std::fs::write(self.directory.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n")
    }

    fn begin(&mut self, mut command: Command) -> Result<(), String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(command.spawn().map_err(|e| format!("cannot start {program}: {e}"))?);
        Ok(())
    }

    fn allocate(&mut self, hosts: usize) -> Result<(), String> {
        let told = |program: &str, args: &[&str]| {
            let ran = Command::new(program).args(args).env("SLURM_CONF", self.settings()).output();
            ran.map_or_else(
                |e| e.to_string(),
                |ran| String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned(),
            )
        };
        let idle =
            || told("sinfo", &["-h", "-N", "-o", "%t"]).lines().filter(|state| *state == "idle").count();
        ready("slurmd", || idle() == hosts)?;
        let granted = told("salloc", &["--no-shell", "-N", &hosts.to_string()]);
        let job = granted.split("allocation ").nth(1).and_then(|rest| rest.split_whitespace().next());
        self.job = job.ok_or_else(|| format!("allocates no hosts: {}", granted.trim()))?.to_string();
        Ok(())
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if !self.job.is_empty() {
            let _ = Command::new("scancel").arg(&self.job).env("SLURM_CONF", self.settings()).status();
        }
        // The daemons before the controller that they talk to.
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn ready(what: &str, is_ready: impl Fn() -> bool) -> Result<(), String> {
    let watch = Stopwatch::start();
    while !is_ready() {
        if watch.seconds() > READY_SECONDS {
            return Err(format!("{what} is not ready after {READY_SECONDS} s"));
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    Ok(())
}
