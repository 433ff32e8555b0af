//! Encodes plain data as bytes. Numbers without a sign take a byte for each seven bits (LEB128), numbers with a sign are
//! little-endian, and data of variable length is preceded by its length.
//!
//! Invariant: malformed data is rejected. A length is checked against the bytes that arrived before memory is
//! reserved.
//! Non-goals: what the data means.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Data that can be encoded as bytes and decoded.
pub trait Plain: Sized {
    /// Appends the encoded data to `into`.
    fn put(&self, into: &mut Vec<u8>);

    /// Decodes the data at the start of `from` and removes it there; `None` if it is invalid.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

/// Decodes bytes that contain exactly one value; `None` if they are invalid or more bytes follow.
pub fn decode<T: Plain>(mut bytes: &[u8]) -> Option<T> {
    let found = T::take(&mut bytes)?;
    bytes.is_empty().then_some(found)
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            fn put(&self, into: &mut Vec<u8>) {
                into.extend(self.to_le_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<$number> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$number>::from_le_bytes(*bytes))
            }
        }
    )*};
}

numbers!(u8, i32, i64);

/// The bit of a byte that says that more bytes of the number follow.
const MORE: u8 = 0x80;
const BITS: u32 = 7;

impl Plain for u64 {
    fn put(&self, into: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= u64::from(MORE) {
            into.push(rest as u8 | MORE);
            rest >>= BITS;
        }
        into.push(rest as u8);
    }

    fn take(from: &mut &[u8]) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(BITS as usize) {
            let byte = u8::take(from)?;
            let bits = u64::from(byte & !MORE);
            number |= bits << shift;
            if byte < MORE {
                // Each number has one encoding: no zeros at its end, and no bits that do not fit.
                return ((byte > 0 || shift == 0) && number >> shift == bits).then_some(number);
            }
        }
        None
    }
}

/// The bytes of an encoded number.
pub fn number_bytes(number: u64) -> usize {
    (number.max(1).ilog2() / BITS) as usize + 1
}

impl Plain for u32 {
    fn put(&self, into: &mut Vec<u8>) {
        u64::from(*self).put(into);
    }

    fn take(from: &mut &[u8]) -> Option<u32> {
        u64::take(from)?.try_into().ok()
    }
}

impl Plain for bool {
    fn put(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Option<bool> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Plain> Plain for Option<T> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        self.iter().for_each(|value| value.put(into));
    }

    fn take(from: &mut &[u8]) -> Option<Option<T>> {
        if bool::take(from)? { T::take(from).map(Some) } else { Some(None) }
    }
}

impl<T: Plain> Plain for Vec<T> {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u32).put(into);
        self.iter().for_each(|value| value.put(into));
    }

    fn take(from: &mut &[u8]) -> Option<Vec<T>> {
        let len = u32::take(from)? as usize;
        // Each element takes at least one byte.
        if len > from.len() {
            return None;
        }
        (0..len).map(|_| T::take(from)).collect()
    }
}

impl<A: Plain, B: Plain> Plain for (A, B) {
    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
        self.1.put(into);
    }

    fn take(from: &mut &[u8]) -> Option<(A, B)> {
        Some((A::take(from)?, B::take(from)?))
    }
}

/// The bytes are copied at once; those of a `Vec<u8>` are encoded one by one.
impl Plain for Box<[u8]> {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u32).put(into);
        into.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Option<Box<[u8]>> {
        let len = u32::take(from)? as usize;
        let (bytes, rest) = from.split_at_checked(len)?;
        *from = rest;
        Some(bytes.into())
    }
}

impl Plain for Arc<str> {
    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u32).put(into);
        into.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<Arc<str>> {
        String::take(from).map(Into::into)
    }
}

impl<T: Plain> Plain for Arc<T> {
    fn put(&self, into: &mut Vec<u8>) {
        (**self).put(into);
    }

    fn take(from: &mut &[u8]) -> Option<Arc<T>> {
        T::take(from).map(Arc::new)
    }
}

impl Plain for [u64; 2] {
    fn put(&self, into: &mut Vec<u8>) {
        (self[0], self[1]).put(into);
    }

    fn take(from: &mut &[u8]) -> Option<[u64; 2]> {
        <(u64, u64)>::take(from).map(Into::into)
    }
}

impl Plain for String {
    fn put(&self, into: &mut Vec<u8>) {
        self.as_bytes().to_vec().put(into);
    }

    fn take(from: &mut &[u8]) -> Option<String> {
        String::from_utf8(Vec::take(from)?).ok()
    }
}

impl Plain for PathBuf {
    fn put(&self, into: &mut Vec<u8>) {
        self.as_os_str().as_bytes().to_vec().put(into);
    }

    fn take(from: &mut &[u8]) -> Option<PathBuf> {
        Some(OsString::from_vec(Vec::take(from)?).into())
    }
}

/// Encodes a struct as its fields, one after the other.
#[macro_export]
macro_rules! record {
    ($type:ident { $($field:ident),* }) => {
        impl $crate::codec::Plain for $type {
            fn put(&self, into: &mut Vec<u8>) {
                $($crate::codec::Plain::put(&self.$field, into);)*
            }

            fn take(from: &mut &[u8]) -> Option<$type> {
                Some($type { $($field: $crate::codec::Plain::take(from)?),* })
            }
        }
    };
}

/// Encodes an enum as one byte with the number of the variant, and then the variant's fields.
#[macro_export]
macro_rules! choice {
    ($type:ident { $($tag:literal => $variant:ident { $($field:tt: $name:ident),* }),* $(,)? }) => {
        impl $crate::codec::Plain for $type {
            fn put(&self, into: &mut Vec<u8>) {
                match self {
                    $($type::$variant { $($field: $name),* } => {
                        into.push($tag);
                        $($crate::codec::Plain::put($name, into);)*
                    })*
                }
            }

            fn take(from: &mut &[u8]) -> Option<$type> {
                match <u8 as $crate::codec::Plain>::take(from)? {
                    $($tag => {
                        $(let $name = $crate::codec::Plain::take(from)?;)*
                        Some($type::$variant { $($field: $name),* })
                    })*
                    _ => None,
                }
            }
        }
    };
}

pub use crate::{choice, record};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_encoding() {
        let numbers = [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), 1 << 62, 1 << 63, u64::MAX];
        for number in numbers {
            let mut bytes = Vec::new();
            number.put(&mut bytes);
            assert_eq!(bytes.len(), number_bytes(number));
            assert_eq!(decode::<u64>(&bytes), Some(number));
            assert_eq!(decode::<u32>(&bytes), u32::try_from(number).ok());
            assert_eq!(decode::<u64>(&bytes[..bytes.len() - 1]), None, "{number} without its last byte");
        }
        let too_large = [[0xff; 9].as_slice(), &[2]].concat();
        let too_long = [[0x80; 10].as_slice(), &[1]].concat();
        for bytes in [&[0x80, 0][..], &[0xff, 0], &too_large, &too_long] {
            assert_eq!(decode::<u64>(bytes), None, "{bytes:x?}");
        }
    }
}
