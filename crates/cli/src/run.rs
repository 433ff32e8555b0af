//! Runs a command line: parses it, runs the command, shows the result, and returns the exit status.

use std::ffi::OsString;
use std::sync::Arc;

use thalweg::{Progress, TaskPlan, model};
use thalweg_api::{Check, Receipt, to_json};
use thalweg_io::host::{self, Hooks};

use crate::bar::Shown;
use crate::failure::{COULD_NOT, DONE, Failure, LEFT_OUT, WRONG, noted};
use crate::interpret::{Job, Request, Show, interpret};
use thalweg_verbs::Usage;

use crate::parse::parse;
use crate::print::{complain, report, tell};
use crate::{cluster_tables, mounts, nodes, show, signals, tables, volumes};

/// The signal of a pipe without a reader. It needs no message.
const SIGPIPE: i32 = 13;

/// Runs the command line and returns the exit status.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    own_process();
    let args: Vec<OsString> = args.into_iter().collect();
    if args == thalweg::nodes::SERVE {
        return served();
    }
    let asked = match parse(args).and_then(interpret) {
        Ok(asked) => asked,
        Err(Usage(message)) => {
            complain(&message);
            return COULD_NOT;
        }
    };
    perform(asked).unwrap_or_else(|error| {
        if !error.is_signal(SIGPIPE) {
            complain(&error.to_string());
        }
        error.exit_status()
    })
}

/// The command has this process to itself: it sets limits and the allocator, and `--memory` counts all resident memory.
fn own_process() {
    signals::outlive_large_files();
    host::install(Hooks::own_process());
}

/// The other end of a transfer, started by ssh. Users do not type this command, so it is not in the tables.
fn served() -> u8 {
    match thalweg::nodes::serve() {
        Ok(()) => DONE,
        Err(why) => {
            complain(&why.to_string());
            COULD_NOT
        }
    }
}

fn perform(Request { job, show: how }: Request) -> Result<u8, Failure> {
    match job {
        Job::Say(text) => tell(how, text),
        Job::Gen(options) => settle(how, watched(how, |progress| thalweg::generate(&options, progress))?),
        Job::Task(task) => settle(how, watched(how, |progress| task.run(progress))?),
        Job::Detached(task) => {
            let detached = task.detach()?;
            tell(how, if how.json { to_json(&detached) } else { detached.job } + "\n")
        }
        Job::Plan(task) => match task.plan()? {
            TaskPlan::Machine(plan) => report(how, || to_json(&plan), || show::plan(&plan)),
            TaskPlan::Cluster(plan) => report(how, || to_json(&plan), || show::cluster_plan(&plan)),
        },
        Job::PlanSimulated(asked, memory_bytes, layout) => {
            let plan = model::predict(&model::simulate(&asked, layout, memory_bytes)?);
            report(how, || to_json(&plan), || show::cluster_plan(&plan))
        }
        Job::Pump(transfer) => {
            let receipt = watched(how, |progress| transfer.run(progress))?;
            report(how, || to_json(&receipt), || show::pump(&receipt))?;
            held(&receipt.verb, receipt.holds)?;
            show::left_out(&receipt).iter().for_each(|line| complain(line));
            Ok(if receipt.left_out + receipt.not_deleted == 0 { DONE } else { LEFT_OUT })
        }
        Job::Load(task, duplicates) => {
            let loaded = watched(how, |progress| task.load(duplicates, progress))?;
            report(how, || to_json(&loaded), || show::table_loaded(&loaded))
        }
        Job::Volume(asked) => volumes::volume(&asked, how),
        Job::Table(asked) => tables::serve(asked, how),
        Job::ClusterTables(asked) => cluster_tables::perform(asked, how),
        Job::Mount(asked) => mounts::mount(&asked, how),
        Job::Check(options, cluster) => {
            let check = |progress: &_| thalweg::check(&options, cluster.as_ref(), progress);
            checked(how, &watched(how, check)?)
        }
        Job::Doctor(scratch) => {
            let found = thalweg::doctor(&scratch)?;
            report(how, || to_json(&found), || show::doctor(&found))
        }
        Job::Bench(which, options) => {
            let measured = watched(how, |progress| thalweg_measure::run(which, &options, progress))?;
            report(how, || to_json(&measured), || thalweg_measure::table::table(&measured))?;
            Ok(if thalweg_measure::all_right(&measured) { DONE } else { WRONG })
        }
        Job::Exec(asked) => nodes::exec(&asked, how),
        Job::Jobs(identity, asked) => nodes::jobs(&identity, &asked, how),
        Job::Ping(options) => nodes::ping(&options, how),
        Job::Node(options) => nodes::run(&options),
        Job::Cluster(identity, asked) => nodes::cluster(&identity, &asked, how),
    }
}

/// Runs a verb that shows progress and can be cancelled.
fn watched<T, E: Into<Failure>>(
    how: Show,
    verb: impl FnOnce(&Progress) -> Result<T, E>,
) -> Result<T, Failure> {
    let progress = Arc::new(Progress::default());
    signals::cancel_on_signals(progress.clone()).map_err(Failure::Signals)?;
    let in_the_way = how.quiet || (how.json && how.out_is_data);
    if !in_the_way {
        progress.notes_to(|note| complain(&noted(note)));
    }
    let shown = Shown::start(how.progress, progress.clone());
    let result = verb(&progress);
    if let Some(shown) = shown {
        shown.end(result.is_ok());
    }
    result.map_err(Into::into)
}

/// Shows a receipt. A broken invariant is an error here even if the engine reported none.
fn settle(how: Show, receipt: Receipt) -> Result<u8, Failure> {
    let shown = report(how, || to_json(&receipt), || show::receipt(&receipt));
    held(&receipt.verb, receipt.holds)?;
    shown.map_err(|why| Failure::Receipt(Box::new(why)))
}

/// Shows the result of a check. Records out of order are a result, not an error.
fn checked(how: Show, check: &Check) -> Result<u8, Failure> {
    report(how, || to_json(check), || show::check(check))?;
    Ok(if check.ordered { DONE } else { WRONG })
}

fn held(verb: &str, holds: bool) -> Result<u8, Failure> {
    if holds { Ok(DONE) } else { Err(Failure::NotProved(verb.to_string())) }
}
