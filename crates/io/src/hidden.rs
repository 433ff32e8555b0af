//! Hidden names, for outputs that are not complete and for the files that are needed while they are made.
//!
//! ```text
//! DIR/.NAME.thalweg-END             in the directory of the output NAME
//! SCRATCH/.NAME-HASH.thalweg-END    in another directory, which outputs of one name may share; HASH is a hash of the
//!                                   output's canonical path
//! DIR/.thalweg-WHAT-PID-RANDOM      a file that no later run looks for
//! ```
//!
//! Invariant: different outputs have different hidden names, whatever the bytes and length of their own names, and a
//! hidden name never exceeds the limit of a file name. Other users can guess some of these names, so a file is opened
//! only as [`Access`](crate::Access) describes: as a new file, or as an existing regular file of this user.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::directory_of;

/// Longer names are cut and get a hash: a name has at most 255 bytes, and the rest is needed for the other parts.
const NAME_BYTES_MAX: usize = 160;

/// The part that all hidden names have in common.
const MARK: &[u8] = b".thalweg-";

/// The hidden name of a file in the directory of an output with this name.
pub fn name(output: &OsStr, end: &str) -> OsString {
    let bytes = output.as_bytes();
    // The beginning of a long name does not identify it.
    let hash = (bytes.len() > NAME_BYTES_MAX).then(|| xxh3_64(bytes));
    OsString::from_vec([&beginning(bytes, hash), end.as_bytes()].concat())
}

/// The hidden path of a file beside `output`.
pub fn beside(output: &Path, end: &str) -> PathBuf {
    directory_of(output).join(name(output.file_name().unwrap_or_default(), end))
}

/// The hidden name of a file that belongs to `output`, in any other directory.
pub fn elsewhere(output: &Path, end: &str) -> OsString {
    let file_name = output.file_name().unwrap_or_default();
    // The output may be on a simulated disk, which has no canonical path here.
    let directory = directory_of(output);
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_path_buf());
    let hash = xxh3_64(directory.join(file_name).as_os_str().as_bytes());
    OsString::from_vec([&beginning(file_name.as_bytes(), Some(hash)), end.as_bytes()].concat())
}

/// Whether a hidden name may belong to `output`: false for almost all that belong to another.
pub fn may_be_of(name: &OsStr, output: &Path) -> bool {
    let of = output.file_name().unwrap_or_default().as_bytes();
    let begins = name.as_bytes().strip_prefix(b".");
    begins.is_some_and(|begins| begins.starts_with(&of[..of.len().min(NAME_BYTES_MAX)]))
}

/// Whether this can be a hidden name of any output. Some file systems ignore case.
pub fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".") && name.windows(MARK.len()).any(|some| some.eq_ignore_ascii_case(MARK))
}

/// An unguessable hidden name, for a file that no later run looks for.
pub fn unique(what: &str) -> String {
    format!(".thalweg-{what}-{}-{}", std::process::id(), random())
}

/// An unguessable number.
pub fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// `.NAME.thalweg-` or `.NAME-HASH.thalweg-`.
fn beginning(name: &[u8], hash: Option<u64>) -> Vec<u8> {
    let mut end = name.len().min(NAME_BYTES_MAX);
    // Some file systems refuse part of a UTF-8 character.
    while end > 0 && end < name.len() && name[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let hash = hash.map_or(String::new(), |hash| format!("-{hash:016x}"));
    [b".", &name[..end], hash.as_bytes(), MARK].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_name_says_whose_it_is_and_fits_whatever_the_name() {
        assert_eq!(beside(Path::new("d/a"), "partial"), Path::new("d/.a.thalweg-partial"));
        let names = [&b"x"[..], b"x\xff", b"x\xfe", &[b'x'; 160], &[b'x'; 161], &[b'x'; 255], &[0xe4; 255]];
        let mut all = Vec::new();
        for bytes in names {
            let output = OsStr::from_bytes(bytes);
            all.push(name(output, "partial"));
            all.push(elsewhere(&Path::new("/one").join(output), "scratch"));
            all.push(elsewhere(&Path::new("/other").join(output), "scratch"));
        }
        let longest = format!("{}-{}.partial", u32::MAX, u64::MAX);
        assert!(all.iter().all(|name| name.len() - "partial".len() + longest.len() <= 255));
        assert!(all.iter().all(|name| is_hidden(name.as_bytes())));
        assert!(is_hidden(unique("trial").as_bytes()) && !is_hidden(b"x.thalweg-y") && !is_hidden(b".x"));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 3 * names.len(), "{all:?}");
    }

    #[test]
    fn however_an_output_is_reached_its_scratch_has_one_name() {
        let here = std::env::current_dir().unwrap();
        let there = elsewhere(&here.join("out"), "scratch");
        assert_eq!(elsewhere(Path::new("out"), "scratch"), there);
        assert_eq!(elsewhere(Path::new("./././out"), "scratch"), there);
    }
}
