//! For canaries: breaks one mechanism of a river on purpose. The fault comes after the checks of the core, so only a
//! receipt can show it.
//!
//! Invariant: without the feature `sabotage` no code remains.

use crate::Batch;

/// Gives out a batch once.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) fn given(batch: Batch) -> [Option<Batch>; 2] {
    [Some(batch), None]
}

/// Drops, duplicates or truncates the third batch, as the environment says.
#[cfg(feature = "sabotage")]
pub(crate) fn given(mut batch: Batch) -> [Option<Batch>; 2] {
    use std::sync::atomic::{AtomicU64, Ordering};
    static BATCHES: AtomicU64 = AtomicU64::new(0);
    let Ok(kind) = std::env::var("THALWEG_SABOTAGE") else { return [Some(batch), None] };
    if BATCHES.fetch_add(1, Ordering::Relaxed) != 2 {
        return [Some(batch), None];
    }
    match kind.as_str() {
        "drop-batch" => [None, None],
        "double-batch" => {
            let pool = thalweg_block::Pool::new(batch.block.capacity(), 1).expect("room for one more");
            let mut block = pool.take();
            block.set_len(batch.block.len());
            block.copy_from_slice(&batch.block);
            let again = Batch { head: batch.head, block, ticket: None };
            [Some(batch), Some(again)]
        }
        "short-batch" => {
            let (bytes, records) = (batch.head.bytes, batch.head.records);
            let len = batch.block.len() - (bytes / records.max(1)) as usize;
            batch.block.set_len(len);
            [Some(batch), None]
        }
        _ => panic!("no sabotage of a river is called {kind}"),
    }
}
