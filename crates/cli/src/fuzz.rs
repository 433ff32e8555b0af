//! The fuzz targets of the command line. Each function takes any bytes and panics if an invariant is broken; `fuzz/`
//! calls them, and the tests replay its corpora.
//!
//! Invariant: builds for users contain none of this.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use thalweg::KeyPart;
use thalweg_base::units::{Bytes, Size};

use crate::interpret::interpret;
use thalweg_verbs::Usage;

use crate::parse::parse;
use crate::print::on_one_line;
use thalweg_verbs::values;

/// Parses these arguments, one on each line: they are accepted, or rejected with one line that is not much longer.
pub fn flags(data: &[u8]) {
    let words: Vec<OsString> =
        data.split(|&b| b == b'\n').map(|word| OsString::from_vec(word.to_vec())).collect();
    if let Err(Usage(why)) = parse(words.clone()).and_then(interpret) {
        is_one_line(&why, data.len(), &words);
    }
}

/// Parses the text as every kind of value that a flag may have.
pub fn values(data: &[u8]) {
    let typed = OsStr::from_bytes(data);
    let text = typed.to_str();
    let told = |why: &str| is_one_line(why, data.len(), &typed);
    match values::parsed::<Size>(typed) {
        Ok(Size::Bytes(bytes)) => {
            assert_eq!(Some(bytes), text.and_then(bytes_plainly), "{typed:?}");
            assert_eq!(Size::Bytes(bytes).of(0), bytes);
            assert!(!Bytes(bytes).to_string().is_empty());
        }
        Ok(share @ Size::Percent(_)) => assert!(share.of(1 << 40) <= 1 << 40, "{typed:?}"),
        Err(why) => told(&why),
    }
    match values::count(typed) {
        Ok(n) => assert_eq!(Some(n), text.and_then(count_plainly), "{typed:?}"),
        Err(why) => told(&why),
    }
    match values::keys(typed) {
        Ok(parts) => {
            let again: Vec<String> = parts.iter().map(key_text).collect();
            assert_eq!(values::keys(OsStr::new(&again.join(","))), Ok(parts.clone()));
            for part in parts {
                assert!(part.length > 0 && part.offset.checked_add(part.length).is_some());
            }
        }
        Err(why) => told(&why),
    }
    let _ = values::record_bytes(typed).map(|n| assert!(n > 0)).map_err(|why| told(&why));
    let _ = values::threads(typed).map(|n| assert!(n > 0)).map_err(|why| told(&why));
    let _ = values::names(typed).map(|n| assert!(n.iter().all(|n| !n.is_empty()))).map_err(|why| told(&why));
    let _ = values::hosts(typed).map(|n| assert!(n.iter().all(|n| !n.is_empty()))).map_err(|why| told(&why));
    let _ = values::address(typed).map_err(|why| told(&why));
    let _ = values::duration(typed).map(|time| assert!(!time.is_zero())).map_err(|why| told(&why));
    let _ = values::variable(typed).map(|(name, _)| assert!(!name.is_empty())).map_err(|why| told(&why));
    let _ = values::choice(typed, &[("auto", 1), ("always", 2), ("never", 3)]).map_err(|why| told(&why));
}

fn key_text(part: &KeyPart) -> String {
    format!("{}:{}{}", part.offset, part.length, if part.descending { ":desc" } else { "" })
}

/// A second parser of sizes, to compare with: a number and perhaps a unit. Whole numbers are exact; fractions are `f64`
/// rounded down, and inexact above 2^53.
fn bytes_plainly(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let power = ["k", "m", "g", "t"].iter().position(|letter| unit.starts_with(letter)).map_or(0, |i| i + 1);
    let thousand: u128 = if unit.len() == 2 { 1000 } else { 1024 };
    let scale = thousand.pow(power as u32);
    match number.parse::<u128>() {
        Ok(whole) => u64::try_from(whole * scale).ok(),
        Err(_) => Some((number.parse::<f64>().ok()? * scale as f64) as u64),
    }
}

fn count_plainly(text: &str) -> Option<u128> {
    let zeros = match text.chars().next_back()?.to_ascii_lowercase() {
        'k' => 3,
        'm' => 6,
        'g' => 9,
        't' => 12,
        _ => return text.parse().ok(),
    };
    format!("{}{}", &text[..text.len() - 1], "0".repeat(zeros)).parse().ok()
}

fn is_one_line(why: &str, typed_len: usize, typed: &impl std::fmt::Debug) {
    let line = on_one_line(why);
    assert!(line.lines().count() == 1, "{typed:?}: {line}");
    assert!(!why.is_empty() && why.len() < 400 + typed_len * 4, "{typed:?}: {why}");
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay;

    #[test]
    fn the_corpora_are_answered() {
        replay::corpus("flags", super::flags);
        replay::corpus("values", super::values);
    }
}
