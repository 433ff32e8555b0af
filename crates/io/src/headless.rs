//! Files seen without their first lines: the header of a table in text.
//!
//! Model: a [`Headless`] wraps the back end of some inputs. Once the header of a file was read, the file begins after
//! it for all who open it here, so nobody else has to know that there is one.
//! Invariant: a stream is opened once, and read up to the end of its header; whoever opens it next goes on from there.
//! Non-goals: direct access, because records then begin anywhere in a sector.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{Backend, Caching, Done, FileId, InputFile, Metadata, Op, Queue, ReadFiles, Result};

/// How long to wait for a silent stream before asking whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// A back end whose files lack the headers that were taken from them.
pub struct Headless {
    inner: Arc<dyn ReadFiles>,
    skips: Arc<Skips>,
    /// Streams whose header was read, until somebody opens them.
    held: Mutex<HashMap<PathBuf, InputFile>>,
    /// Streams that were opened again; they stay open as long as this.
    given: Mutex<Vec<InputFile>>,
}

/// The bytes of the header of each file.
#[derive(Default)]
struct Skips(Mutex<HashMap<PathBuf, u64>>);

impl Skips {
    fn of(&self, path: &Path) -> u64 {
        self.0.lock().expect("no holder panics").get(path).copied().unwrap_or(0)
    }
}

impl Headless {
    /// The files of `inner`, none of them without a header yet.
    pub fn new(inner: Arc<dyn ReadFiles>) -> Headless {
        Headless { inner, skips: Arc::default(), held: Mutex::default(), given: Mutex::default() }
    }

    /// Whether it wraps this back end.
    pub fn is_of(&self, inner: &Arc<dyn ReadFiles>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.inner), Arc::as_ptr(inner))
    }

    /// Reads the first `lines` lines of a file, and leaves them out of it from now on. Fewer, if the file ends before.
    /// `None` if they have more than `bytes_max` bytes, or if `stopped` returned true while it waited for a stream.
    pub fn take_header(
        &self,
        path: &Path,
        lines: usize,
        bytes_max: usize,
        stopped: impl Fn() -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let is_stream = !self.inner.stat(path)?.is_regular;
        let file = InputFile::open_to_read(Arc::clone(&self.inner), path, Caching::Cached)?;
        let mut header = Vec::new();
        let mut left = lines;
        // What is read of a stream beyond the header would be lost.
        let mut piece = vec![0; if is_stream { 1 } else { 4096 }];
        while left > 0 {
            if header.len() > bytes_max || stopped() {
                return Ok(None);
            }
            let Some(n) = file.read_some(header.len() as u64, &mut piece, PATIENCE)? else { continue };
            if n == 0 {
                break;
            }
            for line in piece[..n].split_inclusive(|byte| *byte == b'\n').take(left) {
                header.extend_from_slice(line);
                left -= usize::from(line.ends_with(b"\n"));
            }
        }
        if is_stream {
            self.held.lock().expect("no holder panics").insert(path.to_path_buf(), file);
        } else {
            let mut skips = self.skips.0.lock().expect("no holder panics");
            skips.insert(path.to_path_buf(), header.len() as u64);
        }
        Ok(Some(header))
    }

    fn without(&self, path: &Path, there: Metadata) -> Metadata {
        Metadata { len: there.len.saturating_sub(self.skips.of(path)), ..there }
    }
}

impl Backend for Headless {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn fallback(&self) -> Option<String> {
        self.inner.fallback()
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        let inner = self.inner.queue(depth)?;
        Ok(Box::new(Shifted { inner, skips: Arc::clone(&self.skips) }))
    }

    fn close(&self, id: FileId) {
        let is_given = |file: &InputFile| file.id() == id;
        let mut given = self.given.lock().expect("no holder panics");
        match given.iter().position(is_given) {
            // The file that was opened first closes itself.
            Some(at) => drop(given.swap_remove(at)),
            None => self.inner.close(id),
        }
    }
}

impl ReadFiles for Headless {
    fn open_to_read(&self, path: &Path, _caching: Caching) -> Result<(FileId, bool)> {
        if let Some(stream) = self.held.lock().expect("no holder panics").remove(path) {
            let opened = (stream.id(), false);
            self.given.lock().expect("no holder panics").push(stream);
            return Ok(opened);
        }
        self.inner.open_to_read(path, Caching::Cached)
    }

    fn metadata(&self, id: FileId, path: &Path) -> Result<Metadata> {
        Ok(self.without(path, self.inner.metadata(id, path)?))
    }

    fn stat(&self, path: &Path) -> Result<Metadata> {
        Ok(self.without(path, self.inner.stat(path)?))
    }

    fn cached_share(&self, id: FileId, len: u64) -> f64 {
        self.inner.cached_share(id, len)
    }

    fn read_at(&self, id: FileId, path: &Path, at: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read_at(id, path, at + self.skips.of(path), into)
    }

    fn read_some(
        &self,
        id: FileId,
        path: &Path,
        at: u64,
        into: &mut [u8],
        patience: Duration,
    ) -> Result<Option<usize>> {
        self.inner.read_some(id, path, at + self.skips.of(path), into, patience)
    }
}

/// A queue that reads behind the headers.
struct Shifted {
    inner: Box<dyn Queue>,
    skips: Arc<Skips>,
}

impl Queue for Shifted {
    fn submit(&mut self, op: Op) {
        let at = op.at + self.skips.of(op.file.path());
        self.inner.submit(Op { at, ..op });
    }

    fn reap(&mut self, wait: bool) -> Option<Done> {
        let done = self.inner.reap(wait)?;
        let at = done.at - self.skips.of(done.file.path());
        Some(Done { at, ..done })
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }
}
