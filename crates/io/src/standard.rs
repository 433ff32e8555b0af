//! Descriptors with names: standard input, output and error, and those in `/dev/fd`.
//!
//! Model: the descriptor is duplicated. Opening its name would start again at byte 0 of a redirected file and overwrite
//! what is there, and fails for a socket.
//! Invariant: using a standard descriptor that was closed when the program started is an error. The standard library
//! opens `/dev/null` in its place before `main`, so writes would be lost and reads would find nothing.
//! Non-goals: descriptors of files that this process has opened itself.
#![allow(unsafe_code)]

use std::fs::File as StdFile;
use std::io::{self, Seek};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::directory_of;

/// The first three descriptors that were closed when the program started, one bit for each.
static CLOSED_AT_START: AtomicU8 = AtomicU8::new(0);

/// Called by the loader before the standard library starts.
// SAFETY: the section holds addresses of functions that take what C's `main` takes, or nothing.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK_AT_START: extern "C" fn() = look_at_start;

extern "C" fn look_at_start() {
    for fd in 0..3 {
        // SAFETY: the call takes numbers only; a descriptor that is not open is reported.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED_AT_START.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// The most links that the system follows.
const LINKS_MAX: usize = 40;

/// The descriptor that a path stands for, directly or through links.
pub(crate) fn standard_descriptor(path: &Path) -> Option<RawFd> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        if !path.is_symlink() {
            return None;
        }
        let directory = directory_of(&path).canonicalize().ok()?;
        if let Some(fd) = descriptor_in(&directory, path.file_name()?.to_str()?) {
            return Some(fd);
        }
        path = directory.join(path.read_link().ok()?);
    }
    None
}

/// The descriptor that a name in a directory stands for, where `/proc/self` belongs to this process.
fn descriptor_in(directory: &Path, name: &str) -> Option<RawFd> {
    if directory == Path::new("/dev") {
        return ["stdin", "stdout", "stderr"].iter().position(|of| *of == name).map(|fd| fd as RawFd);
    }
    let own = Path::new("/proc").join(std::process::id().to_string());
    (directory.starts_with(own) && directory.ends_with("fd")).then(|| name.parse().ok())?
}

/// A duplicate of such a descriptor.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<StdFile> {
    if (0..3).contains(&fd) && CLOSED_AT_START.load(Ordering::Relaxed) >> fd & 1 == 1 {
        let why = "it was closed when this program was started; redirect it, or name a file";
        return Err(io::Error::other(why));
    }
    // SAFETY: the call takes no pointer; a descriptor that is not open is reported.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` was made here and has no other owner.
    Ok(unsafe { StdFile::from_raw_fd(copy) })
}

/// The open descriptor that a path stands for, if its position is past the first byte, or if it is a pipe. Opening such
/// a path again would start at the first byte, or wait for another writer.
pub(crate) fn standing_inside(path: &Path) -> io::Result<Option<StdFile>> {
    let Some(fd) = standard_descriptor(path) else { return Ok(None) };
    let mut file = duplicate(fd)?;
    let is_pipe = file.metadata().is_ok_and(|there| there.file_type().is_fifo());
    let stands_inside = is_pipe || file.stream_position().is_ok_and(|at| at > 0);
    Ok(stands_inside.then_some(file))
}
