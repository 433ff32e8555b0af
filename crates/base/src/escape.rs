//! Any bytes as one word of printable ASCII: a name of a file in messages, journals and lists.

use std::fmt::Write as _;

/// Escapes bytes as one word of printable characters: `%` and two hexadecimal digits stand for any other byte.
pub fn escaped(bytes: &[u8]) -> String {
    let mut word = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'%' {
            word.push(byte as char);
        } else {
            let _ = write!(word, "%{byte:02x}");
        }
    }
    word
}

/// The bytes of a word that [`escaped`] made.
pub fn unescaped(word: &str) -> Option<Vec<u8>> {
    let mut unescaped = Vec::with_capacity(word.len());
    let mut bytes = word.bytes();
    while let Some(byte) = bytes.next() {
        unescaped.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte if byte.is_ascii_graphic() => byte,
            _ => return None,
        });
    }
    Some(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_word() {
        let all: Vec<u8> = (0..=255).chain(*b"100%/a b\n").collect();
        for name in [&all[..], b"", b"plain", b"%", b"%41"] {
            let word = escaped(name);
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
            assert_eq!(unescaped(&word).as_deref(), Some(name));
        }
        for wrong in ["a b", "%4", "%4g", "\n", "é"] {
            assert_eq!(unescaped(wrong), None, "{wrong}");
        }
    }
}
