//! Temporary names of incomplete outputs, and the removal of those whose process has died.
//!
//! ```text
//! DIR/.NAME.thalweg-PID-N.partial         N is an unguessable number, or that of an attempt on several nodes
//! ```
//!
//! Invariant: a partial output is removed only if its name is one for this output, no running process here
//! has its PID, and no process, on this machine or another, holds the mark that its maker put on it.
//! Non-goals: the names that a sort uses; those are the sort crate's.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_io::{Access, Location, directory_of, hidden, look_until, process};

const MARK: &[u8] = b".thalweg-";
const END: &[u8] = b".partial";

/// A name that no other output of any process has.
pub(crate) fn name(output: &Path) -> OsString {
    name_as(output, hidden::random())
}

/// The temporary name with a number that no other output on any host has.
pub(crate) fn name_as(output: &Path, number: u64) -> OsString {
    let mut name = beginning(output);
    name.extend_from_slice(format!("{}-{number}", std::process::id()).as_bytes());
    name.extend_from_slice(END);
    OsString::from_vec(name)
}

/// The output whose temporary name this is, if it is one.
pub(crate) fn output_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let at = name.windows(MARK.len()).rposition(|some| some == MARK)?;
    maker(OsStr::from_bytes(name), &name[..at + MARK.len()])?;
    let output = name[..at].strip_prefix(b".")?;
    Some(directory_of(path).join(OsStr::from_bytes(output)))
}

/// Removes what dead processes left of this output. Files that cannot be removed do no harm.
pub(crate) fn clear(output: &Location) {
    let beginning = beginning(&output.path);
    for path in output.fs.list(directory_of(&output.path)).unwrap_or_default() {
        let Some(maker) = path.file_name().and_then(|name| maker(name, &beginning)) else { continue };
        let left = output.at(path);
        let is_regular = left.stat().is_ok_and(|there| there.is_regular);
        if is_regular && (!process::is_alive(maker) || process::is_ending(maker)) && is_let_go(&left) {
            let _ = left.remove();
        }
    }
}

/// Whether another process writes this output with the same number, as two nodes of a sort do that share a directory.
pub(crate) fn another(output: &Location, number: u64) -> bool {
    let (beginning, ending) = (beginning(&output.path), format!("-{number}.partial"));
    let is_another = |path: &std::path::PathBuf| {
        // The other output may be ready for its final name already.
        let path = path.with_extension("partial");
        let Some(name) = path.file_name() else { return false };
        maker(name, &beginning).is_some_and(|maker| maker != std::process::id())
            && name.as_bytes().ends_with(ending.as_bytes())
    };
    output.fs.list(directory_of(&output.path)).unwrap_or_default().iter().any(is_another)
}

/// Whether this is a file of this user that no process holds. A process that was killed a moment ago, or its requests
/// in a ring, hold it for some milliseconds more, for which this waits.
fn is_let_go(left: &Location) -> bool {
    const PATIENCE: Duration = Duration::from_millis(200);
    let Ok(file) = left.open(Access::Update) else { return false };
    look_until(PATIENCE, || file.mark().then_some(())).is_some()
}

fn beginning(output: &Path) -> Vec<u8> {
    hidden::name(output.file_name().unwrap_or_default(), "").into_vec()
}

/// The process that made a partial output whose name begins so.
fn maker(name: &OsStr, beginning: &[u8]) -> Option<u32> {
    let numbers = name.as_bytes().strip_prefix(beginning)?.strip_suffix(END)?;
    let (process, number) = std::str::from_utf8(numbers).ok()?.split_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (digits(process) && digits(number)).then(|| process.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_name_says_which_output_it_is_for() {
        for output in ["d/out", "d/.out", "d/a.thalweg-1-2.partial"] {
            let temporary = Path::new("d").join(name(Path::new(output)));
            assert_eq!(output_of(&temporary).as_deref(), Some(Path::new(output)));
        }
        for other in ["d/out", "d/.out.thalweg-x.partial", "d/.out.thalweg-1-2.scratch"] {
            assert_eq!(output_of(Path::new(other)), None);
        }
    }

    #[test]
    fn a_name_tells_its_maker_and_other_names_tell_none() {
        let output = Path::new("there/records");
        let own = name(output);
        assert_ne!(own, name(output));
        assert_eq!(maker(&own, &beginning(output)), Some(std::process::id()));
        assert_eq!(maker(&own, &beginning(Path::new("record"))), None);
        for other in [
            ".records.thalweg-1-.partial",
            ".records.thalweg--1.partial",
            ".records.thalweg-1-2",
            ".records.thalweg-+1-2.partial",
            ".records.thalweg-1.thalweg-2-3.partial",
            ".records.thalweg-99999999999-2.partial",
            ".records.thalweg-partial",
            "records",
        ] {
            assert_eq!(maker(OsStr::new(other), &beginning(output)), None, "{other}");
        }
    }

    #[test]
    fn the_longest_name_has_a_partial_one() {
        let output = "x".repeat(255);
        assert!(name_as(Path::new(&output), u64::MAX).len() <= 255);
    }
}
