//! The encoding of samples that nodes send to each other.
//!
//! ```text
//! [shared: u16][rest: u32][origin: u64][rest bytes] ...   little-endian; `shared` bytes are those of the key before
//! ```
//!
//! Model: keys are sorted. Each is truncated [`BEYOND`] bytes after the byte that distinguishes it from its
//! neighbours, and stored without the prefix that it shares with the key before.
//! Invariant: an unpacked sample has the same order and the same origins.

use crate::{SplitPoint, common_prefix};

/// Additional bytes of each key, because other nodes have other neighbours.
const BEYOND: usize = 8;
const HEAD_BYTES: usize = 14;

/// Sorts and packs a sample.
pub fn pack_sample(sample: &mut [SplitPoint]) -> Vec<u8> {
    sample.sort_unstable();
    let agree: Vec<usize> =
        sample.windows(2).map(|pair| common_prefix(&pair[0].normal, &pair[1].normal)).collect();
    let mut packed = Vec::with_capacity(sample.len() * (HEAD_BYTES + 2 * BEYOND));
    let mut last: &[u8] = &[];
    for (i, split_point) in sample.iter().enumerate() {
        let before = i.checked_sub(1).map_or(0, |before| agree[before]);
        let told = before.max(agree.get(i).copied().unwrap_or(0)) + BEYOND;
        let key = &split_point.normal[..split_point.normal.len().min(told)];
        let shared = common_prefix(last, key).min(usize::from(u16::MAX));
        packed.extend((shared as u16).to_le_bytes());
        packed.extend(((key.len() - shared) as u32).to_le_bytes());
        packed.extend(split_point.origin.to_le_bytes());
        packed.extend(&key[shared..]);
        last = key;
    }
    packed
}

/// Unpacks a sample; `None` if it is invalid or its keys take more than `keys_bytes` bytes.
pub fn unpack_sample(mut bytes: &[u8], mut keys_bytes: usize) -> Option<Vec<SplitPoint>> {
    let mut sample: Vec<SplitPoint> = Vec::with_capacity(bytes.len() / (HEAD_BYTES + BEYOND));
    while !bytes.is_empty() {
        let (shared, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (origin, rest) = rest.split_first_chunk()?;
        let (tail, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let last = sample.last().map_or(&[][..], |last| &last.normal[..]);
        let normal = [last.get(..usize::from(u16::from_le_bytes(*shared)))?, tail].concat();
        keys_bytes = keys_bytes.checked_sub(normal.len())?;
        sample.push(SplitPoint { normal, origin: u64::from_le_bytes(*origin) });
        bytes = rest;
    }
    Some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_keeps_order_and_origins(
            keys in prop::collection::vec(("[ab]{0,40}", 0u64..5), 0..60),
        ) {
            let mut sample: Vec<SplitPoint> =
                keys.into_iter().map(|(key, origin)| SplitPoint { normal: key.into_bytes(), origin }).collect();
            let packed = pack_sample(&mut sample);
            let back = unpack_sample(&packed, 60 * 40).unwrap();
            prop_assert!(back.is_sorted());
            prop_assert_eq!(back.len(), sample.len());
            for (pair, original) in back.windows(2).zip(sample.windows(2)) {
                prop_assert_eq!(pair[0].cmp(&pair[1]), original[0].cmp(&original[1]));
            }
            for (back, original) in back.iter().zip(&sample) {
                prop_assert_eq!(back.origin, original.origin);
                prop_assert!(original.normal.starts_with(&back.normal));
            }
        }

        #[test]
        fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let keys: usize = unpack_sample(&bytes, 400).unwrap_or_default().iter().map(|c| c.normal.len()).sum();
            prop_assert!(keys <= 400);
        }
    }

    #[test]
    fn long_common_prefixes_pack_small() {
        let long = |i: u8| SplitPoint { normal: [&[b'x'; 5000][..], &[i]].concat(), origin: 0 };
        let mut sample: Vec<SplitPoint> = (0..100).map(long).collect();
        assert!(pack_sample(&mut sample).len() < 5000 + 100 * 40);
    }
}
