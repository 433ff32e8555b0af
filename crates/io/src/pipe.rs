//! Pipes: to and from another process, with a time limit on every call, and within this process.
//!
//! Invariant: a descriptor is read and written only after [`be_patient`] has made it non-blocking. A read at the end of
//! a pipe returns 0 bytes; when the time is up, a call fails with `WouldBlock`.
//! Non-goals: files, and the sockets in [`crate::socket`].

use std::io::{self, IoSlice, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// The desired capacity of a pipe: a block. With the default of 64 KiB, each block would wake both sides sixteen times.
const HOLDS_BYTES: usize = 1 << 20;

/// A pipe within this process, enlarged if possible. Other processes do not inherit it.
pub fn new() -> io::Result<(PipeReader, PipeWriter)> {
    let (from, to) = io::pipe()?;
    // A user's total for pipes may be exhausted.
    let _ = rustix::pipe::fcntl_setpipe_size(&to, HOLDS_BYTES);
    Ok((from, to))
}

/// Makes a descriptor non-blocking, and enlarges the pipe if possible.
pub fn be_patient(fd: &OwnedFd) -> io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    // A socket has no such size, and a user's total for pipes may be exhausted.
    let _ = rustix::pipe::fcntl_setpipe_size(fd, HOLDS_BYTES);
    Ok(())
}

/// Receives the available bytes, at most as many as fit; `WouldBlock` if nothing arrives for `patience`.
pub fn receive(fd: &OwnedFd, into: &mut [u8], patience: Duration) -> io::Result<usize> {
    when_ready(fd, PollFlags::IN, patience, || rustix::io::read(fd, &mut *into))
}

/// Sends as many bytes as fit; `WouldBlock` if none do for `patience`.
pub fn send(fd: &OwnedFd, slices: &[IoSlice<'_>], patience: Duration) -> io::Result<usize> {
    when_ready(fd, PollFlags::OUT, patience, || rustix::io::writev(fd, slices))
}

/// Whether a few bytes can be sent without waiting.
pub fn is_writable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) && fds[0].revents().contains(PollFlags::OUT)
}

/// Tries first, and waits only if necessary.
fn when_ready(
    fd: &OwnedFd,
    ready: PollFlags,
    patience: Duration,
    mut does: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let patience = Timespec::try_from(patience).unwrap_or_default();
    let mut waited = false;
    loop {
        match does() {
            Ok(bytes) => return Ok(bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if !waited => {
                waited = true;
                match poll(&mut [PollFd::new(fd, ready)], Some(&patience)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_waited_for_so_long_and_tells_its_end() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        be_patient(&from).unwrap();
        be_patient(&to).unwrap();
        let moment = Duration::from_millis(20);
        let mut into = [0; 8];
        let empty = receive(&from, &mut into, moment).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(send(&to, &[IoSlice::new(b"ab"), IoSlice::new(b"c")], moment).unwrap(), 3);
        assert_eq!(receive(&from, &mut into, moment).unwrap(), 3);
        assert_eq!(&into[..3], b"abc");
        let much = vec![0; 4 * HOLDS_BYTES];
        while is_writable(&to) {
            send(&to, &[IoSlice::new(&much)], moment).unwrap();
        }
        let full = send(&to, &[IoSlice::new(&much)], moment).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(from);
        assert_eq!(send(&to, &[IoSlice::new(b"x")], moment).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
