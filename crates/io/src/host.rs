//! The changes that this library may make to its process: limits, the allocator, mapped code.
//!
//! Model: a program that owns its process installs [`Hooks`] once, when it starts. Without them nothing here changes
//! the process: limits are only read, and the memory of a call bounds only what that call allocates.
//! Non-goals: signals, which the program handles itself.

use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

use crate::process;

/// The changes that a program allows.
#[derive(Debug)]
pub struct Hooks {
    /// Raises the soft limit on open files to this number, as far as the hard limit allows; returns the resulting
    /// limit.
    pub allow_open_files: fn(u64) -> u64,
    /// Called before memory is divided: releases what the process does not need. Returns the resident bytes that count
    /// as memory of the call.
    pub prepare_memory: fn() -> u64,
    /// Called after a job: returns freed memory to the kernel.
    pub release_memory: fn(),
    /// Called before the first of several jobs: resets the process's peak memory.
    pub reset_peak: fn(),
}

impl Hooks {
    /// The hooks of a program that does nothing else: they raise its limit on open files, configure its allocator, and
    /// count all its resident memory as memory of a call.
    pub fn own_process() -> Hooks {
        Hooks {
            allow_open_files: process::allow_open_files,
            prepare_memory: || {
                process::prepare_allocator();
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

/// Asks the program to allow `files` open files. Returns the resulting limit.
pub fn allow_open_files(files: u64) -> u64 {
    let read = || getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    HOOKS.get().map_or_else(read, |hooks| (hooks.allow_open_files)(files))
}

/// Prepares the process for a call that needs much memory. Returns the memory that the process already uses; 0 unless
/// the program counts all of it.
pub fn prepare_memory() -> u64 {
    HOOKS.get().map_or(0, |hooks| (hooks.prepare_memory)())
}

/// Returns freed memory to the kernel, if the program allows it.
pub fn release_memory() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.release_memory)();
    }
}

/// Resets the process's peak memory, if the program allows it.
pub fn reset_peak() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.reset_peak)();
    }
}
