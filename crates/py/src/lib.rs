//! The native half of the Python package `thalweg`.
//!
//! Model: a verb is called with its keywords, which the table of options in `thalweg_verbs` reads, so names, defaults
//! and endpoints are those of the command. The result is the object that `--json` prints; `python/thalweg` makes
//! dataclasses of it. Sorters, rivers, tables and volumes are those of the facade. Only the wheel's own command, and the
//! text of results, come from `thalweg_cli`.
//! Invariant: no call keeps the interpreter's lock while it works or waits. Each ends within a second of Ctrl-C, except
//! that a request of an open table or volume waits for its answer, at most 10 s.
//! Invariant: after a fork nothing here works in the child of a process that has used it, because the child does not have
//! the threads of the parent. What the child inherits is not dropped there either: see [`Own`].
//! Non-goals: mechanisms of its own.

mod asked;
mod buffer;
mod call;
mod errors;
mod numbers;
mod river;
mod sorter;
mod table;
mod volume;
mod watch;

use std::ops::Deref;
use std::sync::OnceLock;

use pyo3::prelude::*;

/// The process that first used this module.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Refuses to work in a child of the process that first used this module.
fn same_process(py: Python<'_>) -> PyResult<()> {
    let own = std::process::id();
    match *PROCESS.get_or_init(|| own) {
        parent if parent == own => Ok(()),
        parent => Err(errors::forked(py, parent, own)),
    }
}

/// Whether this is a child of the process that first used this module.
fn is_forked() -> bool {
    PROCESS.get().is_some_and(|parent| *parent != std::process::id())
}

/// What belongs to the process that made it. A forked child has a copy, whose end would wait for threads that the child
/// does not have, or remove files that the parent uses: there it is forgotten.
struct Own<T>(Option<T>);

impl<T> Own<T> {
    fn new(inner: T) -> Own<T> {
        Own(Some(inner))
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only the end takes it")
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if is_forked() {
            std::mem::forget(self.0.take());
        }
    }
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::call::{call, command, exec, size, text};
    #[pymodule_export]
    use super::river::{Inlet, Outlet, river};
    #[pymodule_export]
    use super::sorter::{Sorted, Sorter};
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::volume::{File, Volume};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
