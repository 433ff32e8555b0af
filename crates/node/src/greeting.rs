//! What both ends of a transfer over ssh say before there is a link: a line that each knows by its first words.

use std::time::Duration;

use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{Patience, Terms, VERSION};

/// The words that start it, which are of no table: they are no command for people.
pub const SERVE: [&str; 2] = ["pump", "--serve"];
/// The first word of what either side says before there is a link.
pub(crate) const GREETING: &str = "thalweg-pump";
/// How long a line may wait for room in the channel.
pub(crate) const SAYING: Duration = Duration::from_secs(5);
/// How both ends want their links, but that a channel is sealed already.
pub(crate) fn terms() -> Terms {
    Terms { block_bytes: FRAME_BYTES as u32, patience: Patience::default() }
}

/// A line that both sides know by its first words.
pub(crate) fn greeting(json: &str) -> String {
    format!("{GREETING} {VERSION} {json}")
}

/// What cannot be talked to.
pub(crate) enum Stranger {
    /// It is no greeting.
    Unknown,
    /// One of another version.
    Version(String),
}

/// What such a line says.
pub(crate) fn greeted(line: &[u8]) -> Result<&str, Stranger> {
    let line = str::from_utf8(line).map_err(|_| Stranger::Unknown)?;
    let rest =
        line.strip_prefix(GREETING).and_then(|rest| rest.strip_prefix(' ')).ok_or(Stranger::Unknown)?;
    match rest.split_once(' ') {
        Some((version, json)) if version == VERSION.to_string() => Ok(json),
        Some((version, _)) => Err(Stranger::Version(version.into())),
        None => Err(Stranger::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_known_by_its_first_words_and_its_version() {
        let line = greeting("{}");
        assert!(matches!(greeted(line.as_bytes()), Ok("{}")));
        let other = line.replacen(&VERSION.to_string(), "9", 1);
        assert!(matches!(greeted(other.as_bytes()), Err(Stranger::Version(v)) if v == "9"));
        for noise in ["", "Welcome", "thalweg-pumpkin 1 {}", "thalweg-pump", "thalweg-pump 1"] {
            assert!(matches!(greeted(noise.as_bytes()), Err(Stranger::Unknown)), "{noise}");
        }
    }
}
