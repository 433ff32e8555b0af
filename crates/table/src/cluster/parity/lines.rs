//! A sparse array of bytes: the data of parity buckets, and the sums from which lost buckets are recovered.
//!
//! ```text
//! rank 0  [bytes ........]       a record of a data bucket: [key length: u16][value length: u32][key][value]
//! rank 1  [bytes ....]           a line of a parity bucket: the sum of the records with this rank
//! ```
//!
//! Model: each line is a number of records of a slab, so that its memory counts. Zeros at the end of a line are not
//! stored, so lines have no length, and a line of zeros does not exist.

use super::super::interval::Bytes;
use super::field;
use crate::bucket::Bucket;
use crate::slab::{Full, KEY_BYTES_MAX, Slab, VALUE_BYTES_MAX};

/// A line is stored in parts of this many bytes, since key and value of a record together may exceed a value.
const PART_BYTES: usize = 512 << 10;
/// The bytes before the key.
const HEAD_BYTES: usize = 6;
/// The longest line.
pub(crate) const LINE_BYTES_MAX: usize = HEAD_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX;

/// The number of a record in its bucket, and of the line that it adds to.
pub(crate) type Rank = u32;

/// The line of a record.
pub(crate) fn line(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(HEAD_BYTES + key.len() + value.len());
    line.extend((key.len() as u16).to_le_bytes());
    // One more, so that a record without key and value is not a line of zeros.
    line.extend((value.len() as u32 + 1).to_le_bytes());
    line.extend(key);
    line.extend(value);
    line
}

/// The key and value of a line without the zeros at its end.
pub(crate) fn record(mut line: Vec<u8>) -> Option<(Bytes, Bytes)> {
    line.resize(line.len().max(HEAD_BYTES), 0);
    let key_len = usize::from(u16::from_le_bytes([line[0], line[1]]));
    let value_len = (u32::from_le_bytes([line[2], line[3], line[4], line[5]]) as usize).checked_sub(1)?;
    if key_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
        return None;
    }
    let len = HEAD_BYTES + key_len + value_len;
    if line.len() > len {
        return None;
    }
    line.resize(len, 0);
    let (key, value) = line[HEAD_BYTES..].split_at(key_len);
    Some((key.into(), value.into()))
}

/// What has to be added to the first line to make the second.
pub(crate) fn difference(mut old: Vec<u8>, new: &[u8]) -> Vec<u8> {
    old.resize(old.len().max(new.len()), 0);
    field::add(&mut old, 1, new);
    old
}

/// Lines by rank.
pub(crate) struct Lines {
    parts: Bucket,
}

fn part_key(rank: Rank, part: usize) -> [u8; 5] {
    let [a, b, c, d] = rank.to_be_bytes();
    [a, b, c, d, part as u8]
}

impl Lines {
    /// No lines.
    pub(crate) fn new(slab: &mut Slab) -> Result<Lines, Full> {
        Ok(Lines { parts: Bucket::new(slab)? })
    }

    /// Adds `factor` times these bytes to a line.
    ///
    /// # Errors
    /// If memory is full. A line of several parts may then have changed in part; see [`has_room`].
    pub(crate) fn add(&mut self, slab: &mut Slab, rank: Rank, factor: u8, bytes: &[u8]) -> Result<(), Full> {
        for (part, bytes) in bytes.chunks(PART_BYTES).enumerate() {
            let key = part_key(rank, part);
            let mut sum = self.parts.get(slab, &key).map_or_else(Vec::new, |old| old.value.to_vec());
            sum.resize(sum.len().max(bytes.len()), 0);
            field::add(&mut sum, factor, bytes);
            let len = sum.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            match len {
                0 => _ = self.parts.remove(slab, &key),
                _ => _ = self.parts.put(slab, &key, &sum[..len], None)?,
            }
        }
        Ok(())
    }

    /// The first line at or after a rank.
    pub(crate) fn at_or_after(&self, slab: &Slab, rank: Rank) -> Option<(Rank, Vec<u8>)> {
        let mut place = self.parts.seek(slab, &part_key(rank, 0), false);
        let mut found: Option<(Rank, Vec<u8>)> = None;
        while let Some(part) = self.parts.next(slab, &mut place) {
            let [a, b, c, d, number] = *part.key else { unreachable!("part_key makes five bytes") };
            let rank = Rank::from_be_bytes([a, b, c, d]);
            if found.as_ref().is_some_and(|(first, _)| *first != rank) {
                break;
            }
            let (_, line) = found.get_or_insert_with(|| (rank, Vec::new()));
            line.resize(usize::from(number) * PART_BYTES, 0);
            line.extend(part.value);
        }
        found
    }

    /// The lines from the rank of a cursor on, of about so many bytes, and the cursor of the next ones.
    pub(crate) fn part(
        &self,
        slab: &Slab,
        cursor: &[u8],
        bytes_max: usize,
    ) -> (Vec<(Rank, Bytes)>, Option<Bytes>) {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let mut next = cursor.try_into().map_or(0, Rank::from_be_bytes);
        while let Some((rank, line)) = self.at_or_after(slab, next) {
            if bytes >= bytes_max {
                return (lines, Some(rank.to_be_bytes()[..].into()));
            }
            bytes += line.len();
            next = rank + 1;
            lines.push((rank, line.into()));
        }
        (lines, None)
    }

    /// Removes all lines, and returns their memory to the slab.
    pub(crate) fn clear(self, slab: &mut Slab) {
        self.parts.clear(slab);
    }
}

/// The memory that a change of one line needs at most, with the slab's segments.
const CHANGE_BYTES: usize = 4 << 20;

/// Whether there is memory for any change of a line.
pub(crate) fn has_room(slab: &Slab) -> bool {
    slab.limit() - slab.used().min(slab.limit()) >= CHANGE_BYTES
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_has_its_record_whatever_zeros_it_ends_with() {
        for (key, value) in
            [(&b""[..], &b""[..]), (b"k", b""), (b"k\0", b"\0\0"), (b"", b"v\0v"), (b"\0", b"")]
        {
            let mut line = line(key, value);
            while line.last() == Some(&0) {
                line.pop();
            }
            assert!(!line.is_empty());
            assert_eq!(record(line), Some((key.into(), value.into())));
        }
        for wrong in [&b""[..], b"\xff\xff\x01", b"\0\0\xff\xff\xff\xff", b"\0\0\x01\0\0\0more"] {
            assert_eq!(record(wrong.into()), None);
        }
    }

    #[test]
    fn long_lines_are_stored_in_parts_and_end_when_they_are_zero() {
        let mut slab = Slab::new(32 << 20);
        let mut lines = Lines::new(&mut slab).unwrap();
        let empty = slab.used();
        let long = line(&[1; KEY_BYTES_MAX], &vec![7; VALUE_BYTES_MAX]);
        assert_eq!(long.len(), LINE_BYTES_MAX);
        lines.add(&mut slab, 3, 1, &long).unwrap();
        lines.add(&mut slab, 4, 1, &[0; PART_BYTES]).unwrap();
        assert_eq!(lines.at_or_after(&slab, 0), Some((3, long.clone())));
        assert_eq!(lines.at_or_after(&slab, 4), None);
        lines.add(&mut slab, 3, 1, &long).unwrap();
        assert_eq!(lines.at_or_after(&slab, 0), None);
        assert_eq!(slab.used(), empty);
    }

    proptest! {
        #[test]
        fn lines_are_the_sums_of_what_was_added(
            added in vec((0..4u32, any::<u8>(), vec(any::<u8>(), 0..6)), 0..40),
        ) {
            let mut slab = Slab::new(1 << 20);
            let mut lines = Lines::new(&mut slab).unwrap();
            let mut model: BTreeMap<Rank, [u8; 6]> = BTreeMap::new();
            for (rank, factor, bytes) in added {
                lines.add(&mut slab, rank, factor, &bytes).unwrap();
                field::add(model.entry(rank).or_default(), factor, &bytes);
            }
            model.retain(|_, line| line.iter().any(|byte| *byte != 0));
            let mut rank = 0;
            let mut found = BTreeMap::new();
            while let Some((at, mut line)) = lines.at_or_after(&slab, rank) {
                line.resize(6, 0);
                found.insert(at, line.try_into().unwrap());
                rank = at + 1;
            }
            prop_assert_eq!(found, model);
        }
    }
}
