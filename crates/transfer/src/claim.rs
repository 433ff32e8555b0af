//! Files that one process at a time may write: whoever has the mark on one has it for himself.
//!
//! Law: nothing of a file is touched before it is marked, and a file whose name has gone meanwhile is none of ours: it
//! was another's, and is whole.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use thalweg_io::tree::{Dir, Facts};
use thalweg_io::{File, Io, look_until};

use crate::{Error, Result};

/// How long a file is waited for that another process has.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file of that name with this process's mark on it, made with these permissions if there is none. What is in it
/// stays.
pub(crate) fn claim(io: &Arc<dyn Io>, dir: &Dir, name: &OsStr, mode: u32, direct: bool) -> Result<File> {
    let free = || -> Result<Option<File>> {
        let file = dir.keep_file(io, name, mode, direct)?;
        // Where there are no marks, nobody can be told from nobody.
        if !file.mark() && file.is_marked_by_another() {
            return Ok(None);
        }
        // Whoever had it may have given it another name meanwhile, or removed it.
        let now = dir.facts_if_any(name)?;
        Ok(now.is_some_and(|now| Facts::of(&file).is_ok_and(|f| f.inode == now.inode)).then_some(file))
    };
    look_until(PATIENCE, || free().transpose()).unwrap_or_else(|| Err(Error::Busy(dir.path().join(name))))
}

/// As [`claim`], and empties it.
pub(crate) fn claim_empty(
    io: &Arc<dyn Io>,
    dir: &Dir,
    name: &OsStr,
    mode: u32,
    direct: bool,
) -> Result<File> {
    let file = claim(io, dir, name, mode, direct)?;
    file.set_len(0)?;
    Ok(file)
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

/// Marks an open directory; an error if another process has it.
pub(crate) fn claim_directory(dir: &Dir) -> Result<()> {
    look_until(PATIENCE, || dir.mark().then_some(())).ok_or_else(|| Error::Busy(dir.path().to_path_buf()))
}
