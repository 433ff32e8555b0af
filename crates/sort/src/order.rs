//! Sorts the entries of a bucket.
//!
//! Entries are sorted as numbers. If windows are equal and the keys continue, these entries get a later window and are
//! sorted again, until the keys differ or end. This is an MSD radix sort with digits of ten bytes. Before each new
//! window the common prefix of the group is skipped, so a long common prefix costs one comparison for each record,
//! and not one for every ten bytes.
//!
//! Invariant: the result is ordered by (key, place); if the key is the whole record, by the key. A bucket far larger
//! than the sample predicted needs no extra memory.

use std::cmp::Ordering;

use thalweg_record::WINDOW_BYTES;

use crate::entry::Entries;
use crate::interpolation_sort::InterpolationSort;
use crate::partition::{Bucket, Partition};

/// Groups of at most this many ties are sorted by comparing records.
const SMALL_GROUP: usize = 8;

/// The sorted entries of a job, and which of them repeat a key.
pub(crate) struct Ordered {
    pub(crate) entries: Vec<u128>,
    /// Positions in `entries` of records whose key equals the one before.
    repeats: Vec<u32>,
    /// Whether to collect `repeats`.
    noting: bool,
    spread: InterpolationSort,
}

impl Ordered {
    pub(crate) fn new(noting: bool) -> Ordered {
        Ordered { entries: Vec::new(), repeats: Vec::new(), noting, spread: InterpolationSort::default() }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.repeats.clear();
    }

    /// Appends the sorted entries of `bucket`, whose keys share their first `skip` bytes. The last key may continue
    /// in the next bucket.
    pub(crate) fn append(&mut self, partition: &Partition<'_>, bucket: Bucket, skip: usize) {
        let from = self.entries.len();
        let pieces = bucket.chunks.iter().map(|(c, used)| &c[..*used]);
        match partition.entries().windows_suffice() {
            true => self.spread.append_sorted(&mut self.entries, pieces, Entries::window_alone),
            false => self.spread.append_sorted(&mut self.entries, pieces, |entry| entry),
        }
        drop(bucket);
        let mut ties = Ties { partition, repeats: &mut self.repeats, noting: self.noting };
        ties.resolve(&mut self.entries[from..], from, skip);
        if from > 0
            && from < self.entries.len()
            && same_key(partition, self.entries[from - 1], self.entries[from])
        {
            self.repeats.push(from as u32);
        }
    }

    /// Removes the repeats and calls `dropped` with each of them.
    pub(crate) fn drop_repeats(&mut self, mut dropped: impl FnMut(u128)) {
        let mut repeats = std::mem::take(&mut self.repeats);
        repeats.sort_unstable();
        let mut next = repeats.iter().copied().peekable();
        let mut at = 0u32;
        self.entries.retain(|&entry| {
            let is_repeat = next.next_if_eq(&at).is_some();
            if is_repeat {
                dropped(entry);
            }
            at += 1;
            !is_repeat
        });
        repeats.clear();
        self.repeats = repeats;
    }
}

/// Whether two records of a partition have equal keys.
fn same_key(partition: &Partition<'_>, a: u128, b: u128) -> bool {
    let (entries, pages, key) = (partition.entries(), &partition.pages, partition.key());
    entries.compare_from(a, b, pages, key, 0).is_eq()
}

struct Ties<'a, 'p> {
    partition: &'a Partition<'p>,
    repeats: &'a mut Vec<u32>,
    noting: bool,
}

impl Ties<'_, '_> {
    /// Sorts groups of equal windows. The windows are bytes `skip..skip + 10`; `base` is the position of the first
    /// entry.
    fn resolve(&mut self, entries: &mut [u128], base: usize, skip: usize) {
        if self.partition.entries().value_bytes().is_some() {
            return self.repeated_values(entries, base);
        }
        let mut from = 0;
        while from < entries.len() {
            let window = Entries::window(entries[from]);
            let mut to = from + 1;
            while to < entries.len() && Entries::window(entries[to]) == window {
                to += 1;
            }
            if to - from > 1 {
                self.group(&mut entries[from..to], base + from, skip);
            }
            from = to;
        }
    }

    /// Collects the entries that are the same record as the one before.
    fn repeated_values(&mut self, entries: &[u128], base: usize) {
        if self.noting {
            let same = |at: &usize| entries[at - 1] == entries[*at];
            self.repeats.extend((1..entries.len()).filter(same).map(|at| (base + at) as u32));
        }
    }

    /// Sorts entries whose windows at `skip` are equal. Windows are padded with zeros, so keys that end inside them
    /// differ only in their number of zeros: the shorter is less, and all of them are less than longer keys.
    fn group(&mut self, group: &mut [u128], base: usize, skip: usize) {
        let end = skip + WINDOW_BYTES;
        if self.partition.key().ends_within(skip) {
            return self.repeat_all(group.len(), base);
        }
        if self.partition.key().fixed_bytes().is_some() {
            return self.going_on(group, base, end);
        }
        let length = |entry| self.normal_len(entry).min(end + 1);
        let first = length(group[0]);
        if group[1..].iter().all(|&entry| length(entry) == first) {
            return if first <= end {
                self.repeat_all(group.len(), base)
            } else {
                self.going_on(group, base, end)
            };
        }
        group.sort_unstable_by_key(|&entry| (length(entry), Entries::origin(entry)));
        let mut from = 0;
        while from < group.len() {
            let len = self.normal_len(group[from]).min(end + 1);
            let to = from + group[from..].partition_point(|&e| self.normal_len(e).min(end + 1) <= len);
            if len <= end {
                self.repeat_all(to - from, base + from);
            } else {
                self.going_on(&mut group[from..to], base + from, end);
            }
            from = to;
        }
    }

    /// Collects the repeats among `count` entries from `base`, which have equal keys and are already in input order.
    fn repeat_all(&mut self, count: usize, base: usize) {
        if self.noting {
            self.repeats.extend((base + 1..base + count).map(|at| at as u32));
        }
    }

    /// Sorts entries whose keys agree up to `end` and continue after it.
    fn going_on(&mut self, group: &mut [u128], base: usize, end: usize) {
        if group.len() <= SMALL_GROUP {
            return self.small_group(group, base, end);
        }
        let (pages, entries, key) = (&self.partition.pages, self.partition.entries(), self.partition.key());
        let shared = entries.shared(group, pages, key, end);
        for entry in group.iter_mut() {
            *entry = Entries::with_window(*entry, entries.window_from(*entry, pages, key, shared));
        }
        group.sort_unstable();
        self.resolve(group, base, shared);
    }

    #[inline(always)]
    fn normal_len(&self, entry: u128) -> usize {
        let key = self.partition.key();
        if let Some(len) = key.fixed_bytes() {
            return len;
        }
        let (pages, entries) = (&self.partition.pages, self.partition.entries());
        if let (Some((offset, length)), Ok(len)) = (key.as_slice(), entries.known_len(entry)) {
            return len.saturating_sub(offset).min(length);
        }
        entries.with_record(entry, pages, |record| key.normal_len(record))
    }

    fn small_group(&mut self, group: &mut [u128], base: usize, skip: usize) {
        let (pages, entries, key) = (&self.partition.pages, self.partition.entries(), self.partition.key());
        let compare = |a: u128, b: u128| entries.compare_from(a, b, pages, key, skip);
        group.sort_unstable_by(|&a, &b| compare(a, b).then(Entries::origin(a).cmp(&Entries::origin(b))));
        for i in 1..group.len() {
            if self.noting && compare(group[i - 1], group[i]) == Ordering::Equal {
                self.repeats.push((base + i) as u32);
            }
        }
    }
}
