//! Records one after the other, as a page of a range has them.
//!
//! ```text
//! [bytes of all] [key bytes: u32][key][value bytes: u32][value] ...       little-endian
//! ```
//!
//! Invariant: the records are complete, so reading them cannot fail.

use thalweg_base::codec::Plain;

use super::spare;

const LENGTH_BYTES: usize = 4;

/// Records that are read from the first to the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// Where the next record begins.
    at: usize,
}

impl Records {
    /// Bytes of a record beyond its key and value.
    pub(crate) const EXTRA_BYTES: usize = 2 * LENGTH_BYTES;

    /// No records yet, in a buffer that others have used, if there is one.
    pub(crate) fn with_room() -> Records {
        Records { bytes: spare::take(), at: 0 }
    }

    /// Appends a record.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            self.bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.bytes.extend_from_slice(part);
        }
    }

    /// Whether all have been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Bytes of all records, and their lengths.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The key and the value of the next record.
    pub(crate) fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let (key, value, next) = record_at(&self.bytes, self.at)?;
        self.at = next;
        Some((key, value))
    }

    /// Removes all records after the next `count`.
    pub(crate) fn truncate(&mut self, count: u64) {
        let mut end = self.at;
        for _ in 0..count {
            let Some((.., next)) = record_at(&self.bytes, end) else { return };
            end = next;
        }
        self.bytes.truncate(end);
    }
}

/// The key and the value of the record that begins here, and where it ends; `None` if it is incomplete.
fn record_at(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8], usize)> {
    let part = |at: usize| {
        let (length, rest) = bytes.get(at..)?.split_first_chunk::<LENGTH_BYTES>()?;
        let length = u32::from_le_bytes(*length) as usize;
        Some((rest.get(..length)?, at + LENGTH_BYTES + length))
    };
    let (key, end) = part(at)?;
    let (value, end) = part(end)?;
    Some((key, value, end))
}

impl Plain for Records {
    fn put(&self, into: &mut Vec<u8>) {
        (self.bytes.len() as u32).put(into);
        into.extend_from_slice(&self.bytes);
    }

    fn take(from: &mut &[u8]) -> Option<Records> {
        let len = u32::take(from)? as usize;
        let (bytes, rest) = from.split_at_checked(len)?;
        let mut end = 0;
        while end < bytes.len() {
            end = record_at(bytes, end)?.2;
        }
        *from = rest;
        let mut records = Records::with_room();
        records.bytes.extend_from_slice(bytes);
        Some(records)
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        spare::give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use thalweg_base::codec::decode;

    use super::*;

    fn three() -> Records {
        let mut records = Records::default();
        for (key, value) in [("a", "1"), ("bb", ""), ("", "333")] {
            records.push(key.as_bytes(), value.as_bytes());
        }
        records
    }

    #[test]
    fn records_are_read_in_order() {
        let mut encoded = Vec::new();
        three().put(&mut encoded);
        let mut records: Records = decode(&encoded).unwrap();
        assert_eq!(records.next(), Some((&b"a"[..], &b"1"[..])));
        records.truncate(1);
        assert_eq!(records.next(), Some((&b"bb"[..], &b""[..])));
        assert!(records.is_empty() && records.next().is_none());
    }

    #[test]
    fn incomplete_records_are_refused() {
        let bytes = three().bytes.clone();
        let whole = [0, 10, 20, 31];
        for end in 0..=bytes.len() {
            let mut encoded = vec![end as u8];
            encoded.extend_from_slice(&bytes[..end]);
            assert_eq!(decode::<Records>(&encoded).is_some(), whole.contains(&end), "{end} bytes");
        }
    }
}
