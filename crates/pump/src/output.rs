//! A file as a sink. Several lanes write it in any order under a temporary name, and it gets its own name when it is
//! complete and durable.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thalweg_block::Block;
use thalweg_io::{Access, Error, File, Handle, Location, Queue, Result, directory_of};

use crate::{Meters, Sink, WriteBehind};

/// An output file that does not bear its name yet. Dropped without `publish`, it is removed.
pub struct Output {
    file: File,
    path: PathBuf,
    keep: AtomicBool,
    is_named: AtomicBool,
}

impl Output {
    /// Makes `partial` beside `output`, for its owner's eyes only, and reserves `bytes` in it.
    pub fn create(output: &Location, partial: &Path, bytes: u64) -> Result<Output> {
        // Of what could not be made the user knows one name only, unless the other one is in the way.
        let file = output.at(partial).open(Access::CreateDirect).map_err(|e| match e.source.kind() {
            ErrorKind::AlreadyExists => e,
            _ => Error { path: output.path.clone(), ..e },
        })?;
        // Whoever finds the name sees by the mark that its maker lives; some file systems know no marks.
        let _ = file.mark();
        let output = Output::of(file, &output.path);
        output.file.allocate(bytes)?;
        Ok(output)
    }

    /// What is open under its partial name already.
    pub fn of(file: File, path: &Path) -> Output {
        Output { file, path: path.to_path_buf(), keep: false.into(), is_named: false.into() }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Leaves the partial file where it is when dropped, for a later run to take up.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Sets the length and makes everything durable.
    pub fn settle(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync()
    }

    /// Makes the contents durable and leaves the file under a temporary name that nobody clears but who knows of it. Only its
    /// name is missing then. Returns where it lies, which is not durable yet.
    pub fn ready(self, bytes: u64) -> Result<PathBuf> {
        self.check_name()?;
        self.settle(bytes)?;
        self.file.resemble(&self.path)?;
        let ready = self.file.path().with_extension("ready");
        self.file.fs().rename(self.file.path(), &ready)?;
        self.keep();
        Ok(ready)
    }

    /// The same, and gives the file its name.
    pub fn publish(&self, bytes: u64) -> Result<()> {
        self.settle(bytes)?;
        self.rename()?;
        self.sync_name()
    }

    /// Fails if it could not be given its name.
    pub fn check_name(&self) -> Result<()> {
        self.file.fs().check_replace(&self.path)
    }

    /// Gives the file its name, with the permissions and where possible the owner of what has that.
    pub fn rename(&self) -> Result<()> {
        self.check_name()?;
        self.file.resemble(&self.path)?;
        self.file.fs().rename(self.file.path(), &self.path)?;
        self.is_named.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the name durable.
    pub fn sync_name(&self) -> Result<()> {
        self.file.fs().sync_directory(directory_of(&self.path)).map_err(|e| e.undoable(&self.path))
    }

    /// Whether it bears its name.
    pub fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Relaxed)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.keep.load(Ordering::Relaxed) && !self.is_named() {
            // Nothing can be done about a name that cannot be removed; the next run removes it.
            let _ = self.file.location().remove();
        }
    }
}

/// How many bytes of a file are wholly written, from its start on, while several lanes write it and blocks
/// complete in any order.
#[derive(Debug)]
pub struct Prefix {
    bytes: AtomicU64,
    /// Stretches behind the prefix, each by its start with its end.
    apart: Mutex<BTreeMap<u64, u64>>,
}

impl Prefix {
    /// Of a file whose first `bytes` bytes are there already.
    pub fn of(bytes: u64) -> Prefix {
        Prefix { bytes: bytes.into(), apart: Mutex::default() }
    }

    /// Bytes of the prefix.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// So many bytes at `at` are written now.
    pub fn add(&self, at: u64, len: u64) {
        let mut apart = self.apart.lock().expect("no lane panics");
        apart.insert(at, at + len);
        let mut bytes = self.bytes();
        while let Some(first) = apart.first_entry().filter(|first| *first.key() <= bytes) {
            bytes = bytes.max(first.remove());
        }
        self.bytes.store(bytes, Ordering::Release);
    }
}

/// One lane of writes to a file: each block at its own offset.
pub struct FileLane<'a> {
    file: Handle,
    behind: WriteBehind<'a>,
    prefix: Option<&'a Prefix>,
}

impl<'a> FileLane<'a> {
    /// A lane with a queue of its own.
    pub fn new(file: &Handle, queue: Box<dyn Queue>, meters: &'a Meters) -> FileLane<'a> {
        FileLane { file: file.clone(), behind: WriteBehind::new(queue, meters), prefix: None }
    }

    /// Says of every block when it is written.
    pub fn telling(self, prefix: Option<&'a Prefix>) -> FileLane<'a> {
        FileLane { prefix, ..self }
    }

    fn reap(&mut self, wait: bool) -> Result<bool> {
        let Some(done) = self.behind.reap(wait)? else { return Ok(false) };
        if let Some(prefix) = self.prefix {
            prefix.add(done.at, done.tag);
        }
        Ok(true)
    }
}

impl Sink for FileLane<'_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        self.settle()?;
        if self.behind.is_full() {
            self.reap(true)?;
        }
        let (at, len) = (block.offset(), block.len() as u64);
        self.behind.write(block, &self.file, at, len);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        while self.reap(false)? {}
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while self.reap(true)? {}
        Ok(())
    }
}

/// A stream (a pipe, a terminal, a device), written in order.
pub struct StreamLane<'a> {
    file: File,
    at: u64,
    meters: &'a Meters,
}

impl<'a> StreamLane<'a> {
    /// Writes to a file opened with [`Access::WriteStream`].
    pub fn new(file: &File, meters: &'a Meters) -> StreamLane<'a> {
        StreamLane { file: file.clone(), at: 0, meters }
    }
}

impl Sink for StreamLane<'_> {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        assert_eq!(block.offset(), self.at, "a stream is written in order");
        self.meters.stage.for_write(|| self.file.write_at(self.at, &block))?;
        self.meters.output.wrote(block.len() as u64);
        self.at += block.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_grows_when_what_it_waits_for_has_come() {
        let prefix = Prefix::of(10);
        prefix.add(24, 8);
        prefix.add(16, 8);
        assert_eq!(prefix.bytes(), 10);
        // The block in which it ended is written once more, whole.
        prefix.add(8, 8);
        assert_eq!(prefix.bytes(), 32);
        prefix.add(32, 3);
        assert_eq!(prefix.bytes(), 35);
    }
}
