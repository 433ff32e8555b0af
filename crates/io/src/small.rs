//! Small files that are read and written as a whole: configuration, keys and state, not records.
//!
//! Invariant: a file is replaced atomically, and only its owner can read it.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::{Action, Error, Result, directory_of, hidden};

/// The most bytes of a small file.
const BYTES_MAX: u64 = 16 << 20;
/// The name of a file until it is complete; see [`hidden::unique`].
const PARTIAL: &str = "partial";

/// The contents of a regular file. A pipe in its place is refused: nobody may ever write into it.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::new(Action::Open, path, e);
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("it is no regular file")));
    }
    contents(path, file)
}

/// The contents of what a user has named: a file, or a pipe from another program.
pub fn read_named(path: &Path) -> Result<Vec<u8>> {
    contents(path, open(path)?)
}

fn contents(path: &Path, file: fs::File) -> Result<Vec<u8>> {
    let failed = |e| Error::new(Action::Read, path, e);
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(failed(std::io::Error::other("it is larger than any such file is")));
    }
    Ok(bytes)
}

/// Opens a file of any size as another program's standard input.
pub fn open(path: &Path) -> Result<fs::File> {
    fs::File::open(path).map_err(|e| Error::new(Action::Open, path, e))
}

/// Creates or replaces a file that only its owner may read. Contents and name are durable.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes, |_| Ok(())).map(drop)
}

/// Like [`write`], and the file is locked before it has its name.
pub fn write_locked(path: &Path, bytes: &[u8]) -> Result<Locked> {
    Ok(Locked { _file: replace(path, bytes, fs::File::lock)? })
}

fn replace(path: &Path, bytes: &[u8], lock: fn(&fs::File) -> std::io::Result<()>) -> Result<fs::File> {
    let partial = directory_of(path).join(hidden::unique(PARTIAL));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
    let mut file = made.map_err(|e| Error::new(Action::Create, path, e))?;
    let written = lock(&file).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(&partial, path)).map_err(|e| {
        let _ = fs::remove_file(&partial);
        Error::new(Action::Write, path, e)
    })?;
    sync_directory(directory_of(path))?;
    Ok(file)
}

/// A lock on a file, held until it is dropped or the process ends.
pub struct Locked {
    _file: fs::File,
}

/// Waits for a lock on a file, which is created empty if necessary.
pub fn lock(path: &Path) -> Result<Locked> {
    wait_for_lock(path, fs::File::lock)
}

/// Waits for a shared lock on a file, which is created empty if necessary.
pub fn lock_shared(path: &Path) -> Result<Locked> {
    wait_for_lock(path, fs::File::lock_shared)
}

/// Locks a file; `None` if another process holds the lock.
pub fn try_lock(path: &Path) -> Result<Option<Locked>> {
    let file = lock_file(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Locked { _file: file })),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(e)) => Err(Error::new(Action::Open, path, e)),
    }
}

/// Whether a process holds an exclusive lock on a file, which need not exist.
pub fn is_locked(path: &Path) -> Result<bool> {
    let failed = |e| Error::new(Action::Open, path, e);
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        file => file.map_err(failed)?,
    };
    // A shared lock, so that of several processes that look at the same time none takes another for the holder.
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(fs::TryLockError::WouldBlock) => Ok(true),
        Err(fs::TryLockError::Error(e)) => Err(failed(e)),
    }
}

fn lock_file(path: &Path) -> Result<fs::File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(|e| Error::new(Action::Create, path, e))
}

fn wait_for_lock(path: &Path, lock: fn(&fs::File) -> std::io::Result<()>) -> Result<Locked> {
    let file = lock_file(path)?;
    loop {
        match lock(&file) {
            Ok(()) => return Ok(Locked { _file: file }),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::new(Action::Open, path, e)),
        }
    }
}

/// Makes the names in a directory durable.
pub fn sync_directory(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path);
    opened.and_then(|directory| directory.sync_all()).map_err(|e| Error::new(Action::Sync, path, e))
}

/// The files of a directory except hidden ones, which are incomplete.
pub fn list(path: &Path) -> Result<Vec<PathBuf>> {
    Ok(all(path)?.into_iter().filter(|path| !begins_with(path, ".")).collect())
}

/// Removes the remains of interrupted writes to a directory. No process may be writing there.
pub fn remove_unfinished(path: &Path) -> Result<()> {
    let beginning = format!(".thalweg-{PARTIAL}-");
    all(path)?.iter().filter(|path| begins_with(path, &beginning)).try_for_each(|path| remove(path))
}

fn all(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::new(Action::Read, path, e);
    let entries = fs::read_dir(path).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<std::io::Result<_>>().map_err(failed)
}

fn begins_with(path: &Path, beginning: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(beginning.as_bytes()))
}

/// When a file last changed, in nanoseconds since 1970.
pub fn modified(path: &Path) -> Option<i128> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path).ok()?;
    Some(i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()))
}

/// Removes a file.
pub fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|e| Error::new(Action::Remove, path, e))
}

/// Creates a directory that only its owner may enter, and its parents.
pub fn make_directory(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| Error::new(Action::Create, path, e))
}

/// Creates a directory that only its owner may enter, and makes its name durable.
pub fn make_durable_directory(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    make_directory(path)?;
    Ok(())
}

/// Creates a directory that only its owner may enter, under a unique name.
pub fn make_new_directory(path: &Path) -> Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(|e| Error::new(Action::Create, path, e))
}

/// An error unless this is a directory, not a link, that belongs to this user and is closed to all others.
pub fn check_own_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let failed = |e| Error::new(Action::Open, path, e);
    let there = fs::symlink_metadata(path).map_err(failed)?;
    let is_own = there.is_dir() && there.uid() == rustix::process::geteuid().as_raw();
    if is_own && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(failed(std::io::Error::other(
        "it is no directory that is this user's alone; if it is yours, chmod 700 it",
    )))
}

/// An error unless this is such a directory, and what is in it are directories and regular files of one name, all of
/// this user.
pub fn check_own_files(directory: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    check_own_directory(directory)?;
    for path in all(directory)? {
        let failed = |e| Error::new(Action::Open, &path, e);
        let there = match fs::symlink_metadata(&path) {
            // A file that was replaced since the directory was read.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            there => there.map_err(failed)?,
        };
        let is_one = there.is_dir() || (there.is_file() && there.nlink() == 1);
        if !is_one || there.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(std::io::Error::other("it is a link, or belongs to another user; remove it")));
        }
    }
    Ok(())
}

/// Removes a directory with all that is in it, if it is there. Links are not followed.
pub fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::new(Action::Remove, path, e)),
        _ => Ok(()),
    }
}

/// Removes an empty directory.
pub fn remove_directory(path: &Path) -> Result<()> {
    fs::remove_dir(path).map_err(|e| Error::new(Action::Remove, path, e))
}

/// Whether a file belongs to another user.
pub fn is_of_another(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).is_ok_and(|there| there.uid() != rustix::process::geteuid().as_raw())
}

/// Whether users other than the owner may read or write a file.
pub fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o077 != 0)
}

/// Whether others may write to a file, or in a directory.
pub fn is_writable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o022 != 0)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets};

    use super::*;

    #[test]
    fn a_small_file_is_replaced_whole_and_for_its_owner() {
        let place = std::env::temp_dir().join(format!("thalweg-small-{}", std::process::id()));
        make_directory(&place.join("a/b")).unwrap();
        assert!(!is_open_to_others(&place.join("a")));
        let path = place.join("a/b/key");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(read(&path).unwrap(), b"new");
        assert!(!is_open_to_others(&path));
        assert_eq!(fs::read_dir(place.join("a/b")).unwrap().count(), 1, "no partial file is left");
        // A pipe into which nobody writes.
        let pipe = place.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&pipe).unwrap_err().to_string().contains("it is no regular file"));
        fs::remove_dir_all(&place).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("cannot open"));
    }

    /// What went wrong: after a power loss a key, a certificate or a cluster file that had been written could be
    /// missing.
    #[test]
    fn the_name_of_a_small_file_is_made_durable() {
        let place = std::env::temp_dir().join(format!("thalweg-durable-{}", std::process::id()));
        make_directory(&place).unwrap();
        // This thread may create files in the directory, but not open it to make its names durable.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o333)).unwrap();
        let written = std::thread::spawn({
            let path = place.join("key");
            move || {
                let none = CapabilitySets {
                    effective: CapabilitySet::empty(),
                    ..rustix::thread::capabilities(None).unwrap()
                };
                rustix::thread::set_capabilities(None, none).unwrap();
                write(&path, b"key").map_err(|why| why.action)
            }
        });
        assert_eq!(written.join().unwrap(), Err(Action::Sync));
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(read(&place.join("key")).unwrap(), b"key");
        fs::remove_dir_all(&place).unwrap();
    }

    /// What went wrong: a kill between the write and the rename left a file without an extension, which was listed
    /// beside the complete ones.
    #[test]
    fn what_was_not_written_to_its_end_is_not_listed_and_goes() {
        let place = std::env::temp_dir().join(format!("thalweg-unfinished-{}", std::process::id()));
        make_directory(&place).unwrap();
        let (whole, other) = (place.join("whole"), place.join(".other"));
        write(&whole, b"whole").unwrap();
        for unfinished in [&place.join(hidden::unique(PARTIAL)), &other] {
            fs::write(unfinished, "half").unwrap();
        }
        assert_eq!(list(&place).unwrap(), std::slice::from_ref(&whole));
        remove_unfinished(&place).unwrap();
        let mut left = all(&place).unwrap();
        left.sort();
        assert_eq!(left, [other, whole]);
        fs::remove_dir_all(&place).unwrap();
    }
}
