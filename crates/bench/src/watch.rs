//! Progress of a benchmark in lines on standard error, and its end by a signal.
//!
//! Invariant: the first SIGINT or SIGTERM ends the benchmark between two runs, so that labs and data are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thalweg::Progress;
use thalweg_measure::{Error, Result};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs `measure` and shows what it is at.
pub(crate) fn watched<T>(measure: impl FnOnce(&Progress) -> Result<T>) -> Result<T> {
    let progress = Arc::new(Progress::default());
    let mut signals =
        Signals::new([SIGINT, SIGTERM]).map_err(|e| Error::Failed(format!("cannot handle signals: {e}")))?;
    let cancelled = progress.clone();
    std::thread::spawn(move || signals.forever().for_each(|signal| cancelled.cancel(signal)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shower = scope.spawn(|| show(&progress, &done));
        let measured = measure(&progress);
        done.store(true, Ordering::Release);
        shower.thread().unpark();
        measured
    })
}

/// Prints a line for each row that begins.
fn show(progress: &Progress, done: &AtomicBool) {
    let mut shown = String::new();
    while !done.load(Ordering::Acquire) {
        let now = progress.view();
        if now.stage != shown {
            eprintln!("{}/{} {}", now.stage_index, now.stages, now.stage);
            shown = now.stage;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}
