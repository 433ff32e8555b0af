//! Adds and replaces stores, while no other client has the volume open.
//!
//! Invariant: a slot is given another store only when that has, durably, what the old one had, and what it lacks is
//! noted. If a step before that fails, the new store is removed, and the volume is as it was.
//! Invariant: on one machine, the manager moves with the store in whose directory it lies. The registry names the old
//! one until its copy is durable.
//! Non-goals: rebuilding what a store lacks; see repair.rs.

use std::path::Path;
use std::sync::Arc;

use thalweg_api::VolumeWork;

use crate::alone::{Alone, OpenAlone, UNFINISHED, unfinished};
use crate::layout::{COPIES_MAX, Policy};
use crate::location::Location;
use crate::manager::{Change, ROOT};
use crate::registry::Registry;
use crate::repair::NotCopied;
use crate::store::Store;
use crate::{Error, Result, check, cluster, repair, volumes};

/// Adds a store in this place, for files that are created from now on.
pub fn add_store(registry: &Registry, name: &str, place: &Path) -> Result<()> {
    let open = volumes::open_alone(registry, name, VolumeWork::AddStore)?;
    let slot = open.entry.stores.len() as u32;
    let directory = open.alone.directory(place)?;
    open.check_apart(slot, &directory)?;
    open.make(slot, &directory)?;
    open.give(registry, slot, &directory).map(drop)
}

/// Replaces the store in `old` by a new one in `new`. Copies what the old one still has; [`repair`](crate::repair())
/// rebuilds the rest from second copies. Returns a line for each thing that is lost.
pub fn replace(registry: &Registry, name: &str, old: &Path, new: &Path) -> Result<Vec<String>> {
    replace_unless(registry, name, (old, new), &|| false)
}

/// Does what [`replace`] does; but if `is_stopped` says so in the middle, everything is as it was, and that is an error.
pub fn replace_unless(
    registry: &Registry,
    name: &str,
    (old, new): (&Path, &Path),
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<String>> {
    let open = volumes::open_alone(registry, name, VolumeWork::Replace)?;
    let (old, new) = (open.alone.directory(old)?, open.alone.directory(new)?);
    let Some(slot) = open.entry.stores.iter().position(|directory| *directory == old) else {
        return Err(Error::Refused(format!(
            "{old} is no store of volume {name}; thalweg volume status {name} shows them"
        )));
    };
    let slot = slot as u32;
    open.check_apart(slot, &new)?;
    let store = open.make(slot, &new)?;
    let moved = open.move_store(slot, &*store, is_stopped);
    let (mut told, moved) = moved.or_else(|why| open.gives_up(slot, &new, why))?;
    let manager = &open.entry.manager;
    if open.entry.cluster.is_some() && Path::new(manager).parent() == Path::new(&old).parent() {
        told.push(format!(
            "the manager of volume {name} stays in {manager}: on a cluster it cannot be moved"
        ));
    }
    let alone = open.give(registry, slot, &new)?;
    match moved {
        Moved::All => alone.remove(&old, slot)?,
        Moved::Partly => told.push(left_over(&old, &new, name)),
        // Its strips may be older than those that are lost, and better than nothing.
        Moved::Nothing if told.iter().any(|line| line.ends_with(" is lost")) && Path::new(&old).exists() => {
            told.push(left_over(&old, &new, name));
        }
        Moved::Nothing => {}
    }
    Ok(told)
}

/// That an old store stays, and how to use it.
fn left_over(old: &str, new: &str, name: &str) -> String {
    format!(
        "{old} is not removed, because parts of what is lost can be read from it; to save them, put it in the place of \
         {new} and run thalweg volume salvage {name} DIR"
    )
}

/// How much of a store has been moved.
enum Moved {
    /// All that the volume needs.
    All,
    /// All but strips that are damaged, and have no other copy.
    Partly,
    /// Nothing: the store is lost.
    Nothing,
}

impl OpenAlone {
    /// Copies a slot's strips to a new store. Returns what is lost, and how much of the old store was copied.
    fn move_store(
        &self,
        slot: u32,
        to: &dyn Store,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<String>, Moved)> {
        let mut told = Vec::new();
        let goes_on = |_| match is_stopped() {
            true => Err(Error::Refused("stopped; the old store stays in use".into())),
            false => Ok(()),
        };
        let from = self.volume.stores.slots()[slot as usize].as_ref();
        let there = from.map_err(String::clone).and_then(|from| from.list().map_err(|why| why.to_string()));
        for strip in there.iter().flatten().copied() {
            let from = from.expect("a store that has listed its strips");
            goes_on(0)?;
            match repair::copy_strip((&**from, strip), (to, strip), &goes_on) {
                Ok(()) => {}
                Err(NotCopied::Unreadable(why)) => {
                    let made = to.facts(strip)?.map_or(0, |facts| facts.generation);
                    to.remove(strip, made + 1)?;
                    told.push(why.to_string());
                }
                // The old store still has the strip, and stays.
                Err(NotCopied::Unwritable(why)) => return Err(why),
            }
        }
        goes_on(0)?;
        let lost = repair::note_missing(&self.volume, slot, to)?;
        let moved = match there {
            Err(_) => Moved::Nothing,
            Ok(_) if told.is_empty() || lost.is_empty() => Moved::All,
            Ok(_) => Moved::Partly,
        };
        told.extend(lost);
        Ok((told, moved))
    }

    /// Gives a slot its new store, which is removed if that fails.
    fn give(self, registry: &Registry, slot: u32, directory: &str) -> Result<Box<dyn Alone>> {
        let OpenAlone { volume, mut entry, alone } = self;
        if let Err(why) = alone.give(volume, slot, directory) {
            // The first error is returned; if this fails too, the files that are left explain themselves.
            let _ = alone.remove(directory, slot);
            return Err(why);
        }
        let before = entry.stores.get(slot as usize).cloned();
        let moved = before.map_or(Ok(None), |before| alone.copy_manager(&before, directory))?;
        match entry.stores.get_mut(slot as usize) {
            Some(before) => *before = directory.into(),
            None => entry.stores.push(directory.into()),
        }
        let has_moved = moved.is_some();
        entry.manager = moved.unwrap_or(entry.manager);
        registry.update(&entry)?;
        if has_moved {
            alone.remove_manager()?;
        }
        Ok(alone)
    }

    fn gives_up<T>(&self, slot: u32, directory: &str, why: Error) -> Result<T> {
        // The first error is returned; what is left now, the next attempt removes.
        if self.alone.remove(directory, slot).is_ok() {
            let _ = self.note_unfinished(None);
        }
        Err(why)
    }

    /// Makes a store for a slot, and notes that it is unfinished. First removes one that an attempt has left which was
    /// killed.
    fn make(&self, slot: u32, directory: &str) -> Result<Arc<dyn Store>> {
        if let Some((slot, left)) = unfinished(&self.volume.attributes_of(ROOT)?) {
            if !self.entry.stores.contains(&left) {
                // It may be gone, or never have been made.
                let _ = self.alone.remove(&left, slot);
            }
            self.note_unfinished(None)?;
        }
        let store = self.alone.make(directory, slot)?;
        match self.note_unfinished(Some((slot, directory))) {
            Ok(()) => Ok(store),
            Err(why) => self.gives_up(slot, directory, why),
        }
    }

    fn note_unfinished(&self, store: Option<(u32, &str)>) -> Result<()> {
        let value = store.map(|(slot, directory)| format!("{slot} {directory}").into_bytes());
        self.volume.manager.change(&Change::SetAttribute(ROOT, UNFINISHED.into(), value))?;
        self.volume.manager.sync()
    }

    /// An error if two copies of a strip would then be on one node, and some file or directory has two copies.
    fn check_apart(&self, slot: u32, directory: &str) -> Result<()> {
        if self.entry.cluster.is_none() {
            return Ok(());
        }
        let mut copies = check::root_policy(&self.volume)?.copies;
        check::walk(&self.volume, |_, inode| {
            let here = inode.policy.map(|policy| policy.copies).max(inode.layout.map(|layout| layout.copies));
            copies = copies.max(here.unwrap_or(0)).min(COPIES_MAX);
        })?;
        let slots = self.entry.stores.iter().map(|store| Location::needed(store));
        let mut slots = slots.collect::<Result<Vec<_>>>()?;
        match slots.get_mut(slot as usize) {
            Some(before) => *before = Location::needed(directory)?,
            None => slots.push(Location::needed(directory)?),
        }
        cluster::check_apart(&slots, &Policy { copies, ..Policy::default() })
            .map_err(|_| Error::Refused(format!("with two copies, a store in {directory} would be beside one of the same node; choose another node")))
    }
}
