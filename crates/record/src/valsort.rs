//! The Sort Benchmark's validation of a sequence of records, and its summary file (valsort 1.5).
//!
//! Model: a [`Summary`] describes a stretch of a sequence: counters, a sum of CRC-32, the first and the last record.
//! Summaries of neighbouring stretches can be merged.
//! Invariant: the merged 280 bytes do not depend on how the sequence is divided.
//! Non-goals: other record sizes and keys, for which there are proofs.
//!
//! ```text
//! byte 0                 16               32              48               64        80         180        280
//!      | first_unordered | unordered      | records       | duplicates     | crc sum | first    | last     |
//!      | five counters of 128 bits, each hi: u64 then lo: u64, little-endian         | 100 B    | 100 B    |
//! ```
//! `first_unordered` is 0 if there is none (record 0 has no predecessor). `first` and `last` are zeros if there are
//! no records.

use std::fmt::{self, Write};

use crate::gensort::{KEY_BYTES, RECORD_BYTES};

/// Bytes of the summary file of one partition.
pub const SUMMARY_BYTES: usize = 280;
/// Records handled at a time, first their keys and then their checksums: 25 KB, so that they are in the L1 cache the
/// second time.
const BATCH: usize = 256;
/// The maximum count: below it neither the checksum nor a merge can overflow 128 bits.
const RECORDS_MAX: u128 = (1 << 96) - 1;

type Record = [u8; RECORD_BYTES];

/// The validator's result for a stretch of a sequence of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The index in the stretch of the first record that is less than the one before it.
    pub first_unordered: Option<u128>,
    /// The number of records that are less than the one before them.
    pub unordered: u128,
    /// The number of records.
    pub records: u128,
    /// The number of records with the same key as the one before them.
    pub duplicates: u128,
    /// Sum mod 2^128 of the CRC-32 of each record.
    pub crc_sum: u128,
    /// The first record; zeros if there is none.
    pub first: Record,
    /// The last record; zeros if there is none.
    pub last: Record,
}

impl Default for Summary {
    fn default() -> Self {
        Summary {
            first_unordered: None,
            unordered: 0,
            records: 0,
            duplicates: 0,
            crc_sum: 0,
            first: [0; RECORD_BYTES],
            last: [0; RECORD_BYTES],
        }
    }
}

impl Summary {
    /// The summary of no records.
    pub fn new() -> Summary {
        Summary::default()
    }

    /// Whether no record is less than the one before it.
    pub fn is_ordered(&self) -> bool {
        self.unordered == 0
    }

    /// Adds records at the end of the stretch; `bytes` must be complete records.
    pub fn push_records(&mut self, bytes: &[u8]) {
        let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
        assert!(rest.is_empty(), "{} bytes are not whole records of {RECORD_BYTES}", bytes.len());
        for batch in records.chunks(BATCH) {
            self.push(batch);
        }
    }

    fn push(&mut self, records: &[Record]) {
        let (first, last) = (&records[0], &records[records.len() - 1]);
        // The very first record has no predecessor.
        let (before, followers) = match self.records {
            0 => (key(first), &records[1..]),
            _ => (key(&self.last), records),
        };
        let (unordered, duplicates) = count_steps(before, followers);
        if unordered > 0 && self.first_unordered.is_none() {
            let earlier = self.records + (records.len() - followers.len()) as u128;
            self.first_unordered = Some(earlier + first_step_down(before, followers));
        }
        if self.records == 0 {
            self.first = *first;
        }
        self.unordered += u128::from(unordered);
        self.duplicates += u128::from(duplicates);
        let crc = crc_of_record();
        self.crc_sum = self.crc_sum.wrapping_add(records.iter().map(|record| crc(record)).sum::<u128>());
        self.records += records.len() as u128;
        self.last = *last;
    }

    /// Adds the stretch that follows.
    pub fn merge(&mut self, next: &Summary) {
        if next.records == 0 {
            return;
        }
        if self.records == 0 {
            *self = next.clone();
            return;
        }
        let (left, right) = (key(&self.last), key(&next.first));
        if left > right {
            self.unordered += 1;
            self.first_unordered = self.first_unordered.or(Some(self.records));
        }
        self.duplicates += u128::from(left == right) + next.duplicates;
        self.first_unordered =
            self.first_unordered.or(next.first_unordered.map(|index| self.records + index));
        self.unordered += next.unordered;
        self.records += next.records;
        self.crc_sum = self.crc_sum.wrapping_add(next.crc_sum);
        self.last = next.last;
    }

    /// The contents of the reference's summary file.
    pub fn to_bytes(&self) -> [u8; SUMMARY_BYTES] {
        let mut bytes = [0; SUMMARY_BYTES];
        let counters =
            [self.first_unordered.unwrap_or(0), self.unordered, self.records, self.duplicates, self.crc_sum];
        for (value, place) in counters.into_iter().zip(bytes.as_chunks_mut::<16>().0) {
            place[..8].copy_from_slice(&((value >> 64) as u64).to_le_bytes());
            place[8..].copy_from_slice(&(value as u64).to_le_bytes());
        }
        bytes[80..180].copy_from_slice(&self.first);
        bytes[180..].copy_from_slice(&self.last);
        bytes
    }

    /// Reads what [`Summary::to_bytes`] or the reference wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Summary, SummaryError> {
        let bytes: &[u8; SUMMARY_BYTES] =
            bytes.try_into().map_err(|_| SummaryError::Length { found: bytes.len() })?;
        let mut counters = [0; 5];
        for (value, place) in counters.iter_mut().zip(bytes.as_chunks::<16>().0) {
            // The halves are little-endian, the greater one first.
            *value = u128::from_le_bytes(*place).rotate_left(64);
        }
        let [first_unordered, unordered, records, duplicates, crc_sum] = counters;
        let summary = Summary {
            first_unordered: Some(first_unordered).filter(|&index| index > 0),
            unordered,
            records,
            duplicates,
            crc_sum,
            first: *bytes[80..].first_chunk().expect("280 bytes"),
            last: *bytes[180..].first_chunk().expect("280 bytes"),
        };
        summary.contradiction().map_or(Ok(summary), |what| Err(SummaryError::Contradiction(what)))
    }

    /// Describes why no records can have this summary.
    fn contradiction(&self) -> Option<String> {
        let Summary { first_unordered, unordered, records, duplicates, crc_sum, .. } = *self;
        if records > RECORDS_MAX {
            return Some("it has more records than there can be".to_string());
        }
        let steps = records.saturating_sub(1);
        if unordered.checked_add(duplicates).is_none_or(|counted| counted > steps) {
            return Some(format!("{unordered} unordered and {duplicates} duplicate among {records} records"));
        }
        match first_unordered {
            Some(index) if unordered == 0 => {
                return Some(format!("first unordered record {index}, but none is unordered"));
            }
            Some(index) if index >= records => {
                return Some(format!("first unordered record {index} of only {records}"));
            }
            None if unordered > 0 => return Some(format!("{unordered} unordered records, but no first one")),
            _ => {}
        }
        if crc_sum > records * u128::from(u32::MAX) {
            return Some(format!("checksum {crc_sum:x} of only {records} records"));
        }
        None
    }

    /// The lines that the reference prints. The reference rejects an empty sequence; this returns a line that says so.
    pub fn report(&self) -> String {
        let mut text = String::new();
        let mut line = |words: fmt::Arguments<'_>| writeln!(text, "{words}").expect("a string takes all");
        if self.records == 0 {
            line(format_args!("Empty: there are no records"));
        }
        if let Some(index) = self.first_unordered {
            line(format_args!("First unordered record is record {index}"));
        }
        line(format_args!("Records: {}", self.records));
        line(format_args!("Checksum: {:x}", self.crc_sum));
        if self.is_ordered() {
            line(format_args!("Duplicate keys: {}", self.duplicates));
            line(format_args!("SUCCESS - all records are in order"));
        } else {
            line(format_args!("ERROR - there are {} unordered records", self.unordered));
        }
        text
    }
}

/// The ten key bytes as one number for fast comparison.
#[inline(always)]
fn key(record: &Record) -> u128 {
    let head: &[u8; 16] = record.first_chunk().expect("a record is longer than its key");
    u128::from_be_bytes(*head) >> (8 * (16 - KEY_BYTES))
}

/// Counts the records that are less than the one before, and those that are equal to it; `before` is the key before
/// the first. Branch-free: with unsorted records half of the branches would be mispredicted.
fn count_steps(before: u128, records: &[Record]) -> (u64, u64) {
    let (mut last, mut unordered, mut duplicates) = (before, 0, 0);
    for record in records {
        let this = key(record);
        unordered += u64::from(last > this);
        duplicates += u64::from(last == this);
        last = this;
    }
    (unordered, duplicates)
}

/// The index of the first record that is less than the one before. Runs at most once for each summary.
fn first_step_down(before: u128, records: &[Record]) -> u128 {
    let keys = records.iter().map(key);
    let before = std::iter::once(before).chain(keys.clone());
    before.zip(keys).position(|(left, right)| left > right).expect("there is one") as u128
}

/// Returns a function that computes the CRC-32 of a record. Making it detects the CPU's features, so it is made once
/// for many records.
pub(crate) fn crc_of_record() -> impl Fn(&[u8]) -> u128 {
    let fresh = crc32fast::Hasher::new();
    move |record| {
        let mut hasher = fresh.clone();
        hasher.update(record);
        u128::from(hasher.finalize())
    }
}

/// Why bytes are not a summary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SummaryError {
    /// The length is wrong.
    #[error("a summary has {SUMMARY_BYTES} bytes, not {found}")]
    Length {
        /// The length.
        found: usize,
    },
    /// The values contradict each other; the text describes how.
    #[error("not a summary, or a damaged one: {0}")]
    Contradiction(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Generator, Kind};

    /// Records with a key of one letter.
    fn records(keys: &[u8]) -> Vec<u8> {
        let record = |&key: &u8| Generator::at(Kind::default(), u128::from(key)).map(|b| b ^ key);
        let mut all: Vec<Record> = keys.iter().map(record).collect();
        for (record, key) in all.iter_mut().zip(keys) {
            record[..KEY_BYTES].fill(*key);
        }
        all.into_flattened()
    }

    fn summary(bytes: &[u8]) -> Summary {
        let mut summary = Summary::new();
        summary.push_records(bytes);
        summary
    }

    #[test]
    fn unordered_and_duplicate_records_are_counted_against_the_one_just_before() {
        let s = summary(&records(b"abbcacc"));
        assert_eq!((s.records, s.unordered, s.duplicates, s.first_unordered), (7, 1, 2, Some(4)));
        assert_eq!(s.first, records(b"a")[..]);
        assert_eq!(s.last, records(b"c")[..]);
        let s = summary(&records(b"cba"));
        assert_eq!((s.unordered, s.first_unordered), (2, Some(1)));
    }

    #[test]
    fn the_key_is_ten_bytes_and_compares_without_a_sign() {
        let mut two = records(b"\x7f\x80");
        assert!(summary(&two).is_ordered());
        two.copy_within(..RECORD_BYTES, RECORD_BYTES);
        two[RECORD_BYTES + 10] ^= 1;
        assert_eq!(summary(&two).duplicates, 1, "byte 10 is not of the key");
        two[RECORD_BYTES + 9] -= 1;
        assert_eq!(summary(&two).unordered, 1, "byte 9 is");
    }

    #[test]
    fn the_report_has_the_references_lines() {
        let mut s = summary(&records(b"aab"));
        s.crc_sum = 0xabc;
        assert_eq!(
            s.report(),
            "Records: 3\nChecksum: abc\nDuplicate keys: 1\nSUCCESS - all records are in order\n"
        );
        let mut s = summary(&records(b"aba"));
        s.crc_sum = 0;
        assert_eq!(
            s.report(),
            "First unordered record is record 2\nRecords: 3\nChecksum: 0\nERROR - there are 1 unordered records\n"
        );
        assert_eq!(
            Summary::new().report(),
            "Empty: there are no records\nRecords: 0\nChecksum: 0\nDuplicate keys: 0\n\
             SUCCESS - all records are in order\n"
        );
    }

    #[test]
    fn each_counter_is_its_greater_half_first() {
        let s = Summary { records: (7 << 64) + 5, ..Summary::new() };
        let bytes = s.to_bytes();
        assert_eq!(bytes[32..48], [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Summary::from_bytes(&bytes), Ok(s));
    }

    #[test]
    fn invalid_summaries_are_rejected_with_a_reason() {
        let good = summary(&records(b"aba")).to_bytes();
        for wrong in [&good[..279], &good[..0], &[good, good].concat()] {
            let error = Summary::from_bytes(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("not {}", wrong.len())), "{error}");
        }
        for (byte, value, words) in [
            (8, 0, "no first one"),
            (8, 3, "record 3 of only 3"),
            (24, 0, "none is unordered"),
            (24, 3, "3 unordered and 0 duplicate among 3"),
            (40, 0, "among 0 records"),
            (36, 1, "more records than there can be"),
            (64, 1, "of only 3 records"),
        ] {
            let mut bytes = good;
            bytes[byte] = value;
            let error = Summary::from_bytes(&bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    proptest! {
        #[test]
        fn summaries_of_parts_merge_to_that_of_the_whole(
            keys in prop::collection::vec(b'a'..=b'd', 0..40),
            mut cuts in prop::collection::vec(0..=40usize, 0..6),
            grouped_right in any::<bool>(),
        ) {
            let bytes = records(&keys);
            let whole = summary(&bytes);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(keys.len()));
            cuts.extend([0, keys.len()]);
            cuts.sort_unstable();
            let parts: Vec<Summary> = cuts
                .windows(2)
                .map(|ends| summary(&bytes[ends[0] * RECORD_BYTES..ends[1] * RECORD_BYTES]))
                .collect();
            let join = |mut left: Summary, right: &Summary| {
                left.merge(right);
                left
            };
            let merged = if grouped_right {
                parts.iter().rev().fold(Summary::new(), |right, left| join(left.clone(), &right))
            } else {
                parts.iter().fold(Summary::new(), join)
            };
            prop_assert_eq!(&merged, &whole);
            prop_assert_eq!(Summary::from_bytes(&whole.to_bytes()), Ok(merged));
        }

        #[test]
        fn pushing_in_pieces_is_pushing_at_once_and_counts_what_a_plain_loop_counts(
            keys in prop::collection::vec(b'a'..=b'c', 0..600),
            cut in 0..600usize,
        ) {
            let bytes = records(&keys);
            let (left, right) = bytes.split_at(cut.min(keys.len()) * RECORD_BYTES);
            let mut s = summary(left);
            s.push_records(right);
            prop_assert_eq!(&s, &summary(&bytes));
            let downs: Vec<usize> = (1..keys.len()).filter(|&i| keys[i] < keys[i - 1]).collect();
            prop_assert_eq!(s.unordered, downs.len() as u128);
            prop_assert_eq!(s.first_unordered, downs.first().map(|&i| i as u128));
            prop_assert_eq!(s.duplicates, keys.windows(2).filter(|k| k[0] == k[1]).count() as u128);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 280)) {
            let _ = Summary::from_bytes(&bytes);
        }
    }
}
