//! A record in its buffer, including access to the bytes after it.
//!
//! Model: eight or sixteen bytes are read at once, and the bytes after the record are masked. For short records this
//! takes a fifth of the time of a length check. Only at the very end of a block are there no bytes after the record.

/// A record, or a part of one, inside a buffer. Bytes after it may be read but do not matter.
#[derive(Debug, Clone, Copy)]
pub struct InPlace<'b> {
    bytes: &'b [u8],
    len: usize,
}

impl<'b> From<&'b [u8]> for InPlace<'b> {
    /// A record with nothing after it.
    fn from(record: &'b [u8]) -> InPlace<'b> {
        InPlace { bytes: record, len: record.len() }
    }
}

impl<'b> InPlace<'b> {
    /// The first `len` bytes of `bytes`.
    #[inline(always)]
    pub fn new(bytes: &'b [u8], len: usize) -> InPlace<'b> {
        assert!(len <= bytes.len());
        InPlace { bytes, len }
    }

    /// Bytes of the record.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // A record of no bytes is nothing special.
    pub fn len(self) -> usize {
        self.len
    }

    /// The record itself.
    #[inline(always)]
    pub fn alone(self) -> &'b [u8] {
        &self.bytes[..self.len]
    }

    /// The existing bytes of the key `offset..end`, without its first `skip` bytes.
    #[inline(always)]
    pub(crate) fn key(self, offset: usize, end: usize, skip: usize) -> InPlace<'b> {
        let to = end.min(self.len);
        let from = (offset + skip).min(to);
        InPlace { bytes: &self.bytes[from..], len: to - from }
    }

    /// Whether it begins with these bytes.
    #[inline(always)]
    pub(crate) fn begins_with(self, start: &[u8]) -> bool {
        self.alone().get(..start.len()).is_some_and(|own| same(own, start))
    }

    /// The first 8 bytes as a big-endian number, padded with zeros.
    #[inline(always)]
    pub(crate) fn head(self) -> u64 {
        match self.bytes.first_chunk() {
            Some(head) => u64::from_be_bytes(*head) & first_bytes(self.len),
            None => folded(self.alone()),
        }
    }

    /// The first 10 bytes as an 80-bit big-endian number, padded with zeros.
    #[inline(always)]
    pub fn window(self) -> u128 {
        let low = match self.bytes.get(8..10) {
            Some(&[first, second]) => {
                let behind = first_bytes(self.len.saturating_sub(8));
                u64::from(u16::from_be_bytes([first, second])) & behind >> 48
            }
            _ => folded(self.alone().get(8..).unwrap_or(&[])) >> 48,
        };
        u128::from(self.head()) << 16 | u128::from(low)
    }
}

/// A mask for the first `bytes` of 8 bytes. Branch-free, because the length of keys is unpredictable.
#[inline(always)]
fn first_bytes(bytes: usize) -> u64 {
    let half = 32 - 4 * bytes.min(8);
    u64::MAX << half << half
}

/// At most 8 bytes as a big-endian number, padded with zeros.
#[inline(never)]
fn folded(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |low, &byte| low >> 8 | u64::from(byte) << 56)
}

/// Whether two byte strings are equal. Short ones are compared as two numbers, without a call.
#[inline(always)]
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && match a.len() {
            8..=16 => ends::<8>(a) == ends::<8>(b),
            4..=7 => ends::<4>(a) == ends::<4>(b),
            0..=3 => a.iter().zip(b).all(|(a, b)| a == b),
            _ => a == b,
        }
}

/// The first and the last `N` bytes, if there are that many.
#[inline(always)]
fn ends<const N: usize>(bytes: &[u8]) -> Option<([u8; N], [u8; N])> {
    Some((*bytes.first_chunk()?, *bytes.last_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WINDOW_BYTES;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_after_the_record_do_not_matter(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            len in 0usize..40,
            (offset, length, skip) in (0usize..20, prop_oneof![0usize..20, Just(usize::MAX)], 0usize..20),
        ) {
            let len = len.min(bytes.len());
            let key = InPlace::new(&bytes, len).key(offset, offset.saturating_add(length), skip);
            let plain: Vec<u8> = bytes[..len].iter().copied().skip(offset).take(length).skip(skip).collect();
            prop_assert_eq!(key.alone(), &plain[..]);
            let mut padded = [0u8; 16];
            let shown = plain.len().min(WINDOW_BYTES);
            padded[..shown].copy_from_slice(&plain[..shown]);
            prop_assert_eq!(key.window(), u128::from_be_bytes(padded) >> 48);
            prop_assert_eq!(u128::from(key.head()), u128::from_be_bytes(padded) >> 64);
            for end in 0..=plain.len() {
                prop_assert!(key.begins_with(&plain[..end]));
                let other: Vec<u8> = plain[..end].iter().map(|byte| byte ^ u8::from(*byte == plain[end - 1])).collect();
                prop_assert!(end == 0 || !key.begins_with(&other));
            }
            prop_assert!(!key.begins_with(&[&plain[..], &[0]].concat()));
        }
    }
}
