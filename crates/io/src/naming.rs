//! Gives a finished file its final name, exactly once, and replaces only the file that had that name before.
//!
//! Invariant: if another process gives the name to its own file in the meantime, that file keeps it. This needs a file
//! system that can exchange two names; NFS cannot. If several hosts name one file at the same time, it always has one
//! of its two names, because a host renames it only under its lock.
//! Non-goals: making the name durable; see [`crate::FileSystem::sync_directory`].

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::park_timeout;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, link, rename, renameat_with};
use rustix::io::Errno;
use thalweg_base::clock::Stopwatch;

use crate::{Action, Error, Result};

/// How long to wait for another host to name a file, and how often to check.
const OTHERS_SECONDS: f64 = 2.0;
const LOOK: Duration = Duration::from_millis(1);

/// The identity of a file and its contents. The inode's change time is not part of it, because a rename changes it.
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
    /// The identity of the file with this name; a link is not followed.
    pub fn of(path: &Path) -> Result<Option<Stamp>> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(Stamp::of_file(&found))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::new(Action::Stat, path, e)),
        }
    }

    fn of_file(found: &Metadata) -> Stamp {
        Stamp {
            inode: found.ino(),
            bytes: found.len(),
            modified_ns: found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec()),
        }
    }
}

/// Renames `hidden`, which is `file`, to `name`, if that still belongs to `before`; true also if this was done earlier.
/// False if another file has the name: then both are unchanged. Where names cannot be exchanged, a file that gets the
/// name between the last check and the rename is replaced if `before` is a file, or if there are no hard links.
pub fn give_name(hidden: &Path, name: &Path, file: Stamp, before: Option<Stamp>) -> Result<bool> {
    let _only = lock(hidden, name, file)?;
    let there = Stamp::of(name)?;
    if there == Some(file) {
        // Another host named it, and may have stopped before it removed the old file or the new file's second name.
        let rest = Stamp::of(hidden)?;
        if rest.is_some() && (rest == before || rest == there) {
            remove(hidden)?;
        }
        return Ok(true);
    }
    match Stamp::of(hidden)? {
        // The file got its name, and the user has since moved or removed it.
        None => return Ok(true),
        Some(found) if there == before && found == file => {}
        Some(_) => return Ok(false),
    }
    let flags = if before.is_none() { RenameFlags::NOREPLACE } else { RenameFlags::EXCHANGE };
    let swap = || renameat_with(CWD, hidden, CWD, name, flags);
    match swap() {
        Ok(()) if before.is_none() => Ok(true),
        // The file that had the name at that instant has the hidden name now.
        Ok(()) if Stamp::of(hidden)? == before => remove(hidden).map(|()| true),
        Ok(()) => swap().map(|()| false).map_err(|e| failed(name, e)),
        Err(Errno::EXIST | Errno::NOENT) => Ok(Stamp::of(hidden)?.is_none()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => plainly(hidden, name, file, before.is_some()),
        Err(e) => Err(failed(name, e)),
    }
}

/// Renames without an exchange. If no file is to be replaced, it first tries a hard link, which never replaces one.
fn plainly(hidden: &Path, name: &Path, file: Stamp, replaces: bool) -> Result<bool> {
    let linked = if replaces { Err(Errno::NOSYS) } else { link(hidden, name) };
    match linked {
        Ok(()) => return remove(hidden).map(|()| true),
        Err(Errno::EXIST | Errno::NOENT) if Stamp::of(name)? == Some(file) => {
            return remove(hidden).map(|()| true);
        }
        Err(Errno::EXIST) => return Ok(false),
        // There are no links either, or a file has to be replaced.
        Err(_) => {}
    }
    match rename(hidden, name) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(Stamp::of(hidden)?.is_none()),
        Err(e) => Err(failed(name, e)),
    }
}

/// Locks the file, if its file system has locks, so that hosts name it one after another, and what a host sees stays
/// true until it has acted. A lock ends with its process.
fn lock(hidden: &Path, name: &Path, file: Stamp) -> Result<Option<File>> {
    let begun = Stopwatch::start();
    // Another host may exchange the names in the meantime, but only once.
    for path in [hidden, name, hidden] {
        if Stamp::of(path)? != Some(file) {
            continue;
        }
        let options =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
        let Ok(opened) = options else { continue };
        if opened.metadata().ok().as_ref().map(Stamp::of_file) != Some(file) {
            continue;
        }
        loop {
            match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if begun.seconds() > OTHERS_SECONDS => {
                    let other = "another host gives it its name, and does not come to an end";
                    return Err(Error::new(Action::Rename, name, std::io::Error::other(other)));
                }
                Err(Errno::WOULDBLOCK) => park_timeout(LOOK),
                Ok(()) => return Ok(Some(opened)),
                Err(_) => return Ok(None),
            }
        }
    }
    Ok(None)
}

/// Removes a file. If it does not exist, another host has removed it.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::new(Action::Remove, path, e)),
        _ => Ok(()),
    }
}

fn failed(name: &Path, e: Errno) -> Error {
    Error::new(Action::Rename, name, e.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small;

    /// A directory with a hidden file.
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
        // The user has moved it away, and put another file there.
        std::fs::remove_file(&name).unwrap();
        std::fs::write(&name, "again").unwrap();
        assert!(give_name(&hidden, &name, file, Some(before)).unwrap(), "it had its name");
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "again");
        std::fs::remove_dir_all(&place).unwrap();
    }

    /// What went wrong: two hosts named one output at the same time. After one had checked, the other exchanged the
    /// files, the first exchanged them back, and the other removed the output, which it took for the old file.
    #[test]
    fn of_two_that_give_a_name_at_once_neither_removes_the_output() {
        let (place, hidden, name) = place("two");
        for round in 0..500 {
            std::fs::write(&hidden, "new").unwrap();
            std::fs::write(&name, "of before").unwrap();
            let (file, before) = (stamp(&hidden), stamp(&name));
            let start = std::sync::Barrier::new(2);
            let give = || {
                start.wait();
                give_name(&hidden, &name, file, Some(before)).unwrap()
            };
            let given = std::thread::scope(|scope| {
                let other = scope.spawn(give);
                (give(), other.join().unwrap())
            });
            assert_eq!((given, Stamp::of(&name).unwrap()), ((true, true), Some(file)), "round {round}");
            assert!(!hidden.exists(), "round {round}: the old file is gone");
        }
        std::fs::remove_dir_all(&place).unwrap();
    }

    /// What went wrong where names cannot be exchanged: a plain rename replaced a file that the user had put there
    /// after the last check.
    #[test]
    fn where_there_was_nothing_a_name_replaces_nothing_without_the_kernels_help_either() {
        let (place, hidden, name) = place("plainly");
        let file = stamp(&hidden);
        std::fs::write(&name, "of the user").unwrap();
        assert!(!plainly(&hidden, &name, file, false).unwrap());
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "of the user");
        std::fs::remove_file(&name).unwrap();
        // A host stopped before it removed the second name.
        link(&hidden, &name).unwrap();
        assert!(give_name(&hidden, &name, file, None).unwrap() && !hidden.exists());
        link(&name, &hidden).unwrap();
        std::fs::remove_file(&name).unwrap();
        assert!(plainly(&hidden, &name, file, false).unwrap() && !hidden.exists());
        assert!(plainly(&hidden, &name, file, false).unwrap(), "it was done before");
        assert!(plainly(&hidden, &name, file, true).unwrap(), "it was done before");
        assert_eq!(stamp(&name), file);
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn who_cannot_have_the_lock_leaves_all_as_it_is() {
        let (place, hidden, name) = place("locked");
        let file = stamp(&hidden);
        let held = lock(&hidden, &name, file).unwrap().expect("it has a lock");
        let told = give_name(&hidden, &name, file, None).unwrap_err().to_string();
        assert!(told.contains("another host gives it its name"), "{told}");
        assert!(hidden.exists() && !name.exists());
        drop(held);
        assert!(give_name(&hidden, &name, file, None).unwrap());
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
