//! A file as a sink. Several lanes write it in any order under a temporary name, and it gets its own name when it is
//! complete and durable.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thalweg_block::Block;
use thalweg_io::{Access, Action, Error, File, Handle, Location, Queue, Result, directory_of};

use crate::{Meters, Sink, WriteBehind};

/// An output file that does not have its final name yet. Dropping it without `publish` removes it.
pub struct Output {
    file: File,
    path: PathBuf,
    keep: AtomicBool,
    is_named: AtomicBool,
}

impl Output {
    /// Creates `partial` beside `output`, for its owner alone, and reserves `bytes` in it.
    pub fn create(output: &Location, partial: &Path, bytes: u64) -> Result<Output> {
        // The user knows only the output's name, unless the partial name is the obstacle.
        let file = output.at(partial).open(Access::CreateDirect).map_err(|e| match e.source.kind() {
            ErrorKind::AlreadyExists => e,
            _ => Error { path: output.path.clone(), ..e },
        })?;
        // The lock shows other processes that this one lives; some file systems have no locks.
        let _ = file.mark();
        let output = Output::of(file, &output.path);
        output.file.allocate(bytes)?;
        Ok(output)
    }

    /// An output that is open already under its partial name.
    pub fn of(file: File, path: &Path) -> Output {
        Output { file, path: path.to_path_buf(), keep: false.into(), is_named: false.into() }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Keeps the partial file when this is dropped, so that a later run can resume from it.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Sets the length and makes everything durable.
    pub fn settle(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync()
    }

    /// Makes the contents durable and renames the file to a temporary name that other runs do not clear. Returns its
    /// path, whose name is not durable yet.
    pub fn ready(self, bytes: u64) -> Result<PathBuf> {
        self.check_name()?;
        self.settle(bytes)?;
        self.file.resemble(&self.path)?;
        self.is_there()?;
        let ready = self.file.path().with_extension("ready");
        self.file.fs().rename(self.file.path(), &ready)?;
        self.keep();
        Ok(ready)
    }

    /// Makes the contents durable and renames the file to its final name. Returns what it lacks of the file that had
    /// the name before; see [`thalweg_io::FileSystem::resemble`].
    pub fn publish(&self, bytes: u64) -> Result<Vec<String>> {
        self.settle(bytes)?;
        let lost = self.rename()?;
        self.sync_name()?;
        Ok(lost)
    }

    /// Fails if the file could not be renamed to its final name.
    pub fn check_name(&self) -> Result<()> {
        self.file.fs().check_replace(&self.path)
    }

    /// Renames the file to its final name, with the attributes of the file that it replaces. Returns what it lacks.
    pub fn rename(&self) -> Result<Vec<String>> {
        self.check_name()?;
        let lost = self.file.resemble(&self.path)?;
        self.is_there()?;
        self.file.fs().rename(self.file.path(), &self.path)?;
        self.is_named.store(true, Ordering::Relaxed);
        Ok(lost)
    }

    /// Fails if the partial name belongs to another file: a lock may be lost on a file system that others serve, and then
    /// another process takes the name.
    fn is_there(&self) -> Result<()> {
        let there = self.file.location().stat()?;
        if there.is_same(&self.file.metadata()?) {
            return Ok(());
        }
        let why = std::io::Error::other("another process has replaced it");
        Err(Error::new(Action::Rename, self.file.path(), why))
    }

    /// Makes the name durable.
    pub fn sync_name(&self) -> Result<()> {
        self.file.fs().sync_directory(directory_of(&self.path)).map_err(|e| e.undoable(&self.path))
    }

    /// Whether it has its final name.
    pub fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Relaxed)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.keep.load(Ordering::Relaxed) && !self.is_named() {
            // If the name cannot be removed, the next run removes it.
            let _ = self.file.location().remove();
        }
    }
}

/// The length of the completely written prefix of a file that several lanes write, with completions in any order.
#[derive(Debug)]
pub struct Prefix {
    bytes: AtomicU64,
    /// The written stretches after the prefix: start and end.
    apart: Mutex<BTreeMap<u64, u64>>,
}

impl Prefix {
    /// For a file whose first `bytes` bytes exist already.
    pub fn of(bytes: u64) -> Prefix {
        Prefix { bytes: bytes.into(), apart: Mutex::default() }
    }

    /// The length of the prefix.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Records that `len` bytes at `at` are written.
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

/// One lane's writes to a file: each block at its own offset.
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

    /// Adds every block that is written to this prefix.
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
    /// Writes to a file that was opened with [`Access::WriteStream`].
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
        // The block in which it ended is written again, completely.
        prefix.add(8, 8);
        assert_eq!(prefix.bytes(), 32);
        prefix.add(32, 3);
        assert_eq!(prefix.bytes(), 35);
    }
}
