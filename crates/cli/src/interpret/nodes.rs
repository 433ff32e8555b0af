//! Interprets the arguments and flags of the commands about nodes.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use thalweg::nodes::cluster::HOSTS_MAX;
use thalweg::nodes::installer::{DOWN_SECONDS, Step};
use thalweg::nodes::{ExecOptions, Join, NodeOptions};
use thalweg_api::{May, Schedule};
use thalweg_verbs::{Usage, ssh, text, values};

use crate::commands::Command;
use crate::parse::nothing_left;
use crate::program;
use crate::typed::TypedArgs;

/// The default number of rounds of an exchange.
const EXCHANGES: usize = 5;

/// The default for the longest wait of an upgrade for a node's jobs, and until all is sound.
const UPGRADE: Duration = Duration::from_secs(600);

/// The variable with the directory of the identity.
const IDENTITY: &str = "THALWEG_IDENTITY";

/// The variable with the host whose node relays commands.
const VIA: &str = "THALWEG_VIA";

/// A command to run, and how to show its output.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) options: ExecOptions,
    /// Shows the output of each host together.
    pub(crate) gather: bool,
}

/// A request about jobs on nodes.
#[derive(Debug)]
pub(crate) enum JobsAsk {
    List(Vec<String>),
    Show(String),
    Watch(String),
    Cancel(String),
}

/// An operation on a cluster.
#[derive(Debug)]
pub(crate) enum ClusterAsk {
    Init {
        name: String,
        hosts: Vec<String>,
        dead_after: Option<Duration>,
    },
    Status,
    Add(Vec<String>),
    Drop(Vec<String>),
    Client(String, May),
    Renew(Vec<String>),
    Doctor(Vec<String>),
    Probe(Vec<String>),
    /// The hosts, the bytes between each pair, the rounds, and the order.
    Exchange(Vec<String>, u64, u32, Option<Schedule>),
    Step(OverSsh),
    /// The longest wait for a node's jobs, and until all is sound.
    Upgrade(OverSsh, Duration),
}

/// A step on hosts over ssh.
#[derive(Debug)]
pub(crate) struct OverSsh {
    /// `None`: replace the nodes that do not answer, or upgrade them.
    pub(crate) step: Option<Step>,
    pub(crate) program: PathBuf,
    pub(crate) on: Vec<String>,
    pub(crate) ssh: Vec<String>,
}

/// `exec`.
pub(crate) fn executed(args: TypedArgs) -> Result<Exec, Usage> {
    let command = words(&args.ask.words)?;
    if args.ask.detach && args.gather {
        return Err(Usage(
            "a command that is detached has nothing to --gather; see thalweg job watch".into(),
        ));
    }
    if command.is_empty() {
        return Err(Usage("exec what? Write the command behind '--', as in thalweg exec -- uname -r".into()));
    }
    let stdin = !args.ask.detach && stdin_says_something();
    let via = via(args.via.clone());
    if args.fanout.is_some() && (stdin || via.is_some()) {
        let why = match &via {
            Some(via) => format!(
                "the node of {via} asks all hosts at once; leave out --via and THALWEG_VIA, or --fanout"
            ),
            None => "standard input goes to all hosts at once; with --fanout, add < /dev/null".into(),
        };
        return Err(Usage(why));
    }
    let options = ExecOptions {
        stdin,
        identity: args.ask.identity()?,
        on: args.ask.on,
        command,
        env: args.env,
        timeout: args.timeout,
        detach: args.ask.detach,
        fanout: args.fanout,
        via,
    };
    Ok(Exec { options, gather: args.gather })
}

/// `node ping`.
pub(crate) fn pinged(args: TypedArgs) -> Result<ExecOptions, Usage> {
    if args.ask.work.memory.is_some() {
        return Err(Usage("--memory is a flag of node run, not of node ping".into()));
    }
    let identity = args.ask.identity()?;
    Ok(ExecOptions { identity, on: args.ask.on, via: via(args.via), ..ExecOptions::default() })
}

fn via(said: Option<String>) -> Option<String> {
    said.or_else(|| std::env::var(VIA).ok()).filter(|host| !host.is_empty())
}

/// `job`.
pub(crate) fn jobs(what: &str, args: TypedArgs) -> Result<(PathBuf, JobsAsk), Usage> {
    let identity = args.ask.identity()?;
    if what == "list" {
        nothing_left(&args.ask.words, Command::Job)?;
        return Ok((identity, JobsAsk::List(args.ask.on)));
    }
    let [id] = &words(&args.ask.words)?[..] else {
        return Err(Usage(format!("job {what} takes the id of one job; thalweg job list shows them")));
    };
    let ask = match what {
        "show" => JobsAsk::Show,
        "watch" => JobsAsk::Watch,
        _ => JobsAsk::Cancel,
    };
    Ok((identity, ask(id.clone())))
}

/// `node run`.
pub(crate) fn node(args: TypedArgs) -> Result<NodeOptions, Usage> {
    if args.via.is_some() || !args.ask.on.is_empty() {
        return Err(Usage("--on and --via are flags of node ping, not of node run".into()));
    }
    let build = program::BUILD.to_string();
    if let Some(directory) = args.join {
        if args.ask.identity.is_some() {
            return Err(Usage("--join makes an identity in its directory; leave out --identity".into()));
        }
        let (rank, processes) = launched(|name| std::env::var(name).ok())?;
        let join = Some(Join { directory, rank, processes });
        return Ok(NodeOptions {
            listen: args.listen,
            identity: None,
            join,
            memory: args.ask.work.memory,
            build,
        });
    }
    let identity = args.ask.identity.or_else(|| std::env::var_os(IDENTITY).map(PathBuf::from));
    Ok(NodeOptions { listen: args.listen, identity, join: None, memory: args.ask.work.memory, build })
}

/// The variables with the number of a process and the count of all processes that launchers set: Open MPI, others with
/// the Process Management Interface of MPICH, and Slurm. Open MPI starts its processes from those of Slurm.
const LAUNCHERS: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

/// The number of this process, from 0, and the count of all, as the launcher has set them.
fn launched(variable: impl Fn(&str) -> Option<String>) -> Result<(usize, usize), Usage> {
    let both = |(rank, count): (&'static str, &'static str)| {
        Some(((rank, variable(rank)?), (count, variable(count)?)))
    };
    let ((rank_name, rank), (count_name, count)) = LAUNCHERS.into_iter().find_map(both).ok_or_else(|| {
        Usage(
            "--join is for processes of srun or mpirun; for others set PMI_RANK, from 0, and PMI_SIZE".into(),
        )
    })?;
    match (rank.parse(), count.parse()) {
        (Ok(rank), Ok(count)) if rank < count && count <= HOSTS_MAX => Ok((rank, count)),
        _ => Err(Usage(format!(
            "{rank_name} is '{rank}' and {count_name} is '{count}': they are the number of this process, from 0, and \
             that of all, at most {HOSTS_MAX}"
        ))),
    }
}

/// `cluster`.
pub(crate) fn cluster(what: &str, args: TypedArgs) -> Result<(PathBuf, ClusterAsk), Usage> {
    let identity = args.ask.identity()?;
    let mut words = words(&args.ask.words)?;
    let is_step = ["install", "up", "upgrade", "down", "remove", "mend"].contains(&what);
    if !is_step
        && (args.ask.ssh.is_some()
            || !(args.ask.on.is_empty() || ["doctor", "probe", "exchange"].contains(&what)))
    {
        return Err(Usage(format!(
            "--on and --ssh are flags of cluster install, up, upgrade, down, remove and mend, not of {what}"
        )));
    }
    if what != "upgrade" && args.timeout.is_some() {
        return Err(Usage(format!("--timeout is a flag of cluster upgrade, not of {what}")));
    }
    if what != "init" && args.dead_after.is_some() {
        return Err(Usage(format!("--dead-after is a flag of cluster init, not of {what}")));
    }
    if what != "exchange" && (args.runs.is_some() || args.schedule.is_some()) {
        return Err(Usage(format!("--runs and --schedule are flags of cluster exchange, not of {what}")));
    }
    if what != "client" && args.may.is_some() {
        return Err(Usage(format!("--may is a flag of cluster client, not of {what}")));
    }
    let needs = |what: &str| Usage(format!("cluster {what} needs at least one HOST"));
    let ask = match what {
        "init" if words.len() < 2 => {
            return Err(Usage("cluster init takes a NAME for the cluster and at least one HOST".into()));
        }
        "init" => ClusterAsk::Init { name: words.remove(0), hosts: words, dead_after: args.dead_after },
        "install" | "up" | "upgrade" | "down" | "remove" | "mend" => {
            nothing_left(&args.ask.words, Command::Cluster)?;
            over_ssh(what, args)?
        }
        "doctor" => {
            nothing_left(&args.ask.words, Command::Cluster)?;
            ClusterAsk::Doctor(args.ask.on)
        }
        "probe" => {
            nothing_left(&args.ask.words, Command::Cluster)?;
            ClusterAsk::Probe(args.ask.on)
        }
        "exchange" => {
            let [size] = &words[..] else {
                return Err(Usage("cluster exchange takes a SIZE, which each two hosts exchange".into()));
            };
            let bytes = values::bytes(OsStr::new(size)).map_err(Usage)?;
            ClusterAsk::Exchange(args.ask.on, bytes, args.runs.unwrap_or(EXCHANGES) as u32, args.schedule)
        }
        "add" if words.is_empty() => return Err(needs("add")),
        "add" => ClusterAsk::Add(words),
        "renew" => ClusterAsk::Renew(words),
        "drop" if words.is_empty() => {
            return Err(Usage("cluster drop needs the name of at least one host or client".into()));
        }
        "drop" => ClusterAsk::Drop(words),
        "client" => match &mut words[..] {
            [name] => ClusterAsk::Client(std::mem::take(name), args.may.unwrap_or_default()),
            _ => return Err(Usage("cluster client takes the NAME of one person or program".into())),
        },
        _ => {
            nothing_left(&args.ask.words, Command::Cluster)?;
            ClusterAsk::Status
        }
    };
    Ok((identity, ask))
}

/// What `cluster` does over ssh.
fn over_ssh(what: &str, args: TypedArgs) -> Result<ClusterAsk, Usage> {
    let step = match what {
        "install" => Some(Step::Install),
        "up" => Some(Step::Up),
        "down" => Some(Step::Down(DOWN_SECONDS)),
        "remove" => Some(Step::Remove),
        _ => None,
    };
    let ssh = ssh(args.ask.ssh.as_deref());
    let over_ssh = OverSsh { step, program: program::to_copy()?, on: args.ask.on, ssh };
    Ok(match what {
        "upgrade" => ClusterAsk::Upgrade(over_ssh, args.timeout.unwrap_or(UPGRADE)),
        _ => ClusterAsk::Step(over_ssh),
    })
}

fn words(words: &[OsString]) -> Result<Vec<String>, Usage> {
    words.iter().map(text).collect()
}

/// Whether standard input may have data: it is neither a terminal, which the user may need, nor `/dev/null`.
fn stdin_says_something() -> bool {
    if std::io::stdin().is_terminal() {
        return false;
    }
    let same = |a: std::fs::Metadata, b: std::fs::Metadata| {
        a.file_type().is_char_device() && (a.rdev(), a.dev()) == (b.rdev(), b.dev())
    };
    match (std::fs::metadata("/proc/self/fd/0"), std::fs::metadata("/dev/null")) {
        (Ok(stdin), Ok(null)) => !same(stdin, null),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_number_their_processes() {
        let of = |set: &[(&str, &str)]| {
            launched(|name| set.iter().find(|(is, _)| *is == name).map(|(_, value)| value.to_string())).ok()
        };
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(of(&slurm), Some((0, 2)));
        assert_eq!(of(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")]), Some((3, 4)));
        let within = [&slurm[..], &[("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "8")]].concat();
        assert_eq!(of(&within), Some((5, 8)));
        // The script of sbatch is no process of srun.
        for wrong in
            [&slurm[..1], &[("PMI_RANK", "4"), ("PMI_SIZE", "4")], &[("PMI_RANK", "-1"), ("PMI_SIZE", "4")]]
        {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1025")]), None);
    }
}
