//! What each node of an attempt can expect, from the samples of all nodes.

use thalweg_api::Work;
use thalweg_engine::participant::{KeyRange, by_range, deal, split_points};
use thalweg_engine::{Result, WorkOptions};
use thalweg_record::{SplitPoint, thin_sample};

/// A node is given a sample of its range's keys if the range takes more than 1/KEYS_FOR_MEMORIES of its memory. Nodes
/// with more memory sample what arrives instead.
const KEYS_FOR_MEMORIES: u64 = 2;
/// The most bytes of that sample.
const KEYS_BYTES_MAX: u64 = 8 << 20;

/// The split points, and the ranges that they make.
pub(crate) struct Ranges {
    pub(crate) split_points: Vec<SplitPoint>,
    /// For each node the bytes of its range and, if they help, some of its keys.
    pub(crate) expected: Vec<(u64, Vec<SplitPoint>)>,
}

/// Divides `all_bytes` of records, of whose keys `sample` is a part, into ranges with sizes in the ratio of `weights`,
/// for nodes with this much memory.
pub(crate) fn ranges(
    sort: &WorkOptions,
    mut sample: Vec<SplitPoint>,
    (weights, memory_bytes): (&[u64], &[u64]),
    within: &KeyRange,
    all_bytes: u64,
) -> Result<Ranges> {
    let is_sorted = matches!(sort.work, Work::Sort | Work::Merge);
    let split_points = split_points(sort, &mut sample, weights, within)?;
    let sampled = sample.len() as u128;
    let keys = by_range(sample, &split_points, memory_bytes.len());
    let dealt = deal(all_bytes, weights).into_iter().zip(memory_bytes);
    let expect = |(mut keys, (dealt_bytes, memory_bytes)): (Vec<SplitPoint>, (u64, &u64))| {
        // If a hot key must not be split, ranges have the size that results.
        let range_bytes = match is_sorted && sampled > 0 {
            true => (u128::from(all_bytes) * keys.len() as u128 / sampled) as u64,
            false => dealt_bytes,
        };
        if is_sorted && range_bytes > memory_bytes / KEYS_FOR_MEMORIES {
            thin_sample(&mut keys, KEYS_BYTES_MAX);
        } else {
            keys.clear();
        }
        (range_bytes, keys)
    };
    Ok(Ranges { expected: keys.into_iter().zip(dealt).map(expect).collect(), split_points })
}
