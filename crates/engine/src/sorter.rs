//! Sorting inside a program: a sink that becomes a source.
//!
//! Invariant: what comes out is what went in, in order; the end of the output is only reached when that was
//! proved.
//! Non-goals: files at either end, which are the verb `sort`, and resuming an earlier sort.

use std::sync::Arc;
use std::time::Duration;

use thalweg_api::Receipt;
use thalweg_base::units::MIB;
use thalweg_block::Block;
use thalweg_io::FileSystem;
use thalweg_pump::{Sink, Source};
use thalweg_sort::{Expected, Sort, SorterOutput};

use crate::verbs::{MEMORY_BYTES_MIN, scratch_directories, scratch_limit};
use crate::{Error, Needs, Result, SorterOptions, TooLittleMemory, machine};

/// The most memory of a sorter if none is given: a program needs memory for other things too.
const MEMORY_BYTES_USUAL: u64 = 1024 * MIB;

/// Sorts records that a program has, of any number, in the memory it is given: a [`Sink`] that becomes a
/// [`Source`].
///
/// Records are put as blocks, without a copy if they are blocks of the sorter's own, or as bytes in pieces
/// of any length. When memory is full, sorting begins on threads of its own, and what does not fit goes to
/// scratch. [`Sorter::sorted`] ends the input and gives the [`Sorted`] stream.
///
/// ```
/// use thalweg_engine::{KeyPart, Layout, Sink, Sorter, SorterOptions, Source};
///
/// # fn main() -> thalweg_engine::Result<()> {
/// let mut sorter = Sorter::new(&SorterOptions {
///     layout: Layout::Fixed(16),
///     keys: vec![KeyPart { offset: 0, length: 8, descending: false }],
///     memory: Some(thalweg_engine::Size::Bytes(64 << 20)),
///     ..SorterOptions::default()
/// })?;
///
/// // A hundred thousand records: eight bytes of key, eight that say where it stood.
/// let record = |i: u64| (u128::from(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(i)).to_be_bytes();
/// let mut records = (0..100_000).map(record);
///
/// // Bytes may come in pieces of any length ...
/// for record in records.by_ref().take(1000) {
///     sorter.put_bytes(&record)?;
/// }
/// // ... and blocks of the sorter's own are not copied.
/// loop {
///     let mut block = sorter.block()?;
///     let room = block.capacity() / 16;
///     let mut len = 0;
///     for record in records.by_ref().take(room) {
///         block.whole_mut()[len..len + 16].copy_from_slice(&record);
///         len += 16;
///     }
///     if len == 0 {
///         break;
///     }
///     block.set_len(len);
///     sorter.put(block)?;
/// }
///
/// let mut sorted = sorter.sorted()?;
/// let (mut last, mut bytes) = ([0; 16], 0);
/// while let Some(block) = sorted.next()? {
///     assert_eq!(block.offset(), bytes);
///     for record in block.chunks_exact(16) {
///         assert!(last[..] <= *record);
///         last.copy_from_slice(record);
///     }
///     bytes += block.len() as u64;
/// }
/// let receipt = sorted.receipt()?;
/// assert!(receipt.holds && receipt.output.records == 100_000 && bytes == 1_600_000);
/// # Ok(())
/// # }
/// ```
///
/// # Memory
/// [`SorterOptions::memory`] is for the sorter alone, give or take the larger of 5 % and 2 MiB, whatever else
/// the program holds. That includes blocks of the sorter's in the program's hands, which may be
/// [`BLOCKS_HELD_MAX`](Sorter::BLOCKS_HELD_MAX) at once. Blocks that wait to be sorted belong to the
/// same memory: [`Sorter::block`] and [`Sorter::put_bytes`] wait while there is no free one.
///
/// # Ends
/// The next call returns an error of the engine, in the terms of the command: `--memory` in it is
/// [`SorterOptions::memory`], and so on. Dropping the sorter, or what it became, at any moment
/// stops the sort, waits for its threads (some milliseconds), removes its scratch and gives its memory back.
pub struct Sorter {
    inner: thalweg_sort::Sorter,
    io: Arc<dyn FileSystem>,
    fallback: Option<String>,
}

impl Sorter {
    /// The most blocks of one sorter that a program may hold at once, input and output together.
    pub const BLOCKS_HELD_MAX: usize = thalweg_sort::BLOCKS_HELD_MAX;

    /// Lays out the memory. Nothing runs, and no name on any disk is made, before memory is full.
    pub fn new(options: &SorterOptions) -> Result<Sorter> {
        let (io, fallback) = machine::io(options.io)?;
        Sorter::on(options, &io, fallback)
    }

    /// Like [`Sorter::new`], with scratch on this file system.
    pub(crate) fn on(
        options: &SorterOptions,
        io: &Arc<dyn FileSystem>,
        fallback: Option<String>,
    ) -> Result<Sorter> {
        let inner = thalweg_sort::Sorter::new(resolve(options, io)?)?;
        Ok(Sorter { inner, io: Arc::clone(io), fallback })
    }

    /// Sets what is known of the records, before any are put.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.inner.expect(expected);
    }

    /// An empty block to write records into and to put. Waits for a free one if there is none; an error if
    /// the program holds [`BLOCKS_HELD_MAX`](Sorter::BLOCKS_HELD_MAX) already.
    pub fn block(&mut self) -> Result<Block> {
        Ok(self.inner.block()?)
    }

    /// Puts the next bytes of the input, a piece of any length: records may be cut anywhere. They are copied.
    ///
    /// # Panics
    /// After `finish`.
    pub fn put_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.inner.put_bytes(bytes)?)
    }

    /// Ends the input and gives the sorted stream. An error if it ended inside a record of fixed length; a
    /// last line without a newline is given one.
    pub fn sorted(self) -> Result<Sorted> {
        let inner = self.inner.sorted()?;
        Ok(Sorted { inner, io: self.io, fallback: self.fallback })
    }
}

/// `put` takes a block of records, which may be cut by its ends. Full blocks from [`Sorter::block`] are handed
/// on as they are, others are copied. `finish` ends the input, which [`Sorter::sorted`] does too.
///
/// # Panics
/// When something is put after `finish`.
impl Sink for Sorter {
    type Error = Error;

    fn put(&mut self, block: Block) -> Result<()> {
        Ok(self.inner.put(block)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.inner.finish()?)
    }
}

/// The sorted stream of a [`Sorter`]: blocks in order, their offsets rising from 0 without a hole. Records may
/// be cut by the blocks' ends.
pub struct Sorted {
    inner: SorterOutput,
    io: Arc<dyn FileSystem>,
    fallback: Option<String>,
}

impl Sorted {
    /// Waits this long at most. Returns whether `next`, or `receipt` at the end, would not wait now: for a program that
    /// does other work in between.
    pub fn wait(&self, patience: Duration) -> bool {
        self.inner.wait(patience)
    }

    /// What the sort did, when all blocks were taken: the receipt of the verb `sort`, proof included. Peak
    /// memory in it is the whole process's, and CPU time all that it has used since the sorter was made.
    pub fn receipt(&mut self) -> Result<Receipt> {
        let mut receipt = self.inner.receipt()?;
        receipt.io.fallback = self.fallback.clone().or_else(|| self.io.fallback());
        Ok(receipt)
    }
}

/// `next` gives `None` only when the proof of the output is that of the input, and an error otherwise. It also gives an
/// error while the program holds [`BLOCKS_HELD_MAX`](Sorter::BLOCKS_HELD_MAX) blocks; it can be called again when some
/// are dropped.
impl Source for Sorted {
    type Error = Error;

    fn next(&mut self) -> Result<Option<Block>> {
        Ok(self.inner.next_block()?)
    }
}

/// Resolves the options on this machine.
fn resolve(options: &SorterOptions, io: &Arc<dyn FileSystem>) -> Result<Sort> {
    let memory_bytes = match options.memory {
        Some(size) => machine::memory_bytes(size)?,
        None => machine::memory_of(None)?.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_USUAL),
    };
    if memory_bytes < MEMORY_BYTES_MIN {
        return Err(TooLittleMemory {
            given: memory_bytes,
            by: Needs::Sorter,
            needed: Some(MEMORY_BYTES_MIN),
        }
        .into());
    }
    let scratch = scratch_directories(&options.scratch, io)?;
    Ok(Sort {
        output_is_stream: true,
        keys: options.keys.clone(),
        scratch_limit: scratch_limit(options.scratch_limit, &scratch),
        lanes: machine::lanes(options.threads),
        unique: options.unique,
        hashing: !options.no_proof,
        ..Sort::new(options.layout, memory_bytes, scratch)
    })
}
