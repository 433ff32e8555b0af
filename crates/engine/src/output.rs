//! Where a verb's bytes go: a file that gets its name when it is whole, or a stream.
//!
//! Invariant: after any failure no new file has a name, and an older file is unchanged. A file that replaces another
//! has its permission bits, access list, extended attributes and owner, or the receipt says what could not be kept; a
//! symbolic link stays, and its target is made or replaced.
//! Non-goals: keeping an older file's other names, which the receipt counts.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_io::{
    Access, Error as IoError, File, FileSystem, Location, directory_of, hidden, real_name, unplanted,
};
use thalweg_pump::Output;

use crate::{BadPath, Endpoint, Error, Progress, Result, temporary};

/// How long to wait for a stream's reader before checking whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// The kind of place that an output goes to.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A regular file, or a name that is free for one.
    File(Location),
    /// Something that is written in order and has no length: a pipe, a terminal, a device.
    Stream(Location),
}

impl Target {
    /// Looks at what is there. Touches nothing.
    pub(crate) fn of(io: &Arc<dyn FileSystem>, endpoint: &Endpoint) -> Result<Target> {
        let standard = endpoint.here("/dev/stdout")?;
        let Some(path) = endpoint.file() else {
            io.stat(standard)?;
            return Ok(Target::Stream(Location::new(io, standard)));
        };
        let led_to = unplanted(path)?;
        match io.stat(if ends_in_slash(path) { path } else { &led_to }) {
            Ok(there) if there.is_directory => Err(BadPath::OutputDirectory(path.to_path_buf()).into()),
            Ok(there) if !there.is_regular => Ok(Target::Stream(Location::new(io, led_to))),
            Ok(there) if there.mode & 0o222 == 0 => Err(BadPath::ReadOnly(path.to_path_buf()).into()),
            Ok(_) => {
                let path = real_name(&led_to);
                io.check_replace(&path)?;
                Ok(Target::File(Location::new(io, path)))
            }
            Err(e) if matches!(e.source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                fresh(io, path, led_to)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Writes `bytes` there, all or nothing.
    pub(crate) fn write_whole(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Target::Stream(stream) => Ok(stream.open(Access::WriteStream)?.write_at(0, bytes)?),
            Target::File(name) => {
                let output = create(name, bytes.len() as u64)?;
                output.file().write_at(0, bytes)?;
                publish(output, &name.path, bytes.len() as u64).map(drop)
            }
        }
    }
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// A name that no file has yet, and to which this path leads.
fn fresh(io: &Arc<dyn FileSystem>, typed: &Path, path: PathBuf) -> Result<Target> {
    if path.file_name().is_none() || ends_in_slash(typed) {
        return Err(BadPath::NoFileName(typed.to_path_buf()).into());
    }
    let directory = directory_of(&path);
    match io.stat(directory) {
        Ok(there) if there.is_directory => Ok(Target::File(Location::new(io, path))),
        Ok(_) => {
            Err(BadPath::NotInDirectory { output: path.to_path_buf(), directory: directory.to_path_buf() }
                .into())
        }
        Err(e) if e.source.kind() == ErrorKind::NotFound => {
            Err(BadPath::NoDirectory { output: path.to_path_buf(), directory: directory.to_path_buf() }
                .into())
        }
        Err(e) => Err(e.into()),
    }
}

/// Starts a file of `bytes` bytes beside an output and reserves its room.
pub(crate) fn create(output: &Location, bytes: u64) -> Result<Output> {
    Ok(create_all(std::slice::from_ref(output), None, bytes)?.remove(0))
}

/// The same for each of several outputs; with a number that no other process uses, if their directories are ones that
/// several hosts see. Reads each directory once.
pub(crate) fn create_all(outputs: &[Location], number: Option<u64>, bytes: u64) -> Result<Vec<Output>> {
    let mut directories = HashMap::new();
    for output in outputs {
        let names = directories.entry(directory_of(&output.path)).or_insert_with(|| hidden_beside(output));
        if names.iter().any(|name| hidden::may_be_of(name, &output.path)) {
            temporary::clear(output);
            thalweg_sort::clear_killed(output);
        }
    }
    let name = |path| number.map_or_else(|| temporary::name(path), |number| temporary::name_as(path, number));
    outputs.iter().map(|output| create_named(output, &name(&output.path), bytes)).collect()
}

/// The hidden names in the directory of an output.
fn hidden_beside(output: &Location) -> Vec<OsString> {
    let all = output.fs.list(directory_of(&output.path)).unwrap_or_default();
    let names = all.iter().filter_map(|path| path.file_name());
    names.filter(|name| hidden::is_hidden(name.as_bytes())).map(OsStr::to_os_string).collect()
}

fn create_named(output: &Location, name: &OsStr, bytes: u64) -> Result<Output> {
    let (path, directory) = (&output.path, directory_of(&output.path));
    let output = Output::create(output, &directory.join(name), bytes).map_err(|e| {
        if !e.is_full() {
            return named(e, path);
        }
        let room = || output.directory().space().map_or(0, |space| space.available);
        let is_one_file = e.source.kind() == ErrorKind::FileTooLarge;
        let available = (!is_one_file).then(room);
        Error::OutputFull {
            path: path.to_path_buf(),
            needed: bytes,
            directory: directory.to_path_buf(),
            available,
        }
    })?;
    // Where marks are not supported, the process id in the name has to tell whether the process is alive.
    output.file().mark();
    Ok(output)
}

/// Opens a stream for writing. A wait for its reader can be cancelled.
pub(crate) fn open_stream(stream: &Location, progress: &Progress) -> Result<File> {
    loop {
        if let Some(signal) = progress.cancelled() {
            return Err(Error::Interrupted(signal));
        }
        if let Some(stream) = File::open_some(&stream.fs, &stream.path, Access::WriteStream, PATIENCE)? {
            return Ok(stream);
        }
    }
}

/// Makes the file durable under a temporary name, which it returns.
pub(crate) fn ready(output: Output, path: &Path, bytes: u64) -> Result<PathBuf> {
    output.ready(bytes).map_err(|e| named(e, path))
}

/// Makes the file durable and gives it its name. Returns what it lacks of the file that it replaces.
pub(crate) fn publish(output: Output, path: &Path, bytes: u64) -> Result<Vec<String>> {
    output.publish(bytes).map_err(|e| named(e, path))
}

/// Puts the name that the user gave into the error, not the temporary one, unless that is in the way. An error about
/// the directory keeps the directory's name.
pub(crate) fn named(e: IoError, path: &Path) -> Error {
    match e.source.kind() {
        ErrorKind::AlreadyExists => e.into(),
        _ if e.path == directory_of(path) => e.into(),
        _ => Error::of_output(IoError { path: path.to_path_buf(), ..e }, path),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // Another user has other means than ours.
mod tests {
    use std::fs::{Permissions, rename};
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use thalweg_io::{process, threads::Threads};

    use super::*;

    /// Another user made a symbolic link between the check of the name and its use. It was followed, and its target was
    /// replaced.
    #[test]
    fn another_users_link_that_comes_and_goes_is_never_followed() {
        if !process::is_root() {
            return;
        }
        let place = std::fs::canonicalize(std::env::temp_dir()).unwrap();
        let place = place.join(format!("thalweg-target-{}", std::process::id()));
        let (shared, victim) = (place.join("shared"), place.join("victim"));
        std::fs::create_dir_all(&shared).unwrap();
        std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        std::fs::write(&victim, "dear").unwrap();
        let (link, output) = (shared.join("link"), shared.join("output"));
        symlink(&victim, &link).unwrap();
        lchown(&link, Some(1234), None).unwrap();
        let io: Arc<dyn FileSystem> = Arc::new(Threads::new(1));
        let looked = AtomicBool::new(false);
        let (mut found, endpoint) = (Vec::new(), Endpoint::Path(output.clone()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !looked.load(Ordering::Relaxed) {
                    rename(&link, &output).and_then(|()| rename(&output, &link)).unwrap();
                }
            });
            found.extend((0..5000).filter_map(|_| Target::of(&io, &endpoint).ok()));
            looked.store(true, Ordering::Relaxed);
        });
        std::fs::remove_dir_all(&place).unwrap();
        assert!(!found.is_empty(), "now and again there is nothing");
        let other = found.iter().find(|target| !matches!(target, Target::File(file) if file.path == output));
        assert!(other.is_none(), "{other:?}");
    }
}
