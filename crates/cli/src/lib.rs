//! The `thalweg` command: thin commands over the engine.
//!
//! What was typed ([`typed`], read by [`parse`] through the tables [`flags`] and [`commands`]) is kept apart from
//! what it means ([`interpret`]); [`run`] does it; [`show`] turns what came of it into text; [`print`] alone prints.
//! Non-goals: opening files of records, knowing how a sort is done.

mod bar;
pub mod call;
mod cluster_tables;
mod commands;
mod complete;
mod failure;
mod flag;
mod flags;
mod flags_bench;
mod flags_cluster_tables;
mod flags_table;
#[cfg(test)]
mod flags_test;
mod flags_volume;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod help;
mod interpret;
mod man;
mod mounts;
mod nodes;
mod parse;
#[cfg(test)]
mod parse_fuzz;
mod print;
mod program;
mod reserved;
mod run;
mod show;
mod signals;
mod suggest;
mod tables;
mod typed;
mod values;
mod volumes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// The whole of the program: what was typed is done, and the exit status says what came of it.
pub fn main() -> ExitCode {
    report_panics();
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let args: Vec<_> = args.collect();
    ExitCode::from(run::run(mounts::of_helper(&program, &args).unwrap_or(args)))
}

/// The same for a script at this path, which was started with these arguments and ends with the status that is returned.
pub fn main_of_script(path: PathBuf, args: Vec<OsString>) -> u8 {
    report_panics();
    program::is_script(path, args.clone());
    run::run(args)
}

/// A panic in any thread is a mistake of ours: one line, and the process ends. Unwinding would leave the
/// other threads waiting for what the dead one owed them; files without a name are gone with the process, and
/// scratch is cleared by the next run.
fn report_panics() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(|panic| {
        if !TOLD.swap(true, Ordering::SeqCst) {
            let error = internal_error(panic);
            print::complain(&format!("{error}; please report this line and the command that led to it"));
        }
        std::process::exit(2);
    }));
}

/// From here on a panic is a line and ends what its thread did: others rely on a node, and whoever asked is told.
pub(crate) fn outlive_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let error = internal_error(panic);
        print::complain(&format!("{error}; the request ends, the node continues; please report this line"));
    }));
}

fn internal_error(panic: &std::panic::PanicHookInfo<'_>) -> String {
    let place = panic.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    format!("internal error{place}: {}", panic.payload_as_str().unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// The test starts itself once more, to be the process that the panic ends.
    #[test]
    fn a_panic_in_any_thread_is_told_in_one_line_and_ends_the_process() {
        const CHILD: &str = "THALWEG_TEST_PANICS";
        let name = "tests::a_panic_in_any_thread_is_told_in_one_line_and_ends_the_process";
        if std::env::var_os(CHILD).is_some() {
            super::report_panics();
            let lost = std::thread::spawn(|| panic!("a block\nwas lost")).join();
            unreachable!("the process has ended before {lost:?}");
        }
        let own = std::env::current_exe().unwrap();
        let output =
            Command::new(own).args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(err.starts_with("thalweg: internal error at crates/cli/src/lib.rs:"), "{err}");
        assert!(err.contains(": a block\\nwas lost; please report"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}
