//! Partitioners select the lane of a record (PickStream in the paper).

use std::ops::Range;

use thalweg_record::SplitPoints;
use xxhash_rust::xxh3::xxh3_64;

/// A custom partitioner: takes a record and its offset in the input, returns a lane.
type Own = dyn Fn(&[u8], u64) -> usize + Send + Sync;

/// Selects the lane of each record.
pub enum Partitioner {
    /// By ranges of the key: lane i gets the keys in (split point i - 1, split point i]. Origins decide ties.
    Range(SplitPoints),
    /// By ranges of the key, but only these ranges; the first of them is lane 0. Other records are dropped.
    Among(SplitPoints, Range<usize>),
    /// By a hash of the key: equal keys go to one lane.
    Hash,
    /// In turn; each split starts at another lane.
    RoundRobin,
    /// To every lane.
    Copy,
    /// To the outlet with the most unused credits: a slow outlet gets less.
    LeastBusy,
    /// By this function.
    Own(Box<Own>),
}

impl std::fmt::Debug for Partitioner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Partitioner::Range(_) | Partitioner::Among(..) => "range",
            Partitioner::Hash => "hash",
            Partitioner::RoundRobin => "robin",
            Partitioner::Copy => "copy",
            Partitioner::LeastBusy => "least busy",
            Partitioner::Own(_) => "own",
        })
    }
}

/// The lane for a key.
#[inline(always)]
pub(crate) fn lane_of_hash(key: &[u8], lanes: usize) -> usize {
    ((u128::from(xxh3_64(key)) * lanes as u128) >> 64) as usize
}
