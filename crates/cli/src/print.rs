//! The only place that prints.
//!
//! Invariant: a closed pipe is not an error; a full disk is. An error is printed as one line, whatever the names in it
//! contain.

use std::io::{ErrorKind, IsTerminal, Write};

use crate::failure::{DONE, Failure};
use crate::interpret::Show;

/// Shows a result as JSON or as text, unless the command is quiet. Returns the exit status of success.
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

/// Prints a text. Returns the exit status of success.
pub(crate) fn tell(how: Show, text: String) -> Result<u8, Failure> {
    say(&text, how.out_is_data).map(|()| DONE)
}

/// Writes to standard output, or to standard error if standard output carries records.
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

/// Writes the output of another program unchanged. The error `BrokenPipe` means that the reader is gone.
pub(crate) fn pass_on(bytes: &[u8], to_err: bool) -> std::io::Result<()> {
    if to_err {
        return std::io::stderr().lock().write_all(bytes);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints an error or a note as one line on standard error. If that fails, there is nowhere to report it.
pub(crate) fn complain(message: &str) {
    let _ = write(&mut std::io::stderr().lock(), &format!("thalweg: {}\n", on_one_line(message)));
}

fn write(to: &mut impl Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// A file name as `ls` prints it: escaped if standard output is a terminal, which would obey control characters, and
/// unchanged for a program that reads it.
pub(crate) fn listed(name: &str) -> String {
    if std::io::stdout().is_terminal() { escaped(name) } else { name.into() }
}

/// The message without control characters, which file names may contain.
pub(crate) fn on_one_line(message: &str) -> String {
    escaped(message.trim_end())
}

fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
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
