//! Hidden files and directories that one process at a time may write. A process owns one while it holds its lock.
//!
//! ```text
//! create new, 0600 -- exists --> reopen own -- locked, still has the name --> remove it, or resume from it
//!        |                            | a link, several names, another user's: an error, nothing is touched
//!   lock, still has the name          | another process holds the lock: try again for [`PATIENCE`]
//! ```
//!
//! Invariant: this process writes only to files and directories that it created here, or that an earlier process of
//! this user left, so no other user reads or writes their contents. An open file stays in use: its name is not looked
//! up again. Nothing is touched before it is locked. A file that has lost its name belonged to another process, and is
//! complete.
//! Invariant: a directory is used or cleared only if a journal lists it: another user with write access to its parent
//! may have renamed any directory to the name, even one that this other user could not clear. An empty directory is
//! removed, because its creator may have been killed before listing it.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use thalweg_io::tree::{self, Attributes, Dir, EntryKind, Tree};
use thalweg_io::{File, look_until};

use crate::journal::{Journal, MadeTree};
use crate::refused::Refused;
use crate::{Error, Result};

/// How long to wait for a file that another process has locked.
const PATIENCE: Duration = Duration::from_secs(2);

/// Creates and locks a file of that name, for its owner alone. Removes a file that an earlier run left, which may
/// already belong to `heir`, the future owner.
pub(crate) fn claim_new(
    tree: &dyn Tree,
    dir: &dyn Dir,
    name: &OsStr,
    direct: bool,
    heir: Option<u32>,
) -> Result<File> {
    wait(dir, name, || match dir.create_file(name, 0o600, direct) {
        Err(e) if e.source.kind() == ErrorKind::AlreadyExists => {
            clear_now(tree, dir, name, &[], heir)?;
            Ok(None)
        }
        made => {
            let file = made?;
            Ok(is_ours(tree, dir, name, &file)?.then_some(file))
        }
    })
}

/// Locks the file that an earlier run left under that name, if there is one, and keeps its contents.
pub(crate) fn claim_left(tree: &dyn Tree, dir: &dyn Dir, name: &OsStr, direct: bool) -> Result<Option<File>> {
    wait(dir, name, || match dir.reopen_file(name, direct, None) {
        Err(e) if e.source.kind() == ErrorKind::NotFound => Ok(Some(None)),
        left => {
            let file = left?;
            Ok(is_ours(tree, dir, name, &file)?.then_some(Some(file)))
        }
    })
}

/// Creates and locks the directory of that name, for its owner alone, and lists it in the journal; or reuses one that
/// the journal lists.
pub(crate) fn claim_directory(dir: &dyn Dir, name: &OsStr, journal: &Journal) -> Result<Arc<dyn Dir>> {
    wait(dir, name, || {
        let is_new = dir.make_dir(name)?;
        let there = dir.reopen_dir(name)?;
        if !is_our_directory(dir, name, &*there)? {
            return Ok(None);
        }
        let tree = MadeTree::of(name, &*there)?;
        if tree.is_in(&journal.trees()) {
            return Ok(Some(there));
        }
        if !there.is_empty()? {
            return Err(Refused::NotListed(dir.path().join(name)).into());
        }
        if is_new {
            journal.list_tree(tree)?;
            return Ok(Some(there));
        }
        dir.remove_dir(name)?;
        Ok(None)
    })
}

/// Removes the file that an earlier run left under that name, or the directory if it is one of `trees`.
pub(crate) fn clear(tree: &dyn Tree, dir: &dyn Dir, name: &OsStr, trees: &[MadeTree]) -> Result<()> {
    wait(dir, name, || Ok(clear_now(tree, dir, name, trees, None)?.then_some(())))
}

/// Gives a complete tree, which is open here, its final name. An error if another directory has its hidden name, which
/// any user with write access to the parent could arrange.
pub(crate) fn give_tree_name(dir: &dyn Dir, tree: &dyn Dir, partial: &OsStr, name: &OsStr) -> Result<()> {
    let facts = tree.attributes()?;
    let check = |now: &OsStr| match bears(dir, now, &facts)? {
        true => Ok(()),
        false => Err(Refused::Replaced(dir.path().join(now)).into()),
    };
    check(partial)?;
    dir.rename(partial, name).map_err(|why| match why.source.kind() {
        // Somebody made it meanwhile, which only another transfer does at such a moment.
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            Error::Busy(dir.path().join(name))
        }
        _ => why.into(),
    })?;
    check(name)
}

/// Renames a complete file or tree to its final name. If a directory has that name, the file is removed.
pub(crate) fn give_name(dir: &dyn Dir, partial: &OsStr, name: &OsStr) -> Result<()> {
    dir.rename(partial, name).map_err(|why| match why.source.kind() {
        ErrorKind::IsADirectory => {
            let _ = dir.remove(partial);
            Refused::DirectoryThere(dir.path().join(name)).into()
        }
        _ => why.into(),
    })
}

fn wait<T>(dir: &dyn Dir, name: &OsStr, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    look_until(PATIENCE, || look().transpose()).unwrap_or_else(|| Err(Error::Busy(dir.path().join(name))))
}

/// Removes what [`clear`] removes, without waiting; false if another process has it.
fn clear_now(
    tree: &dyn Tree,
    dir: &dyn Dir,
    name: &OsStr,
    trees: &[MadeTree],
    heir: Option<u32>,
) -> Result<bool> {
    let Some(there) = dir.find(name)? else { return Ok(true) };
    if there.kind == EntryKind::Directory {
        let left = dir.reopen_dir(name)?;
        if !is_our_directory(dir, name, &*left)? {
            return Ok(false);
        }
        if MadeTree::of(name, &*left)?.is_in(trees) {
            tree::clear(&*left)?;
        } else if !left.is_empty()? {
            return Err(Refused::NotListed(dir.path().join(name)).into());
        }
        dir.remove_dir(name)?;
        return Ok(true);
    }
    let left = dir.reopen_file(name, false, heir)?;
    let ours = is_ours(tree, dir, name, &left)?;
    if ours {
        dir.remove(name)?;
    }
    Ok(ours)
}

/// Locks a file that has this name; false if another process has it, or it no longer has the name.
fn is_ours(tree: &dyn Tree, dir: &dyn Dir, name: &OsStr, file: &File) -> Result<bool> {
    // A file system without locks cannot tell processes apart.
    Ok((file.mark() || !file.is_marked_by_another()) && bears(dir, name, &tree.attributes(file)?)?)
}

fn is_our_directory(dir: &dyn Dir, name: &OsStr, there: &dyn Dir) -> Result<bool> {
    Ok(there.try_lock() && bears(dir, name, &there.attributes()?)?)
}

/// Whether the file still has this name. Its former owner may have renamed or removed it.
fn bears(dir: &dyn Dir, name: &OsStr, facts: &Attributes) -> Result<bool> {
    let now = dir.find(name)?;
    Ok(now.is_some_and(|now| (now.device, now.inode) == (facts.device, facts.inode)))
}
