//! The guard: a process beside a node that kills everything the node started when the node ends.
//!
//! Model: `node run` starts itself again as the node, and becomes its guard, the subreaper to which the kernel gives
//! orphans. It forwards signals that ask the node to end. The kernel signals the node when its guard dies.
//! Invariant: when the node ends for any reason, all processes that it and its commands started are killed, in any
//! process group or session. When the guard is killed, the node ends its jobs and itself. Only if both are killed at
//! the same time do processes remain.
//! Non-goals: restarting a node.

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

/// The variable that holds the guard's process id. Commands do not inherit it.
pub(crate) const GUARD: &str = "THALWEG_GUARD";
/// The time limit for killing processes, which may start others in the meantime.
const KILLING_SECONDS: f64 = 10.0;

/// Whether this process has a guard and is therefore the node. From now on it ends with its guard.
pub fn is_guarded() -> bool {
    let told = std::env::var(GUARD).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let guard = getppid();
    if told.is_none() || told != guard || set_parent_process_death_signal(Some(Signal::TERM)).is_err() {
        return false;
    }
    // The guard may have died before this process asked the kernel for the signal.
    getppid() == guard
}

/// Forwards signals to a node. Clones share the node.
#[derive(Clone, Default)]
pub struct Forward(Arc<AtomicI32>);

impl Forward {
    /// Forwards a signal if the node runs.
    pub fn signal(&self, number: i32) {
        let node = Pid::from_raw(self.0.load(Ordering::SeqCst));
        if let (Some(node), Some(signal)) = (node, Signal::from_named_raw(number)) {
            let _ = kill_process(node, signal);
        }
    }
}

/// How a guarded node ended.
pub struct Ended {
    /// Its exit status, or 128 plus the signal that ended it.
    pub status: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The number of processes that it left, which were killed.
    pub left: usize,
}

/// Starts `program` as a node, and guards it until it ends.
pub fn guard(program: &Path, args: &[std::ffi::OsString], forward: &Forward) -> Result<Ended> {
    let failed = |action, why| Error::Guard { action, why };
    set_child_subreaper(Some(getpid())).map_err(|e| failed("guard", e.into()))?;
    let mut command = Command::new(program);
    // A terminal's signals go to the guard, which forwards them.
    command.args(args).env(GUARD, getpid().to_string()).process_group(0);
    let child = command.spawn().map_err(|e| failed("start", e))?;
    let node = Pid::from_child(&child);
    forward.0.store(node.as_raw_nonzero().get(), Ordering::SeqCst);
    let how = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, how))) if pid == node => break how,
            // An orphaned process of a command.
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

/// Kills all children, then their orphans, until there are none. Returns their number.
fn kill_what_is_left() -> usize {
    let watch = Stopwatch::start();
    let mut killed = 0;
    while watch.seconds() < KILLING_SECONDS {
        for child in children().into_iter().filter_map(|child| Pid::from_raw(child as i32)) {
            // Only this thread reaps children, so the process id is not reused yet.
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
