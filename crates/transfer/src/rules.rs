//! Filter rules: which entries of a tree are copied, and which of the destination are not deleted. They are rsync's, with
//! the exception of rules that are read from files.
//!
//! ```text
//! - *.o            the first rule that matches decides: not this one
//! + /docs/***      but this directory and all in it, at the top of the transfer
//! P cache/         at the destination, a directory of this name is not deleted
//! ```
//!
//! Model: a path is matched with each rule in turn. A pattern is compiled once, and matched in time proportional to its
//! length times that of the path, whatever it contains: it may come from a peer.
//! Invariant: the same decisions as rsync's for every path and rule; a test compares them.
//! Non-goals: `merge` and `dir-merge`, the modifiers `/`, `C`, `e`, `n`, `w` and `x`.

use crate::refused::Refused;

/// The most rules, and the most bytes of a pattern.
const RULES_MAX: usize = 10_000;
const PATTERN_BYTES_MAX: usize = 4096;

/// The end that a rule is applied at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Entries of the source are hidden.
    Source,
    /// Entries of the destination are protected.
    Dest,
}

/// A list of rules.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    is_include: bool,
    /// Whether it is applied at the source, and at the destination.
    at: [bool; 2],
    /// Whether it decides about what does not match.
    is_negated: bool,
    /// Whether it is ignored in directories that are being deleted.
    is_perishable: bool,
    pattern: Pattern,
}

impl Rules {
    /// Adds a rule: an action, modifiers, a space or an underscore, and a pattern; `!` removes all rules.
    pub(crate) fn filter(&mut self, text: &str) -> Result<(), Refused> {
        if text == "!" || text == "clear" {
            self.rules.clear();
            return Ok(());
        }
        let refused = |why: &'static str| Refused::Rule { rule: text.to_string(), why };
        let rule = Rule::parse(text).map_err(refused)?;
        if self.rules.len() >= RULES_MAX {
            return Err(refused("there are more than 10000 rules"));
        }
        self.rules.push(rule);
        Ok(())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether an entry, by its path in the transfer, is excluded at this end.
    pub(crate) fn excludes(&self, side: Side, path: &[u8], is_dir: bool) -> bool {
        self.decide(side, path, is_dir, false)
    }

    /// Whether an entry is protected in a directory that is being deleted.
    pub(crate) fn protects_in_deleted(&self, path: &[u8], is_dir: bool) -> bool {
        self.decide(Side::Dest, path, is_dir, true)
    }

    fn decide(&self, side: Side, path: &[u8], is_dir: bool, dying: bool) -> bool {
        let applies = |rule: &&Rule| {
            rule.at[side as usize]
                && !(dying && rule.is_perishable)
                && rule.pattern.matches(path, is_dir) != rule.is_negated
        };
        self.rules.iter().find(applies).is_some_and(|rule| !rule.is_include)
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, &'static str> {
        const LONG: [(&str, char); 8] = [
            ("exclude", '-'),
            ("include", '+'),
            ("hide", 'H'),
            ("show", 'S'),
            ("protect", 'P'),
            ("risk", 'R'),
            ("dir-merge", ':'),
            ("merge", '.'),
        ];
        let ends_word = |rest: &str| rest.is_empty() || rest.starts_with([' ', '_', ',']);
        let long = LONG.iter().find_map(|(word, action)| {
            text.strip_prefix(word).filter(|rest| ends_word(rest)).map(|rest| (*action, rest))
        });
        let short = || text.chars().next().map(|action| (action, &text[action.len_utf8()..]));
        let (action, rest) = long.or_else(short).ok_or("it is empty")?;
        let is_include = match action {
            '-' | 'H' | 'P' => false,
            '+' | 'S' | 'R' => true,
            '.' | ':' => return Err("rules are not read from files here; give each of them"),
            _ => return Err("a rule begins with -, +, H, S, P, R or !, as in '- *.o'"),
        };
        let end = rest.find([' ', '_']).ok_or("a space and a pattern are missing")?;
        let (modifiers, pattern) = (rest[..end].strip_prefix(',').unwrap_or(&rest[..end]), &rest[end + 1..]);
        if modifiers.contains(|modifier| !"!prs".contains(modifier)) {
            return Err("of the modifiers, !, p, r and s are known here");
        }
        let has = |modifier| modifiers.contains(modifier);
        let at = match action {
            'H' | 'S' => [true, false],
            'P' | 'R' => [false, true],
            _ if !has('s') && !has('r') => [true, true],
            _ => [has('s'), has('r')],
        };
        if pattern.is_empty() {
            return Err("its pattern is empty");
        }
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err("its pattern is longer than 4096 bytes");
        }
        let (is_negated, is_perishable) = (has('!'), has('p'));
        Ok(Rule { is_include, at, is_negated, is_perishable, pattern: Pattern::of(pattern.as_bytes()) })
    }
}

/// A compiled pattern.
#[derive(Debug, Clone, Default)]
struct Pattern {
    only_dirs: bool,
    /// Whether it also matches the directory itself, as `dir/***` does.
    and_dir: bool,
    /// What is put in front of a path before it is matched: a slash if the pattern begins with `**`.
    from_slash: bool,
    against: Against,
    /// `None` if it matches nothing.
    parts: Option<Vec<Part>>,
}

/// The part of a path that a pattern is compared with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Against {
    /// The last name.
    #[default]
    Name,
    /// The whole path.
    Path,
    /// This many of the last names.
    LastNames(usize),
    /// The path, and what follows each slash in it.
    AnySuffix,
}

#[derive(Debug, Clone)]
enum Part {
    Byte(u8),
    /// Any byte but a slash.
    Any,
    /// Any bytes but slashes.
    Star,
    /// Any bytes.
    Stars,
    /// One of these bytes, which is not a slash.
    OneOf(Box<[bool; 256]>),
}

impl Pattern {
    fn of(typed: &[u8]) -> Pattern {
        let (mut rest, mut only_dirs) = (typed, false);
        if let [before @ .., b'/'] = rest
            && !before.is_empty()
        {
            (rest, only_dirs) = (before, true);
        }
        let is_wild = rest.iter().any(|b| b"*[?".contains(b));
        let stars = rest.windows(2).position(|two| two == b"**");
        let (has_stars, from_slash) = (stars.is_some(), stars == Some(0));
        let slashes = rest.iter().filter(|b| **b == b'/').count();
        let and_dir = has_stars && rest.ends_with(b"***");
        let is_anchored = rest.starts_with(b"/");
        let against = match (slashes, has_stars, is_anchored) {
            (0, false, _) => Against::Name,
            (_, false, false) => Against::LastNames(slashes + 1),
            (_, true, false) if !from_slash => Against::AnySuffix,
            _ => Against::Path,
        };
        let rest = if is_anchored { &rest[1..] } else { rest };
        let parts = if is_wild { parts(rest) } else { Some(rest.iter().map(|b| Part::Byte(*b)).collect()) };
        Pattern { only_dirs, and_dir, from_slash, against, parts }
    }

    fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        if self.only_dirs && !is_dir {
            return false;
        }
        let Some(parts) = &self.parts else { return false };
        let path = match self.against {
            Against::Name => path.rsplit(|b| *b == b'/').next().unwrap_or_default(),
            _ => path,
        };
        let front: &[u8] = if self.from_slash { b"/" } else { b"" };
        let back: &[u8] = if self.and_dir && is_dir { b"/" } else { b"" };
        let text = [front, path, back].concat();
        match self.against {
            Against::Name | Against::Path => match_all(parts, &text),
            Against::LastNames(count) => {
                let mut slashes = text.iter().enumerate().rev().filter(|(_, b)| **b == b'/');
                match slashes.nth(count - 1) {
                    Some((at, _)) => match_all(parts, &text[at + 1..]),
                    None => {
                        text.iter().filter(|b| **b == b'/').count() + 1 == count && match_all(parts, &text)
                    }
                }
            }
            Against::AnySuffix => {
                let after_slash = text.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at + 1);
                std::iter::once(0).chain(after_slash).any(|from| match_all(parts, &text[from..]))
            }
        }
    }
}

/// The parts of a pattern with wildcards; `None` if it ends too early to match anything.
fn parts(pattern: &[u8]) -> Option<Vec<Part>> {
    let (mut parts, mut rest) = (Vec::new(), pattern);
    while let [first, after @ ..] = rest {
        rest = after;
        parts.push(match first {
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                rest = after;
                Part::Byte(*escaped)
            }
            b'?' => Part::Any,
            b'*' => {
                let more = rest.iter().take_while(|b| **b == b'*').count();
                rest = &rest[more..];
                if more > 0 { Part::Stars } else { Part::Star }
            }
            b'[' => {
                let (set, after) = class(rest)?;
                rest = after;
                Part::OneOf(set)
            }
            byte => Part::Byte(*byte),
        });
    }
    Some(parts)
}

/// The bytes of a class, whose opening bracket precedes `text`, and what follows the class.
fn class(text: &[u8]) -> Option<(Box<[bool; 256]>, &[u8])> {
    let mut set = Box::new([false; 256]);
    let (is_negated, mut rest) = match text {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    // The byte before a hyphen begins a range.
    let (mut before, mut is_first) = (None, true);
    loop {
        let (byte, after) = rest.split_first()?;
        match (byte, after) {
            (b']', after) if !is_first => {
                rest = after;
                break;
            }
            (b'-', [next, after @ ..]) if before.is_some() && *next != b']' => {
                let (end, after) = if *next == b'\\' { after.split_first()? } else { (next, after) };
                (before.take().unwrap_or(0)..=*end).for_each(|b| set[usize::from(b)] = true);
                rest = after;
            }
            (b'[', [b':', named @ ..]) if named.contains(&b']') => {
                let len = named.iter().position(|b| *b == b']')?;
                rest = match named[..len].strip_suffix(b":") {
                    Some(name) => {
                        let is_of = named_class(name)?;
                        (0..=255u8).filter(is_of).for_each(|b| set[usize::from(b)] = true);
                        before = None;
                        &named[len + 1..]
                    }
                    None => {
                        set[usize::from(b'[')] = true;
                        before = Some(b'[');
                        after
                    }
                };
            }
            (b'\\', after) => {
                let (escaped, after) = after.split_first()?;
                set[usize::from(*escaped)] = true;
                (before, rest) = (Some(*escaped), after);
            }
            (byte, after) => {
                set[usize::from(*byte)] = true;
                (before, rest) = (Some(*byte), after);
            }
        }
        is_first = false;
    }
    if is_negated {
        set.iter_mut().for_each(|is_in| *is_in = !*is_in);
    }
    set[usize::from(b'/')] = false;
    Some((set, rest))
}

fn named_class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| matches!(b, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| matches!(b, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// Whether the parts match the whole text. Keeps the set of parts that may come next.
fn match_all(parts: &[Part], text: &[u8]) -> bool {
    let mut now = vec![false; parts.len() + 1];
    let skip_stars = |states: &mut [bool]| {
        for (at, part) in parts.iter().enumerate() {
            if states[at] && matches!(part, Part::Star | Part::Stars) {
                states[at + 1] = true;
            }
        }
    };
    now[0] = true;
    skip_stars(&mut now);
    for byte in text {
        let mut next = vec![false; parts.len() + 1];
        for (at, part) in parts.iter().enumerate().filter(|(at, _)| now[*at]) {
            match part {
                Part::Byte(b) => next[at + 1] |= b == byte,
                Part::Any => next[at + 1] |= *byte != b'/',
                Part::OneOf(set) => next[at + 1] |= set[usize::from(*byte)],
                Part::Star => next[at] |= *byte != b'/',
                Part::Stars => next[at] = true,
            }
        }
        skip_stars(&mut next);
        now = next;
    }
    now[parts.len()]
}

#[cfg(test)]
#[path = "rules_test.rs"]
mod rules_test;
