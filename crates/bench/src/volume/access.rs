//! Processes that each read or write a file in chunks, all of them at once.
//!
//! Model: `bench/rivals/volume/access.c` is compiled for each benchmark, with libnfs if that is installed, so that
//! files of NFS and of mounts are read by the same loop. Each process opens its file; then all start together.
//! Invariant: a run counts only if every process moved all of its bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use thalweg_api::{AccessRun, from_json};

use crate::lab::Lab;
use thalweg_measure::{Error, Result};

/// The source of the program, below the current directory.
const SOURCE: &str = "bench/rivals/volume/access.c";

/// The program.
pub(crate) struct Access {
    program: PathBuf,
    /// Whether the program can read files of NFS.
    pub(crate) has_nfs: bool,
}

/// The accesses of a process to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Read,
    Write,
    /// Chunks at random offsets.
    Random,
    /// Many small files: created, inspected, read and removed.
    Small,
    /// One of these three steps.
    Make,
    Get,
    Remove,
    /// Messages over TCP, each sent after the answer to the one before.
    Ask,
    /// Each of them is returned.
    Answer,
}

/// One process.
pub(crate) struct Task {
    pub(crate) how: How,
    /// The host of a lab in which the process runs.
    pub(crate) host: Option<u32>,
    /// A path, a URL of NFS, or the address of the process that answers.
    pub(crate) file: String,
    pub(crate) chunk_bytes: u64,
    /// The first byte; for random offsets, the length of the file; for messages, the port.
    pub(crate) first: u64,
    /// The bytes to move; for small files and messages, their number.
    pub(crate) bytes: u64,
}

impl Task {
    /// The bytes that the process moves.
    fn moves(&self) -> u64 {
        match self.how {
            How::Read | How::Write => self.bytes,
            How::Random => self.bytes.div_ceil(self.chunk_bytes) * self.chunk_bytes,
            // Each is written and read.
            How::Small => 2 * self.bytes * self.chunk_bytes,
            How::Remove => 0,
            How::Make | How::Get | How::Ask | How::Answer => self.bytes * self.chunk_bytes,
        }
    }
}

/// The result of all processes together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    /// The seconds until the last one was done.
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    /// The 99th percentile of the process with the slowest requests.
    pub(crate) p99_us: u32,
    /// The seconds that making small files took.
    pub(crate) made_seconds: f64,
}

impl Access {
    /// Compiles the program into a directory, or says why it cannot.
    pub(crate) fn build(dir: &Path) -> std::result::Result<Access, String> {
        if !Path::new(SOURCE).exists() {
            return Err(format!("no {SOURCE} here; run this in the repository's root"));
        }
        let program = dir.join("access");
        let compiled = |words: &[&str]| {
            let mut cc = Command::new("cc");
            cc.args(["-O2", SOURCE, "-o"]).arg(&program).args(words).stderr(Stdio::null());
            cc.status().map(|status| status.success())
        };
        let told = |e| format!("the C compiler cannot be run: {e} (apt-get install gcc libc6-dev)");
        let has_nfs = compiled(&["-DNFS", "-lnfs"]).map_err(told)?;
        if has_nfs || compiled(&[]).map_err(told)? {
            return Ok(Access { program, has_nfs });
        }
        Err(format!("{SOURCE} cannot be compiled"))
    }

    /// Runs processes at the same time.
    pub(crate) fn run(&self, lab: Option<&Lab>, tasks: &[Task]) -> Result<Moved> {
        let mut processes = Processes(Vec::new());
        for (task, seed) in tasks.iter().zip(1..) {
            processes.0.push(self.start(lab, task, seed)?);
        }
        let mut ends = Vec::new();
        for (child, task) in processes.0.iter_mut().zip(tasks) {
            let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
            let mut line = String::new();
            out.read_line(&mut line).map_err(|e| unreadable(task, &e.to_string()))?;
            if line.trim() != "ready" {
                return Err(complaint(child, task));
            }
            ends.push(out);
        }
        for child in &mut processes.0 {
            // If a process is gone, the error is reported below.
            let _ = child.stdin.take().expect("it is a pipe").write_all(b"\n");
        }
        let mut moved = Moved::default();
        for ((child, out), task) in processes.0.iter_mut().zip(&mut ends).zip(tasks) {
            let mut text = String::new();
            out.read_to_string(&mut text).map_err(|e| unreadable(task, &e.to_string()))?;
            if text.is_empty() {
                return Err(complaint(child, task));
            }
            let run: AccessRun = from_json(text.trim()).map_err(|why| unreadable(task, &why))?;
            let expected = task.moves();
            if run.bytes != expected {
                return Err(Error::Wrong(format!("{} gave {} of {expected} bytes", task.file, run.bytes)));
            }
            moved.seconds = moved.seconds.max(run.seconds);
            moved.bytes += run.bytes;
            moved.p99_us = moved.p99_us.max(run.p99_us);
            moved.made_seconds = moved.made_seconds.max(run.made_seconds);
        }
        Ok(moved)
    }

    fn start(&self, lab: Option<&Lab>, task: &Task, seed: u64) -> Result<Child> {
        let mut command = match (lab, task.host) {
            (Some(lab), Some(host)) => lab.on_network(host, &self.program),
            _ => Command::new(&self.program),
        };
        let how = match task.how {
            How::Read => "read",
            How::Write => "write",
            How::Random => "random",
            How::Small => "small",
            How::Make => "make",
            How::Get => "get",
            How::Remove => "remove",
            How::Ask => "ask",
            How::Answer => "answer",
        };
        command.args([how, &task.file]);
        command.args([task.chunk_bytes, task.first, task.bytes, seed].map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|e| Error::Failed(format!("{} cannot be run: {e}", self.program.display())))
    }
}

fn unreadable(task: &Task, why: &str) -> Error {
    Error::Failed(format!("what was said of {} cannot be read: {why}", task.file))
}

/// The last line that a failed process wrote.
fn complaint(child: &mut Child, task: &Task) -> Error {
    let mut said = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut said);
    }
    Error::Failed(format!("{}: {}", task.file, said.trim().lines().last().unwrap_or("it ended early")))
}

/// Processes that are killed when this is dropped.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes at the same time write a file of this machine, and read it again.
    #[test]
    fn what_processes_move_is_added_up() {
        let dir = std::env::temp_dir().join(format!("thalweg-access-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // Tests run in their crate's directory.
        std::env::set_current_dir("../..").unwrap();
        let access = Access::build(&dir).unwrap();
        let file = dir.join("file").display().to_string();
        let task =
            |how, first, bytes| Task { how, host: None, file: file.clone(), chunk_bytes: 838, first, bytes };
        let written = access.run(None, &[task(How::Write, 0, 83_800)]).unwrap();
        assert_eq!((written.bytes, std::fs::metadata(&file).unwrap().len()), (83_800, 83_800));
        let read = [task(How::Read, 0, 41_900), task(How::Random, 83_800, 8_380)];
        assert_eq!(access.run(None, &read).unwrap().bytes, 50_280);
        assert!(matches!(access.run(None, &[task(How::Read, 0, 90_000)]), Err(Error::Wrong(_))));
        std::fs::remove_file(&file).unwrap();
        let missing = access.run(None, &[task(How::Read, 0, 1)]).unwrap_err().to_string();
        assert!(missing.contains("No such file"), "{missing}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
