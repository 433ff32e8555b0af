//! Sources, sinks, and the loop between them.
//!
//! Model: a [`Source`] gives blocks, a [`Sink`] takes them, and [`pump`] moves blocks from one to the other until the
//! source ends. Reading and writing overlap because a source reads ahead and a sink writes behind, each on its own
//! queue, so the loop has nothing to schedule (paper 000, figure 2: a completed read becomes a write).
//!
//! To use several cores a stream is split into *lanes*, each with its own thread: lane i of n takes blocks i, i + n,
//! i + 2n, ...
//!
//! Invariant: `finish` is called once, after the last block, and only if nothing failed. Dropping a sink without it
//! aborts.
//! Non-goals: the meaning of the bytes.

mod ends;
mod format;
mod input;
mod meter;
mod output;
mod read_ahead;
mod watch;
mod write_behind;

pub use ends::{MemorySource, NullSink};
pub use input::{Cuts, Input, InputLane, Inputs, InputsError};
pub use meter::{Meter, Meters, StageMeter};
pub use output::{FileLane, Output, Prefix, StreamLane};
pub use read_ahead::ReadAhead;
pub use watch::{Unwatched, Watch};
pub use write_behind::WriteBehind;

use thalweg_block::Block;

/// A carrier, which moves from a source to a sink: a block, or a block with a description.
pub trait Carrier {
    /// The number of bytes that it carries.
    fn bytes(&self) -> u64;
}

impl Carrier for Block {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// A source of carriers; by default of blocks.
pub trait Source<C = Block> {
    /// Its error.
    type Error;

    /// The next carrier, or `None` at the end. Blocks carry their offset in the stream.
    fn next(&mut self) -> Result<Option<C>, Self::Error>;

    /// Waits for a while where `next` would wait for other lanes, and returns whether it did.
    fn wait(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }
}

/// A sink of carriers; by default of blocks.
pub trait Sink<C = Block> {
    /// Its error.
    type Error;

    /// Takes a carrier.
    fn put(&mut self, carrier: C) -> Result<(), Self::Error>;

    /// Called from time to time while the source waits for other lanes, which may wait for this one's progress.
    fn settle(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Ends the stream; returns when everything is where it belongs.
    fn finish(&mut self) -> Result<(), Self::Error>;
}

/// Moves everything from `source` to `sink`. `on_each` gets the length of each carrier, and may stop the transfer by
/// returning an error.
pub fn pump<C, S, K, E>(
    source: &mut S,
    sink: &mut K,
    mut on_each: impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E>
where
    C: Carrier,
    S: Source<C>,
    K: Sink<C>,
    E: From<S::Error> + From<K::Error>,
{
    loop {
        while source.wait()? {
            sink.settle()?;
        }
        let Some(carrier) = source.next()? else { return Ok(sink.finish()?) };
        let bytes = carrier.bytes();
        sink.put(carrier)?;
        on_each(bytes)?;
    }
}
