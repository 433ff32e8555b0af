//! Hidden files and directories that one process at a time may write: whoever has the mark on one has it for himself.
//!
//! ```text
//! create new, 0600 -- there is one --> reopen own -- marked, still of that name --> remove it, or go on from it
//!        |                                 | a link, several names, another user's: an error, nothing touched
//!   mark, still of that name               | another process has the mark: looked at again for [`PATIENCE`]
//! ```
//!
//! Invariant: nothing is written to a file or a directory that was not made new here or left by this user's earlier process, so
//! nobody else reads or writes what comes into it. What is open stays in use: its name is not looked up again. Nothing is
//! touched before it is marked, and a file whose name has gone meanwhile is none of ours: it was another's, and is whole.
//! Of directories only those are used or cleared that a journal lists: whoever may write to the directory may have given
//! the name to another one, which he could not clear himself. An empty one goes; who made it may have been killed then.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use thalweg_io::tree::{Dir, Facts, What};
use thalweg_io::{File, FileSystem, look_until};

use crate::journal::{Journal, Tree};
use crate::{Error, Result};

/// How long a file is waited for that another process has.
const PATIENCE: Duration = Duration::from_secs(2);

/// A new file of that name, for its owner alone, with this process's mark on it. What an earlier run left there goes;
/// that may be the user's already to whom the file is to be given, the `heir`.
pub(crate) fn claim_new(
    io: &Arc<dyn FileSystem>,
    dir: &Dir,
    name: &OsStr,
    direct: bool,
    heir: Option<u32>,
) -> Result<File> {
    wait(dir, name, || match dir.create_file(io, name, 0o600, direct) {
        Err(e) if e.source.kind() == ErrorKind::AlreadyExists => {
            clear_now(io, dir, name, &[], heir)?;
            Ok(None)
        }
        made => {
            let file = made?;
            Ok(is_ours(dir, name, &file)?.then_some(file))
        }
    })
}

/// The file that an earlier run left under that name, with this process's mark on it and as it is, if there is one.
pub(crate) fn claim_left(
    io: &Arc<dyn FileSystem>,
    dir: &Dir,
    name: &OsStr,
    direct: bool,
) -> Result<Option<File>> {
    wait(dir, name, || match dir.reopen_file(io, name, direct, None) {
        Err(e) if e.source.kind() == ErrorKind::NotFound => Ok(Some(None)),
        left => {
            let file = left?;
            Ok(is_ours(dir, name, &file)?.then_some(Some(file)))
        }
    })
}

/// The directory of that name, for its owner alone, with this process's mark on it: a new one, which the journal lists from
/// now on, or one that it lists.
pub(crate) fn claim_directory(dir: &Dir, name: &OsStr, journal: &Journal) -> Result<Dir> {
    wait(dir, name, || {
        let is_new = dir.make_dir(name)?;
        let there = dir.reopen_dir(name)?;
        if !is_our_directory(dir, name, &there)? {
            return Ok(None);
        }
        let tree = Tree::of(name, &there)?;
        if tree.is_in(&journal.trees()) {
            return Ok(Some(there));
        }
        if !there.is_empty()? {
            return Err(Error::not_listed(&dir.path().join(name)));
        }
        if is_new {
            journal.list_tree(tree)?;
            return Ok(Some(there));
        }
        dir.remove_dir(name)?;
        Ok(None)
    })
}

/// Removes the file that an earlier run left under that name, or the directory if it is one of these, if there is one.
pub(crate) fn clear(io: &Arc<dyn FileSystem>, dir: &Dir, name: &OsStr, trees: &[Tree]) -> Result<()> {
    wait(dir, name, || Ok(clear_now(io, dir, name, trees, None)?.then_some(())))
}

/// Gives a tree that is whole, and is open here, its name. An error if something else bears its hidden name: whoever may
/// write to the directory may have put it there.
pub(crate) fn give_tree_name(dir: &Dir, tree: &Dir, partial: &OsStr, name: &OsStr) -> Result<()> {
    let facts = tree.own_facts()?;
    let check = |now: &OsStr| match bears(dir, now, &facts)? {
        true => Ok(()),
        false => Err(Error::replaced(&dir.path().join(now))),
    };
    check(partial)?;
    dir.rename(partial, name)?;
    check(name)
}

/// Gives what is whole its name. Where a directory has that, nothing is left of the other.
pub(crate) fn give_name(dir: &Dir, partial: &OsStr, name: &OsStr) -> Result<()> {
    dir.rename(partial, name).map_err(|why| match why.source.kind() {
        ErrorKind::IsADirectory => {
            let _ = dir.remove(partial);
            Error::directory_there(&dir.path().join(name))
        }
        _ => why.into(),
    })
}

fn wait<T>(dir: &Dir, name: &OsStr, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    look_until(PATIENCE, || look().transpose()).unwrap_or_else(|| Err(Error::Busy(dir.path().join(name))))
}

/// False if another process has it.
fn clear_now(
    io: &Arc<dyn FileSystem>,
    dir: &Dir,
    name: &OsStr,
    trees: &[Tree],
    heir: Option<u32>,
) -> Result<bool> {
    let Some(there) = dir.facts_if_any(name)? else { return Ok(true) };
    if there.what == What::Directory {
        let left = dir.reopen_dir(name)?;
        if !is_our_directory(dir, name, &left)? {
            return Ok(false);
        }
        if Tree::of(name, &left)?.is_in(trees) {
            left.clear()?;
        } else if !left.is_empty()? {
            return Err(Error::not_listed(&dir.path().join(name)));
        }
        dir.remove_dir(name)?;
        return Ok(true);
    }
    let left = dir.reopen_file(io, name, false, heir)?;
    let ours = is_ours(dir, name, &left)?;
    if ours {
        dir.remove(name)?;
    }
    Ok(ours)
}

/// Marks a file that bears this name; false if another process has it, or it bears the name no longer.
fn is_ours(dir: &Dir, name: &OsStr, file: &File) -> Result<bool> {
    // Where there are no marks, nobody can be told from nobody.
    Ok((file.mark() || !file.is_marked_by_another()) && bears(dir, name, &Facts::of(file)?)?)
}

fn is_our_directory(dir: &Dir, name: &OsStr, there: &Dir) -> Result<bool> {
    Ok(there.mark() && bears(dir, name, &there.own_facts()?)?)
}

/// Whether this bears the name still. Whoever had it may have given it another one meanwhile, or removed it.
fn bears(dir: &Dir, name: &OsStr, facts: &Facts) -> Result<bool> {
    let now = dir.facts_if_any(name)?;
    Ok(now.is_some_and(|now| (now.device, now.inode) == (facts.device, facts.inode)))
}
