//! Squeezing: the bits that tell numbers apart, moved together, so that a table over them has no empty stretches.
//!
//! Model: heads of text use few of the bits they have: letters five of eight, digits four, what all share none. As
//! numbers they lie in clumps, and a table of equal steps has most steps where none is. Bits that are the same in all
//! numbers say nothing about their order, so leaving them out keeps it.
//!
//! ```text
//! "b7:"   011 00010  0011 0111  00111010     ->  00010 0111
//! "k2:"   011 01011  0011 0010  00111010     ->  01011 0010
//! ```
//!
//! Invariant: the squeezed of numbers that fit are in the same order, or equal.
//! Non-goals: keeping every bit; numbers that lie in one clump already.

/// At most so many runs of bits are kept: one for each byte of text, and digits need no more.
const RUNS: usize = 5;
/// Bits from the first that tells numbers apart that are worth keeping.
const BITS_WANTED: u32 = 24;
/// A first run of so many bits is as good as a squeeze.
const RUN_BITS_ENOUGH: u32 = 14;

/// Which bits of numbers are kept.
#[derive(Debug, Clone, Default)]
pub struct VaryingBits {
    /// By how much each run goes down, and its bits there.
    runs: [(u32, u64); RUNS],
    /// Bits left out above the last that is kept, and what all numbers have there.
    left_out: u64,
    alike: u64,
}

impl VaryingBits {
    /// For these numbers and others like them. `None` where they lie close as they are.
    pub fn of(numbers: impl Iterator<Item = u64>) -> Option<VaryingBits> {
        let (ones, zeros) = numbers.fold((0, 0), |(ones, zeros), number| {
            (ones | number, zeros | !number & !zero_bytes_behind(number))
        });
        let runs = runs(ones & zeros);
        if runs.first().is_none_or(|&(start, bits)| bits >= RUN_BITS_ENOUGH || start == 0) {
            return None;
        }
        let mut extract = VaryingBits::default();
        let (mut kept, mut below) = (0, 0);
        for (run, (start, bits)) in extract.runs.iter_mut().zip(runs.iter().rev()) {
            let all = u64::MAX >> (u64::BITS - bits);
            *run = (start - below, all << below);
            kept |= all << start;
            below += bits;
        }
        extract.left_out = !kept & (u64::MAX << kept.trailing_zeros());
        extract.alike = ones & extract.left_out;
        Some(extract)
    }

    /// Whether a number is like those that this was made for: it has what all have in the bits that are left out, up
    /// to where it is all zeros.
    #[inline(always)]
    pub fn fits(&self, number: u64) -> bool {
        let unlike = number & self.left_out ^ self.alike;
        unlike == 0 || unlike & !zero_bytes_behind(number) == 0
    }

    /// The bits that are kept.
    #[inline(always)]
    pub fn extract(&self, number: u64) -> u64 {
        self.runs.iter().fold(0, |kept, (down, bits)| kept | number >> down & bits)
    }
}

/// The bytes of a number behind the last that is not zero: where a head is longer than its key.
#[inline(always)]
fn zero_bytes_behind(number: u64) -> u64 {
    let bits = number.trailing_zeros() & !(u8::BITS - 1);
    !u64::MAX.checked_shl(bits).unwrap_or(0)
}

/// Runs of bits of `differ`, from the highest on: where each starts, and how many bits it has.
fn runs(differ: u64) -> Vec<(u32, u32)> {
    let mut runs = Vec::with_capacity(RUNS);
    let (mut rest, mut bits) = (differ, 0);
    while rest != 0 && bits < BITS_WANTED && runs.len() < RUNS {
        let end = u64::BITS - rest.leading_zeros();
        let mut start = end;
        // A single bit between two that differ is not worth a run more.
        while start > 0 && differ >> start.saturating_sub(2) & 3 != 0 {
            start -= 1;
        }
        start += (differ >> start).trailing_zeros();
        runs.push((start, end - start));
        bits += end - start;
        rest &= !(u64::MAX << start);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(numbers: &[u64]) -> Option<VaryingBits> {
        VaryingBits::of(numbers.iter().copied())
    }

    proptest! {
        #[test]
        fn what_fits_keeps_its_order(
            mask in prop_oneof![Just(0x1f1f_1f1f_1f1f_1f1fu64), Just(0x000f_000f_0f00_0f0f), any::<u64>()],
            ones in any::<u64>(),
            numbers in prop::collection::vec((any::<u64>(), 0u32..9), 1..40),
            probes in prop::collection::vec(any::<u64>(), 0..40),
        ) {
            let ends = |n: u64, bytes: u32| n & !u64::MAX.checked_shr(8 * bytes).unwrap_or(0);
            let numbers: Vec<u64> =
                numbers.into_iter().map(|(n, bytes)| ends(n & mask | ones & !mask, bytes)).collect();
            if let Some(extract) = of(&numbers) {
                prop_assert!(numbers.iter().all(|n| extract.fits(*n)));
                let like = |n: &u64| [*n, n & mask | ones & !mask, ends(n & mask | ones & !mask, (n % 9) as u32)];
                let probes = probes.iter().flat_map(like).filter(|n| extract.fits(*n));
                let all: Vec<u64> = numbers.iter().copied().chain(probes).collect();
                for pair in all.windows(2) {
                    let (a, b) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
                    prop_assert!(extract.extract(a) <= extract.extract(b), "{:x} {:x} {:?}", a, b, extract);
                }
            }
        }
    }

    #[test]
    fn text_lies_close() {
        let words = [b"aardvark", b"zyzzyvas", b"mnopqrst"].map(|word| u64::from_be_bytes(*word));
        let extract = of(&words).expect("letters leave bits out");
        assert!(extract.extract(words[1]) < 1 << 25 && extract.extract(words[0]) < extract.extract(words[2]));
        assert!(!extract.fits(u64::from_be_bytes(*b"mnOpqrst")));
        let times = [b"23:59:59", b"10:00:00", b"07:36:46"].map(|time| u64::from_be_bytes(*time));
        let extract = of(&times).expect("digits leave bits out");
        // Two, three, three, four and three bits.
        let kept = [(2, 2), (3, 3), (3, 5), (4, 9), (3, 5)];
        assert_eq!(extract.extract(times[0]), kept.iter().fold(0, |all, (bits, digit)| all << bits | digit));
        assert!(!extract.fits(u64::from_be_bytes(*b"07:36 46")));
    }

    #[test]
    fn what_lies_close_is_left_as_it_is() {
        for numbers in [&[7u64][..], &[], &[0, 1, u64::MAX, u64::MAX - 1], &[1 << 40, (1 << 41) - 1], &[0]] {
            assert!(of(numbers).is_none(), "{numbers:?}");
        }
    }
}
