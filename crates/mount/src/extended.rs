//! Extended attributes, and access control lists among them.
//!
//! Invariant: a list that is set takes the set-group-ID bit from the file unless the caller is a member of its group, as
//! chmod(2) does. The kernel would say who is a member, but fuser does not pass that on.

use std::sync::Arc;

use fuser::Request;
use thalweg_volume::{ACL_ATTRIBUTE, Edit, Volume, is_attribute_name};

use crate::callers;
use crate::fs::{Result, refused};

/// The value of an attribute.
pub(crate) fn get(volume: &Volume, inode: u64, name: &[u8]) -> Result<Vec<u8>> {
    volume.attribute_of(inode, name)?.ok_or_else(|| refused(missing(name)))
}

/// Sets an attribute to this value, with the flags of setxattr(2).
pub(crate) fn set(
    volume: &Arc<Volume>,
    request: &Request,
    inode: u64,
    name: &[u8],
    (value, flags): (&[u8], i32),
) -> Result<()> {
    let is_there = volume.attributes_of(inode)?.iter().any(|(found, _)| found == name);
    if is_there && flags & libc::XATTR_CREATE != 0 {
        return Err(refused(libc::EEXIST));
    }
    if !is_there && flags & libc::XATTR_REPLACE != 0 {
        return Err(refused(missing(name)));
    }
    volume.set_attribute_of(inode, name, Some(value))?;
    if name != ACL_ATTRIBUTE {
        return Ok(());
    }
    let now = volume.inode(inode)?;
    if now.mode & libc::S_ISGID != 0 && !callers::is_in_group(request, now.group) {
        let mode = Some(now.mode & !libc::S_ISGID);
        volume.set(inode, Edit { mode, ..Edit::default() })?;
    }
    Ok(())
}

/// Removes an attribute.
pub(crate) fn remove(volume: &Arc<Volume>, inode: u64, name: &[u8]) -> Result<()> {
    volume.set_attribute_of(inode, name, None).map_err(|why| match why.errno() {
        libc::ENODATA => refused(missing(name)),
        _ => why,
    })
}

fn missing(name: &[u8]) -> i32 {
    if is_attribute_name(name) { libc::ENODATA } else { libc::EOPNOTSUPP }
}
