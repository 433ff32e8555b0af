//! File formats that are not records, recognised by their whole signature.
//!
//! Invariant: a signature is one that no text begins with by accident: bytes that are not printable, or the same word
//! at both ends of the file.
//! Non-goals: streams, whose first bytes cannot be looked at twice; reading such files.

use thalweg_io::{InputFile, Result};

/// What to do with a file of some format, as the end of a message.
const ROWS: &str = "write its rows as lines first";

/// The most bytes of a signature at the start of a file.
const HEAD_BYTES: usize = 16;

/// A format, recognised by the bytes at the start of a file and perhaps those before its end.
struct Format {
    /// What the file is, for a message.
    is: &'static str,
    remedy: &'static str,
    head: &'static [u8],
    /// The bytes at the end, and how many bytes follow them.
    tail: Option<(&'static [u8], usize)>,
}

const fn starts(is: &'static str, remedy: &'static str, head: &'static [u8]) -> Format {
    Format { is, remedy, head, tail: None }
}

const FORMATS: &[Format] = &[
    Format { tail: Some((b"PAR1", 0)), ..starts("a Parquet file", ROWS, b"PAR1") },
    // An encrypted footer.
    Format { tail: Some((b"PARE", 0)), ..starts("a Parquet file", ROWS, b"PARE") },
    // The last byte is the length of the postscript, which ends before it.
    Format { tail: Some((b"ORC", 1)), ..starts("an ORC file", ROWS, b"ORC") },
    starts("an Arrow file", ROWS, b"ARROW1\0\0"),
    starts("an Avro file", ROWS, b"Obj\x01"),
    starts("an HDF5 file", ROWS, b"\x89HDF\r\n\x1a\n"),
    starts("an SQLite database", ROWS, b"SQLite format 3\0"),
    starts("compressed with gzip", "pipe it through gzip -dc", b"\x1f\x8b\x08"),
    starts("compressed with zstd", "pipe it through zstd -dc", b"\x28\xb5\x2f\xfd"),
    starts("compressed with xz", "pipe it through xz -dc", b"\xfd7zXZ\0"),
    starts("compressed with lz4", "pipe it through lz4 -dc", b"\x04\x22\x4d\x18"),
    starts("a zip archive", "extract its files first", b"PK\x03\x04"),
];

/// If the file is of a known format that is not records: what it is, and what to do with it.
pub(crate) fn of(file: &InputFile, len: u64) -> Result<Option<(&'static str, &'static str)>> {
    let mut head = [0; HEAD_BYTES];
    let read = file.read_at(0, &mut head)?;
    let head = &head[..read];
    // Byte 3 is the size of the blocks.
    if head.len() >= 10
        && head.starts_with(b"BZh")
        && (b'1'..=b'9').contains(&head[3])
        && &head[4..10] == b"1AY&SY"
    {
        return Ok(Some(("compressed with bzip2", "pipe it through bzip2 -dc")));
    }
    for format in FORMATS.iter().filter(|format| head.starts_with(format.head)) {
        let ends = match format.tail {
            None => true,
            Some((tail, after)) => {
                let mut end = vec![0; tail.len()];
                let at = len.saturating_sub((tail.len() + after) as u64);
                at >= format.head.len() as u64 && file.read_at(at, &mut end)? == end.len() && end == tail
            }
        };
        if ends {
            return Ok(Some((format.is, format.remedy)));
        }
    }
    Ok(None)
}
