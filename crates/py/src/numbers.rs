//! Which items of a buffer are numbers whose bytes are in another order than their values, as the format of the buffer
//! says, in the notation of the module `struct` and PEP 3118.
//!
//! Non-goals: what an exporter does not say, as `pyarrow.Buffer`, whose items are bytes.

use std::ops::Range;

use pyo3::PyErr;
use pyo3::exceptions::PyTypeError;

/// What to do with numbers.
pub(crate) const ORDERED: &str = "records are sorted by their bytes; put numbers without a sign with the highest byte \
                                  first, as array.astype('>u8'), and integers with one, or times, as \
                                  (array.view('u8') ^ 2**63).astype('>u8')";

/// A number in an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Number {
    /// Its type in the format.
    pub(crate) kind: char,
    /// The bytes of the item that it takes.
    pub(crate) at: Range<usize>,
}

impl Number {
    /// The exception for a key that it is part of.
    pub(crate) fn refused(&self) -> PyErr {
        let why =
            format!("numbers of type '{}' would not be in the order of their values: {ORDERED}", self.kind);
        PyTypeError::new_err(why)
    }

    /// Whether it is in this part of a record of `record` bytes, which consists of items of `item` bytes.
    pub(crate) fn is_in(&self, part: &Range<usize>, item: usize, record: usize) -> bool {
        if item == 0 || !record.is_multiple_of(item) {
            return true;
        }
        // The first item whose number ends behind the beginning of the part.
        let first = if self.at.end > part.start { 0 } else { (part.start - self.at.end) / item + 1 };
        first * item + self.at.start < part.end.min(record)
    }
}

/// The numbers in an item of this format whose bytes are in another order than their values.
pub(crate) fn numbers(format: &[u8]) -> Vec<Number> {
    let (mut found, mut at) = (Vec::new(), 0);
    let (mut order, mut count) = (b'@', None);
    let mut rest = format;
    while let Some((&kind, after)) = rest.split_first() {
        rest = after;
        match kind {
            b'@' | b'^' | b'=' | b'<' | b'>' | b'!' => order = kind,
            b'0'..=b'9' => count = Some(count.unwrap_or(0) * 10 + usize::from(kind - b'0')),
            // A shape, as (2,3), multiplies.
            b'(' => {
                let end = rest.iter().position(|byte| *byte == b')').unwrap_or(rest.len());
                let shape = String::from_utf8_lossy(&rest[..end]);
                count = Some(shape.split(',').filter_map(|n| n.trim().parse::<usize>().ok()).product());
                rest = &rest[end.saturating_add(1).min(rest.len())..];
            }
            b':' => {
                let end = rest.iter().position(|byte| *byte == b':').unwrap_or(rest.len());
                rest = &rest[end.saturating_add(1).min(rest.len())..];
            }
            b'T' if count.is_some_and(|count| count > 1) => {
                // Several structures: their numbers may be anywhere.
                return vec![Number { kind: 'T', at: 0..usize::MAX }];
            }
            b'T' | b'{' | b'}' | b'Z' | b' ' => {}
            kind => {
                let bytes = count.take().unwrap_or(1) * size(kind, order);
                if !is_ordered(kind, order) {
                    found.push(Number { kind: char::from(kind), at: at..at + bytes });
                }
                at += bytes;
            }
        }
        // The second half of a complex number.
        if kind == b'Z' {
            count = Some(2 * count.unwrap_or(1));
        }
    }
    found
}

/// Bytes of one item of a type.
fn size(kind: u8, order: u8) -> usize {
    let is_native = matches!(order, b'@' | b'^');
    match kind {
        b'h' | b'H' | b'e' | b'u' => 2,
        b'l' | b'L' if is_native => 8,
        b'i' | b'I' | b'l' | b'L' | b'f' | b'w' => 4,
        b'q' | b'Q' | b'n' | b'N' | b'd' | b'P' | b'O' | b'&' => 8,
        b'g' => 16,
        _ => 1,
    }
}

/// Whether the bytes of a type are in the order of its values.
fn is_ordered(kind: u8, order: u8) -> bool {
    match kind {
        b'B' | b'c' | b's' | b'p' | b'x' | b'?' => true,
        b'H' | b'I' | b'L' | b'Q' | b'u' | b'w' => matches!(order, b'>' | b'!'),
        _ => false,
    }
}
