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

/// How a node sorts what comes, in so much memory on so many threads, with scratch beside `output` unless somebody says.
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
        // Proved where it goes into the river and where it is written; only who drops has to say what.
        proof: sort.unique,
    }
}

/// Where a node's stretch of the output begins: known when those before it know how long theirs are.
pub trait Starts: Sync {
    /// All that this node was to get has come.
    fn crossed(&self) {}

    /// This node's stretch has so many bytes.
    fn say(&self, bytes: u64) -> Result<()>;

    /// Where it begins, once that is known; nothing if nobody is to go on.
    fn wait(&self, should_continue: &dyn Fn() -> bool) -> Result<Option<u64>>;
}

/// What this stage made.
pub(super) struct Written {
    pub(super) prover: Box<Prover>,
    pub(super) bytes: u64,
    pub(super) edges: Vec<Edge>,
    /// What the sorter did.
    pub(super) receipt: Box<Receipt>,
    /// Of which all was taken. What it spilled may take long to be freed, and does so meanwhile.
    pub(super) sorted: Sorted,
}

/// How a node sorts what comes, and what of it is written.
pub(super) struct SortStage<'a> {
    /// Of records as they come.
    pub(super) options: &'a SorterOptions,
    /// What has the scratch.
    pub(super) scratch: &'a Arc<dyn FileSystem>,
    /// As they are written.
    pub(super) layout: Layout,
    pub(super) key: &'a Key,
    /// Whether they come with a tag, which is not written.
    pub(super) tagged: bool,
    /// What is known of them before they come.
    pub(super) expected: Expected,
}

/// Takes all that the outlet gives, of which so much is known, into a sorter; with how many bytes that is beside so many
/// of each record. Nothing if nobody is to go on.
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

/// Sorts all that the outlet gives; nothing if nobody is to go on.
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
    // Of records that may be dropped nobody knows yet how many bytes are left.
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
