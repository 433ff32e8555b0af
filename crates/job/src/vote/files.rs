//! The outputs of a job that wait for their names: made ready, named durably, or removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use thalweg_api::{FileStamp, ReadyFile};
use thalweg_engine::{JobFault, Result};
use thalweg_io::{Stamp, directory_of, give_name, small};

use crate::job_options::{path_of, word_of};

/// An output at `hidden` that is to be renamed to `name`.
pub(crate) fn ready_file(hidden: &Path, name: &Path) -> Result<ReadyFile> {
    let file = Stamp::of(hidden)?.ok_or_else(|| JobFault::OutputGone(hidden.to_path_buf()))?;
    let before = Stamp::of(name)?;
    Ok(ReadyFile { hidden: word_of(hidden), name: word_of(name), file: told(file), before: before.map(told) })
}

/// Gives outputs their names, durably. Returns a line for each that kept its temporary name, with its path.
pub(crate) fn name(files: &[ReadyFile]) -> Vec<String> {
    let mut directories = BTreeSet::new();
    let mut kept = Vec::new();
    for file in files {
        match name_one(file) {
            Ok(directory) => drop(directories.insert(directory)),
            Err(why) => kept.push(why.to_string()),
        }
    }
    let synced = directories.iter().map(|directory| small::sync_directory(directory));
    kept.extend(
        synced.filter_map(|synced| synced.err()).map(|why| format!("outputs have their names, but {why}")),
    );
    kept
}

/// Makes the temporary names of these outputs durable.
pub(crate) fn sync(files: &[ReadyFile]) -> thalweg_io::Result<()> {
    let paths = files.iter().filter_map(|file| path_of(&file.hidden).ok());
    let directories: BTreeSet<PathBuf> = paths.map(|path| directory_of(&path).to_path_buf()).collect();
    directories.iter().try_for_each(|directory| small::sync_directory(directory))
}

/// Returns the directory whose names have changed.
fn name_one(file: &ReadyFile) -> Result<PathBuf> {
    let (hidden, name) = (path_of(&file.hidden)?, path_of(&file.name)?);
    let why = match give_name(&hidden, &name, stamp(file.file), file.before.map(stamp)) {
        Ok(true) => return Ok(directory_of(&name).to_path_buf()),
        Ok(false) => None,
        Err(why) => Some(why),
    };
    Err(JobFault::NotNamed { name, hidden, why }.into())
}

/// Removes an output that gets no final name.
pub(crate) fn clear(file: &ReadyFile) {
    let Ok(hidden) = path_of(&file.hidden) else { return };
    // The file there may be another one by now.
    if Stamp::of(&hidden).ok().flatten() == Some(stamp(file.file)) {
        let _ = small::remove(&hidden);
    }
}

fn told(Stamp { inode, bytes, modified_ns }: Stamp) -> FileStamp {
    FileStamp { inode, bytes, modified_ns }
}

fn stamp(FileStamp { inode, bytes, modified_ns }: FileStamp) -> Stamp {
    Stamp { inode, bytes, modified_ns }
}
