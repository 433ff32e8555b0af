//! The protocol of Redis clients, versions 2 and 3: parses requests and writes replies.
//!
//! ```text
//! request   *2\r\n$3\r\nGET\r\n$5\r\nfilms\r\n      or in a line:  GET films\r\n
//! ```
//!
//! Invariant: any bytes are a malformed request, an incomplete one, or one within the limits. No memory is reserved for
//! bytes that have not arrived.
//! Non-goals: what commands do.

use std::ops::Range;

/// The most bytes of one request.
pub(crate) const REQUEST_BYTES_MAX: usize = 32 << 20;
/// The most bytes of one reply.
pub(crate) const REPLY_BYTES_MAX: usize = 64 << 20;
/// The most arguments of one request, its name included.
const ARGUMENTS_MAX: usize = 1 << 18;
/// The most bytes of a request in one line, and of a line with a number.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A request, as ranges of the received bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Where each argument is, the name of the command first.
    pub(crate) arguments: Vec<Range<usize>>,
    /// The arguments instead, if some are in quotes.
    pub(crate) quoted: Vec<Vec<u8>>,
    /// The length of the request in bytes.
    pub(crate) bytes: usize,
}

impl Parsed {
    /// The arguments of the request, which begins at the first of these bytes, or where its ranges say.
    pub(crate) fn arguments<'a>(&'a self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        match self.quoted.is_empty() {
            true => self.arguments.iter().map(|at| &bytes[at.clone()]).collect(),
            false => self.quoted.iter().map(|one| &one[..]).collect(),
        }
    }
}

/// Why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Not a number of arguments.
    Count,
    /// Not a length of an argument.
    Length,
    /// No `$` where the length of an argument belongs.
    NoLength,
    /// A line is too long.
    LongLine,
    /// A quote in a line has no end, or is followed by something other than a blank.
    Quotes,
    /// The request is too long.
    Long,
    /// HTTP: for example, a web page made a browser send it here.
    Http,
}

impl Malformed {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Malformed::Count => "ERR Protocol error: invalid multibulk length",
            Malformed::Length => "ERR Protocol error: invalid bulk length",
            Malformed::NoLength => "ERR Protocol error: expected '$'",
            Malformed::LongLine => "ERR Protocol error: too big inline request",
            Malformed::Quotes => "ERR Protocol error: unbalanced quotes in request",
            Malformed::Long => "ERR Protocol error: a request of more than 32 MiB",
            Malformed::Http => "ERR Protocol error: this is not an HTTP server",
        }
    }
}

/// Parses the request at the beginning of the bytes into `into`. Returns whether the request is complete.
pub(crate) fn parse(bytes: &[u8], into: &mut Parsed) -> Result<bool, Malformed> {
    into.arguments.clear();
    into.quoted.clear();
    into.bytes = 0;
    match bytes.first() {
        None => Ok(false),
        Some(b'*') => parse_array(bytes, into),
        Some(_) => parse_line(bytes, into),
    }
}

fn parse_array(bytes: &[u8], into: &mut Parsed) -> Result<bool, Malformed> {
    let Some((count, mut at)) = number(bytes, 1, Malformed::Count)? else { return Ok(false) };
    if count > ARGUMENTS_MAX as i64 {
        return Err(Malformed::Count);
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(_) => return Err(Malformed::NoLength),
        }
        let Some((len, from)) = number(bytes, at + 1, Malformed::Length)? else { return Ok(false) };
        let len = usize::try_from(len).map_err(|_| Malformed::Length)?;
        if len > REQUEST_BYTES_MAX || from + len + 2 > REQUEST_BYTES_MAX {
            return Err(Malformed::Long);
        }
        if bytes.len() < from + len + 2 {
            return Ok(false);
        }
        if &bytes[from + len..from + len + 2] != b"\r\n" {
            return Err(Malformed::Length);
        }
        into.arguments.push(from..from + len);
        at = from + len + 2;
    }
    into.bytes = at;
    Ok(true)
}

/// The number in the line that begins at `from`, and the index of the next line.
fn number(bytes: &[u8], from: usize, malformed: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = &bytes[from..];
    let Some(end) = rest[..rest.len().min(32)].iter().position(|byte| *byte == b'\r') else {
        return if rest.len() >= 32 { Err(malformed) } else { Ok(None) };
    };
    match rest.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(malformed),
    }
    let number = integer(&rest[..end]).ok_or(malformed)?;
    Ok(Some((number, from + end + 2)))
}

/// A number as in commands and lengths: an optional minus, then only digits, in the one way to write it.
pub(crate) fn integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let is_negative = digits.len() < bytes.len();
    if digits.is_empty() || (digits[0] == b'0' && (is_negative || digits.len() > 1)) {
        return None;
    }
    // Negative, because there is one more negative number. `str::parse` takes longer.
    let negative = digits.iter().try_fold(0i64, |number, digit| match digit.wrapping_sub(b'0') {
        digit @ 0..=9 => number.checked_mul(10)?.checked_sub(i64::from(digit)),
        _ => None,
    })?;
    if is_negative { Some(negative) } else { negative.checked_neg() }
}

/// The words of a line, of which some are in quotes, as Redis reads them: `"` with the escapes of C and `\xHH`, or `'`, in
/// which only `\'` is one.
fn quoted(line: &[u8], words: &mut Vec<Vec<u8>>) -> Result<(), Malformed> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        while let Some((first, behind)) = rest.split_first().filter(|(first, _)| !is_blank(first)) {
            rest = behind;
            if !matches!(first, b'"' | b'\'') {
                word.push(*first);
                continue;
            }
            rest = in_quotes(*first, rest, &mut word)?;
            if rest.first().is_some_and(|next| !is_blank(next)) {
                return Err(Malformed::Quotes);
            }
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Ok(())
}

/// Appends what is in quotes to a word. Returns the bytes behind the closing quote.
fn in_quotes<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], Malformed> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    loop {
        let (byte, behind) = match rest {
            [b'\\', b'x', high, low, behind @ ..]
                if quote == b'"' && digit(*high).is_some() && digit(*low).is_some() =>
            {
                (digit(*high).unwrap_or(0) << 4 | digit(*low).unwrap_or(0), behind)
            }
            [b'\\', b'\'', behind @ ..] if quote == b'\'' => (b'\'', behind),
            [b'\\', escaped, behind @ ..] if quote == b'"' => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (byte, behind)
            }
            [first, behind @ ..] if *first == quote => return Ok(behind),
            [first, behind @ ..] => (*first, behind),
            [] => return Err(Malformed::Quotes),
        };
        word.push(byte);
        rest = behind;
    }
}

/// Parses a request in one line.
fn parse_line(bytes: &[u8], into: &mut Parsed) -> Result<bool, Malformed> {
    let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(LINE_BYTES_MAX)]) else {
        return if bytes.len() >= LINE_BYTES_MAX { Err(Malformed::LongLine) } else { Ok(false) };
    };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let mut from = 0;
    for word in line.split(|byte| *byte == b' ' || *byte == b'\t') {
        if !word.is_empty() {
            into.arguments.push(from..from + word.len());
        }
        from += word.len() + 1;
    }
    let name = into.arguments.first().map_or(&b""[..], |name| &bytes[name.clone()]);
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        return Err(Malformed::Http);
    }
    let last = into.arguments.last().map_or(&b""[..], |last| &bytes[last.clone()]);
    if last.starts_with(b"HTTP/") {
        return Err(Malformed::Http);
    }
    if memchr::memchr2(b'"', b'\'', line).is_some() {
        quoted(line, &mut into.quoted)?;
    }
    into.bytes = end + 1;
    Ok(true)
}

/// Writes replies.
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// Where the reply begins.
    from: usize,
    /// The version of the protocol.
    version: u8,
}

impl<'a> Reply<'a> {
    /// Begins a reply at the end of `out`, in this version of the protocol.
    pub(crate) fn new(out: &'a mut Vec<u8>, version: u8) -> Reply<'a> {
        Reply { from: out.len(), out, version }
    }

    /// Whether it has more bytes than a reply may have.
    pub(crate) fn is_long(&self) -> bool {
        self.out.len() - self.from > REPLY_BYTES_MAX
    }

    /// Removes what was written of the reply.
    pub(crate) fn withdraw(&mut self) {
        self.out.truncate(self.from);
    }

    pub(crate) fn set_version(&mut self, version: u8) {
        self.version = version;
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    fn head(&mut self, kind: u8, number: i64) {
        // The kind, a minus, 19 digits, and the end of the line.
        let mut line = *b"_____________________\r\n";
        let mut at = line.len() - 2;
        let mut put = |byte| {
            at -= 1;
            line[at] = byte;
        };
        let mut rest = number.unsigned_abs();
        loop {
            put(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            put(b'-');
        }
        put(kind);
        self.out.extend_from_slice(&line[at..]);
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error line. It begins with a code, and line breaks in text from a client are replaced.
    pub(crate) fn error(&mut self, text: &str) {
        self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.integer(count as i64);
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(if self.version == 2 { b"$-1\r\n" } else { b"_\r\n" });
    }

    /// Null in place of an array.
    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(if self.version == 2 { b"*-1\r\n" } else { b"_\r\n" });
    }

    pub(crate) fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Begins an array of `count` replies.
    pub(crate) fn array(&mut self, count: usize) {
        self.head(b'*', count as i64);
    }

    /// Where the next part of the reply begins.
    pub(crate) fn here(&self) -> usize {
        self.out.len()
    }

    /// Makes an array of the `count` replies since `here`.
    pub(crate) fn array_since(&mut self, here: usize, count: usize) {
        let end = self.out.len();
        self.array(count);
        let head = self.out.len() - end;
        self.out[here..].rotate_right(head);
    }

    /// Begins the reply to a scan, which continues at this cursor.
    pub(crate) fn cursor(&mut self, cursor: u64) {
        self.array(2);
        self.bulk(cursor.to_string().as_bytes());
    }

    /// Begins a map of `count` pairs of replies.
    pub(crate) fn map(&mut self, count: usize) {
        match self.version {
            2 => self.array(2 * count),
            _ => self.head(b'%', count as i64),
        }
    }

    pub(crate) fn double(&mut self, number: f64) {
        let text = match number {
            f64::INFINITY => "inf".into(),
            f64::NEG_INFINITY => "-inf".into(),
            _ => number.to_string(),
        };
        match self.version {
            2 => self.bulk(text.as_bytes()),
            _ => self.line(b',', text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Request<'a> = (Vec<&'a [u8]>, usize);

    fn parsed(bytes: &[u8]) -> Result<Option<Request<'_>>, Malformed> {
        let mut parsed = Parsed::default();
        let whole = parse(bytes, &mut parsed)?;
        Ok(whole.then(|| (parsed.arguments.iter().map(|at| &bytes[at.clone()]).collect(), parsed.bytes)))
    }

    #[test]
    fn requests_are_read() {
        let get = b"*2\r\n$3\r\nGET\r\n$5\r\na\r\nbc\r\nrest";
        assert_eq!(parsed(get), Ok(Some((vec![&b"GET"[..], b"a\r\nbc"], get.len() - 4))));
        (0..get.len() - 4).for_each(|n| assert_eq!(parsed(&get[..n]), Ok(None), "{n}"));
        assert_eq!(parsed(b"PING  x \r\n"), Ok(Some((vec![&b"PING"[..], b"x"], 10))));
        assert_eq!(parsed(b"\r\n"), Ok(Some((vec![], 2))));
        assert_eq!(parsed(b"*0\r\n"), Ok(Some((vec![], 4))));
        assert_eq!(parsed(b"*-1\r\n"), Ok(Some((vec![], 5))));
    }

    #[test]
    fn words_in_quotes_are_read_as_redis_reads_them() {
        for (line, words) in [
            (r#"SET k "a b""#, &[&b"SET"[..], b"k", b"a b"][..]),
            (r"SET 'it\'s' 'a\nb'", &[b"SET", b"it's", b"a\\nb"]),
            (r#""\x00\xfF\n\r\t\a\b\"\\\q\xg0""#, &[b"\0\xff\n\r\t\x07\x08\"\\qxg0"]),
            (r#"  GET  a"b c"	'd'  "#, &[b"GET", b"ab c", b"d"]),
            (r#"SET "" ''"#, &[b"SET", b"", b""]),
        ] {
            let (mut parsed, bytes) = (Parsed::default(), format!("{line}\r\nnext"));
            assert_eq!(parse(bytes.as_bytes(), &mut parsed), Ok(true), "{line}");
            assert_eq!(parsed.arguments(bytes.as_bytes()), words, "{line}");
            assert_eq!(parsed.bytes, line.len() + 2);
        }
        for line in [r#"SET k "a"#, r#"SET k "a"b"#, "SET k 'a", r#"SET k "a\"#, "SET k 'a'\"b\""] {
            assert_eq!(parsed(format!("{line}\n").as_bytes()), Err(Malformed::Quotes), "{line}");
        }
    }

    #[test]
    fn a_number_has_one_way_to_be_written() {
        let numbers = ["0", "-1", "9223372036854775807", "-9223372036854775808"];
        numbers.iter().for_each(|one| assert_eq!(integer(one.as_bytes()), one.parse().ok(), "{one}"));
        for wrong in ["", "-", "-0", "00", "-01", "+1", " 1", "1 ", "9223372036854775808", "1.0"] {
            assert_eq!(integer(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        use Malformed::*;
        for (bytes, why) in [
            (&b"*x\r\n"[..], Count),
            (b"*300000\r\n", Count),
            (b"*99999999999999999999999999999999\r\n", Count),
            (b"*1\r\n+OK\r\n", NoLength),
            (b"*1\r\n$-1\r\n", Length),
            (b"*1\r\n$01\r\nx\r\n", Length),
            (b"*1\r\n$1\r\nxyz", Length),
            (b"*1\r\n$40000000\r\n", Long),
            (b"POST / HTTP/1.1\r\n", Http),
            (b"GET / HTTP/1.1\r\n", Http),
            (b"PRI * HTTP/2.0\r\n", Http),
            (b"Host: here\r\n", Http),
        ] {
            assert_eq!(parsed(bytes), Err(why), "{}", bytes.escape_ascii());
        }
        assert_eq!(parsed(&vec![b'x'; LINE_BYTES_MAX]), Err(LongLine));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(prop_oneof![
            Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..b'3', any::<u8>(),
        ], 0..60)) {
            if let Ok(Some((arguments, n))) = parsed(&bytes) {
                prop_assert!(n <= bytes.len() && arguments.iter().map(|one| one.len()).sum::<usize>() <= n);
            }
        }

        #[test]
        fn numbers_are_written_as_they_are(number in any::<i64>()) {
            let mut out = Vec::new();
            Reply::new(&mut out, 2).integer(number);
            prop_assert_eq!(out, format!(":{number}\r\n").into_bytes());
        }
    }
}
