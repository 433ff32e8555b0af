//! Waits for work without the interpreter's lock, and lets Ctrl-C stop it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use thalweg_wire::threads;

/// How often Python's signal handlers get their turn while a call works.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often to look for the end of stopped work of [`Patience::Second`].
const LOOKS_AFTER_STOP: u32 = 18;

/// How long to wait for the end of work that was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Less than a second, because it may wait for a silent host. Then its thread continues without a caller, until it
    /// gives that host up.
    Second,
    /// Until it has removed its files.
    End,
}

/// Works on a thread of its own, and calls `look` every [`LOOK_EVERY`]. If a signal handler or `look` raises, calls
/// `stop`, and returns the error once the work has ended, whatever its result, or patience has.
pub(crate) fn watched<T: Send + 'static>(
    py: Python<'_>,
    patience: Patience,
    work: impl FnOnce() -> T + Send + 'static,
    stop: impl Fn(),
    look: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || give(&sender, work));
    taken(py, patience, receiver, stop, look)
}

/// Runs a request to other processes, on a thread that is used again. If a signal handler raises, waits less than a
/// second for the end of the request, whose thread continues until it gives the silent process up.
pub(crate) fn requested<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    match threads::spawn("request", move || give(&sender, work)) {
        true => taken(py, Patience::Second, receiver, || (), |_| Ok(())),
        false => Err(PyRuntimeError::new_err("the system has no thread left")),
    }
}

/// Works, and sends the result, for which nobody may wait any more.
fn give<T>(sender: &Sender<thread::Result<T>>, work: impl FnOnce() -> T) {
    drop(sender.send(catch_unwind(AssertUnwindSafe(work))));
}

/// Waits for the result of work.
fn taken<T: Send>(
    py: Python<'_>,
    patience: Patience,
    mut receiver: Receiver<thread::Result<T>>,
    stop: impl Fn(),
    mut look: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (mut raised, mut looks) = (None, 0);
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(LOOK_EVERY)) {
            Ok(result) => {
                let result = result.unwrap_or_else(|panic| resume_unwind(panic));
                return raised.map_or(Ok(result), Err);
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("a panic is sent, too"),
            Err(RecvTimeoutError::Timeout) if raised.is_some() => looks += 1,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(why) = py.check_signals().and_then(|()| look(py)) {
                    stop();
                    raised = Some(why);
                }
            }
        }
        if patience == Patience::Second
            && looks == LOOKS_AFTER_STOP
            && let Some(why) = raised.take()
        {
            return Err(why);
        }
    }
}
