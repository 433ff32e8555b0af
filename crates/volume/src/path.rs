//! `volume:NAME/PATH`: the notation for a file of a volume.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The prefix of names of volumes.
pub(crate) const SCHEME: &str = "volume:";

/// A path in a volume, with the volume's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath(PathBuf);

impl VolumePath {
    /// Parses an argument; `None` if it does not begin with `volume:`.
    pub fn of(word: &OsStr) -> Option<VolumePath> {
        word.as_bytes().starts_with(SCHEME.as_bytes()).then(|| VolumePath(word.into()))
    }

    /// The path as it was written; the file systems of volumes use it as the path of the file.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The name of the volume. Bytes that are not UTF-8 are replaced by a character that no name has.
    pub fn volume(&self) -> String {
        String::from_utf8_lossy(self.split().0).into_owned()
    }

    /// The path in the volume, from its root.
    pub fn inside(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.split().1))
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let rest = &self.0.as_os_str().as_bytes()[SCHEME.len()..];
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        match rest.split_at(end) {
            (name, b"") => (name, b"/"),
            split => split,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_volume_and_a_path_from_its_root() {
        for (word, volume, inside) in [
            ("volume:v/a/b", "v", "/a/b"),
            ("volume:v", "v", "/"),
            ("volume:v/", "v", "/"),
            ("volume:", "", "/"),
        ] {
            let path = VolumePath::of(OsStr::new(word)).unwrap();
            assert_eq!((path.volume().as_str(), path.inside()), (volume, Path::new(inside)), "{word}");
        }
        assert_eq!(VolumePath::of(OsStr::new("./volume:v/a")), None);
    }
}
