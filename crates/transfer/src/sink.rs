//! The writing end of a lane: writes every parcel to its place, with several writes in flight.
//!
//! Invariant: the checksum of written data is computed from the block that is handed to the write. The lane that writes
//! the last piece of a file finishes it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::sync::Arc;

use thalweg_io::extended::Extended;
use thalweg_io::tree::{Attributes, Dir};
use thalweg_io::{File, Queue};
use thalweg_pump::{Sink, WriteBehind};
use thalweg_record::sum_at;

use crate::claim::{claim_new, give_name};
use crate::file_transfer::{FileTransfer, Goal};
use crate::left_out::End;
use crate::shared::{Shared, count};
use crate::source::{Content, Of, Packed, Parcel};
use crate::{Error, Result, hidden_names};

/// A piece that is being written.
struct Flying<'a> {
    moving: Arc<FileTransfer<'a>>,
    at: u64,
    len: u64,
    sum: u128,
}

/// The writing end of a lane; see the head of this file.
pub(crate) struct SinkLane<'a> {
    shared: &'a Shared<'a>,
    behind: WriteBehind<'a>,
    flying: HashMap<u64, Flying<'a>>,
    next_tag: u64,
}

impl<'a> SinkLane<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, queue: Box<dyn Queue>) -> SinkLane<'a> {
        SinkLane {
            shared,
            behind: WriteBehind::new(queue, &shared.meters),
            flying: HashMap::new(),
            next_tag: 0,
        }
    }

    /// Handles a completed write; with `wait`, waits for one if any is in flight.
    fn reap(&mut self, wait: bool) -> Result<bool> {
        let Some(done) = self.behind.reap(wait)? else { return Ok(false) };
        count(&self.shared.counts.writes, 1);
        let Flying { moving, at, len, sum } = self.flying.remove(&done.tag).expect("it was begun here");
        // Returned to the pool before the file is finished, which may need blocks.
        drop(done);
        if moving.was_written(at, len, sum)? {
            moving.finish()?;
        }
        Ok(true)
    }

    fn piece(&mut self, block: thalweg_block::Block, moving: Arc<FileTransfer<'a>>, at: u64) -> Result<()> {
        let len = block.len() as u64;
        let sum = if self.shared.hashing { sum_at(at, &block) } else { 0 };
        match &moving.goal {
            Goal::File { file, .. } if len > 0 => {
                if file.is_direct() {
                    count(&self.shared.counts.direct_written, len);
                }
                if self.behind.is_full() {
                    self.reap(true)?;
                }
                let tag = self.next_tag;
                self.next_tag += 1;
                self.behind.write(block, file, at, tag);
                self.flying.insert(tag, Flying { moving, at, len, sum });
                return Ok(());
            }
            Goal::Stream(file) => {
                self.shared.meters.stage.for_write(|| file.write_at(at, &block))?;
                self.shared.meters.output.wrote(len);
                count(&self.shared.counts.writes, 1);
            }
            Goal::File { .. } | Goal::Nowhere | Goal::Peer(_) => {}
        }
        drop(block);
        if moving.was_written(at, len, sum)? {
            moving.finish()?;
        }
        Ok(())
    }

    /// Creates a symbolic link, unless the run that is resumed has created it.
    fn link(&self, dir: &dyn Dir, name: &OsStr, to: &OsStr, attributes: &Attributes) -> Result<()> {
        if let Some(found) = dir.find(name)? {
            let is_same = (found.kind, found.modified_ns) == (attributes.kind, attributes.modified_ns);
            if self.shared.resume && is_same && dir.read_link(name)? == to {
                return Ok(());
            }
            dir.remove(name)?;
        }
        dir.make_link(name, to)?;
        Ok(dir.set_link_attributes(name, attributes)?)
    }

    /// Stores an entry of a pack, or lists it as left out.
    fn one_of_pack(&self, packed: Packed<'a>, block: &[u8]) -> Result<()> {
        let stored = self.store(&packed, block);
        if self.shared.left_out.or_none(End::Dest, stored)?.is_none()
            && let Content::Bytes(_, read) = packed.what
        {
            let key = packed.place.key_of(&packed.there);
            let came = self.shared.receives.then_some(read);
            self.shared.lost(&key, packed.facts.len, came, packed.facts.links);
        }
        Ok(())
    }

    fn store(&self, packed: &Packed<'a>, block: &[u8]) -> Result<()> {
        let Packed { place, there, facts, extended, what } = packed;
        let dir = place.target_for(there)?;
        match what {
            Content::Link(to) => {
                if let Some(dir) = &dir {
                    self.link(&**dir, there, to, facts)?;
                }
                count(&self.shared.counts.links, 1);
                Ok(())
            }
            Content::Bytes(from, read) => {
                let (from, read) = (*from, *read);
                let bytes = &block[from..from + facts.len as usize];
                let written = if self.shared.hashing { sum_at(0, bytes) } else { 0 };
                let key = place.key_of(there);
                let small = Small { shared: self.shared, key: &key, bytes, read, written, facts, extended };
                if let Some(dir) = &dir {
                    small.write(dir, there, place.staged)?;
                }
                self.shared.whole(&key, facts.len, (read, written), facts.links);
                Ok(())
            }
        }
    }
}

/// A small file to be written.
struct Small<'b> {
    shared: &'b Shared<'b>,
    key: &'b [u8],
    bytes: &'b [u8],
    read: u128,
    written: u128,
    facts: &'b Attributes,
    extended: &'b Extended,
}

impl Small<'_> {
    /// Writes it under its own name if the tree has a hidden one. Its time, which is set last, shows that it is
    /// complete.
    fn write(&self, dir: &Arc<dyn Dir>, name: &OsStr, staged: bool) -> Result<()> {
        let (for_now, file) = match staged {
            true => (name.to_os_string(), self.make_staged(&**dir, name)?),
            false => {
                let partial = hidden_names::partial(name);
                let file = claim_new(&*self.shared.dest, &**dir, &partial, false, Some(self.facts.user))
                    .map_err(|e| e.on_create(&**dir, name))?;
                (partial, file)
            }
        };
        let mut written = self.fill(&file);
        if written.is_ok() && !staged {
            written = give_name(&**dir, &for_now, name);
        }
        if written.is_err() {
            // If the name cannot be removed, the next run removes it.
            let _ = dir.remove(&for_now);
        }
        written
    }

    /// Creates the file, replacing one of an earlier run. No other user has access while the tree has a hidden name, so
    /// the file gets its final permissions at once.
    fn make_staged(&self, dir: &dyn Dir, name: &OsStr) -> Result<File> {
        let make = || dir.create_file(name, self.facts.mode & 0o777 | 0o200, false);
        match make() {
            Err(e) if e.source.kind() == ErrorKind::AlreadyExists => {
                dir.remove(name)?;
                Ok(make()?)
            }
            made => Ok(made?),
        }
    }

    fn fill(&self, file: &File) -> Result<()> {
        self.shared.meters.stage.for_write(|| file.write_at(0, self.bytes))?;
        self.shared.meters.output.wrote(self.bytes.len() as u64);
        count(&self.shared.counts.writes, 1);
        self.compare(file, self.written, false)?;
        if self.shared.verify {
            file.sync()?;
            self.shared.dest.drop_cache(file);
            let mut there = vec![0; self.bytes.len()];
            let read = file.read_at(0, &mut there)?;
            self.compare(file, sum_at(0, &there[..read]), true)?;
        }
        self.shared.dest.set_attributes(file, self.facts)?;
        self.shared.set_extended(self.key, file, self.extended);
        Ok(())
    }

    fn compare(&self, file: &File, written: u128, read_back: bool) -> Result<()> {
        if self.read == written {
            return Ok(());
        }
        Err(Error::Mismatch { path: file.path().to_path_buf(), read: self.read, written, read_back })
    }
}

impl<'a> Sink<Parcel<'a>> for SinkLane<'a> {
    type Error = Error;

    fn put(&mut self, parcel: Parcel<'a>) -> Result<()> {
        while self.reap(false)? {}
        let Parcel { block, of } = parcel;
        match of {
            Of::Piece(moving, at, _) => self.piece(block, moving, at),
            Of::Whole(moving) => {
                drop(block);
                moving.finish()
            }
            Of::Pack(pack) => pack.into_iter().try_for_each(|packed| {
                self.shared.goes_on()?;
                self.one_of_pack(packed, &block)
            }),
        }
    }

    fn finish(&mut self) -> Result<()> {
        while self.reap(true)? {}
        Ok(())
    }
}
