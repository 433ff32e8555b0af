//! The layout of records in a stream of bytes, and the parts of their keys.
//!
//! ```text
//! fixed      [ record ][ record ][ record ]            all have the same length
//! lines      [ record ]\n[ record ]\n                  a newline ends a record and is not part of it
//! prefixed   [length| bytes ][length| bytes ]          u32, little-endian, counts the bytes after it
//! ```
//!
//! Model: code that walks over records calls the [`Layout`] to find where they begin and end, and does not match on
//! its variants. A prefixed record includes its prefix; key offsets count from the end of the prefix. The start of a
//! prefixed record is known only from the records before it, so one reader reads such a file from its start.

use thalweg_api::RecordForm;

use crate::tags::TAG_BYTES;

/// Bytes of the length prefix.
const PREFIX_BYTES: usize = size_of::<u32>();
/// This many consistent lengths in a row are assumed to be lengths of records.
const GUESS_RECORDS: usize = 8;
/// The maximum length of a record that is guessed to continue after the piece.
const GUESS_BYTES_MAX: usize = 16 << 20;

/// Evaluates an expression for every complete record in some bytes, starting at an offset where a record begins. The
/// expression gets the offset, the record, and its length including the terminator. Returns the end of the last record.
///
/// This is a macro so that the expression is compiled into each loop; as a closure it cost sorts 5 % more
/// instructions.
#[macro_export]
macro_rules! each_record {
    ($layout:expr, $bytes:expr, $from:expr, |$at:pat_param, $record:pat_param, $len:pat_param| $body:expr) => {{
        let (layout, bytes, mut from): ($crate::Layout, &[u8], usize) = ($layout, $bytes, $from);
        match layout {
            $crate::Layout::Fixed(n) => {
                let n = n as usize;
                while from + n <= bytes.len() {
                    let ($at, $record, $len) = (from, $crate::InPlace::new(&bytes[from..], n), n);
                    let () = $body;
                    from += n;
                }
            }
            $crate::Layout::Lines => {
                let (lines, mut line) = (&bytes[from..], 0);
                for end in $crate::newlines(lines) {
                    let n = end - line;
                    let ($at, $record, $len) = (from + line, $crate::InPlace::new(&lines[line..], n), n + 1);
                    let () = $body;
                    line = end + 1;
                }
                from += line;
            }
            $crate::Layout::Prefixed | $crate::Layout::TaggedPrefixed => {
                while let Some(n) = layout.length(&bytes[from..])
                    && n <= bytes.len() - from
                {
                    let ($at, $record, $len) = (from, $crate::InPlace::new(&bytes[from..], n), n);
                    let () = $body;
                    from += n;
                }
            }
        }
        from
    }};
}

/// The layout of records in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Every record has this many bytes, at least 1.
    Fixed(u32),
    /// Records are lines. The newline ends a record and is not part of it.
    #[default]
    Lines,
    /// Every record begins with its length: four bytes, little-endian, which count the bytes after them.
    Prefixed,
    /// Prefixed records with a tag of eight bytes before the prefix, which is part of the record; used by shuffles.
    TaggedPrefixed,
}

impl Layout {
    /// The layout, from its form in messages.
    pub fn of(form: &RecordForm) -> Layout {
        match form.record {
            Some(bytes) => Layout::Fixed(bytes),
            None if form.prefixed => Layout::Prefixed,
            None => Layout::Lines,
        }
    }

    /// The reverse of [`Layout::of`].
    pub fn form(self) -> RecordForm {
        RecordForm {
            record: self.fixed_bytes().map(|bytes| bytes as u32),
            prefixed: self.prefix_at().is_some(),
        }
    }

    /// Bytes of a record, if all have the same length.
    #[inline(always)]
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            Layout::Fixed(n) => Some(n as usize),
            _ => None,
        }
    }

    /// Bytes of the terminator of a record.
    #[inline(always)]
    pub fn end_bytes(self) -> usize {
        self.end().len()
    }

    /// The terminator of a record, which is not part of it.
    #[inline(always)]
    pub fn end(self) -> &'static [u8] {
        match self {
            Layout::Lines => b"\n",
            _ => b"",
        }
    }

    /// What a record is called in messages.
    pub fn noun(self) -> &'static str {
        match self {
            Layout::Lines => "line",
            _ => "record",
        }
    }

    /// Whether records can be found from the middle of a file. Otherwise a file is read from its start.
    pub fn is_found_anywhere(self) -> bool {
        self.prefix_at().is_none()
    }

    /// The offset of the length in a record.
    #[inline(always)]
    fn prefix_at(self) -> Option<usize> {
        match self {
            Layout::Fixed(_) | Layout::Lines => None,
            Layout::Prefixed => Some(0),
            Layout::TaggedPrefixed => Some(TAG_BYTES),
        }
    }

    /// How many bytes at the start of a record determine its length, if any do.
    #[inline(always)]
    pub fn start_bytes(self) -> Option<usize> {
        self.prefix_at().map(|at| at + PREFIX_BYTES)
    }

    /// The offset of the first byte that can be part of a key.
    pub(crate) fn key_offset(self) -> usize {
        match self {
            Layout::Prefixed => PREFIX_BYTES,
            _ => 0,
        }
    }

    /// The record without its prefix.
    pub fn contents(self, record: &[u8]) -> &[u8] {
        &record[self.key_offset()..]
    }

    /// The prefix of a record with this many bytes of contents, if it has one.
    pub fn prefix(self, contents: usize) -> Option<[u8; PREFIX_BYTES]> {
        let prefix =
            |bytes| u32::try_from(bytes).expect("a prefixed record has less than 4 GiB").to_le_bytes();
        (self.key_offset() > 0).then(|| prefix(contents))
    }

    /// Appends a record with these contents, with its prefix or terminator.
    pub fn push(self, contents: &[u8], into: &mut Vec<u8>) {
        into.extend(self.prefix(contents.len()).into_iter().flatten());
        into.extend_from_slice(contents);
        into.extend_from_slice(self.end());
    }

    /// The layout of these records after they are tagged.
    pub fn tagged(self) -> Layout {
        match self {
            Layout::Fixed(n) => Layout::Fixed(n + TAG_BYTES as u32),
            Layout::Lines => Layout::Lines,
            Layout::Prefixed | Layout::TaggedPrefixed => Layout::TaggedPrefixed,
        }
    }

    /// The layout of records that a join makes of a record of this layout and one of `right`.
    pub fn joined(self, right: Layout) -> Layout {
        match (self, right) {
            (Layout::Fixed(left), Layout::Fixed(right)) => Layout::Fixed(left + right),
            _ => self,
        }
    }

    /// The length of the record that begins here, with its terminator, if these bytes determine it.
    #[inline(always)]
    pub fn length(self, start: &[u8]) -> Option<usize> {
        match self {
            Layout::Fixed(n) => Some(n as usize),
            Layout::Lines => memchr::memchr(b'\n', start).map(|end| end + 1),
            Layout::Prefixed => prefixed(start, 0),
            Layout::TaggedPrefixed => prefixed(start, TAG_BYTES),
        }
    }

    /// How many bytes of `more` complete the record that begins with `begun`, including its terminator.
    #[inline]
    pub fn completes(self, begun: &[u8], more: &[u8]) -> Option<usize> {
        let missing = match self {
            Layout::Fixed(n) => n as usize - begun.len(),
            Layout::Lines => self.length(more)?,
            Layout::Prefixed | Layout::TaggedPrefixed => match self.length(begun) {
                Some(n) => n - begun.len(),
                None => {
                    self.length(&[begun, &more[..more.len().min(self.start_bytes()?)]].concat())?
                        - begun.len()
                }
            },
        };
        (missing <= more.len()).then_some(missing)
    }

    /// As [`Layout::completes`], for a record of which `len` bytes have come, and `start` are only the first of them, but
    /// more than determine its length.
    pub(crate) fn completes_long(self, start: &[u8], len: usize, more: &[u8]) -> Option<usize> {
        let missing = match self {
            Layout::Lines => self.length(more)?,
            _ => self.length(start)? - len,
        };
        (missing <= more.len()).then_some(missing)
    }

    /// The offset of the first record that begins in a piece of a file or right after it. The file has `before` bytes
    /// before the piece. `None` if no record begins there, or if the piece does not determine where.
    #[inline]
    pub fn first_record(self, piece: &[u8], before: u64) -> Option<usize> {
        match self {
            Layout::Fixed(n) => {
                let first = (before.next_multiple_of(u64::from(n)) - before) as usize;
                (first <= piece.len()).then_some(first)
            }
            _ if before == 0 => Some(0),
            Layout::Lines => memchr::memchr(b'\n', piece).map(|end| end + 1),
            Layout::Prefixed | Layout::TaggedPrefixed => None,
        }
    }

    /// Whether an unfinished record can begin with `open` at byte `at` of a file. `before` is the byte before it, or
    /// empty.
    pub fn may_begin(self, at: u64, before: &[u8], open: &[u8]) -> bool {
        let begins = match self {
            Layout::Fixed(n) => at.is_multiple_of(u64::from(n)),
            Layout::Lines => before.iter().all(|byte| *byte == b'\n'),
            Layout::Prefixed | Layout::TaggedPrefixed => true,
        };
        begins && self.length(open).is_none_or(|n| open.len() < n)
    }

    /// Calls `take` for about `count` records that begin in a piece of a file, at equal distances, with their offsets
    /// and the bytes of them that the piece contains. The file has `before` bytes before the piece.
    pub fn some_records(self, piece: &[u8], before: u64, count: usize, mut take: impl FnMut(usize, &[u8])) {
        let stride = match self.fixed_bytes() {
            Some(n) => (piece.len() / n / count).max(1) * n,
            None => (piece.len() / count).max(1),
        };
        let first = |at: usize| match self {
            // It is unknown whether a line begins at the start of the piece.
            Layout::Lines => Some(at + memchr::memchr(b'\n', &piece[at..])? + 1),
            _ if at == 0 => self.first_record(piece, before).or_else(|| self.guess_first(piece)),
            Layout::Fixed(_) => Some(at),
            Layout::Prefixed | Layout::TaggedPrefixed => Some(at + self.guess_first(&piece[at..])?),
        };
        let mut at = 0;
        while let Some(from) = first(at).filter(|&from| from < piece.len()) {
            let len = self.length(&piece[from..]).map_or(piece.len() - from, |n| n - self.end_bytes());
            if self.fixed_bytes().is_none() || from + len <= piece.len() {
                take(from, &piece[from..piece.len().min(from + len)]);
            }
            at = from + stride;
            if at >= piece.len() {
                break;
            }
        }
    }

    /// The length of the complete records in these bytes, which begin with a record.
    pub fn whole(self, bytes: &[u8]) -> usize {
        match self {
            Layout::Fixed(n) => bytes.len() - bytes.len() % n as usize,
            Layout::Lines => memchr::memrchr(b'\n', bytes).map_or(0, |newline| newline + 1),
            Layout::Prefixed | Layout::TaggedPrefixed => each_record!(self, bytes, 0, |_, _, _| ()),
        }
    }

    /// Guesses where a record begins in a piece that does not determine it: at the first offset from which lengths lead
    /// from record to record. Good enough only for a sample.
    fn guess_first(self, piece: &[u8]) -> Option<usize> {
        if self.is_found_anywhere() {
            return None;
        }
        let is_chain = |first: usize| {
            let mut at = first;
            for _ in 0..GUESS_RECORDS {
                match self.length(&piece[at..]) {
                    None => return at > first,
                    Some(n) if n > piece.len() - at => return at > first && n <= GUESS_BYTES_MAX,
                    Some(n) => at += n,
                }
            }
            true
        };
        (0..piece.len()).find(|&first| is_chain(first))
    }
}

/// The length of a record whose prefix is at byte `at`.
#[inline(always)]
fn prefixed(start: &[u8], at: usize) -> Option<usize> {
    let length = start.get(at..)?.first_chunk()?;
    Some(at + PREFIX_BYTES + u32::from_le_bytes(*length) as usize)
}

/// Walks from record to record through bytes that come in pieces.
#[derive(Debug, Clone)]
pub struct Walk {
    layout: Layout,
    /// How many bytes of the current record were passed; 0 at the start of one.
    done: usize,
    /// The first of these bytes.
    start: [u8; TAG_BYTES + PREFIX_BYTES],
}

impl Walk {
    /// Starts at the start of a record.
    pub fn new(layout: Layout) -> Walk {
        Walk { layout, done: 0, start: Default::default() }
    }

    /// Passes all of these bytes.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        match self.layout {
            Layout::Fixed(n) => self.done = (self.done + bytes.len()) % n as usize,
            Layout::Lines => match memchr::memrchr(b'\n', bytes) {
                Some(end) => self.done = bytes.len() - end - 1,
                None => self.done += bytes.len(),
            },
            Layout::Prefixed | Layout::TaggedPrefixed => {
                while !bytes.is_empty() {
                    bytes = &bytes[self.step(bytes)..];
                }
            }
        }
    }

    /// Passes all of these bytes and counts the records that end in them.
    pub fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut records = 0;
        while !bytes.is_empty() {
            bytes = &bytes[self.step(bytes)..];
            records += u64::from(self.done == 0);
        }
        records
    }

    /// How many bytes of the current record were passed; 0 at the start of one.
    pub fn done(&self) -> usize {
        self.done
    }

    /// How many of these bytes belong to the current record. There must be at least one byte.
    pub fn step(&mut self, bytes: &[u8]) -> usize {
        let begun = &self.start[..self.done.min(self.start.len())];
        let end = match self.layout.fixed_bytes() {
            Some(n) => Some(n - self.done).filter(|&missing| missing <= bytes.len()),
            // Only the start of the record, which determines its length, is kept.
            None if self.done > begun.len() && !self.layout.is_found_anywhere() => {
                let missing = self.layout.length(begun).expect("all of the prefix is kept") - self.done;
                (missing <= bytes.len()).then_some(missing)
            }
            None => self.layout.completes(begun, bytes),
        };
        let len = end.unwrap_or(bytes.len());
        if let Some(room) = self.start.get_mut(self.done..) {
            let kept = room.len().min(len);
            room[..kept].copy_from_slice(&bytes[..kept]);
        }
        self.done = if end.is_some() { 0 } else { self.done + len };
        len
    }
}

/// The complete records in a piece of a file, with their offsets; and the offset of the record that continues after
/// the piece, if known. The file has `before` bytes before the piece. If the piece does not determine where its
/// records begin, this is guessed.
pub fn records_in(layout: Layout, piece: &[u8], before: u64) -> (Vec<(usize, &[u8])>, Option<usize>) {
    let Some(first) = layout.first_record(piece, before).or_else(|| layout.guess_first(piece)) else {
        return (Vec::new(), None);
    };
    let mut records = Vec::new();
    let end = each_record!(layout, piece, first, |at, record, _| records.push((at, record.alone())));
    let open = match layout {
        Layout::Fixed(_) => None,
        Layout::Lines => Some(end),
        Layout::Prefixed | Layout::TaggedPrefixed => layout.length(&piece[end..]).map(|_| end),
    };
    (records, open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        prop_oneof![
            (1u32..20).prop_map(Layout::Fixed),
            Just(Layout::Lines),
            Just(Layout::Prefixed),
            Just(Layout::TaggedPrefixed),
        ]
    }

    /// Records of a layout, each with what ends it.
    fn written(layout: Layout, contents: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let one = |contents: &Vec<u8>| {
            let mut record = Vec::new();
            match layout {
                Layout::Fixed(n) => record.resize(n as usize, contents.len() as u8),
                Layout::TaggedPrefixed => {
                    record.extend([0xfe; TAG_BYTES]);
                    Layout::Prefixed.push(contents, &mut record);
                }
                _ => layout.push(contents, &mut record),
            }
            record
        };
        contents.iter().map(one).collect()
    }

    proptest! {
        /// Records begin and end where they were written, however the bytes are divided into pieces.
        #[test]
        fn records_are_found(
            layout in layouts(),
            contents in prop::collection::vec(prop::collection::vec(b'a'..=b'c', 0..20), 0..12),
            piece in 1usize..30,
            more in any::<prop::sample::Index>(),
        ) {
            let records = written(layout, &contents);
            let mut bytes = records.concat();
            let whole = bytes.len();
            // The beginning of another.
            let another = written(layout, &[vec![b'x'; 9]]).concat();
            bytes.extend(&another[..more.index(another.len())]);
            prop_assert_eq!(layout.whole(&bytes), whole);
            let mut found = Vec::new();
            let end = each_record!(layout, &bytes, 0, |at, record, len| {
                found.push(bytes[at..at + len].to_vec());
                assert_eq!(record.len() + layout.end_bytes(), len);
            });
            prop_assert_eq!(end, whole);
            prop_assert_eq!(&found, &records);

            let mut walk = Walk::new(layout);
            let (mut walked, mut open) = (vec![Vec::new()], Vec::new());
            for mut piece in bytes.chunks(piece) {
                while !piece.is_empty() {
                    let ends = layout.completes(&open, piece);
                    let (now, later) = piece.split_at(walk.step(piece));
                    prop_assert_eq!(ends, (walk.done() == 0).then_some(now.len()));
                    open.extend_from_slice(now);
                    walked.last_mut().unwrap().extend_from_slice(now);
                    if walk.done() == 0 {
                        walked.push(Vec::new());
                        open.clear();
                    }
                    piece = later;
                }
            }
            prop_assert_eq!(walk.done(), bytes.len() - whole);
            let mut walk_past = Walk::new(layout);
            bytes.chunks(piece).for_each(|piece| walk_past.pass(piece));
            prop_assert_eq!(walk_past.done(), bytes.len() - whole);
            walked.pop_if(|_| walk.done() > 0 || bytes.len() == whole);
            prop_assert_eq!(walked, records);
        }

        /// From the middle of a file, the first record is found or guessed.
        #[test]
        fn records_of_a_piece_are_found_or_guessed(
            contents in prop::collection::vec(prop::collection::vec(b'a'..=b'c', 5..20), 12..20),
            before in 0usize..60,
        ) {
            for layout in [Layout::Fixed(7), Layout::Lines, Layout::Prefixed] {
                let records = written(layout, &contents);
                let bytes = records.concat();
                let starts: Vec<usize> = records.iter().scan(0, |at, r| Some(std::mem::replace(at, *at + r.len()))).collect();
                let (found, _) = records_in(layout, &bytes[before..], before as u64);
                // It is unknown whether a line begins at the start of the piece.
                let known = if layout == Layout::Lines { before + usize::from(before > 0) } else { before };
                let expected: Vec<usize> = starts.into_iter().filter(|start| *start >= known).collect();
                prop_assert_eq!(found.iter().map(|(at, _)| before + at).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn a_prefix_counts_the_bytes_behind_it() {
        let mut bytes = Vec::new();
        Layout::Prefixed.push(b"abc", &mut bytes);
        Layout::Prefixed.push(b"", &mut bytes);
        assert_eq!(bytes, b"\x03\0\0\0abc\0\0\0\0");
        assert_eq!(Layout::Prefixed.contents(&bytes[..7]), b"abc");
        assert_eq!(Layout::Prefixed.length(&bytes[..3]), None);
        assert_eq!(Layout::Prefixed.length(b"\xff\xff\xff\xff"), Some((1 << 32) + 3));
    }
}
