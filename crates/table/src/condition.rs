//! The condition of a query: a test of the bytes of a record's value, or of some of them.
//!
//! ```text
//! condition   [OFFSET:[LENGTH]] test        which bytes are tested; without an offset, all
//! test        contains:X | prefix:X | =X | !=X | <X | <=X | >X | >=X
//! ```
//!
//! Model: X is any bytes up to the end of the condition. Bytes compare as keys do. If a value ends before the tested
//! range does, only the bytes that it has are tested, perhaps none; so of two opposite tests exactly one holds.
//! Invariant: parsing the result of [`Condition::text`] gives the same condition. Servers get it as this text.
//! Non-goals: numbers, and combinations of conditions.

use std::fmt;

use memchr::memmem::Finder;

/// The most bytes of a condition.
pub const CONDITION_BYTES_MAX: usize = 4 << 10;

/// A test of a value.
#[derive(Debug, Clone)]
pub struct Condition {
    window: Option<Window>,
    test: Test,
}

/// Some bytes of a value; without a length, all bytes from the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    offset: usize,
    length: Option<usize>,
}

#[derive(Debug, Clone)]
enum Test {
    Contains(Box<Finder<'static>>),
    Prefix(Box<[u8]>),
    Compare(Comparison, Box<[u8]>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Comparisons as they are written. `<=` must be tried before its prefix `<`, for example.
const COMPARISONS: [(&[u8], Comparison); 6] = [
    (b"=", Comparison::Equal),
    (b"!=", Comparison::NotEqual),
    (b"<=", Comparison::LessOrEqual),
    (b"<", Comparison::Less),
    (b">=", Comparison::GreaterOrEqual),
    (b">", Comparison::Greater),
];
const CONTAINS: &[u8] = b"contains:";
const PREFIX: &[u8] = b"prefix:";

/// Why bytes are not a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionError {
    /// The condition contains no test.
    NoTest(String),
    /// The offset or the length is not a number.
    Window(String),
    /// `contains:` or `prefix:` with nothing after it, which every value would meet.
    Nothing(String),
    /// The condition has this many bytes, which are too many.
    Long(usize),
}

impl fmt::Display for ConditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConditionError::NoTest(typed) => write!(
                f,
                "'{typed}' is not a condition: write contains:X, prefix:X, or one of = != < <= > >= and X, perhaps \
behind OFFSET:LENGTH, as in 4:8>=abc"
            ),
            ConditionError::Window(typed) => {
                write!(f, "'{typed}' does not begin with OFFSET:LENGTH, two numbers of bytes, as in 4:8>=abc")
            }
            ConditionError::Nothing(typed) => {
                write!(f, "'{typed}' names no bytes to look for: every value would meet it")
            }
            ConditionError::Long(bytes) => {
                write!(f, "a condition of {bytes} bytes; the longest has {CONDITION_BYTES_MAX}")
            }
        }
    }
}

impl std::error::Error for ConditionError {}

impl Condition {
    /// Parses a condition.
    ///
    /// # Errors
    /// If it does not follow the grammar, or is longer than [`CONDITION_BYTES_MAX`].
    pub fn parse(typed: &[u8]) -> Result<Condition, ConditionError> {
        if typed.len() > CONDITION_BYTES_MAX {
            return Err(ConditionError::Long(typed.len()));
        }
        let shown = || typed.escape_ascii().to_string();
        let (window, rest) = match typed.first() {
            Some(byte) if byte.is_ascii_digit() => {
                let (window, rest) = window(typed).ok_or_else(|| ConditionError::Window(shown()))?;
                (Some(window), rest)
            }
            _ => (None, typed),
        };
        let test = match (rest.strip_prefix(CONTAINS), rest.strip_prefix(PREFIX)) {
            (Some(b""), _) | (_, Some(b"")) => return Err(ConditionError::Nothing(shown())),
            (Some(bytes), _) => Test::Contains(Box::new(Finder::new(bytes).into_owned())),
            (_, Some(bytes)) => Test::Prefix(bytes.into()),
            _ => {
                let found = COMPARISONS
                    .iter()
                    .find_map(|(sign, comparison)| Some((*comparison, rest.strip_prefix(*sign)?)));
                let (comparison, bytes) = found.ok_or_else(|| ConditionError::NoTest(shown()))?;
                Test::Compare(comparison, bytes.into())
            }
        };
        Ok(Condition { window, test })
    }

    /// The condition as text that [`Condition::parse`] accepts.
    pub fn text(&self) -> Vec<u8> {
        let mut text = match self.window {
            None => Vec::new(),
            Some(Window { offset, length: None }) => format!("{offset}:").into_bytes(),
            Some(Window { offset, length: Some(length) }) => format!("{offset}:{length}").into_bytes(),
        };
        let (sign, bytes) = match &self.test {
            Test::Contains(finder) => (CONTAINS, finder.needle()),
            Test::Prefix(bytes) => (PREFIX, &bytes[..]),
            Test::Compare(comparison, bytes) => {
                let sign = COMPARISONS.iter().find(|(_, other)| other == comparison);
                (sign.expect("every comparison has a sign").0, &bytes[..])
            }
        };
        text.extend_from_slice(sign);
        text.extend_from_slice(bytes);
        text
    }

    /// Whether a value meets the condition.
    pub fn matches(&self, value: &[u8]) -> bool {
        let tested = match self.window {
            None => value,
            Some(Window { offset, length }) => {
                let rest = value.get(offset..).unwrap_or_default();
                &rest[..rest.len().min(length.unwrap_or(usize::MAX))]
            }
        };
        match &self.test {
            Test::Contains(finder) => finder.find(tested).is_some(),
            Test::Prefix(bytes) => tested.starts_with(bytes),
            Test::Compare(comparison, bytes) => {
                let order = tested.cmp(bytes);
                match comparison {
                    Comparison::Equal => order.is_eq(),
                    Comparison::NotEqual => order.is_ne(),
                    Comparison::Less => order.is_lt(),
                    Comparison::LessOrEqual => order.is_le(),
                    Comparison::Greater => order.is_gt(),
                    Comparison::GreaterOrEqual => order.is_ge(),
                }
            }
        }
    }
}

/// Parses `OFFSET:` or `OFFSET:LENGTH`, and returns the rest.
fn window(typed: &[u8]) -> Option<(Window, &[u8])> {
    let (offset, rest) = number(typed)?;
    let rest = rest.strip_prefix(b":")?;
    match rest.first() {
        Some(byte) if byte.is_ascii_digit() => {
            let (length, rest) = number(rest)?;
            Some((Window { offset, length: Some(length) }, rest))
        }
        _ => Some((Window { offset, length: None }, rest)),
    }
}

fn number(typed: &[u8]) -> Option<(usize, &[u8])> {
    let digits = typed.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = typed.split_at(digits);
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_meets_what_is_true_of_it() {
        for (condition, meets, fails) in [
            (&b"contains:her"[..], &[&b"her"[..], b"other", b"there!"][..], &[&b""[..], b"he r"][..]),
            (b"prefix:ab", &[b"ab", b"abc"], &[b"a", b"cab"]),
            (b"4:8>=abc", &[b"0123abc", b"0123b", b"0123abcdefghij"], &[b"0123", b"0123ab", b"abc"]),
            (b"4:2=ab", &[b"0123abc"], &[b"0123a", b"0123ba"]),
            (b"1:contains:a", &[b"ba"], &[b"ab"]),
            (b"0:1prefix:ab", &[], &[b"ab"]),
            (b"!=x", &[b"", b"y"], &[b"x"]),
            (b"<b", &[b"", b"a", b"aa"], &[b"b", b"ba"]),
            (b"=", &[b""], &[b"x"]),
            (b"99999999999:9=", &[b"", b"x"], &[]),
        ] {
            let parsed = Condition::parse(condition).unwrap();
            let name = condition.escape_ascii();
            meets.iter().for_each(|value| assert!(parsed.matches(value), "{name}: {}", value.escape_ascii()));
            fails
                .iter()
                .for_each(|value| assert!(!parsed.matches(value), "{name}: {}", value.escape_ascii()));
        }
    }

    #[test]
    fn what_is_no_condition_is_refused_with_the_grammar() {
        for (typed, says) in [
            (&b""[..], "write contains:X"),
            (b"holds:x", "write contains:X"),
            (b"4>=abc", "OFFSET:LENGTH"),
            (b"4:8", "write contains:X"),
            (b"99999999999999999999:1=a", "OFFSET:LENGTH"),
            (b"contains:", "every value"),
            (b"3:prefix:", "every value"),
        ] {
            let said = Condition::parse(typed).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        let long = [b"=", &[b'x'; CONDITION_BYTES_MAX][..]].concat();
        assert_eq!(Condition::parse(&long).unwrap_err(), ConditionError::Long(CONDITION_BYTES_MAX + 1));
    }

    /// Bytes from a small alphabet, so that matches are likely.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(
            prop_oneof![Just(b'a'), Just(b'b'), Just(b'='), Just(b'0'), any::<u8>()],
            0..8,
        )
    }

    fn window() -> impl Strategy<Value = String> {
        prop_oneof![Just(String::new()), (0..9u8).prop_map(|n| format!("{n}:")), "[0-9]:[0-9]"]
    }

    fn cut<'a>(window: &str, value: &'a [u8]) -> &'a [u8] {
        let Some((offset, length)) = window.split_once(':') else { return value };
        let from = offset.parse::<usize>().unwrap().min(value.len());
        let to = length.parse::<usize>().map_or(value.len(), |length| (from + length).min(value.len()));
        &value[from..to]
    }

    proptest! {
        #[test]
        fn comparisons_are_those_of_slices(value in bytes(), operand in bytes(), window in window()) {
            let tested = cut(&window, &value);
            for (sign, holds) in [
                ("=", tested == operand),
                ("!=", tested != operand),
                ("<", tested < &operand[..]),
                ("<=", tested <= &operand[..]),
                (">", tested > &operand[..]),
                (">=", tested >= &operand[..]),
                ("prefix:", tested.starts_with(&operand)),
                ("contains:", tested.windows(operand.len().max(1)).any(|part| part == operand)),
            ] {
                let is_longer_sign = sign.len() == 1 && sign != "=" && operand.first() == Some(&b'=');
                if is_longer_sign || operand.is_empty() && sign.ends_with(':') {
                    continue;
                }
                let typed = [format!("{window}{sign}").as_bytes(), &operand].concat();
                let condition = Condition::parse(&typed).unwrap();
                prop_assert_eq!(condition.matches(&value), holds, "{}", typed.escape_ascii());
                prop_assert_eq!(condition.text(), typed);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_written_as_they_were_read(typed in bytes(), window in window()) {
            let typed = [window.as_bytes(), &typed].concat();
            if let Ok(condition) = Condition::parse(&typed) {
                prop_assert_eq!(Condition::parse(&condition.text()).unwrap().text(), condition.text());
            }
        }
    }
}
