//! Signals that stop a verb.
//!
//! Law: the first SIGINT, SIGTERM or SIGHUP asks the verb to stop and clean up; a second kills at once, but no node. A
//! SIGHUP that is ignored already (`nohup`) stays ignored. SIGXFSZ, which tells of a file larger than `ulimit -f`, stops
//! nothing: the write that met the limit fails, and says so.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use thalweg::Progress;

const STACK_BYTES: usize = 128 << 10;

/// Lets signals cancel from now on, until the process ends.
pub(crate) fn cancel_on_signals(progress: Arc<Progress>) -> std::io::Result<()> {
    on_signals(move |signal| progress.cancel(signal))
}

/// Calls `stop` with each signal that asks for an end; a second one kills at once.
pub(crate) fn on_signals(stop: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    let seen = Arc::new(AtomicBool::new(false));
    for signal in stopping() {
        // In this order: what looks whether one was seen runs before what says so.
        flag::register_conditional_default(signal, seen.clone())?;
        flag::register(signal, seen.clone())?;
    }
    on_every_signal(stop)
}

/// Calls `stop` with each signal that asks for an end, however many come. For a process that the kernel tells of its
/// parent's death: it says so once for each thread of the parent's.
pub(crate) fn on_every_signal(stop: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
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
