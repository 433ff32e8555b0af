//! What the typed flags mean together: a job to do, and how to show it. The flags are fixed, so the only
//! looks at the machine are whether standard error is a terminal.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::PathBuf;

use thalweg::model::Simulated;
use thalweg::nodes::{ExecOptions, NodeOptions};
use thalweg::{
    CheckOptions, Cluster, Endpoint, GenOptions, KeyPart, Layout, PartitionPick, RightSide, Size, Task,
    Transfer, Work, WorkOptions,
};
use thalweg_bench::{BenchOptions, Which};

use crate::commands::Command;
use crate::hi_nodes::{self, ClusterAsk, Exec, JobsAsk};
use crate::hi_pump;
use crate::low::{Document, Help, LowArgs, When};
use crate::parse::{Usage, command_named};
use crate::{complete, help, man, values};

/// A job and how to show it.
pub(crate) struct HiArgs {
    pub(crate) job: Job,
    pub(crate) show: Show,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// Print this and be done.
    Say(String),
    Gen(GenOptions),
    /// Here, or on the nodes of a cluster.
    Check(CheckOptions, Option<Cluster>),
    Task(Task),
    /// The same, and not wait for its end.
    Detached(Task),
    Plan(Task),
    /// Of a cluster that need not be, with so much memory for each node, and such records.
    PlanSimulated(Simulated, Option<u64>, Layout),
    Pump(Transfer),
    /// Look at the machine, and at these directories.
    Doctor(Vec<PathBuf>),
    Bench(BenchOptions),
    Exec(Exec),
    Jobs(PathBuf, JobsAsk),
    Node(NodeOptions),
    Ping(ExecOptions),
    Cluster(PathBuf, ClusterAsk),
}

/// How to show what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Show {
    /// One JSON object instead of text.
    pub(crate) json: bool,
    /// Nothing but errors and the object.
    pub(crate) quiet: bool,
    /// Progress.
    pub(crate) progress: Progress,
    /// Standard output carries records, so what is said goes to standard error.
    pub(crate) out_is_data: bool,
}

/// How to show progress on this standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A bar that moves.
    Bar,
    /// A line each second.
    Lines,
    /// Nothing.
    Off,
}

/// What the words and flags mean together.
pub(crate) fn mean(low: LowArgs) -> Result<HiArgs, Usage> {
    let show = show(&low, std::io::stderr().is_terminal());
    Ok(HiArgs { job: job(low)?, show })
}

fn show(low: &LowArgs, terminal: bool) -> Show {
    let out_is_data = match low.command {
        Some(Command::Sort | Command::Shuffle | Command::Merge | Command::Join) => {
            low.output.as_deref() == Some(OsStr::new("-"))
        }
        Some(Command::Pump) => low.words.last().is_some_and(|word| word == "-"),
        Some(Command::Gen) => low.words.get(1).is_some_and(|word| word == "-"),
        _ => false,
    };
    // With the object on standard error, a bar would be in its way.
    let in_the_way = low.quiet || (low.json && out_is_data);
    let progress = match (low.progress, terminal) {
        (When::Never, _) | (When::Auto, false) => Progress::Off,
        (When::Auto, true) if in_the_way => Progress::Off,
        (_, true) => Progress::Bar,
        (When::Always, false) => Progress::Lines,
    };
    Show { json: low.json, quiet: low.quiet, progress, out_is_data }
}

fn job(low: LowArgs) -> Result<Job, Usage> {
    if let Some(document) = low.generate {
        return Ok(Job::Say(match document {
            Document::Man => man::page(),
            Document::Bash => complete::bash(),
            Document::Zsh => complete::zsh(),
            Document::Fish => complete::fish(),
        }));
    }
    if low.version {
        return Ok(Job::Say(help::version()));
    }
    let Some(command) = low.command else {
        return match low.help {
            Some(_) => Ok(Job::Say(help::program())),
            None => Err(Usage(
                "say what to do: gen, check, sort, shuffle, merge, join, plan, partition, pump, doctor, bench, exec, job, node or cluster; thalweg help explains".into(),
            )),
        };
    };
    use Command::{Join, Merge, Partition, Shuffle, Sort};
    let is_work = matches!(command, Sort | Shuffle | Merge | Join | Partition);
    let may_be_local = is_work || matches!(command, Command::Check | Command::Plan);
    if low.help.is_none() && may_be_local && !hi_nodes::is_on_nodes(&low) && low.simulate.is_none() {
        of_nodes_alone(command, &low)?;
    }
    match (command, low.help) {
        (Sort | Shuffle | Merge | Join | Partition, None) => {
            let job = if low.detach { Job::Detached } else { Job::Task };
            task(command, low).map(job)
        }
        (Command::Help, _) => Ok(Job::Say(explained(&low.words)?)),
        (_, Some(Help::Short)) => Ok(Job::Say(help::command_in_short(command))),
        (_, Some(Help::Long)) => Ok(Job::Say(help::command_at_length(command))),
        (Command::Gen, None) => generated(low).map(Job::Gen),
        (Command::Check, None) => checked(low),
        (Command::Plan, None) => subject(low, command).and_then(|(_, low)| planned(low)),
        (Command::Pump, None) => hi_pump::pumped(low).map(Job::Pump),
        (Command::Doctor, None) => nothing_left(&low.words, command).map(|()| Job::Doctor(low.scratch)),
        (Command::Bench, None) => {
            let (which, low) = subject(low, command)?;
            nothing_left(&low.words, command)?;
            benched(&which, low).map(Job::Bench)
        }
        (Command::Exec, None) => hi_nodes::executed(low).map(Job::Exec),
        (Command::Job, None) => {
            let (what, low) = subject(low, command)?;
            hi_nodes::jobs(&what, low).map(|(identity, ask)| Job::Jobs(identity, ask))
        }
        (Command::Node, None) => {
            let (what, low) = subject(low, command)?;
            nothing_left(&low.words, command)?;
            match what.as_str() {
                "ping" => hi_nodes::pinged(low).map(Job::Ping),
                _ => hi_nodes::node(low).map(Job::Node),
            }
        }
        (Command::Cluster, None) => {
            let (what, low) = subject(low, command)?;
            hi_nodes::cluster(&what, low).map(|(identity, ask)| Job::Cluster(identity, ask))
        }
    }
}

fn explained(words: &[OsString]) -> Result<String, Usage> {
    let Some((first, rest)) = words.split_first() else { return Ok(help::program()) };
    nothing_left(rest, Command::Help)?;
    command_named(first).map(help::command_at_length)
}

/// The word that says which kind, and the arguments without it.
fn subject(mut low: LowArgs, command: Command) -> Result<(String, LowArgs), Usage> {
    let info = command.info();
    let expected = info.subjects.join(", ");
    if low.words.is_empty() {
        return Err(Usage(format!("{} what? It takes one of: {expected}", info.name)));
    }
    let typed = low.words.remove(0).to_string_lossy().into_owned();
    if info.subjects.contains(&typed.as_str()) {
        Ok((typed, low))
    } else {
        Err(Usage(format!("{} takes one of: {expected}; not '{typed}'", info.name)))
    }
}

pub(crate) fn nothing_left(words: &[OsString], command: Command) -> Result<(), Usage> {
    match words.first() {
        None => Ok(()),
        Some(word) => {
            let name = command.info().name;
            Err(Usage(format!("'{}' is one word too many for {name}", word.to_string_lossy())))
        }
    }
}

fn generated(low: LowArgs) -> Result<GenOptions, Usage> {
    let [count, file] = low.words.as_slice() else {
        return Err(Usage("gen takes two words, COUNT and FILE ('-' is standard output)".into()));
    };
    Ok(GenOptions {
        count: values::count(count).map_err(Usage)?,
        output: Endpoint::from(&**file),
        ascii: low.ascii,
        skewed: low.skewed,
        start: low.start,
        io: low.io,
    })
}

fn checked(low: LowArgs) -> Result<Job, Usage> {
    if low.words.is_empty() {
        return Err(Usage("check needs at least one FILE ('-' is standard input)".into()));
    }
    let cluster = cluster(&low)?;
    let (layout, keys) = records(&low)?;
    let check = CheckOptions {
        inputs: ends(&low.words),
        layout,
        keys,
        summary: low.summary,
        merge: low.merge,
        io: low.io,
    };
    Ok(Job::Check(check, cluster))
}

fn seed(low: &LowArgs) -> Result<u64, Usage> {
    low.seed
        .ok_or_else(|| Usage("say which random order: --seed N; the same number gives the same order".into()))
}

/// What is said of the right side of a join.
fn right_side(low: &LowArgs) -> Result<RightSide, Usage> {
    let [left, right] = &low.words[..] else {
        return Err(Usage("join takes two inputs, LEFT and RIGHT ('-' is standard input)".into()));
    };
    if left == "-" && right == "-" {
        return Err(Usage("standard input is one of the inputs of a join, not both".into()));
    }
    let (layout, keys) = records(low)?;
    if layout.fixed_bytes().is_none() && low.right_record_bytes.is_some() {
        let alike = if low.prefixed {
            "prefixed records are joined with such"
        } else {
            "lines are joined with lines"
        };
        return Err(Usage(format!("--right-record comes with --record: {alike}")));
    }
    if layout.end_bytes() == 0 && low.between.is_some() {
        let others = if low.prefixed { "parts of --prefixed records" } else { "records of --record bytes" };
        return Err(Usage(format!("--between is for lines; nothing stands between {others}")));
    }
    Ok(RightSide {
        inputs: vec![Endpoint::from(&**right)],
        layout: low.right_record_bytes.map_or(layout, Layout::Fixed),
        keys: if low.right_keys.is_empty() { keys } else { low.right_keys.clone() },
        kind: low.kind,
        between: low.between.clone().unwrap_or_else(|| b"\t".to_vec()),
    })
}

/// What is to be done with records, and where.
fn task(command: Command, mut low: LowArgs) -> Result<Task, Usage> {
    let work = match command {
        Command::Shuffle => Work::Shuffle(seed(&low)?),
        Command::Merge => Work::Merge,
        Command::Join => Work::Join,
        Command::Partition => partition(&low)?,
        _ => Work::Sort,
    };
    let right = if work == Work::Join { Some(right_side(&low)?) } else { None };
    if right.is_some() {
        low.words.truncate(1);
    }
    let output = low.output.as_deref().map(Endpoint::from);
    let output =
        output.ok_or_else(|| Usage("say where the records go: -o OUTPUT ('-' is standard output)".into()))?;
    let (layout, keys) = records(&low)?;
    let nodes = match low.nodes[..] {
        [] => None,
        [nodes] => Some(nodes as usize),
        _ => return Err(Usage("--nodes of a sort is one number".into())),
    };
    if nodes.is_some_and(|nodes| nodes > 1) && low.resume {
        return Err(Usage("--resume goes on from a sort on one node; leave out --nodes".into()));
    }
    let cluster = cluster(&low)?;
    let options = WorkOptions {
        work,
        inputs: ends(&low.words),
        output,
        layout,
        keys,
        right,
        memory: low.memory,
        scratch: low.scratch,
        scratch_limit: low.scratch_limit,
        threads: low.threads,
        nodes,
        equal_shares: low.equal,
        unique: low.unique,
        resume: low.resume,
        io: low.io,
        proof: !low.no_proof,
    };
    Ok(Task { options, cluster })
}

/// The cluster on whose nodes it is done, if it is.
fn cluster(low: &LowArgs) -> Result<Option<Cluster>, Usage> {
    if !hi_nodes::is_on_nodes(low) {
        return Ok(None);
    }
    let (identity, name) = hi_nodes::cluster_meant(low)?;
    Ok(Some(Cluster { identity, name, on: low.on.clone() }))
}

fn ends(words: &[OsString]) -> Vec<Endpoint> {
    words.iter().map(|word| Endpoint::from(&**word)).collect()
}

fn planned(low: LowArgs) -> Result<Job, Usage> {
    match low.simulate {
        Some(asked) => simulated(asked, &low),
        None => task(Command::Plan, low).map(Job::Plan),
    }
}

/// Refuses what has a meaning only on the nodes of a cluster.
fn of_nodes_alone(command: Command, low: &LowArgs) -> Result<(), Usage> {
    let flags = [("--detach", low.detach), ("--on", !low.on.is_empty()), ("--shares", low.equal)];
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Usage(format!(
            "{flag} is for a {} on the nodes of a cluster; add --cluster, or leave it out",
            command.info().name
        ))),
        None => Ok(()),
    }
}

/// A plan for a cluster that need not be.
fn simulated(asked: Simulated, low: &LowArgs) -> Result<Job, Usage> {
    if !low.words.is_empty() || low.output.is_some() || low.cluster.is_some() || !low.on.is_empty() {
        return Err(Usage(
            "--simulate takes no input, output or cluster: it says how much there is with data=SIZE; leave them out"
                .into(),
        ));
    }
    let memory = match low.memory {
        Some(Size::Bytes(bytes)) => Some(bytes),
        Some(Size::Percent(_)) => return Err(Usage("--memory of simulated nodes is in bytes".into())),
        None => None,
    };
    Ok(Job::PlanSimulated(asked, memory, records(low)?.0))
}

/// How many parts there are to be, and which record goes to which.
fn partition(low: &LowArgs) -> Result<Work, Usage> {
    let Some(parts) = low.parts else {
        return Err(Usage("say how many parts there are to be: --parts N".into()));
    };
    if low.output.is_none() {
        return Err(Usage("say what the parts are called: -o 'DIR/part-{}', with {} for the number".into()));
    }
    if low.split_keys && low.pick != PartitionPick::Range {
        return Err(Usage(format!(
            "--split-keys is for ranges; leave it out with --pick {}",
            low.pick.name()
        )));
    }
    Ok(Work::Partition { pick: low.pick, parts, split_keys: low.split_keys })
}

fn benched(which: &str, low: LowArgs) -> Result<BenchOptions, Usage> {
    let bytes = match low.size {
        None => None,
        Some(Size::Bytes(bytes)) => Some(bytes),
        Some(Size::Percent(_)) => return Err(Usage("--size of bench is in bytes, as in 100MB".into())),
    };
    let program = std::env::current_exe()
        .map_err(|e| Usage(format!("bench starts this program anew, and it cannot be found: {e}")))?;
    Ok(BenchOptions {
        which: Which::named(which).expect("the table of commands names the benchmarks"),
        bytes,
        rivals: low.rivals,
        nodes: low.nodes,
        runs: low.runs,
        rows: low.rows,
        dirs: low.dirs,
        program,
    })
}

/// How records lie and what their key is.
fn records(low: &LowArgs) -> Result<(Layout, Vec<KeyPart>), Usage> {
    if low.prefixed && (low.record_bytes.is_some() || low.datamation) {
        return Err(Usage(
            "--prefixed says how long records are; leave out --record and --datamation, or it".into(),
        ));
    }
    if !low.datamation {
        return Ok((Layout::of_words(low.record_bytes, low.prefixed), low.keys.clone()));
    }
    if low.record_bytes.is_some() || !low.keys.is_empty() {
        return Err(Usage("--datamation means --record 100 --by 0:10; leave out those two, or it".into()));
    }
    Ok((Layout::Fixed(100), vec![KeyPart { offset: 0, length: 10, descending: false }]))
}
