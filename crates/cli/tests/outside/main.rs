//! The command from outside: what a shell sees of it, and nothing else.
//!
//! Law: a test starts the built binary in an empty directory of its own, and looks at standard output,
//! standard error, the exit status and the files that are left.
#![allow(clippy::disallowed_methods)] // Whoever uses the command makes files by other means than ours.

mod documents;
mod terminal;
mod usage;
mod verbs;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A directory that goes when the test ends.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("outside-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("the target directory can be written");
        Place(path)
    }

    /// The command, to be started here.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    /// Runs the command here to its end.
    fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.command(args).output().expect("the binary starts"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a shell sees.
#[derive(Debug)]
struct Outcome {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Outcome {
    fn of(output: Output) -> Outcome {
        Outcome {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// That it was refused with one line that holds all of these.
    #[track_caller]
    fn is_refused(&self, holds: &[&str]) {
        assert_eq!(self.status, Some(2), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert!(self.err.starts_with("thalweg: ") && self.err.ends_with('\n'), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        for text in holds {
            assert!(self.err.contains(text), "no '{text}' in {self:?}");
        }
    }

    /// That it was done, and said nothing on standard error.
    #[track_caller]
    fn is_done(&self) -> &str {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert_eq!(self.err, "", "{self:?}");
        &self.out
    }
}

/// Runs the command in a place of its own.
fn run(args: &[&str]) -> Outcome {
    Place::new().run(args)
}
