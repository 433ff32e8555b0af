//! Sources, sinks, and the loop between them.
//!
//! Model: a [`Source`] gives blocks, a [`Sink`] takes them, and [`pump`] moves blocks from one to the other until the source
//! ends. Reading and writing overlap because a source reads ahead and a sink writes behind, each on its own queue, so the
//! loop has nothing to schedule (paper 000, figure 2: a completed read becomes a write).
//!
//! To use several cores a stream is split into *lanes*, each with its own thread: lane i of n takes blocks i, i + n,
//! i + 2n, ...
//!
//! Invariant: `finish` is called once, after the last block, and only if nothing failed. Dropping a sink without it aborts.
//! Non-goals: what the bytes mean.

mod ahead;
mod behind;
mod ends;
mod input;
mod meter;
mod output;

pub use ahead::ReadAhead;
pub use behind::WriteBehind;
pub use ends::{MemorySource, NullSink};
pub use input::{Input, InputLane, Inputs, InputsError};
pub use meter::{Meter, Meters, StageMeter};
pub use output::{FileLane, Output, Prefix, StreamLane};

use thalweg_block::Block;

/// What moves from a source to a sink: a block, or a block with what it is about.
pub trait Carrier {
    /// How many bytes it carries.
    fn bytes(&self) -> u64;
}

impl Carrier for Block {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// Gives carriers, blocks if nothing else is said.
pub trait Source<C = Block> {
    /// What can go wrong.
    type Error;

    /// The next one, or `None` at the end. Blocks carry their offset in the stream.
    fn next(&mut self) -> Result<Option<C>, Self::Error>;

    /// Waits for a while where `next` would wait for other lanes, and says that it did.
    fn wait(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }
}

/// Takes carriers, blocks if nothing else is said.
pub trait Sink<C = Block> {
    /// What can go wrong.
    type Error;

    /// Takes one.
    fn put(&mut self, carrier: C) -> Result<(), Self::Error>;

    /// Called now and then while its source waits for other lanes, which may wait to hear what this one has done.
    fn settle(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Says that there are no more; returns when everything is where it belongs.
    fn finish(&mut self) -> Result<(), Self::Error>;
}

/// Moves all that `source` gives to `sink`; `on_each` sees the length of each as it passes and may stop the transfer
/// by returning an error.
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
