//! What a crash interrupted is finished: files without names go, strips are cut, sizes are those that stores know, and
//! copies are made equal where one may have got a write that the other did not.
//!
//! Invariant: every step can be done again, so a crash in the middle costs nothing.
//! Invariant: a store that is lost keeps an inode unfinished; whatever the others have is used.
//! Non-goals: copies that were stale before; `repair` makes them anew.

use crate::Result;
use crate::manager::{Change, Inode, Kind, Written};
use crate::server::Server;
use crate::store::{Strip, StripFacts, Write};
use crate::stores::{Target, bit};

/// Inodes that are asked for at a time.
const PAGE: usize = 1000;
/// Bytes that are copied at a time from one copy to the other.
const PIECE: usize = 1 << 20;

/// Cuts what is to be cut, and finishes all else that is unfinished and not left to others.
pub(crate) fn recover(server: &Server, is_left: impl Fn(&Inode) -> bool) -> Result<()> {
    let mut after = 0;
    loop {
        let left = server.manager.unfinished(after, PAGE)?;
        let Some(last) = left.last() else { return Ok(()) };
        after = last.id;
        for inode in left {
            let inode = if inode.links > 0 { cut(server, inode)? } else { inode };
            if !is_left(&inode) {
                finish(server, inode)?;
            }
        }
    }
}

fn finish(server: &Server, inode: Inode) -> Result<()> {
    if inode.kind != Kind::File {
        server.manager.change(&Change::Forget(inode.id))?;
    } else if inode.links == 0 {
        server.manager.sync()?;
        forget(server, &inode)?;
    } else {
        match if inode.unsettled { settle(server, &inode).map(drop) } else { Ok(()) } {
            // It stays unsettled, and whoever reads it is told.
            Err(why) if why.is_damage() => {}
            settled => settled?,
        }
    }
    Ok(())
}

/// Removes the strips of a file, and then the file from the manager if no store is lost that may have some.
pub(crate) fn forget(server: &Server, inode: &Inode) -> Result<()> {
    let Some(layout) = inode.layout else {
        return server.manager.change(&Change::Forget(inode.id)).map(drop);
    };
    let mut all = true;
    for (index, copy) in (0..layout.width).flat_map(|index| (0..layout.copies).map(move |copy| (index, copy)))
    {
        let strip = Strip { inode: inode.id, index, copy };
        match server.stores.of(&layout, strip) {
            Ok(store) => all &= store.remove(strip).is_ok(),
            Err(_) => all = false,
        }
    }
    if all { server.manager.change(&Change::Forget(inode.id)).map(drop) } else { Ok(()) }
}

/// Cuts strips for a generation that the manager has and some store may not have.
fn cut(server: &Server, inode: Inode) -> Result<Inode> {
    let (Some(len), Some(target)) = (inode.cut, Target::of(&inode)) else { return Ok(inode) };
    match server.stores.cut(&target, len).why {
        // It is cut when the store is there again; until then it answers nothing.
        Some(_) => Ok(inode),
        None => server.manager.change(&Change::Cut(inode.id, inode.generation)),
    }
}

/// Learns from the stores which strips a file has and how long it is, makes its copies equal, and all of it durable. Whether
/// all stores could be asked: if not, the file remains unsettled.
pub(crate) fn settle(server: &Server, inode: &Inode) -> Result<bool> {
    let Some(target) = Target::of(inode) else { return Ok(true) };
    let (mut size, mut strips, mut is_whole) = (inode.size, inode.strips, true);
    for index in 0..target.layout.width {
        let copies = (0..target.layout.copies).filter(|copy| target.stale[*copy as usize] & bit(index) == 0);
        let mut found = Vec::new();
        for copy in copies {
            let strip = Strip { inode: inode.id, index, copy };
            match server.stores.of(&target.layout, strip).and_then(|store| store.facts(strip)) {
                Ok(Some(facts)) if is_outdated(inode, index, &facts) => {
                    server.stores.of(&target.layout, strip)?.remove(strip)?;
                    found.push((strip, None));
                }
                Ok(facts) => found.push((strip, facts)),
                Err(_) => is_whole = false,
            }
        }
        if inode.strips & bit(index) == 0 {
            // What was being made when the process ended may have left files.
            let unborn = found.iter().filter(|(_, facts)| facts.is_none());
            unborn
                .map(|(strip, _)| *strip)
                .try_for_each(|strip| server.stores.of(&target.layout, strip)?.remove(strip))?;
        }
        let lens = found.iter().filter_map(|(_, facts)| Some(facts.as_ref()?.len));
        let Some(len) = lens.max() else { continue };
        size = size.max(target.layout.file_len(index, len));
        strips |= bit(index);
        if let [first, second] = &found[..] {
            equalise(server, &target, first, second)?;
        }
        for (strip, _) in found {
            server.stores.of(&target.layout, strip)?.sync(strip)?;
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

/// Whether a strip was made by a write that arrived only after the file had been truncated, so that nobody waits for it.
fn is_outdated(inode: &Inode, index: u32, facts: &StripFacts) -> bool {
    inode.strips & bit(index) == 0 && inode.cut.is_none() && facts.generation < inode.generation
}

/// Makes two copies of a strip equal where they may differ: the longer one has what the other did not get.
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
    let mut range = match (&from.1, &to.1) {
        (Some(a), Some(b)) => a.unsettled.start.min(b.unsettled.start)..a.unsettled.end.max(b.unsettled.end),
        // It was not made yet.
        _ => 0..whole,
    };
    if len(&to.1) < whole {
        range = range.start.min(len(&to.1))..whole;
    }
    let (from_store, to_store) =
        (server.stores.of(&target.layout, from.0)?, server.stores.of(&target.layout, to.0)?);
    let (generation, layout) = (target.generation, target.layout);
    let mut piece = vec![0; PIECE];
    let mut at = range.start;
    loop {
        let n = range.end.min(whole).saturating_sub(at).min(PIECE as u64) as usize;
        from_store.read(from.0, generation, at, &mut piece[..n])?;
        // Also if there are no bytes, so that it is made.
        to_store.write(&Write { strip: to.0, generation, layout, at, may_create: true }, &piece[..n])?;
        at += n as u64;
        if n == 0 || at >= range.end.min(whole) {
            return Ok(());
        }
    }
}
