//! Splits Rust source into code and comments, as far as the style rules need it.
//!
//! Invariant: both parts have as many lines as the text, so line numbers agree. The contents of strings and characters
//! belong to neither.
//! Non-goal: a parser. Functions that macros generate are not found.

/// A source file in two parts.
pub(crate) struct Source {
    /// The code, without comments and without the contents of strings.
    pub(crate) code: String,
    /// The comments alone.
    pub(crate) comments: String,
}

/// A function and its length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of `fn`, counted from 1.
    pub(crate) line: usize,
    /// The number of lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

impl Source {
    /// Splits a text.
    pub(crate) fn of(text: &str) -> Source {
        let chars: Vec<char> = text.chars().collect();
        let mut parts = Source { code: String::new(), comments: String::new() };
        let mut at = 0;
        while at < chars.len() {
            let (end, kind) = next_piece(&chars, at);
            for &c in &chars[at..end] {
                let kept = |wanted: bool| if wanted || c == '\n' { c } else { ' ' };
                parts.code.push(kept(kind == Kind::Code));
                parts.comments.push(kept(kind == Kind::Comment));
            }
            at = end;
        }
        parts
    }

    /// All functions with a body.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let code: Vec<char> = self.code.chars().collect();
        let mut found = Vec::new();
        let mut line = 1;
        for at in 0..code.len() {
            if code[at] == '\n' {
                line += 1;
            }
            if let Some((name, end)) = function_at(&code, at) {
                let lines = 1 + code[at..end].iter().filter(|&&c| c == '\n').count();
                found.push(Function { name, line, lines });
            }
        }
        found
    }
}

#[derive(PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Quoted,
}

/// The end and the kind of the token that begins here.
fn next_piece(chars: &[char], at: usize) -> (usize, Kind) {
    let rest = &chars[at..];
    let after_name = at > 0 && is_name(chars[at - 1]);
    match rest {
        ['/', '/', ..] => {
            let end = rest.iter().position(|&c| c == '\n').unwrap_or(rest.len());
            (at + end, Kind::Comment)
        }
        ['/', '*', ..] => (at + block_comment(rest), Kind::Comment),
        ['"', ..] => (at + quoted(rest, '"'), Kind::Quoted),
        ['r', '"' | '#', ..] if !after_name || chars[at - 1] == 'b' || chars[at - 1] == 'c' => {
            match raw(rest) {
                Some(length) => (at + length, Kind::Quoted),
                None => (at + 1, Kind::Code),
            }
        }
        ['\'', '\\', ..] => (at + quoted(rest, '\''), Kind::Quoted),
        ['\'', _, '\'', ..] => (at + 3, Kind::Quoted),
        _ => (at + 1, Kind::Code),
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a comment, which may be nested.
fn block_comment(text: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a quoted text with escapes.
fn quoted(text: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// The length of a raw string; `None` for a raw identifier or anything else.
fn raw(text: &[char]) -> Option<usize> {
    let hashes = text[1..].iter().take_while(|&&c| c == '#').count();
    if text.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let close =
        |at: &usize| text[*at] == '"' && text[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    let end = (hashes + 2..text.len()).find(close).map_or(text.len(), |at| at + 1 + hashes);
    Some(end.min(text.len()))
}

/// The name and the end of the function whose `fn` is here, if it has a body.
fn function_at(code: &[char], at: usize) -> Option<(String, usize)> {
    let is_word = code[at..].starts_with(&['f', 'n', ' ']) && !(at > 0 && is_name(code[at - 1]));
    if !is_word {
        return None;
    }
    let name: String = code[at + 3..].iter().take_while(|&&c| is_name(c)).collect();
    if name.is_empty() {
        return None;
    }
    let mut depth = 0;
    for (i, c) in code.iter().enumerate().skip(at) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ';' if depth == 0 => return None,
            '{' if depth == 0 => return Some((name, closing_brace(code, i))),
            _ => {}
        }
    }
    None
}

fn closing_brace(code: &[char], open: usize) -> usize {
    let mut depth = 0;
    for (i, c) in code.iter().enumerate().skip(open) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_kept_out_of_the_code() {
        let source = Source::of(
            "let a = \"// no { comment\"; // yes\nlet b = r#\"fn \" {\"#; /* one /* two */ still */ let c = '{';\nlet d = '\\'';",
        );
        assert!(!source.code.contains('{') && !source.code.contains("yes") && !source.code.contains("still"));
        assert!(source.code.contains("let c") && source.code.contains("let d"));
        assert!(
            source.comments.contains("yes")
                && source.comments.contains("two")
                && !source.comments.contains("no {")
        );
        assert_eq!(source.code.lines().count(), 3);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        let source = Source::of("fn f<'a>(x: &'a str) -> &'a str { r#type(x) } // 'tis\nfn g() {}");
        assert!(source.code.contains("-> &'a str") && source.code.contains("r#type"));
        assert_eq!(source.functions().len(), 2);
    }

    #[test]
    fn functions_are_measured_from_their_name_to_their_brace() {
        let text = "trait T {\n    fn none(&self) -> [u8; 4];\n}\nfn one() {}\n\nfn three(a: [u8; 2])\nwhere {\n}\nconst X: fn() = one;";
        let found = Source::of(text).functions();
        let expected = [("one", 4, 1), ("three", 6, 3)];
        assert_eq!(
            found,
            expected.map(|(name, line, lines)| Function { name: name.to_string(), line, lines })
        );
    }
}
