//! The work that no program can avoid: reading the file, or the system calls that create many files.
//!
//! Invariant: nothing is verified, resumed or reported here. What remains is the time of the disk and the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Result, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::pump::SMALL_BYTES;

/// Threads that create files. More are no faster on two cores, and fewer wait for the disk.
const THREADS: usize = 8;

/// fio, which only reads a file.
pub(crate) fn read(path: &Path, bytes: u64) -> Command {
    let mut command = Command::new("fio");
    command.args([
        "--name=alone",
        "--rw=read",
        "--direct=1",
        "--bs=1M",
        "--iodepth=16",
        "--ioengine=io_uring",
    ]);
    command.arg(format!("--filename={}", path.display())).arg(format!("--size={bytes}"));
    command.arg("--output-format=terse");
    command
}

/// Creates the files of all directories again elsewhere, with their times, and makes them durable.
pub(crate) fn make_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    let directories: Vec<PathBuf> = from.read_dir()?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let left = Mutex::new(directories);
    std::thread::scope(|scope| {
        let maker = || -> Result<()> {
            while let Some(directory) = { left.lock().expect("no maker panics").pop() } {
                make_directory(&directory, &to.join(directory.file_name().unwrap_or_default()))?;
            }
            Ok(())
        };
        let makers: Vec<_> = (0..THREADS).map(|_| scope.spawn(maker)).collect();
        makers.into_iter().try_for_each(|maker| maker.join().expect("no maker panics"))
    })?;
    let mut sync = Command::new("sync");
    sync.arg("-f").arg(to).status()?;
    Ok(())
}

fn make_directory(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    let mut bytes = Vec::with_capacity(SMALL_BYTES as usize);
    for entry in from.read_dir()? {
        let name = entry?.file_name();
        bytes.clear();
        let file = File::open(from.join(&name))?;
        let modified = file.metadata()?.modified()?;
        (&file).take(SMALL_BYTES).read_to_end(&mut bytes)?;
        let mut made = OpenOptions::new().write(true).create_new(true).open(to.join(&name))?;
        made.write_all(&bytes)?;
        made.set_modified(modified)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_what_was_there() {
        let dir = std::env::temp_dir().join(format!("thalweg-lower-bound-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir_all(from.join("a")).unwrap();
        fs::create_dir_all(from.join("b")).unwrap();
        fs::write(from.join("a/1"), b"one").unwrap();
        fs::write(from.join("b/2"), b"two").unwrap();
        make_files(&from, &to).unwrap();
        let modified = |path: PathBuf| path.metadata().unwrap().modified().unwrap();
        for (name, bytes) in [("a/1", b"one"), ("b/2", b"two")] {
            assert_eq!(fs::read(to.join(name)).unwrap(), bytes);
            assert_eq!(modified(to.join(name)), modified(from.join(name)));
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
