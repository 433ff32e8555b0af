//! Moves pages of ranges between memory and scratch outside the passes: to free memory for a range, and out of the
//! way of the output.
//!
//! Invariant: a moved page remains the same page of the same range.

use thalweg_block::Pool;
use thalweg_io::{Op, Queue};
use thalweg_pump::Meters;

use crate::Result;
use crate::range::{Range, RangeStore, Stored};
use crate::scratch::Scratch;

/// Spills pages that are in memory, the last of each store first, until `wanted` are free or none is left. Returns
/// the number of pages.
pub(crate) fn evict<'r>(
    stores: impl Iterator<Item = &'r mut RangeStore>,
    wanted: usize,
    scratch: &Scratch,
    meters: &Meters,
    queue: &mut dyn Queue,
) -> Result<usize> {
    assert_eq!(queue.in_flight(), 0, "an idle queue");
    let mut freed = 0;
    let finish = |queue: &mut dyn Queue| -> Result<bool> {
        let Some(done) = queue.reap(true) else { return Ok(false) };
        done.result?;
        meters.scratch.wrote(done.block.len() as u64);
        Ok(true)
    };
    for page in stores.flat_map(|store| store.pages.iter_mut().rev()) {
        if freed == wanted {
            break;
        }
        if !matches!(page, Stored::Resident(_)) {
            continue;
        }
        let Stored::Resident(block) = std::mem::replace(page, Stored::Coming) else { unreachable!() };
        let (extent, write) = scratch.write(*block, None, 0)?;
        if queue.in_flight() == queue.depth() {
            finish(queue)?;
        }
        queue.submit(write);
        *page = Stored::Spilled(extent);
        freed += 1;
    }
    while finish(queue)? {}
    Ok(freed)
}

/// Moves spilled pages that the output would overwrite before they are read. Such pages exist if the sample was very
/// wrong, or if an earlier run wrote them. The output of the ranges begins at `end`, without the `tag_bytes` of each
/// record, in blocks of the size of `pool`. A later run does not know the new places: if it needs such a page, the
/// page is damaged at its old place and the run starts over.
pub(crate) fn move_overtaken(
    ranges: &mut [Range],
    mut end: u64,
    tag_bytes: u64,
    scratch: &Scratch,
    pool: &Pool,
    queue: &mut dyn Queue,
    meters: &Meters,
) -> Result<()> {
    for range in ranges {
        end += range.store.bytes - range.store.records * tag_bytes;
        let written = end.next_multiple_of(pool.block_size() as u64);
        for page in &mut range.store.pages {
            let Stored::Spilled(extent) = page else { continue };
            if scratch.is_overtaken(extent, written) {
                let mut transfer = |op: Op| {
                    queue.submit(op);
                    let done = queue.reap(true).expect("it is in flight");
                    done.result.map(|()| done.block)
                };
                let block = transfer(scratch.read(extent, pool.take(), 0))?;
                meters.scratch.read(extent.room());
                let (to, write) = scratch.write(scratch.verify(block, extent)?, None, 0)?;
                transfer(write)?;
                meters.scratch.wrote(to.room());
                *extent = to;
            }
        }
    }
    Ok(())
}
