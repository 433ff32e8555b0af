//! What the destination has of an entry, and whether the entry therefore need not be moved.
//!
//! Model: the source asks about all names of a batch at once, only if the transfer resumes, or its choice depends on the
//! answer. Contents are compared by checksum if the destination is another process, otherwise byte by byte.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use thalweg_api::{PumpChange, PumpCompare};
use thalweg_io::extended::Extended;
use thalweg_io::tree::{Attributes, Dir, EntryKind};
use thalweg_io::{File, process};
use thalweg_record::sum_at;

use crate::blocks::BLOCK_BYTES;
use crate::choice::below;
use crate::directory::Directory;
use crate::left_out::End;
use crate::message::Message;
use crate::refused::Refused;
use crate::shared::{Shared, count};
use crate::work_queue::Found;
use crate::{Error, Result};

/// What the destination has of an entry.
#[derive(Debug, Default)]
pub(crate) struct Known {
    facts: Option<Attributes>,
    /// The checksum of the contents, if it was asked for.
    sum: Option<u128>,
}

/// What the destination has of each of these names; nothing if that does not matter.
pub(crate) fn known(shared: &Shared<'_>, place: &Directory<'_>, found: &[Found]) -> Result<Vec<Known>> {
    if !shared.resume && !shared.choice.asks() {
        return Ok(Vec::new());
    }
    let Some(far) = &shared.far else {
        // An error shows when the entry is stored.
        let Ok(Some(dir)) = place.target_for(OsStr::new("")) else { return Ok(Vec::new()) };
        let facts = |found: &Found| dir.find(&found.there).ok().flatten();
        return Ok(found.iter().map(|found| Known { facts: facts(found), sum: None }).collect());
    };
    let mut known = Vec::new();
    let names = found.iter().map(|found| found.there.clone()).collect();
    far.ask(&Message::Ask(place.number(), names), |answer| match answer {
        Message::There(there) if there.len() == found.len() => {
            known = there.into_iter().map(|facts| Known { facts, sum: None }).collect();
            Ok(false)
        }
        _ => Err(Error::protocol("the other end")),
    })?;
    if shared.choice.asked.compare == PumpCompare::Content {
        let is_as_long = |(found, known): &(&Found, &mut Known)| {
            let there = known.facts.filter(|facts| facts.kind == EntryKind::File);
            let here = || place.source().attributes_of(&found.name).ok();
            there.is_some_and(|there| {
                here().is_some_and(|here| (here.kind, here.len) == (there.kind, there.len))
            })
        };
        let mut same: Vec<_> = found.iter().zip(&mut known).filter(is_as_long).collect();
        let names: Vec<OsString> = same.iter().map(|(found, _)| found.there.clone()).collect();
        if names.is_empty() {
            return Ok(known);
        }
        far.ask(&Message::AskSums(place.number(), names), |answer| match answer {
            Message::Sums(sums) if sums.len() == same.len() => {
                same.iter_mut().zip(sums).for_each(|((_, known), sum)| known.sum = sum);
                Ok(false)
            }
            _ => Err(Error::protocol("the other end")),
        })?;
    }
    Ok(known)
}

impl Known {
    /// Whether the destination has an entry of this kind.
    pub(crate) fn is_a(&self, kind: EntryKind) -> bool {
        self.facts.is_some_and(|facts| facts.kind == kind)
    }

    fn is_newer_than(&self, facts: &Attributes) -> bool {
        let there = self.facts.filter(|there| there.kind != EntryKind::Directory);
        there.is_some_and(|there| there.modified_ns > facts.modified_ns)
    }

    /// Whether the destination has something newer, which stays if the choice says so. Counts it then.
    pub(crate) fn spares_newer(&self, shared: &Shared<'_>, facts: &Attributes) -> bool {
        let stays = shared.choice.asked.update && self.is_newer_than(facts);
        count(&shared.counts.skipped, u64::from(stays));
        stays
    }

    /// An error if the destination has a file where the source has a directory, or the other way round.
    pub(crate) fn check_in_the_way(&self, path: impl Fn() -> PathBuf, kind: EntryKind) -> Result<()> {
        let Some(there) = self.facts else { return Ok(()) };
        match (kind == EntryKind::Directory, there.kind == EntryKind::Directory) {
            (true, false) => Err(Refused::FileThere(path()).into()),
            (false, true) => Err(Refused::DirectoryThere(path()).into()),
            _ => Ok(()),
        }
    }

    fn change(&self) -> PumpChange {
        if self.facts.is_some() { PumpChange::Changed } else { PumpChange::New }
    }

    /// Whether a symbolic link need not be moved. Counts it then.
    pub(crate) fn spares_link(
        &self,
        shared: &Shared<'_>,
        place: &Directory<'_>,
        name: &OsStr,
        facts: &Attributes,
        to: &OsStr,
    ) -> bool {
        if self.spares_newer(shared, facts) {
            return true;
        }
        if !shared.choice.asked.dry_run {
            return false;
        }
        let dir = place.target_for(name).ok().flatten();
        let is_same = match dir {
            Some(dir) => dir.read_link(name).is_ok_and(|there| there == to),
            None => self
                .facts
                .is_some_and(|there| (there.kind, there.modified_ns) == (facts.kind, facts.modified_ns)),
        };
        if !is_same {
            shared.deleter.would(self.change(), &below(&place.way(), name), false);
        }
        count(&shared.counts.links, 1);
        true
    }

    /// Whether a file need not be moved. Counts it then.
    pub(crate) fn spares_file(
        &self,
        shared: &Shared<'_>,
        place: &Directory<'_>,
        name: &OsStr,
        file: &File,
        facts: &Attributes,
    ) -> Result<bool> {
        let asked = &shared.choice.asked;
        let path = || below(&place.way(), name);
        let there = self.facts.filter(|there| (there.kind, there.len) == (facts.kind, facts.len));
        let differs = there.is_some_and(|there| differ(shared, &there, facts, false));
        let is_same = match (there, asked.compare) {
            // Attributes that are set would be those of its other names, too, which may be other files at the source.
            (Some(there), _) if there.links > 1 && differ(shared, &there, facts, true) => false,
            (None, _) => false,
            (Some(_), PumpCompare::Content) => self.has_same_content(shared, place, name, file, facts)?,
            (Some(there), compare) => {
                (shared.resume || compare == PumpCompare::Time) && there.modified_ns == facts.modified_ns
            }
        };
        if !is_same {
            if asked.dry_run {
                shared.deleter.would(self.change(), &path(), false);
                count(&shared.counts.files, 1);
                count(&shared.counts.bytes, facts.len);
            }
            return Ok(asked.dry_run);
        }
        let extended =
            if asked.dry_run { Extended::default() } else { shared.extended_of(&place.key_of(name), file) };
        match &shared.far {
            _ if asked.dry_run && differs => shared.deleter.would(PumpChange::Attributes, &path(), false),
            _ if asked.dry_run => {}
            // The peer gives a file further names only if it knows that this file is the source's.
            Some(far) if differs || facts.links > 1 || !extended.is_empty() => {
                far.tell(&Message::Facts(place.number(), name.to_os_string(), *facts, extended))?;
            }
            None if differs || !extended.is_empty() || asked.compare == PumpCompare::Content => {
                set_attributes(shared, place, name, (facts, &extended))?;
            }
            _ => {}
        }
        count(&shared.counts.resumed_files, 1);
        count(&shared.counts.resumed_bytes, facts.len);
        Ok(true)
    }

    fn has_same_content(
        &self,
        shared: &Shared<'_>,
        place: &Directory<'_>,
        name: &OsStr,
        file: &File,
        facts: &Attributes,
    ) -> Result<bool> {
        if shared.far.is_some() {
            return Ok(match self.sum {
                Some(sum) => sum_of(shared, file, facts.len)? == Some(sum),
                None => false,
            });
        }
        let Some(dir) = place.target_for(name)? else { return Ok(false) };
        let Ok(there) = dir.open_file(name, false) else { return Ok(false) };
        let (mut ours, mut theirs) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        let mut at = 0;
        while at < facts.len {
            shared.goes_on()?;
            let len = file.read_at(at, &mut ours)?;
            shared.pass(len as u64);
            if len == 0 || there.read_at(at, &mut theirs).ok() != Some(len) || ours[..len] != theirs[..len] {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }
}

/// Whether attributes of a complete file are to be set. Its owner counts where it may be possible to change it; with
/// `surely`, where it is.
fn differ(shared: &Shared<'_>, there: &Attributes, facts: &Attributes, surely: bool) -> bool {
    let (is_far, is_root) = (shared.far.is_some(), process::is_root());
    let gives_user = if surely { !is_far && is_root } else { is_far || is_root };
    let user = |a: &Attributes| if gives_user { a.user } else { 0 };
    let group = |a: &Attributes| if gives_user || !surely { a.group } else { 0 };
    let attributes = |a: &Attributes| (a.mode, a.modified_ns, user(a), group(a));
    attributes(there) != attributes(facts)
}

/// The checksum of a file of this length; `None` if it is not as long.
fn sum_of(shared: &Shared<'_>, file: &File, len: u64) -> Result<Option<u128>> {
    let (mut bytes, mut at, mut sum) = (vec![0; BLOCK_BYTES], 0, 0u128);
    loop {
        shared.goes_on()?;
        let read = file.read_at(at, &mut bytes)?;
        if read == 0 {
            return Ok((at == len).then_some(sum));
        }
        shared.pass(read as u64);
        sum = sum.wrapping_add(sum_at(at, &bytes[..read]));
        at += read as u64;
    }
}

/// The checksum of a file of the destination, if it can be read.
pub(crate) fn sum_of_existing(shared: &Shared<'_>, dir: &Arc<dyn Dir>, name: &OsStr) -> Option<u128> {
    let file = dir.open_file(name, false).ok()?;
    let facts = shared.dest.attributes(&file).ok().filter(|facts| facts.kind == EntryKind::File)?;
    sum_of(shared, &file, facts.len).ok()?
}

/// Sets the attributes of a complete file of the destination.
pub(crate) fn set_attributes(
    shared: &Shared<'_>,
    place: &Directory<'_>,
    name: &OsStr,
    (facts, extended): (&Attributes, &Extended),
) -> Result<()> {
    let set = || {
        let Some(dir) = place.target_for(name)? else { return Ok(()) };
        let file = dir.open_file(name, false)?;
        shared.dest.set_attributes(&file, facts)?;
        shared.set_extended(&place.key_of(name), &file, extended);
        Ok(())
    };
    if shared.left_out.or_none(End::Dest, set())?.is_none() {
        // The file itself is counted already.
        count(&shared.counts.found, 1);
    }
    Ok(())
}
