//! The parts: one file each, written by one outlet's thread, proved from the blocks that are handed to the write.
//!
//! Invariant: no part has its final name before all are complete and durable.

use std::path::{Path, PathBuf};

use thalweg_api::{PartReceipt, Proof};
use thalweg_block::{Block, Pool};
use thalweg_io::{Error as IoError, directory_of};
use thalweg_pump::{Meters, Output, Source, WriteBehind};
use thalweg_record::{Key, Layout, Prover};
use thalweg_river::{Batch, Outlet};

use crate::{Error, Result, output};

/// How much of a record is kept to compare it with the next one.
const KEEP_BYTES: usize = 4 << 10;

/// Writes what an outlet gives to its parts, of which the first is that of lane `first`. Returns false if stopped.
pub(in crate::verbs) fn drain(
    outlet: &mut Outlet,
    (parts, first): (&mut [Part], usize),
    mut writer: Writer<'_>,
    should_continue: &dyn Fn() -> bool,
) -> Result<bool> {
    loop {
        let next = outlet.next();
        // The lane that failed has recorded why.
        if !should_continue() {
            return Ok(false);
        }
        match next? {
            Some(batch) => writer.put(&mut parts[batch.head.lane as usize - first], &batch)?,
            None => return writer.finish(parts).map(|()| true),
        }
    }
}

/// A part that is being written.
pub(in crate::verbs) struct Part {
    output: Output,
    path: PathBuf,
    open: Option<Block>,
    /// Bytes handed to writes.
    written: u64,
    prover: Prover,
}

impl Part {
    /// A part in a file that exists already and is to be named `path`.
    pub(in crate::verbs) fn of(output: Output, path: PathBuf, layout: Layout, key: &Key) -> Part {
        let prover = Prover::new(layout, key.clone(), true).keeping(KEEP_BYTES);
        Part { output, path, open: None, written: 0, prover }
    }

    /// Its receipt, once it is complete.
    pub(in crate::verbs) fn receipt(&self) -> PartReceipt {
        PartReceipt {
            path: self.path.display().to_string(),
            records: self.prover.proof().records,
            file_bytes: self.written,
            checksum: self.prover.proof().checksum,
        }
    }

    /// The name that it will bear.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The proof of what was handed to writes.
    pub(in crate::verbs) fn proof(&self) -> Proof {
        Proof { unordered: 0, duplicates: 0, ..*self.prover.proof() }
    }

    pub(in crate::verbs) fn is_direct(&self) -> bool {
        self.output.file().is_direct()
    }

    /// Completes the part except for its name. Returns its temporary and its final path.
    pub(in crate::verbs) fn ready(self) -> Result<(PathBuf, PathBuf)> {
        Ok((output::ready(self.output, &self.path, self.written)?, self.path))
    }
}

/// Gives all parts, which are settled, their names; none if it is known that one of them cannot have its name. A later
/// error says which parts have theirs.
pub(in crate::verbs) fn publish(parts: &[Part]) -> Result<()> {
    for part in parts {
        part.output.check_name()?;
    }
    let partly = |part: &Part, why: IoError| {
        let named: Vec<_> = parts.iter().filter(|part| part.output.is_named()).collect();
        let (why, all) = (output::named(why, &part.path), parts.len());
        match &named[..] {
            [] => why,
            [first, ..] => {
                let last = named.last().expect("there is a first");
                Error::SomeParts {
                    why: Box::new(why),
                    first: first.path.clone(),
                    last: last.path.clone(),
                    named: named.len(),
                    all,
                }
            }
        }
    };
    for part in parts {
        part.output.rename().map_err(|why| partly(part, why))?;
    }
    let mut synced = None;
    for part in parts {
        let directory = directory_of(&part.path);
        if synced.replace(directory) != Some(directory) {
            part.output.sync_name().map_err(|why| partly(part, why))?;
        }
    }
    Ok(())
}

/// One thread's writes to its parts.
pub(in crate::verbs) struct Writer<'a> {
    behind: WriteBehind<'a>,
    pool: &'a Pool,
    meters: &'a Meters,
}

impl<'a> Writer<'a> {
    pub(in crate::verbs) fn new(behind: WriteBehind<'a>, pool: &'a Pool, meters: &'a Meters) -> Writer<'a> {
        Writer { behind, pool, meters }
    }

    /// Appends a batch to a part.
    pub(super) fn put(&mut self, part: &mut Part, batch: &Batch) -> Result<()> {
        let mut rest = batch.records();
        while !rest.is_empty() {
            let mut block = match part.open.take() {
                Some(block) => block,
                None => {
                    let mut block = self.free_block()?;
                    block.set_len(0);
                    block
                }
            };
            let at = block.len();
            let now = rest.len().min(block.capacity() - at);
            block.set_len(at + now);
            block[at..].copy_from_slice(&rest[..now]);
            rest = &rest[now..];
            if block.len() == block.capacity() {
                self.write(part, block)?;
            } else {
                part.open = Some(block);
            }
        }
        Ok(())
    }

    /// Every part has one open block, and this thread as many more as its queue is deep.
    fn free_block(&mut self) -> Result<Block> {
        while self.behind.reap(false)?.is_some() {}
        loop {
            if let Some(block) = self.pool.try_take() {
                return Ok(block);
            }
            if self.behind.reap(true)?.is_none() {
                return Ok(self.meters.stage.for_write(|| self.pool.take()));
            }
        }
    }

    fn write(&mut self, part: &mut Part, block: Block) -> Result<()> {
        if self.behind.is_full() {
            self.behind.reap(true)?;
        }
        part.prover.push(&block);
        let (at, bytes) = (part.written, block.len() as u64);
        part.written += bytes;
        self.behind.write(block, part.output.file(), at, bytes);
        Ok(())
    }

    /// Writes the open blocks, and waits until everything is durable.
    pub(super) fn finish(&mut self, parts: &mut [Part]) -> Result<()> {
        for part in &mut *parts {
            if let Some(block) = part.open.take() {
                self.write(part, block)?;
            }
        }
        while self.behind.reap(true)?.is_some() {}
        for part in parts {
            part.output.settle(part.written)?;
        }
        Ok(())
    }
}
