//! Signals that stop a verb.
//!
//! Invariant: the first signal that would end the process (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU and others) asks
//! the verb to stop and clean up. A second one kills it at once, unless it comes within [`TOGETHER_SECONDS`] of the
//! first (`timeout` signals the process, then its group) or this process is a node. A signal that is already ignored, such as
//! SIGHUP below `nohup` or SIGINT in what a script starts with `&`, stays ignored; but what runs until it is stopped heeds
//! SIGINT and SIGTERM always. SIGXFSZ, for a file larger than `ulimit -f`, stops nothing: the write fails with an error.
//! If the reader of the output is stuck, a verb that waits for it cannot clean up; [`BLOCKED_SECONDS`] after the first
//! signal this process is killed too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use thalweg::Progress;
use thalweg_base::clock::Stopwatch;
use thalweg_io::pipe::is_writable;

const STACK_BYTES: usize = 128 << 10;
/// A signal that comes this soon after the first one is taken as the same request.
const TOGETHER_SECONDS: f64 = 0.2;

/// How long a verb that was asked to stop may wait for the reader of its output.
const BLOCKED_SECONDS: u32 = 2;

/// What a process runs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Until its work is done.
    Verb,
    /// Until it is stopped.
    Server,
}

/// From now on signals cancel the verb, until the process ends.
pub(crate) fn cancel_on_signals(progress: Arc<Progress>) -> std::io::Result<()> {
    on_signals(Runs::Verb, move |signal| progress.cancel(signal))
}

/// Calls `stop` with the first signal that asks the process to end. A later one kills it at once, and so does output
/// that stays blocked.
pub(crate) fn on_signals(runs: Runs, stop: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    on_first_signal(runs, move |signal| {
        let builder = std::thread::Builder::new().name("blocked".into()).stack_size(STACK_BYTES);
        // If there is no such thread, a second signal still kills.
        drop(builder.spawn(move || end_if_blocked(signal)));
        stop(signal);
    })
}

/// Calls `stop` with the first signal that asks the process to end. A later one kills it at once.
pub(crate) fn on_first_signal(runs: Runs, stop: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    let mut first: Option<Stopwatch> = None;
    on_every_signal(runs, move |signal| match &first {
        None => {
            first = Some(Stopwatch::start());
            stop(signal);
        }
        Some(since) if since.seconds() < TOGETHER_SECONDS => {}
        // If even this fails, the verb runs to its end.
        Some(_) => drop(emulate_default_handler(signal)),
    })
}

/// Kills this process with the signal once standard output has been blocked for [`BLOCKED_SECONDS`].
fn end_if_blocked(signal: i32) {
    const LOOK: Duration = Duration::from_millis(100);
    let mut blocked = 0;
    while blocked < 10 * BLOCKED_SECONDS {
        std::thread::park_timeout(LOOK);
        blocked = if is_writable(&std::io::stdout()) { 0 } else { blocked + 1 };
    }
    drop(emulate_default_handler(signal));
}

/// Calls `stop` with every signal that asks the process to end. A node needs this, because the kernel signals its
/// parent's death once for each thread of the parent.
pub(crate) fn on_every_signal(runs: Runs, mut stop: impl FnMut(i32) + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new(stopping(runs))?;
    let builder = std::thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
    builder.spawn(move || {
        for signal in signals.forever() {
            stop(signal);
        }
    })?;
    Ok(())
}

/// All signals that would end the process at once, unless the parent made it ignore them.
fn stopping(runs: Runs) -> Vec<i32> {
    let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU]
        .into_iter();
    let is_heeded = |signal: &i32| match *signal {
        SIGINT | SIGTERM if runs == Runs::Server => true,
        signal => !is_ignored(signal),
    };
    all.filter(is_heeded).collect()
}

/// Calls `work`, which can ask whether a signal wants this process to end; then it cleans up. The process ends
/// afterwards, and by later signals at once.
pub(crate) fn ending_after<T>(work: impl FnOnce(&dyn Fn() -> bool) -> T) -> std::io::Result<T> {
    const WORKS: i32 = 0;
    const IS_DONE: i32 = -1;
    let state = Arc::new(AtomicI32::new(WORKS));
    let own = Arc::clone(&state);
    on_first_signal(Runs::Verb, move |signal| {
        if own.compare_exchange(WORKS, signal, Ordering::AcqRel, Ordering::Acquire).is_err() {
            drop(emulate_default_handler(signal));
        }
    })?;
    let done = work(&|| state.load(Ordering::Acquire) != WORKS);
    if let Err(signal) = state.compare_exchange(WORKS, IS_DONE, Ordering::AcqRel, Ordering::Acquire) {
        drop(emulate_default_handler(signal));
    }
    Ok(done)
}

/// Makes a write or reservation beyond the limit of file size fail instead of killing the process. It sets a handler
/// without effect, because child processes would inherit an ignored signal.
pub(crate) fn outlive_large_files() {
    // If this fails, the signal keeps its default action.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether the parent process made this one ignore the signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn ignored_mask(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_signals_are_ignored() {
        assert_eq!(ignored_mask("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), Some(0x1001));
        assert_eq!(ignored_mask("Name:\tx\n"), None);
        assert!(!is_ignored(SIGTERM));
    }
}
