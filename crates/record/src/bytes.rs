//! The proof of a stream of bytes, in which order matters.
//!
//! ```text
//! bytes   [cell 0][cell 1][cell 2 ][cell]      4096 bytes each, only the last may be short
//! sum  =     0   + H(4096, c1) + 0 + H(12288, c3)      mod 2^128; a cell of zeros adds nothing
//! ```
//!
//! Invariant: if a stream is divided at multiples of a cell, its sum is the sum of its parts, which may be read in any
//! order. Exchanging two cells changes the sum. A hole has the same sum as zeros, so it need not be read.
//! Non-goals: malicious changes; XXH3 only finds accidental ones.

use xxhash_rust::xxh3::xxh3_128;

/// Bytes of a cell. Parts begin at multiples of it.
pub const CELL_BYTES: usize = 4096;

/// The sum of `bytes` at offset `offset` of their stream.
pub fn sum_at(offset: u64, bytes: &[u8]) -> u128 {
    assert!(offset.is_multiple_of(CELL_BYTES as u64), "bytes that begin inside a cell");
    let mut sum = 0u128;
    let mut at = offset;
    for cell in bytes.chunks(CELL_BYTES) {
        if !is_zero(cell) {
            sum = sum.wrapping_add(placed(at, xxh3_128(cell)));
        }
        at += CELL_BYTES as u64;
    }
    sum
}

/// The sum of a file in a tree. `name` is its path there, so exchanging two names changes the sum of the tree.
pub fn sum_of_file(name: &[u8], len: u64, sum: u128) -> u128 {
    let mut whole = [0u8; 40];
    whole[..16].copy_from_slice(&sum.to_le_bytes());
    whole[16..24].copy_from_slice(&len.to_le_bytes());
    whole[24..].copy_from_slice(&xxh3_128(name).to_le_bytes());
    xxh3_128(&whole)
}

/// The hash of a cell combined with its offset.
fn placed(offset: u64, hash: u128) -> u128 {
    let mut both = [0u8; 24];
    both[..16].copy_from_slice(&hash.to_le_bytes());
    both[16..].copy_from_slice(&offset.to_le_bytes());
    xxh3_128(&both)
}

/// Whether all bytes are zero. Fast, because nearly every other cell has a nonzero byte at its start.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|line| line.iter().fold(0, |any, b| any | b) == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some(seed: u64, cells: usize) -> Vec<u8> {
        let mut rng = thalweg_base::rng::Rng::new(seed);
        (0..cells * CELL_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
    }

    #[test]
    fn exchanged_cells_change_the_sum() {
        let bytes = some(1, 3);
        let mut swapped = bytes.clone();
        swapped[..2 * CELL_BYTES].rotate_left(CELL_BYTES);
        assert_ne!(sum_at(0, &bytes), sum_at(0, &swapped));
        assert_ne!(sum_at(0, &bytes), sum_at(4096, &bytes));
    }

    #[test]
    fn zeros_add_nothing() {
        let mut bytes = vec![0; 5 * CELL_BYTES + 7];
        assert_eq!(sum_at(0, &bytes), 0);
        let part = some(2, 1);
        bytes[3 * CELL_BYTES..4 * CELL_BYTES].copy_from_slice(&part);
        assert_eq!(sum_at(0, &bytes), sum_at(3 * CELL_BYTES as u64, &part));
    }

    #[test]
    fn exchanged_names_change_the_sum() {
        let sums = [sum_at(0, b"one"), sum_at(0, b"two")];
        let tree = |a: u128, b: u128| sum_of_file(b"a", 3, a).wrapping_add(sum_of_file(b"b", 3, b));
        assert_ne!(tree(sums[0], sums[1]), tree(sums[1], sums[0]));
        assert_ne!(sum_of_file(b"a", 3, 0), sum_of_file(b"a", 4, 0));
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_parts(seed: u64, cells in 1usize..9, tail in 0usize..4096, cut in 0usize..9) {
            let mut bytes = some(seed, cells);
            bytes.truncate(bytes.len() - tail);
            let cut = (cut * CELL_BYTES).min(bytes.len() / CELL_BYTES * CELL_BYTES);
            let (a, b) = bytes.split_at(cut);
            prop_assert_eq!(sum_at(0, &bytes), sum_at(0, a).wrapping_add(sum_at(cut as u64, b)));
        }

        #[test]
        fn a_changed_byte_changes_the_sum(seed: u64, at in 0usize..8192, bit in 0u8..8) {
            let bytes = some(seed, 2);
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            prop_assert_ne!(sum_at(0, &bytes), sum_at(0, &other));
        }
    }
}
