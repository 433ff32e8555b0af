//! Gives a finished file its name, once, and only in place of what is known to bear it.
//!
//! Invariant: a file that somebody has put under the name meanwhile is still there, under that name, whatever happens.
//! Non-goal: making the name durable; see [`crate::Io::sync_directory`].

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::{Action, Error, Result};

/// What tells a file from another one, and from itself after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Its number on its file system.
    pub inode: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// When its contents last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl Stamp {
    /// Of whatever bears this name; a link is not followed.
    pub fn of(path: &Path) -> Result<Option<Stamp>> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(Stamp {
                inode: found.ino(),
                bytes: found.len(),
                modified_ns: found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec()),
            })),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::new(Action::Stat, path, e)),
        }
    }
}

/// Renames `hidden`, which is `file`, to `name`, if what bears that is still `before`. False if it is not: then both files
/// are as they were. True as well if it was done before.
pub fn give_name(hidden: &Path, name: &Path, file: Stamp, before: Option<Stamp>) -> Result<bool> {
    let there = Stamp::of(name)?;
    if there == Some(file) {
        // Somebody did it, and may have stopped before the old file was gone.
        if before.is_some() && Stamp::of(hidden)? == before {
            remove(hidden)?;
        }
        return Ok(true);
    }
    match Stamp::of(hidden)? {
        // It had its name, and the user has done something with it since.
        None => return Ok(true),
        Some(found) if there == before && found == file => {}
        Some(_) => return Ok(false),
    }
    let flags = if before.is_none() { RenameFlags::NOREPLACE } else { RenameFlags::EXCHANGE };
    let swap = || renameat_with(CWD, hidden, CWD, name, flags);
    match swap() {
        Ok(()) if before.is_none() => Ok(true),
        // What was under the name at that instant is under the hidden one now.
        Ok(()) if Stamp::of(hidden)? == before => remove(hidden).map(|()| true),
        Ok(()) => swap().map(|()| false).map_err(|e| failed(name, e)),
        Err(Errno::EXIST | Errno::NOENT) => Ok(Stamp::of(hidden)?.is_none()),
        // The file system has no such calls: there is a moment between the look and the rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::rename(hidden, name).map(|()| true).map_err(|e| failed(name, e))
        }
        Err(e) => Err(failed(name, e)),
    }
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|e| Error::new(Action::Remove, path, e))
}

fn failed(name: &Path, e: Errno) -> Error {
    Error::new(Action::Rename, name, e.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small;

    /// A directory of its own, with a hidden file.
    fn place(of: &str) -> (std::path::PathBuf, std::path::PathBuf, std::path::PathBuf) {
        let place = std::env::temp_dir().join(format!("thalweg-naming-{of}-{}", std::process::id()));
        small::make_directory(&place).unwrap();
        let (hidden, name) = (place.join(".hidden"), place.join("name"));
        std::fs::write(&hidden, "new").unwrap();
        (place, hidden, name)
    }

    fn stamp(path: &Path) -> Stamp {
        Stamp::of(path).unwrap().unwrap()
    }

    #[test]
    fn a_file_takes_the_place_of_what_was_there_and_of_nothing_else() {
        let (place, hidden, name) = place("once");
        let file = stamp(&hidden);
        std::fs::write(&name, "of the user").unwrap();
        assert!(!give_name(&hidden, &name, file, None).unwrap(), "there was nothing");
        let before = stamp(&name);
        let other = Stamp { inode: before.inode + 1, ..before };
        assert!(!give_name(&hidden, &name, file, Some(other)).unwrap(), "there was another file");
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "of the user");
        assert_eq!(std::fs::read_to_string(&hidden).unwrap(), "new");
        assert!(give_name(&hidden, &name, file, Some(before)).unwrap());
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "new");
        assert!(!hidden.exists(), "the old file is gone");
        assert!(give_name(&hidden, &name, file, Some(before)).unwrap(), "it was done before");
        // The user has taken it away, and put something else there.
        std::fs::remove_file(&name).unwrap();
        std::fs::write(&name, "again").unwrap();
        assert!(give_name(&hidden, &name, file, Some(before)).unwrap(), "it had its name");
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "again");
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn who_stopped_between_the_exchange_and_the_end_leaves_one_file() {
        let (place, hidden, name) = place("between");
        let file = stamp(&hidden);
        std::fs::write(&name, "old").unwrap();
        let before = stamp(&name);
        renameat_with(CWD, &hidden, CWD, &name, RenameFlags::EXCHANGE).unwrap();
        assert!(give_name(&hidden, &name, file, Some(before)).unwrap());
        assert!(!hidden.exists() && std::fs::read_to_string(&name).unwrap() == "new");
        std::fs::remove_dir_all(&place).unwrap();
    }
}
