//! Reed-Solomon code over GF(2^8), for groups of up to [`DATA_MAX`] data buckets and [`PARITY_MAX`] parity buckets.
//!
//! ```text
//! P0 = D0 + D1 + D2 + ...          P1 = D0 + g D1 + g^2 D2 + ...          + is XOR, g = 2
//! ```
//!
//! Model: the P+Q code of RAID 6. Any two of its equations are independent as long as the powers of g differ, which
//! they do for up to 255 data buckets, so any k lost buckets can be recovered. The code is linear: if a byte changes by
//! `d`, each parity changes by `d` times the coefficient, whatever the other bytes are.
//! Alternatives: `reed-solomon-simd` (GF(2^16), FFT) encodes whole shards and cannot update parity by a difference.
//! `reed-solomon-erasure` has had no release since 2022, and does not offer that either. For k <= 2 no matrix has to be
//! inverted, so a table of products is all that is needed.

/// The most data buckets of a group.
pub(crate) const DATA_MAX: u8 = 16;
/// The most parity buckets of a group.
pub(crate) const PARITY_MAX: u8 = 2;

/// x^8 + x^4 + x^3 + x^2 + 1, of which 2 is a generator.
const POLYNOMIAL: u16 = 0x11d;

/// All products.
static PRODUCTS: [[u8; 256]; 256] = products();

const fn product(mut a: u16, mut b: u16) -> u8 {
    let mut sum = 0;
    while b > 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    sum as u8
}

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 256 {
            table[a][b] = product(a as u16, b as u16);
            b += 1;
        }
        a += 1;
    }
    table
}

fn times(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

/// The inverse of a number other than 0.
fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    (1..=u8::MAX).find(|b| times(a, *b) == 1).expect("every other element of a field has one")
}

/// Adds `factor` times `bytes` to the beginning of `sum`, which is at least as long.
pub(crate) fn add(sum: &mut [u8], factor: u8, bytes: &[u8]) {
    assert!(sum.len() >= bytes.len(), "a sum is as long as its longest term");
    if factor == 1 {
        sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        return;
    }
    let row = &PRODUCTS[usize::from(factor)];
    sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= row[usize::from(*byte)]);
}

/// The coefficient of a data bucket in a parity bucket.
pub(crate) fn coefficient(parity: u8, data: u8) -> u8 {
    (0..parity * data).fold(1, |power, _| times(power, 2))
}

/// The seats (see message.rs) whose buckets add up to the data bucket `wanted`, each with its factor. `lost` has all
/// data buckets that are lost, and `parities` the parity buckets that are left. `None` if too many are lost.
pub(crate) fn factors(data: u8, wanted: u8, lost: &[u8], parities: &[u8]) -> Option<Vec<(u8, u8)>> {
    let left = (0..data).filter(|bucket| !lost.contains(bucket));
    let other = lost.iter().copied().find(|bucket| *bucket != wanted);
    match (other, parities) {
        (None, [parity, ..]) => {
            let scale = inverse(coefficient(*parity, wanted));
            let data_terms = left.map(|bucket| (bucket, times(scale, coefficient(*parity, bucket))));
            Some(data_terms.chain([(data + parity, scale)]).collect())
        }
        // The second equation plus c times the first one, where c is the other lost bucket's coefficient in the second.
        (Some(other), [0, 1]) if lost.len() == 2 => {
            let c = coefficient(1, other);
            let scale = inverse(coefficient(1, wanted) ^ c);
            let data_terms = left.map(|bucket| (bucket, times(scale, coefficient(1, bucket) ^ c)));
            Some(data_terms.chain([(data, times(scale, c)), (data + 1, scale)]).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_element_but_zero_has_an_inverse_and_coefficients_differ() {
        assert!((1..=255).all(|a| times(a, inverse(a)) == 1));
        let coefficients: std::collections::BTreeSet<u8> =
            (0..DATA_MAX).map(|data| coefficient(1, data)).collect();
        assert_eq!(coefficients.len(), usize::from(DATA_MAX));
    }

    proptest! {
        #[test]
        fn any_k_lost_buckets_are_recovered_after_any_changes(
            data in 1..=DATA_MAX,
            parity in 1..=PARITY_MAX,
            changes in vec((0..DATA_MAX, 0..8usize, any::<u8>()), 0..60),
            lost_seats in vec(any::<prop::sample::Index>(), 2),
        ) {
            let seats = usize::from(data + parity);
            let mut buckets = vec![[0u8; 8]; seats];
            for (bucket, at, value) in changes {
                let bucket = bucket % data;
                let difference = buckets[usize::from(bucket)][at] ^ value;
                buckets[usize::from(bucket)][at] = value;
                for i in 0..parity {
                    add(&mut buckets[usize::from(data + i)][at..], coefficient(i, bucket), &[difference]);
                }
            }
            let mut lost: Vec<u8> =
                lost_seats.iter().take(usize::from(parity)).map(|seat| seat.index(seats) as u8).collect();
            lost.dedup();
            let parities: Vec<u8> = (0..parity).filter(|i| !lost.contains(&(data + i))).collect();
            let lost: Vec<u8> = lost.into_iter().filter(|seat| *seat < data).collect();
            for wanted in &lost {
                let factors = factors(data, *wanted, &lost, &parities).expect("at most k are lost");
                let mut sum = [0; 8];
                for (seat, factor) in factors {
                    prop_assert!(!lost.contains(&seat));
                    add(&mut sum, factor, &buckets[usize::from(seat)]);
                }
                prop_assert_eq!(sum, buckets[usize::from(*wanted)]);
            }
            if let ([wanted, ..], [_, _]) = (&lost[..], &parities[..]) {
                prop_assert_eq!(factors(data, *wanted, &[0, 1, 2], &parities), None);
            }
        }
    }
}
