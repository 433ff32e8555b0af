//! The records of a loaded table as they were before the load.
//!
//! Invariant: the bytes are those that were sorted and loaded, with the changes since. An interval of keys gives a
//! part.
//! Non-goals: tables that were not loaded, whose keys and values have any length.

use thalweg_api::TableForm;

use super::error::{Error, Result};
use super::interval::Interval;
use super::load::whole;
use super::nodes::Tables;
use super::range::Range;
use super::table::{ClusterOptions, Table};

/// Reads the records of a loaded table in order.
pub struct Dump {
    form: TableForm,
    range: Range,
}

impl Dump {
    /// The records of an interval of keys.
    ///
    /// # Errors
    /// If there is no such table, it was not loaded, or the registrar cannot be reached.
    pub fn open(tables: &Tables, name: &str, keys: Interval) -> Result<Dump> {
        let table = Table::open_with(tables, name, ClusterOptions::default())?;
        match table.form() {
            Some(form) => Ok(Dump { form: form.clone(), range: table.range(keys) }),
            None => Err(Error::NoForm(name.into())),
        }
    }

    /// Appends the next records: at least `bytes` bytes, unless these are the last. Returns false if there are none.
    ///
    /// # Errors
    /// If a node with records of the interval cannot be reached.
    pub fn read(&mut self, into: &mut Vec<u8>, bytes: usize) -> Result<bool> {
        let before = into.len();
        while into.len() - before < bytes
            && let Some((key, value)) = self.range.read()?
        {
            whole(&self.form, key, value, into)?;
        }
        Ok(into.len() > before)
    }
}
