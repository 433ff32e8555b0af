//! The sort stage of a node: what the river brings, sorted, to the node's stretch of the output.
//!
//! Invariant: what is written is proved as it is handed to the disk.

use std::path::Path;
use std::sync::Arc;

use thalweg_api::{Edge, Receipt};
use thalweg_base::units::Size;
use thalweg_io::{FileSystem, directory_of};
use thalweg_record::{Key, Layout, Prover, TAG_BYTES, Untagger};
use thalweg_river::Outlet;
use thalweg_sort::Expected;

use super::stretch::Stretch;
use crate::{Progress, Result, Sorted, Sorter, SorterOptions, Source, WorkOptions};

/// Bytes of the last record of a stretch that are kept to be compared with the first of the next.
const KEEP_BYTES: usize = 64 << 10;

/// Proves nodes' pieces of the output.
pub(super) fn prover(layout: Layout, key: &Key) -> Prover {
    Prover::new(layout, key.clone(), true).keeping(KEEP_BYTES)
}

/// The options of a node's sorter with this memory and these threads; scratch is beside `output` by default.
pub(super) fn sorter_options(
    sort: &WorkOptions,
    memory_bytes: u64,
    threads: usize,
    output: &Path,
) -> SorterOptions {
    let beside = || vec![directory_of(output).to_path_buf()];
    SorterOptions {
        layout: sort.layout,
        keys: sort.keys.clone(),
        memory: Some(Size::Bytes(memory_bytes)),
        scratch: if sort.scratch.is_empty() { beside() } else { sort.scratch.clone() },
        scratch_limit: sort.scratch_limit,
        threads: Some(threads),
        unique: sort.unique,
        io: sort.io,
        // Records are proved where they enter the river and where they are written; only drops have to be counted here.
        no_proof: !sort.unique,
    }
}

/// Where a node's stretch of the output begins: known when those before it know how long theirs are.
pub trait Starts: Sync {
    /// Called when all records of this node's range have arrived.
    fn crossed(&self) {}

    /// Reports that this node's stretch has `bytes` bytes.
    fn say(&self, bytes: u64) -> Result<()>;

    /// Waits until the beginning of the stretch is known, and returns it; `None` if stopped.
    fn wait(&self, should_continue: &dyn Fn() -> bool) -> Result<Option<u64>>;
}

/// The result of this stage.
pub(super) struct Written {
    pub(super) prover: Box<Prover>,
    pub(super) bytes: u64,
    pub(super) edges: Vec<Edge>,
    /// What the sorter did.
    pub(super) receipt: Box<Receipt>,
    /// All of it was taken. Freeing what it spilled may take long, and happens in the meantime.
    pub(super) sorted: Sorted,
}

/// How a node sorts the records that arrive, and how it writes them.
pub(super) struct SortStage<'a> {
    /// For records as they arrive.
    pub(super) options: &'a SorterOptions,
    /// The file system of the scratch.
    pub(super) scratch: &'a Arc<dyn FileSystem>,
    /// The layout of records as they are written.
    pub(super) layout: Layout,
    pub(super) key: &'a Key,
    /// Whether they arrive with a tag, which is not written.
    pub(super) tagged: bool,
    /// What is known of them in advance.
    pub(super) expected: Expected,
}

/// Puts all that the outlet gives into a sorter. Returns the sorter and the bytes, less `tag_bytes` for each record;
/// `None` if stopped.
pub(super) fn fill(
    outlet: &mut Outlet,
    (options, scratch, expected): (&SorterOptions, &Arc<dyn FileSystem>, Expected),
    tag_bytes: u64,
    should_continue: &dyn Fn() -> bool,
) -> Result<Option<(Sorter, u64)>> {
    let mut sorter = Sorter::on(options, scratch, None)?;
    sorter.expect(expected);
    let mut bytes = 0;
    loop {
        let next = outlet.next();
        if !should_continue() {
            return Ok(None);
        }
        let Some(batch) = next? else { return Ok(Some((sorter, bytes))) };
        bytes += batch.records().len() as u64 - batch.head.records * tag_bytes;
        sorter.put_bytes(batch.records())?;
    }
}

/// Sorts all that the outlet gives; `None` if stopped.
pub(super) fn run(
    outlet: &mut Outlet,
    mut stretch: Stretch<'_>,
    stage: SortStage<'_>,
    starts: &dyn Starts,
    (progress, should_continue): (&Progress, &dyn Fn() -> bool),
) -> Result<Option<Written>> {
    let SortStage { options, scratch, layout, key, tagged, expected } = stage;
    let tag_bytes = if tagged { TAG_BYTES as u64 } else { 0 };
    let Some((sorter, bytes)) = fill(outlet, (options, scratch, expected), tag_bytes, should_continue)?
    else {
        return Ok(None);
    };
    starts.crossed();
    // If records may be dropped, it is not known yet how many bytes are left.
    if !options.unique {
        starts.say(bytes)?;
    }
    let mut sorted = sorter.sorted()?;
    let Some(start) = starts.wait(should_continue)? else { return Ok(None) };
    stretch.begin(start);
    let mut prover = prover(layout, key);
    let (mut untagger, mut plain) = (Untagger::new(layout), Vec::new());
    while let Some(block) = sorted.next()? {
        if !should_continue() {
            return Ok(None);
        }
        let records: &[u8] = if tagged {
            plain.clear();
            untagger.push(&block, &mut plain);
            &plain
        } else {
            &block
        };
        prover.push(records);
        stretch.put(records)?;
        progress.advance(records.len() as u64);
    }
    let bytes = stretch.bytes();
    if options.unique {
        starts.say(bytes)?;
    }
    let receipt = Box::new(sorted.receipt()?);
    Ok(Some(Written { prover: Box::new(prover), bytes, edges: stretch.finish()?, receipt, sorted }))
}
