//! A log file with rotation, which only its owner can read.
//!
//! ```text
//! DIR/NAME, DIR/NAME.1, ... DIR/NAME.(files - 1)        the newest first
//! ```
//!
//! Invariant: each line is appended by a single write. The log opens only a regular file that belongs to this user and
//! has one name, and follows no link; it leaves anything else alone. When `files` files have `file_bytes` bytes each,
//! the oldest is deleted.
//! Non-goals: lines that survive a power failure.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{Action, Error, Result};

/// An open log.
pub struct Rotated {
    path: PathBuf,
    files: usize,
    file_bytes: u64,
    file: fs::File,
    bytes: u64,
}

impl Rotated {
    /// Opens or creates the log.
    pub fn open(path: &Path, files: usize, file_bytes: u64) -> Result<Rotated> {
        assert!(files > 1 && file_bytes > 0, "{files} files of {file_bytes} bytes");
        let (file, bytes) = appended(path).map_err(|e| Error::new(Action::Open, path, e))?;
        Ok(Rotated { path: path.to_path_buf(), files, file_bytes, file, bytes })
    }

    /// Writes a line, to a new file if this one is full.
    pub fn line(&mut self, line: &str) -> Result<()> {
        let failed = |e| Error::new(Action::Write, &self.path, e);
        if self.bytes > 0 && self.bytes + line.len() as u64 >= self.file_bytes {
            (self.file, self.bytes) = self.rotate().map_err(failed)?;
        }
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
        self.bytes += line.len() as u64 + 1;
        Ok(())
    }

    fn rotate(&self) -> io::Result<(fs::File, u64)> {
        let name = |number: usize| match number {
            0 => self.path.clone(),
            _ => self.path.with_added_extension(number.to_string()),
        };
        for number in (0..self.files - 1).rev() {
            match fs::rename(name(number), name(number + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        appended(&self.path)
    }
}

/// The open file, for appending, and its length.
fn appended(path: &Path) -> io::Result<(fs::File, u64)> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let there = file.metadata()?;
    let ours = there.uid() == rustix::process::geteuid().as_raw();
    if there.is_file() && there.nlink() == 1 && ours {
        return Ok((file, there.len()));
    }
    Err(io::Error::other("it is no regular file of this user with one name; remove it"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_log_is_rotated_and_goes_through_no_link() {
        let place = std::env::temp_dir().join(format!("thalweg-rotated-{}", std::process::id()));
        crate::small::make_directory(&place).unwrap();
        let path = place.join("log");
        for round in 0..2 {
            let mut log = Rotated::open(&path, 3, 100).unwrap();
            for i in 0..50 {
                log.line(&format!("line {round} {i:020}")).unwrap();
            }
        }
        let read = |name: &str| fs::read_to_string(place.join(name)).unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 3);
        let all = [read("log.2"), read("log.1"), read("log")].concat();
        let kept: Vec<&str> = all.lines().collect();
        assert!(kept.len() > 6 && kept.last().unwrap().ends_with("1 00000000000000000049"), "{all}");
        assert!(
            kept.windows(2).all(|two| two[0] < two[1])
                && ["log", "log.1"].iter().all(|n| read(n).len() <= 100)
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        fs::write(place.join("victim"), "mine").unwrap();
        symlink("victim", &path).unwrap();
        assert!(Rotated::open(&path, 3, 100).is_err());
        fs::remove_file(&path).unwrap();
        fs::hard_link(place.join("victim"), &path).unwrap();
        let why = Rotated::open(&path, 3, 100).map(drop).unwrap_err().to_string();
        assert!(why.contains("no regular file of this user with one name"), "{why}");
        assert_eq!(read("victim"), "mine");
        fs::remove_dir_all(&place).unwrap();
    }
}
