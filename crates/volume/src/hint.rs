//! Hints of programs about how they will use a file.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// The extended attribute that has the hint of a file.
pub const HINT_ATTRIBUTE: &[u8] = b"user.thalweg.hint";

/// How a file will be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Hint {
    /// Unknown (the default): sequential reads are detected and read ahead.
    #[default]
    Normal,
    /// From its beginning to its end: as much as possible is read ahead, from the first read on.
    Sequential,
    /// At random places: nothing is read ahead.
    Random,
    /// From beginning to end and only once: what was read is not kept in the cache.
    Once,
    /// All of it soon: as much of it as there is room for is read now.
    WillNeed,
    /// Not soon: what the cache has of it is dropped.
    DontNeed,
}

const NAMES: [(&str, Hint); 6] = [
    ("normal", Hint::Normal),
    ("sequential", Hint::Sequential),
    ("random", Hint::Random),
    ("once", Hint::Once),
    ("willneed", Hint::WillNeed),
    ("dontneed", Hint::DontNeed),
];

impl Hint {
    /// Whether it applies to every use of the file, and not only to the cache of one client at one time.
    pub fn lasts(self) -> bool {
        !matches!(self, Hint::WillNeed | Hint::DontNeed)
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = NAMES.iter().find(|(_, hint)| hint == self).expect("each has a name");
        f.pad(name)
    }
}

impl FromStr for Hint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Hint, Error> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, hint)| *hint).ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            Error::System(libc::EINVAL, format!("'{text}' is no hint; the hints are {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_is_read_by_its_name() {
        for (name, hint) in NAMES {
            assert_eq!((name.parse::<Hint>().unwrap(), hint.to_string()), (hint, name.to_string()));
        }
        assert!("Random".parse::<Hint>().unwrap_err().to_string().contains("sequential, random, once"));
    }
}
