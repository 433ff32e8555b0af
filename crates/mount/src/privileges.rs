//! What a write takes away from a file: set-user-ID, set-group-ID, and the capabilities of a program.
//!
//! Model: before most writes the kernel sends a request for that. It sends none for a file that is open with
//! FOPEN_DIRECT_IO, as for appends, and lets a set-group-ID bit be that stands without execution by the group. So each
//! write looks at the bits, which an open file knows.
//! Invariant: a file keeps what it would keep in a local file system. If another mount has set a bit, that holds for
//! writes after a second.
//! Non-goals: writes to mappings, which take nothing away.

use std::sync::Arc;

use fuser::Request;
use thalweg_volume::{CAPABILITY_ATTRIBUTE, Edit, Error, Inode, Volume};

use crate::callers;
use crate::handles::OpenFile;
use crate::kernel::Kernel;

/// Prepares a file for a write.
pub(crate) fn before_write(
    (volume, kernel): (&Arc<Volume>, &Kernel),
    request: &Request,
    open: &OpenFile,
) -> Result<(), Error> {
    let (inode, (mode, group)) = (open.file.inode(), open.file.mode_and_group());
    if take_bits(volume, request, inode, mode, group)?.is_some() {
        kernel.drop_attributes(inode);
    }
    if open.is_direct && volume.attribute_of(inode, CAPABILITY_ATTRIBUTE)?.is_some() {
        volume.set_attribute_of(inode, CAPABILITY_ATTRIBUTE, None)?;
    }
    Ok(())
}

/// Takes the bits from a file that was cut or made longer. Returns it as it is then.
pub(crate) fn after_resize(volume: &Arc<Volume>, request: &Request, found: Inode) -> Result<Inode, Error> {
    Ok(take_bits(volume, request, found.id, found.mode, found.group)?.unwrap_or(found))
}

fn take_bits(
    volume: &Arc<Volume>,
    request: &Request,
    inode: u64,
    mode: u32,
    group: u32,
) -> Result<Option<Inode>, Error> {
    if mode & (libc::S_ISUID | libc::S_ISGID) == 0 || callers::keeps_bits(request) {
        return Ok(None);
    }
    let executes = mode & libc::S_IXGRP != 0;
    let keeps_group = !executes && callers::is_in_group(request, group);
    let taken = if keeps_group { libc::S_ISUID } else { libc::S_ISUID | libc::S_ISGID };
    match mode & !taken {
        left if left == mode => Ok(None),
        left => volume.set(inode, Edit { mode: Some(left), ..Edit::default() }).map(Some),
    }
}
