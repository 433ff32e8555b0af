//! Checks a sequence of records, in parts that are read in parallel.
//!
//! Model: the sequence is divided into *stretches* at arbitrary bytes, and each is checked by its own [`StretchCheck`].
//! A record that crosses the start of a stretch leaves its end in the head of that stretch; a record that crosses the
//! end stays open. When stretches are joined from left to right, each head completes the open record before it.
//!
//! ```text
//! bytes      r r r r|r r r r r r|r r r r r r
//! stretch 0  =======>--                        two bytes open
//! stretch 1           --|===========>-         a head of two bytes, one byte open
//! ```
//! Invariant: the joined result does not depend on how the sequence was divided.
//! Non-goals: reading, lanes.

use thalweg_api::{Examined, PieceEnd, Proof};

use crate::valsort::crc_of_record;
use crate::{KEY_BYTES, Key, Layout, Prover, RECORD_BYTES, Summary, each_record};

/// The maximum count that is accepted from another process; sums of a thousand such counts do not overflow.
const TOLD_MAX: u64 = 1 << 53;

/// The result for a run of complete records.
#[derive(Debug, Clone)]
struct Examiner {
    layout: Layout,
    prover: Prover,
    crc_sum: u128,
    first_unordered: Option<u64>,
}

impl Examiner {
    fn new(layout: Layout, key: &Key) -> Examiner {
        Examiner { layout, prover: Prover::new(layout, key.clone(), true), crc_sum: 0, first_unordered: None }
    }

    /// Adds complete records (lines with their newlines).
    fn push(&mut self, bytes: &[u8]) {
        let before = if self.first_unordered.is_none() { Some(self.prover.clone()) } else { None };
        self.prover.push(bytes);
        assert_eq!(self.prover.unfinished(), 0, "an examiner takes whole records");
        if let Some(before) = before
            && self.prover.proof().unordered > 0
        {
            self.first_unordered = Some(first_unordered(before, bytes));
        }
        self.crc_sum = self.crc_sum.wrapping_add(crc_sum_of(self.layout, bytes));
    }

    /// Adds the records that follow.
    fn join(&mut self, next: &Examiner) {
        let (records, unordered) = (self.prover.proof().records, self.prover.proof().unordered);
        self.prover.join(&next.prover);
        let at_the_joint = self.prover.proof().unordered > unordered + next.prover.proof().unordered;
        let later = if at_the_joint { Some(0) } else { next.first_unordered };
        self.first_unordered = self.first_unordered.or(later.map(|index| records + index));
        self.crc_sum = self.crc_sum.wrapping_add(next.crc_sum);
    }
}

/// The index of the first record that is less than its predecessor. `before` has no such record; the next `bytes` have
/// one. Bisects the bytes with the prover itself, so that only one piece of code compares records. Runs at most once
/// for each check.
fn first_unordered(mut before: Prover, mut bytes: &[u8]) -> u64 {
    while bytes.len() > 1 {
        let (left, right) = bytes.split_at(bytes.len() / 2);
        let mut after = before.clone();
        after.push(left);
        if after.proof().unordered > 0 {
            bytes = left;
        } else {
            (before, bytes) = (after, right);
        }
    }
    // The last byte completes the unordered record, which is not counted yet.
    before.proof().records
}

/// The sum of the CRC-32 of each record. The records are complete; lines count without their newlines.
fn crc_sum_of(layout: Layout, bytes: &[u8]) -> u128 {
    let (crc, mut sum) = (crc_of_record(), 0);
    each_record!(layout, bytes, 0, |_, record, _| sum += crc(record.alone()));
    sum
}

/// How much of a stretch belongs to a record that began before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeadEnd {
    /// This many more bytes.
    After(usize),
    /// Everything up to the first newline. If the stretch begins with a new line, that line is checked with the
    /// stretch before, which does no harm.
    AfterNewline,
}

/// The check of a stretch of a sequence of records.
#[derive(Debug, Clone)]
pub struct StretchCheck {
    layout: Layout,
    examiner: Examiner,
    /// Where the head ends; `None` once it is complete.
    head_end: Option<HeadEnd>,
    /// The end of a record that began before the stretch.
    head: Vec<u8>,
    /// The start of a record that has not ended.
    open: Vec<u8>,
}

impl StretchCheck {
    /// The first stretch of a sequence.
    pub fn first(layout: Layout, key: &Key) -> StretchCheck {
        let examiner = Examiner::new(layout, key);
        StretchCheck { layout, examiner, head_end: None, head: Vec::new(), open: Vec::new() }
    }

    /// A stretch that begins at byte `at`. If records cannot be found from the middle, that must be 0.
    pub fn at(layout: Layout, key: &Key, at: u64) -> StretchCheck {
        let head_end = match layout {
            Layout::Fixed(n) => match at % u64::from(n) {
                0 => None,
                inside => Some(HeadEnd::After(n as usize - inside as usize)),
            },
            Layout::Lines => (at > 0).then_some(HeadEnd::AfterNewline),
            Layout::Prefixed | Layout::TaggedPrefixed => {
                assert_eq!(at, 0, "a stretch of prefixed records begins with one");
                None
            }
        };
        StretchCheck { head_end, ..StretchCheck::first(layout, key) }
    }

    /// A stretch that another process has checked; an error if no records can have this result.
    pub fn of_examined(layout: Layout, key: &Key, told: Examined) -> Result<StretchCheck, String> {
        if let Some(wrong) = contradiction(layout, &told) {
            return Err(wrong);
        }
        // Without a record and the start of one, all of it may belong to one record.
        let is_inside = !told.head.is_empty() && told.open.is_empty() && told.proof.records == 0;
        let prover = Prover::new(layout, key.clone(), true).of_piece(told.proof, told.ends);
        let (crc_sum, first_unordered) = (told.crc_sum, told.first_unordered);
        let examiner = Examiner { layout, prover, crc_sum, first_unordered };
        let head_end = is_inside.then_some(HeadEnd::AfterNewline);
        Ok(StretchCheck { layout, examiner, head_end, head: told.head, open: told.open })
    }

    /// The result of a stretch, for another process.
    pub fn examined(&self) -> Examined {
        Examined {
            lengths: Vec::new(),
            proof: *self.proof(),
            crc_sum: self.crc_sum(),
            first_unordered: self.first_unordered(),
            ends: self.examiner.prover.piece_ends(),
            head: self.head.clone(),
            open: self.open.clone(),
        }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let rest = self.take_head(bytes);
        self.take(rest);
    }

    /// Bytes of unfinished records.
    pub fn unfinished(&self) -> usize {
        self.open.len() + if self.head_end.is_some() { self.head.len() } else { 0 }
    }

    /// Ends a last line without a newline.
    pub fn end_line(&mut self) {
        if !self.open.is_empty() {
            self.take(self.layout.end());
        }
    }

    /// Adds the stretch that follows.
    pub fn join(&mut self, next: &StretchCheck) {
        assert!(self.join_told(next), "a head that ended ends the open record");
    }

    /// Adds the stretch that follows, which another process may have checked; false if it cannot follow.
    pub fn join_told(&mut self, next: &StretchCheck) -> bool {
        if self.head_end.is_some() {
            let head = [&self.head[..], &next.head].concat();
            *self = StretchCheck { head, ..next.clone() };
            return true;
        }
        self.take(&next.head);
        if next.head_end.is_some() {
            return true;
        }
        let fits = self.open.is_empty();
        self.examiner.join(&next.examiner);
        self.open.extend_from_slice(&next.open);
        fits
    }

    /// The layout of the records.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The proof of the finished records.
    pub fn proof(&self) -> &Proof {
        self.examiner.prover.proof()
    }

    /// The sum of the CRC-32 of each record.
    pub fn crc_sum(&self) -> u128 {
        self.examiner.crc_sum
    }

    /// The index of the first record that is less than the one before.
    pub fn first_unordered(&self) -> Option<u64> {
        self.examiner.first_unordered
    }

    /// The Sort Benchmark's summary, if [`is_benchmark`] is true for layout and key.
    pub fn summary(&self) -> Summary {
        assert_eq!(self.layout, Layout::Fixed(RECORD_BYTES as u32));
        let (proof, (first, last)) = (self.proof(), self.examiner.prover.ends());
        let mut summary = Summary {
            first_unordered: self.first_unordered().map(u128::from),
            unordered: u128::from(proof.unordered),
            records: u128::from(proof.records),
            duplicates: u128::from(proof.duplicates),
            crc_sum: self.crc_sum(),
            ..Summary::new()
        };
        if proof.records > 0 {
            summary.first.copy_from_slice(first);
            summary.last.copy_from_slice(last);
        }
        summary
    }

    /// Moves bytes of an earlier record into the head, and returns the remaining bytes.
    fn take_head<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (taken, left) = match self.head_end {
            None => return bytes,
            Some(HeadEnd::After(n)) if n > bytes.len() => {
                (bytes.len(), Some(HeadEnd::After(n - bytes.len())))
            }
            Some(HeadEnd::After(n)) => (n, None),
            Some(HeadEnd::AfterNewline) => match memchr::memchr(b'\n', bytes) {
                Some(newline) => (newline + 1, None),
                None => (bytes.len(), Some(HeadEnd::AfterNewline)),
            },
        };
        self.head.extend_from_slice(&bytes[..taken]);
        self.head_end = left;
        &bytes[taken..]
    }

    /// Handles bytes after the head: ends the open record, checks the complete ones, keeps the rest.
    fn take(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if !self.open.is_empty() {
            let Some(end) = self.layout.completes(&self.open, bytes) else {
                self.open.extend_from_slice(bytes);
                return;
            };
            self.open.extend_from_slice(&bytes[..end]);
            self.examiner.push(&self.open);
            self.open.clear();
            bytes = &bytes[end..];
        }
        let whole = self.layout.whole(bytes);
        if whole > 0 {
            self.examiner.push(&bytes[..whole]);
        }
        self.open.extend_from_slice(&bytes[whole..]);
    }
}

/// Describes why no records can have this result.
fn contradiction(layout: Layout, told: &Examined) -> Option<String> {
    let Examined { proof, first_unordered, ends, .. } = told;
    let Proof { records, bytes, unordered, duplicates, .. } = *proof;
    if records.max(bytes) > TOLD_MAX {
        return Some(format!("{records} records of {bytes} bytes are more than there can be"));
    }
    if unordered.checked_add(duplicates).is_none_or(|steps| steps > records.saturating_sub(1)) {
        return Some(format!("{unordered} unordered and {duplicates} duplicate among {records} records"));
    }
    let first_fits = match *first_unordered {
        Some(index) => unordered > 0 && index > 0 && index < records,
        None => unordered == 0,
    };
    if !first_fits {
        return Some(format!("first unordered record {first_unordered:?}, and {unordered} of {records} are"));
    }
    let is_record = |end: &PieceEnd| match layout.fixed_bytes() {
        Some(n) => end.record.len() == if records > 0 { n } else { 0 },
        None => end.record.len() as u64 <= bytes,
    };
    let parts = [told.head.len(), told.open.len()];
    let are_parts = match layout {
        Layout::Fixed(n) => parts.iter().all(|len| *len < n as usize),
        Layout::Lines => true,
        Layout::Prefixed | Layout::TaggedPrefixed => parts == [0, 0],
    };
    if !are_parts {
        return Some(format!("{parts:?} bytes are no parts of records"));
    }
    let whole = ends.iter().all(|end| end.long.is_none() && is_record(end));
    (!whole).then(|| format!("first and last of {records} records are not whole"))
}

/// Whether layout and key are those of the Sort Benchmark.
pub fn is_benchmark(layout: Layout, key: &Key) -> bool {
    layout == Layout::Fixed(RECORD_BYTES as u32) && key.as_slice() == Some((0, KEY_BYTES))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Generator, KeyPart, Kind};

    const TEN: KeyPart = KeyPart { offset: 0, length: 10, descending: false };

    /// Checks the stretches between `cuts`, each fed in pieces of `piece` bytes, and joins them.
    fn examine(layout: Layout, key: &Key, bytes: &[u8], cuts: &[usize], piece: usize) -> StretchCheck {
        let mut cuts: Vec<usize> = cuts.iter().map(|&cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let stretch = |ends: &[usize]| {
            let mut stretch = StretchCheck::at(layout, key, ends[0] as u64);
            bytes[ends[0]..ends[1]].chunks(piece).for_each(|bytes| stretch.push(bytes));
            stretch
        };
        cuts.windows(2).map(stretch).fold(StretchCheck::first(layout, key), |mut whole, next| {
            whole.join(&next);
            whole
        })
    }

    /// A reference implementation of proof, checksum and first unordered record.
    fn truth(key: &Key, records: &[&[u8]]) -> (Proof, u128, Option<u64>) {
        let mut proof = Proof::default();
        let mut downs = Vec::new();
        for (i, record) in records.iter().enumerate() {
            crate::add_record(&mut proof, record);
            if i > 0 {
                match key.compare(records[i - 1], record) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => proof.duplicates += 1,
                    std::cmp::Ordering::Greater => downs.push(i as u64),
                }
            }
        }
        proof.unordered = downs.len() as u64;
        let crc_sum = records.iter().map(|r| u128::from(crc32fast::hash(r))).sum();
        (proof, crc_sum, downs.first().copied())
    }

    fn told(stretch: &StretchCheck) -> (Proof, u128, Option<u64>) {
        (*stretch.proof(), stretch.crc_sum(), stretch.first_unordered())
    }

    proptest! {
        #[test]
        fn checks_of_lines_do_not_depend_on_the_division(
            text in "[ab\n]{0,60}",
            cuts in prop::collection::vec(0..64usize, 0..6),
            piece in 1..20usize,
        ) {
            let mut bytes = text.into_bytes();
            let key = Key::new(Layout::Lines, &[]).unwrap();
            let mut whole = examine(Layout::Lines, &key, &bytes, &cuts, piece);
            whole.end_line();
            prop_assert_eq!(whole.unfinished(), 0);
            if bytes.last().is_some_and(|&b| b != b'\n') {
                bytes.push(b'\n');
            }
            bytes.pop();
            let records: Vec<&[u8]> = match whole.proof().records {
                0 => Vec::new(),
                _ => bytes.split(|&b| b == b'\n').collect(),
            };
            prop_assert_eq!(told(&whole), truth(&key, &records));
        }

        #[test]
        fn checks_of_fixed_records_do_not_depend_on_the_division(
            mut bytes in prop::collection::vec(b'a'..=b'c', 0..90),
            n in 1..9u32,
            cuts in prop::collection::vec(0..90usize, 0..6),
            piece in 1..20usize,
            descending in any::<bool>(),
        ) {
            let (layout, n) = (Layout::Fixed(n), n as usize);
            let key = Key::new(layout, &[KeyPart { offset: 0, length: n.min(2) as u32, descending }]).unwrap();
            let whole = examine(layout, &key, &bytes, &cuts, piece);
            prop_assert_eq!(whole.unfinished(), bytes.len() % n);
            bytes.truncate(bytes.len() - bytes.len() % n);
            prop_assert_eq!(told(&whole), truth(&key, &bytes.chunks(n).collect::<Vec<_>>()));
        }

        #[test]
        fn reported_checks_join_like_local_ones(
            left in prop::collection::vec("[ab]{0,3}", 0..6),
            right in prop::collection::vec("[ab]{0,3}", 0..6),
        ) {
            let key = Key::new(Layout::Lines, &[]).unwrap();
            let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let whole = examine(Layout::Lines, &key, (text(&left) + &text(&right)).as_bytes(), &[], 1000);
            let mut joined = StretchCheck::first(Layout::Lines, &key);
            for lines in [&left, &right] {
                let told = examine(Layout::Lines, &key, text(lines).as_bytes(), &[], 7).examined();
                joined.join(&StretchCheck::of_examined(Layout::Lines, &key, told).unwrap());
            }
            prop_assert_eq!(joined.examined(), whole.examined());
        }

        /// Two processes that each join some stretches, and a third one that joins their results.
        #[test]
        fn pieces_that_begin_inside_records_join_like_stretches(
            text in "([ab]{0,9}\n){0,8}",
            fixed in prop::option::of(1..9u32),
            mut cuts in prop::collection::vec(0..64usize, 3),
        ) {
            let layout = fixed.map_or(Layout::Lines, Layout::Fixed);
            let key = Key::new(layout, &[]).unwrap();
            let len = text.len() - fixed.map_or(0, |n| text.len() % n as usize);
            let bytes = &text.as_bytes()[..len];
            let expected = examine(layout, &key, bytes, &[], 1000).examined();
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(len));
            cuts.sort_unstable();
            let stretch = |from: usize, to: usize| {
                let mut stretch = StretchCheck::at(layout, &key, from as u64);
                stretch.push(&bytes[from..to]);
                stretch
            };
            let mut whole = StretchCheck::first(layout, &key);
            for [from, inside, to] in [[0, cuts[0], cuts[1]], [cuts[1], cuts[2], len]] {
                let mut piece = stretch(from, inside);
                piece.join(&stretch(inside, to));
                let piece = StretchCheck::of_examined(layout, &key, piece.examined()).unwrap();
                prop_assert!(whole.join_told(&piece));
            }
            prop_assert_eq!(whole.examined(), expected);
        }

        /// Two implementations that share only the comparison of bytes.
        #[test]
        fn the_summary_is_the_validators(
            keys in prop::collection::vec(b'a'..=b'c', 0..30),
            cuts in prop::collection::vec(0..3000usize, 0..4),
        ) {
            let layout = Layout::Fixed(RECORD_BYTES as u32);
            let key = Key::new(layout, &[TEN]).unwrap();
            let mut bytes = vec![0; keys.len() * RECORD_BYTES];
            Generator::new(Kind::default(), 0).fill(&mut bytes);
            for (record, letter) in bytes.as_chunks_mut::<RECORD_BYTES>().0.iter_mut().zip(&keys) {
                record[..KEY_BYTES].fill(*letter);
            }
            let mut summary = Summary::new();
            summary.push_records(&bytes);
            prop_assert_eq!(examine(layout, &key, &bytes, &cuts, 1000).summary(), summary);
        }
    }

    #[test]
    fn checksum_and_first_unordered_record_are_the_benchmarks() {
        let layout = Layout::Fixed(RECORD_BYTES as u32);
        let key = Key::new(layout, &[TEN]).unwrap();
        let mut bytes = vec![0; 100_000];
        Generator::new(Kind::default(), 0).fill(&mut bytes);
        let whole = examine(layout, &key, &bytes, &[55_555], 4096);
        assert_eq!(whole.crc_sum(), 0x1ea_6370_b955);
        assert_eq!(whole.first_unordered(), Some(2));
    }

    #[test]
    fn impossible_checks_are_rejected() {
        let layout = Layout::Fixed(2);
        let key = Key::new(layout, &[]).unwrap();
        let told = examine(layout, &key, b"aabbaaaa", &[], 100).examined();
        assert_eq!((told.proof.records, told.first_unordered), (4, Some(2)));
        type Wrong = fn(&mut Examined);
        let wrongs: [(Wrong, &str); 8] = [
            (|told| told.proof.records = u64::MAX, "more than there can be"),
            (|told| told.proof.bytes = u64::MAX, "more than there can be"),
            (|told| told.proof.duplicates = 3, "1 unordered and 3 duplicate among 4"),
            (|told| told.proof.unordered = u64::MAX, "among 4 records"),
            (|told| told.first_unordered = Some(4), "first unordered record Some(4)"),
            (|told| told.first_unordered = None, "first unordered record None"),
            (|told| told.ends[1].record.truncate(1), "are not whole"),
            (|told| told.ends[0].long = Some(Default::default()), "are not whole"),
        ];
        for (wrong, words) in wrongs {
            let mut told = told.clone();
            wrong(&mut told);
            let why = StretchCheck::of_examined(layout, &key, told).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        assert!(StretchCheck::of_examined(layout, &key, told).is_ok());
    }

    #[test]
    fn only_hundred_bytes_with_ten_of_key_are_the_benchmarks() {
        let benchmark = |n, parts: &[KeyPart]| {
            let layout = Layout::Fixed(n);
            is_benchmark(layout, &Key::new(layout, parts).unwrap())
        };
        assert!(benchmark(100, &[TEN]));
        assert!(!benchmark(101, &[TEN]) && !benchmark(100, &[]));
        assert!(!benchmark(100, &[KeyPart { descending: true, ..TEN }]));
    }
}
