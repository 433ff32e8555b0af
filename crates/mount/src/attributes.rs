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

/// Nanoseconds since 1970 of a time of a request, clamped to the range of 64 bits: from 1677 to 2262.
pub(crate) fn ns(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => return clock::wall_ns(),
    };
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i128::try_from(after.as_nanos()),
        // The kernel sends whole seconds, here negative, and the nanoseconds after them. fuser (0.18) subtracts both.
        Err(before) => {
            let distance = before.duration();
            i128::try_from(Duration::from_secs(distance.as_secs()).as_nanos())
                .map(|ns| i128::from(distance.subsec_nanos()) - ns)
        }
    };
    let clamped = ns.unwrap_or(i128::MAX).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(clamped).expect("it is clamped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_keep_their_nanoseconds() {
        for at in [0, 1, 1_700_000_000_123_456_789, -1_000_000_000, i64::MAX] {
            assert_eq!(ns(TimeOrNow::SpecificTime(time(at))), at);
        }
        // As they come from fuser: -2 s and 999 999 999 ns; -1 s and 250 ms.
        for (from_fuser, at) in [(-2_999_999_999, -1_000_000_001), (-1_250_000_000, -750_000_000)] {
            assert_eq!(ns(TimeOrNow::SpecificTime(time(from_fuser))), at);
        }
        let early = UNIX_EPOCH - Duration::from_secs(20_000_000_000);
        assert_eq!(ns(TimeOrNow::SpecificTime(early)), i64::MIN);
        let far = UNIX_EPOCH + Duration::from_secs(20_000_000_000);
        assert_eq!(ns(TimeOrNow::SpecificTime(far)), i64::MAX);
    }
}
