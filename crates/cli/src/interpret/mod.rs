//! Interprets the parsed arguments: which job to run, and how to show it. Its only other inputs are whether standard
//! error is a terminal, the environment variables in `nodes.rs`, and, for bench, the path of this program.

pub(crate) mod cluster_tables;
pub(crate) mod nodes;
mod pump;
pub(crate) mod table;
pub(crate) mod volume;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::PathBuf;

use thalweg::model::Simulated;
use thalweg::nodes::{ExecOptions, NodeOptions};
use thalweg::table::Duplicates;
use thalweg::{
    CheckOptions, Cluster, Endpoint, GenOptions, KeyPart, Layout, PartitionPick, RightSide, Size, Task,
    Transfer, Work, WorkOptions,
};
use thalweg_measure::Which;

use self::cluster_tables::ClusterTablesAsk;
use self::nodes::{ClusterAsk, Exec, JobsAsk};
use self::table::TableAsk;
use self::volume::{MountAsk, VolumeAsk};
use crate::commands::Command;
use crate::parse::{Usage, command_named, nothing_left};
use crate::typed::{Document, Help, TypedArgs, When};
use crate::{complete, help, man, program, values};

/// A job and how to show it.
pub(crate) struct Request {
    pub(crate) job: Job,
    pub(crate) show: Show,
}

/// What to run.
#[derive(Debug)]
pub(crate) enum Job {
    /// Prints this text.
    Say(String),
    Gen(GenOptions),
    /// On this machine, or on the nodes of a cluster.
    Check(CheckOptions, Option<Cluster>),
    Task(Task),
    /// A task, without waiting for its end.
    Detached(Task),
    Plan(Task),
    /// For a simulated cluster, with the memory of each node and the layout of records.
    PlanSimulated(Simulated, Option<u64>, Layout),
    Pump(Transfer),
    /// A sort into a table.
    Load(Task, Duplicates),
    /// Examines the machine and these directories.
    Doctor(Vec<PathBuf>),
    Volume(VolumeAsk),
    Mount(MountAsk),
    Table(TableAsk),
    ClusterTables(ClusterTablesAsk),
    Bench(Which, thalweg_measure::Options),
    Exec(Exec),
    Jobs(PathBuf, JobsAsk),
    Node(NodeOptions),
    Ping(ExecOptions),
    Cluster(PathBuf, ClusterAsk),
}

/// How to show the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Show {
    /// One JSON object instead of text.
    pub(crate) json: bool,
    /// Shows only errors and the object.
    pub(crate) quiet: bool,
    /// How to show progress.
    pub(crate) progress: Progress,
    /// Standard output carries records, so text goes to standard error.
    pub(crate) out_is_data: bool,
}

/// How to show progress on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A bar that moves.
    Bar,
    /// A line each second.
    Lines,
    /// Nothing.
    Off,
}

/// Interprets the arguments and flags together.
pub(crate) fn interpret(args: TypedArgs) -> Result<Request, Usage> {
    let show = show(&args, std::io::stderr().is_terminal());
    Ok(Request { job: job(args)?, show })
}

fn show(args: &TypedArgs, terminal: bool) -> Show {
    let is_text = args.help.is_some() || args.generate.is_some() || args.version;
    let out_is_data = match args.command {
        _ if is_text => false,
        Some(Command::Sort | Command::Shuffle | Command::Merge | Command::Join) => {
            args.output.as_deref().is_none_or(|output| output == "-")
        }
        Some(Command::Pump | Command::Table) => args.words.last().is_some_and(|word| word == "-"),
        Some(Command::Gen) => args.words.get(1).is_some_and(|word| word == "-"),
        _ => false,
    };
    // A bar would interfere with an object on standard error.
    let in_the_way = args.quiet || (args.json && out_is_data);
    let progress = match (args.progress, terminal) {
        (When::Never, _) | (When::Auto, false) => Progress::Off,
        (When::Auto, true) if in_the_way => Progress::Off,
        (_, true) => Progress::Bar,
        (When::Always, false) => Progress::Lines,
    };
    Show { json: args.json, quiet: args.quiet, progress, out_is_data }
}

fn job(args: TypedArgs) -> Result<Job, Usage> {
    if let Some(document) = args.generate {
        return Ok(Job::Say(match document {
            Document::Man => man::page(),
            Document::Bash => complete::bash(),
            Document::Zsh => complete::zsh(),
            Document::Fish => complete::fish(),
        }));
    }
    if args.version {
        return Ok(Job::Say(help::version()));
    }
    let Some(command) = args.command else {
        return match args.help {
            Some(_) => Ok(Job::Say(help::program())),
            None => Err(Usage(
                "say what to do: gen, check, sort, shuffle, merge, join, plan, partition, pump, volume, mount, table, doctor, bench, exec, job, node or cluster; thalweg help explains".into(),
            )),
        };
    };
    use Command::{Join, Merge, Partition, Shuffle, Sort};
    let is_work = matches!(command, Sort | Shuffle | Merge | Join | Partition);
    let may_be_local = is_work || matches!(command, Command::Check | Command::Plan);
    if args.help.is_none() && may_be_local && !nodes::is_on_nodes(&args) && args.simulate.is_none() {
        of_nodes_alone(command, &args)?;
    }
    match (command, args.help) {
        (Sort | Shuffle | Merge | Join | Partition, None) => {
            let job = if args.detach { Job::Detached } else { Job::Task };
            task(command, args).map(job)
        }
        (Command::Help, _) => Ok(Job::Say(explained(&args)?)),
        (_, Some(Help::Short)) if !args.all => Ok(Job::Say(help::command_in_short(command))),
        (_, Some(_)) => Ok(Job::Say(help::command(command, args.all))),
        (Command::Gen, None) => generated(args).map(Job::Gen),
        (Command::Check, None) => checked(args),
        (Command::Plan, None) => subject(args, command).and_then(|(_, args)| planned(args)),
        (Command::Pump, None) => pump::pumped(args).map(Job::Pump),
        (Command::Volume, None) => {
            let (what, args) = subject(args, command)?;
            volume::asked(&what, args).map(Job::Volume)
        }
        (Command::Mount, None) => volume::mounted(&args).map(Job::Mount),
        (Command::Table, None) => subject(args, command).and_then(tables),
        (Command::Doctor, None) => nothing_left(&args.words, command).map(|()| Job::Doctor(args.scratch)),
        (Command::Bench, None) => {
            subject(args, command).and_then(|(which, args)| benched(&which, args, command))
        }
        (Command::Exec, None) => nodes::executed(args).map(Job::Exec),
        (Command::Job, None) => {
            let (what, args) = subject(args, command)?;
            nodes::jobs(&what, args).map(|(identity, ask)| Job::Jobs(identity, ask))
        }
        (Command::Node, None) => {
            let (what, args) = subject(args, command)?;
            nothing_left(&args.words, command)?;
            match what.as_str() {
                "ping" => nodes::pinged(args).map(Job::Ping),
                _ => nodes::node(args).map(Job::Node),
            }
        }
        (Command::Cluster, None) => {
            let (what, args) = subject(args, command)?;
            nodes::cluster(&what, args).map(|(identity, ask)| Job::Cluster(identity, ask))
        }
    }
}

fn tables((what, args): (String, TypedArgs)) -> Result<Job, Usage> {
    match what.as_str() {
        "serve" => table::served(args).map(Job::Table),
        "load" => cluster_tables::load(args).map(|(task, duplicates)| Job::Load(task, duplicates)),
        "dump" => cluster_tables::dump(&args).map(Job::Pump),
        what => cluster_tables::asked(what, args).map(Job::ClusterTables),
    }
}

fn explained(args: &TypedArgs) -> Result<String, Usage> {
    let Some((first, rest)) = args.words.split_first() else { return Ok(help::program()) };
    nothing_left(rest, Command::Help)?;
    command_named(first).map(|command| help::command(command, args.all))
}

/// The subcommand, and the arguments without it.
fn subject(mut args: TypedArgs, command: Command) -> Result<(String, TypedArgs), Usage> {
    let info = command.info();
    let expected = info.subjects.join(", ");
    if args.words.is_empty() {
        return Err(Usage(format!("{} what? It takes one of: {expected}", info.name)));
    }
    let typed = args.words.remove(0).to_string_lossy().into_owned();
    if info.subjects.contains(&typed.as_str()) {
        Ok((typed, args))
    } else {
        Err(Usage(format!("{} takes one of: {expected}; not '{typed}'", info.name)))
    }
}

fn generated(args: TypedArgs) -> Result<GenOptions, Usage> {
    let [count, file] = args.words.as_slice() else {
        return Err(Usage("gen takes two words, COUNT and FILE ('-' is standard output)".into()));
    };
    Ok(GenOptions {
        count: values::count(count).map_err(Usage)?,
        output: Endpoint::from(&**file),
        ascii: args.ascii,
        skewed: args.skewed,
        start: args.start,
        io: args.io,
    })
}

fn checked(args: TypedArgs) -> Result<Job, Usage> {
    if args.words.is_empty() {
        return Err(Usage("check needs at least one FILE ('-' is standard input)".into()));
    }
    let cluster = cluster(&args)?;
    let (layout, keys) = records(&args)?;
    let check = CheckOptions {
        inputs: ends(&args)?,
        layout,
        keys,
        header: args.header,
        summary: args.summary,
        merge: args.merge,
        io: args.io,
    };
    Ok(Job::Check(check, cluster))
}

fn seed(args: &TypedArgs) -> Result<u64, Usage> {
    args.seed
        .ok_or_else(|| Usage("say which random order: --seed N; the same number gives the same order".into()))
}

/// The options of the right side of a join.
fn right_side(args: &TypedArgs) -> Result<RightSide, Usage> {
    let [left, right] = &args.words[..] else {
        return Err(Usage("join takes two inputs, LEFT and RIGHT ('-' is standard input)".into()));
    };
    if left == "-" && right == "-" {
        return Err(Usage("standard input is one of the inputs of a join, not both".into()));
    }
    let (layout, keys) = records(args)?;
    if layout.fixed_bytes().is_none() && args.right_record_bytes.is_some() {
        let alike = if args.prefixed {
            "prefixed records are joined with prefixed records"
        } else {
            "lines are joined with lines"
        };
        return Err(Usage(format!("--right-record comes with --record: {alike}")));
    }
    if layout.end_bytes() == 0 && args.between.is_some() {
        let others = if args.prefixed { "parts of --prefixed records" } else { "records of --record bytes" };
        return Err(Usage(format!("--between is for lines; nothing stands between {others}")));
    }
    Ok(RightSide {
        inputs: vec![end(right, args)?],
        layout: args.right_record_bytes.map_or(layout, Layout::Fixed),
        keys: if args.right_keys.is_empty() { keys } else { args.right_keys.clone() },
        kind: args.kind,
        between: args.between.clone().unwrap_or_else(|| b"\t".to_vec()),
    })
}

/// The work on records, and where it runs.
fn task(command: Command, mut args: TypedArgs) -> Result<Task, Usage> {
    let work = match command {
        Command::Shuffle => Work::Shuffle(seed(&args)?),
        Command::Merge => Work::Merge,
        Command::Join => Work::Join,
        Command::Partition => partition(&args)?,
        _ => Work::Sort,
    };
    let right = if work == Work::Join { Some(right_side(&args)?) } else { None };
    if right.is_some() {
        args.words.truncate(1);
    }
    let output = args.output.as_deref().map_or(Ok(Endpoint::Standard), |output| end(output, &args))?;
    let (layout, keys) = records(&args)?;
    let nodes = match args.nodes[..] {
        [] => None,
        [nodes] => Some(nodes as usize),
        _ => return Err(Usage("--nodes is one number".into())),
    };
    if nodes.is_some_and(|nodes| nodes > 1) && args.resume {
        return Err(Usage("--resume continues a sort on one node; leave out --nodes".into()));
    }
    let cluster = cluster(&args)?;
    let options = WorkOptions {
        work,
        inputs: ends(&args)?,
        output,
        header: args.header,
        layout,
        keys,
        right,
        memory: args.memory,
        scratch: args.scratch,
        scratch_limit: args.scratch_limit,
        threads: args.threads,
        equal_shares: args.equal,
        unique: args.unique,
        resume: args.resume,
        io: args.io,
        proof: !args.no_proof,
    };
    Ok(Task { options, nodes, cluster })
}

/// The cluster whose nodes run the work, if any.
fn cluster(args: &TypedArgs) -> Result<Option<Cluster>, Usage> {
    if !nodes::is_on_nodes(args) {
        return Ok(None);
    }
    let (identity, name) = nodes::cluster_meant(args)?;
    Ok(Some(Cluster { identity, name, on: args.on.clone() }))
}

fn ends(args: &TypedArgs) -> Result<Vec<Endpoint>, Usage> {
    // From a pipe the second one would find nothing, and from a file everything again.
    if args.words.iter().filter(|word| *word == "-").count() > 1 {
        return Err(Usage("'-' is there twice, and standard input is read once; leave one out".into()));
    }
    args.words.iter().map(|word| end(word, args)).collect()
}

/// An end of a verb. A table is of the cluster of the identity.
fn end(word: &OsStr, args: &TypedArgs) -> Result<Endpoint, Usage> {
    nodes::with_identity(Endpoint::from(word), args)
}

fn planned(args: TypedArgs) -> Result<Job, Usage> {
    match args.simulate {
        Some(asked) => simulated(asked, &args),
        None => task(Command::Plan, args).map(Job::Plan),
    }
}

/// Refuses flags that have a meaning only on the nodes of a cluster.
fn of_nodes_alone(command: Command, args: &TypedArgs) -> Result<(), Usage> {
    let flags = [("--detach", args.detach), ("--on", !args.on.is_empty()), ("--shares", args.equal)];
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Usage(format!(
            "{flag} is for a {} on the nodes of a cluster; add --cluster, or leave it out",
            command.info().name
        ))),
        None => Ok(()),
    }
}

/// A plan for a simulated cluster.
fn simulated(asked: Simulated, args: &TypedArgs) -> Result<Job, Usage> {
    if !args.words.is_empty() || args.output.is_some() || args.cluster.is_some() || !args.on.is_empty() {
        return Err(Usage(
            "--simulate takes no input, output or cluster: it says how much there is with data=SIZE; leave them out"
                .into(),
        ));
    }
    let memory = match args.memory {
        Some(Size::Bytes(bytes)) => Some(bytes),
        Some(Size::Percent(_)) => return Err(Usage("--memory of simulated nodes is in bytes".into())),
        None => None,
    };
    Ok(Job::PlanSimulated(asked, memory, records(args)?.0))
}

/// The number of parts, and which record goes to which part.
fn partition(args: &TypedArgs) -> Result<Work, Usage> {
    let Some(parts) = args.parts else {
        return Err(Usage("say how many parts there are to be: --parts N".into()));
    };
    if args.output.is_none() {
        return Err(Usage("say what the parts are called: -o 'DIR/part-{}', with {} for the number".into()));
    }
    if args.split_keys && args.pick != PartitionPick::Range {
        return Err(Usage(format!(
            "--split-keys is for ranges; leave it out with --pick {}",
            args.pick.name()
        )));
    }
    Ok(Work::Partition { pick: args.pick, parts, split_keys: args.split_keys })
}

fn benched(which: &str, args: TypedArgs, command: Command) -> Result<Job, Usage> {
    let which = Which::named(which).expect("the table of commands names them");
    if which != Which::Sort {
        nothing_left(&args.words, command)?;
    }
    let bytes = match args.size {
        None => None,
        Some(Size::Bytes(bytes)) => Some(bytes),
        Some(Size::Percent(_)) => return Err(Usage("--size of bench is in bytes, as in 100MB".into())),
    };
    let program = program::path()
        .map_err(|e| Usage(format!("bench starts this program anew, and it cannot be found: {e}")))?;
    let files = args.words.into_iter().map(PathBuf::from).collect();
    let options =
        thalweg_measure::Options { bytes, runs: args.runs, rows: args.rows, files, dirs: args.dirs, program };
    Ok(Job::Bench(which, options))
}

/// The layout of the records, and their key.
fn records(args: &TypedArgs) -> Result<(Layout, Vec<KeyPart>), Usage> {
    if args.prefixed && (args.record_bytes.is_some() || args.datamation) {
        return Err(Usage(
            "--prefixed goes with neither --record nor --datamation; give only one of them".into(),
        ));
    }
    if !args.datamation {
        return Ok((Layout::of_words(args.record_bytes, args.prefixed), args.keys.clone()));
    }
    if args.record_bytes.is_some() || !args.keys.is_empty() {
        return Err(Usage(
            "--datamation means --record 100 --by 0:10; give either --datamation or those two".into(),
        ));
    }
    Ok((Layout::Fixed(100), vec![KeyPart { offset: 0, length: 10, descending: false }]))
}
