//! `thalweg-bench`: benchmarks beside rivals and on the hosts of a lab.
//!
//! Model: `thalweg bench` measures what users measure on their own machine, and this program measures that too, with
//! rivals where `bench/rivals` has installed some. In addition it measures clusters in a lab, volumes and tables beside
//! other programs. All have one form of report, that of the crate `measure`.
//! Invariant: it measures the `thalweg` that stands beside it, or the one of `--program`.
//! Non-goals: measuring anything itself; each module below is one benchmark or what several need.
#![allow(clippy::disallowed_methods)] // Data, job files and results are not records in a sort.

mod all_to_all;
mod cluster;
mod iperf_ring;
mod lab;
mod launch;
mod launchers;
mod minutesort;
mod pump_lab;
mod rivals;
mod slurm;
mod tables;
mod typed;
mod volume;
mod watch;

use std::process::ExitCode;

use thalweg_api::{BenchReport, to_json};
use thalweg_measure::{Bench, Result, Which, all_right, run_as, table};

use rivals::Engines;
pub use slurm::{Slurm, SlurmHost};
use typed::Typed;

/// Exit statuses, as those of `thalweg`.
const WRONG: u8 = 1;
const COULD_NOT: u8 = 2;

/// The whole program: measures what was typed, prints the report, and returns the exit status.
pub fn main() -> ExitCode {
    if let Some(task) = tables::worker::task() {
        return ended(tables::worker::run(&task).map(|()| 0));
    }
    match Typed::read(std::env::args_os().skip(1)) {
        Ok(typed) => ended(measure(&typed)),
        Err(why) => complain(&why, COULD_NOT),
    }
}

fn ended(done: Result<u8>) -> ExitCode {
    done.map_or_else(|why| complain(&why.to_string(), why.exit_status()), ExitCode::from)
}

fn complain(why: &str, status: u8) -> ExitCode {
    eprintln!("thalweg-bench: {why}");
    ExitCode::from(status)
}

/// Measures what was asked for, and prints the report.
fn measure(typed: &Typed) -> Result<u8> {
    let report = watch::watched(|progress| measured(typed, progress))?;
    println!("{}", if typed.json { to_json(&report) } else { table::table(&report) });
    Ok(if all_right(&report) { 0 } else { WRONG })
}

fn measured(typed: &Typed, progress: &thalweg::Progress) -> Result<BenchReport> {
    let Typed { options, rivals, nodes, .. } = typed;
    let of_lab = |name, rows, usual_bytes| Bench { name, rows, usual_bytes, usual_runs: 5, runs_min: 0 };
    match typed.which.as_str() {
        "sort" => {
            let bench = Bench { rows: thalweg_measure::sort::names_with_rivals(), ..Which::Sort.into() };
            run_as(&bench, options, progress, |asked, dir, report| {
                let found = rivals.then(Engines::find).transpose();
                let engines = found.map_err(|why| report.notes.push(why)).ok().flatten();
                let rivals = engines.as_ref().map(|engines| engines as &dyn thalweg_measure::sort::Rivals);
                thalweg_measure::sort::measure(asked, dir, rivals, report)
            })
        }
        "pump" => {
            let rows = [Which::Pump.rows(), pump_lab::names()].concat();
            let bench = Bench { rows, ..Which::Pump.into() };
            run_as(&bench, options, progress, |asked, dir, report| {
                Which::Pump.measure(asked, dir, report)?;
                pump_lab::measure(asked, dir, report)
            })
        }
        "launch" => run_as(&launch::bench(), options, progress, |asked, _, report| {
            launch::measure(asked, nodes, *rivals, report)
        }),
        "cluster" => {
            let bench = of_lab("cluster", cluster::names(), 1_000_000_000);
            run_as(&bench, options, progress, |asked, _, report| cluster::measure(asked, report))
        }
        "all-to-all" => {
            let bench = of_lab("all-to-all", all_to_all::names(), 1_000_000_000);
            run_as(&bench, options, progress, |asked, _, report| all_to_all::measure(asked, report))
        }
        "volume" if typed.suites => {
            let bench = of_lab("volume-suites", volume::suites::names(), 1_000_000_000);
            run_as(&bench, options, progress, volume::suites::measure)
        }
        "volume" => {
            let bench = of_lab("volume", volume::names(), 1_000_000_000);
            run_as(&bench, options, progress, |asked, dir, report| {
                volume::measure(asked, dir, *rivals, report)
            })
        }
        "table" => {
            let bench = of_lab("table", tables::names(), 100_000_000);
            run_as(&bench, options, progress, tables::measure)
        }
        name => thalweg_measure::run(typed::of_users(name), options, progress),
    }
}
