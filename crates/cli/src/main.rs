//! The `thalweg` command: thin commands over the engine.
//!
//! What was typed ([`low`], read by [`parse`] through the tables [`flags`] and [`commands`]) is kept apart from
//! what it means ([`hi`]); [`run`] does it; [`show`] turns what came of it into text; [`print`] alone prints.
//! Non-goals: opening files of records, knowing how a sort is done.

mod bar;
mod commands;
mod complete;
mod flags;
#[cfg(test)]
mod flags_test;
mod help;
mod hi;
mod low;
mod man;
mod near;
mod parse;
#[cfg(test)]
mod parse_fuzz;
mod print;
mod run;
mod show;
mod signals;
mod values;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

fn main() -> ExitCode {
    report_panics();
    ExitCode::from(run::run(std::env::args_os().skip(1)))
}

/// A panic in any thread is a mistake of ours: one line, and the process ends. Unwinding would leave the
/// other threads waiting for what the dead one owed them; files without a name are gone with the process, and
/// scratch is cleared by the next run.
fn report_panics() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(|panic| {
        if !TOLD.swap(true, Ordering::SeqCst) {
            let place =
                panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
            let what = panic.payload_as_str().unwrap_or("no message");
            print::complain(&format!(
                "internal error{place}: {what}; please report this line and the command that led to it"
            ));
        }
        std::process::exit(2);
    }));
}
