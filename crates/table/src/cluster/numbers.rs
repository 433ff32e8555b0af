//! Maps whose keys are the numbers of requests.
//!
//! Model: a client counts its requests, and looks up only its own numbers. Multiplication spreads them well enough, and
//! nobody else can choose them, so that no slower hash is needed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from the numbers of requests.
pub(crate) type NumberMap<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Hashes the number of a request.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a number is hashed as a whole")
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
