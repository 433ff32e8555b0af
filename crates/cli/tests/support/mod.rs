//! A place to run the command in, and what a shell sees of it. For all programs of tests of the command.
//!
//! Law: a test starts the built binary in an empty directory of its own, which goes when the test ends. What a line
//! of shell prints goes through files beside that directory, so that the kernel's count of the child can be had.
#![allow(dead_code)] // Each program of tests uses its part.

pub(crate) mod lab;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_io::process;

/// A directory that goes when the test ends.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    /// A new empty one.
    pub(crate) fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let program = env!("CARGO_CRATE_NAME");
        let name = format!("{program}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("the target directory can be written");
        Place(path)
    }

    /// The command, to be started here.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    /// Runs the command here to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.command(args).output().expect("the binary starts"))
    }

    /// Runs a line of shell, in which `$T` is the command.
    #[track_caller]
    pub(crate) fn shell(&self, line: &str) -> Outcome {
        let (out, err) = (self.0.with_extension("out"), self.0.with_extension("err"));
        let file = |path: &Path| std::fs::File::create(path).expect("the target directory can be written");
        let mut bash = Command::new("bash");
        bash.arg("-c").arg(line).env("T", env!("CARGO_BIN_EXE_thalweg")).current_dir(&self.0);
        bash.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err));
        let (status, usage) = process::wait(bash.spawn().expect("bash starts")).expect("it ends");
        let text = |path: &Path| {
            let bytes = std::fs::read(path).expect("it was written");
            std::fs::remove_file(path).expect("it is ours");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Outcome { status: status.code(), out: text(&out), err: text(&err), peak_bytes: usage.peak_bytes }
    }

    /// A file with these bytes.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).expect("the place can be written");
    }

    /// The bytes of a file.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).expect("the file is there")
    }

    /// Names of all there is, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = self.0.read_dir().expect("the place can be read");
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a shell sees.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit status; none if a signal ended it.
    pub(crate) status: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
    /// The most memory that it had resident, if it was a line of shell.
    pub(crate) peak_bytes: u64,
}

impl Outcome {
    /// Of a program that ended.
    pub(crate) fn of(output: Output) -> Outcome {
        Outcome {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            peak_bytes: 0,
        }
    }

    /// That it was refused with one line that holds all of these.
    #[track_caller]
    pub(crate) fn is_refused(&self, holds: &[&str]) {
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
    pub(crate) fn is_done(&self) -> &str {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert_eq!(self.err, "", "{self:?}");
        &self.out
    }
}

/// Runs the command in a place of its own.
pub(crate) fn run(args: &[&str]) -> Outcome {
    Place::new().run(args)
}
