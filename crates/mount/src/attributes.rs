//! The attributes of a volume's inodes, in the kernel's form.
//!
//! Non-goals: birth times, which FUSE does not pass on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use thalweg_base::clock;
use thalweg_volume::{Inode, Kind, Volume};

/// The unit of `st_blocks`.
const SECTOR: u64 = 512;
/// The preferred size of reads and writes (`st_blksize`).
const IO_BYTES: u32 = 1 << 20;

/// Stores are not asked for the space that a shorter file takes: this would cost a request for each small file of a
/// listing.
const SPARSE_BYTES_MIN: u64 = 1 << 20;

/// All attributes of an inode.
pub(crate) fn of(volume: &Volume, inode: &Inode) -> FileAttr {
    let asks = inode.kind == Kind::File && inode.size > SPARSE_BYTES_MIN;
    let allocated = if asks { volume.allocated(inode).ok() } else { None };
    let device = match inode.kind {
        Kind::CharacterDevice(device) | Kind::BlockDevice(device) => device,
        _ => 0,
    };
    FileAttr {
        ino: INodeNo(inode.id),
        size: inode.size,
        blocks: allocated.unwrap_or(inode.size).div_ceil(SECTOR),
        atime: time(inode.accessed_ns),
        mtime: time(inode.modified_ns),
        ctime: time(inode.changed_ns),
        crtime: UNIX_EPOCH,
        kind: kind(inode.kind),
        perm: inode.mode as u16,
        nlink: u32::try_from(inode.links).unwrap_or(u32::MAX),
        uid: inode.user,
        gid: inode.group,
        rdev: device,
        blksize: IO_BYTES,
        flags: 0,
    }
}

pub(crate) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Link => FileType::Symlink,
        Kind::Pipe => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice(_) => FileType::CharDevice,
        Kind::BlockDevice(_) => FileType::BlockDevice,
    }
}

/// The kind of inode that mknod(2) makes for a mode and a device; `None` if it makes none.
pub(crate) fn made(mode: u32, device: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Pipe),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::CharacterDevice(device)),
        libc::S_IFBLK => Some(Kind::BlockDevice(device)),
        _ => None,
    }
}

fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// Nanoseconds since 1970, clamped to the range of 64 bits: from 1677 to 2262.
pub(crate) fn ns(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => return clock::wall_ns(),
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_keep_their_nanoseconds() {
        for at in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_001, i64::MAX, i64::MIN + 1] {
            assert_eq!(ns(TimeOrNow::SpecificTime(time(at))), at);
        }
        let far = UNIX_EPOCH + Duration::from_secs(20_000_000_000);
        assert_eq!(ns(TimeOrNow::SpecificTime(far)), i64::MAX);
    }
}
