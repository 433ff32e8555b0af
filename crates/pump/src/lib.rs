//! Sources, sinks, and the loop between them.
//!
//! Model: a [`Source`] gives the next block, a [`Sink`] takes one; [`pump`] moves blocks from one to
//! the other until the source has no more. Both ends overlap by themselves: a source reads ahead, a
//! sink writes behind, each on a queue of its own, so the loop has nothing to schedule (paper 000,
//! figure 2: a completed read becomes a write).
//!
//! To use several cores, a stream has several *lanes*: lane i of n takes blocks i, i + n, i + 2n, ...
//! Each lane is pumped by one thread.
//!
//! Law: `finish` is called once, after the last block and only if nothing failed; dropping a sink
//! without it aborts.
//! Non-goals: what the bytes mean.

mod ends;
mod input;
mod meter;
mod output;

pub use ends::{MemorySource, NullSink};
pub use input::{Input, InputLane, Inputs, InputsError};
pub use meter::{Meter, Meters, StageMeter};
pub use output::{FileLane, Output, Prefix, StreamLane};

use thalweg_block::Block;

/// Gives blocks.
pub trait Source {
    /// What can go wrong.
    type Error;

    /// The next block, or `None` at the end. Blocks carry their offset in the stream.
    fn next(&mut self) -> Result<Option<Block>, Self::Error>;
}

/// Takes blocks.
pub trait Sink {
    /// What can go wrong.
    type Error;

    /// Takes a block.
    fn put(&mut self, block: Block) -> Result<(), Self::Error>;

    /// Says that there are no more; returns when everything is where it belongs.
    fn finish(&mut self) -> Result<(), Self::Error>;
}

/// Moves every block from `source` to `sink`; `on_block` sees the length of each as it passes and may
/// stop the transfer by returning an error.
pub fn pump<S, K, E>(
    source: &mut S,
    sink: &mut K,
    mut on_block: impl FnMut(usize) -> Result<(), E>,
) -> Result<(), E>
where
    S: Source,
    K: Sink,
    E: From<S::Error> + From<K::Error>,
{
    while let Some(block) = source.next()? {
        let bytes = block.len();
        sink.put(block)?;
        on_block(bytes)?;
    }
    Ok(sink.finish()?)
}
