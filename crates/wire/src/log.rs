//! The process's own log: lines on standard error.

use std::io::Write;

/// Writes a line to the log of this process.
pub fn log(line: &str) {
    // If standard error is closed, there is no reader.
    let _ = writeln!(std::io::stderr(), "thalweg: {line}");
}
