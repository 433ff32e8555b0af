//! Waits for work without the interpreter's lock, and lets Ctrl-C stop it.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use pyo3::prelude::*;

/// How often Python's signal handlers get their turn while a call works.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own, and calls `look` every [`LOOK_EVERY`]. If a signal handler or `look` raises,
/// calls `stop`, and returns the error once `work` has ended, whatever its result.
pub(crate) fn watched<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send,
    stop: impl Fn(),
    mut look: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let ending = Ending { done: &done, waiter: thread::current() };
        let worker = scope.spawn(move || {
            let _ending = ending;
            work()
        });
        let mut raised = None;
        while !done.load(Ordering::Acquire) {
            py.detach(|| thread::park_timeout(LOOK_EVERY));
            if raised.is_none()
                && let Err(why) = py.check_signals().and_then(|()| look(py))
            {
                stop();
                raised = Some(why);
            }
        }
        let result = py.detach(|| worker.join()).unwrap_or_else(|panic| resume_unwind(panic));
        raised.map_or(Ok(result), Err)
    })
}

/// Wakes the thread that waits for another thread when that one ends or panics.
struct Ending<'d> {
    done: &'d AtomicBool,
    waiter: Thread,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        self.waiter.unpark();
    }
}
