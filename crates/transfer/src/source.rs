//! The reading end of a lane: turns its work into parcels, with several reads in flight.
//!
//! Invariant: all data that leaves here was added to the checksum. A file that changed since it was opened ends the
//! transfer.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use thalweg_block::Block;
use thalweg_io::hidden::is_hidden;
use thalweg_io::tree::{Attributes, EntryKind};
use thalweg_io::{File, InputFile, Queue};
use thalweg_pump::{Carrier, ReadAhead, Source};
use thalweg_record::sum_at;

use crate::blocks::BLOCK_BYTES;
use crate::directory::Directory;
use crate::file_transfer::{Entry, FileTransfer, Origin};
use crate::message::{Message, TAIL_BYTES_MAX};
use crate::shared::{OneMore, Shared, count};
use crate::work_queue::{Found, Work, WorkQueue};
use crate::{Error, Result};

/// Files of at most this size travel packed. Their holes are filled, which costs a few pages at most.
pub(crate) const SMALL_BYTES: u64 = 128 << 10;
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
        if self.shared.far.is_some() {
            // The peer would mistake them for its own.
            found.retain(|found| !self.passes_over_hidden(place, found));
        }
        let mut there = Vec::new();
        if let (Some(far), true) = (&self.shared.far, self.shared.resume) {
            let names = found.iter().map(|found| found.there.clone()).collect();
            far.ask(&Message::Ask(place.number(), names), |answer| {
                match answer {
                    Message::There(known) if known.len() == found.len() => there = known,
                    _ => return Err(Error::protocol("the other end")),
                }
                Ok(false)
            })?;
        }
        let mut there = there.into_iter();
        found.into_iter().try_for_each(|found| self.look_at(place, found, there.next().flatten()))
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

    /// Finds out what a name refers to, and queues it. `far` is the length and time of the file of that name at the
    /// destination.
    fn look_at(&mut self, place: &Arc<Directory<'a>>, found: Found, far: Option<(u64, i128)>) -> Result<()> {
        let Found { name, there, kind } = found;
        let source = place.source();
        let kind = match kind {
            Some(kind) => kind,
            None => source.attributes_of(&name)?.kind,
        };
        match kind {
            EntryKind::Directory => return self.feed.directory(place.below(name)?),
            EntryKind::File => return self.look_at_file(place, name, there, far),
            EntryKind::Link => {}
            EntryKind::Special => {
                let (path, is_root) = (source.path().join(&name), place.facts().is_none());
                if is_root {
                    return Err(crate::work_queue::refuse_special(&path));
                }
                self.shared
                    .watch
                    .note(&format!("{} is a pipe, a socket or a device; passed over", path.display()));
                count(&self.shared.counts.special, 1);
                return Ok(());
            }
        }
        let (facts, to) = (source.attributes_of(&name)?, source.read_link(&name)?);
        let of = AskedFor::Link(to);
        self.asked.push_back(Asked { place: Arc::clone(place), there, facts, of });
        Ok(())
    }

    fn look_at_file(
        &mut self,
        place: &Arc<Directory<'a>>,
        name: OsString,
        there: OsString,
        far: Option<(u64, i128)>,
    ) -> Result<()> {
        let file = place.source().open_file(&name, false)?;
        let facts = self.shared.source.attributes(&file)?;
        if facts.kind != EntryKind::File {
            return Err(Error::Changed(file.path().to_path_buf()));
        }
        if facts.links > 1 && self.has_first_name(place, &there, &facts)? {
            return Ok(());
        }
        let is_far = far == Some((facts.len, facts.modified_ns));
        if self.shared.resume && (is_far || is_there(place, &there, &facts)?) {
            count(&self.shared.counts.resumed_files, 1);
            count(&self.shared.counts.resumed_bytes, facts.len);
            return Ok(());
        }
        let place = Arc::clone(place);
        if facts.len > SMALL_BYTES || self.shared.one_file {
            // Opened again when its turn comes, because many files may wait.
            self.feed.large(Entry { place, name, there });
            return Ok(());
        }
        if facts.len > 0 {
            self.shared.source.read_soon(&file);
        }
        self.asked.push_back(Asked { place, there, facts, of: AskedFor::File(file) });
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
        while let Some(Asked { facts, there, of, .. }) = self.asked.front() {
            let front_bytes = TOLD_BYTES
                + there.len()
                + match of {
                    AskedFor::File(_) => 0,
                    AskedFor::Link(to) => to.len(),
                };
            told += front_bytes;
            if filled + facts.len as usize > BLOCK_BYTES || (!pack.is_empty() && told > TOLD_BYTES_MAX) {
                break;
            }
            let Asked { place, there, facts, of } = self.asked.pop_front().expect("there is a front");
            let what = match of {
                AskedFor::Link(to) => Content::Link(to),
                AskedFor::File(file) => {
                    let bytes = &mut block[filled..filled + facts.len as usize];
                    Content::Bytes(filled, self.read_small(&file, &facts, bytes)?)
                }
            };
            if let Content::Bytes(..) = what {
                filled += facts.len as usize;
            }
            pack.push(Packed { place, there, facts, what });
        }
        block.set_len(filled);
        self.shared.pass(filled as u64);
        self.ahead.ready(block, Of::Pack(pack));
        Ok(())
    }

    fn read_small(&self, file: &File, facts: &Attributes, bytes: &mut [u8]) -> Result<u128> {
        self.shared.goes_on()?;
        let read = self.shared.meters.stage.for_read(|| file.read_at(0, bytes))?;
        if read < bytes.len() || !self.shared.source.attributes(file)?.is_same(facts) {
            return Err(Error::Changed(file.path().to_path_buf()));
        }
        self.shared.meters.input.read(read as u64);
        count(&self.shared.counts.reads, 1);
        count(&self.shared.counts.packed_bytes, read as u64);
        Ok(if self.shared.hashing { sum_at(0, bytes) } else { 0 })
    }
}

/// Whether the destination has a complete file of this length and time. The time is set last.
fn is_there(place: &Directory<'_>, there: &OsString, facts: &Attributes) -> Result<bool> {
    let Some(dir) = place.open_or_create_target()? else { return Ok(false) };
    let known = dir.find(there)?;
    Ok(known.is_some_and(|k| (k.kind, k.len, k.modified_ns) == (facts.kind, facts.len, facts.modified_ns)))
}

impl<'a> Source<Parcel<'a>> for SourceLane<'_, 'a> {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Parcel<'a>>> {
        self.read_ahead()?;
        let Some((block, of)) = self.ahead.next_block()? else { return Ok(None) };
        if let Of::Piece(moving, at, len) = &of {
            if let Origin::File(file) = &moving.origin {
                if block.len() != *len {
                    return Err(Error::Changed(moving.name()));
                }
                count(&self.shared.counts.reads, 1);
                if file.is_direct() {
                    count(&self.shared.counts.direct_read, block.len() as u64);
                }
            }
            moving.was_read(*at, &block);
        }
        Ok(Some(Parcel { block, of }))
    }
}
