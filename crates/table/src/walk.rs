//! The records of a range, one after the other.
//!
//! Model: a walk has a cursor and the bound at which it ends, and compares each key with that bound. It does not count
//! the range first, so its cost depends only on the records that are taken.

use std::ops::Bound;

use crate::bucket::{Bucket, Place};
use crate::slab::{Record, Slab};

/// One end of a range of keys.
pub(crate) type End<'a> = Bound<&'a [u8]>;

/// A walk through a range, in either direction.
pub(crate) struct Walk<'a> {
    bucket: &'a Bucket,
    slab: &'a Slab,
    place: Place,
    /// Where the range ends, in the direction of the walk.
    until: End<'a>,
    is_descending: bool,
}

impl<'a> Walk<'a> {
    /// Walks from the lower end of a range to the upper one, or the other way round.
    pub(crate) fn new(
        bucket: &'a Bucket,
        slab: &'a Slab,
        (low, high): (End<'a>, End<'a>),
        is_descending: bool,
    ) -> Walk<'a> {
        let (from, until) = if is_descending { (high, low) } else { (low, high) };
        Walk { bucket, slab, place: place(bucket, slab, from, is_descending), until, is_descending }
    }

    /// Skips `count` records.
    pub(crate) fn skip_records(&mut self, count: usize) {
        if !self.is_descending {
            return self.bucket.skip(&mut self.place, count);
        }
        if count > 0 {
            let first = place(self.bucket, self.slab, self.until, false);
            let left = self.bucket.count(self.slab, first, self.place);
            self.place = first;
            self.bucket.skip(&mut self.place, left.saturating_sub(count));
        }
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let record = match self.is_descending {
            true => self.bucket.previous(self.slab, &mut self.place)?,
            false => self.bucket.next(self.slab, &mut self.place)?,
        };
        let is_within = match (self.until, self.is_descending) {
            (Bound::Unbounded, _) => true,
            (Bound::Included(until), false) => record.key <= until,
            (Bound::Included(until), true) => record.key >= until,
            (Bound::Excluded(until), false) => record.key < until,
            (Bound::Excluded(until), true) => record.key > until,
        };
        is_within.then_some(record)
    }
}

/// The number of records in a range.
pub(crate) fn count(bucket: &Bucket, slab: &Slab, (low, high): (End<'_>, End<'_>)) -> usize {
    bucket.count(slab, place(bucket, slab, low, false), place(bucket, slab, high, true))
}

/// The cursor of a bound: before the first record of the range, or, if `is_upper`, after the last.
fn place(bucket: &Bucket, slab: &Slab, bound: End<'_>, is_upper: bool) -> Place {
    match bound {
        Bound::Unbounded if is_upper => bucket.last(),
        Bound::Unbounded => bucket.first(),
        Bound::Included(key) => bucket.seek(slab, key, is_upper),
        Bound::Excluded(key) => bucket.seek(slab, key, !is_upper),
    }
}
