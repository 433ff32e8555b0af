//! Brings memory into a known state before a run.
//!
//! Model: the host of a virtual machine may take back memory that was not used for some seconds, and returns it page by
//! page when it is touched. That costs as much kernel time as a whole sort. Whether a run pays for it would depend on
//! what ran before, so memory is touched before each run, of ours and of rivals.
//! Non-goals: keeping that memory, and the page cache.

use thalweg_base::clock::Stopwatch;
use thalweg_base::units::{Bytes, GIB, KIB, MIB};
use thalweg_block::Pool;
use thalweg_io::process;

use crate::{Error, Result};

const BLOCK_BYTES: u64 = 2 * MIB;
const PAGE_BYTES: usize = 4 * KIB as usize;

/// Touches this many bytes of memory, but at most half of what is available, and frees them.
pub fn touch(bytes: u64) -> Result<()> {
    let bytes = bytes.min(process::available_memory_bytes() / 2);
    let blocks = bytes.div_ceil(BLOCK_BYTES).max(1) as usize;
    let failed = |e| Error::Failed(format!("{} of memory cannot be touched: {e}", Bytes(bytes)));
    let pool = Pool::new(BLOCK_BYTES as usize, blocks).map_err(failed)?;
    let mut held = Vec::with_capacity(blocks);
    while let Some(mut block) = pool.try_take() {
        block.set_len(block.capacity());
        block.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        held.push(block);
    }
    drop((held, pool));
    // A child's peak is at least its parent's resident memory at its start: the present value, not the earlier peak.
    process::forget_peak();
    Ok(())
}

/// The cost of a first touch here and of a second one, for the report.
pub fn cost() -> Result<String> {
    let timed = || {
        let watch = Stopwatch::start();
        touch(GIB).map(|()| watch.seconds())
    };
    let (first, next) = (timed()?, timed()?);
    Ok(format!(
        "memory: a first touch of {} took {first:.2} s, the next {next:.2} s; touched before each run",
        Bytes(GIB)
    ))
}
