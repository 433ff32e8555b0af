//! Signals that stop a verb.
//!
//! Invariant: the first SIGINT, SIGTERM or SIGHUP asks the verb to stop and clean up; a second kills at once, but no node, and
//! not one that comes within [`TOGETHER_SECONDS`]: `timeout` sends its signal to the process and then to its group. A
//! SIGHUP that is ignored already (`nohup`) stays ignored. SIGXFSZ, which tells of a file larger than `ulimit -f`, stops
//! nothing: the write that met the limit fails, and says so. If nobody reads what this process writes, a verb that waits
//! for that cannot clean up, and after [`BLOCKED_SECONDS`] the first signal kills, too.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use thalweg::Progress;
use thalweg_base::clock::Stopwatch;
use thalweg_io::pipe::is_writable;

const STACK_BYTES: usize = 128 << 10;
/// Signals that come so soon after the first are the same one: nobody asks twice so fast.
const TOGETHER_SECONDS: f64 = 0.2;

/// How long a verb that was asked to stop may wait for whoever reads its output.
const BLOCKED_SECONDS: u32 = 2;

/// Lets signals cancel from now on, until the process ends.
pub(crate) fn cancel_on_signals(progress: Arc<Progress>) -> std::io::Result<()> {
    on_signals(move |signal| progress.cancel(signal))
}

/// Calls `stop` with the first signal that asks for an end; a later one kills at once, and so does waiting for whoever
/// reads the output.
pub(crate) fn on_signals(stop: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    on_first_signal(move |signal| {
        let builder = std::thread::Builder::new().name("blocked".into()).stack_size(STACK_BYTES);
        // Without it the second signal kills.
        drop(builder.spawn(move || end_if_blocked(signal)));
        stop(signal);
    })
}

/// Calls `stop` with the first signal that asks for an end; a later one kills at once.
pub(crate) fn on_first_signal(stop: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    let mut first: Option<Stopwatch> = None;
    on_every_signal(move |signal| match &first {
        None => {
            first = Some(Stopwatch::start());
            stop(signal);
        }
        Some(since) if since.seconds() < TOGETHER_SECONDS => {}
        // Where even that cannot be had, the verb goes on to its end.
        Some(_) => drop(emulate_default_handler(signal)),
    })
}

/// Kills this process with the signal when its standard output has taken nothing for so long.
fn end_if_blocked(signal: i32) {
    const LOOK: Duration = Duration::from_millis(100);
    let mut blocked = 0;
    while blocked < 10 * BLOCKED_SECONDS {
        std::thread::park_timeout(LOOK);
        blocked = if is_writable(&std::io::stdout()) { 0 } else { blocked + 1 };
    }
    drop(emulate_default_handler(signal));
}

/// Calls `stop` with each signal that asks for an end, however many come. For a process that the kernel tells of its
/// parent's death: it says so once for each thread of the parent's.
pub(crate) fn on_every_signal(mut stop: impl FnMut(i32) + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new(stopping())?;
    let builder = std::thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
    builder.spawn(move || {
        for signal in signals.forever() {
            stop(signal);
        }
    })?;
    Ok(())
}

fn stopping() -> Vec<i32> {
    let mut stopping = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        stopping.push(SIGHUP);
    }
    stopping
}

/// Lets the write or reservation that would make a file too large fail, instead of killing the process. With a
/// handler that does nothing of note, because signals that are ignored would be so in our children too.
pub(crate) fn outlive_large_files() {
    // Where it cannot be had, the signal does what it always did.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether whoever started this process wants it to ignore the signal.
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
