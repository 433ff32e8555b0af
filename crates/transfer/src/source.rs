//! The reading end of a lane: turns its work into parcels, with several reads in flight.
//!
//! Invariant: all data that leaves here was added to the checksum. A file that cannot be read, or that changed since it
//! was opened, is left out.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use thalweg_api::PumpChange;
use thalweg_block::Block;
use thalweg_io::extended::Extended;
use thalweg_io::hidden::is_hidden;
use thalweg_io::tree::{Attributes, EntryKind};
use thalweg_io::{File, InputFile, Queue};
use thalweg_pump::{Carrier, ReadAhead, Source};
use thalweg_record::sum_at;

use crate::blocks::BLOCK_BYTES;
use crate::choice::below;
use crate::directory::Directory;
use crate::file_transfer::{Entry, FileTransfer, Origin};
use crate::known::{self, Known};
use crate::left_out::{Change, End, change};
use crate::message::{Message, TAIL_BYTES_MAX};
use crate::shared::{OneMore, Shared, count};
use crate::work_queue::{Found, Work, WorkQueue};
use crate::{Error, Result};

/// Files of at most this size travel packed. Their holes are filled, which costs a few pages at most.
pub(crate) const SMALL_BYTES: u64 = 128 << 10;
/// A file with more bytes of extended attributes does not travel packed.
const SMALL_EXTENDED_BYTES: usize = 4 << 10;
/// Bytes of the description of one packed file besides its names, and the most for a pack.
const TOLD_BYTES: usize = 160;
const TOLD_BYTES_MAX: usize = TAIL_BYTES_MAX - (16 << 10);
/// How often a lane that waits for a stream checks whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A block and what it contains.
pub(crate) struct Parcel<'a> {
    pub(crate) block: Block,
    pub(crate) of: Of<'a>,
}

impl Carrier for Parcel<'_> {
    fn bytes(&self) -> u64 {
        self.block.len() as u64
    }
}

/// What a block contains.
pub(crate) enum Of<'a> {
    /// A piece of a file: its first byte and its length.
    Piece(Arc<FileTransfer<'a>>, u64, usize),
    /// Nothing: the file is complete but for its name.
    Whole(Arc<FileTransfer<'a>>),
    /// Small files and links, one after another.
    Pack(Vec<Packed<'a>>),
}

/// An entry of a pack.
pub(crate) struct Packed<'a> {
    pub(crate) place: Arc<Directory<'a>>,
    pub(crate) there: OsString,
    pub(crate) facts: Attributes,
    pub(crate) extended: Extended,
    pub(crate) what: Content,
}

/// The contents of an entry.
pub(crate) enum Content {
    /// A file: its offset in the block, and its checksum.
    Bytes(usize, u128),
    /// A symbolic link: its target.
    Link(OsString),
}

/// A small file or link that waits to be packed.
struct Asked<'a> {
    place: Arc<Directory<'a>>,
    there: OsString,
    facts: Attributes,
    extended: Extended,
    of: AskedFor,
}

enum AskedFor {
    File(File),
    Link(OsString),
}

/// The reading end of a lane; see the head of this file.
pub(crate) struct SourceLane<'f, 'a> {
    shared: &'a Shared<'a>,
    feed: &'f WorkQueue<'a>,
    lane: usize,
    ahead: ReadAhead<'a, Of<'a>>,
    asked: std::collections::VecDeque<Asked<'a>>,
}

impl<'f, 'a> SourceLane<'f, 'a> {
    pub(crate) fn new(
        shared: &'a Shared<'a>,
        feed: &'f WorkQueue<'a>,
        lane: usize,
        queue: Box<dyn Queue>,
    ) -> SourceLane<'f, 'a> {
        let ahead = ReadAhead::new(queue, &shared.pool, &shared.meters);
        SourceLane { shared, feed, lane, ahead, asked: Default::default() }
    }

    /// Takes work while there are free blocks.
    fn read_ahead(&mut self) -> Result<()> {
        // With a rate limit there is no gain in reading ahead, and the data would wait in memory.
        while self.shared.limit.is_none() || self.ahead.pending() == 0 {
            let Some(block) = self.ahead.room() else { return Ok(()) };
            if !self.asked.is_empty() {
                self.pack(block)?;
                continue;
            }
            match self.feed.next(self.lane, self.ahead.pending() == 0)? {
                None => return Ok(()),
                Some(Work::Piece(moving, at, len)) => self.piece(block, moving, at, len)?,
                Some(Work::Whole(moving)) => self.ahead.ready(block, Of::Whole(moving)),
                Some(Work::Names(place, found)) => {
                    let looked = self.look_at_all(&place, found);
                    drop(place);
                    self.feed.looked();
                    looked?;
                }
            }
        }
        Ok(())
    }

    fn piece(&mut self, mut block: Block, moving: Arc<FileTransfer<'a>>, at: u64, len: usize) -> Result<()> {
        self.shared.pass(len as u64);
        match &moving.origin {
            Origin::File(file) => {
                let file = file.clone();
                self.ahead.read(block, &file, at, len, Of::Piece(moving, at, len));
            }
            Origin::Noise | Origin::Peer(_) => {
                block.set_len(len);
                self.ahead.ready(block, Of::Piece(moving, at, len));
            }
            Origin::Zeros => {
                block.set_len(len);
                block.fill(0);
                self.ahead.ready(block, Of::Piece(moving, at, len));
            }
            Origin::Stream(file) => {
                let read = self.fill(file, at, &mut block)?;
                if read < BLOCK_BYTES {
                    self.feed.ended();
                }
                self.ahead.ready(block, Of::Piece(moving, at, len));
            }
        }
        Ok(())
    }

    /// Fills a block from a stream; returns fewer bytes only at the end.
    fn fill(&self, file: &InputFile, at: u64, block: &mut Block) -> Result<usize> {
        block.set_len(BLOCK_BYTES);
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            self.shared.goes_on()?;
            let stage = &self.shared.meters.stage;
            match stage.for_read(|| file.read_some(at + filled as u64, &mut block[filled..], LOOK_UP))? {
                Some(0) => break,
                Some(n) => {
                    filled += n;
                    count(&self.shared.counts.reads, 1);
                    self.shared.meters.input.read(n as u64);
                }
                None => {}
            }
        }
        block.set_len(filled);
        Ok(filled)
    }

    fn look_at_all(&mut self, place: &Arc<Directory<'a>>, mut found: Vec<Found>) -> Result<()> {
        let shared = self.shared;
        if shared.far.is_some() {
            // The peer would mistake them for its own.
            found.retain(|found| !self.passes_over_hidden(place, found));
        }
        found.retain(|found| !shared.own_hidden.contains(&found.name));
        if place.facts().is_some() && (!shared.choice.rules.is_empty() || shared.choice.listed.is_some()) {
            let way = place.way();
            found.retain_mut(|found| !self.is_excluded(place, &way, found));
        }
        found.iter().for_each(|found| self.note_those_behind(place, &found.name));
        count(&shared.counts.found, found.len() as u64);
        let names = || found.iter().map(|found| found.there.clone()).collect();
        if let (Some(far), true, true) = (&shared.far, shared.choice.asked.delete, place.facts().is_some()) {
            far.tell(&Message::Names(place.number(), names()))?;
        }
        let mut known = known::known(shared, place, &found)?.into_iter();
        found.into_iter().try_for_each(|found| {
            let looked = self.look_at(place, found, known.next().unwrap_or_default());
            shared.left_out.or_none(End::Source, looked).map(|_| ())
        })
    }

    /// Names what is not moved because another source has something else under its name.
    fn note_those_behind(&self, place: &Directory<'a>, name: &OsStr) {
        let shared = self.shared;
        // What cannot be looked at is listed when it is opened.
        for path in place.source().behind(name).unwrap_or_default() {
            count(&shared.counts.found, 1);
            count(&shared.counts.skipped, 1);
            let line = format!("{} is not copied: another source has that name", path.display());
            shared.watch.note(&line);
        }
    }

    /// Whether rules exclude an entry. Its kind is found out if the directory does not say.
    fn is_excluded(&self, place: &Directory<'a>, way: &[u8], found: &mut Found) -> bool {
        if found.kind.is_none() {
            // What cannot be looked at is listed as left out.
            found.kind = place.source().attributes_of(&found.name).ok().map(|facts| facts.kind);
        }
        if let Some(listed) = &self.shared.choice.listed
            && !listed.has(&place.own_way().join(&found.name))
        {
            return true;
        }
        let is_excluded = found.kind.is_some_and(|kind| self.shared.hides(&below(way, &found.name), kind));
        count(&self.shared.counts.excluded, u64::from(is_excluded));
        is_excluded
    }

    /// Whether this is a hidden file of a transfer or a sort; if so, notes that it is skipped.
    fn passes_over_hidden(&self, place: &Directory<'a>, found: &Found) -> bool {
        let is_hidden = is_hidden(found.name.as_bytes());
        if is_hidden {
            let path = place.source().path().join(&found.name);
            let line = format!("{} is what another run left, or is writing; passed over", path.display());
            self.shared.watch.note(&line);
        }
        is_hidden
    }

    /// Finds out what a name refers to, and queues it, unless what the destination has of it shows that it need not be
    /// moved.
    fn look_at(&mut self, place: &Arc<Directory<'a>>, found: Found, known: Known) -> Result<()> {
        let Found { name, there, kind } = found;
        let (shared, source) = (self.shared, place.source());
        let kind = match kind {
            Some(kind) => kind,
            None => source.attributes_of(&name)?.kind,
        };
        if kind == EntryKind::Special {
            let path = source.path().join(&name);
            if place.facts().is_none() {
                return Err(crate::work_queue::refuse_special(&path));
            }
            shared.watch.note(&format!("{} is a pipe, a socket or a device; passed over", path.display()));
            count(&shared.counts.special, 1);
            return Ok(());
        }
        if shared.choice.asked.existing && !known.is_a(kind) {
            count(&shared.counts.skipped, 1);
            return Ok(());
        }
        if shared.choice.asked.dry_run {
            let written = known.check_in_the_way(|| place.path_there(&there), kind);
            if shared.left_out.or_none(End::Dest, written)?.is_none() {
                return Ok(());
            }
        }
        match kind {
            EntryKind::Directory => {
                if !known.is_a(kind) {
                    shared.deleter.would(PumpChange::New, &below(&place.way(), &there), true);
                }
                self.feed.directory(place.below(name)?)
            }
            EntryKind::File => self.look_at_file(place, name, there, &known),
            _ => {
                let (facts, to) = (source.attributes_of(&name)?, source.read_link(&name)?);
                if known.spares_link(shared, place, &there, &facts, &to) {
                    return Ok(());
                }
                self.asked.push_back(Asked {
                    place: Arc::clone(place),
                    there,
                    facts,
                    extended: Extended::default(),
                    of: AskedFor::Link(to),
                });
                Ok(())
            }
        }
    }

    fn look_at_file(
        &mut self,
        place: &Arc<Directory<'a>>,
        name: OsString,
        there: OsString,
        known: &Known,
    ) -> Result<()> {
        let file = place.source().open_file(&name, false)?;
        let facts = self.shared.source.attributes(&file)?;
        if facts.kind != EntryKind::File {
            return Err(Error::Changed(file.path().to_path_buf()));
        }
        // What stays is not a name of the file that others become names of.
        if known.spares_newer(self.shared, &facts) {
            return Ok(());
        }
        let is_dry = self.shared.choice.asked.dry_run;
        if facts.links > 1 && !is_dry && self.has_first_name(place, &there, &facts)? {
            return Ok(());
        }
        if known.spares_file(self.shared, place, &there, &file, &facts)? {
            return Ok(());
        }
        let place = Arc::clone(place);
        let is_small = facts.len <= SMALL_BYTES && !self.shared.one_file;
        let extended = is_small.then(|| self.shared.extended_of(&place.key_of(&there), &file));
        let Some(extended) = extended.filter(|extended| extended.bytes() <= SMALL_EXTENDED_BYTES) else {
            // Opened again when its turn comes, because many files may wait.
            self.feed.large(Entry { place, name, there });
            return Ok(());
        };
        if facts.len > 0 {
            self.shared.source.read_soon(&file);
        }
        self.asked.push_back(Asked { place, there, facts, extended, of: AskedFor::File(file) });
        Ok(())
    }

    /// Whether the file is moved under another name of the same tree; if so, this one is recorded as a further name.
    fn has_first_name(&self, place: &Directory<'a>, there: &OsString, facts: &Attributes) -> Result<bool> {
        let Some(own) = place.facts() else { return Ok(false) };
        if !place.is_kept() {
            return Ok(false);
        }
        let mut links = self.shared.links.lock().expect("no lane panics");
        let file = (place.top.0, facts.device, facts.inode);
        let (name, _) = links.name(place.own_way(), there.clone());
        let Some(first) = links.first.get(&file).cloned() else {
            links.first.insert(file, name);
            return Ok(false);
        };
        links.more.push(OneMore { name, facts: own, first, top: place.top.0 });
        Ok(true)
    }

    /// Fills a block with as many of the waiting small files as fit.
    fn pack(&mut self, mut block: Block) -> Result<()> {
        let mut pack = Vec::new();
        let mut filled = 0;
        block.set_len(BLOCK_BYTES);
        let mut told = 0;
        while let Some(Asked { facts, there, extended, of, .. }) = self.asked.front() {
            let front_bytes = TOLD_BYTES
                + there.len()
                + extended_bytes(extended)
                + match of {
                    AskedFor::File(_) => 0,
                    AskedFor::Link(to) => to.len(),
                };
            told += front_bytes;
            if filled + facts.len as usize > BLOCK_BYTES || (!pack.is_empty() && told > TOLD_BYTES_MAX) {
                break;
            }
            let Asked { place, there, facts, extended, of } =
                self.asked.pop_front().expect("there is a front");
            let what = match of {
                AskedFor::Link(to) => Content::Link(to),
                AskedFor::File(file) => {
                    let bytes = &mut block[filled..filled + facts.len as usize];
                    let read = self.read_small(&file, &facts, bytes);
                    match self.shared.left_out.or_none(End::Source, read)? {
                        Some(sum) => Content::Bytes(filled, sum),
                        None => {
                            self.shared.lost(&place.key_of(&there), facts.len, None, facts.links);
                            continue;
                        }
                    }
                }
            };
            if let Content::Bytes(..) = what {
                filled += facts.len as usize;
            }
            pack.push(Packed { place, there, facts, extended, what });
        }
        if pack.is_empty() {
            return Ok(());
        }
        block.set_len(filled);
        self.shared.pass(filled as u64);
        self.ahead.ready(block, Of::Pack(pack));
        Ok(())
    }

    fn read_small(&self, file: &File, facts: &Attributes, bytes: &mut [u8]) -> Result<u128> {
        self.shared.goes_on()?;
        let read = self.shared.meters.stage.for_read(|| file.read_at(0, bytes))?;
        let is_same = read == bytes.len()
            && match change(facts, &self.shared.source.attributes(file)?, self.shared.strict) {
                Change::None => true,
                Change::Perhaps => {
                    let mut again = vec![0; bytes.len()];
                    file.read_at(0, &mut again)? == bytes.len() && again == bytes
                }
                Change::Certain => false,
            };
        if !is_same {
            return Err(Error::Changed(file.path().to_path_buf()));
        }
        self.shared.meters.input.read(read as u64);
        count(&self.shared.counts.reads, 1);
        count(&self.shared.counts.packed_bytes, read as u64);
        Ok(if self.shared.hashing { sum_at(0, bytes) } else { 0 })
    }
}

/// Bytes of the description of these attributes.
fn extended_bytes(extended: &Extended) -> usize {
    extended.bytes() + 2 * size_of::<u64>() * extended.all().len()
}

impl<'a> Source<Parcel<'a>> for SourceLane<'_, 'a> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Parcel<'a>>> {
        loop {
            self.read_ahead()?;
            let Some((block, of, read)) = self.ahead.next_read() else { return Ok(None) };
            let Of::Piece(moving, at, len) = of else { return Ok(Some(Parcel { block, of })) };
            if let Origin::File(file) = &moving.origin {
                let read = match read {
                    Ok(()) if block.len() != len => Err(Error::Changed(moving.name())),
                    read => read.map_err(Error::from),
                };
                if let Err(why) = read {
                    moving.give_up(End::Source, why)?;
                    if moving.let_go() {
                        return Ok(Some(Parcel { block, of: Of::Whole(moving) }));
                    }
                    continue;
                }
                count(&self.shared.counts.reads, 1);
                if file.is_direct() {
                    count(&self.shared.counts.direct_read, block.len() as u64);
                }
            }
            moving.was_read(at, &block);
            return Ok(Some(Parcel { block, of: Of::Piece(moving, at, len) }));
        }
    }
}
