//! The reading end of a lane: parcels of whatever the feed says is next, several reads in flight.
//!
//! Invariant: what leaves here has been added to the sum of what was read. A file that is not what it was when it was
//! opened ends the transfer.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use thalweg_block::Block;
use thalweg_io::hidden::is_hidden;
use thalweg_io::tree::{self, Facts, What};
use thalweg_io::{File, Queue};
use thalweg_pump::{Carrier, ReadAhead, Source};
use thalweg_record::sum_at;

use crate::far::nonsense;
use crate::feed::{Feed, Found, Work};
use crate::job::BLOCK_BYTES;
use crate::message::{Message, TAIL_BYTES_MAX};
use crate::moving::{Entry, Moving, Origin};
use crate::place::Place;
use crate::shared::{OneMore, Shared, count};
use crate::{Error, Result};

/// Files of up to so many bytes travel packed. Their holes are filled: they are a few pages at most.
pub(crate) const SMALL_BYTES: u64 = 128 << 10;
/// What is told of one of a pack beside its names, and at most of all.
const TOLD_BYTES: usize = 160;
const TOLD_BYTES_MAX: usize = TAIL_BYTES_MAX - (16 << 10);
/// How often a silent stream is left to see whether somebody asked to stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A block and what it is about.
pub(crate) struct Parcel<'a> {
    pub(crate) block: Block,
    pub(crate) of: Of<'a>,
}

impl Carrier for Parcel<'_> {
    fn bytes(&self) -> u64 {
        self.block.len() as u64
    }
}

/// What a block is about.
pub(crate) enum Of<'a> {
    /// A piece of a file: from this byte on, so many.
    Piece(Arc<Moving<'a>>, u64, usize),
    /// A file of which nothing is left to be written.
    Whole(Arc<Moving<'a>>),
    /// Small files and links, behind one another.
    Pack(Vec<Packed<'a>>),
}

/// One of a pack.
pub(crate) struct Packed<'a> {
    pub(crate) place: Arc<Place<'a>>,
    pub(crate) there: OsString,
    pub(crate) facts: Facts,
    pub(crate) what: Content,
}

/// What is in it.
pub(crate) enum Content {
    /// A file's bytes, from this one of the block on, and the sum of what was read.
    Bytes(usize, u128),
    /// Where a link leads.
    Link(OsString),
}

/// A small file that was asked for.
struct Asked<'a> {
    place: Arc<Place<'a>>,
    there: OsString,
    facts: Facts,
    of: AskedFor,
}

enum AskedFor {
    File(File),
    Link(OsString),
}

/// See the head of this file.
pub(crate) struct SourceLane<'f, 'a> {
    shared: &'a Shared<'a>,
    feed: &'f Feed<'a>,
    lane: usize,
    ahead: ReadAhead<'a, Of<'a>>,
    asked: std::collections::VecDeque<Asked<'a>>,
}

impl<'f, 'a> SourceLane<'f, 'a> {
    pub(crate) fn new(
        shared: &'a Shared<'a>,
        feed: &'f Feed<'a>,
        lane: usize,
        queue: Box<dyn Queue>,
    ) -> SourceLane<'f, 'a> {
        let ahead = ReadAhead::new(queue, &shared.pool, &shared.meters);
        SourceLane { shared, feed, lane, ahead, asked: Default::default() }
    }

    /// Begins as much as there is room for.
    fn read_ahead(&mut self) -> Result<()> {
        // Under a limit nothing is gained by reading ahead, and what was read would wait for what may not be read yet.
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

    fn piece(&mut self, mut block: Block, moving: Arc<Moving<'a>>, at: u64, len: usize) -> Result<()> {
        self.shared.pass(len as u64);
        match &moving.origin {
            Origin::File(file) => {
                let file = file.clone();
                self.ahead.read(block, &file, at, len, Of::Piece(moving, at, len));
            }
            Origin::Noise | Origin::Far(_) => {
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

    /// Fills a block from a stream, and says how much came before it ended. What stands at its beginning is a file, and
    /// is read at its offsets.
    fn fill(&self, file: &File, at: u64, block: &mut Block) -> Result<usize> {
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

    fn look_at_all(&mut self, place: &Arc<Place<'a>>, mut found: Vec<Found>) -> Result<()> {
        if self.shared.far.is_some() {
            // The other end would take them for its own.
            found.retain(|found| !self.passes_over_hidden(place, found));
        }
        let mut there = Vec::new();
        if let (Some(far), true) = (&self.shared.far, self.shared.resume) {
            let names = found.iter().map(|found| found.there.clone()).collect();
            far.ask(&Message::Ask(place.number(), names), |answer| {
                match answer {
                    Message::There(known) if known.len() == found.len() => there = known,
                    _ => return Err(nonsense("the other end")),
                }
                Ok(false)
            })?;
        }
        let mut there = there.into_iter();
        found.into_iter().try_for_each(|found| self.look_at(place, found, there.next().flatten()))
    }

    /// Whether it is what a transfer or a sort left, or makes; then a line says so.
    fn passes_over_hidden(&self, place: &Place<'a>, found: &Found) -> bool {
        let is_hidden = is_hidden(found.name.as_bytes());
        if is_hidden {
            let path = place.source().path().join(&found.name);
            let line = format!("{} is what another run left, or is writing; passed over", path.display());
            self.shared.watch.note(&line);
        }
        is_hidden
    }

    /// Sees what a name stands for, and sends it its way. Of a file that another process has, the length and time.
    fn look_at(&mut self, place: &Arc<Place<'a>>, found: Found, far: Option<(u64, i128)>) -> Result<()> {
        let Found { name, there, what } = found;
        let source = place.source();
        let what = match what {
            Some(what) => what,
            None => source.facts(&name)?.what,
        };
        match what {
            What::Directory => return self.feed.directory(place.below(name)?),
            What::File => return self.look_at_file(place, name, there, far),
            What::Link => {}
            What::Special => {
                let (path, is_root) = (source.path().join(&name), place.facts().is_none());
                if is_root {
                    return Err(crate::feed::refuse_special(&path));
                }
                self.shared
                    .watch
                    .note(&format!("{} is a pipe, a socket or a device; passed over", path.display()));
                count(&self.shared.counts.special, 1);
                return Ok(());
            }
        }
        let (facts, to) = (source.facts(&name)?, source.read_link(&name)?);
        let of = AskedFor::Link(to);
        self.asked.push_back(Asked { place: Arc::clone(place), there, facts, of });
        Ok(())
    }

    fn look_at_file(
        &mut self,
        place: &Arc<Place<'a>>,
        name: OsString,
        there: OsString,
        far: Option<(u64, i128)>,
    ) -> Result<()> {
        let file = place.source().open_file(&self.shared.io, &name, false)?;
        let facts = Facts::of(&file)?;
        if facts.what != What::File {
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
            // Opened again when its turn comes: many may wait.
            self.feed.large(Entry { place, name, there });
            return Ok(());
        }
        if facts.len > 0 {
            tree::read_soon(&file);
        }
        self.asked.push_back(Asked { place, there, facts, of: AskedFor::File(file) });
        Ok(())
    }

    /// Whether the file has come, or will come, under another name of the same tree, of which this will be one more.
    fn has_first_name(&self, place: &Place<'a>, there: &OsString, facts: &Facts) -> Result<bool> {
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

    /// Reads small files that were asked for into one block, as many as it holds.
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

    fn read_small(&self, file: &File, facts: &Facts, bytes: &mut [u8]) -> Result<u128> {
        self.shared.goes_on()?;
        let read = self.shared.meters.stage.for_read(|| file.read_at(0, bytes))?;
        if read < bytes.len() || !Facts::of(file)?.is_same(facts) {
            return Err(Error::Changed(file.path().to_path_buf()));
        }
        self.shared.meters.input.read(read as u64);
        count(&self.shared.counts.reads, 1);
        count(&self.shared.counts.packed_bytes, read as u64);
        Ok(if self.shared.hashing { sum_at(0, bytes) } else { 0 })
    }
}

/// Whether a whole file of this size and time is at the destination: its time is set last.
fn is_there(place: &Place<'_>, there: &OsString, facts: &Facts) -> Result<bool> {
    let Some(dir) = place.there()? else { return Ok(false) };
    let known = dir.facts_if_any(there)?;
    Ok(known.is_some_and(|k| (k.what, k.len, k.modified_ns) == (facts.what, facts.len, facts.modified_ns)))
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
