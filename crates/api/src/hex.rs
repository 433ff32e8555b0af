//! 128-bit numbers, and bytes, as lower-case hexadecimal text: JSON's own numbers end at 2^53.

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(value: &u128, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{value:032x}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
    let text = String::deserialize(from)?;
    u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
}

/// Bytes, two digits each.
pub(crate) mod bytes {
    use std::fmt::Write;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * value.len());
        value.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
        to.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let pair = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(pair).collect();
        bytes.ok_or_else(|| serde::de::Error::custom("bytes are pairs of hexadecimal digits"))
    }
}
