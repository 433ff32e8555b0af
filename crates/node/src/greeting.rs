//! The line that each end of a transfer over ssh sends before they have a link.

use std::time::Duration;

use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{Terms, Timeouts, VERSIONS, Versions};

/// The arguments that start the remote end. They are not in the table of flags, because users do not type them.
pub const SERVE: [&str; 2] = ["pump", "--serve"];
/// The first word of the line.
pub(crate) const GREETING: &str = "thalweg-pump";
/// How long sending the line may take.
pub(crate) const SAYING: Duration = Duration::from_secs(5);
/// The terms of the links of both ends.
pub(crate) fn terms() -> Terms {
    Terms { block_bytes: FRAME_BYTES as u32, patience: Timeouts::default() }
}

/// The line with this content.
pub(crate) fn greeting(json: &str) -> String {
    format!("{GREETING} {} {json}", word(VERSIONS))
}

/// A range of versions as a word. A range of one is a number, as builds without ranges say it.
fn word(Versions { first, last }: Versions) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn versions_of(word: &str) -> Option<Versions> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(Versions { first: first.parse().ok()?, last: last.parse().ok()? })
}

/// Why a line is not a greeting that this program understands.
pub(crate) enum NoGreeting {
    /// Another program sent it.
    Unknown,
    /// These versions are in it, none of which is spoken here.
    Versions(Versions),
}

/// The content of such a line.
pub(crate) fn greeted(line: &[u8]) -> Result<&str, NoGreeting> {
    let line = str::from_utf8(line).map_err(|_| NoGreeting::Unknown)?;
    let rest =
        line.strip_prefix(GREETING).and_then(|rest| rest.strip_prefix(' ')).ok_or(NoGreeting::Unknown)?;
    let (word, json) = rest.split_once(' ').ok_or(NoGreeting::Unknown)?;
    let theirs = versions_of(word).ok_or(NoGreeting::Unknown)?;
    if VERSIONS.common(theirs).is_some() { Ok(json) } else { Err(NoGreeting::Versions(theirs)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_known_by_its_first_words_and_its_version() {
        let line = greeting("{}");
        assert!(matches!(greeted(line.as_bytes()), Ok("{}")));
        let of = |word: &str| line.replacen(&VERSIONS.to_string(), word, 1);
        for (word, first, last) in [("6", 6, 6), ("8-9", 8, 9)] {
            let told = of(word);
            let Err(NoGreeting::Versions(theirs)) = greeted(told.as_bytes()) else { panic!("{word}") };
            assert_eq!(theirs, Versions { first, last });
        }
        assert!(matches!(greeted(of("7-9").as_bytes()), Ok("{}")), "a later one that speaks ours too");
        for noise in
            ["", "Welcome", "thalweg-pumpkin 1 {}", "thalweg-pump", "thalweg-pump 1", "thalweg-pump new {}"]
        {
            assert!(matches!(greeted(noise.as_bytes()), Err(NoGreeting::Unknown)), "{noise}");
        }
    }
}
