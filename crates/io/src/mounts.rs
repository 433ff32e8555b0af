//! Whether one directory is inside another, through any mounts, and what is mounted on a directory.
//!
//! Model: the table of mounts lists the file system and the directory of each mount, so a directory has one identity
//! however many bind mounts show it.
//! Non-goals: stacked file systems (overlays), which show one directory under two identities.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::{Result, small};

/// The kernel's table of mounts, as this process sees it.
const TABLE: &str = "/proc/self/mountinfo";

/// The types of the file systems that are mounted on a directory, as the kernel names them; the last one hides the
/// others. The path is canonical.
pub fn mounts_at(directory: &Path) -> Result<Vec<String>> {
    Ok(types_at(directory, &small::read(Path::new(TABLE))?))
}

/// The directories on which file systems of this type and source are mounted, as the kernel names both.
pub fn mounts_of(kind: &str, source: &str) -> Result<Vec<PathBuf>> {
    Ok(points_of(kind, source, &small::read(Path::new(TABLE))?))
}

fn points_of(kind: &str, source: &str, table: &[u8]) -> Vec<PathBuf> {
    let point_of = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let dash = words.iter().position(|word| *word == b"-")?;
        let is_it =
            words.get(dash + 1) == Some(&kind.as_bytes()) && unescaped(words.get(dash + 2)?) == *source;
        is_it.then(|| unescaped(words[4]))
    };
    table.split(|b| *b == b'\n').filter_map(point_of).collect()
}

fn types_at(directory: &Path, table: &[u8]) -> Vec<String> {
    let type_of = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let is_there = words.get(4).is_some_and(|point| unescaped(point) == directory);
        // A dash ends the optional fields.
        let dash = words.iter().position(|word| *word == b"-")?;
        is_there.then(|| words.get(dash + 1).map(|kind| String::from_utf8_lossy(kind).into_owned()))?
    };
    table.split(|b| *b == b'\n').filter_map(type_of).collect()
}

/// Whether `inner` is `outer` or inside it. Both are canonical.
pub(crate) fn contains(outer: &Path, inner: &Path) -> bool {
    if inner.starts_with(outer) {
        return true;
    }
    let Ok(table) = small::read(Path::new(TABLE)) else { return false };
    match (place_of(inner, &table), place_of(outer, &table)) {
        (Some((one, inner)), Some((other, outer))) => one == other && inner.starts_with(outer),
        _ => false,
    }
}

/// The number of the path's file system, and the path in it.
fn place_of(path: &Path, table: &[u8]) -> Option<(Vec<u8>, PathBuf)> {
    let mut best: Option<(PathBuf, Vec<u8>, PathBuf)> = None;
    for line in table.split(|b| *b == b'\n') {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').take(5).collect();
        let [_, _, device, root, point] = words[..] else { continue };
        let point = unescaped(point);
        // A later mount on the same point hides an earlier one.
        if path.starts_with(&point) && best.as_ref().is_none_or(|(longest, ..)| point.starts_with(longest)) {
            best = Some((point, device.to_vec(), unescaped(root)));
        }
    }
    let (point, device, root) = best?;
    Some((device, root.join(path.strip_prefix(point).ok()?)))
}

/// The table writes space, tab, newline and backslash as three octal digits.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let digits = word.get(at + 1..at + 4).filter(|_| word[at] == b'\\');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                at += 4;
            }
            None => {
                bytes.push(word[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_place_whatever_leads_there() {
        let table = b"1 0 8:1 / / rw - ext4 x rw\n2 1 8:2 / /data rw - ext4 y rw\n\
                      3 1 8:2 /a/sub /mnt/with\\040space rw - ext4 y rw\n4 1 0:9 / /data/b rw - tmpfs t rw\n";
        let place = |path: &str| {
            let (device, path) = place_of(Path::new(path), table).unwrap();
            (String::from_utf8(device).unwrap(), path.to_str().unwrap().to_string())
        };
        assert_eq!(place("/mnt/with space/new"), ("8:2".into(), "/a/sub/new".into()));
        assert_eq!(place("/data/a"), ("8:2".into(), "/a".into()));
        assert_eq!(place("/data/b/a"), ("0:9".into(), "/a".into()));
        assert_eq!(place("/database"), ("8:1".into(), "/database".into()));
    }

    #[test]
    fn what_is_mounted_on_a_directory_is_told_the_seen_one_last() {
        let table = b"1 0 8:1 / / rw shared:1 - ext4 x rw\n2 1 0:5 / /with\\040space rw - fuse y rw\n\
                      3 2 0:9 / /with\\040space rw shared:2 master:1 - tmpfs t rw\n";
        let types = |directory: &str| types_at(Path::new(directory), table);
        assert_eq!(types("/"), ["ext4"]);
        assert_eq!(types("/with space"), ["fuse", "tmpfs"]);
        assert_eq!(types("/with"), Vec::<String>::new());
        let points = |kind, source| points_of(kind, source, table);
        assert_eq!(points("fuse", "y"), [Path::new("/with space")]);
        assert_eq!(points("fuse", "x"), Vec::<PathBuf>::new());
    }
}
