//! What no program can do without: of moving one file the reading of it, of moving many the system's calls that make them.
//!
//! Invariant: nothing is proved here, nothing gone on from, nothing told; what is left is what the disk and the kernel take.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Result, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::pump::SMALL_BYTES;

/// Threads that make files: more do not make them sooner on two cores, and fewer wait for the disk.
const THREADS: usize = 8;

/// fio, reading a file and nothing else.
pub(crate) fn reading(path: &Path, bytes: u64) -> Command {
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

/// Files of directories made again elsewhere, each with its time, and all of them durable.
pub(crate) fn making(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    let directories: Vec<PathBuf> = from.read_dir()?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let left = Mutex::new(directories);
    std::thread::scope(|scope| {
        let maker = || -> Result<()> {
            while let Some(directory) = { left.lock().expect("no maker panics").pop() } {
                make(&directory, &to.join(directory.file_name().unwrap_or_default()))?;
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

fn make(from: &Path, to: &Path) -> Result<()> {
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
        let place = std::env::temp_dir().join(format!("thalweg-alone-{}", std::process::id()));
        let (from, to) = (place.join("from"), place.join("to"));
        fs::create_dir_all(from.join("a")).unwrap();
        fs::create_dir_all(from.join("b")).unwrap();
        fs::write(from.join("a/1"), b"one").unwrap();
        fs::write(from.join("b/2"), b"two").unwrap();
        making(&from, &to).unwrap();
        let modified = |path: PathBuf| path.metadata().unwrap().modified().unwrap();
        for (name, bytes) in [("a/1", b"one"), ("b/2", b"two")] {
            assert_eq!(fs::read(to.join(name)).unwrap(), bytes);
            assert_eq!(modified(to.join(name)), modified(from.join(name)));
        }
        fs::remove_dir_all(place).unwrap();
    }
}
