//! Reports what a volume has, and checks whether all of it can be read.
//!
//! Invariant: a check reads every byte of every copy, and changes nothing.
//! Non-goals: repairing damage.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use thalweg_api::{
    VolumeCheck, VolumeEntry, VolumeFile, VolumeLayout, VolumeRepair, VolumeStatus, VolumeStore,
};

use crate::alone::OpenVolume;
use crate::file::TRIES;
use crate::layout::{Layout, Policy};
use crate::manager::{Change, Inode, Kind, ROOT};
use crate::request::{Healing, Health};
use crate::store::{Store, Strip};
use crate::stores::{Slot, bit};
use crate::volume::Volume;
use crate::{Error, Result};

const PIECE: usize = 1 << 20;

impl From<Policy> for VolumeLayout {
    fn from(policy: Policy) -> VolumeLayout {
        let Policy { width, stripe_bytes, copies, record_bytes } = policy;
        VolumeLayout { width, stripe_bytes, copies, record_bytes, first_slot: None }
    }
}

impl From<VolumeLayout> for Policy {
    fn from(layout: VolumeLayout) -> Policy {
        let VolumeLayout { width, stripe_bytes, copies, record_bytes, .. } = layout;
        Policy { width, stripe_bytes, copies, record_bytes }
    }
}

impl From<Layout> for VolumeLayout {
    fn from(layout: Layout) -> VolumeLayout {
        let Layout { width, stripe_bytes, copies, record_bytes, first, .. } = layout;
        VolumeLayout { width, stripe_bytes, copies, record_bytes, first_slot: Some(first) }
    }
}

/// Calls `visit` for every inode in a volume below its root, with its path.
pub(crate) fn walk(volume: &Volume, mut visit: impl FnMut(&Path, &Inode)) -> Result<()> {
    let mut left = vec![(ROOT, PathBuf::from("/"))];
    while let Some((directory, above)) = left.pop() {
        let entries = match volume.manager.names(directory) {
            // It was removed meanwhile.
            Err(why) if why.is_not_found() && directory != ROOT => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = above.join(OsString::from_vec(entry.name));
            visit(&path, &entry.inode);
            if entry.inode.kind == Kind::Directory {
                left.push((entry.inode.id, path));
            }
        }
    }
    Ok(())
}

/// The layout of files that are created in the root.
pub(crate) fn root_policy(volume: &Volume) -> Result<Policy> {
    Ok(volume.manager.inode(ROOT)?.policy.unwrap_or_default())
}

/// The state of a volume and its stores.
pub fn status(open: &OpenVolume) -> Result<VolumeStatus> {
    let (volume, VolumeEntry { name, manager, stores, clients, .. }) = (&open.volume, open.entry.clone());
    let Health { behind, healing, rate } = volume.manager.health()?;
    let mut status = VolumeStatus {
        name,
        manager,
        clients,
        stores: Vec::new(),
        layout: root_policy(volume)?.into(),
        files: 0,
        directories: 1,
        bytes: 0,
        short_files: 0,
        short_bytes: 0,
        unreadable_files: 0,
        repair: healing.map(|Healing { files, files_done, bytes }| VolumeRepair { files, files_done, bytes }),
        repair_rate: rate,
    };
    for (slot, directory) in volume.stores.slots().iter().zip(stores) {
        let asked = asked(slot, |store| Ok((store.list()?.len() as u64, store.space()?.0.available)));
        let (strips, available_bytes) = *asked.as_ref().unwrap_or(&(0, 0));
        let (lost, short_files, short_bytes, behind_since_ns) = (asked.err(), 0, 0, None);
        let store = VolumeStore {
            directory,
            lost,
            strips,
            available_bytes,
            short_files,
            short_bytes,
            behind_since_ns,
        };
        status.stores.push(store);
    }
    let mut seen = BTreeSet::new();
    walk(volume, |_, inode| match inode.kind {
        Kind::Directory => status.directories += 1,
        Kind::File if seen.insert(inode.id) => {
            status.files += 1;
            status.bytes += inode.size;
            count_short(inode, &behind, &mut status);
        }
        _ => {}
    })?;
    Ok(status)
}

/// Counts a file that has fewer copies than it should, and one that lacks all copies of a part.
fn count_short(inode: &Inode, behind: &[(u32, i64)], status: &mut VolumeStatus) {
    let Some(layout) = inode.layout else { return };
    // For each slot the bytes, and whether a copy missed a write.
    let mut of_slots: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    let (strips, mut is_whole) = (inode.strips | inode.unsynced, true);
    for index in (0..layout.width).filter(|index| strips & bit(*index) != 0) {
        let mut copies = layout.copies;
        for copy in 0..layout.copies {
            let slot = layout.slot(index, copy);
            let is_stale = layout.copies == 2 && inode.stale[copy as usize] & bit(index) != 0;
            if is_stale || status.stores.get(slot as usize).is_some_and(|store| store.lost.is_some()) {
                let (bytes, is_behind) = of_slots.entry(slot).or_default();
                *bytes += layout.strip_len(index, inode.size);
                *is_behind |= is_stale;
                copies -= 1;
            }
        }
        is_whole &= copies > 0;
    }
    status.unreadable_files += u64::from(!is_whole);
    if layout.copies < 2 {
        return;
    }
    status.short_files += u64::from(!of_slots.is_empty());
    for (slot, (bytes, is_behind)) in of_slots {
        status.short_bytes += bytes;
        let Some(store) = status.stores.get_mut(slot as usize) else { continue };
        store.short_files += 1;
        store.short_bytes += bytes;
        if is_behind {
            store.behind_since_ns =
                behind.iter().find(|(behind, _)| *behind == slot).map(|(_, since)| *since);
        }
    }
}

/// The answer of a store, or why the store is lost: it is missing, or it fails.
pub(crate) fn asked<'a, T>(
    slot: &'a Slot,
    ask: impl FnOnce(&'a dyn Store) -> Result<T>,
) -> std::result::Result<T, String> {
    match slot {
        Ok(store) => ask(&**store).map_err(|why| why.to_string()),
        Err(why) => Err(why.clone()),
    }
}

/// Reads everything.
pub fn check(open: &OpenVolume) -> Result<VolumeCheck> {
    let volume = &open.volume;
    let mut check = VolumeCheck { name: open.entry.name.clone(), ..VolumeCheck::default() };
    for (slot, directory) in volume.stores.slots().iter().zip(&open.entry.stores) {
        if let Err(why) = asked(slot, |store| store.space()) {
            check.problems.push(format!("the store in {directory} is lost: {why}"));
        }
    }
    let mut seen = Seen::new();
    walk(volume, |path, inode| {
        if let (Some(layout), true) = (inode.layout, is_first(&mut seen, inode)) {
            check_file(volume, path, inode, &layout, &mut check);
        }
    })?;
    for (slot, strip) in orphans(volume, &seen)? {
        let directory = &open.entry.stores[slot];
        check.problems.push(format!("{directory} has {strip}, which no name leads to"));
    }
    Ok(check)
}

/// Inodes that were seen, each with its layout and strips.
pub(crate) type Seen = BTreeMap<u64, Option<(Layout, u64)>>;

/// Adds an inode. Returns whether it is new.
pub(crate) fn is_first(seen: &mut Seen, inode: &Inode) -> bool {
    let strips = inode.strips | inode.unsynced;
    seen.insert(inode.id, inode.layout.map(|layout| (layout, strips))).is_none()
}

/// Strips that belong to none of these files, nor to one that was made since, each with the slot of its store.
pub(crate) fn orphans(volume: &Volume, seen: &Seen) -> Result<Vec<(usize, Strip)>> {
    let waiting: BTreeSet<u64> = volume.manager.unfinished()?.iter().map(|inode| inode.id).collect();
    let mut orphans = Vec::new();
    for (slot, store) in volume.stores.slots().iter().enumerate() {
        let is_of = |strip: &Strip, (layout, strips): &(Layout, u64)| {
            let is_one = strip.index < layout.width && strip.copy < layout.copies;
            is_one && strips & bit(strip.index) != 0 && layout.slot(strip.index, strip.copy) as usize == slot
        };
        let belongs = |strip: &Strip| seen.get(&strip.inode).into_iter().flatten().any(|of| is_of(strip, of));
        // Files may have been made, written or removed since.
        let belongs_now = |strip: &Strip| match volume.manager.inode(strip.inode) {
            Ok(inode) => {
                let strips = inode.strips | inode.unsynced;
                inode.links == 0
                    || inode.unsettled
                    || inode.layout.is_some_and(|layout| is_of(strip, &(layout, strips)))
            }
            Err(why) if why.is_not_found() => {
                asked(store, |store| store.facts(*strip)).is_ok_and(|facts| facts.is_none())
            }
            // It is not known.
            Err(_) => true,
        };
        // Lost stores have already been reported.
        let strips = asked(store, |store| store.list()).unwrap_or_default();
        let left = strips.into_iter().filter(|strip| !belongs(strip) && !waiting.contains(&strip.inode));
        orphans.extend(left.filter(|strip| !belongs_now(strip)).map(|strip| (slot, strip)));
    }
    Ok(orphans)
}

/// Checks a file. If it was removed or changed meanwhile, a problem may be none, so it is checked again.
fn check_file(volume: &Volume, path: &Path, inode: &Inode, layout: &Layout, check: &mut VolumeCheck) {
    let mut inode = inode.clone();
    let mut tries = TRIES;
    loop {
        let mut found = VolumeCheck::default();
        check_copies(volume, path, &inode, layout, &mut found);
        if !found.problems.is_empty() && tries > 0 {
            tries -= 1;
            match volume.manager.inode(inode.id) {
                Ok(now) if now.links > 0 && now != inode => {
                    inode = now;
                    continue;
                }
                Ok(now) if now.links == 0 => return,
                Err(why) if why.is_not_found() => return,
                _ => {}
            }
        }
        return add(check, found);
    }
}

fn add(check: &mut VolumeCheck, found: VolumeCheck) {
    check.files += found.files;
    check.strips += found.strips;
    check.bytes += found.bytes;
    check.lost_files += found.lost_files;
    check.problems.extend(found.problems);
}

fn check_copies(volume: &Volume, path: &Path, inode: &Inode, layout: &Layout, check: &mut VolumeCheck) {
    check.files += 1;
    let mut is_lost = false;
    let written = inode.strips | inode.unsynced;
    let missed =
        |strip| format!("{}: {strip} missed a write, so only the other copy is read", path.display());
    for index in (0..layout.width).filter(|index| written & bit(*index) != 0) {
        let (mut good, mut missing) = (0, Vec::new());
        for copy in 0..layout.copies {
            let strip = Strip { inode: inode.id, index, copy };
            let read = read_current(volume, inode, layout, (index, copy));
            match read {
                Ok(None) => check.problems.push(missed(strip)),
                Ok(Some(bytes)) => {
                    good += 1;
                    check.strips += 1;
                    check.bytes += bytes;
                }
                // An unacknowledged write may have reached only the other copy.
                Err(why @ Error::Missing(..)) if inode.strips & bit(index) == 0 => {
                    missing.push(format!("{}: {why}", path.display()));
                }
                Err(why) => check.problems.push(format!("{}: {why}", path.display())),
            }
        }
        if good == 0 {
            is_lost = true;
            check.problems.append(&mut missing);
        }
    }
    check.lost_files += u64::from(is_lost);
}

/// Reads all of a current copy of a strip, whose generation the store may not know yet. Returns the number of bytes,
/// without holes; `None` if the copy is stale.
fn read_current(
    volume: &Volume,
    inode: &Inode,
    layout: &Layout,
    (index, copy): (u32, u32),
) -> Result<Option<u64>> {
    let (mut now, mut tries) = (inode.clone(), TRIES);
    loop {
        if now.stale[copy as usize] & bit(index) != 0 {
            return Ok(None);
        }
        match read_strip(volume, &now, layout, (index, copy)) {
            Err(Error::Stale(_)) if tries > 0 => {
                now = volume.manager.change(&Change::Cut(now.id, now.generation))?;
                tries -= 1;
            }
            read => return read.map(Some),
        }
    }
}

/// Reads all of a copy of a strip. Returns the number of bytes, without holes.
fn read_strip(volume: &Volume, inode: &Inode, layout: &Layout, (index, copy): (u32, u32)) -> Result<u64> {
    let strip = Strip { inode: inode.id, index, copy };
    let store = volume.stores.of(layout, strip)?;
    read_through((store, strip), inode.generation, layout.strip_len(index, inode.size))
}

/// Reads the first `len` bytes of a strip, except for holes. Returns how many were read.
pub(crate) fn read_through((store, strip): (&dyn Store, Strip), generation: u64, len: u64) -> Result<u64> {
    let mut piece = vec![0; PIECE];
    let (mut at, mut bytes) = (0, 0);
    while let Some(data) = store.next_data(strip, generation, at)?.filter(|data| data.start < len) {
        at = data.start;
        while at < data.end.min(len) {
            let n = (data.end.min(len) - at).min(PIECE as u64) as usize;
            store.read(strip, generation, at, &mut piece[..n])?;
            at += n as u64;
            bytes += n as u64;
        }
    }
    Ok(bytes)
}

/// Everything that is known of the inode at a path.
pub fn file(open: &OpenVolume, path: &Path) -> Result<VolumeFile> {
    let found = open.volume.stat_link(path)?;
    Ok(told(path.to_string_lossy().into_owned(), &found))
}

/// The files in a directory, or the one file at the path.
pub fn files(open: &OpenVolume, path: &Path) -> Result<Vec<VolumeFile>> {
    if open.volume.stat(path)?.kind != Kind::Directory {
        return Ok(vec![file(open, path)?]);
    }
    let entries = open.volume.list(path)?;
    Ok(entries
        .iter()
        .map(|entry| told(String::from_utf8_lossy(&entry.name).into_owned(), &entry.inode))
        .collect())
}

fn told(name: String, inode: &Inode) -> VolumeFile {
    let kind = match inode.kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Link => "link",
        Kind::Pipe => "pipe",
        Kind::Socket => "socket",
        Kind::CharacterDevice(_) => "character device",
        Kind::BlockDevice(_) => "block device",
    };
    let is_link = inode.kind == Kind::Link;
    VolumeFile {
        name,
        kind: kind.into(),
        bytes: inode.size,
        mode: inode.mode,
        user: inode.user,
        group: inode.group,
        links: inode.links,
        modified_ns: inode.modified_ns,
        inode: inode.id,
        target: is_link.then(|| String::from_utf8_lossy(&inode.target).into_owned()),
        layout: inode.layout.map(VolumeLayout::from).or(inode.policy.map(VolumeLayout::from)),
    }
}
