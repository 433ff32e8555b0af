//! A volume of the facade and its files.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg::volume::{self, Kind, Result, Stat};

use crate::buffer::Bytes;
use crate::{Own, errors, same_process, watch};

/// The most bytes that are copied for a write, whose caller may have gone before it ends.
const WRITTEN_BYTES: usize = 64 << 20;

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

/// Does a request, which may wait for other processes and hosts.
fn requested<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    same_process(py)?;
    watch::requested(py, work)?.map_err(|why| errors::raised(py, &why.into()))
}

/// An open volume of this user.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct Volume(Own<Arc<thalweg::Volume>>);

impl Volume {
    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&thalweg::Volume) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let volume = Arc::clone(&self.0);
        requested(py, move || work(&volume))
    }
}

#[pymethods]
impl Volume {
    #[new]
    fn new(py: Python<'_>, name: String) -> PyResult<Volume> {
        requested(py, move || thalweg::Volume::open(&name)).map(|volume| Volume(Own::new(Arc::new(volume))))
    }

    fn list(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<(OsString, Described)>> {
        let entries = self.work(py, |volume| volume.list(path))?;
        Ok(entries.into_iter().map(|(name, stat)| (name, described(stat))).collect())
    }

    fn stat(&self, py: Python<'_>, path: PathBuf) -> PyResult<Described> {
        self.work(py, |volume| volume.stat(path)).map(described)
    }

    fn make_directory(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.work(py, |volume| volume.make_directory(path))
    }

    fn remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.work(py, |volume| volume.remove(path))
    }

    fn set_mode(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.work(py, move |volume| volume.set_mode(path, mode))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        self.work(py, |volume| volume.rename(from, to))
    }

    /// Opens a file by the first letter of a mode of Python: `r` wants a file that exists, and `x` creates one.
    fn open(&self, py: Python<'_>, path: PathBuf, mode: char) -> PyResult<File> {
        let file = self.work(py, move |volume| match mode {
            'r' => volume.open_file(path),
            'x' => volume.create_new(path),
            _ => volume.create(path),
        });
        Ok(File { file: Own::new(Arc::new(file?)), was_interrupted: AtomicBool::new(false) })
    }
}

/// An open file of a volume. While a request that was interrupted still waits for a silent host, further requests fail
/// at once, so that the end of a `with` block does not wait for that host again.
#[pyclass(frozen, module = "thalweg._native")]
pub(crate) struct File {
    /// Each request that has not ended shares it.
    file: Own<Arc<volume::File>>,
    was_interrupted: AtomicBool,
}

impl File {
    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&volume::File) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        if self.was_interrupted.load(Ordering::Relaxed) && Arc::strong_count(&self.file) > 1 {
            let why = "a request to this file was interrupted and has not ended; open the file again";
            return Err(errors::raised(py, &volume::Error::Refused(why.into()).into()));
        }
        let file = Arc::clone(&self.file);
        let done = requested(py, move || work(&file));
        let is_interrupted = done.as_ref().is_err_and(|why| why.is_instance_of::<PyKeyboardInterrupt>(py));
        self.was_interrupted.store(is_interrupted, Ordering::Relaxed);
        done
    }
}

#[pymethods]
impl File {
    /// At most `bytes` bytes from offset `at`; fewer only at the end of the file.
    fn read_at<'py>(&self, py: Python<'py>, at: u64, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.work(py, move |file| {
            let left = file.stat()?.size.saturating_sub(at);
            let mut into = vec![0; bytes.min(usize::try_from(left).unwrap_or(usize::MAX))];
            let read = file.read_at(at, &mut into)?;
            into.truncate(read);
            Ok(into)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn write_at(&self, py: Python<'_>, mut at: u64, bytes: Bytes) -> PyResult<()> {
        for piece in bytes.chunks(WRITTEN_BYTES) {
            let (from, copy) = (at, piece.to_vec());
            self.work(py, move |file| file.write_at(from, &copy))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Appends, wherever the end is then. Returns the new end.
    fn append(&self, py: Python<'_>, bytes: Bytes) -> PyResult<u64> {
        let mut end = 0;
        for piece in bytes.chunks(WRITTEN_BYTES) {
            let copy = piece.to_vec();
            end = self.work(py, move |file| file.append(&copy))? + piece.len() as u64;
        }
        Ok(end)
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.work(py, volume::File::stat).map(|stat| stat.size)
    }

    fn set_size(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.work(py, move |file| file.set_size(bytes))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, volume::File::sync)
    }
}
