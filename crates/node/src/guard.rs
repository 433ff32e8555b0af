//! Two processes that watch over each other: a node, and its guard.
//!
//! Model: `node run` starts itself once more, as the node, and becomes its guard: the ancestor to which the kernel gives
//! orphans. Signals that ask for an end are passed on. The kernel tells the node when its guard has gone.
//! Invariant: when the node ends, however it does, whatever it and its commands started is killed, in whatever group or
//! session it is. When the guard is killed, the node ends by itself and takes its jobs along. Only if both are killed
//! at once is something left, namely what runs.
//! Non-goals: starting a node again.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use thalweg_base::clock::Stopwatch;
use thalweg_io::process::children;

use crate::{Error, Result};

/// Who guards a node is told to it by this variable, which its commands do not get.
pub(crate) const GUARD: &str = "THALWEG_GUARD";
/// How long what is left is killed for: something may start more while it is.
const KILLING_SECONDS: f64 = 10.0;

/// Whether this process has a guard, that is, is to be the node. From here on it ends with its guard.
pub fn is_guarded() -> bool {
    let told = std::env::var(GUARD).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let guard = getppid();
    if told.is_none() || told != guard || set_parent_process_death_signal(Some(Signal::TERM)).is_err() {
        return false;
    }
    // Had it gone before the kernel was asked, nobody would tell.
    getppid() == guard
}

/// Passes signals on to a node. All clones are one.
#[derive(Clone, Default)]
pub struct Forward(Arc<AtomicI32>);

impl Forward {
    /// Passes one on, if the node runs.
    pub fn signal(&self, number: i32) {
        let node = Pid::from_raw(self.0.load(Ordering::SeqCst));
        if let (Some(node), Some(signal)) = (node, Signal::from_named_raw(number)) {
            let _ = kill_process(node, signal);
        }
    }
}

/// How a guarded node ended.
pub struct Ended {
    /// Its exit status, or 128 and the signal that ended it.
    pub status: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How many processes it left, which are gone now.
    pub left: usize,
}

/// Starts `program` as a node, and guards it to its end.
pub fn guard(program: &Path, args: &[std::ffi::OsString], forward: &Forward) -> Result<Ended> {
    let failed = |action, why| Error::Guard { action, why };
    set_child_subreaper(Some(getpid())).map_err(|e| failed("guard", e.into()))?;
    let mut command = Command::new(program);
    // A terminal's signals are for the guard, which passes them on.
    command.args(args).env(GUARD, getpid().to_string()).process_group(0);
    let child = command.spawn().map_err(|e| failed("start", e))?;
    let node = Pid::from_child(&child);
    forward.0.store(node.as_raw_nonzero().get(), Ordering::SeqCst);
    let how = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, how))) if pid == node => break how,
            // An orphan of some command.
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(failed("wait for", e.into())),
        }
    };
    forward.0.store(0, Ordering::SeqCst);
    Ok(ended(how, kill_what_is_left()))
}

fn ended(how: WaitStatus, left: usize) -> Ended {
    let signal = how.terminating_signal();
    let status = match (how.exit_status(), signal) {
        (Some(status), _) => status as u8,
        (None, signal) => 128 + (signal.unwrap_or(0) & 0x7f) as u8,
    };
    Ended { status, signal, left }
}

/// Kills all children, then those that they leave, until there are none; how many there were.
fn kill_what_is_left() -> usize {
    let watch = Stopwatch::start();
    let mut killed = 0;
    while watch.seconds() < KILLING_SECONDS {
        for child in children().into_iter().filter_map(|child| Pid::from_raw(child as i32)) {
            // Nobody but this thread waits for it, so the number is still its own.
            let _ = kill_process(child, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(Some(_)) => killed += 1,
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    killed
}
