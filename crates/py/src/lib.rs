//! The native half of the Python package `thalweg`.
//!
//! Model: a verb is called with the arguments of the command, which `thalweg_cli` parses with its table of flags, so
//! names, defaults and endpoints are those of the command. The result is the object that `--json` prints;
//! `python/thalweg` makes dataclasses of it. Sorters, rivers, tables and volumes are those of the facade.
//! Invariant: no call keeps the interpreter's lock while it works or waits. Each ends within a second of Ctrl-C, except
//! that a request of an open table or volume waits for its answer, at most 10 s.
//! Invariant: after a fork nothing here works in the child, because the child does not have the threads of the parent.
//! Non-goals: mechanisms of its own.

mod buffer;
mod call;
mod errors;
mod river;
mod sorter;
mod table;
mod volume;
mod watch;

use std::sync::OnceLock;

use pyo3::prelude::*;

/// The process that imported this module.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Refuses to work in a child of the process that imported this module.
fn same_process(py: Python<'_>) -> PyResult<()> {
    let own = std::process::id();
    match *PROCESS.get_or_init(|| own) {
        parent if parent == own => Ok(()),
        parent => Err(errors::forked(py, parent, own)),
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
        super::same_process(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
