//! Entries: 128-bit numbers that represent records while they are sorted.
//!
//! ```text
//! bit 127                       48 47                    12 11         0
//!     [ window of the key, 80 bits ][ place, 48 bits                    ]   fixed records
//!     [ window of the key, 80 bits ][ place, 36 bits       ][ length, 12]   variable-length records
//!     [ the record itself, up to 16 bytes, then zeros                   ]   short records that are all key
//! ```
//!
//! Lengths up to 2047 are exact. For a longer line the entry has a lower bound, so that only a 64th of the line is
//! searched for its end; the length of a longer prefixed record is read from its prefix. Places grow in input order,
//! so the sort is stable, although the sort of the numbers is not: entries with equal windows stay in input order.

use std::cmp::Ordering;

use thalweg_record::{InPlace, Key, Layout, WINDOW_BYTES, common_prefix};

use crate::pages::Pages;

const PLACE_BITS: u32 = 48;
const LENGTH_BITS: u32 = 12;
/// Records of up to this many bytes that are all key are their own entries.
const VALUE_BYTES_MAX: usize = 16;
/// Keys of records that cross pages are compared in pieces of this size.
const PIECE_BYTES: usize = 16 << 10;
/// Lengths below this are stored exactly. For others this bit is set, above 5 bits of exponent and 6 of mantissa.
const LENGTH_LONG: usize = 1 << (LENGTH_BITS - 1);
const MANTISSA_BITS: u32 = 6;
/// The smallest exponent.
const EXPONENT_MIN: u32 = LENGTH_LONG.ilog2() - MANTISSA_BITS;

/// The most bytes of variable-length records that entries can address: 64 GiB.
pub(crate) const ANY_LENGTH_BYTES_MAX: u64 = 1 << (PLACE_BITS - LENGTH_BITS);

/// The most bytes of records of this layout that entries can address.
pub(crate) fn addressable_bytes(layout: Layout) -> u64 {
    if layout.fixed_bytes().is_some() { 1 << PLACE_BITS } else { ANY_LENGTH_BYTES_MAX }
}

/// Makes entries for one layout and finds their records.
#[derive(Clone, Copy)]
pub(crate) struct Entries {
    layout: Layout,
    /// Bytes of a record, if all have the same length.
    fixed_bytes: Option<usize>,
    /// Bytes of a record, if the record itself is the entry.
    value_bytes: Option<usize>,
    /// Whether records are all key and the window holds all of it.
    windows_suffice: bool,
}

impl Entries {
    pub(crate) fn new(layout: Layout, key: &Key) -> Entries {
        let (fixed_bytes, are_all_key) = (layout.fixed_bytes(), key.is_all_of(layout));
        let value_bytes = fixed_bytes.filter(|&n| n <= VALUE_BYTES_MAX && are_all_key);
        Entries { layout, fixed_bytes, value_bytes, windows_suffice: are_all_key && value_bytes.is_none() }
    }

    /// Whether comparing windows is enough: records are all key, so equal windows mean equal records.
    #[inline(always)]
    pub(crate) fn windows_suffice(self) -> bool {
        self.windows_suffice
    }

    /// Bytes of a record, if records are their own entries.
    #[inline(always)]
    pub(crate) fn value_bytes(self) -> Option<usize> {
        self.value_bytes
    }

    /// The entry of a short record.
    #[inline(always)]
    pub(crate) fn value(record: &[u8]) -> u128 {
        let mut bytes = [0; VALUE_BYTES_MAX];
        thalweg_block::copy(&mut bytes[..record.len()], record);
        u128::from_be_bytes(bytes)
    }

    /// The entry of the record at `place`, which has `len` bytes (a line without its newline).
    #[inline(always)]
    pub(crate) fn make(self, window: u128, place: u64, len: usize) -> u128 {
        debug_assert!(window >> 80 == 0);
        let low = match self.fixed_bytes {
            Some(_) => place,
            None => place << LENGTH_BITS | length_note(len) as u64,
        };
        window << PLACE_BITS | u128::from(low)
    }

    /// The same entry with another window.
    #[inline(always)]
    pub(crate) fn with_window(entry: u128, window: u128) -> u128 {
        window << PLACE_BITS | (entry & ((1 << PLACE_BITS) - 1))
    }

    /// The window of an entry.
    #[inline(always)]
    pub(crate) fn window(entry: u128) -> u128 {
        entry >> PLACE_BITS
    }

    /// The window of an entry, with the same place for all.
    #[inline(always)]
    pub(crate) fn window_alone(entry: u128) -> u128 {
        entry | ((1 << PLACE_BITS) - 1)
    }

    /// The number that orders entries with equal keys: the place, above bits that do not matter.
    #[inline(always)]
    pub(crate) fn origin(entry: u128) -> u64 {
        entry as u64 & ((1 << PLACE_BITS) - 1)
    }

    /// The place of the record.
    #[inline(always)]
    pub(crate) fn place(self, entry: u128) -> u64 {
        match self.fixed_bytes {
            Some(_) => Self::origin(entry),
            None => Self::origin(entry) >> LENGTH_BITS,
        }
    }

    /// The length of the record if the entry stores it exactly, otherwise a lower bound as the error.
    #[inline(always)]
    pub(crate) fn known_len(self, entry: u128) -> Result<usize, usize> {
        match self.fixed_bytes {
            Some(n) => Ok(n),
            None => match entry as usize & (2 * LENGTH_LONG - 1) {
                len if len < LENGTH_LONG => Ok(len),
                note => Err(least_length(note)),
            },
        }
    }

    /// The length of the record without a newline.
    #[inline(always)]
    pub(crate) fn len(self, entry: u128, pages: &Pages) -> usize {
        self.known_len(entry).unwrap_or_else(|least| pages.record_len(self.layout, self.place(entry), least))
    }

    /// Bytes of the terminator of a record.
    #[inline(always)]
    pub(crate) fn terminator(self) -> usize {
        self.layout.end_bytes()
    }

    /// Calls `f` with the bytes of the record. Only a record that crosses pages is copied.
    #[inline(always)]
    pub(crate) fn with_record<T>(self, entry: u128, pages: &Pages, f: impl FnOnce(&[u8]) -> T) -> T {
        if let Some(n) = self.value_bytes {
            return f(&entry.to_be_bytes()[..n]);
        }
        pages.with(self.place(entry), self.len(entry, pages), f)
    }

    /// Calls `f` with at most `limit` bytes of the normal form of the record's key from byte `skip`. If the record
    /// crosses pages and the key is its own normal form, only these bytes are copied.
    fn with_key<T>(
        self,
        entry: u128,
        pages: &Pages,
        key: &Key,
        (skip, limit): (usize, usize),
        f: impl FnOnce(&[u8]) -> T,
    ) -> T {
        let Some((offset, length)) = key.as_slice().filter(|_| self.value_bytes.is_none()) else {
            return self.with_record(entry, pages, |record| f(&key.normal_from(record, skip, limit)));
        };
        let to = offset.saturating_add(length).min(self.len(entry, pages));
        let from = offset.saturating_add(skip).min(to);
        pages.with(self.place(entry) + from as u64, limit.min(to - from), f)
    }

    /// The window of the record's key from byte `skip`.
    pub(crate) fn window_from(self, entry: u128, pages: &Pages, key: &Key, skip: usize) -> u128 {
        let piece = (skip, WINDOW_BYTES);
        self.with_key(entry, pages, key, piece, |bytes| InPlace::from(bytes).window())
    }

    /// Compares two records whose keys agree in the first `skip` bytes.
    pub(crate) fn compare_from(self, a: u128, b: u128, pages: &Pages, key: &Key, skip: usize) -> Ordering {
        if key.as_slice().is_none() {
            return self
                .with_record(a, pages, |a| self.with_record(b, pages, |b| key.compare_from(a, b, skip)));
        }
        let mut piece = (skip, PIECE_BYTES);
        loop {
            let (order, len) = self.with_key(a, pages, key, piece, |a| {
                self.with_key(b, pages, key, piece, |b| (a.cmp(b), a.len()))
            });
            if order.is_ne() || len < PIECE_BYTES {
                return order;
            }
            piece.0 += PIECE_BYTES;
        }
    }

    /// The length of the common prefix of the keys of a group, which is known to be at least `skip`.
    pub(crate) fn shared(self, group: &[u128], pages: &Pages, key: &Key, mut skip: usize) -> usize {
        let (first, others) = group.split_first().expect("a group of some");
        loop {
            let first = self.with_key(*first, pages, key, (skip, PIECE_BYTES), <[u8]>::to_vec);
            let mut shared = first.len();
            for other in others {
                let piece = (skip, shared);
                shared = self.with_key(*other, pages, key, piece, |own| common_prefix(&first, own));
                if shared == 0 {
                    break;
                }
            }
            skip += shared;
            if shared < PIECE_BYTES {
                return skip;
            }
        }
    }
}

/// The stored form of a line's length.
#[inline(always)]
fn length_note(len: usize) -> usize {
    if len < LENGTH_LONG {
        return len;
    }
    let exponent = len.ilog2() - MANTISSA_BITS;
    let mantissa = len >> exponent & ((1 << MANTISSA_BITS) - 1);
    LENGTH_LONG | ((exponent - EXPONENT_MIN) as usize) << MANTISSA_BITS | mantissa
}

/// The smallest length with this stored form.
fn least_length(note: usize) -> usize {
    let exponent = ((note & (LENGTH_LONG - 1)) >> MANTISSA_BITS) + EXPONENT_MIN as usize;
    ((1 << MANTISSA_BITS) | (note & ((1 << MANTISSA_BITS) - 1))) << exponent
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn at_most_a_64th_of_a_long_line_is_searched(bits in 1u32..37, low in any::<usize>()) {
            let len = 1usize << (bits - 1) | low & ((1 << (bits - 1)) - 1);
            let note = length_note(len);
            prop_assert!(note < 1 << LENGTH_BITS);
            if len < LENGTH_LONG {
                prop_assert_eq!(note, len);
            } else {
                let least = least_length(note);
                prop_assert!(note >= LENGTH_LONG && least <= len && len - least <= len / 64, "{} {}", least, len);
            }
        }
    }
}
