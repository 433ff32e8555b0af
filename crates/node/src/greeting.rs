//! The line that each end of a transfer over ssh sends before they have a link.

use std::time::Duration;

use thalweg_transfer::FRAME_BYTES;
use thalweg_wire::{Terms, Timeouts, VERSION};

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
    format!("{GREETING} {VERSION} {json}")
}

/// Why a line is not a greeting that this program understands.
pub(crate) enum NoGreeting {
    /// Another program sent it.
    Unknown,
    /// It is of this version.
    Version(String),
}

/// The content of such a line.
pub(crate) fn greeted(line: &[u8]) -> Result<&str, NoGreeting> {
    let line = str::from_utf8(line).map_err(|_| NoGreeting::Unknown)?;
    let rest =
        line.strip_prefix(GREETING).and_then(|rest| rest.strip_prefix(' ')).ok_or(NoGreeting::Unknown)?;
    match rest.split_once(' ') {
        Some((version, json)) if version == VERSION.to_string() => Ok(json),
        Some((version, _)) => Err(NoGreeting::Version(version.into())),
        None => Err(NoGreeting::Unknown),
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
        assert!(matches!(greeted(other.as_bytes()), Err(NoGreeting::Version(v)) if v == "9"));
        for noise in ["", "Welcome", "thalweg-pumpkin 1 {}", "thalweg-pump", "thalweg-pump 1"] {
            assert!(matches!(greeted(noise.as_bytes()), Err(NoGreeting::Unknown)), "{noise}");
        }
    }
}
