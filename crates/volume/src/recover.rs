//! Finishes what a crash interrupted: removes files without names, cuts strips, learns sizes from the stores, and makes
//! copies equal where one may have got a write that the other did not.
//!
//! Invariant: every step can be repeated, so a crash in the middle does no harm.
//! Invariant: a lost store leaves an inode unfinished; what the other stores have is used.
//! Non-goals: copies that were stale before; `repair` brings them up to date.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::manager::{Change, Inode, Kind, Written};
use crate::server::Server;
use crate::store::{Store, Strip, StripFacts, Write};
use crate::stores::{Target, bit};
use crate::strip::BLOCK;
use crate::{Error, Result};

/// The number of inodes in one request.
const PAGE: usize = 1000;
/// The number of bytes that are copied at a time from one copy to the other.
const PIECE: usize = 1 << 20;

/// Cuts what has to be cut, and finishes all other unfinished work that is not left to others (`is_left`). Returns
/// whether all stores needed for that answered.
pub(crate) fn recover(server: &Server, is_left: impl Fn(&Inode) -> bool) -> Result<bool> {
    let (mut after, mut is_done) = (0, true);
    loop {
        let left = server.manager.unfinished(after, PAGE)?;
        let Some(last) = left.last() else { return Ok(is_done) };
        after = last.id;
        for inode in left {
            let inode = if inode.links > 0 { cut(server, inode)? } else { inode };
            if !is_left(&inode) {
                is_done &= finish(server, inode)?;
            }
        }
    }
}

fn finish(server: &Server, inode: Inode) -> Result<bool> {
    if inode.kind != Kind::File {
        return server.manager.change(&Change::Forget(inode.id)).map(|_| true);
    }
    if inode.links == 0 {
        server.manager.sync()?;
        return forget(server, &[(inode, u64::MAX)]);
    }
    match if inode.unsettled { settle(server, inode, true) } else { Ok(true) } {
        // The file stays unsettled, and its readers get the error.
        Err(why) if why.is_damage() => Ok(true),
        settled => settled,
    }
}

/// Removes these strips of files, and then from the manager those files that cannot have strips on a lost store.
/// Returns whether these were all files.
pub(crate) fn forget(server: &Server, files: &[(Inode, u64)]) -> Result<bool> {
    let everywhere =
        |(inode, strips): &(Inode, u64)| Some((Target { stale: [0; 2], ..Target::of(inode)? }, *strips));
    let left = server.stores.remove_files(&files.iter().filter_map(everywhere).collect::<Vec<_>>());
    let gone = files.iter().map(|(inode, _)| inode.id).filter(|inode| !left.contains(inode));
    let gone: Vec<Change> = gone.map(Change::Forget).collect();
    changes_if_there(server, &gone)?;
    Ok(gone.len() == files.len())
}

/// Carries out changes of inodes. Those that other work has removed already are left out.
fn changes_if_there(server: &Server, changes: &[Change]) -> Result<()> {
    let is_gone = |why: &Error| why.is_not_found();
    match server.manager.changes(changes) {
        Err(why) if is_gone(&why) => changes.iter().try_for_each(|change| {
            server
                .manager
                .change(change)
                .map(drop)
                .or_else(|why| if is_gone(&why) { Ok(()) } else { Err(why) })
        }),
        done => done,
    }
}

/// Cuts strips for a generation that the manager has, but some store may not have.
fn cut(server: &Server, inode: Inode) -> Result<Inode> {
    let (Some(len), Some(target)) = (inode.cut, Target::of(&inode)) else { return Ok(inode) };
    match server.stores.raise(&target, u64::MAX, len).why {
        // It is cut when the store is back; until then the store answers nothing.
        Some(_) => Ok(inode),
        None => server.manager.change(&Change::Cut(inode.id, inode.generation)),
    }
}

/// Learns from the stores which strips a file has and how long it is, makes its copies equal, and all of it durable.
/// Returns whether all stores answered: if not, the file remains unsettled. If a writer ended without a report
/// (`is_orphaned`), its writes may still come, to one copy or both: a new generation begins, and stores refuse them.
pub(crate) fn settle(server: &Server, inode: Inode, is_orphaned: bool) -> Result<bool> {
    let has_copies = inode.layout.is_some_and(|layout| layout.copies > 1);
    let inode = match has_copies && is_orphaned {
        true => &server.manager.change(&Change::Raise(inode.id, 0))?,
        false => &inode,
    };
    let Some(target) = Target::of(inode) else { return Ok(true) };
    if has_copies {
        // A store that cannot be told the generation will not answer below either.
        server.stores.raise(&target, u64::MAX, inode.cut.unwrap_or(inode.size));
    }
    let (mut size, mut strips, mut is_whole) = (inode.size, inode.strips, true);
    for index in 0..target.layout.width {
        let copies = (0..target.layout.copies).filter(|copy| target.stale[*copy as usize] & bit(index) == 0);
        let mut found = Vec::new();
        for copy in copies {
            let strip = Strip { inode: inode.id, index, copy };
            match server.stores.of(&target.layout, strip).and_then(|store| store.facts(strip)) {
                Ok(Some(facts)) if is_outdated(inode, index, &facts) => {
                    server.stores.of(&target.layout, strip)?.remove(strip, inode.generation)?;
                    found.push((strip, None));
                }
                Ok(facts) => found.push((strip, facts)),
                Err(_) => is_whole = false,
            }
        }
        if inode.strips & bit(index) == 0 {
            // Files may be left of a strip that was being made when the process ended.
            let unborn = found.iter().filter(|(_, facts)| facts.is_none());
            unborn.map(|(strip, _)| *strip).try_for_each(|strip| {
                server.stores.of(&target.layout, strip)?.remove(strip, inode.generation)
            })?;
        }
        let lens = found.iter().filter_map(|(_, facts)| Some(facts.as_ref()?.len));
        let Some(len) = lens.max() else { continue };
        size = size.max(target.layout.file_len(index, len));
        strips |= bit(index);
        if let [first, second] = &found[..] {
            equalise(server, &target, first, second)?;
        }
        let sync = |strip: Strip| Ok((strip, server.stores.of(&target.layout, strip)?.sync(&[strip])?[0]));
        let synced = found.iter().map(|(strip, _)| sync(*strip)).collect::<Result<Vec<_>>>()?;
        if let [first, second] = synced[..] {
            let settle = |(strip, number): (Strip, u64)| {
                server.stores.of(&target.layout, strip)?.settle(strip, target.generation, number)
            };
            settle(first)?;
            settle(second)?;
        }
    }
    let &Inode { id, generation, modified_ns, .. } = inode;
    let written = |strips| Written { inode: id, generation, size, modified_ns, strips };
    server.manager.change(&match is_whole {
        true => Change::Settle(written(strips), false),
        false => Change::Grow(written(strips & !inode.strips)),
    })?;
    Ok(is_whole)
}

/// Makes files with one copy durable whose writers have all reported what they wrote. Returns the numbers of those that
/// now are.
pub(crate) fn settle_reported(server: &Server, inodes: &[Inode]) -> Result<BTreeSet<u64>> {
    let unsynced = |inode: &Inode| Some((Target::of(inode)?, inode.strips | inode.unsynced));
    let files: Vec<(Target, u64)> = inodes.iter().filter_map(unsynced).collect();
    let synced = server.stores.sync_files(&files).into_iter();
    let failed: BTreeSet<u64> = synced.filter(|(_, synced)| synced.is_err()).map(|(s, _)| s.inode).collect();
    let durable: Vec<&Inode> = inodes.iter().filter(|inode| !failed.contains(&inode.id)).collect();
    let settle = |inode: &&Inode| {
        let &Inode { id, generation, size, modified_ns, strips, unsynced, .. } = *inode;
        let written = Written { inode: id, generation, size, modified_ns, strips: strips | unsynced };
        Change::Settle(written, false)
    };
    changes_if_there(server, &durable.iter().map(settle).collect::<Vec<_>>())?;
    Ok(durable.iter().map(|inode| inode.id).collect())
}

/// Whether a strip was made by a write that arrived after the file had been truncated, so that no client waits for it.
fn is_outdated(inode: &Inode, index: u32, facts: &StripFacts) -> bool {
    inode.strips & bit(index) == 0 && inode.cut.is_none() && facts.generation < inode.generation
}

/// Makes two copies of a strip equal where they may differ, from the longer one, which has what the other did not get.
fn equalise(
    server: &Server,
    target: &Target,
    first: &(Strip, Option<StripFacts>),
    second: &(Strip, Option<StripFacts>),
) -> Result<()> {
    let len = |facts: &Option<StripFacts>| facts.as_ref().map_or(0, |facts| facts.len);
    let second_is_better = first.1.is_none() || len(&second.1) > len(&first.1);
    let (from, to) = if second_is_better { (second, first) } else { (first, second) };
    let whole = len(&from.1);
    let intents = [&from.1, &to.1].into_iter().flatten().flat_map(|facts| facts.unsettled.clone());
    // A copy that was not made yet lacks everything.
    let ranges = joined(intents.chain(std::iter::once(len(&to.1).min(whole)..whole)).collect());
    let from = (server.stores.of(&target.layout, from.0)?, from.0);
    let to = (server.stores.of(&target.layout, to.0)?, to.0);
    // So that the strip is made even if it has no bytes.
    write(target, to, 0, &[])?;
    copy_ranges(target, from, to, &ranges, &|_| Ok(()))
}

/// Sorts ranges, and merges those that touch or overlap.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Called after some bytes were copied. It may wait, or end the work.
pub(crate) type Copied<'a> = &'a dyn Fn(u64) -> Result<()>;

/// Copies these bytes from one copy of a strip to the other, except for what is a hole in both.
pub(crate) fn copy_ranges(
    target: &Target,
    from: (&dyn Store, Strip),
    to: (&dyn Store, Strip),
    ranges: &[Range<u64>],
    copied: Copied<'_>,
) -> Result<()> {
    let mut piece = vec![0; PIECE];
    for range in ranges {
        let mut at = range.start;
        while let Some(data) = data_of_either([from, to], target.generation, at)?
            && data.start < range.end
        {
            at = data.start;
            while at < data.end.min(range.end) {
                let n = (data.end.min(range.end) - at).min(PIECE as u64) as usize;
                from.0.read(from.1, target.generation, at, &mut piece[..n])?;
                write(target, to, at, &piece[..n])?;
                at += n as u64;
                copied(n as u64)?;
            }
        }
    }
    Ok(())
}

/// The first range at or after `at` that is not a hole in both copies of a strip. It ends with a block, and begins with
/// one, or at `at`.
pub(crate) fn data_of_either(
    copies: [(&dyn Store, Strip); 2],
    generation: u64,
    at: u64,
) -> Result<Option<Range<u64>>> {
    let [first, second] = copies.map(|(store, strip)| store.next_data(strip, generation, at));
    let found = [first?, second?].into_iter().flatten().min_by_key(|data| data.start);
    let block = BLOCK as u64;
    Ok(found.map(|data| (data.start / block * block).max(at)..data.end.next_multiple_of(block)))
}

fn write(target: &Target, (to, strip): (&dyn Store, Strip), at: u64, bytes: &[u8]) -> Result<()> {
    let (generation, layout) = (target.generation, target.layout);
    to.write(&Write { strip, generation, layout, at, may_create: true }, bytes)
}
