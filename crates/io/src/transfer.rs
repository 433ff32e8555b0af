//! Partial transfers: the loop that continues short reads and writes.
//!
//! Model: an operation takes one or more attempts. [`Progress`] gets the result of each attempt and decides whether
//! another is needed. [`Flight`] is an operation with its progress. [`Ledger`] counts the operations of a queue in
//! flight. All back ends share this code, so tests on the simulated disk exercise the code that continues a short write
//! on a real one.
//! Invariant: a read is complete when its block is full or the file ends, a write only when all of it is written. An
//! attempt is repeated only after progress or an interruption.
//! Non-goals: system calls, and retries of operations that failed.

use std::io;

use rustix::process::Resource;

use crate::{Done, Error, FileId, Handle, Kind, Op, os};

/// The alignment of offsets and lengths of a direct file.
pub const ALIGN: usize = 4096;

/// The decision after an attempt.
#[derive(Debug)]
pub(crate) enum Step {
    /// Try the rest.
    Again,
    /// The other side of a pipe or terminal is not ready: wait for it, then try the rest.
    Blocked,
    /// Everything was moved, or the file ended.
    Complete,
    /// A failure that a repetition does not cure.
    Failed(io::Error),
}

/// The progress of one transfer, independent of bytes and files.
#[derive(Debug)]
pub(crate) struct Progress {
    kind: Kind,
    direct: bool,
    len: usize,
    done: usize,
}

impl Progress {
    pub(crate) fn new(kind: Kind, direct: bool, len: usize) -> Progress {
        Progress { kind, direct, len, done: 0 }
    }

    pub(crate) fn done(&self) -> usize {
        self.done
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.done == self.len
    }

    /// Records the result of an attempt. `ends_by(n)` tells whether the file ends at or before byte `n` of the
    /// transfer; it is called only if the count leaves that open.
    pub(crate) fn apply(&mut self, outcome: io::Result<usize>, ends_by: impl FnOnce(usize) -> bool) -> Step {
        let moved = match outcome {
            Ok(moved) => moved,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Step::Again,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Step::Blocked,
            Err(e) => return Step::Failed(e),
        };
        assert!(
            moved <= self.len - self.done,
            "{moved} bytes moved where {} were left",
            self.len - self.done
        );
        self.done += moved;
        if self.is_complete() {
            return Step::Complete;
        }
        match self.kind {
            Kind::Write if moved == 0 => Step::Failed(io::ErrorKind::WriteZero.into()),
            Kind::Read if moved == 0 => Step::Complete,
            _ if self.direct && !self.done.is_multiple_of(ALIGN) => self.inside_page(moved, ends_by),
            _ => Step::Again,
        }
    }

    /// A direct transfer stopped inside a page. A read may do so at the end of the file. Otherwise the page is moved
    /// again, because continuing inside it would be refused as misaligned.
    fn inside_page(&mut self, moved: usize, ends_by: impl FnOnce(usize) -> bool) -> Step {
        if self.kind == Kind::Read && ends_by(self.done) {
            return Step::Complete;
        }
        let back = self.done % ALIGN;
        self.done -= back;
        if back < moved {
            return Step::Again;
        }
        Step::Failed(match self.kind {
            Kind::Read => io::Error::other("the device delivers part of a page, again and again"),
            // The limit on a file's size may end inside a page; otherwise the disk has no space for the rest of it.
            Kind::Write => {
                io::Error::from_raw_os_error(match rustix::process::getrlimit(Resource::Fsize).current {
                    Some(limit) if limit % ALIGN as u64 == back as u64 => libc::EFBIG,
                    _ => libc::ENOSPC,
                })
            }
        })
    }
}

/// An operation that a queue has accepted and not returned.
#[derive(Debug)]
pub(crate) struct Flight {
    op: Op,
    progress: Progress,
}

impl Flight {
    pub(crate) fn new(op: Op) -> Flight {
        let progress = Progress::new(op.kind, op.file.is_direct(), op.block.len());
        Flight { op, progress }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.op.kind
    }

    pub(crate) fn file(&self) -> &Handle {
        &self.op.file
    }

    /// Whether the operation is complete. An empty one is complete before its first attempt.
    pub(crate) fn is_complete(&self) -> bool {
        self.progress.is_complete()
    }

    /// The file offset of the next attempt, and its bytes.
    pub(crate) fn rest(&mut self) -> (u64, &mut [u8]) {
        let done = self.progress.done();
        (self.op.at + done as u64, &mut self.op.block[done..])
    }

    /// Records the result of an attempt; `length` returns the file's length.
    pub(crate) fn apply(
        &mut self,
        outcome: io::Result<usize>,
        length: impl FnOnce(FileId) -> io::Result<u64>,
    ) -> Step {
        let (at, id) = (self.op.at, self.op.file.id());
        // Without the length the end is not proved; the repeated read will report the reason.
        self.progress.apply(outcome, |n| length(id).is_ok_and(|len| at + n as u64 >= len))
    }

    /// Makes attempts until the operation is complete or fails. `blocked` waits for the other side.
    pub(crate) fn run(
        mut self,
        mut attempt: impl FnMut(FileId, Kind, u64, &mut [u8]) -> io::Result<usize>,
        mut length: impl FnMut(FileId) -> io::Result<u64>,
        mut blocked: impl FnMut(FileId, Kind),
    ) -> Done {
        while !self.is_complete() {
            let (id, kind) = (self.op.file.id(), self.op.kind);
            let (at, bytes) = self.rest();
            let outcome = attempt(id, kind, at, bytes);
            match self.apply(outcome, &mut length) {
                Step::Again => {}
                Step::Blocked => blocked(id, kind),
                Step::Complete => break,
                Step::Failed(source) => return self.finish(Some(source)),
            }
        }
        self.finish(None)
    }

    /// Returns the operation.
    pub(crate) fn finish(self, failure: Option<io::Error>) -> Done {
        let Op { kind, file, at, mut block, tag } = self.op;
        let done = self.progress.done();
        let result = match failure {
            None => {
                if kind == Kind::Read {
                    block.set_len(done);
                }
                Ok(())
            }
            Some(source) => Err(Error::at(kind.action(), file.path(), at + done as u64, source)),
        };
        Done { kind, file, at, block, tag, result }
    }
}

/// The operations of a queue in flight, with the assertions that every queue makes of its caller.
#[derive(Debug)]
pub(crate) struct Ledger {
    depth: usize,
    in_flight: usize,
    /// Streams with an operation in flight: they have no offsets, so a second one could overtake it.
    streams: Vec<FileId>,
}

impl Ledger {
    pub(crate) fn new(depth: usize) -> Ledger {
        assert!(depth > 0, "a queue of depth 0 can carry out nothing");
        Ledger { depth, in_flight: 0, streams: Vec::new() }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Adds an operation, which must satisfy the queue's contract.
    pub(crate) fn enter(&mut self, op: &Op) {
        assert!(self.in_flight < self.depth, "more than {} operations in one queue", self.depth);
        assert!(
            !op.file.is_direct()
                || (op.at.is_multiple_of(ALIGN as u64) && op.block.len().is_multiple_of(ALIGN)),
            "{} bytes at {} of a direct file",
            op.block.len(),
            op.at
        );
        let id = op.file.id();
        if os::is_stream(id) {
            assert!(
                !self.streams.contains(&id),
                "two operations at once on {}, a stream",
                op.file.path().display()
            );
            self.streams.push(id);
        }
        self.in_flight += 1;
    }

    /// Removes an operation that returns to its submitter.
    pub(crate) fn leave(&mut self, done: &Done) {
        assert!(self.in_flight > 0, "an operation was given back twice");
        self.in_flight -= 1;
        let id = done.file.id();
        self.streams.retain(|&stream| stream != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(n: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(n))
    }

    fn never(_: usize) -> bool {
        panic!("the length is not needed here")
    }

    #[test]
    fn short_attempts_go_on_until_all_is_moved() {
        for kind in [Kind::Read, Kind::Write] {
            let mut p = Progress::new(kind, false, 10);
            assert!(matches!(p.apply(Ok(3), never), Step::Again));
            assert!(matches!(p.apply(errno(libc::EINTR), never), Step::Again));
            assert!(matches!(p.apply(errno(libc::EAGAIN), never), Step::Blocked));
            assert_eq!(p.done(), 3);
            assert!(matches!(p.apply(Ok(7), never), Step::Complete));
            assert_eq!(p.done(), 10);
        }
    }

    #[test]
    fn nothing_moved_ends_a_read_and_fails_a_write() {
        let mut read = Progress::new(Kind::Read, false, 10);
        assert!(matches!(read.apply(Ok(4), never), Step::Again));
        assert!(matches!(read.apply(Ok(0), never), Step::Complete));
        assert_eq!(read.done(), 4);
        let mut write = Progress::new(Kind::Write, false, 10);
        assert!(matches!(write.apply(Ok(0), never), Step::Failed(_)));
    }

    #[test]
    fn a_failure_is_passed_on_as_it_is() {
        let mut p = Progress::new(Kind::Write, true, 8192);
        match p.apply(errno(libc::ENOSPC), never) {
            Step::Failed(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOSPC)),
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_direct_read_inside_a_page_ends_only_where_the_file_does() {
        let mut p = Progress::new(Kind::Read, true, 3 * ALIGN);
        assert!(matches!(p.apply(Ok(ALIGN), never), Step::Again));
        // 512 bytes past the next page, but the file continues: that page is read again.
        assert!(matches!(p.apply(Ok(ALIGN + 512), |n| n > 3 * ALIGN), Step::Again));
        assert_eq!(p.done(), 2 * ALIGN);
        assert!(matches!(p.apply(Ok(100), |n| n == 2 * ALIGN + 100), Step::Complete));
        assert_eq!(p.done(), 2 * ALIGN + 100);
    }

    #[test]
    fn a_direct_write_that_ends_inside_a_page_writes_that_page_again() {
        let mut p = Progress::new(Kind::Write, true, 3 * ALIGN);
        assert!(matches!(p.apply(Ok(ALIGN + 512), never), Step::Again));
        assert_eq!(p.done(), ALIGN);
        // No progress: the disk is full after these sectors.
        match p.apply(Ok(512), never) {
            Step::Failed(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOSPC)),
            step => panic!("{step:?}"),
        }
        let mut p = Progress::new(Kind::Write, true, 3 * ALIGN);
        assert!(matches!(p.apply(Ok(512), never), Step::Failed(_)));
        let mut p = Progress::new(Kind::Write, true, 3 * ALIGN);
        assert!(matches!(p.apply(Ok(ALIGN + 512), never), Step::Again));
        assert!(matches!(p.apply(Ok(2 * ALIGN), never), Step::Complete));
    }

    #[test]
    fn a_direct_read_that_never_passes_a_page_fails_instead_of_spinning() {
        let mut p = Progress::new(Kind::Read, true, 2 * ALIGN);
        assert!(matches!(p.apply(Ok(512), |_| false), Step::Failed(_)));
    }

    #[test]
    #[should_panic(expected = "11 bytes moved")]
    fn more_than_was_asked_is_a_broken_back_end() {
        let _ = Progress::new(Kind::Read, false, 10).apply(Ok(11), never);
    }
}
