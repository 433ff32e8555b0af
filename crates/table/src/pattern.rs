//! The arguments of scans: which keys match.

use crate::call::{Arguments, number};
use crate::error::Refusal;

/// The most keys that one request looks at, whatever its COUNT.
const SCANNED_MAX: usize = 10_000;

/// The bytes of values after which a request looks at no more.
pub(crate) const SCANNED_BYTES: usize = 4 << 20;

/// The arguments of a scan after its cursor.
pub(crate) struct Scan<'a> {
    pattern: Option<&'a [u8]>,
    pub(crate) count: usize,
    pub(crate) kind: Option<&'a [u8]>,
    pub(crate) only_keys: bool,
}

impl<'a> Scan<'a> {
    pub(crate) fn of(name: &'static str, arguments: &Arguments<'a>) -> Result<Scan<'a>, Refusal> {
        let mut scan = Scan { pattern: None, count: 10, kind: None, only_keys: false };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if name == "hscan" && word.eq_ignore_ascii_case(b"novalues") {
                scan.only_keys = true;
                continue;
            }
            let value = *words.next().ok_or(Refusal::Syntax(name))?;
            match &word.to_ascii_lowercase()[..] {
                b"match" => scan.pattern = Some(value),
                b"count" => {
                    let count = number(value)?;
                    let count = usize::try_from(count).ok().filter(|n| *n > 0);
                    scan.count = count.ok_or(Refusal::Syntax(name))?.min(SCANNED_MAX);
                }
                b"type" if name == "scan" => scan.kind = Some(value),
                _ => return Err(Refusal::Syntax(name)),
            }
        }
        Ok(scan)
    }

    pub(crate) fn wants(&self, key: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| matches(pattern, key))
    }
}

/// Whether a pattern with `*`, `?`, `[a-z]`, `[^a]` and `\` matches all of a text.
///
/// The time is bounded by the product of both lengths, because it only backtracks to the last `*`.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(p + 1),
            Some(b'[') => class(pattern, p + 1, text[t]),
            Some(b'\\') if p + 1 < pattern.len() => (pattern[p + 1] == text[t]).then_some(p + 2),
            Some(byte) => (*byte == text[t]).then_some(p + 1),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => (p, t) = (next, t + 1),
            (None, Some((behind, from))) => {
                star = Some((behind, from + 1));
                (p, t) = (behind, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The index after the class that begins here, if the byte is in the class.
fn class(pattern: &[u8], from: usize, byte: u8) -> Option<usize> {
    let is_not = pattern.get(from) == Some(&b'^');
    let mut at = from + usize::from(is_not);
    let mut is_in = false;
    loop {
        match (pattern.get(at), pattern.get(at + 1), pattern.get(at + 2)) {
            (None, ..) => return (is_in != is_not).then_some(at),
            (Some(b']'), ..) => return (is_in != is_not).then_some(at + 1),
            (Some(b'\\'), Some(escaped), _) => {
                is_in |= *escaped == byte;
                at += 2;
            }
            (Some(low), Some(b'-'), Some(high)) if *high != b']' => {
                is_in |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            (Some(one), ..) => {
                is_in |= *one == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_redis_matches() {
        for (pattern, yes, no) in [
            ("*", &["", "a"][..], &[][..]),
            ("a*c", &["ac", "abc", "abcc"], &["ab", "acb"]),
            ("a?c", &["abc"], &["ac", "abbc"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[c-a]x", &["bx"], &["dx"]),
            ("[^a]x", &["bx"], &["ax"]),
            ("[a\\]]x", &["]x", "ax"], &["bx"]),
            ("\\*", &["*"], &["a"]),
            ("**a*", &["a", "bab"], &["b"]),
            ("a[", &[], &["a", "ab"]),
        ] {
            yes.iter()
                .for_each(|text| assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}"));
            no.iter()
                .for_each(|text| assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}"));
        }
        // The time is not exponential.
        let (pattern, text) = ("*a".repeat(1000) + "b", "a".repeat(10_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
