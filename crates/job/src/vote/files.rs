//! The outputs of a job that wait for their names: made ready, named durably, or removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use thalweg_api::{FileStamp, ReadyFile};
use thalweg_io::{Stamp, directory_of, give_name, small};

use crate::ask::{path_of, word_of};

/// An output that lies at `hidden` and is to be called `name`.
pub(crate) fn ready_file(hidden: &Path, name: &Path) -> Result<ReadyFile, String> {
    let file = Stamp::of(hidden).map_err(|why| why.to_string())?;
    let file = file.ok_or_else(|| format!("{} is gone", hidden.display()))?;
    let before = Stamp::of(name).map_err(|why| why.to_string())?;
    Ok(ReadyFile { hidden: word_of(hidden), name: word_of(name), file: told(file), before: before.map(told) })
}

/// Gives outputs their names, durably. Returns a line for each that kept its temporary name, with where it lies.
pub(crate) fn name(files: &[ReadyFile]) -> Vec<String> {
    let mut directories = BTreeSet::new();
    let mut kept = Vec::new();
    for file in files {
        match name_one(file) {
            Ok(directory) => drop(directories.insert(directory)),
            Err(why) => kept.push(why),
        }
    }
    let synced = directories.iter().map(|directory| small::sync_directory(directory));
    kept.extend(
        synced.filter_map(|synced| synced.err()).map(|why| format!("outputs have their names, but {why}")),
    );
    kept
}

/// Makes the temporary names of these outputs durable.
pub(crate) fn sync(files: &[ReadyFile]) -> Result<(), String> {
    let paths = files.iter().filter_map(|file| path_of(&file.hidden).ok());
    let directories: BTreeSet<PathBuf> = paths.map(|path| directory_of(&path).to_path_buf()).collect();
    directories
        .iter()
        .try_for_each(|directory| small::sync_directory(directory))
        .map_err(|why| why.to_string())
}

/// Returns the directory whose names have changed.
fn name_one(file: &ReadyFile) -> Result<PathBuf, String> {
    let path = |word: &str| path_of(word).map_err(|why| why.to_string());
    let (hidden, name) = (path(&file.hidden)?, path(&file.name)?);
    let lies = |why: String| format!("{why}; the output is whole, at {}", hidden.display());
    match give_name(&hidden, &name, stamp(file.file), file.before.map(stamp)) {
        Ok(true) => Ok(directory_of(&name).to_path_buf()),
        Ok(false) => Err(lies(format!("{} has changed since the output was ready", name.display()))),
        Err(why) => Err(lies(why.to_string())),
    }
}

/// Removes an output that gets no name.
pub(crate) fn clear(file: &ReadyFile) {
    let Ok(hidden) = path_of(&file.hidden) else { return };
    // What lies there may be somebody else's by now.
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
