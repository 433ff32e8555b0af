//! Extended attributes of files and directories. Access control lists and file capabilities are among them.
//!
//! Invariant: only attributes that mean the same elsewhere are read. Labels that a security module gives every file are
//! those of one machine, and other names of the system describe its file system.
//! Non-goals: attributes of symbolic links.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{
    XattrFlags, fgetxattr, fgetxattr_query, flistxattr, flistxattr_query, fremovexattr, fsetxattr,
};
use rustix::io::Errno;

/// The most bytes of all attributes of a file that are read; others are reported as unreadable.
const BYTES_MAX: usize = 256 << 10;
/// The most bytes of a name, with a NUL behind it; see xattr(7).
pub const NAME_BYTES_MAX: usize = 256;
/// The access control lists, of which a directory may have two.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Labels of security modules.
const LABELS: [&[u8]; 5] =
    [b"security.selinux", b"security.SMACK64", b"security.apparmor", b"security.ima", b"security.evm"];

/// The extended attributes of a file: names and values. A clone refers to the same ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extended(Option<Arc<[Attribute]>>);

type Attribute = (Vec<u8>, Vec<u8>);

impl Extended {
    /// Attributes that were read elsewhere; `None` if one of them has a name that is never read.
    pub fn of(all: Vec<Attribute>) -> Option<Extended> {
        let is_one = |(name, _): &Attribute| is_copied(name);
        all.iter().all(is_one).then(|| Extended((!all.is_empty()).then(|| all.into())))
    }

    /// The names and values.
    pub fn all(&self) -> &[Attribute] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The bytes of names and values.
    pub fn bytes(&self) -> usize {
        self.all().iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The names, for messages.
    pub fn names(&self) -> Vec<String> {
        self.all().iter().map(|(name, _)| shown(name)).collect()
    }
}

/// Whether an attribute of this name is copied.
pub fn is_copied(name: &[u8]) -> bool {
    let is_label = || LABELS.iter().any(|label| name.starts_with(label));
    name.len() < NAME_BYTES_MAX
        && !name.contains(&0)
        && match name.split(|byte| *byte == b'.').next() {
            Some(b"user" | b"trusted") => true,
            Some(b"security") => !is_label(),
            _ => LISTS.contains(&name),
        }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The attributes of an open file, and the names of those that cannot be read. A file system without attributes has none.
pub(crate) fn read(fd: impl AsFd) -> (Extended, Vec<String>) {
    let fd = fd.as_fd();
    let (mut all, mut unread, mut bytes) = (Vec::new(), Vec::new(), 0);
    for name in names(fd).into_iter().filter(|name| is_copied(name)) {
        let value = whole(|| fgetxattr_query(fd, &name[..]), |into| fgetxattr(fd, &name[..], into));
        bytes += value.as_ref().map_or(0, |value| name.len() + value.len());
        match value {
            Ok(value) if bytes <= BYTES_MAX => all.push((name, value)),
            // It was removed meanwhile.
            Err(Errno::NODATA) => {}
            _ => unread.push(shown(&name)),
        }
    }
    (Extended::of(all).expect("others were passed over"), unread)
}

/// Gives an open file these attributes, and takes others from it, as lists that it has inherited from its directory.
/// Returns the names of those that it cannot have.
pub(crate) fn write(fd: impl AsFd, wanted: &Extended) -> Vec<String> {
    let fd = fd.as_fd();
    let is_wanted = |name: &[u8]| wanted.all().iter().any(|(wanted, _)| wanted == name);
    for name in names(fd).iter().filter(|name| is_copied(name) && !is_wanted(name)) {
        // What may not be removed is not ours to decide.
        let _ = fremovexattr(fd, &name[..]);
    }
    let cannot = |(name, value): &&Attribute| fsetxattr(fd, &name[..], value, XattrFlags::empty()).is_err();
    wanted.all().iter().filter(cannot).map(|(name, _)| shown(name)).collect()
}

fn names(fd: impl AsFd) -> Vec<Vec<u8>> {
    let fd = fd.as_fd();
    let names = whole(|| flistxattr_query(fd), |into| flistxattr(fd, into)).unwrap_or_default();
    names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// All bytes that a call returns. `bytes` asks how many there are.
fn whole(
    bytes: impl Fn() -> rustix::io::Result<usize>,
    call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    loop {
        let mut bytes = vec![0; bytes()?];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match call(&mut bytes) {
            // There are more now.
            Err(Errno::RANGE) => {}
            read => {
                bytes.truncate(read?);
                return Ok(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system may have no attributes of users, and then nothing is read and nothing is kept.
    #[test]
    fn what_is_written_is_read() {
        let file = tempfile();
        let all = |values: &[(&str, &[u8])]| {
            let all = values.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()));
            Extended::of(all.collect()).expect("all are copied")
        };
        let wanted = all(&[("user.a", b""), ("user.b", &[7; 300])]);
        if write(&file, &wanted) == wanted.names() {
            assert_eq!(read(&file), (Extended::default(), Vec::new()));
            return;
        }
        let sorted = |extended: Extended| {
            let mut all = extended.all().to_vec();
            all.sort();
            all
        };
        assert_eq!(sorted(read(&file).0), wanted.all());
        let other = all(&[("user.b", b"other")]);
        assert_eq!(write(&file, &other), [""; 0]);
        assert_eq!(read(&file), (other, Vec::new()), "others are taken away");
    }

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("thalweg-extended-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }
}
