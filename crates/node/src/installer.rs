//! Installs, starts and ends nodes on hosts over the user's own OpenSSH.
//!
//! Model: each step is a short script that `ssh HOST sh -s` runs, on all hosts at the same time. Installed files are in
//! one directory of the remote user, named by cluster and host; the node runs there and writes its own files there.
//! Where systemd runs, install also writes and enables a unit, and systemd starts and ends the node; elsewhere the node
//! is a plain daemon.
//! Invariant: every step is idempotent; remove leaves nothing behind. Each host has its own result. Once a node is up,
//! ssh is no longer needed.
//! Non-goals: users other than the one that ssh logs in as, other service managers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use thalweg_api::{ClusterFile, HostSteps, NodeStatus};
use thalweg_io::small;
use thalweg_wire::cluster::host_directory;
use thalweg_wire::{AUTHORITY_FILE, CERTIFICATE_FILE, CLUSTER_FILE, Client, ClusterError, KEY_FILE};

use crate::fleet::{Fleet, on_each};
use crate::{Error, Result, control};

/// Options for ssh: never prompt, and limit the time to connect.
const SSH_OPTIONS: [&str; 4] = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"];

/// How long a node may take to end, which gives its buckets of tables to other nodes or writes them.
pub const DOWN_SECONDS: u32 = 300;
/// The same for a node that does not answer, or is removed.
const HUNG_SECONDS: u32 = 10;

/// The first line that a script prints; shells may print text of their own before it.
const MARK: &str = "== thalweg ==";

/// A step on hosts.
#[derive(Debug, Clone)]
pub enum Step {
    /// Copy the program and the identities to them.
    Install,
    /// Start their nodes.
    Up,
    /// End their nodes. One that has not ended after this many seconds is killed; until then it may write tables.
    Down(u32),
    /// Remove what was installed.
    Remove,
}

/// Sets `ctl` to the command for systemd, if that runs, and `unit` to the node's unit, if it has one.
const SYSTEMD: &str = r#"
ctl=systemctl
[ "$(id -u)" -eq 0 ] || ctl='systemctl --user'
case $($ctl is-system-running 2>/dev/null) in running|degraded|starting) ;; *) ctl= ;; esac
unit=
for file in thalweg-*.service; do if [ -n "$ctl" ] && [ -e "$file" ]; then unit=$file; fi; done
"#;

/// Whether the node runs: sets `pid` if it does.
const IS_UP: &str = r#"
if [ -n "$unit" ]; then $ctl show -p MainPID --value "$unit" >node.pid; fi
pid=$(cat node.pid 2>/dev/null) && [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$(pwd -P)" ] || pid=
"#;

const UP: &str = r#"
if [ -n "$pid" ]; then
    if [ "/proc/$pid/exe" -ef thalweg ] && sha256sum thalweg | grep -q "^$sum"; then
        echo "runs already, as process $pid"
    else
        echo "runs another build than this one, as process $pid; thalweg cluster upgrade restarts it with this one"
    fi
    exit 0
fi
: >ready
if [ -n "$unit" ]; then
    $ctl start "$unit" || exit 1
    pid=$($ctl show -p MainPID --value "$unit")
else
    setsid ./thalweg node run --identity identity >ready 2>node.log </dev/null &
    pid=$!
fi
echo $pid >node.pid
tries=0
while ! [ -s ready ]; do
    tries=$((tries + 1))
    if ! kill -0 $pid 2>/dev/null || [ $tries -gt 200 ]; then
        if [ -n "$unit" ]; then $ctl stop "$unit"; else kill $pid 2>/dev/null; fi
        rm -f node.pid
        echo "the node did not start: $(tail -n 1 node.log)" >&2
        exit 1
    fi
    sleep 0.05
done
echo "started, as process $pid"
"#;

const DOWN: &str = r#"
if [ -n "$pid" ]; then
    if [ -n "$unit" ]; then $ctl stop "$unit"; else kill "$pid"; fi
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ "$(cut -d ' ' -f 3 "/proc/$pid/stat" 2>/dev/null)" != Z ]; do
        tries=$((tries + 1))
        # The node itself, and with it all that it started; else its guard.
        if [ $tries -eq $((patience * 20)) ]; then kill -9 "$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' ready)"; fi
        if [ $tries -gt $((patience * 20 + 20)) ]; then kill -9 "$pid"; break; fi
        sleep 0.05
    done
    rm -f node.pid ready
    done="ended process $pid"
else
    done="did not run"
fi
"#;

/// Which program a host's node runs.
const WHICH: &str = r#"
if [ -z "$pid" ]; then echo none; elif [ "/proc/$pid/exe" -ef thalweg ]; then echo "installed $pid"; else echo "other $pid"; fi
"#;

/// The program that a host's node runs, and its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    /// It does not run.
    Nothing,
    /// The one that is installed.
    Installed(u32),
    /// Another.
    Other(u32),
}

/// Hosts that ssh reaches, as a fleet.
pub struct Hosts {
    owner: PathBuf,
    ssh: Vec<String>,
    client: Client,
    program: Program,
}

impl Hosts {
    /// The hosts of the owner's cluster. `program` is what a step installs; `ssh` is ssh and its first arguments.
    pub fn new(owner: &Path, program: &Path, ssh: &[String]) -> Result<Hosts> {
        if ssh.is_empty() {
            return Err(Error::NoSshCommand);
        }
        let client = Client::load(owner)?;
        Ok(Hosts { owner: owner.into(), ssh: ssh.to_vec(), client, program: Program::of(program)? })
    }

    /// Takes a step on these hosts, or on all.
    pub fn take(&self, step: &Step, on: &[String]) -> Result<HostSteps> {
        let file = self.client.file();
        // These steps also apply to a dropped host.
        let takes_away = matches!(step, Step::Down(_) | Step::Remove);
        let is_dropped = |name: &&String| {
            takes_away
                && file.dropped.iter().any(|host| host.name == **name)
                && file.hosts.iter().all(|host| host.name != **name)
        };
        let (dropped, on): (Vec<&String>, Vec<&String>) = on.iter().partition(is_dropped);
        let on: Vec<String> = on.into_iter().cloned().collect();
        let names_none = on.iter().all(|name| name.starts_with('!'));
        let mut names = if names_none && !dropped.is_empty() { Vec::new() } else { self.chosen(&on)? };
        names.extend(dropped.into_iter().cloned());
        Ok(on_each(&names, |host| self.remote(host).take(step, &self.program)))
    }

    /// Takes a step on one host.
    pub fn take_on(&self, host: &str, step: &Step) -> Result<String> {
        self.remote(host).take(step, &self.program)
    }

    /// The program that a host's node runs.
    pub fn running(&self, host: &str) -> Result<Running> {
        self.remote(host).running()
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.client.file().name
    }

    /// The names of these hosts, or of all.
    pub fn chosen(&self, on: &[String]) -> Result<Vec<String>> {
        Ok(self.client.hosts(on)?.into_iter().map(|host| host.name).collect())
    }

    fn remote<'a>(&'a self, host: &'a str) -> Remote<'a> {
        Remote { ssh: &self.ssh, file: self.client.file(), owner: &self.owner, host }
    }

    fn steps(&self, host: &str, steps: &[Step]) -> Result<String> {
        let remote = self.remote(host);
        let done = steps.iter().map(|step| remote.take(step, &self.program));
        Ok(done.collect::<Result<Vec<String>>>()?.join("; "))
    }
}

impl Fleet for Hosts {
    fn list(&self) -> Vec<String> {
        self.client.file().hosts.iter().map(|host| host.name.clone()).collect()
    }

    fn place(&self, host: &str) -> Result<String> {
        self.steps(host, &[Step::Install, Step::Up])
    }

    fn watch(&self, host: &str) -> Result<NodeStatus> {
        control::status_of(&self.owner, host)
    }

    fn replace(&self, host: &str) -> Result<String> {
        self.steps(host, &[Step::Down(HUNG_SECONDS)])?;
        self.place(host)
    }
}

/// The program to install, and its checksum.
struct Program {
    path: PathBuf,
    sum: String,
}

impl Program {
    fn of(program: &Path) -> Result<Program> {
        let summed = Command::new("sha256sum").arg(program).output();
        let failed = |why| Error::Checksum { program: program.into(), why };
        let summed = summed.map_err(|e| failed(Some(e)))?;
        let text = String::from_utf8_lossy(&summed.stdout);
        match text.split_whitespace().next() {
            // sha256sum puts a backslash first if it escaped the name.
            Some(sum) if summed.status.success() => {
                Ok(Program { path: program.into(), sum: sum.trim_start_matches('\\').into() })
            }
            _ => Err(failed(None)),
        }
    }
}

/// A host, and how to reach it.
struct Remote<'a> {
    ssh: &'a [String],
    file: &'a ClusterFile,
    owner: &'a Path,
    host: &'a str,
}

impl Remote<'_> {
    fn take(&self, step: &Step, program: &Program) -> Result<String> {
        let directory = self.directory();
        let enter = format!("set -u\ncd \"$HOME/{directory}\" 2>/dev/null");
        match step {
            Step::Install => self.install(&directory, program),
            // If a host was dropped and added again, its old node is ended and a new one starts.
            Step::Up => self.run(&format!(
                "{enter} || {{ echo 'nothing is installed here; thalweg cluster install comes first' >&2; exit 1; }}{SYSTEMD}{IS_UP}\
                 if [ -n \"$pid\" ] && grep -qE '\"id\":\"({})\"' ready; then\npatience={HUNG_SECONDS}{DOWN}pid=; fi\nsum={}\n{UP}",
                self.ids_before(),
                program.sum
            )),
            Step::Down(seconds) => self.run(&format!(
                "{enter} || {{ echo 'nothing is installed'; exit 0; }}{SYSTEMD}{IS_UP}patience={seconds}{DOWN}echo \"$done\"\n"
            )),
            Step::Remove => self.run(&format!(
                "{enter} || {{ echo 'nothing is installed'; exit 0; }}{SYSTEMD}{IS_UP}patience={HUNG_SECONDS}{DOWN}\
                 if [ -n \"$unit\" ]; then $ctl disable --quiet \"$unit\"; fi\ncd \"$HOME\"\nrm -rf \"{directory}\"\n\
                 rmdir -p \"$(dirname \"{directory}\")\" 2>/dev/null\necho \"removed; the node $done\"\n"
            )),
        }
    }

    fn running(&self) -> Result<Running> {
        let script = format!(
            "set -u\ncd \"$HOME/{}\" 2>/dev/null || {{ echo none; exit 0; }}{SYSTEMD}{IS_UP}{WHICH}",
            self.directory()
        );
        let told = self.run(&script)?;
        let (word, pid) = told.split_once(' ').unwrap_or((&told, ""));
        match (word, pid.parse()) {
            ("installed", Ok(pid)) => Ok(Running::Installed(pid)),
            ("other", Ok(pid)) => Ok(Running::Other(pid)),
            _ => Ok(Running::Nothing),
        }
    }

    /// The ids of dropped nodes of this host, as alternatives of a pattern. A node that was only renewed keeps running.
    fn ids_before(&self) -> String {
        let dropped = self.file.dropped.iter().filter(|gone| gone.name == self.host);
        dropped.map(|gone| gone.id.as_str()).chain(["none"]).collect::<Vec<&str>>().join("|")
    }

    /// The directory below the remote home directory. Ids and host names contain no character that a shell interprets.
    fn directory(&self) -> String {
        format!(".local/share/thalweg/{}-{}", &self.file.id[..8], self.host)
    }

    fn install(&self, directory: &str, program: &Program) -> Result<String> {
        let sum = self.run(&format!(
            "umask 077; mkdir -p \"$HOME/{directory}/identity\" && cd \"$HOME/{directory}\" && \
             {{ sha256sum thalweg 2>/dev/null || echo none; }}\n"
        ))?;
        let mut done = Vec::new();
        if !sum.starts_with(&program.sum) {
            let bytes = small::open(&program.path).map_err(ClusterError::from)?;
            self.copy(directory, "thalweg", 700, bytes.into())?;
            done.push("the program");
        }
        let ours = host_directory(self.owner, self.host);
        let files = [CLUSTER_FILE, AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE];
        let mut text = Vec::new();
        for file in files {
            let bytes = small::read(&ours.join(file)).map_err(ClusterError::from)?;
            text.push(String::from_utf8(bytes).map_err(|_| ClusterError::NotText(ours.join(file)))?);
        }
        // No line of JSON or PEM equals the end mark. The key is in the script, on standard input, not in an argument.
        let mut script = format!("set -e\numask 077\ncd \"$HOME/{directory}/identity\"\nchanged=\n");
        for (file, text) in files.iter().zip(&text) {
            script += &format!(
                "cat >.new <<'== END =='\n{}\n== END ==\n\
                 if cmp -s .new {file}; then rm .new; else mv .new {file}; changed=1; fi\n",
                text.trim_end()
            );
        }
        if !self.run(&(script + "echo \"changed$changed\"\n"))?.ends_with("changed") {
            done.push("its identity");
        }
        if self.run(&self.unit(directory))?.ends_with("changed") {
            done.push("a unit for systemd");
        }
        Ok(if done.is_empty() {
            "is installed already".into()
        } else {
            format!("brought {}", done.join(" and "))
        })
    }

    /// The script that writes and enables a unit where systemd runs, and prints whether it changed.
    ///
    /// If the kernel kills a job for its memory, the node continues (`OOMPolicy`). Jobs may make control groups
    /// (`Delegate`). No core dump with the key is written unless a job asks for its own (`LimitCORE`). Rights are not
    /// removed: jobs may do all that the node's user may. `NoNewPrivileges` would disable sudo, and in a user's unit it
    /// is implied by `RestrictRealtime`, `LockPersonality` and `Protect...`. `ProtectClock` disables devices like GPUs;
    /// `ProtectKernelModules` hides mounts of the host; `RestrictSUIDSGID` breaks transfers of such modes.
    fn unit(&self, directory: &str) -> String {
        let name = format!("thalweg-{}-{}.service", &self.file.id[..8], self.host);
        // A user's units start with the user's session or lingering, others with the system.
        format!(
            r#"cd "$HOME/{directory}" || exit 1
{SYSTEMD}
[ -n "$ctl" ] || exit 0
target=multi-user.target
[ "$ctl" = systemctl ] || target=default.target
cat >.unit.new <<END_OF_UNIT
[Unit]
Description=thalweg node {host} of cluster {cluster}
Wants=network-online.target
After=network-online.target
[Service]
WorkingDirectory=$PWD
ExecStart=$PWD/thalweg node run --identity identity
StandardOutput=truncate:$PWD/ready
StandardError=append:$PWD/node.log
KillMode=mixed
TimeoutStopSec={DOWN_SECONDS}
Restart=on-failure
RestartSec=1
OOMPolicy=continue
Delegate=yes
LimitNOFILE=65536
TasksMax=32768
LimitCORE=0:infinity
[Install]
WantedBy=$target
END_OF_UNIT
if cmp -s .unit.new {name}; then rm .unit.new; exit 0; fi
mv .unit.new {name}
$ctl enable --quiet "$PWD/{name}" && $ctl daemon-reload && echo changed
"#,
            host = self.host,
            cluster = self.file.id,
        )
    }

    /// Copies a file, completely or not at all.
    fn copy(&self, directory: &str, name: &str, mode: u32, bytes: Stdio) -> Result<()> {
        let line = format!(
            "umask 077; cd \"$HOME/{directory}\" && cat >.{name}.new && chmod {mode} .{name}.new && mv .{name}.new {name}"
        );
        self.end_of(self.start(self.command(&[&line]).stdin(bytes))?).map(drop)
    }

    /// Runs a script on the host; returns its output.
    fn run(&self, script: &str) -> Result<String> {
        let mut child = self.start(self.command(&["sh", "-s"]).stdin(Stdio::piped()))?;
        let mut stdin = child.stdin.take().expect("a pipe was asked for");
        // If this fails, the exit status and standard error say why.
        let _ = stdin.write_all(format!("echo; echo '{MARK}'\n{script}").as_bytes());
        drop(stdin);
        let said = self.end_of(child)? + "\n";
        let behind = said.split_once(&format!("\n{MARK}\n")).map(|(_, behind)| behind.trim_end().to_string());
        behind.ok_or_else(|| Error::NoScript(self.host.into()))
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        command.spawn().map_err(|why| Error::Start { program: self.ssh[0].clone(), why })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.ssh[0]);
        command.args(&self.ssh[1..]).args(SSH_OPTIONS).arg(self.host).args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn end_of(&self, child: Child) -> Result<String> {
        let output = child.wait_with_output();
        let output = output.map_err(|why| Error::Start { program: self.ssh[0].clone(), why })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_string());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let why = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
        Err(Error::Step { program: self.ssh[0].clone(), host: self.host.into(), why: why.trim().into() })
    }
}
