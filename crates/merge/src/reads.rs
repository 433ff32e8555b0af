//! Reads all inputs of one lane ahead, a few blocks of each, through one queue.
//!
//! Invariant: an input holds at most [`AHEAD`] blocks here, and one in its flow, so a pool of that size never runs
//! out. Blocks of an input come in order.
//! Non-goals: predicting which input is needed next; two blocks of each make that unnecessary.

use std::time::Duration;

use thalweg_block::{Block, Pool};
use thalweg_io::{ALIGN, InputFile, Kind, Op, Queue};
use thalweg_pump::{InputsError, Meters};

use crate::{Error, Result};

/// Blocks of each input that are read ahead.
pub const AHEAD: usize = 2;
/// How long to wait for a pipe before checking whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// The part of an input that a lane reads.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A part of a file that allows random access.
    Bytes {
        /// The file.
        file: InputFile,
        /// The first byte.
        from: u64,
        /// The end of the part.
        to: u64,
    },
    /// A stream, which is read as a whole.
    Stream(InputFile),
}

impl Piece {
    /// The file.
    pub fn file(&self) -> &InputFile {
        match self {
            Piece::Bytes { file, .. } | Piece::Stream(file) => file,
        }
    }
}

struct Input {
    piece: Piece,
    /// The offset of the next read, and the offset of the next block to return.
    ask: u64,
    give: u64,
    /// Blocks that were read.
    ready: [Option<Block>; AHEAD],
}

/// The reads of one lane.
pub struct Reads<'a> {
    queue: Box<dyn Queue>,
    pool: &'a Pool,
    meters: &'a Meters,
    /// Gets the number of bytes read. Returns false to stop the lane.
    should_continue: &'a (dyn Fn(u64) -> bool + Sync),
    inputs: Vec<Input>,
}

impl<'a> Reads<'a> {
    /// Reads `pieces` through `queue` into blocks of `pool`.
    pub fn new(
        pieces: Vec<Piece>,
        queue: Box<dyn Queue>,
        pool: &'a Pool,
        meters: &'a Meters,
        should_continue: &'a (dyn Fn(u64) -> bool + Sync),
    ) -> Reads<'a> {
        let input = |piece: Piece| {
            let from = match piece {
                Piece::Bytes { from, .. } => from / ALIGN as u64 * ALIGN as u64,
                Piece::Stream(_) => 0,
            };
            Input { piece, ask: from, give: from, ready: [const { None }; AHEAD] }
        };
        Reads { queue, pool, meters, should_continue, inputs: pieces.into_iter().map(input).collect() }
    }

    /// The number of inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The part of an input that is read.
    pub(crate) fn piece(&self, index: usize) -> &Piece {
        &self.inputs[index].piece
    }

    /// The next block of an input, with the offset of its first valid byte; `None` at the end.
    pub(crate) fn next(&mut self, index: usize) -> Result<Option<(Block, usize)>> {
        let next = match self.inputs[index].piece.clone() {
            Piece::Stream(file) => self.next_of_stream(index, &file)?.map(|block| (block, 0)),
            Piece::Bytes { file, from, to } => self.next_of_file(index, &file, to)?.map(|block| {
                let skipped = from.saturating_sub(block.offset()) as usize;
                (block, skipped)
            }),
        };
        let bytes = next.as_ref().map_or(0, |(block, skipped)| (block.len() - skipped) as u64);
        if (self.should_continue)(bytes) { Ok(next) } else { Err(Error::Stopped) }
    }

    fn next_of_file(&mut self, index: usize, file: &InputFile, to: u64) -> Result<Option<Block>> {
        let block_bytes = self.pool.block_size() as u64;
        loop {
            self.ask_ahead(index, file, to);
            let input = &mut self.inputs[index];
            if input.give >= to {
                return Ok(None);
            }
            let Some(mut block) = input.ready[slot(input.give, block_bytes)].take() else {
                self.reap()?;
                continue;
            };
            let wanted = (to - input.give).min(block_bytes) as usize;
            if block.len() < wanted {
                return Err(InputsError::Changed(file.path().display().to_string()).into());
            }
            block.set_len(wanted);
            block.set_offset(input.give);
            input.give += block_bytes;
            self.ask_ahead(index, file, to);
            return Ok(Some(block));
        }
    }

    /// Starts reads of an input while it has more data and the queue has space.
    fn ask_ahead(&mut self, index: usize, file: &InputFile, to: u64) {
        let block_bytes = self.pool.block_size() as u64;
        let Reads { queue, pool, inputs, .. } = self;
        let input = &mut inputs[index];
        while input.ask < to
            && input.ask < input.give + AHEAD as u64 * block_bytes
            && queue.in_flight() < queue.depth()
        {
            let mut block = pool.try_take().expect("the pool has room for what is read ahead");
            let len = (to - input.ask).min(block_bytes) as usize;
            block.set_len(if file.is_direct() { len.next_multiple_of(ALIGN) } else { len });
            let op =
                Op { kind: Kind::Read, file: file.handle().clone(), at: input.ask, block, tag: index as u64 };
            queue.submit(op);
            input.ask += block_bytes;
        }
    }

    /// Waits for the first read that completes.
    fn reap(&mut self) -> Result<()> {
        let queue = &mut self.queue;
        let done = self.meters.stage.for_read(|| queue.reap(true)).expect("what is waited for was asked for");
        done.result?;
        let bytes = done.block.len() as u64;
        self.meters.input.read(bytes);
        if !done.file.is_direct() {
            self.meters.cached.read(bytes);
        }
        let place = slot(done.at, self.pool.block_size() as u64);
        let before = self.inputs[done.tag as usize].ready[place].replace(done.block);
        assert!(before.is_none(), "a block is given out before the one behind all others is asked for");
        Ok(())
    }

    fn next_of_stream(&mut self, index: usize, file: &InputFile) -> Result<Option<Block>> {
        let mut block = self.pool.try_take().expect("the pool has room for what is read");
        let capacity = block.capacity();
        block.set_len(capacity);
        let at = self.inputs[index].give;
        loop {
            let read = self.meters.stage.for_read(|| file.read_some(at, &mut block, PATIENCE))?;
            match read {
                None if (self.should_continue)(0) => {}
                None => return Err(Error::Stopped),
                Some(0) => return Ok(None),
                Some(n) => {
                    self.meters.input.read(n as u64);
                    self.inputs[index].give += n as u64;
                    block.set_len(n);
                    return Ok(Some(block));
                }
            }
        }
    }
}

/// The slot of the block at this offset.
fn slot(at: u64, block_bytes: u64) -> usize {
    // Parts begin anywhere, so this is not the number of the block in the file; but neighbours never share a slot.
    (at / block_bytes) as usize % AHEAD
}
