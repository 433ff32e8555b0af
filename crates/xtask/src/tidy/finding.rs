//! A violation of a rule of style, and the file of known exceptions.

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: String,
    /// Counted from 1; 0 if the finding is about the whole file.
    pub(super) line: usize,
    pub(super) what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Finding { path, line, what } = self;
        match line {
            0 => write!(f, "{path}: {what}"),
            _ => write!(f, "{path}:{line}: {what}"),
        }
    }
}

/// The list of files and functions that exceed the limits of length.
pub(super) const RATCHET: &str = "crates/xtask/ratchet.txt";
