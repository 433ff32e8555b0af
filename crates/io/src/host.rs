//! What may be changed about the process that calls us: its limits, its allocator, its mapped code.
//!
//! Model: a program that owns its process installs [`Hooks`] once, when it starts. Without them nothing here changes
//! the process: limits are only read, and the memory of a call bounds what that call allocates, whatever else the
//! process holds.
//! Non-goals: signals, which the program handles itself.

use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

use crate::process;

/// What a program lets this library do to its process.
#[derive(Debug)]
pub struct Hooks {
    /// Raises the soft limit on open files to this many, as far as the hard limit allows; returns the limit that holds
    /// then.
    pub allow_open_files: fn(u64) -> u64,
    /// Called before memory is laid out: gives back what the process does not need. Returns the bytes that stay
    /// resident and count as memory of the call.
    pub prepare_memory: fn() -> u64,
    /// Called after a job: gives freed memory back to the kernel.
    pub release_memory: fn(),
    /// Called before the first of several jobs: measures the process's peak memory from here on.
    pub reset_peak: fn(),
}

impl Hooks {
    /// Those of a program that does nothing else: its limit on open files is raised, its allocator set, and all that is
    /// resident in it counts as memory of a call.
    pub fn own_process() -> Hooks {
        Hooks {
            allow_open_files: process::allow_open_files,
            prepare_memory: || {
                process::settle();
                process::resident_bytes()
            },
            release_memory: process::trim,
            reset_peak: process::forget_peak,
        }
    }
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Installs the hooks of the program that owns this process. Only the first call counts.
pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

/// How many files may be open, after the program was asked to allow `files`.
pub fn allow_open_files(files: u64) -> u64 {
    let read = || getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    HOOKS.get().map_or_else(read, |hooks| (hooks.allow_open_files)(files))
}

/// Prepares the process for a call that will take much memory. Returns how much of that memory the process already
/// takes: none, unless the program counts all of itself.
pub fn prepare_memory() -> u64 {
    HOOKS.get().map_or(0, |hooks| (hooks.prepare_memory)())
}

/// Gives freed memory back to the kernel, if the program wants that.
pub fn release_memory() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.release_memory)();
    }
}

/// Measures the process's peak memory from here on, if the program wants that.
pub fn reset_peak() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.reset_peak)();
    }
}
