//! The attributes of a file that takes the place of another: mode, owner, group, access list, extended attributes.
//!
//! Invariant: nobody may read or write the new file who might not the old one. What cannot be kept is named.
//! Non-goals: other names of the old file, which keep its contents; file capabilities and set-ID bits, because the new
//! contents are not the program that had them.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{
    AtFlags, Mode, OFlags, XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr, listxattr,
};
use rustix::io::{Errno, retry_on_intr};

use crate::tree::{Attributes, EntryKind};
use crate::{directory_of, hidden};

/// The access list. If a file has one, the group bits of its mode are the mask of the list.
const ACCESS_LIST: &str = "system.posix_acl_access";
/// The most bytes of an extended attribute, and of the names of all of them; see xattr(7).
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
const SET_ID: u32 = 0o6000;

/// See [`crate::FileSystem::resemble`].
pub(crate) fn resemble(file: &File, at: BorrowedFd<'_>, like: &Path) -> io::Result<Vec<String>> {
    let ours = Attributes::from(rustix::fs::fstat(file)?);
    // A link is replaced, so the attributes of its target do not matter.
    let old = match rustix::fs::statat(at, like, AtFlags::SYMLINK_NOFOLLOW).map(Attributes::from) {
        Ok(there) => {
            // Nor do those of a file that another user planted there.
            let directory = Attributes::from(rustix::fs::statat(at, directory_of(like), AtFlags::empty())?);
            Some(there).filter(|there| there.kind == EntryKind::File && !is_planted(there, &directory))
        }
        Err(Errno::NOENT) => None,
        Err(e) => return Err(e.into()),
    };
    let Some(old) = old else {
        // The disk may have no room for a second file.
        let mode = made_beside(at, like).map_or_else(|_| 0o666 & !umask(), |made| made.mode) & 0o777;
        if ours.mode & 0o777 != mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        return Ok(Vec::new());
    };
    let mut lost = Vec::new();
    let old_attributes = extended_attributes(at, like).unwrap_or_else(|_| {
        // The records are written; that some attributes cannot be seen is no reason to give them up.
        lost.push("its extended attributes".into());
        Vec::new()
    });
    let list = old_attributes.iter().find(|(name, _)| name == ACCESS_LIST).map(|(_, list)| &list[..]);
    // Few processes may change the owner of a file, and some may change its group. If the group cannot be kept, the new
    // group gets only the rights of all others.
    let is_of_group = old.group == ours.group || fchown(file, None, Some(old.group)).is_ok();
    let mut mode = old.mode & 0o777;
    if let Some(list) = list {
        mode = mode & 0o707 | group_of(list) << 3;
    }
    if !is_of_group {
        mode = mode & 0o707 | (mode & 0o007) << 3;
        lost.push(format!("its group ({})", old.group));
    }
    // The new file may have inherited a list from its directory, of which the mode would become the mask.
    let _ = fremovexattr(file, ACCESS_LIST);
    if Attributes::from(rustix::fs::fstat(file)?).mode & 0o777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    match list {
        Some(list) if !is_of_group || fsetxattr(file, ACCESS_LIST, list, XattrFlags::empty()).is_err() => {
            lost.push("its access list".into());
        }
        _ => {}
    }
    for (name, value) in old_attributes.iter().filter(|(name, _)| name != ACCESS_LIST) {
        if !set_attribute(file, name, value) {
            lost.push(format!("its attribute {name}"));
        }
    }
    if old.user != ours.user && fchown(file, Some(old.user), None).is_err() {
        lost.push(format!("its owner ({})", old.user));
    }
    if old.mode & SET_ID != 0 {
        lost.push("its set-ID bits".into());
    }
    if old.links > 1 {
        let others = old.links - 1;
        let (names, keep) = if others == 1 { ("name", "keeps") } else { ("names", "keep") };
        lost.push(format!("its {others} other {names}, which {keep} the older contents"));
    }
    Ok(lost)
}

/// Whether the file has this attribute now. Capabilities are not given to other contents.
fn set_attribute(file: &File, name: &str, value: &[u8]) -> bool {
    let mut there = vec![0; ATTRIBUTE_BYTES_MAX];
    let has = |read: rustix::io::Result<usize>, there: &[u8]| read.is_ok_and(|n| &there[..n] == value);
    let read = fgetxattr(file, name, &mut there[..]);
    has(read, &there)
        || name != "security.capability" && fsetxattr(file, name, value, XattrFlags::empty()).is_ok()
}

/// The rights of the owning group in an access list: its entry, as far as the mask allows.
fn group_of(list: &[u8]) -> u32 {
    const VERSION_BYTES: usize = 4;
    const GROUP: u16 = 0x04;
    const MASK: u16 = 0x10;
    let entries = || list.get(VERSION_BYTES..).unwrap_or_default().chunks_exact(8);
    let number = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let rights = |tag| entries().find(|entry| number(entry, 0) == tag).map(|entry| number(entry, 2));
    u32::from(rights(GROUP).unwrap_or(0) & rights(MASK).unwrap_or(7) & 7)
}

/// The names and values of all extended attributes of a file; none if its file system has none.
fn extended_attributes(at: BorrowedFd<'_>, like: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let opened =
        rustix::fs::openat(at, like, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    if !path.exists() {
        // Without /proc by its name, which may be another file by now; its attributes are then the ones to keep.
        path = like.to_path_buf();
    }
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let n = match listxattr(&path, &mut names[..]) {
        Ok(n) => n,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    let mut all = Vec::new();
    for name in names[..n].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        match getxattr(&path, name.as_str(), &mut value[..]) {
            Ok(n) => value.truncate(n),
            // It may not be read, so it is named as one that cannot be kept.
            Err(_) => value.clear(),
        }
        all.push((name, value));
    }
    Ok(all)
}

/// The attributes of a new file in the directory of `path`: its owner and permission bits, which only the system knows.
pub(crate) fn made_beside(at: BorrowedFd<'_>, path: &Path) -> io::Result<Attributes> {
    let trial = directory_of(path).join(hidden::unique("trial"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = retry_on_intr(|| rustix::fs::openat(at, &trial, flags, Mode::from(0o666)))?;
    rustix::fs::unlinkat(at, &trial, AtFlags::empty())?;
    Ok(rustix::fs::fstat(made)?.into())
}

/// The permission bits that new files of this process lack, from /proc: the system call would change them for a moment.
pub(crate) fn umask() -> u32 {
    umask_now().or(FIRST_UMASK.get().copied()).unwrap_or(0o077)
}

/// The umask when this process first made a file: when the file is complete, no descriptor may be left to read it with.
static FIRST_UMASK: OnceLock<u32> = OnceLock::new();

/// Notes the umask, once in a process.
pub(crate) fn note_umask() {
    if FIRST_UMASK.get().is_none()
        && let Some(umask) = umask_now()
    {
        let _ = FIRST_UMASK.set(umask);
    }
}

fn umask_now() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(umask.trim(), 8).ok()
}

/// Whether another user made this in a directory like `/tmp`.
pub(crate) fn is_planted(there: &Attributes, directory: &Attributes) -> bool {
    let own = [directory.user, rustix::process::geteuid().as_raw()].contains(&there.user);
    directory.mode & 0o1002 == 0o1002 && !own && there.kind != EntryKind::Directory
}
