//! Names that users give to volumes and tables.

/// Whether a name has 1 to `bytes_max` ASCII letters, digits, dots, dashes and underscores, a letter or digit first.
/// Such a name can be part of the name of a file, and is neither a path nor a flag.
pub fn is_plain(name: &str, bytes_max: usize) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= bytes_max
        && name.chars().all(is_allowed)
}
