//! Extracts the bits that vary between numbers, so that a table indexed by them has no empty parts.
//!
//! Model: in heads of text only some bits vary: five of eight in a letter, four in a digit. As numbers the heads are
//! clustered, so most steps of a table with equal steps are empty. Bits that are equal in all numbers do not affect
//! their order, so they can be left out.
//!
//! ```text
//! "b7:"   011 00010  0011 0111  00111010     ->  00010 0111
//! "k2:"   011 01011  0011 0010  00111010     ->  01011 0010
//! ```
//!
//! Invariant: the results have the order of the numbers, or are equal.
//! Non-goals: keeping all bits; numbers that form a single cluster.

/// The maximum number of runs of bits. Five bytes of letters, one run each, have the `BITS_WANTED`.
const RUNS: usize = 5;
/// No more runs are extracted once they have this many bits.
const BITS_WANTED: u32 = 24;
/// If the first run has this many bits, nothing has to be extracted.
const RUN_BITS_ENOUGH: u32 = 14;

/// Which bits are extracted.
#[derive(Debug, Clone, Default)]
pub struct VaryingBits {
    /// For each run, how far it is shifted down, and a mask of its new place.
    runs: [(u32, u64); RUNS],
    /// The bits above the last run that are left out, and their common value.
    left_out: u64,
    alike: u64,
}

impl VaryingBits {
    /// Chooses the bits for these numbers and similar ones. `None` if the numbers are dense already.
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

    /// Whether a number is similar: its left-out bits have the common value, except in its trailing zero bytes.
    #[inline(always)]
    pub fn fits(&self, number: u64) -> bool {
        let unlike = number & self.left_out ^ self.alike;
        unlike == 0 || unlike & !zero_bytes_behind(number) == 0
    }

    /// Extracts the bits.
    #[inline(always)]
    pub fn extract(&self, number: u64) -> u64 {
        self.runs.iter().fold(0, |kept, (down, bits)| kept | number >> down & bits)
    }
}

/// A mask of the bytes after the last nonzero byte: a head may be longer than its key.
#[inline(always)]
fn zero_bytes_behind(number: u64) -> u64 {
    let bits = number.trailing_zeros() & !(u8::BITS - 1);
    !u64::MAX.checked_shl(bits).unwrap_or(0)
}

/// The runs of ones in `differ`, from the highest: the start of each, and its length.
fn runs(differ: u64) -> Vec<(u32, u32)> {
    let mut runs = Vec::with_capacity(RUNS);
    let (mut rest, mut bits) = (differ, 0);
    while rest != 0 && bits < BITS_WANTED && runs.len() < RUNS {
        let end = u64::BITS - rest.leading_zeros();
        let mut start = end;
        // A single equal bit between two that differ is not worth another run.
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
    fn bits_of_text_become_dense() {
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
    fn dense_numbers_are_left_alone() {
        for numbers in [&[7u64][..], &[], &[0, 1, u64::MAX, u64::MAX - 1], &[1 << 40, (1 << 41) - 1], &[0]] {
            assert!(of(numbers).is_none(), "{numbers:?}");
        }
    }
}
