//! Pages: a stream of records in memory, in blocks of equal size, addressed as one string of bytes.
//!
//! ```text
//! place    0         P        2P        3P              P = page bytes, a power of two
//!          [ page 0 ][ page 1 ][ pag..    ][ page 3 ]   a page shorter than P ends a segment;
//!          |<-------- segment ------->|    |<- segment  records cross pages inside a segment only
//! ```
//!
//! Invariant: a place is a byte of this string. The bytes of a record are contiguous in it, but may lie in several
//! blocks.
//! Non-goals: sorting; loading pages.

use std::ops::Range;
use std::sync::OnceLock;

use thalweg_block::Block;
use thalweg_record::Layout;

/// For each page, the first page of its segment. A page that is not full ends a segment.
pub(crate) fn segment_starts(page_bytes: usize, lens: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut start = 0;
    let one = |(i, len): (usize, usize)| {
        assert!(len <= page_bytes);
        let own = start;
        if len < page_bytes {
            start = i as u32 + 1;
        }
        own
    };
    lens.enumerate().map(one).collect()
}

/// A stream of records in memory, filled page by page by several lanes.
pub(crate) struct Pages {
    slots: Vec<OnceLock<Block>>,
    /// For each page, the first page of its segment.
    segment_starts: Vec<u32>,
    shift: u32,
}

impl Pages {
    /// Makes slots for pages with these lengths, in order, each at most `page_bytes`.
    pub(crate) fn new(page_bytes: usize, lens: impl Iterator<Item = usize>) -> Pages {
        assert!(page_bytes.is_power_of_two());
        let segment_starts = segment_starts(page_bytes, lens);
        let slots = segment_starts.iter().map(|_| OnceLock::new()).collect();
        Pages { slots, segment_starts, shift: page_bytes.trailing_zeros() }
    }

    /// Installs page `index`.
    pub(crate) fn install(&self, index: usize, block: Block) {
        self.slots[index].set(block).expect("a page is installed once");
    }

    /// Whether page `index` is installed.
    pub(crate) fn is_installed(&self, index: usize) -> bool {
        self.slots[index].get().is_some()
    }

    /// The number of pages.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// The bytes of an installed page.
    #[inline(always)]
    pub(crate) fn page(&self, index: usize) -> &[u8] {
        self.slots[index].get().expect("the page is installed")
    }

    /// The place of a page's first byte.
    pub(crate) fn place_of(&self, index: usize) -> u64 {
        (index as u64) << self.shift
    }

    /// Bytes from the start of page `index`'s segment to the page.
    pub(crate) fn segment_bytes_before(&self, index: usize) -> u64 {
        ((index as u32 - self.segment_starts[index]) as u64) << self.shift
    }

    /// Whether the page begins its segment, so that a record begins at its first byte.
    pub(crate) fn is_segment_start(&self, index: usize) -> bool {
        self.segment_starts[index] as usize == index
    }

    /// The bytes from `place` to the end of its page.
    #[inline(always)]
    pub(crate) fn from(&self, place: u64) -> &[u8] {
        let page = self.page((place >> self.shift) as usize);
        &page[(place as usize & ((1 << self.shift) - 1)).min(page.len())..]
    }

    /// `len` bytes at `place`, if they lie in one page.
    #[inline(always)]
    fn whole(&self, place: u64, len: usize) -> Option<&[u8]> {
        self.from(place).get(..len)
    }

    /// Appends `len` bytes at `place` to `out`.
    fn copy(&self, mut place: u64, mut len: usize, out: &mut Vec<u8>) {
        while len > 0 {
            let piece = self.from(place);
            let n = piece.len().min(len);
            assert!(n > 0, "a record ends inside its segment");
            out.extend_from_slice(&piece[..n]);
            place += n as u64;
            len -= n;
        }
    }

    /// Calls `f` with `len` bytes at `place`. Only bytes that cross pages are copied.
    #[inline(always)]
    pub(crate) fn with<T>(&self, place: u64, len: usize, f: impl FnOnce(&[u8]) -> T) -> T {
        match self.whole(place, len) {
            Some(bytes) => f(bytes),
            None => {
                let mut copy = Vec::with_capacity(len);
                self.copy(place, len, &mut copy);
                f(&copy)
            }
        }
    }

    /// The length of the record at `place` without its terminator, across pages. It is at least `least`.
    pub(crate) fn record_len(&self, layout: Layout, place: u64, least: usize) -> usize {
        if let Some(bytes) = layout.start_bytes() {
            return self.with(place, bytes, |start| layout.length(start)).expect("its start tells");
        }
        let mut len = least;
        loop {
            let piece = self.from(place + len as u64);
            assert!(!piece.is_empty(), "a record ends inside its segment");
            match layout.length(piece) {
                Some(end) => return len + end - layout.end_bytes(),
                None => len += piece.len(),
            }
        }
    }

    /// The start of the last of some records that do not cross segments.
    pub(crate) fn start_of_last(&self, layout: Layout, records: Range<u64>) -> u64 {
        if let Some(n) = layout.fixed_bytes() {
            return records.end - n as u64;
        }
        let mut to = records.end - layout.end_bytes() as u64;
        while to > records.start {
            let index = ((to - 1) >> self.shift) as usize;
            let from = records.start.max(self.place_of(index));
            let in_page = |place: u64| (place - self.place_of(index)) as usize;
            let before = &self.page(index)[in_page(from)..in_page(to)];
            match layout.whole(before) {
                0 => to = from,
                end => return from + end as u64,
            }
        }
        records.start
    }

    /// Prefetches the cache lines of the first `len` bytes at `place`: at most three, inside the page.
    #[inline(always)]
    pub(crate) fn prefetch(&self, place: u64, len: usize) {
        let piece = self.from(place);
        thalweg_block::prefetch(piece, 0);
        if len > 1 {
            thalweg_block::prefetch(piece, (len - 1).min(64));
        }
        if len > 65 {
            thalweg_block::prefetch(piece, (len - 1).min(128));
        }
    }
}
