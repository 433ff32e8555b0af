//! Sorts the entries of a bucket: one pass puts each entry near its final position, then short insertion sorts
//! finish.
//!
//! Model: split points divide keys into buckets of about equal size, so the numbers in a bucket are roughly uniform.
//! The head of an entry (the upper half of the number) selects its slot by interpolation between the smallest and
//! largest head of the bucket; for text only the bits that vary are used. A slot has about one entry. Slots with many
//! entries use a comparison sort, so skewed keys cost one pass more than a comparison sort.
//!
//! ```text
//! heads    3 9 4 1 8       slot = (head - least) >> shift        1 | 3 4 | . | 8 9
//! ```
//!
//! Invariant: the result is that of `sort_unstable_by_key`, except for the order of equal numbers.

use thalweg_record::VaryingBits;

/// With fewer entries than this, slots do not pay off.
const SLOTS_ENTRIES_MIN: usize = 32;
/// More slots than this do not fit in a core's own cache.
const SLOTS_MAX: usize = 1 << 13;
/// Bits that are zero in ASCII text.
const NOT_TEXT: u64 = 0x8080_8080_8080_8080;
/// Slots with at most this many entries use insertion sort.
const INSERTIONS_MAX: usize = 24;

/// Sorts entries. It reuses its table of slots.
#[derive(Debug, Default)]
pub(crate) struct InterpolationSort {
    /// During the sort, the position for the next entry of each slot; after it, the end of each slot.
    slots: Vec<u32>,
}

impl InterpolationSort {
    /// Appends all values of `pieces` to `out`, sorted by `rank`, which must not change their heads.
    pub(crate) fn append_sorted<'p>(
        &mut self,
        out: &mut Vec<u128>,
        pieces: impl Iterator<Item = &'p [u128]> + Clone,
        rank: impl Fn(u128) -> u128 + Copy,
    ) {
        let from = out.len();
        let count: usize = pieces.clone().map(<[u128]>::len).sum();
        let values = || pieces.clone().flatten().copied();
        let (mut least, mut greatest, mut ones) = (u64::MAX, 0, 0);
        // `for_each` loops over each piece separately, which is faster than stepping value by value.
        values().map(head).for_each(|head| {
            (least, greatest, ones) = (least.min(head), greatest.max(head), ones | head);
        });
        if count < SLOTS_ENTRIES_MIN || least == greatest {
            out.reserve_exact(count);
            pieces.for_each(|piece| out.extend_from_slice(piece));
            return out[from..].sort_unstable_by_key(|value| rank(*value));
        }
        let extract = if ones & NOT_TEXT == 0 { VaryingBits::of(values().map(head)) } else { None };
        let even = |head: u64| extract.as_ref().map_or(head, |extract| extract.extract(head));
        let least = even(least);
        let span = even(greatest) - least;
        let wanted = count.next_power_of_two().min(SLOTS_MAX);
        let shift = (u64::BITS - span.leading_zeros()).saturating_sub(wanted.ilog2());
        let slot = |value: u128| ((even(head(value)) - least) >> shift) as usize;
        self.slots.clear();
        self.slots.resize((span >> shift) as usize + 1, 0);
        values().for_each(|value| self.slots[slot(value)] += 1);
        let mut before = 0;
        for slot in &mut self.slots {
            before += std::mem::replace(slot, before);
        }
        out.reserve_exact(count);
        out.resize(from + count, 0);
        let out = &mut out[from..];
        values().for_each(|value| {
            let at = &mut self.slots[slot(value)];
            out[*at as usize] = value;
            *at += 1;
        });
        let mut start = 0;
        for &end in &self.slots {
            let end = end as usize;
            match end - start {
                0 | 1 => {}
                2..=INSERTIONS_MAX => insertion_sort(&mut out[start..end], rank),
                _ => out[start..end].sort_unstable_by_key(|value| rank(*value)),
            }
            start = end;
        }
    }
}

/// The upper half of an entry: the first eight bytes of its window.
#[inline(always)]
fn head(value: u128) -> u64 {
    (value >> 64) as u64
}

#[inline(always)]
fn insertion_sort(values: &mut [u128], rank: impl Fn(u128) -> u128) {
    for end in 1..values.len() {
        let value = values[end];
        let mut at = end;
        while at > 0 && rank(values[at - 1]) > rank(value) {
            values[at] = values[at - 1];
            at -= 1;
        }
        values[at] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library_does(
            low in prop_oneof![Just(0u128), Just((1 << 48) - 1)],
            narrow in 0u32..127,
            clumps in prop_oneof![Just(u128::MAX), Just(0x1f1f_1f1f_1f1f_1f1fu128 << 64 | 0xffff)],
            values in prop::collection::vec(any::<u128>(), 0..600),
            repeated in prop::collection::vec(any::<u8>(), 0..600),
            cuts in prop::collection::vec(0usize..1200, 0..5),
            before in prop::collection::vec(any::<u128>(), 0..3),
        ) {
            let mut values: Vec<u128> = values.into_iter().map(|v| v & clumps >> narrow)
                .chain(repeated.into_iter().map(|v| u128::from(v / 16) << 100 | u128::from(v))).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(values.len())).collect();
            cuts.extend([0, values.len()]);
            cuts.sort_unstable();
            let mut out = before.clone();
            let rank = |value: u128| value | low;
            InterpolationSort::default().append_sorted(&mut out, cuts.windows(2).map(|w| &values[w[0]..w[1]]), rank);
            values.sort_unstable();
            prop_assert_eq!(&out[..before.len()], &before[..]);
            let (out, ranks) = (&mut out[before.len()..], |values: &[u128]| values.iter().map(|v| rank(*v)).collect::<Vec<_>>());
            prop_assert_eq!(ranks(out), ranks(&values));
            out.sort_unstable();
            prop_assert_eq!(&out[..], &values[..]);
        }
    }
}
