//! Repairs stale, damaged and missing copies, and removes strips that belong to no file, while other clients use the
//! volume.
//!
//! Model: both copies of a strip are read side by side. A block that one copy cannot give is written from the other. A
//! copy that missed writes gets the regions that the intents of both say it may lack; meanwhile the store with the
//! current copy notes where clients write, and that is copied next. When little is left, the file is *fenced*: stores
//! refuse the generation that clients know, and the manager tells them the next one only when the copy is current.
//! Invariant: a copy becomes current again when it has, durably, all that the other has, and no client can write to the
//! other alone. After a crash in the middle, the next repair has work left, and there is no other effect.
//! Non-goals: files without a second copy; a check lists the damaged ones.

use std::ops::Range;
use std::path::{Path, PathBuf};

use thalweg_api::VolumeWork;
use thalweg_base::units::Bytes;

use crate::check::{self, Seen};
use crate::layout::Layout;
use crate::manager::{Change, Inode};
use crate::recover::{Copied, copy_ranges, data_of_either, joined};
use crate::registry::Registry;
use crate::store::{Store, Strip, StripFacts, Write};
use crate::stores::{Target, bit};
use crate::strip::BLOCK;
use crate::{Error, Result, Volume, volumes};

const PIECE: usize = 1 << 20;
/// The most bytes that are copied while a file is fenced, unless clients write as fast as they are copied.
const FENCED_BYTES: u64 = 8 << 20;
/// The most times that the bytes which clients wrote during a copy are copied before the file is fenced.
const PASSES: usize = 16;
/// The most attempts for a strip, if a client truncates the file or another copy fails during one.
const TRIES: usize = 8;

/// Repairs a volume, and returns a line for each thing that was repaired.
pub fn repair(registry: &Registry, name: &str) -> Result<Vec<String>> {
    let open = volumes::open_for(registry, name, VolumeWork::Repair)?;
    run(&open.volume, &open.entry.stores)
}

/// Repairs an open volume whose stores have these names.
pub(crate) fn run(volume: &Volume, stores: &[String]) -> Result<Vec<String>> {
    volume.manager.repair()?;
    volume.sync()?;
    let (mut done, mut failed, mut seen) = (Vec::new(), Ok(()), Seen::new());
    check::walk(volume, |path, inode| {
        if let (Ok(()), Some(layout), true) = (&failed, inode.layout, check::is_first(&mut seen, inode)) {
            let inode = inode.clone();
            failed = File { volume, path, inode, layout, copied: &|_| Ok(()) }.repair(true, &mut done);
        }
    })?;
    failed?;
    for (slot, strip) in check::orphans(volume, &seen)? {
        if let Ok(store) = &volume.stores.slots()[slot]
            && remove_orphan(volume, slot, (&**store, strip))?
        {
            done.push(format!("{}: {strip}, which no file has, is removed", stores[slot]));
        }
    }
    volume.sync_names()?;
    Ok(done)
}

/// Brings the copies of a file up to date that missed writes.
pub(crate) fn stale(volume: &Volume, inode: u64, copied: Copied<'_>) -> Result<()> {
    let inode = volume.manager.inode(inode)?;
    let Some(layout) = inode.layout else { return Ok(()) };
    let path = &PathBuf::from(format!("inode {}", inode.id));
    File { volume, path, inode, layout, copied }.repair(false, &mut Vec::new())
}

/// Removes a strip, unless a file has it by now. A strip that its file does not know was made by a late write.
fn remove_orphan(volume: &Volume, slot: usize, (store, strip): Copy<'_>) -> Result<bool> {
    let is_place = |layout: &Layout| {
        let is_one = strip.index < layout.width && strip.copy < layout.copies;
        is_one && layout.slot(strip.index, strip.copy) as usize == slot
    };
    match volume.manager.inode(strip.inode) {
        Ok(Inode { layout: Some(layout), .. }) if is_place(&layout) => {
            // No write begins while the file is fenced, and later writes make strips of the new generation.
            let inode = match volume.manager.fence(strip.inode) {
                // It was removed meanwhile, and its strips with it.
                Err(why) if why.is_not_found() => return Ok(false),
                inode => inode?,
            };
            let is_unknown = (inode.strips | inode.unsynced) & bit(strip.index) == 0 && !inode.unsettled;
            let removed = if is_unknown { store.remove(strip, inode.generation) } else { Ok(()) };
            volume.manager.lift(strip.inode)?;
            removed.map(|()| is_unknown)
        }
        Err(why) if !why.is_not_found() => Err(why),
        _ => store.remove(strip, u64::MAX).map(|()| true),
    }
}

struct File<'a> {
    volume: &'a Volume,
    path: &'a Path,
    inode: Inode,
    layout: Layout,
    /// Called for what is copied while clients may write.
    copied: Copied<'a>,
}

/// A copy of a strip, and the store that has it.
type Copy<'a> = (&'a dyn Store, Strip);

impl<'a> File<'a> {
    /// Repairs stale copies and, if `compares`, also what differs or is damaged.
    fn repair(&mut self, compares: bool, done: &mut Vec<String>) -> Result<()> {
        if self.layout.copies < 2 {
            return Ok(());
        }
        let strips = self.inode.strips | self.inode.unsynced;
        for index in (0..self.layout.width).filter(|index| strips & bit(*index) != 0) {
            let mut left = TRIES;
            loop {
                left -= 1;
                match self.repair_strip(index, compares, done) {
                    Ok(()) => break,
                    Err(Error::Stale(_) | Error::System(libc::ETIMEDOUT, _)) if left > 0 => {}
                    // The volume repairs it by itself later.
                    Err(Error::Stale(strip)) => {
                        let path = self.path.display();
                        done.push(format!(
                            "{path}: {strip} is left, because programs keep truncating the file"
                        ));
                        break;
                    }
                    // An unreadable strip cannot be copied from; the check that follows names it.
                    Err(why) if why.is_damage() => break,
                    // It was removed in the meantime.
                    Err(why) if why.is_not_found() => return Ok(()),
                    Err(why) => return Err(why),
                }
            }
        }
        Ok(())
    }

    fn repair_strip(&mut self, index: u32, compares: bool, done: &mut Vec<String>) -> Result<()> {
        self.inode = self.volume.manager.inode(self.inode.id)?;
        if compares && !self.is_stale(index, 0) && !self.is_stale(index, 1) {
            self.compare(index, done)?;
        }
        for copy in 0..2 {
            if self.is_stale(index, copy) {
                self.remake(index, copy, done)?;
            }
        }
        Ok(())
    }

    fn is_stale(&self, index: u32, copy: u32) -> bool {
        self.inode.stale[copy as usize] & bit(index) != 0
    }

    /// A copy, unless its store is lost: a lost store may come back with all that it had.
    fn copy(&self, index: u32, copy: u32) -> Option<Copy<'a>> {
        let strip = Strip { inode: self.inode.id, index, copy };
        let store = self.volume.stores.of(&self.layout, strip).ok()?;
        store.space().ok().map(|_| (store, strip))
    }

    fn target(&self) -> Target {
        Target::of(&self.inode).expect("a file has a layout")
    }

    /// Reads both copies, and repairs blocks that differ or that one copy cannot give.
    fn compare(&mut self, index: u32, done: &mut Vec<String>) -> Result<()> {
        let len = self.layout.strip_len(index, self.inode.size);
        let (Some(first), Some(second)) = (self.copy(index, 0), self.copy(index, 1)) else { return Ok(()) };
        self.raise([first, second]);
        let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
        // The first piece is read even if it is a hole, because a copy may be missing.
        let (mut at, mut end) = (0, len.min(PIECE as u64));
        loop {
            let n = (end - at).min(PIECE as u64) as usize;
            if read_both([first, second], self.inode.generation, at, &mut pieces, n)?.is_some() {
                let range = at..at + n as u64;
                self.fenced([first, second], |file| file.mend([first, second], range, done))?;
                if self.is_stale(index, 0) || self.is_stale(index, 1) {
                    return Ok(());
                }
            }
            at += n as u64;
            if at == end {
                let data = data_of_either([first, second], self.inode.generation, at)?;
                let Some(data) = data.filter(|data| data.start < len) else { return Ok(()) };
                (at, end) = (data.start, data.end.min(len));
            }
        }
    }

    /// Rewrites, block by block, what differs or only one copy has, while no client writes. What neither has stays.
    fn mend(&mut self, copies: [Copy<'a>; 2], range: Range<u64>, done: &mut Vec<String>) -> Result<()> {
        let (generation, layout) = (self.inode.generation, self.layout);
        if (0..2).any(|copy| self.is_stale(copies[0].1.index, copy)) {
            // A client that knew more has marked it before the fence.
            return Ok(());
        }
        let mut pieces = [vec![0; BLOCK], vec![0; BLOCK]];
        let mut at = range.start;
        loop {
            let n = (range.end - at).min(BLOCK as u64) as usize;
            if let Some(wrong) = read_both(copies, generation, at, &mut pieces, n)? {
                let (store, strip) = copies[wrong];
                let write = Write { strip, generation, layout, at, may_create: false };
                let written = store.write(&write, &pieces[1 - wrong][..n]);
                if written.and_then(|()| store.sync(&[strip]).map(drop)).is_err() {
                    let stale = Change::Stale(self.inode.id, strip.copy, bit(strip.index));
                    self.inode = self.volume.manager.change(&stale)?;
                    return Ok(());
                }
                done.push(format!("{}: byte {at} of {strip} is mended", self.path.display()));
            }
            at += n as u64;
            if at >= range.end {
                return Ok(());
            }
        }
    }

    /// Calls `work` in a new generation, while no other client can read or write these copies.
    fn fenced(&mut self, copies: [Copy<'a>; 2], work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.inode = self.volume.manager.fence(self.inode.id)?;
        self.raise(copies);
        let done = work(self);
        self.volume.manager.lift(self.inode.id)?;
        // Tells the stores of the file's other strips too, before a client's requests reach them.
        self.volume.stores.raise(&self.target(), u64::MAX, self.inode.cut.unwrap_or(self.inode.size));
        done
    }

    /// Tells the stores of these copies the new generation. A store that misses it refuses the next requests.
    fn raise(&self, copies: [Copy<'a>; 2]) {
        let size = self.inode.cut.unwrap_or(self.inode.size);
        for (store, strip) in copies {
            let _ = store.truncate(strip, self.inode.generation, self.layout.strip_len(strip.index, size));
        }
    }

    /// Brings a stale copy up to date from the other, if that is available and current.
    fn remake(&mut self, index: u32, copy: u32, done: &mut Vec<String>) -> Result<()> {
        let (Some(to), Some(from)) = (self.copy(index, copy), self.copy(index, 1 - copy)) else {
            return Ok(());
        };
        if self.is_stale(index, 1 - copy) {
            return Ok(());
        }
        // In this generation no other client that was repairing can ask for changes, which this one would then miss.
        self.fenced([from, to], |_| Ok(()))?;
        if self.is_stale(index, 1 - copy) || !self.is_stale(index, copy) {
            return Err(Error::Stale(to.1));
        }
        let mut generation = self.inode.generation;
        // The next call returns only what is written from now on.
        from.0.changes(from.1, generation)?;
        let facts = facts_of(from.0, from.1)?;
        let what = match self.ranges(&facts, to)? {
            Some(ranges) => {
                copy_ranges(&self.target(), from, to, &ranges, self.copied)?;
                let bytes = ranges.iter().map(|range| range.end - range.start).sum();
                format!("has got the {} that it may have missed", Bytes(bytes))
            }
            None if check::read_through(from, generation, u64::MAX).is_err() => return Ok(()),
            None => {
                to.0.remove(to.1, generation + 1)?;
                // The new copy is of a later generation than any request to remove the old one, even a late one.
                self.fenced([from, to], |_| Ok(()))?;
                generation = self.inode.generation;
                copy_strip(from, to, self.copied)?;
                "is made anew".into()
            }
        };
        let mut left = from.0.changes(from.1, generation)?;
        for _ in 0..PASSES {
            if left.iter().map(|range| range.end - range.start).sum::<u64>() <= FENCED_BYTES {
                break;
            }
            copy_ranges(&self.target(), from, to, &left, self.copied)?;
            left = from.0.changes(from.1, generation)?;
        }
        to.0.sync(&[to.1])?;
        self.fenced([from, to], |file| file.make_current(from, to, left))?;
        done.push(format!("{}: {} {what}", self.path.display(), to.1));
        Ok(())
    }

    /// The ranges in which a copy may differ from the other; `None` if it must be rebuilt as a whole.
    fn ranges(&self, facts: &StripFacts, to: Copy<'a>) -> Result<Option<Vec<Range<u64>>>> {
        let Ok(Some(_)) = to.0.facts(to.1) else { return Ok(None) };
        let there = facts_of(to.0, to.1)?;
        let mut ranges = [&facts.unsettled[..], &there.unsettled].concat();
        ranges.push(there.len.min(facts.len)..facts.len);
        Ok((there.len <= facts.len).then(|| joined(ranges)))
    }

    /// Copies the remaining ranges while the file is fenced, and marks the copy as current.
    fn make_current(&mut self, from: Copy<'a>, to: Copy<'a>, left: Vec<Range<u64>>) -> Result<()> {
        let (id, generation, strip) = (self.inode.id, self.inode.generation, to.1);
        let left = joined([left, from.0.changes(from.1, generation)?].concat());
        copy_ranges(&self.target(), from, to, &left, &|_| Ok(()))?;
        let synced = [(from, from.0.sync(&[from.1])?[0]), (to, to.0.sync(&[to.1])?[0])];
        self.inode =
            self.volume.manager.change(&Change::Current(id, generation, strip.copy, bit(strip.index)))?;
        if self.is_stale(strip.index, strip.copy) {
            return Err(Error::Stale(strip));
        }
        self.raise([from, to]);
        let settle =
            |((store, strip), number): (Copy<'a>, u64)| store.settle(strip, self.inode.generation, number);
        synced.into_iter().try_for_each(settle)
    }
}

/// Reads the same bytes of both copies. Returns the copy to rewrite: the unreadable one (the first if both are, of more
/// than a block), or the second if they differ; `None` if they agree, or neither can give a single block.
fn read_both(
    copies: [Copy<'_>; 2],
    generation: u64,
    at: u64,
    into: &mut [Vec<u8>; 2],
    n: usize,
) -> Result<Option<usize>> {
    let [one, two] = into;
    let read = |(store, strip): Copy<'_>, into: &mut [u8]| store.read(strip, generation, at, into);
    match (read(copies[0], &mut one[..n]), read(copies[1], &mut two[..n])) {
        (Err(why @ Error::Stale(_)), _) | (_, Err(why @ Error::Stale(_))) => Err(why),
        (Ok(()), Ok(())) if one[..n] == two[..n] => Ok(None),
        (Ok(()), _) => Ok(Some(1)),
        (Err(_), Ok(())) => Ok(Some(0)),
        (Err(_), Err(_)) if n > BLOCK => Ok(Some(0)),
        _ => Ok(None),
    }
}

fn facts_of(store: &dyn Store, strip: Strip) -> Result<StripFacts> {
    store.facts(strip)?.ok_or_else(|| Error::Missing(strip, "it is not at its store".into()))
}

/// Why a strip was not copied.
pub(crate) enum NotCopied {
    /// It cannot be read.
    Unreadable(Error),
    /// The copy cannot be written, for example because the disk is full.
    Unwritable(Error),
}

impl From<NotCopied> for Error {
    fn from(not: NotCopied) -> Error {
        let (NotCopied::Unreadable(why) | NotCopied::Unwritable(why)) = not;
        why
    }
}

/// Copies the written ranges of a strip, durably. Holes stay holes.
pub(crate) fn copy_strip(
    (from, strip): (&dyn Store, Strip),
    (to, new): (&dyn Store, Strip),
    copied: Copied<'_>,
) -> std::result::Result<(), NotCopied> {
    use NotCopied::{Unreadable, Unwritable};
    let StripFacts { generation, layout, .. } = facts_of(from, strip).map_err(Unreadable)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    let write = |at, bytes: &[u8]| {
        let write = Write { strip: new, generation, layout, at, may_create: true };
        to.write(&write, bytes).map_err(Unwritable)
    };
    // Also if there are no bytes, so that the strip is made.
    write(0, &[])?;
    while let Some(data) = from.next_data(strip, generation, at).map_err(Unreadable)? {
        at = data.start;
        while at < data.end {
            let n = (data.end - at).min(PIECE as u64) as usize;
            from.read(strip, generation, at, &mut piece[..n]).map_err(Unreadable)?;
            write(at, &piece[..n])?;
            at += n as u64;
            copied(n as u64).map_err(Unwritable)?;
        }
    }
    to.sync(&[new]).map(drop).map_err(Unwritable)
}

/// Marks the strips of a slot stale that `store`, its new store, lacks, if the other copy is current. Returns a line
/// for each of the others, which are lost.
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
