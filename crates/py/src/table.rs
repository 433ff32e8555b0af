//! A table of the facade.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg::table::{ClusterOptions, Condition, Error, Interval, Result, Tables, Variant};
use thalweg_cli::call as cli;

use crate::buffer::Bytes;
use crate::watch::{Patience, watched_apart};
use crate::{errors, same_process};

/// A key and a value for Python.
type Pair<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

fn work<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    same_process(py)?;
    py.detach(work).map_err(|why| errors::of_operation(py, &why))
}

fn condition(text: Option<Bytes>) -> Result<Option<Condition>> {
    let parsed = text.map(|text| Condition::parse(&text)).transpose();
    parsed.map_err(|why| Error::Refused(why.to_string()))
}

/// How a client finds the servers of keys, by the word for it in the command line.
fn variant(py: Python<'_>, word: &str) -> PyResult<Variant> {
    let wrong = || Error::Refused(format!("'{word}' is no variant; write n, c, cu or s"));
    Variant::of(word).ok_or_else(|| errors::of_operation(py, &wrong()))
}

/// A table in memory or on a cluster.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Table(thalweg::Table);

#[pymethods]
impl Table {
    /// A table of a cluster.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        name: String,
        cluster: Option<OsString>,
        identity: Option<PathBuf>,
        variant: &str,
    ) -> PyResult<Table> {
        same_process(py)?;
        let options = ClusterOptions { variant: self::variant(py, variant)?, ..ClusterOptions::default() };
        let of = cli::identity(cluster.as_deref(), identity).map_err(|why| errors::of_call(py, &why))?;
        let tables = Tables::load(&of.0, of.1.as_deref());
        let tables = tables.map_err(|why| errors::of_node(py, &why.into()))?;
        let open = move || thalweg::Table::open_with(&tables, &name, options);
        let opened = watched_apart(py, Patience::Second, open, || (), |_| Ok(()))?;
        opened.map(Table).map_err(|why| errors::of_operation(py, &why))
    }

    /// A table in the memory of this process.
    #[staticmethod]
    fn in_memory(py: Python<'_>, bytes: u64) -> PyResult<Table> {
        work(py, || thalweg::Table::in_memory(bytes)).map(Table)
    }

    fn get<'py>(&self, py: Python<'py>, key: Bytes) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = &*key;
        let value = work(py, || self.0.get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn insert(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<bool> {
        let (key, value) = (&*key, &*value);
        work(py, || self.0.insert(key, value))
    }

    fn upsert(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        let (key, value) = (&*key, &*value);
        work(py, || self.0.upsert(key, value))
    }

    fn update(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<bool> {
        let (key, value) = (&*key, &*value);
        work(py, || self.0.update(key, value))
    }

    fn delete(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        let key = &*key;
        work(py, || self.0.delete(key))
    }

    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: Bytes,
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> PyResult<bool> {
        let (key, expected, value) = (&*key, expected.as_deref(), value.as_deref());
        work(py, || self.0.compare_and_set(key, expected, value))
    }

    /// The first records of an interval, at most `limit`; with `keys_only` without their values.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a call from Python")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        low: Bytes,
        high: Option<Bytes>,
        r#where: Option<Bytes>,
        descending: bool,
        keys_only: bool,
        limit: u64,
    ) -> PyResult<Vec<Pair<'py>>> {
        let keys = Interval::new(&low, high.as_deref());
        let condition = condition(r#where).map_err(|why| errors::of_operation(py, &why))?;
        let records = work(py, || {
            let records = match condition {
                Some(condition) => self.0.find(keys, condition),
                None => self.0.range(keys),
            };
            let records = if descending { records.descending() } else { records }.limit(limit);
            if keys_only { records.keys_only() } else { records }.collect::<Result<Vec<_>>>()
        })?;
        let pair = |(key, value): (Vec<u8>, Vec<u8>)| (PyBytes::new(py, &key), PyBytes::new(py, &value));
        Ok(records.into_iter().map(pair).collect())
    }

    fn count(
        &self,
        py: Python<'_>,
        low: Bytes,
        high: Option<Bytes>,
        r#where: Option<Bytes>,
    ) -> PyResult<u64> {
        let keys = Interval::new(&low, high.as_deref());
        let condition = condition(r#where).map_err(|why| errors::of_operation(py, &why))?;
        work(py, || self.0.count(keys, condition))
    }
}
