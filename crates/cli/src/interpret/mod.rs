//! Interprets the parsed arguments: which job to run, and how to show it. Its only other inputs are whether standard
//! error is a terminal, the environment variables in `nodes.rs` and of verbs, and, for bench, the path of this program.

pub(crate) mod cluster_tables;
pub(crate) mod nodes;
pub(crate) mod table;
pub(crate) mod volume;

use std::io::IsTerminal;
use std::path::PathBuf;

use thalweg::model::Simulated;
use thalweg::nodes::{ExecOptions, NodeOptions};
use thalweg::table::Duplicates;
use thalweg::{CheckOptions, Cluster, GenOptions, Layout, Size, Task, Transfer};
use thalweg_measure::Which;
use thalweg_verbs::{Planned, Usage};

use self::cluster_tables::ClusterTablesAsk;
use self::nodes::{ClusterAsk, Exec, JobsAsk};
use self::table::TableAsk;
use self::volume::{MountAsk, VolumeAsk};
use crate::commands::{Command, info};
use crate::parse::{command_named, nothing_left};
use crate::typed::{Document, Help, TypedArgs, When};
use crate::{complete, help, man, program};

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
    let out_is_data = match args.ask.command {
        _ if is_text => false,
        Some(Command::Sort | Command::Shuffle | Command::Merge | Command::Join) => {
            args.ask.output.as_deref().is_none_or(|output| output == "-")
        }
        Some(Command::Pump | Command::Table) => args.ask.words.last().is_some_and(|word| word == "-"),
        Some(Command::Gen) => args.ask.words.get(1).is_some_and(|word| word == "-"),
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
    let Some(command) = args.ask.command else {
        return match args.help {
            Some(_) => Ok(Job::Say(help::program())),
            None => Err(Usage(
                "say what to do: gen, check, sort, shuffle, merge, join, plan, partition, pump, volume, mount, table, doctor, bench, exec, job, node or cluster; thalweg help explains".into(),
            )),
        };
    };
    use Command::{Join, Merge, Partition, Shuffle, Sort};
    match (command, args.help) {
        (Sort | Shuffle | Merge | Join | Partition, None) => {
            let job = if args.ask.detach { Job::Detached } else { Job::Task };
            args.ask.task().map(job)
        }
        (Command::Help, _) => Ok(Job::Say(explained(&args)?)),
        (_, Some(Help::Short)) if !args.all => Ok(Job::Say(help::command_in_short(command))),
        (_, Some(_)) => Ok(Job::Say(help::command(command, args.all))),
        (Command::Gen, None) => args.ask.generated().map(Job::Gen),
        (Command::Check, None) => args.ask.check().map(|(options, cluster)| Job::Check(options, cluster)),
        (Command::Plan, None) => Ok(match subject(args, command)?.1.ask.planned()? {
            Planned::Task(task) => Job::Plan(*task),
            Planned::Simulated(asked, memory, layout) => Job::PlanSimulated(asked, memory, layout),
        }),
        (Command::Pump, None) => args.ask.transfer().map(Job::Pump),
        (Command::Volume, None) => {
            let (what, args) = subject(args, command)?;
            volume::asked(&what, args).map(Job::Volume)
        }
        (Command::Mount, None) => volume::mounted(&args).map(Job::Mount),
        (Command::Table, None) => subject(args, command).and_then(tables),
        (Command::Doctor, None) => {
            nothing_left(&args.ask.words, command).map(|()| Job::Doctor(args.ask.work.scratch))
        }
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
            nothing_left(&args.ask.words, command)?;
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
    let Some((first, rest)) = args.ask.words.split_first() else { return Ok(help::program()) };
    nothing_left(rest, Command::Help)?;
    command_named(first).map(|command| help::command(command, args.all))
}

/// The subcommand, and the arguments without it.
fn subject(mut args: TypedArgs, command: Command) -> Result<(String, TypedArgs), Usage> {
    let info = info(command);
    let expected = info.subjects.join(", ");
    if args.ask.words.is_empty() {
        return Err(Usage(format!("{} what? It takes one of: {expected}", info.name)));
    }
    let typed = args.ask.words.remove(0).to_string_lossy().into_owned();
    if info.subjects.contains(&typed.as_str()) {
        Ok((typed, args))
    } else {
        Err(Usage(format!("{} takes one of: {expected}; not '{typed}'", info.name)))
    }
}

fn benched(which: &str, args: TypedArgs, command: Command) -> Result<Job, Usage> {
    let which = Which::named(which).expect("the table of commands names them");
    if which != Which::Sort {
        nothing_left(&args.ask.words, command)?;
    }
    let bytes = match args.size {
        None => None,
        Some(Size::Bytes(bytes)) => Some(bytes),
        Some(Size::Percent(_)) => return Err(Usage("--size of bench is in bytes, as in 100MB".into())),
    };
    let program = program::path()
        .map_err(|e| Usage(format!("bench starts this program anew, and it cannot be found: {e}")))?;
    let files = args.ask.words.into_iter().map(PathBuf::from).collect();
    let options =
        thalweg_measure::Options { bytes, runs: args.runs, rows: args.rows, files, dirs: args.dirs, program };
    Ok(Job::Bench(which, options))
}
