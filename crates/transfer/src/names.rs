//! Hidden names beside DEST, until what they bear is whole.
//!
//! ```text
//! .NAME.thalweg-partial      a file or a tree that is not whole yet
//! .NAME.thalweg-journal      what of it is durable
//! ```
//!
//! Law: they are made of the destination's name alone, so a run finds its own leftovers; and they are never longer
//! than a name may be.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use xxhash_rust::xxh3::xxh3_64;

/// Names have at most 255 bytes; the rest is for what stands around this one.
const NAME_BYTES_MAX: usize = 200;

/// The name until it is whole.
pub(crate) fn partial(name: &OsStr) -> OsString {
    hidden(name, ".thalweg-partial")
}

/// The name of its journal.
pub(crate) fn journal(name: &OsStr) -> OsString {
    hidden(name, ".thalweg-journal")
}

fn hidden(name: &OsStr, end: &str) -> OsString {
    let name = name.as_bytes();
    let mut hidden = vec![b'.'];
    if name.len() <= NAME_BYTES_MAX {
        hidden.extend_from_slice(name);
    } else {
        // Its beginning does not tell it from others.
        hidden.extend_from_slice(&name[..NAME_BYTES_MAX]);
        hidden.extend_from_slice(format!("-{:016x}", xxh3_64(name)).as_bytes());
    }
    hidden.extend_from_slice(end.as_bytes());
    OsString::from_vec(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_have_hidden_ones_of_their_own() {
        assert_eq!(partial(OsStr::new("a")), ".a.thalweg-partial");
        let (one, other) = (format!("{}1", "x".repeat(254)), format!("{}2", "x".repeat(254)));
        assert!(partial(OsStr::new(&one)).len() <= 255);
        assert_ne!(partial(OsStr::new(&one)), partial(OsStr::new(&other)));
        assert_ne!(partial(OsStr::new(&one)), journal(OsStr::new(&one)));
    }
}
