//! Ranges of an open file: room for them, their holes, and copies of them.
//!
//! Non-goals: reserving space, which the stores do not do.

use thalweg_volume::{Error, File};

use crate::fs::{Result, refused};

/// The most bytes that one request copies: a program can be interrupted between two.
const COPIED_MAX: u64 = 16 << 20;
/// The bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// Extends a file, zeros it, or makes a hole: those modes of fallocate(2) that need no reserved space.
pub(crate) fn allocate(file: &File, at: u64, len: u64, mode: i32) -> Result<()> {
    let end = at.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
    let end = end.ok_or_else(|| refused(libc::EFBIG))?;
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => {}
        libc::FALLOC_FL_PUNCH_HOLE if keeps_size => file.punch(at, len)?,
        // A hole reads as zeros, and there is no reserved space that could be kept.
        libc::FALLOC_FL_ZERO_RANGE => file.punch(at, len)?,
        _ => return Err(refused(libc::EOPNOTSUPP)),
    }
    if !keeps_size && end > file.size() { file.set_size(end) } else { Ok(()) }
}

/// The next data or hole at or after an offset, as lseek(2) finds it.
pub(crate) fn seek(file: &File, offset: i64, whence: i32) -> Result<i64> {
    let size = file.stat()?.size;
    let at = u64::try_from(offset).ok().filter(|at| *at < size).ok_or_else(|| refused(libc::ENXIO))?;
    let found = match whence {
        libc::SEEK_DATA => file.next_data(at)?.map(|(start, _)| start).ok_or_else(|| refused(libc::ENXIO))?,
        libc::SEEK_HOLE => {
            let mut hole = at;
            while let Some((start, end)) = file.next_data(hole)?
                && start == hole
            {
                hole = end;
            }
            hole.min(size)
        }
        _ => return Err(refused(libc::EINVAL)),
    };
    Ok(found as i64)
}

/// Copies bytes of one file to another, or to another place in it; holes are punched. Returns how many were copied:
/// fewer than requested if there are many, or if the file ends.
pub(crate) fn copy(from: (&File, u64), to: (&File, u64), len: u64) -> Result<u64> {
    let ((from, from_at), (to, to_at)) = (from, to);
    let len = len.min(COPIED_MAX).min(from.stat()?.size.saturating_sub(from_at));
    let mut bytes = vec![0; PIECE.min(len) as usize];
    let mut done = 0;
    while done < len {
        let data = from.next_data(from_at + done)?.map(|(start, end)| (start - from_at, end - from_at));
        let (start, end) = data.map_or((len, len), |(start, end)| (start.min(len), end.min(len)));
        if start > done {
            hole(to, to_at + done, start - done)?;
            done = start;
        }
        while done < end {
            if to.copy_from(to_at + done, from, from_at + done, end - done)? {
                done = end;
                continue;
            }
            let n = (end - done).min(PIECE) as usize;
            let read = from.read_at(from_at + done, &mut bytes[..n])?;
            to.write_at(to_at + done, &bytes[..read])?;
            done += read as u64;
            if read < n {
                return Ok(done);
            }
        }
    }
    Ok(done)
}

/// Makes a hole that may lie behind the end of the file.
fn hole(file: &File, at: u64, len: u64) -> std::result::Result<(), Error> {
    file.punch(at, len)?;
    if at + len > file.size() { file.set_size(at + len) } else { Ok(()) }
}
