//! A table of the facade.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg::table::{ClusterOptions, Condition, Error, Interval, Result, Tables, Variant};

use crate::asked::cluster_meant;
use crate::buffer::Bytes;
use crate::watch::requested;
use crate::{Own, errors, same_process};

/// A key and a value for Python.
type Pair<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

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
pub(crate) struct Table {
    table: Own<Arc<thalweg::Table>>,
    is_in_memory: bool,
}

impl Table {
    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&thalweg::Table) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        same_process(py)?;
        let table = Arc::clone(&self.table);
        let done = match self.is_in_memory {
            true => py.detach(|| work(&table)),
            false => requested(py, move || work(&table))?,
        };
        done.map_err(|why| errors::of_operation(py, &why))
    }
}

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
        let of = cluster_meant(py, cluster, identity)?;
        let tables = Tables::load(&of.0, of.1.as_deref());
        let tables = tables.map_err(|why| errors::of_node(py, &why.into()))?;
        let opened = requested(py, move || thalweg::Table::open_with(&tables, &name, options))?;
        let table =
            opened.map(|table| Own::new(Arc::new(table))).map_err(|why| errors::of_operation(py, &why))?;
        Ok(Table { table, is_in_memory: false })
    }

    /// A table in the memory of this process.
    #[staticmethod]
    fn in_memory(py: Python<'_>, bytes: u64) -> PyResult<Table> {
        same_process(py)?;
        let table = thalweg::Table::in_memory(bytes).map_err(|why| errors::of_operation(py, &why))?;
        Ok(Table { table: Own::new(Arc::new(table)), is_in_memory: true })
    }

    fn get<'py>(&self, py: Python<'py>, key: Bytes) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = key.as_key()?.to_vec();
        let value = self.work(py, move |table| table.get(key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn insert(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<bool> {
        let (key, value) = (key.as_key()?.to_vec(), value.to_vec());
        self.work(py, move |table| table.insert(key, value))
    }

    fn upsert(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        let (key, value) = (key.as_key()?.to_vec(), value.to_vec());
        self.work(py, move |table| table.upsert(key, value))
    }

    fn update(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<bool> {
        let (key, value) = (key.as_key()?.to_vec(), value.to_vec());
        self.work(py, move |table| table.update(key, value))
    }

    fn delete(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        let key = key.as_key()?.to_vec();
        self.work(py, move |table| table.delete(key))
    }

    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: Bytes,
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> PyResult<bool> {
        let copied = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.to_vec());
        let (key, expected, value) = (key.as_key()?.to_vec(), copied(expected), copied(value));
        self.work(py, move |table| table.compare_and_set(key, expected.as_deref(), value.as_deref()))
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
        let keys = Interval::new(low.as_key()?, high.as_ref().map(Bytes::as_key).transpose()?);
        let condition = condition(r#where).map_err(|why| errors::of_operation(py, &why))?;
        let records = self.work(py, move |table| {
            let records = match condition {
                Some(condition) => table.find(keys, condition),
                None => table.range(keys),
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
        let keys = Interval::new(low.as_key()?, high.as_ref().map(Bytes::as_key).transpose()?);
        let condition = condition(r#where).map_err(|why| errors::of_operation(py, &why))?;
        self.work(py, move |table| table.count(keys, condition))
    }
}
