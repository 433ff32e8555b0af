//! The `thalweg` command: thin commands over the engine.
//!
//! The arguments as typed ([`typed`], read by [`parse`] with the tables [`flags`] and [`commands`]) are separate from
//! their meaning ([`interpret`]). [`run`] runs the command, [`show`] turns the result into text, and only [`print`]
//! prints. Non-goals: opening files of records, knowing how a sort works.

mod bar;
mod cluster_tables;
mod commands;
mod complete;
mod failure;
mod flags;
mod flags_tables;
#[cfg(test)]
mod flags_test;
mod flags_volume;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod help;
mod interpret;
mod man;
mod mount_options;
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
mod tables;
mod typed;
mod upgrade;
mod volumes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_io::process;

pub use show::text;

/// The whole program: runs the command that was typed, and returns its exit status.
pub fn main() -> ExitCode {
    report_panics();
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let args: Vec<_> = args.collect();
    let args = mounts::of_helper(&program, &args).unwrap_or(args);
    ExitCode::from(with_stack(move || run::run(args)))
}

/// Runs the program on a stack of its own if the user's limit (`ulimit -s`) leaves the first thread too little.
fn with_stack(run: impl FnOnce() -> u8 + Send + 'static) -> u8 {
    const ENOUGH_BYTES: u64 = 1 << 20;
    let run = Arc::new(Mutex::new(Some(run)));
    let take = |run: &Mutex<Option<_>>| run.lock().expect("no holder panics").take();
    if process::stack_limit() < ENOUGH_BYTES {
        let (taken, builder) =
            (Arc::clone(&run), std::thread::Builder::new().stack_size(ENOUGH_BYTES as usize));
        if let Ok(thread) = builder.spawn(move || take(&taken).expect("it runs once")()) {
            return thread.join().expect("a panic ends the process");
        }
    }
    let run = take(&run).expect("no thread could be had");
    run()
}

/// Runs the program as a script at `path` that was started with `args`. Returns the exit status for the script.
pub fn main_of_script(path: PathBuf, args: Vec<OsString>) -> u8 {
    report_panics();
    program::is_script(path, args.clone());
    run::run(args)
}

/// Reports a panic in any thread, which is a bug, in one line and exits. Unwinding would leave other threads waiting
/// for what the dead thread was to deliver. Files without a name vanish with the process, and the next run clears
/// scratch.
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

/// From now on a panic is reported in one line and ends only its own thread: other clients rely on the node.
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

    /// The test starts itself again, as the process that the panic ends.
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
