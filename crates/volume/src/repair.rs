//! What can be mended is: copies that are stale, damaged or missing, and strips that no file has.
//!
//! Model: both copies of a strip are read side by side. A block that one cannot give is written from the other. A copy that
//! missed a write, or cannot be written, is removed and made anew.
//! Invariant: a copy that is removed is durably stale before that, and current again when the new one is durable, so a crash
//! in the middle leaves work for the next repair and nothing else.
//! Invariant: nobody else has the volume open meanwhile.
//! Non-goals: files without a second copy; a check says which are damaged.

use std::path::Path;

use thalweg_api::VolumeWork;

use crate::check::{self, Seen};
use crate::layout::Layout;
use crate::manager::{Change, Inode};
use crate::registry::Registry;
use crate::store::{Store, Strip, StripFacts, Write};
use crate::stores::{Target, bit};
use crate::strip::BLOCK;
use crate::{Error, Result, Volume, volumes};

const PIECE: usize = 1 << 20;

/// Mends what can be mended, and tells what that was, a line for each.
pub fn repair(registry: &Registry, name: &str) -> Result<Vec<String>> {
    let open = volumes::open_alone(registry, name, VolumeWork::Repair)?;
    repair_alone(&open.volume, &open.entry.stores)
}

/// The same, of a volume that nobody else has open, with stores in these places.
pub(crate) fn repair_alone(volume: &Volume, stores: &[String]) -> Result<Vec<String>> {
    volume.sync()?;
    let (mut done, mut failed, mut seen) = (Vec::new(), Ok(()), Seen::new());
    check::walk(volume, |path, inode| {
        if let (Ok(()), Some(layout), true) = (&failed, inode.layout, check::is_first(&mut seen, inode)) {
            failed = File { volume, path, inode: inode.clone(), layout }.repair(&mut done);
        }
    })?;
    failed?;
    for (slot, strip) in check::orphans(volume, &seen)? {
        if let Ok(store) = &volume.stores.slots()[slot] {
            store.remove(strip)?;
            done.push(format!("{}: {strip}, which no file has, is removed", stores[slot]));
        }
    }
    volume.sync_names()?;
    Ok(done)
}

struct File<'a> {
    volume: &'a Volume,
    path: &'a Path,
    inode: Inode,
    layout: Layout,
}

impl File<'_> {
    fn repair(&mut self, done: &mut Vec<String>) -> Result<()> {
        if self.layout.copies < 2 {
            return Ok(());
        }
        let strips = self.inode.strips;
        for index in (0..self.layout.width).filter(|index| strips & bit(*index) != 0) {
            if !self.is_stale(index, 0) && !self.is_stale(index, 1) {
                self.compare(index, done)?;
            }
            for copy in 0..2 {
                if self.is_stale(index, copy) {
                    self.remake(index, copy, done)?;
                }
            }
        }
        Ok(())
    }

    fn is_stale(&self, index: u32, copy: u32) -> bool {
        self.inode.stale[copy as usize] & bit(index) != 0
    }

    fn store(&self, index: u32, copy: u32) -> Result<(&dyn Store, Strip)> {
        let strip = Strip { inode: self.inode.id, index, copy };
        Ok((self.volume.stores.of(&self.layout, strip)?, strip))
    }

    /// Reads both copies, and writes to one what only the other has. What neither has stays.
    fn compare(&mut self, index: u32, done: &mut Vec<String>) -> Result<()> {
        let len = self.layout.strip_len(index, self.inode.size);
        // A store that is lost may come back with all that it had.
        let (Ok(first), Ok(second)) = (self.store(index, 0), self.store(index, 1)) else { return Ok(()) };
        let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
        let (mut at, mut step, mut damaged) = (0, PIECE, None);
        loop {
            let n = (len - at).min(step as u64) as usize;
            let [one, two] = &mut pieces;
            let read = |(store, strip): (&dyn Store, Strip), into: &mut [u8]| {
                store.read(strip, self.inode.generation, at, &mut into[..n])
            };
            let found = (read(first, one), read(second, two));
            let is_equal = matches!(found, (Ok(()), Ok(()))) && one[..n] == two[..n];
            if !is_equal && n > BLOCK {
                // Block by block, so that no more is written than is damaged.
                step = BLOCK;
                continue;
            }
            let wrong = match found {
                _ if is_equal => None,
                (Ok(()), _) => Some(1),
                (Err(_), Ok(())) => Some(0),
                _ => None,
            };
            if let Some(copy) = wrong {
                let ((store, strip), bytes) =
                    if copy == 0 { (first, &pieces[1][..n]) } else { (second, &pieces[0][..n]) };
                let (generation, layout) = (self.inode.generation, self.layout);
                let write = Write { strip, generation, layout, at, may_create: false };
                if store.write(&write, bytes).and_then(|()| store.sync(strip)).is_err() {
                    damaged = Some(copy);
                    break;
                }
                done.push(format!("{}: byte {at} of {strip} is mended", self.path.display()));
            }
            at += n as u64;
            if at >= len {
                break;
            }
            if at % PIECE as u64 == 0 {
                step = PIECE;
            }
        }
        match damaged {
            Some(copy) => self.set_stale(index, copy),
            None => Ok(()),
        }
    }

    fn set_stale(&mut self, index: u32, copy: u32) -> Result<()> {
        self.inode = self.volume.manager.change(&Change::Stale(self.inode.id, copy, bit(index)))?;
        Ok(())
    }

    /// Makes a stale copy anew from the other, if that is there and whole.
    fn remake(&mut self, index: u32, copy: u32, done: &mut Vec<String>) -> Result<()> {
        let (Ok(to), Ok(from)) = (self.store(index, copy), self.store(index, 1 - copy)) else {
            return Ok(());
        };
        if self.is_stale(index, 1 - copy) || read_through(from, self.inode.generation).is_err() {
            return Ok(());
        }
        to.0.remove(to.1)?;
        copy_strip(from, to)?;
        done.push(format!("{}: {} is made anew", self.path.display(), to.1));
        self.inode = self.volume.manager.change(&Change::Current(self.inode.id, copy, bit(index)))?;
        Ok(())
    }
}

/// An error if not all of a strip can be read.
fn read_through((store, strip): (&dyn Store, Strip), generation: u64) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let len = facts_of(store, strip)?.len;
    (0..len).step_by(PIECE).try_for_each(|at| {
        let n = (len - at).min(PIECE as u64) as usize;
        store.read(strip, generation, at, &mut piece[..n])
    })
}

fn facts_of(store: &dyn Store, strip: Strip) -> Result<StripFacts> {
    store.facts(strip)?.ok_or_else(|| Error::Missing(strip, "it is not at its store".into()))
}

/// Why a strip was not copied.
pub(crate) enum NotCopied {
    /// It cannot be read.
    Unreadable(Error),
    /// The copy cannot be written, for want of room, say.
    Unwritable(Error),
}

impl From<NotCopied> for Error {
    fn from(not: NotCopied) -> Error {
        let (NotCopied::Unreadable(why) | NotCopied::Unwritable(why)) = not;
        why
    }
}

/// Copies what was written of a strip, durably. Holes stay holes.
pub(crate) fn copy_strip(
    (from, strip): (&dyn Store, Strip),
    (to, new): (&dyn Store, Strip),
) -> std::result::Result<(), NotCopied> {
    use NotCopied::{Unreadable, Unwritable};
    let StripFacts { generation, layout, .. } = facts_of(from, strip).map_err(Unreadable)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    let write = |at, bytes: &[u8]| {
        let write = Write { strip: new, generation, layout, at, may_create: true };
        to.write(&write, bytes).map_err(Unwritable)
    };
    // Also if there are no bytes, so that it is made.
    write(0, &[])?;
    while let Some(data) = from.next_data(strip, generation, at).map_err(Unreadable)? {
        at = data.start;
        while at < data.end {
            let n = (data.end - at).min(PIECE as u64) as usize;
            from.read(strip, generation, at, &mut piece[..n]).map_err(Unreadable)?;
            write(at, &piece[..n])?;
            at += n as u64;
        }
    }
    to.sync(new).map_err(Unwritable)
}

/// Marks strips of a slot stale that are not at the store which takes it over, if the other copy is current; the others are
/// lost, and told.
pub(crate) fn note_missing(volume: &Volume, slot: u32, store: &dyn Store) -> Result<Vec<String>> {
    let (mut lost, mut failed, mut seen) = (Vec::new(), Ok(()), Seen::new());
    check::walk(volume, |path, inode| {
        let (Some(target), Ok(()), true) = (Target::of(inode), &failed, check::is_first(&mut seen, inode))
        else {
            return;
        };
        let layout = target.layout;
        let strips = (0..layout.width).flat_map(|index| (0..layout.copies).map(move |copy| (index, copy)));
        for (index, copy) in strips {
            let strip = Strip { inode: inode.id, index, copy };
            let is_there = || matches!(store.facts(strip), Ok(Some(_)));
            let is_read = |copy: u32| inode.stale[copy as usize] & bit(index) == 0;
            if layout.slot(index, copy) != slot
                || inode.strips & bit(index) == 0
                || !is_read(copy)
                || is_there()
            {
                continue;
            }
            if layout.copies == 2 && is_read(1 - copy) {
                failed = volume.manager.change(&Change::Stale(inode.id, copy, bit(index))).map(drop);
            } else {
                lost.push(format!("{}: {strip} is lost", path.display()));
            }
        }
    })?;
    failed.map(|()| lost)
}
