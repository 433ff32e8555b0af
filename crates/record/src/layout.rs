//! How records lie in a stream of bytes, and which of their bytes are the key.

use std::fmt;

use crate::newlines;

/// How records lie in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Every record has so many bytes (at least 1).
    Fixed(u32),
    /// Records are lines; the newline ends a record and is not part of it.
    Lines,
}

/// A part of a key: `offset:length` and whether it sorts downwards. Parts compare in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPart {
    /// First byte of the part in the record.
    pub offset: u32,
    /// Bytes of the part (at least 1). In a line that is shorter, the bytes that are there.
    pub length: u32,
    /// Greatest first.
    pub descending: bool,
}

/// Why a key could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPartError(String);

impl fmt::Display for KeyPartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a key: write OFFSET:LENGTH, and :asc or :desc behind it if you like, as in 0:10 or 0:10:desc",
            self.0
        )
    }
}

impl std::error::Error for KeyPartError {}

impl std::str::FromStr for KeyPart {
    type Err = KeyPartError;

    fn from_str(text: &str) -> Result<Self, KeyPartError> {
        let wrong = || KeyPartError(text.to_string());
        let mut parts = text.split(':');
        let mut number = || parts.next().and_then(|p| p.parse::<u32>().ok()).ok_or_else(wrong);
        let (offset, length) = (number()?, number()?);
        let descending = match parts.next() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(wrong()),
        };
        // What reaches further than any record means the rest of it.
        let length = length.min(u32::MAX - offset);
        if length == 0 || parts.next().is_some() {
            return Err(wrong());
        }
        Ok(KeyPart { offset, length, descending })
    }
}

/// The records that lie wholly in a piece of a stream, each with its place in the piece, and of lines where the one
/// begins that goes on behind it, if that is known. `before` bytes of the stream or its file came earlier; a line is
/// known to begin with the piece only if that is `fresh`.
pub fn records_in(
    layout: Layout,
    bytes: &[u8],
    before: u64,
    fresh: bool,
) -> (Vec<(usize, &[u8])>, Option<usize>) {
    match layout {
        Layout::Fixed(n) => {
            let n = n as usize;
            let first = (n - (before % n as u64) as usize) % n;
            let rest = bytes.get(first..).unwrap_or(&[]);
            (rest.chunks_exact(n).enumerate().map(|(i, r)| (first + i * n, r)).collect(), None)
        }
        Layout::Lines => {
            let mut records = Vec::new();
            let mut open = fresh.then_some(0);
            for end in newlines(bytes) {
                records.extend(open.map(|from| (from, &bytes[from..end])));
                open = Some(end + 1);
            }
            (records, open)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read() {
        assert_eq!("0:10".parse(), Ok(KeyPart { offset: 0, length: 10, descending: false }));
        assert_eq!("4:2:desc".parse(), Ok(KeyPart { offset: 4, length: 2, descending: true }));
        assert_eq!("4:2:asc".parse(), Ok(KeyPart { offset: 4, length: 2, descending: false }));
        assert!("0:4294967295:desc".parse::<KeyPart>().is_ok(), "the whole of any line");
        assert_eq!(
            "3:4294967295".parse(),
            Ok(KeyPart { offset: 3, length: u32::MAX - 3, descending: false })
        );
        for text in ["", "1", "1:", "1:0", "a:1", "1:2:up", "1:2:desc:3", "4294967295:1"] {
            assert!(text.parse::<KeyPart>().is_err(), "{text}");
        }
    }
}
