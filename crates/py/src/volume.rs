//! A volume of the facade and its files.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg::volume::{Kind, Result, Stat};

use crate::buffer::Bytes;
use crate::{errors, same_process};

/// Kind (`file`, `directory`, `link`), size, mode, user, group, and nanoseconds since 1970 of the last change.
type Described = (&'static str, u64, u32, u32, u32, i64);

fn described(stat: Stat) -> Described {
    let kind = match stat.kind {
        Kind::Directory => "directory",
        Kind::File => "file",
        _ => "other",
    };
    (kind, stat.size, stat.mode, stat.user, stat.group, stat.modified_ns)
}

fn work<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    same_process(py)?;
    py.detach(work).map_err(|why| errors::raised(py, &why.into()))
}

/// An open volume of this user.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Volume(thalweg::Volume);

#[pymethods]
impl Volume {
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Volume> {
        work(py, || thalweg::Volume::open(name)).map(Volume)
    }

    fn list(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<(OsString, Described)>> {
        let entries = work(py, || self.0.list(path))?;
        Ok(entries.into_iter().map(|(name, stat)| (name, described(stat))).collect())
    }

    fn stat(&self, py: Python<'_>, path: PathBuf) -> PyResult<Described> {
        work(py, || self.0.stat(path)).map(described)
    }

    fn make_directory(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        work(py, || self.0.make_directory(path))
    }

    fn remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        work(py, || self.0.remove(path))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        work(py, || self.0.rename(from, to))
    }

    /// Opens a file, or creates it if it does not exist and `create` is set.
    fn open(&self, py: Python<'_>, path: PathBuf, create: bool) -> PyResult<File> {
        work(py, || if create { self.0.create(path) } else { self.0.open_file(path) }).map(File)
    }
}

/// An open file of a volume.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct File(thalweg::volume::File);

#[pymethods]
impl File {
    /// At most `bytes` bytes from offset `at`; fewer only at the end of the file.
    fn read_at<'py>(&self, py: Python<'py>, at: u64, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        let left = self.size(py)?.saturating_sub(at);
        let mut into = vec![0; bytes.min(usize::try_from(left).unwrap_or(usize::MAX))];
        let read = work(py, || self.0.read_at(at, &mut into))?;
        Ok(PyBytes::new(py, &into[..read]))
    }

    fn write_at(&self, py: Python<'_>, at: u64, bytes: Bytes) -> PyResult<()> {
        let bytes = &*bytes;
        work(py, || self.0.write_at(at, bytes))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        work(py, || self.0.stat()).map(|stat| stat.size)
    }

    fn set_size(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        work(py, || self.0.set_size(bytes))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        work(py, || self.0.sync())
    }
}
