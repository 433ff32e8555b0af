//! 128-bit numbers as lower-case hexadecimal text: JSON's own numbers end at 2^53.

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(value: &u128, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{value:032x}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
    let text = String::deserialize(from)?;
    u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
}
