//! Keys and values as people write them: text in which `\xHH` is any byte, `\\` is a backslash, and `\n`, `\r` and `\t`
//! are as in C.

/// The bytes of a text.
///
/// # Errors
/// One line that names the invalid escape.
pub fn parse(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let hex = || escape.get(1..3).and_then(digits);
        let (byte, len) = match escape.chars().next() {
            Some('\\') => (b'\\', 1),
            Some('n') => (b'\n', 1),
            Some('r') => (b'\r', 1),
            Some('t') => (b'\t', 1),
            Some('\'') => (b'\'', 1),
            Some('"') => (b'"', 1),
            Some('x') if hex().is_some() => (hex().unwrap_or_default(), 3),
            _ => return Err(format!(r"'{text}': a backslash is followed by xHH, n, r, t or a backslash")),
        };
        bytes.push(byte);
        rest = &escape[len..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

fn digits(two: &str) -> Option<u8> {
    // `from_str_radix` would accept a sign.
    let is_number = two.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(two, 16).ok().filter(|_| is_number)
}

/// Bytes as text that [`parse`] accepts.
pub fn show(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(|c: char| c == '\\' || c.is_control()) => text.into(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// The bytes of a text in hexadecimal.
///
/// # Errors
/// One line, if the text is not hexadecimal.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("'{text}' is not hexadecimal: two digits for each byte");
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err(wrong());
    }
    let byte = |at| digits(&text[at..at + 2]).ok_or_else(wrong);
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Bytes in hexadecimal.
pub fn show_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_written_and_read_back() {
        for bytes in [&b""[..], b"plain", b"back\\slash", b"\0\xff\n\t'\"", "Grüße".as_bytes(), b"\\x41"] {
            assert_eq!(parse(&show(bytes)).as_deref(), Ok(bytes), "{}", show(bytes));
            assert_eq!(parse_hex(&show_hex(bytes)).as_deref(), Ok(bytes));
        }
        for wrong in [r"\", r"\x4", r"\xg0", r"\x+1", r"\q", r"a\"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "0g", "ä", "+1"] {
            assert!(parse_hex(wrong).is_err(), "{wrong}");
        }
    }
}
