//! Memory for records of any size, in cells of certain sizes.
//!
//! ```text
//! segment   | cell | cell | cell | ...      all of one size, a multiple of 8 bytes
//! cell      [lengths and flag: u32][expiry: i64, if the flag says so][key][value]
//! ```
//!
//! Model: a size class has segments, which get larger as it grows, from 16 to 512 KiB. A free cell has the number of
//! the next free cell of its segment. A record larger than [`CLASSES_UP_TO`] has a segment of its own.
//! Invariant: all memory of records is counted against one limit; a segment without records is freed.
//! Non-goals: the order of records, and references to them.

use thalweg_block::prefetch;

/// The longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = (1 << KEY_BITS) - 1;
/// The longest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = (1 << VALUE_BITS) - 1;

const KEY_BITS: u32 = 11;
const VALUE_BITS: u32 = 20;
const HEADER_BYTES: usize = 4;
const EXPIRY_BYTES: usize = 8;
const EXPIRES: u32 = 1 << 31;

/// Cells begin at multiples of this.
const UNIT: usize = 8;
/// The most bytes that a 16-bit number of units can address.
const SEGMENT_BYTES_MAX: usize = UNIT << 16;
const SEGMENT_BYTES_MIN: usize = 16 << 10;
const SEGMENTS_MAX: usize = 1 << 16;
/// Every multiple of 8 up to this is a cell size; above it there are eight sizes between powers of two.
const FINE_UP_TO: usize = 512;
/// Larger records have a segment of their own.
const CLASSES_UP_TO: usize = 64 << 10;
const FINE_CLASSES: usize = FINE_UP_TO / UNIT;
const CLASSES: usize = FINE_CLASSES + 8 * 7;
/// The bytes of a record that are prefetched: those of longer ones follow, so the processor prefetches them itself.
const PREFETCHED_BYTES: usize = 128;
const LINE_BYTES: usize = 64;
/// Ends the list of free cells of a segment.
const NONE: u32 = u32::MAX;

/// The location of a record: the number of its segment, and the cell's offset in units of 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell(u32);

impl Cell {
    /// Refers to no record; fills unused places of arrays.
    pub(crate) const UNUSED: Cell = Cell(u32::MAX);

    fn new(segment: usize, at: usize) -> Cell {
        Cell((segment as u32) << 16 | (at / UNIT) as u32)
    }

    fn segment(self) -> usize {
        (self.0 >> 16) as usize
    }

    fn at(self) -> usize {
        (self.0 & 0xffff) as usize * UNIT
    }
}

/// The memory limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A record in the slab's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// When the record expires, in milliseconds since 1970, if ever.
    pub expires_ms: Option<i64>,
}

struct Segment {
    bytes: Box<[u8]>,
    cell_bytes: usize,
    /// The cells from here on were never used.
    fresh: usize,
    /// The first free cell among those that have been used.
    free: u32,
    used: usize,
}

impl Segment {
    fn is_full(&self) -> bool {
        self.free == NONE && self.fresh + self.cell_bytes > self.bytes.len()
    }
}

/// The segments of a size class.
#[derive(Clone, Default)]
struct Class {
    bytes: usize,
    /// Segments with free cells.
    open: Vec<u32>,
}

/// Cells for records, within a memory limit that also covers the nodes that refer to them.
pub(crate) struct Slab {
    segments: Vec<Option<Segment>>,
    /// Numbers of freed segments.
    vacant: Vec<u32>,
    classes: Vec<Class>,
    used: usize,
    limit: usize,
}

impl Slab {
    /// An empty slab of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Slab {
        let classes = vec![Class::default(); CLASSES];
        Slab { segments: Vec::new(), vacant: Vec::new(), classes, used: 0, limit }
    }

    /// Bytes in use, including free cells of segments.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// The memory limit in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Reserves bytes that are used elsewhere, if the limit allows it.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Full> {
        if self.used + bytes > self.limit {
            return Err(Full);
        }
        self.used += bytes;
        Ok(())
    }

    /// Releases bytes that `take` reserved.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    /// Stores a new record. Key and value must be within their limits.
    pub(crate) fn store(&mut self, key: &[u8], value: &[u8], expires_ms: Option<i64>) -> Result<Cell, Full> {
        assert!(
            key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX,
            "whoever stores checks lengths"
        );
        let cell = self.allocate(record_bytes(key, value, expires_ms))?;
        self.write(cell, key, value, expires_ms);
        Ok(cell)
    }

    /// Replaces the record in a cell by another with the same key, if that needs a cell of the same size. Returns whether
    /// it did.
    pub(crate) fn overwrite(
        &mut self,
        cell: Cell,
        key: &[u8],
        value: &[u8],
        expires_ms: Option<i64>,
    ) -> bool {
        let class = class_of(record_bytes(key, value, expires_ms));
        let segment = self.segments[cell.segment()].as_ref().expect("a cell in use has a segment");
        let fits = class.is_some_and(|class| class_bytes(class) == segment.cell_bytes);
        if fits {
            self.write(cell, key, value, expires_ms);
        }
        fits
    }

    fn write(&mut self, cell: Cell, key: &[u8], value: &[u8], expires_ms: Option<i64>) {
        let mut lengths = (key.len() as u32) << VALUE_BITS | value.len() as u32;
        if expires_ms.is_some() {
            lengths |= EXPIRES;
        }
        let segment = self.segments[cell.segment()].as_mut().expect("a cell in use has a segment");
        let to = &mut segment.bytes[cell.at()..];
        to[..HEADER_BYTES].copy_from_slice(&lengths.to_le_bytes());
        let mut at = HEADER_BYTES;
        if let Some(expires) = expires_ms {
            to[at..at + EXPIRY_BYTES].copy_from_slice(&expires.to_le_bytes());
            at += EXPIRY_BYTES;
        }
        to[at..at + key.len()].copy_from_slice(key);
        at += key.len();
        to[at..at + value.len()].copy_from_slice(value);
    }

    /// The record in a cell.
    pub(crate) fn record(&self, cell: Cell) -> Record<'_> {
        let (bytes, lengths) = self.lengths(cell);
        let (key_bytes, value_bytes) = split(lengths);
        let mut at = HEADER_BYTES;
        let expires_ms = (lengths & EXPIRES != 0).then(|| {
            let expires = bytes[at..at + EXPIRY_BYTES].try_into().expect("8 bytes");
            at += EXPIRY_BYTES;
            i64::from_le_bytes(expires)
        });
        let (key, value) = bytes[at..at + key_bytes + value_bytes].split_at(key_bytes);
        Record { key, value, expires_ms }
    }

    /// The key of the record in a cell.
    pub(crate) fn key(&self, cell: Cell) -> &[u8] {
        let (bytes, lengths) = self.lengths(cell);
        let at = if lengths & EXPIRES == 0 { HEADER_BYTES } else { HEADER_BYTES + EXPIRY_BYTES };
        &bytes[at..at + split(lengths).0]
    }

    fn lengths(&self, cell: Cell) -> (&[u8], u32) {
        let segment = self.segments[cell.segment()].as_ref().expect("a cell in use has a segment");
        let bytes = &segment.bytes[cell.at()..];
        (bytes, u32::from_le_bytes(bytes[..HEADER_BYTES].try_into().expect("4 bytes")))
    }

    /// Prefetches the first [`PREFETCHED_BYTES`] of the record in a cell.
    pub(crate) fn prefetch(&self, cell: Cell) {
        let segment = self.segments[cell.segment()].as_ref().expect("a cell in use has a segment");
        let bytes = &segment.bytes[cell.at()..];
        for at in [0, LINE_BYTES, PREFETCHED_BYTES - 1] {
            prefetch(bytes, at.min(segment.cell_bytes - 1));
        }
    }

    /// Removes the record in a cell.
    pub(crate) fn remove(&mut self, cell: Cell) {
        let number = cell.segment();
        let segment = self.segments[number].as_mut().expect("a cell in use has a segment");
        let was_full = segment.is_full();
        segment.used -= 1;
        if segment.used == 0 {
            self.drop_segment(number, was_full);
            return;
        }
        let at = cell.at();
        segment.bytes[at..at + 4].copy_from_slice(&segment.free.to_le_bytes());
        segment.free = (at / UNIT) as u32;
        if was_full {
            let class = class_of(segment.cell_bytes).expect("the segment has several cells");
            self.classes[class].open.push(number as u32);
        }
    }

    fn drop_segment(&mut self, number: usize, was_full: bool) {
        let segment = self.segments[number].take().expect("the segment is there");
        self.used -= segment.bytes.len();
        self.vacant.push(number as u32);
        if let Some(class) = class_of(segment.cell_bytes) {
            let class = &mut self.classes[class];
            class.bytes -= segment.bytes.len();
            if !was_full {
                class.open.retain(|open| *open != number as u32);
            }
        }
    }

    fn allocate(&mut self, bytes: usize) -> Result<Cell, Full> {
        let Some(class) = class_of(bytes) else {
            let number = self.add_segment(bytes.next_multiple_of(UNIT), bytes.next_multiple_of(UNIT))?;
            let segment = self.segments[number].as_mut().expect("it was just added");
            (segment.fresh, segment.used) = (segment.cell_bytes, 1);
            return Ok(Cell::new(number, 0));
        };
        let number = match self.classes[class].open.last() {
            Some(open) => *open as usize,
            None => {
                let cell_bytes = class_bytes(class);
                let wanted = self.classes[class].bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
                let cells = (wanted / cell_bytes).max(1);
                let number = self.add_segment(cells * cell_bytes, cell_bytes)?;
                self.classes[class].bytes += cells * cell_bytes;
                self.classes[class].open.push(number as u32);
                number
            }
        };
        let segment = self.segments[number].as_mut().expect("an open segment is there");
        segment.used += 1;
        let at = match segment.free {
            NONE => {
                segment.fresh += segment.cell_bytes;
                segment.fresh - segment.cell_bytes
            }
            free => {
                let at = free as usize * UNIT;
                segment.free = u32::from_le_bytes(segment.bytes[at..at + 4].try_into().expect("4 bytes"));
                at
            }
        };
        if segment.is_full() {
            self.classes[class].open.pop();
        }
        Ok(Cell::new(number, at))
    }

    fn add_segment(&mut self, bytes: usize, cell_bytes: usize) -> Result<usize, Full> {
        if self.vacant.is_empty() && self.segments.len() == SEGMENTS_MAX - 1 {
            return Err(Full);
        }
        self.take(bytes)?;
        let bytes = vec![0; bytes].into_boxed_slice();
        let segment = Segment { bytes, cell_bytes, fresh: 0, free: NONE, used: 0 };
        match self.vacant.pop() {
            Some(number) => {
                self.segments[number as usize] = Some(segment);
                Ok(number as usize)
            }
            None => {
                self.segments.push(Some(segment));
                Ok(self.segments.len() - 1)
            }
        }
    }
}

/// The lengths of key and value, from their packed form.
fn split(lengths: u32) -> (usize, usize) {
    let mask = |bits: u32| (1u32 << bits) - 1;
    ((lengths >> VALUE_BITS & mask(KEY_BITS)) as usize, (lengths & mask(VALUE_BITS)) as usize)
}

fn record_bytes(key: &[u8], value: &[u8], expires_ms: Option<i64>) -> usize {
    HEADER_BYTES + expires_ms.map_or(0, |_| EXPIRY_BYTES) + key.len() + value.len()
}

/// The size class for this many bytes; `None` if they need a segment of their own.
fn class_of(bytes: usize) -> Option<usize> {
    match bytes {
        0..=FINE_UP_TO => Some(bytes.div_ceil(UNIT).max(1) - 1),
        _ if bytes <= CLASSES_UP_TO => {
            // The largest power of two below `bytes`, and how many eighths of the way to the next one are needed.
            let power = (bytes - 1).ilog2();
            let eighth = (bytes - (1 << power)).div_ceil(1 << (power - 3));
            Some(FINE_CLASSES + 8 * (power - FINE_UP_TO.ilog2()) as usize + eighth - 1)
        }
        _ => None,
    }
}

/// The cell size of a class in bytes.
fn class_bytes(class: usize) -> usize {
    match class.checked_sub(FINE_CLASSES) {
        None => (class + 1) * UNIT,
        Some(coarse) => {
            let power = FINE_UP_TO << (coarse / 8);
            power + (coarse % 8 + 1) * (power / 8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_class_and_not_the_one_before() {
        for bytes in 1..=CLASSES_UP_TO {
            let class = class_of(bytes).unwrap();
            assert!(class_bytes(class) >= bytes, "{bytes}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes}");
        }
        assert_eq!(class_of(CLASSES_UP_TO), Some(CLASSES - 1));
        assert_eq!(class_of(CLASSES_UP_TO + 1), None);
    }

    #[test]
    fn what_is_removed_is_used_again_and_given_back() {
        let mut slab = Slab::new(64 << 20);
        let mut cells: Vec<Cell> =
            (0..10_000u32).map(|i| slab.store(&i.to_be_bytes(), &[7; 96], None).unwrap()).collect();
        let used = slab.used();
        for _ in 0..3 {
            cells.retain(|cell| {
                let stays = slab.key(*cell)[3].is_multiple_of(2);
                if !stays {
                    slab.remove(*cell);
                }
                stays
            });
            let removed = 10_000 - cells.len();
            cells.extend((0..removed as u32).map(|i| slab.store(&i.to_be_bytes(), &[7; 96], None).unwrap()));
            assert_eq!(slab.used(), used);
        }
        cells.iter().for_each(|cell| slab.remove(*cell));
        assert_eq!(slab.used(), 0);
    }

    #[test]
    fn records_of_all_sizes_come_back() {
        let mut slab = Slab::new(64 << 20);
        let lens = [0, 1, 3, 4, 91, 500, 509, 4000, 65_000, 65_536, VALUE_BYTES_MAX];
        let cells: Vec<(Cell, usize)> = (lens.iter())
            .map(|n| (slab.store(b"key", &vec![*n as u8; *n], Some(-(*n as i64))).unwrap(), *n))
            .collect();
        for (cell, n) in cells {
            let found = slab.record(cell);
            assert_eq!((found.key, found.expires_ms), (&b"key"[..], Some(-(n as i64))));
            assert!(found.value.len() == n && found.value.iter().all(|byte| *byte == n as u8));
            assert_eq!(slab.key(cell), b"key");
            slab.remove(cell);
        }
        assert_eq!(slab.used(), 0);
    }

    #[test]
    fn the_limit_holds() {
        let mut slab = Slab::new(40 << 10);
        let mut cells = Vec::new();
        while let Ok(cell) = slab.store(b"k", &[1; 83], None) {
            cells.push(cell);
        }
        assert!(slab.used() <= 40 << 10 && cells.len() > 300, "{} bytes, {}", slab.used(), cells.len());
        assert_eq!(slab.store(b"large", &vec![0; 100_000], None), Err(Full));
        cells.iter().for_each(|cell| slab.remove(*cell));
        slab.store(b"k", &[1; 83], None).unwrap();
    }
}
