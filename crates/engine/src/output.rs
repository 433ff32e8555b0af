//! Where a verb's bytes go: a file that gets its name when it is whole, or a stream.
//!
//! Invariant: whatever fails, nothing new bears a name afterwards, and an older file is as it was. What replaces a file has
//! its permission bits, and its owner where this process may; a link stays, and what it leads to is made or replaced.
//! Non-goals: keeping an older file's access lists, extended attributes and other names.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_base::units::Bytes;
use thalweg_io::{Access, Error as IoError, File, FileSystem, check_planted, directory_of};
use thalweg_pump::Output;

use crate::{Endpoint, Error, Progress, Result, temporary};

/// How long to wait for whoever reads a stream before looking whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where bytes go, once looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A regular file, or a name that is free for one.
    File(PathBuf),
    /// Something that is written in order and has no length: a pipe, a terminal, a device.
    Stream(PathBuf),
}

impl Target {
    /// Looks at what is there. Touches nothing.
    pub(crate) fn of(io: &Arc<dyn FileSystem>, endpoint: &Endpoint) -> Result<Target> {
        let Some(path) = endpoint.file() else {
            let standard = endpoint.here("/dev/stdout")?;
            io.stat(standard)?;
            return Ok(Target::Stream(standard.into()));
        };
        check_planted(path)?;
        let name = path.display();
        match io.stat(path) {
            Ok(there) if there.is_directory => {
                Err(Error::CouldNot(format!("{name} is a directory; name a file in it")))
            }
            Ok(there) if !there.is_regular => Ok(Target::Stream(path.to_path_buf())),
            Ok(there) if there.mode & 0o222 == 0 => Err(Error::CouldNot(format!(
                "{name} is read-only; remove it, or allow writing with chmod u+w"
            ))),
            Ok(_) => {
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
                io.check_replace(&path)?;
                Ok(Target::File(path))
            }
            Err(e) if matches!(e.source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                fresh(io, &led_to(path))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Writes `bytes` there, all or nothing.
    pub(crate) fn write_whole(&self, io: &Arc<dyn FileSystem>, bytes: &[u8]) -> Result<()> {
        match self {
            Target::Stream(path) => Ok(File::open(io, path, Access::WriteStream)?.write_at(0, bytes)?),
            Target::File(path) => {
                let output = create(io, path, bytes.len() as u64)?;
                output.file().write_at(0, bytes)?;
                publish(output, path, bytes.len() as u64)
            }
        }
    }
}

/// The name that links lead to from this one, if nothing is there yet.
fn led_to(path: &Path) -> PathBuf {
    /// As many as the system follows.
    const LINKS_MAX: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(next) = std::fs::read_link(&path) else { break };
        path = directory_of(&path).join(next);
    }
    path
}

/// A name that nothing has yet.
fn fresh(io: &Arc<dyn FileSystem>, path: &Path) -> Result<Target> {
    let name = path.display();
    if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(Error::CouldNot(format!("'{name}' is no name for a file")));
    }
    let directory = directory_of(path);
    match io.stat(directory) {
        Ok(there) if there.is_directory => Ok(Target::File(path.to_path_buf())),
        Ok(_) => {
            Err(Error::CouldNot(format!("cannot create {name}: {} is not a directory", directory.display())))
        }
        Err(e) if e.source.kind() == ErrorKind::NotFound => Err(Error::CouldNot(format!(
            "cannot create {name}: there is no directory {}; make it first",
            directory.display()
        ))),
        Err(e) => Err(e.into()),
    }
}

/// Starts a file of `bytes` bytes beside `path` and reserves its room.
pub(crate) fn create(io: &Arc<dyn FileSystem>, path: &Path, bytes: u64) -> Result<Output> {
    create_named(io, path, &temporary::name(path), bytes)
}

/// The same under a number that nobody else takes, for a file in a directory that several hosts see.
pub(crate) fn create_as(io: &Arc<dyn FileSystem>, path: &Path, number: u64, bytes: u64) -> Result<Output> {
    create_named(io, path, &temporary::name_as(path, number), bytes)
}

fn create_named(io: &Arc<dyn FileSystem>, path: &Path, name: &OsStr, bytes: u64) -> Result<Output> {
    let directory = directory_of(path);
    temporary::clear(io, path);
    thalweg_sort::clear_killed(io, path);
    let output = Output::create(io, path, &directory.join(name), bytes).map_err(|e| {
        if !e.is_full() {
            return named(e, path);
        }
        let room = io.space(directory).map_or(0, |space| space.available);
        let (name, needed, room) = (path.display(), Bytes(bytes), Bytes(room));
        let place = directory.display();
        Error::Full(match e.source.kind() {
            ErrorKind::FileTooLarge => format!(
                "cannot create {name}: {needed} is more than one file may have in {place}; see ulimit -f, or choose another place"
            ),
            _ => format!(
                "cannot create {name}: it takes {needed} and {place} has {room} left; free some, or choose another place"
            ),
        })
    })?;
    // Where there are no marks, the number of the process has to tell whether it is alive.
    output.file().mark();
    Ok(output)
}

/// Opens a stream to be written. Who waits for its reader still hears that it should stop.
pub(crate) fn open_stream(io: &Arc<dyn FileSystem>, path: &Path, progress: &Progress) -> Result<File> {
    loop {
        if let Some(signal) = progress.cancelled() {
            return Err(Error::Interrupted(signal));
        }
        if let Some(stream) = File::open_some(io, path, Access::WriteStream, PATIENCE)? {
            return Ok(stream);
        }
    }
}

/// Makes the file durable under a temporary name, which it returns.
pub(crate) fn ready(output: Output, path: &Path, bytes: u64) -> Result<PathBuf> {
    output.ready(bytes).map_err(|e| named(e, path))
}

/// Makes the file durable and gives it its name.
pub(crate) fn publish(output: Output, path: &Path, bytes: u64) -> Result<()> {
    output.publish(bytes).map_err(|e| named(e, path))
}

/// The error under the name that the user gave, not the temporary one, unless that is in the way. What is wrong with the
/// directory stays the directory's.
pub(crate) fn named(e: IoError, path: &Path) -> Error {
    match e.source.kind() {
        ErrorKind::AlreadyExists => e.into(),
        _ if e.path == directory_of(path) => e.into(),
        _ => IoError { path: path.to_path_buf(), ..e }.into(),
    }
}
