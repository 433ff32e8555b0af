//! The only place that prints.
//!
//! Invariant: a reader that has gone away is no error; a full disk is. An error is one line, whatever the names in
//! it hold.

use std::io::{ErrorKind, Write};

use crate::failure::{DONE, Failure};
use crate::interpret::Show;

/// Shows a result as JSON or as text, unless the command should be quiet. Returns the exit status of success.
pub(crate) fn report(
    how: Show,
    json: impl FnOnce() -> String,
    text: impl FnOnce() -> String,
) -> Result<u8, Failure> {
    if how.json {
        tell(how, json() + "\n")
    } else if how.quiet {
        Ok(DONE)
    } else {
        tell(how, text())
    }
}

/// Writes what was asked for. Returns the exit status of success.
pub(crate) fn tell(how: Show, text: String) -> Result<u8, Failure> {
    say(&text, how.out_is_data).map(|()| DONE)
}

/// Writes to standard output, or to standard error where that carries records.
pub(crate) fn say(text: &str, out_is_data: bool) -> Result<(), Failure> {
    let (written, place) = if out_is_data {
        (write(&mut std::io::stderr().lock(), text), "standard error")
    } else {
        (write(&mut std::io::stdout().lock(), text), "standard output")
    };
    match written {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => Err(Failure::Output(place, why)),
        _ => Ok(()),
    }
}

/// Writes what another program has said, as it is. An error of `BrokenPipe` means that nobody reads it any more.
pub(crate) fn pass_on(bytes: &[u8], to_err: bool) -> std::io::Result<()> {
    if to_err {
        return std::io::stderr().lock().write_all(bytes);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// The one line of an error, or of what is none and should be known at once, on standard error. There is nowhere to report that it could not be written.
pub(crate) fn complain(message: &str) {
    let _ = write(&mut std::io::stderr().lock(), &format!("thalweg: {}\n", on_one_line(message)));
}

fn write(to: &mut impl Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Control characters, which a file's name may hold, as escapes.
pub(crate) fn on_one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.trim_end().chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stays_on_its_line() {
        assert_eq!(on_one_line("cannot read 'a\nb\u{1b}[2J': é\n"), "cannot read 'a\\nb\\u{1b}[2J': é");
    }
}
