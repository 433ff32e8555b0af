//! For canaries: breaks one mechanism of a river on purpose. The fault comes after the checks of the core, so only a
//! receipt can show it.
//!
//! Invariant: as in [`thalweg_base::sabotage`], a release holds no code for it.

use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_base::sabotage::broken;

use crate::Batch;

/// Gives out a batch once; the third one as the sabotage wants it, if there is any.
#[inline(always)]
pub(crate) fn given(batch: Batch) -> [Option<Batch>; 2] {
    match broken() {
        None => [Some(batch), None],
        Some(kind) => broken_by(kind, batch),
    }
}

/// Drops, duplicates or truncates the third batch.
fn broken_by(kind: &str, mut batch: Batch) -> [Option<Batch>; 2] {
    static BATCHES: AtomicU64 = AtomicU64::new(0);
    if BATCHES.fetch_add(1, Ordering::Relaxed) != 2 {
        return [Some(batch), None];
    }
    match kind {
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
        _ => [Some(batch), None],
    }
}
